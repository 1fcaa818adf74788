//! The verdict from the measurements.

use super::sides::Sides;
use super::{AFTER, Args, BEFORE};
use dwell_knobs::condition;
use dwell_knobs::journal::Change;
use dwell_knobs::knob::Knob;
use dwell_knobs::verification::{self, Compared, Evidence, Figure, Unit, Verdict, Verification, Work};
use dwell_machine::Writable;
use dwell_report::rounded;
use dwell_stats::{Results, Warning};
use std::time::SystemTime;

/// What the measurements say about the change.
pub(super) fn conclude(
    args: &Args,
    machine: &dyn Writable,
    change: &Change,
    results: &Results,
    sides: &Sides,
) -> Verification {
    let plan = &change.plan;
    let control = format!("{BEFORE} (A/A)");
    let compared = |figure: Figure| {
        let row = |arm: &str| results.row(arm, figure.name());
        let value = |arm: &str| row(arm)?.value;
        let difference = |arm: &str| Some(row(arm)?.comparison?.difference);
        let (predicted_before, predicted_after) =
            (figure.of(&plan.effect.present), figure.of(&plan.effect.recommended));
        Compared {
            figure,
            predicted_before,
            predicted_after,
            before: value(BEFORE),
            after: value(AFTER),
            difference: difference(AFTER),
            control_difference: difference(&control),
        }
    };
    let figures: Vec<Compared> = Figure::ALL.into_iter().map(compared).collect();
    let comparable: Vec<Compared> =
        figures.iter().filter(|compared| sides.comparable(compared.figure)).cloned().collect();
    let work: Vec<Work> = sides.units().into_iter().map(|unit| work_of(results, unit)).collect();
    let promised = verification::promised(plan);
    let evidence = Evidence {
        effect: &plan.effect,
        promised,
        figures: &comparable,
        work: &work,
        halt_cost_ns: plan.conditions.halt_cost_ns as f64,
        rounds: results.rounds,
    };
    let (verdict, why) = match no_effect(args, machine, change) {
        Some(why) => (Verdict::NoEffect, vec![why]),
        None => evidence.judge(),
    };
    let wakeups_per_s = results.row(BEFORE, Unit::Wakeup.per_s()).and_then(|row| Some(row.value?.value));
    let span_s = plan.recording.span_ns as f64 / 1e9;
    let planned_wakeups_per_s = (span_s > 0.0).then(|| plan.recording.episodes as f64 / span_s);
    let mut notes = sides.notes();
    notes.extend(args.record.note());
    notes.extend(other_load(wakeups_per_s, planned_wakeups_per_s));
    // The load is what is verified under: no block is repeated for it, and it is nobody else's.
    let says_something = |warning: &&Warning| {
        verdict != Verdict::NoEffect
            && !matches!(warning, Warning::NotGated { .. } | Warning::FewRounds { .. })
    };
    // As the table has them.
    let name_of = |figure: &str| {
        work.iter().map(|of| of.unit).find_map(|unit| match figure {
            _ if figure == unit.promised_per_unit() => {
                Some(format!("{} per {}", promised.words(), unit.one()))
            }
            _ if figure == unit.per_s() => Some(format!("{}/s", unit.many())),
            _ => None,
        })
    };
    let said = results.warnings.iter().filter(says_something);
    notes.extend(said.map(|warning| warning.clone().with_figures(name_of).to_string()));
    Verification {
        at_unix_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        verdict,
        why,
        promised,
        figures,
        work,
        rounds: results.rounds,
        elapsed_s: results.elapsed_s,
        wakeups_per_s,
        planned_wakeups_per_s,
        reverted: false,
        notes,
    }
}

fn work_of(results: &Results, unit: Unit) -> Work {
    let value = |arm: &str, figure: &str| results.row(arm, figure)?.value;
    let compared = |figure: &str| results.row(AFTER, figure)?.comparison;
    Work {
        unit,
        before: value(BEFORE, unit.per_s()),
        after: value(AFTER, unit.per_s()),
        ratio: compared(unit.per_s()).and_then(|comparison| comparison.ratio),
        promised_before: value(BEFORE, unit.promised_per_unit()),
        promised_after: value(AFTER, unit.promised_per_unit()),
        promised_difference: compared(unit.promised_per_unit()).map(|comparison| comparison.difference),
    }
}

/// Why nothing that was set can have an effect on what was measured.
fn no_effect(args: &Args, machine: &dyn Writable, change: &Change) -> Option<String> {
    if args.state.machine().is_ok_and(|machine| !machine.is_this_machine()) {
        return Some(
            "the files below --sysroot are not those of the running kernel, which was measured".to_owned(),
        );
    }
    let knobs = change.entries.iter().filter_map(|entry| Knob::find(entry.knob.as_deref()?));
    knobs.filter_map(|knob| condition::no_effect(machine, knob)).map(|why| why.to_string()).next()
}

/// Beyond this factor the loads differ.
const OTHER_LOAD: f64 = 2.0;

fn other_load(now: Option<f64>, planned: Option<f64>) -> Option<String> {
    let (now, planned) = now.zip(planned)?;
    (now > planned * OTHER_LOAD || planned > now * OTHER_LOAD).then(|| {
        format!(
            "the load differs from that of the plan's recording: {} wakeups/s now, {} then",
            rounded(now),
            rounded(planned)
        )
    })
}
