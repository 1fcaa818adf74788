//! What a CPU does around an idle state: from the end of one segment to the state, and from there to the next segment.
//!
//! A governor compares the time in the idle state with its parameters. From the switch away from the last task to the state
//! it takes 1 us, and some more where the tick is stopped; from the state to the next task as much again.
//! Segments alone have the sum of all.

use crate::segment::Segment;
use std::collections::HashMap;
use std::ops::Range;

/// What a CPU did between two segments, where it was in an idle state once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePath {
    /// From the end of the segment before to the idle state \[ns\].
    pub entry_ns: u32,
    /// From the end of the idle state to the start of the segment \[ns\].
    pub exit_ns: u32,
    /// What it did in the idle state.
    pub way: Way,
}

/// What a CPU did in an idle state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Polled until it was woken.
    Polled,
    /// Polled, and halted when its window had run out.
    PolledAndHalted,
    /// Halted at once.
    Halted,
}

impl Way {
    /// Of an episode with this window that ended in a halt or not; `None` where that is not known.
    pub(crate) fn of(window_ns: Option<u64>, halted: Option<bool>) -> Option<Way> {
        match (window_ns, halted?) {
            (_, false) => Some(Way::Polled),
            (Some(0), true) => Some(Way::Halted),
            (Some(_), true) => Some(Way::PolledAndHalted),
            (None, true) => None,
        }
    }
}

/// An episode of a CPU.
#[derive(Clone, Copy)]
pub(crate) struct Idled {
    pub(crate) start_ns: u64,
    /// When the CPU left the idle state \[ns\].
    pub(crate) left_ns: u64,
    pub(crate) way: Option<Way>,
}

/// By CPU from when to when its episodes may be between two of its segments, which are in order of their start.
pub(crate) fn spans(segments: &[Segment]) -> HashMap<u32, Range<u64>> {
    let mut spans: HashMap<u32, Range<u64>> = HashMap::new();
    for Segment { cpu, start_ns, .. } in segments {
        spans.entry(*cpu).or_insert(*start_ns..0).end = *start_ns;
    }
    spans
}

/// Adds to each segment the idle time between it and the segment before on its CPU, where there is just one: `cpus` has the
/// episodes of each, in order of their start; those outside of its [span](spans) have no effect.
pub(crate) fn add(segments: &mut [Segment], cpus: &HashMap<u32, Vec<Idled>>) {
    // By CPU: the end of its last segment, and how many of its episodes began before that.
    let mut last: HashMap<u32, (u64, usize)> = HashMap::new();
    for segment in segments {
        let Some(episodes) = cpus.get(&segment.cpu) else { continue };
        let before = last.insert(segment.cpu, (segment.end_ns(), 0));
        let Some((ended_ns, passed)) = before else { continue };
        let began = |count: &usize| episodes.get(*count).map(|idled| idled.start_ns);
        let next = |from: usize, at_ns: u64| {
            (from..).find(|count| began(count).is_none_or(|start_ns| start_ns >= at_ns)).unwrap_or(from)
        };
        let first = next(passed, ended_ns);
        let end = next(first, segment.start_ns);
        last.insert(segment.cpu, (segment.end_ns(), end));
        let between = episodes.get(first..end).unwrap_or_default();
        if let [Idled { start_ns, left_ns, way: Some(way) }] = *between {
            let ns = |from: u64, to: u64| to.checked_sub(from).and_then(|ns| u32::try_from(ns).ok());
            let path = ns(ended_ns, start_ns).zip(ns(left_ns, segment.start_ns));
            segment.idle = path.map(|(entry_ns, exit_ns)| IdlePath { entry_ns, exit_ns, way });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cause;
    use proptest::prelude::*;

    proptest! {
        /// Compared with a search through all segments and episodes for each segment.
        #[test]
        fn a_segment_has_the_one_idle_time_before_it(
            steps in prop::collection::vec((0u32..3, 0u64..50, 0u64..50, 0u8..6), 0..80),
        ) {
            let (mut at_ns, mut segments) = ([0u64; 3], vec![]);
            let mut cpus: HashMap<u32, Vec<Idled>> = HashMap::new();
            for (cpu, ns, more_ns, kind) in steps {
                let now_ns = &mut at_ns[cpu as usize];
                let start_ns = *now_ns + ns;
                *now_ns = start_ns + more_ns;
                if kind < 3 {
                    let row = Segment { task: 0, cpu, start_ns, run_ns: more_ns, cause: Cause::Unknown, halted: None, idle: None };
                    segments.push(row);
                } else {
                    let way = Way::of([None, Some(0), Some(9)][usize::from(kind - 3)], Some(ns % 3 > 0));
                    // Some are said to last beyond the next segment.
                    let left_ns = *now_ns + if more_ns % 7 == 0 { 30 } else { 0 };
                    cpus.entry(cpu).or_default().push(Idled { start_ns, left_ns, way });
                }
            }
            segments.sort_by_key(|row| row.start_ns);
            let expected: Vec<Option<IdlePath>> = (0..segments.len()).map(|place| {
                let row = segments[place];
                let before = segments[..place].iter().rfind(|before| before.cpu == row.cpu)?;
                let idled = cpus.get(&row.cpu)?.iter();
                let between = |idled: &&Idled| idled.start_ns >= before.end_ns() && idled.start_ns < row.start_ns;
                let [Idled { start_ns, left_ns, way }] = idled.filter(between).copied().collect::<Vec<_>>()[..] else {
                    return None;
                };
                let entry_ns = u32::try_from(start_ns - before.end_ns()).ok()?;
                let exit_ns = u32::try_from(row.start_ns.checked_sub(left_ns)?).ok()?;
                Some(IdlePath { entry_ns, exit_ns, way: way? })
            }).collect();
            let mut of_all = segments.clone();
            add(&mut of_all, &cpus);
            let spans = spans(&segments);
            for (cpu, idled) in &mut cpus {
                idled.retain(|idled| spans.get(cpu).is_some_and(|span| span.contains(&idled.start_ns)));
            }
            add(&mut segments, &cpus);
            prop_assert_eq!(&segments, &of_all);
            let found: Vec<Option<IdlePath>> = segments.iter().map(|row| row.idle).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
