//! The advice as text and tables.

use super::{ByWork, Tuned};
use crate::model;
use crate::output;
use dwell_knobs::lines::Lines;
use dwell_machine::load::SHARED_CORE;
use dwell_policy::Layer;
use dwell_replay::advice::{Advice, AdviceRow, Role};
use dwell_replay::{Row, Values};
use dwell_report::{Cell, Column, Table, count, duration, percent, priced, ratio};

/// So many rows of the front are printed as text.
const FRONT_ROWS: usize = 20;

/// Whether a guest has its cores for itself, by the share of the CPU time wanted that went to others.
pub(super) fn cores(stolen: f64) -> String {
    let (cores, rest) = if stolen >= SHARED_CORE {
        ("shares its cores", "; no setting that polls more is advised")
    } else {
        ("has cores of its own", "")
    };
    let share = percent(stolen);
    format!(
        "this guest {cores}: by its hypervisor's count {share} of the CPU time that it wanted went to others{rest}"
    )
}

/// The Pareto front; parameters that are as `present` are left out, if that is given, and all but every so many rows.
pub(super) fn front_table(advice: &Advice, present: Option<&Values>) -> Table {
    let rows = advice.front.len();
    let most = if present.is_some() { FRONT_ROWS } else { rows };
    // Evenly, the first and the last among them.
    let shown = |row: usize| rows <= most || row * (most - 1) % (rows - 1) < most - 1;
    let front = advice.front.iter().enumerate().filter(|(at, _)| shown(*at)).map(|(_, row)| row);
    let setting = |row: &Row| match present.map(|present| row.setting.differing_from(present)) {
        Some(differing) if differing.is_empty() => "as present".to_owned(),
        Some(differing) => differing.to_string(),
        None => row.setting.to_string(),
    };
    priced::columns(Table::of(front), false, |row| &row.figures)
        .column(Column::text("setting", "setting").below(), setting)
        .table()
}

/// The policies of an advice, on the second half.
pub(super) fn table(advice: &Advice) -> Table {
    let present = advice.row(Role::Present).map(|row| row.row.setting.clone()).unwrap_or_default();
    let table = Table::of(&advice.rows).column(Column::text("policy", "role"), |row| row.role.name());
    priced::columns(table, false, |row| &row.row.figures)
        .column(Column::number("(1st half)", "fitted_cost_over_optimum").rank(4), |row| {
            Cell::ratio(row.fitted.cost_over_optimum)
        })
        .column(Column::text("setting", "setting").below(), |row| setting_words(row, &present))
        .table()
}

/// The parameters in which a row differs from the present setting; all of them for the present setting itself.
fn setting_words(AdviceRow { role, row, .. }: &AdviceRow, present: &Values) -> String {
    let setting = &row.setting;
    let differing = setting.differing_from(present);
    match role {
        Role::Present => setting.to_string(),
        // Their parameter is the halt cost, which is printed above.
        Role::Learner(_) => String::new(),
        _ if differing.is_empty() && !setting.is_empty() => "as present".to_owned(),
        _ => differing.to_string(),
    }
}

/// The costs of learning policies, which no kernel has, and how to get one.
fn better_rules(tuned: &Tuned) -> String {
    let advice = &tuned.advice;
    let cost = |role: Role| advice.figures(role).cost_over_optimum;
    let over = |role: Role| cost(role).map_or_else(|| "-".to_owned(), ratio);
    if tuned.layer == Layer::Driver.name() {
        return format!(
            "At this halt cost leader would cost {} times the optimum and savings {}; the best setting of the driver in \
             hindsight costs {}.",
            over(Role::LEADER),
            over(Role::SAVINGS),
            over(Role::BestInHindsight)
        );
    }
    // By one part in a hundred: less does not show in what is printed.
    let learner_is_better = cost(Role::LEADER)
        .zip(cost(Role::BestInHindsight))
        .is_some_and(|(leader, best)| leader < 0.99 * best);
    let offer = if tuned.layer == Layer::Guest.name() && learner_is_better {
        format!(
            "\nFor guests of KVM the idle driver dwell_idle has leader: install dwell-idle-dkms (kernel/dwell_idle), then\n\
             modprobe dwell_idle halt_cost_ns={}",
            advice.halt_cost_ns
        )
    } else {
        String::new()
    };
    format!(
        "A learning policy would cost {} times the optimum (leader) or {} (savings); the best setting of today's rule\n\
         in hindsight costs {}. The crate dwell-policy has both policies; no kernel does.{offer}",
        over(Role::LEADER),
        over(Role::SAVINGS),
        over(Role::BestInHindsight)
    )
}

