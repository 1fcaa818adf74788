//! What a replay of the recording cannot know, and what follows from it for the advice.

use crate::model::{self, Model};
use crate::progress;
use dwell_policy::Nanos;
use dwell_recording::{Chunk, Columns, Reader, WakeCause};
use dwell_replay::advice::Advice;
use dwell_replay::{Counts, RecordingSource, Rule};
use dwell_report::percent;

/// Costs of the present and the chosen setting at the other end of what the wakeup latency may be.
pub(super) fn other_end(
    source: &RecordingSource,
    upper: Nanos,
    advice: &Advice,
    model: &Model,
) -> anyhow::Result<String> {
    let mut named = vec![("the present setting", advice.present)];
    named
        .extend(advice.chosen.filter(|chosen| *chosen != advice.present).map(|chosen| ("the other", chosen)));
    let rules: Vec<Rule> = named.iter().map(|(_, setting)| Rule::Layer(*setting)).collect();
    let cost_shares = |source: &RecordingSource| -> anyhow::Result<Vec<f64>> {
        let replayed = progress::replay(source, &rules, model.halt_cost)?;
        let share =
            |counts: &Counts| counts.cost_ns(model.halt_cost) as f64 / replayed.span.ns().max(1) as f64;
        Ok(replayed.counts.iter().map(share).collect())
    };
    let (without, with) = (cost_shares(source)?, cost_shares(&source.at_latency(upper))?);
    let costs = named.iter().zip(without.iter().zip(&with));
    let mut words =
        model::unknown_latency(upper, costs.map(|((name, _), (a, b))| ((*name).to_owned(), *a, *b)));
    if let ([a, b, ..], [late_a, late_b, ..]) = (&without[..], &with[..])
        && (a < b) != (late_a < late_b)
    {
        words += ". THE ADVICE DEPENDS ON IT: at that latency the recommended setting costs more than the present one";
    }
    Ok(words)
}

/// This share of the wakeups by tasks of other recorded CPUs and devices, or more: the load may wait for itself.
const CLOSED_LOOP: f64 = 0.9;

/// What a replay does not show of a load that waits for itself; nothing where the recording does not show such a load.
pub(super) fn closed_loop(reader: &Reader, advice: &Advice) -> anyhow::Result<Option<String>> {
    let (mut chunk, mut known, mut by_tasks, mut by_devices) = (Chunk::default(), 0u64, 0u64, 0u64);
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, Columns::WAKE, &mut chunk)?;
        for wake in chunk.wake.iter().flatten().filter(|wake| **wake != WakeCause::Unknown) {
            known += 1;
            by_tasks += u64::from(*wake == WakeCause::Ipi);
            by_devices += u64::from(*wake == WakeCause::Irq);
        }
    }
    let share = |of: u64| of as f64 / known.max(1) as f64;
    if share(by_tasks + by_devices) < CLOSED_LOOP || 2 * known < reader.episodes() {
        return Ok(None);
    }
    let direction = match advice.more_halts_per_s() {
        Some(more) if more > 0.0 => {
            "this one halts more often: expect less work done, up to several times less"
        }
        Some(more) if more < 0.0 => {
            "this one halts less often: expect more work done, and more CPU time in all"
        }
        _ => "fewer halts get more work done, at more CPU time in all, and more halts less",
    };
    let whose = if share(by_tasks) >= CLOSED_LOOP && reader.contents().idlers.len() > 1 {
        format!(
            "{} of the wakeups were by tasks of other CPUs, which idle themselves: this load waits for itself, its \
             throughput will change with the setting, and a replay does not show that",
            percent(share(by_tasks))
        )
    } else {
        format!(
            "{} of the wakeups were by tasks of other CPUs, {} by devices: where a request is sent only after the answer to \
             the one before, the load waits for itself, its throughput will change with the setting, and a replay does not \
             show that",
            percent(share(by_tasks)),
            percent(share(by_devices))
        )
    };
    Ok(Some(format!(
        "{whose}. As a rule of thumb, {direction}. Measure the work under both: dwell verify --set \
         NAME=VALUE --work CMD"
    )))
}
