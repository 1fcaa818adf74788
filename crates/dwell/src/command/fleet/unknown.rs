//! Recordings of which the wakeup latency is not known.

use dwell_fleet::{Costs, Question, Rollout, Row};
use dwell_replay::latency;
use dwell_report::{count, duration, number_of, percent};

/// A note on what it does to the first choice that the wakeup latency of some recordings is not known: of `late`, the
/// rollout at the other end of what it may be.
pub(super) fn note(
    question: &Question,
    rows: &[Row],
    found: &Rollout,
    late: impl FnOnce(&Question) -> anyhow::Result<Rollout>,
) -> anyhow::Result<Option<String>> {
    let usable = || rows.iter().filter_map(|row| row.costs.as_ref().ok());
    let unknown: Vec<&Costs> = usable().filter(|costs| !costs.latency_known).collect();
    if unknown.is_empty() {
        return Ok(None);
    }
    let other_end = match unknown.iter().any(|costs| costs.of_sketch) {
        true => "What it would do is not known: sketches cannot be replayed with another latency".to_owned(),
        false => other_end(found, &late(&Question { at_other_end: true, ..question.clone() })?),
    };
    Ok(Some(format!(
        "of {} of {} the wakeup latency is not known, and rules learn from idle time and latency together: \
         figures are without it. {other_end}",
        count(unknown.len() as u128),
        number_of(usable().count() as u128, "recording")
    )))
}

fn other_end(found: &Rollout, late: &Rollout) -> String {
    let first =
        |rollout: &Rollout| rollout.choices.iter().find(|choice| !choice.settings.is_empty()).cloned();
    let effect = first(found).zip(first(late)).map_or_else(String::new, |(without, with)| {
        // Where halts are free, today costs nothing that could be gained.
        let gains = with.gain_over_today.zip(without.gain_over_today);
        format!(
            ", `{}` would be {}{}",
            without.choice,
            if without.settings == with.settings { "the same" } else { "of other settings" },
            gains.map_or_else(String::new, |(with, without)| format!(
                " and gain {} over today instead of {}",
                percent(with),
                percent(without)
            ))
        )
    });
    format!(
        "With {} in every halt of these, or as much as 99 in 100 lengths that include it have{effect}",
        duration(latency::UPPER.get() as f64)
    )
}
