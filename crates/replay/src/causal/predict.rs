//! Work under other settings, in ranges: the constants are estimates, and when interrupts come is not known.

use super::{Constants, External, Outcome, Program};
use crate::latency::{QUANTILES, quantiles};
use crate::rule::{Rule, RuleError};
use dwell_policy::Nanos;
use dwell_recording::{Cause, Segments};
use serde::Serialize;
use std::collections::BTreeMap;

/// A constant must have been seen so many times before a recording is taken for its source.
const FEWEST: usize = 20;

/// A constant with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// \[ns\].
    pub ns: u64,
    /// \[ns\].
    pub low_ns: u64,
    /// \[ns\].
    pub high_ns: u64,
    /// How many wakeups of the recording it is from, with a 95 % interval; 0: it is assumed.
    pub seen: u64,
}

impl Estimate {
    const fn assumed(ns: u64, low_ns: u64, high_ns: u64) -> Estimate {
        Estimate { ns, low_ns, high_ns, seen: 0 }
    }

    /// The median and its interval by order statistics; `None` of too few values.
    fn of(mut values: Vec<u64>) -> Option<Estimate> {
        values.sort_unstable();
        let count = values.len();
        // The normal approximation of the binomial distribution: 1.96 standard deviations are 0.98 roots of the count.
        let (middle, beside) = (count / 2, count.isqrt() + 1);
        let at = |place: usize| values.get(place.min(count.saturating_sub(1))).copied();
        let (ns, low_ns, high_ns) =
            (at(middle)?, at(middle.saturating_sub(beside))?, at(middle.saturating_add(beside))?);
        (count >= FEWEST).then_some(Estimate { ns, low_ns, high_ns, seen: count as u64 })
    }

    /// How much more the first is than the second, at least 0.
    fn difference(more: Estimate, less: Estimate) -> Estimate {
        Estimate {
            ns: more.ns.saturating_sub(less.ns),
            low_ns: more.low_ns.saturating_sub(less.high_ns),
            high_ns: more.high_ns.saturating_sub(less.low_ns),
            seen: more.seen.min(less.seen),
        }
    }
}

/// The [`Constants`], each with its interval and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimates {
    /// From a wakeup to running, after a poll.
    pub after_poll: Estimate,
    /// From a wakeup to running, after a halt.
    pub after_halt: Estimate,
    /// What the waker pays for ending a halt.
    pub ipi: Estimate,
    /// How much longer the first segment after a halt is.
    pub longer_segment: Estimate,
    /// What of a halt hides an interrupt.
    pub hidden: Estimate,
}

/// What constants are assumed to be where a recording does not show them: about what they were on the one machine
/// where they were measured, a nested guest of 2 vCPUs, with wide intervals. There a segment of two processes that pass a
/// byte was 0.1 to 0.8 us longer after a halt, one of PostgreSQL 3 us.
const ASSUMED: Estimates = Estimates {
    after_poll: Estimate::assumed(2_000, 1_000, 4_000),
    after_halt: Estimate::assumed(20_000, 10_000, 40_000),
    ipi: Estimate::assumed(5_000, 0, 10_000),
    longer_segment: Estimate::assumed(1_000, 0, 5_000),
    hidden: Estimate::assumed(3_000, 0, 6_000),
};

/// One of the three values of each estimate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Low,
    Middle,
    High,
}

