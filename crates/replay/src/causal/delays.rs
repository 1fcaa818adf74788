//! What holds segments up at times of its own: a tick of the clock, an interrupt, a host that runs something else. It is in the
//! length of the segment that ran then, and comes as often in a second whatever the load does in it: segments more than 60 us
//! longer than usual were 113 to 221 a second of three loads that never polled, and 164 to 200 of the same that polled and
//! did six times as much (`causes.py`, 29 November 2026).

use super::Program;
use super::estimates::FEWEST;
use super::program::Row;
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
/// Fewer than one in so many segments: what is more frequent is the task's own work.
const SELDOM: usize = 20;

/// How long a part of the segments of a task takes.
#[derive(Clone, Copy)]
struct Usual {
    median_ns: u64,
    /// What is longer has been held up \[ns\].
    limit_ns: u64,
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
        (held_up * SELDOM < count).then_some(Usual { median_ns, limit_ns })
    }
}

impl Program {
    /// The length of a segment up to its first wakeup of another, and from then on \[ns\].
    fn parts(&self, row: &Row) -> [u64; 2] {
        let wakeups = &self.wakeups[row.wakeups.start as usize..row.wakeups.end as usize];
        let until_ns = wakeups.first().map_or(row.run_ns, |first| first.offset_ns.min(row.run_ns));
        [until_ns, row.run_ns - until_ns]
    }

    /// Takes off the segments what held them up, and has it at the same times in every replay.
    #[must_use]
    pub(super) fn with_delays(mut self, segments: &Segments) -> Program {
        let mut lengths = vec![[vec![], vec![]]; segments.tasks.len()];
        for (row, segment) in self.rows.iter().zip(&segments.rows) {
            for (lengths, ns) in lengths[segment.task as usize].iter_mut().zip(self.parts(row)) {
                lengths.push(ns);
            }
        }
        let usual: Vec<_> = lengths.into_iter().map(|parts| parts.map(Usual::of)).collect();
        self.delays = vec![vec![]; self.cpus as usize];
        for (place, segment) in segments.rows.iter().enumerate() {
            let parts = self.parts(&self.rows[place]);
            let row = &mut self.rows[place];
            let wakeups = &mut self.wakeups[row.wakeups.start as usize..row.wakeups.end as usize];
            let mut at_ns = segment.start_ns;
            for (number, (part_ns, usual)) in parts.into_iter().zip(usual[segment.task as usize]).enumerate()
            {
                if let Some(Usual { median_ns, .. }) = usual.filter(|usual| part_ns > usual.limit_ns) {
                    let ns = part_ns - median_ns;
                    self.delays[row.cpu as usize].push(Delay { at_ns, ns });
                    row.run_ns -= ns;
                    for (nth, wakeup) in wakeups.iter_mut().enumerate() {
                        let is_later = number == 0 || nth > 0;
                        wakeup.offset_ns = wakeup.offset_ns.saturating_sub(if is_later { ns } else { 0 });
                    }
                }
                at_ns = at_ns.saturating_add(part_ns);
            }
        }
        self
    }
}
