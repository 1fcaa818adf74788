//! What `dwell explain` prints.

use super::{Comparison, Told};
use crate::output;
use dwell_knobs::explain::same::Sameness;
use dwell_knobs::explain::{Effect, Explained};
use dwell_report::{Column, Table, count, duration};

pub(super) fn words(told: &Told) -> String {
    let mut text = output::wrapped(&told.base);
    for explained in &told.explained {
        text += &format!("\n{}", in_words(explained));
    }
    for comparison in &told.comparisons {
        let Comparison { first, second, sameness, .. } = comparison;
        let words = match sameness {
            Sameness::Same { states } => format!(
                "{first} and {second} are equivalent: the same window after every sequence of halts ({states} pairs of \
                 states, all visited)"
            ),
            _ => format!("{first} and {second}: {}", apart(sameness)),
        };
        text += &format!("\n{}", output::wrapped(&words));
    }
    if let Some(capability) = &told.capability {
        let head = format!("{} ({}): {}", capability.name, capability.number, capability.only);
        text += &format!("\n{}", output::wrapped(&head));
        if let Some(call) = &capability.call {
            text += &format!("  {call}\n");
        }
        for (vmm, how) in &capability.vmms {
            text += &indented(&format!("{vmm} {how}"));
        }
    }
    text
}

/// A paragraph below a heading.
fn indented(words: &str) -> String {
    output::hanging("  ", "    ", words)
}

fn in_words(explained: &Explained) -> String {
    let Explained { knob, layer, value, about, zero, scope_words, kept_by, .. } = explained;
    let effect = explained.effect.words();
    let mut text = output::wrapped(&format!("{knob} = {value} ({layer}): {effect}"));
    text += &indented(&format!("what it does: {about}; 0: {zero}"));
    // A value without effect acts like all others.
    if !explained.same_as.is_empty() && explained.effect == Effect::Effective {
        let same: Vec<String> = explained.same_as.iter().map(ToString::to_string).collect();
        text += &indented(&format!("equivalent values: {}", same.join(", ")));
    }
    match (&explained.against_default, explained.default) {
        (Some(sameness), Some(default)) => {
            text += &indented(&format!("compared with the default {default}: {}", apart(sameness)))
        }
        (_, Some(default)) if default == *value => text += "  it is the default\n",
        _ => {}
    }
    text += &indented(&format!("scope: {scope_words}"));
    text += &indented(&format!("kept by {kept_by}"));
    explained.notes.iter().for_each(|note| text += &indented(&format!("note: {note}")));
    text
}

/// How two settings differ.
fn apart(sameness: &Sameness) -> String {
    let time = |ns: u64| duration(ns as f64);
    // A nanosecond more or less decides.
    let exactly = |ns: u64| match ns.is_multiple_of(1_000) {
        true => time(ns),
        false => format!("{} ns", count(ns.into())),
    };
    match sameness {
        Sameness::Same { .. } => "equivalent for every sequence of halts".to_owned(),
        Sameness::Undecided { .. } => "not decided whether they differ".to_owned(),
        Sameness::NotKnown { same_since, other_since } => format!(
            "not known for this kernel: equivalent by the rule since {}, different by that since {}",
            same_since.join(", "),
            other_since.join(", ")
        ),
        Sameness::Differ { halts_ns, first_ns, second_ns, by_rule_since } => {
            let halts: Vec<String> = halts_ns.iter().map(|ns| exactly(*ns)).collect();
            format!(
                "they differ: for example, {}after halts of {} the windows are {} and {}",
                by_rule_since.map(|since| format!("by the rule since {since}, ")).unwrap_or_default(),
                halts.join(", "),
                time(*first_ns),
                time(*second_ns)
            )
        }
    }
}

pub(super) fn table(told: &Told) -> Table {
    let same = |explained: &Explained| {
        explained.same_as.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    Table::of(&told.explained)
        .column(Column::text("knob", "knob"), |explained| explained.knob)
        .column(Column::text("layer", "layer"), |explained| explained.layer)
        .column(Column::text("version", "version"), |explained| explained.version.as_str())
        .column(Column::number("value", "value"), |explained| explained.value.to_string())
        .column(Column::text("effect", "effect"), |explained| explained.effect.name())
        .column(Column::text("same as", "same_as"), same)
        .column(Column::text("scope", "scope"), |explained| explained.scope_words)
        .table()
        .followed_by(
            Table::of(told.capability.as_ref())
                .column(Column::text("knob", "knob"), |capability| capability.name)
                .column(Column::text("scope", "scope"), |capability| capability.only)
                .column(Column::text("call", "call"), |capability| capability.call.as_deref())
                .table(),
        )
}
