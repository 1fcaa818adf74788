//! What holds segments up at times of its own: a tick of the clock, an interrupt, a host that runs something else. It is in the
//! length of the segment that ran then, and comes as often in a second whatever the load does in it: segments more than 60 us
//! longer than usual were 113 to 221 a second of three loads that never polled, and 164 to 200 of the same that polled and
//! did six times as much (counted in recordings of `causes.py`, 29 November 2026).
//!
//! What the hypervisor gave to others comes with halts, since a CPU that halts gives its core away: in recordings of one
//! PostgreSQL benchmark 0.27 s in a second that never polled, and 0.04 and 0.06 s in two that did.

use super::estimates::FEWEST;
use super::program::Row;
use super::{External, Program};
use dwell_recording::Segments;

/// What holds up the segment that runs then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delay {
    pub(super) at_ns: u64,
    ns: u64,
}

impl Delay {
    /// What is left of it for a segment that began at this time: a host that takes both CPUs at once does so for both.
    pub(super) fn rest_ns(self, begun_ns: u64) -> u64 {
        self.at_ns.saturating_add(self.ns).saturating_sub(begun_ns.max(self.at_ns))
    }
}

/// What is longer than so many medians and so much more \[ns\], and seldom, has been held up.
const MEDIANS: u64 = 4;
const MORE_NS: u64 = 20_000;
/// Fewer than one in so many segments: what is more frequent is the task's own work, as far as it was not stolen.
const SELDOM: usize = 20;

/// A part of a segment in which it wakes nothing \[ns\].
#[derive(Clone, Copy)]
struct Part {
    at_ns: u64,
    ns: u64,
}

/// How long a part of the segments of a task takes.
#[derive(Clone, Copy)]
struct Usual {
    median_ns: u64,
    /// What is longer has been held up \[ns\].
    limit_ns: u64,
    /// What is longer is seldom.
    is_seldom: bool,
}

impl Usual {
    fn of(mut lengths: Vec<u64>) -> Option<Usual> {
        let (count, middle) = (lengths.len(), lengths.len() / 2);
        if count < FEWEST {
            return None;
        }
        let (_, &mut median_ns, above) = lengths.select_nth_unstable(middle);
        let limit_ns = median_ns.saturating_mul(MEDIANS).saturating_add(MORE_NS);
        let held_up = above.iter().filter(|ns| **ns > limit_ns).count();
        Some(Usual { median_ns, limit_ns, is_seldom: held_up * SELDOM < count })
    }

    /// By how much a part is longer than usual, where it has been held up \[ns\].
    const fn more_ns(&self, part_ns: u64) -> u64 {
        if part_ns > self.limit_ns { part_ns - self.median_ns } else { 0 }
    }
}

/// How much of what segments are longer than usual the hypervisor gave to others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stolen {
    ns: u64,
    of_ns: u64,
}

impl Stolen {
    /// Of a whole recording: what it counted of that is of all of it.
    pub(super) fn of(segments: &Segments) -> Stolen {
        if segments.stolen_ns == 0 {
            return Stolen::default();
        }
        let program = Program::new(segments, External::Absolute);
        let usual = program.usual(segments);
        let more_ns = program.rows.iter().zip(&segments.rows).map(|(row, segment)| {
            let parts = program.parts(row).into_iter().zip(usual[segment.task as usize]);
            parts.filter_map(|(part, usual)| Some(usual?.more_ns(part.ns))).sum::<u64>()
        });
        let of_ns = more_ns.fold(0, u64::saturating_add);
        Stolen { ns: segments.stolen_ns.min(of_ns), of_ns }
    }

    /// Of what a segment was held up for \[ns\].
    fn part_ns(self, ns: u64) -> u64 {
        let part = u128::from(ns) * u128::from(self.ns) / u128::from(self.of_ns.max(1));
        u64::try_from(part).unwrap_or(ns)
    }
}

impl Program {
    /// A segment up to its first wakeup of another, and the longest part from then on. Of a task that wakes many in a segment, the
    /// times between two wakeups are comparable; the lengths of its segments are not.
    fn parts(&self, row: &Row) -> [Part; 2] {
        let wakeups = &self.wakeups[row.wakeups.start as usize..row.wakeups.end as usize];
        let begins = wakeups.iter().map(|wakeup| wakeup.offset_ns.min(row.run_ns));
        let ends = begins.clone().skip(1).chain([row.run_ns]);
        let first_ns = begins.clone().next().unwrap_or(row.run_ns);
        let parts = begins.zip(ends).map(|(at_ns, end_ns)| Part { at_ns, ns: end_ns.saturating_sub(at_ns) });
        let longest = parts.max_by_key(|part| part.ns).unwrap_or(Part { at_ns: first_ns, ns: 0 });
        [Part { at_ns: 0, ns: first_ns }, longest]
    }