impl Estimates {
    /// Estimates what the recording shows: latencies of wakeups by tasks, and the lengths of segments of one task before
    /// and after its waking of another, after polls and after halts. `after_halt` takes the place of what
    /// is assumed where there was no halt.
    ///
    /// Also the latencies of halts, as quantiles, where there are enough.
    fn of(
        segments: &Segments,
        before: &Before,
        after_halt: Option<Nanos>,
    ) -> (Estimates, Option<[u64; QUANTILES]>) {
        let mut late = [vec![], vec![]];
        // By task, and whether there was a halt.
        let mut until_waking: BTreeMap<(u32, bool), Vec<u64>> = BTreeMap::new();
        let mut after_waking: BTreeMap<(u32, bool), Vec<u64>> = BTreeMap::new();
        let mut woken_by = vec![0u32; segments.rows.len()];
        for row in &segments.rows {
            if let Cause::Task { waker, .. } = row.cause {
                woken_by[waker as usize] += 1;
            }
        }
        for (place, row) in segments.rows.iter().enumerate() {
            let (Cause::Task { waker, offset_ns }, Some(halted)) = (row.cause, before.idled(place)) else {
                continue;
            };
            let by = segments.rows[waker as usize];
            if by.cpu == row.cpu {
                continue;
            }
            let woken_ns = by.start_ns.saturating_add(offset_ns);
            late[usize::from(halted)].push(row.start_ns.saturating_sub(woken_ns));
            if woken_by[waker as usize] == 1 {
                after_waking.entry((by.task, halted)).or_default().push(by.run_ns.saturating_sub(offset_ns));
                if let Some(halted) = before.idled(waker as usize) {
                    until_waking.entry((by.task, halted)).or_default().push(offset_ns);
                }
            }
        }
        let [mut polled, mut halted] = late;
        if are_rare(polled.len(), halted.len()) {
            polled.clear();
        }
        let assumed = match after_halt {
            Some(Nanos(ns)) => Estimate::assumed(ns, ns / 2, ns.saturating_mul(2)),
            None => ASSUMED.after_halt,
        };
        halted.sort_unstable();
        let spread = quantiles(&halted).filter(|_| halted.len() >= FEWEST);
        let estimates = Estimates {
            after_poll: Estimate::of(polled).unwrap_or(ASSUMED.after_poll),
            after_halt: Estimate::of(halted).unwrap_or(assumed),
            ipi: of_halts(after_waking).unwrap_or(ASSUMED.ipi),
            longer_segment: of_halts(until_waking).unwrap_or(ASSUMED.longer_segment),
            hidden: ASSUMED.hidden,
        };
        (estimates, spread)
    }

    fn at(&self, end: End) -> Constants {
        let of = |estimate: Estimate| match end {
            End::Low => estimate.low_ns,
            End::Middle => estimate.ns,
            End::High => estimate.high_ns,
        };
        Constants {
            after_poll_ns: of(self.after_poll),
            after_halt_ns: of(self.after_halt),
            ipi_ns: of(self.ipi),
            longer_segment_ns: of(self.longer_segment),
            hidden_ns: of(self.hidden),
        }
    }
}

/// Whether polls show no constant: fewer than one in fifty halts are those of windows that a setting that never polls has
/// left, or what was taken for polls. Halts are halts however rare.
const fn are_rare(polls: usize, halts: usize) -> bool {
    polls.saturating_mul(50) < halts
}

/// How much halts add, of the task of which the most is known.
fn of_halts(lengths: BTreeMap<(u32, bool), Vec<u64>>) -> Option<Estimate> {
    let both = lengths.iter().filter(|((_, halted), _)| *halted).filter_map(|((task, _), halted)| {
        let polled = lengths.get(&(*task, false))?;
        let fewer = halted.len().min(polled.len());
        (!are_rare(polled.len(), halted.len())).then_some((fewer, halted, polled))
    });
    let (_, halted, polled) = both.max_by_key(|(fewer, ..)| *fewer)?;
    Some(Estimate::difference(Estimate::of(halted.clone())?, Estimate::of(polled.clone())?))
}

/// What each segment's CPU did right before it, by the recording or else by the rule that was in force.
struct Before {
    idled: Vec<Option<bool>>,
}

impl Before {
    fn of(segments: &Segments, present: &Rule) -> Result<Before, RuleError> {
        let mut idled = Program::new(segments, External::Absolute).as_recorded(present)?.0;
        // By CPU, when the segment before ended.
        let mut ended: BTreeMap<u32, u64> = BTreeMap::new();
        for (idled, row) in idled.iter_mut().zip(&segments.rows) {
            let before = ended.insert(row.cpu, row.end_ns());
            if before == Some(row.start_ns) {
                // Another task was switched out for it, whose own wakeup may not have been seen.
                *idled = None;
            } else if let (Some(halted), Some(recorded)) = (idled.as_mut(), row.halted) {
                *halted = recorded;
            }
        }
        Ok(Before { idled })
    }

    /// `Some(true)`: halted; `Some(false)`: polled; `None`: did not idle.
    fn idled(&self, segment: usize) -> Option<bool> {
        self.idled.get(segment).copied().flatten()
    }

    fn halted(&self) -> Vec<bool> {
        self.idled.iter().map(|idled| *idled == Some(true)).collect()
    }
}

/// A figure with the least and the most that it may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Range {
    /// With the constants in the middle of their intervals, between both kinds of external causes.
    pub middle: f64,
    /// Least.
    pub low: f64,
    /// Most.
    pub high: f64,
}