/// The possible gain, the cost of each policy, and the advice, as text.
pub(crate) fn opening(tuned: &Tuned) -> String {
    let advice = &tuned.advice;
    let share = |ns_per_s: f64| percent(ns_per_s / 1e9);
    let first = if tuned.begins_with_source { tuned.notes.first().map(String::as_str) } else { None };
    let first = first.map_or_else(String::new, output::wrapped);
    let head = format!(
        "{}: {}, {}",
        tuned.file,
        model::episodes_of(tuned.episodes, tuned.idlers),
        model::rule_of(tuned.layer, &tuned.version),
    );
    let costs = format!("halt cost: {}", model::halt_cost_words(advice.halt_cost_ns, tuned.halt_cost_origin));
    let bound = format!(
        "Prices are CPU time polled plus halts at the halt cost, in shares of a CPU. Any policy could gain at most {}: the \
         present setting costs {}, of which CPU time polled {}, and the optimum, a lower bound for any policy, {}.",
        share(advice.upper_bound.gain_ns_per_s.max(0.0)),
        share(advice.upper_bound.present_cost_ns_per_s),
        share(advice.figures(Role::Present).polling_ns_per_s),
        share(advice.upper_bound.optimum_cost_ns_per_s),
    );
    let halves = format!(
        "{} settings were tried on the first half of the recording ({}). On the second half ({}), which was not used for \
         the choice:",
        count(advice.settings_tried as u128),
        duration(advice.fitted_span_ns as f64),
        duration(advice.judged_span_ns as f64),
    );
    [
        first,
        output::wrapped(&head),
        output::wrapped(&format!("goal: {}", advice.goal)),
        output::wrapped(&costs),
        "\n".to_owned(),
        output::wrapped(&bound),
        "\n".to_owned(),
        output::wrapped(&halves),
        "\n".to_owned(),
        output::fitted(&table(advice)),
        "\n".to_owned(),
        output::wrapped(&format!("Advice: {}", tuned.words)),
        "\n".to_owned(),
        output::wrapped(&better_rules(tuned).replace('\n', " ")),
    ]
    .concat()
}

/// The Pareto front as text; empty if it was not asked for.
pub(super) fn front_words(advice: &Advice) -> String {
    if advice.front.is_empty() {
        return String::new();
    }
    let words = format!(
        "No setting tried has both less polling CPU and fewer halts than one of these {}, on the second half{}:",
        count(advice.front.len() as u128),
        if advice.front.len() > FRONT_ROWS {
            format!("; {FRONT_ROWS} are shown, --format csv has all")
        } else {
            String::new()
        },
    );
    let present = Values::from(&advice.present);
    format!("\n{}\n{}", output::wrapped(&words), output::fitted(&front_table(advice, Some(&present))))
}

/// Settings by work, the lines that set the advised values, and the notes, as text.
pub(crate) fn ending(tuned: &Tuned) -> String {
    let work = tuned.work.as_ref().map_or_else(String::new, ByWork::words);
    work + &below(&tuned.lines, &tuned.notes[usize::from(tuned.begins_with_source)..])
}

/// The lines that set the advised values, and the notes.
pub(super) fn below(lines: &[Lines], notes: &[String]) -> String {
    let mut text = String::new();
    for Lines { about, lines } in lines {
        text += &format!("\n# {about}\n");
        text.extend(lines.iter().map(|line| format!("{line}\n")));
    }
    if !notes.is_empty() {
        text += "\n";
    }
    text + &output::notes(notes)
}