    /// By task, of both parts.
    fn usual(&self, segments: &Segments) -> Vec<[Option<Usual>; 2]> {
        let mut lengths = vec![[vec![], vec![]]; segments.tasks.len()];
        for (row, segment) in self.rows.iter().zip(&segments.rows) {
            for (lengths, part) in lengths[segment.task as usize].iter_mut().zip(self.parts(row)) {
                lengths.push(part.ns);
            }
        }
        lengths.into_iter().map(|parts| parts.map(Usual::of)).collect()
    }

    /// Takes off the segments what held them up. What is stolen of it comes with halts, and the rest at the same times in every
    /// replay.
    #[must_use]
    pub(super) fn with_delays(mut self, segments: &Segments, stolen: Stolen) -> Program {
        let usual = self.usual(segments);
        for (place, segment) in segments.rows.iter().enumerate() {
            let parts = self.parts(&self.rows[place]);
            let row = &mut self.rows[place];
            let wakeups = &mut self.wakeups[row.wakeups.start as usize..row.wakeups.end as usize];
            // The later part first: its place does not change then.
            for (number, (part, usual)) in
                parts.into_iter().zip(usual[segment.task as usize]).enumerate().rev()
            {
                let more_ns = usual.map_or(0, |usual| usual.more_ns(part.ns));
                let stolen_ns = if row.halted { stolen.part_ns(more_ns) } else { 0 };
                // What is frequent is the task's own work.
                let rest_ns =
                    if usual.is_some_and(|usual| usual.is_seldom) { more_ns - stolen_ns } else { 0 };
                if rest_ns > 0 {
                    let at_ns = segment.start_ns.saturating_add(part.at_ns);
                    self.delays[row.cpu as usize].push(Delay { at_ns, ns: rest_ns });
                }
                row.stolen_ns[number] = stolen_ns;
                let ns = stolen_ns + rest_ns;
                row.run_ns -= ns;
                for wakeup in wakeups.iter_mut().filter(|wakeup| wakeup.offset_ns >= part.at_ns + part.ns) {
                    wakeup.offset_ns -= ns;
                }
            }
        }
        self.delays.iter_mut().for_each(|delays| delays.sort_by_key(|delay| delay.at_ns));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::causal::Windows;
    use crate::rule::Rule;
    use dwell_policy::Nanos;
    use dwell_recording::{Cause, Segment};

    /// A task of 10 us wakes one after 2 us and another one after 3; twice in so many segments it is held up for 500 us, at its
    /// beginning or after both.
    fn recorded(every: u64) -> Segments {
        let mut rows = vec![];
        for number in 0..400u64 {
            let start_ns = number * 1_000_000;
            let held_up_ns = |by: u64| if number % every == by % every { 500_000 } else { 0 };
            let (early_ns, late_ns) = (held_up_ns(10), held_up_ns(30));
            let row = |task: u32, start_ns: u64, run_ns: u64, cause: Cause| Segment {
                task,
                cpu: task,
                start_ns,
                run_ns,
                cause,
                halted: Some(true),
                idle: None,
            };
            let waker = u32::try_from(rows.len()).unwrap();
            let woken = |offset_ns| Cause::Task { waker, offset_ns: offset_ns + early_ns };
            rows.push(row(0, start_ns, 10_000 + early_ns + late_ns, Cause::Timer { woken_ns: start_ns }));
            rows.push(row(1, start_ns + early_ns + 2_000, 1_000, woken(2_000)));
            rows.push(row(2, start_ns + early_ns + 3_000, 1_000, woken(3_000)));
        }
        Segments { tasks: ["a", "b", "c"].map(str::to_owned).to_vec(), rows, ..Segments::default() }
    }

    #[test]
    fn what_held_a_segment_up_is_taken_off_and_its_wakeups_stay_in_order() {
        let recorded = recorded(50);
        let program = Program::new(&recorded, External::Absolute).with_delays(&recorded, Stolen::default());
        let of_first: Vec<&Row> = program.rows.iter().filter(|row| row.cpu == 0).collect();
        assert_eq!(of_first.len(), 400);
        for row in of_first {
            let wakeups = &program.wakeups[row.wakeups.start as usize..row.wakeups.end as usize];
            let [first, second] = wakeups else { panic!("{wakeups:?}") };
            assert_eq!((row.run_ns, first.offset_ns, second.offset_ns), (10_000, 2_000, 3_000));
        }
        let held_up: Vec<(u64, u64)> =
            program.delays[0].iter().map(|delay| (delay.at_ns, delay.ns)).collect();
        let expected = (0..400).filter_map(|number| match number % 50 {
            10 => Some((number * 1_000_000, 500_000)),
            30 => Some((number * 1_000_000 + 3_000, 500_000)),
            _ => None,
        });
        assert_eq!(held_up, expected.collect::<Vec<_>>());
        assert!(program.delays[1].is_empty() && program.delays[2].is_empty());
    }

    /// A task that never waits and wakes another one every 200 us, in segments of 8 ms and one of 400 ms.
    fn busy_waker() -> Segments {
        const EVERY_NS: u64 = 200_000;
        let (mut rows, mut start_ns) = (vec![], 0);
        for number in 0..60 {
            let run_ns = if number == 30 { 400_000_000 } else { 8_000_000 };
            let waker = u32::try_from(rows.len()).unwrap();
            let cause = if number == 0 { Cause::Unknown } else { Cause::Preempted };
            rows.push(Segment { task: 0, cpu: 0, start_ns, run_ns, cause, halted: Some(false), idle: None });
            for offset_ns in (1..run_ns / EVERY_NS).map(|n| n * EVERY_NS) {
                let cause = Cause::Task { waker, offset_ns };
                let (start_ns, halted) = (start_ns + offset_ns, Some(true));
                rows.push(Segment { task: 1, cpu: 1, start_ns, run_ns: 1_000, cause, halted, idle: None });
            }
            start_ns += run_ns;
        }
        Segments { tasks: ["busy", "woken"].map(str::to_owned).to_vec(), rows, ..Segments::default() }
    }

    #[test]
    fn a_task_that_never_waits_is_not_held_up_where_it_runs_long() {
        let segments = busy_waker();
        let program = Program::new(&segments, External::Absolute).with_delays(&segments, Stolen::default());
        assert!(program.delays.iter().all(Vec::is_empty));
        let rule = Rule::fixed(Nanos(1 << 40));
        let outcome = program.replay(&rule, Windows::Full).unwrap();
        assert_eq!(u128::from(outcome.work), outcome.counts.episodes.into());
    }

    /// It runs on after the last row of a part.
    #[test]
    fn a_part_ends_with_its_last_row_and_not_with_a_task_that_never_waits() {
        let segments = busy_waker();
        let long = segments.rows.iter().position(|row| row.run_ns == 400_000_000).unwrap();
        let part = segments.part(0..long + 100);
        let program = Program::new(&part, External::Absolute);
        assert_eq!(program.leading(), [1]);
        let (work, span_ns) = program.recorded_work(&part);
        assert_eq!(work, 30 * 39 + 99);
        assert_eq!(span_ns, part.rows.last().unwrap().end_ns());
    }

    /// Half of what held segments up was stolen, and is there where the CPU halts only. The other half has its time or, where it is
    /// frequent, is work.
    #[test]
    fn what_was_stolen_comes_with_halts() {
        for (every, held_up, is_seldom) in [(50, 16, true), (12, 66, false)] {
            let mut recorded = recorded(every);
            recorded.stolen_ns = held_up * 250_000;
            let program = Program::new(&recorded, External::Absolute);
            let program = program.with_delays(&recorded, Stolen::of(&recorded));
            assert_eq!(program.delays[0].is_empty(), !is_seldom);
            let busy_ns = |rule| program.replay(&rule, Windows::Zero).unwrap().busy_ns;
            let (halts, polls) = (busy_ns(Rule::NEVER), busy_ns(Rule::fixed(Nanos(1 << 40))));
            assert_eq!(halts - polls, u128::from(recorded.stolen_ns));
            let counted = recorded.rows.iter().map(|row| u128::from(row.run_ns)).sum::<u128>();
            // The replay ends with the last segment of the second task, before those of the others have ended.
            assert_eq!(halts, counted - 11_000);
        }
    }

    /// Of a delay that began before a segment only the rest holds it up.
    #[test]
    fn a_delay_ends_when_it_did() {
        let delay = Delay { at_ns: 1_000, ns: 500 };
        assert_eq!(
            [0, 1_000, 1_200, 1_500, 9_000].map(|begun_ns| delay.rest_ns(begun_ns)),
            [500, 500, 300, 0, 0]
        );
    }

    /// What is frequent is work: one segment in ten is ten times as long.
    #[test]
    fn what_is_frequent_is_work() {
        let lengths =
            |every: usize| (0..1_000).map(|n| if n % every == 0 { 500_000 } else { 5_000 }).collect();
        assert!(!Usual::of(lengths(10)).unwrap().is_seldom);
        let usual = Usual::of(lengths(100)).unwrap();
        assert_eq!((usual.median_ns, usual.limit_ns, usual.is_seldom), (5_000, 40_000, true));
    }
}