/// What a setting does to the work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Work {
    /// Work a second over that under the present setting, which is replayed in the same way.
    pub speed: Range,
    /// CPU time polled and halts at their cost, for a unit of work \[ns\].
    pub cost_ns: Range,
    /// From one unit of work of a leading task to the next \[ns\].
    pub cycle_ns: Range,
    /// CPU time of segments and polls in a second of all CPUs together \[s\].
    pub cpu_s: Range,
}

/// Replays a recording with causes under any setting.
pub struct Predictor {
    /// With each its replay under the present setting.
    programs: Vec<(End, Program, Outcome)>,
    halt_cost: Nanos,
    /// The constants.
    pub estimates: Estimates,
    /// Units of work a second in the recording.
    pub recorded_per_s: f64,
}

impl Predictor {
    /// Prepares a recording that was made under `present`. `None` where it has too little work in it.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn new(
        segments: &Segments,
        present: &Rule,
        halt_cost: Nanos,
        after_halt: Option<Nanos>,
    ) -> Result<Option<Predictor>, RuleError> {
        let before = Before::of(segments, present)?;
        let (estimates, spread) = Estimates::of(segments, &before, after_halt);
        let halted = before.halted();
        let mut programs = vec![];
        for end in [End::Low, End::Middle, End::High] {
            for external in [External::ByTask, External::Relative] {
                let constants = estimates.at(end);
                let program = Program::without(segments, external, constants, &halted);
                let shift_ns = constants.after_halt_ns.cast_signed() - estimates.after_halt.ns.cast_signed();
                let at_end = |all: [u64; QUANTILES]| all.map(|ns| ns.saturating_add_signed(shift_ns));
                let program = program.with_halts(spread.map(at_end));
                let outcome = program.replay(present)?;
                if outcome.work < FEWEST as u64 {
                    return Ok(None);
                }
                programs.push((end, program, outcome));
            }
        }
        let Some((_, program, _)) = programs.first() else { return Ok(None) };
        let (work, span_ns) = program.recorded_work(segments);
        let recorded_per_s = work as f64 * 1e9 / span_ns.max(1) as f64;
        Ok(Some(Predictor { programs, halt_cost, estimates, recorded_per_s }))
    }

    /// The leading tasks, whose segments are the units of work: indices into the recording's.
    pub fn leading(&self) -> &[u32] {
        self.programs.first().map_or(&[], |(_, program, _)| program.leading())
    }

    /// By how much the replay under the present setting does more work a second than the recording, as a share.
    pub fn own_error(&self) -> Range {
        self.range(|_, present| present.work_per_s().unwrap_or(0.0) / self.recorded_per_s - 1.0, |_| None)
    }

    /// What `rule` does to the work.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn predict(&self, rule: &Rule) -> Result<Work, RuleError> {
        let mut outcomes = vec![];
        for (_, program, _) in &self.programs {
            outcomes.push(program.replay(rule)?);
        }
        let leading = self.leading().len() as f64;
        let per_s = |outcome: &Outcome| outcome.work_per_s().unwrap_or(0.0);
        let all =
            |figure: &dyn Fn(&Outcome, &Outcome) -> f64| self.range(figure, |at| outcomes.get(at).copied());
        Ok(Work {
            speed: all(&|under, present| per_s(under) / per_s(present)),
            cost_ns: all(&|under, _| under.counts.cost_ns(self.halt_cost) as f64 / under.work.max(1) as f64),
            cycle_ns: all(&|under, _| leading * 1e9 / per_s(under)),
            cpu_s: all(&|under, _| {
                (under.busy_ns + under.counts.polled_ns) as f64 / under.span_ns.max(1) as f64
            }),
        })
    }

    /// A figure over all programs, of what `under` gives of each, or else of its replay under the present setting.
    fn range(
        &self,
        figure: impl Fn(&Outcome, &Outcome) -> f64,
        under: impl Fn(usize) -> Option<Outcome>,
    ) -> Range {
        let figures = self
            .programs
            .iter()
            .enumerate()
            .map(|(at, (end, _, present))| (*end, figure(&under(at).unwrap_or(*present), present)));
        let figures: Vec<(End, f64)> = figures.collect();
        let middle: Vec<f64> = figures.iter().filter(|(end, _)| *end == End::Middle).map(|of| of.1).collect();
        let all = || figures.iter().map(|(_, figure)| *figure);
        Range {
            middle: middle.iter().sum::<f64>() / middle.len().max(1) as f64,
            low: all().fold(f64::INFINITY, f64::min),
            high: all().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}
