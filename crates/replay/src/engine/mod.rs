//! Replays thousands of settings at once, as fast as the machine can.
//!
//! # The idea
//! A setting depends on the episodes before, so they have to be replayed in order; but settings do not depend on each
//! other. One vector register therefore holds the windows of eight or sixteen settings, and an episode is
//! taken through all of them with the same few instructions ([`Isa`]).
//!
//! Better still, settings whose maxima are close agree on which episodes are *small* (they grow a window that does not
//! cover them) and which are *big* (they shrink every window). Sorted by maximum, as few as 2 000 settings lie so close
//! that hardly an episode is neither, and what an episode does is decided once for all settings of a few vectors:
//! * a small one costs, per vector, a comparison, the two sums, and the growth where it was not covered; cutting the
//!   grown window to the maximum can wait for the next big one, as no small episode is long enough to show it;
//! * a block of 32 small ones that all windows cover costs one comparison per vector: nothing can change, and the sum
//!   of the block is known;
//! * a run of big ones ends when all windows are zero, or stay as they are: the rest of it is a multiplication;
//! * one in between takes every operation in every setting. Where those are many, all go through a kernel for that kind
//!   alone, and has no branch to mispredict.
//!
//! # Exactness
//! Every count is that of the scalar replay, for any lengths and parameters: tests compare the two. Lanes have 32 bits:
//! * lengths above 2^31 - 1 ns are replayed as this: no lane has a maximum of 2^27 ns or more, a window is at most the
//!   maximum, and no rule compares a length with more than twice the maximum; the sums of lengths are of the true ones;
//! * a maximum of 2^27 ns (134 ms) or more leaves a setting to the scalar replay;
//! * sums are 32 bits only within a part of a segment, so short that no lane can poll 2^32 ns in it;
//! * episodes without length are between segments, where the windows are in memory.
//!
//! # Contention
//! KVM ends a poll when another task is runnable on the core. Its rule learns from the length of the episode
//! all the same, so that the windows do not change; an episode that was cut short halts in all lanes, and
//! polls min(window, time alone). A segment that has such an episode goes through a kernel of its own; all
//! others never look at the column.
//!
//! # Wakeup latency
//! A rule that halts learns from the length and the latency together. A segment with latencies has that sum as
//! a second column and goes through kernels that are compiled for it; all others go through those without.
//!
//! # The bound
//! What a vector of settings of KVM's rule costs, if all factors are powers of two:
//!
//! | episode | operations with AVX2 | of these compare, minimum, maximum, shift | cycles | settings per cycle |
//! |---|---|---|---|---|
//! | any (general kernel) | 18 | 11 | 18 / 3 = 6 | 8 / 6 = 1.33 |
//! | small | 6 | 3 | 6 / 3 = 2 | 8 / 2 = 4 |
//! | big | 9 | 3 | 9 / 3 = 3 | 8 / 3 = 2.67 |
//!
//! The model is a core of Intel's since Ice Lake: it begins three vector operations of 256 bits a cycle, of which two
//! may be comparisons, minima, maxima or shifts; loads and the front end are not what limits. At 3 GHz no more than 4 G
//! interval-configurations a second get through the general kernel, and 12 G where all episodes are small; above that
//! is only what is skipped. (A core with four vector pipes, as AMD's, has bounds a third higher.) The general kernel's
//! operations are, for one vector: halted, minimum, sum, count; longer and shorter than the maximum, grows; shift,
//! maximum, minimum, mask; shift, mask, maximum, maximum; floor, mask, count. Its loop is 42 instructions for two
//! vectors, 2.6 for a setting and episode: `objdump -d` shows that nothing is spilt.
//!
//! What is executed, skipping and bookkeeping included, is counted by
//! `valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*Stream*replay*'
//! target/release/examples/rate --family 'host, straight' --stream exponential`: the number "Collected", divided by
//! the interval-configurations that the program prints. The same program without valgrind prints the rate, which
//! divided by the bound at the clock of the core is the share reached: with AVX2 2.4 G of 3.0 G at the 2.2 GHz that a
//! shared Xeon gave, 0.8. Of the other families, more of which is decided for all settings at once, README has figures.
//!
//! # Limits
//! Event loops learn from which of many handlers were ready: their state is no single number, and they are replayed
//! one setting after the other, on all cores. So are guests stacked on hosts.

#![allow(unsafe_code)] // Vector instructions are reached through intrinsics and function pointers that need it.

mod group;
mod isa;
mod kernel;
mod lane;
mod lanes;
mod segment;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(test)]
mod tests;

pub use isa::Isa;

use crate::counts::Counts;
use crate::rule::Rule;
use crate::source::Batch;
use group::LaneGroup;
use isa::Kernels;
use kernel::Ranges;
use lane::{Growth, Kind, Lane};
use rayon::prelude::*;
use segment::{BLOCK, SEGMENT, Segment, Segments, Way};
use std::collections::BTreeMap;

/// Groups of lanes that one thread takes through a segment after one another, so that what is found out about
/// the segment under their maximum is found out once for all of them.
const GROUPS_PER_TASK: usize = 8;

/// Settings of one maximum, or that need the same kernel, are few if they fill less than this share of a
/// group; those go with others.
const FEW: usize = 4;

/// Lanes run apart where more than this share of a segment's episodes is neither small nor big for them together.
const MANY_BETWEEN: usize = 3;

/// Many settings that are fed the same episodes.
pub(crate) struct Engine {
    kernels: Kernels,
    tasks: Vec<Task>,
    /// For each rule where its counts are found: its task, and its lane there.
    places: Vec<(usize, usize)>,
    segments: Vec<Segments>,
    /// Number of episodes and their length; the rest is zero.
    all: Counts,
}

/// Groups of lanes of one rule.
struct Task {
    kind: Kind,
    /// Whether the lanes of a group can run together.
    together: bool,
    /// The longest maximum \[ns\].
    max: u32,
    groups: Vec<LaneGroup>,
    ranges: Ranges,
}

impl Engine {
    /// An engine for all of the rules that it can replay with these instructions, none of them without any; and for each
    /// rule whether it is one of them.
    pub(crate) fn new(rules: &[Rule], isa: Option<Isa>) -> (Engine, Vec<bool>) {
        let lanes: Vec<Option<Lane>> = rules.iter().map(|rule| isa.and_then(|_| Lane::of(rule))).collect();
        let taken = lanes.iter().map(Option::is_some).collect();
        let lanes: Vec<Lane> = lanes.into_iter().flatten().collect();
        let mut engine = Engine {
            kernels: isa.unwrap_or(Isa::Portable).kernels(),
            tasks: vec![],
            places: vec![(0, 0); lanes.len()],
            segments: vec![],
            all: Counts::default(),
        };
        engine.place(&lanes);
        (engine, taken)
    }

    fn place(&mut self, lanes: &[Lane]) {
        let mut groups: BTreeMap<(Kind, bool, u32), Vec<(usize, Lane)>> = BTreeMap::new();
        for (rule, &lane) in lanes.iter().enumerate() {
            let group = (lane.kind, lane.can_run_together(), lane.max);
            groups.entry(group).or_default().push((rule, lane));
        }
        // Those of one maximum first; of the others those that need the same kernel, in order of their maxima; and what
        // then remains.
        let few = self.kernels.lanes / FEW;
        let mut others: BTreeMap<(Kind, bool, Needs), Vec<(usize, Lane)>> = BTreeMap::new();
        for ((kind, together, _), mut lanes) in groups {
            if together && lanes.len() >= few {
                lanes.sort_by_key(|(_, lane)| alike(lane));
                self.place_lanes(kind, true, &lanes);
                continue;
            }
            for (rule, lane) in lanes {
                others.entry((kind, together, needs(&lane))).or_default().push((rule, lane));
            }
        }
        let mut rest: BTreeMap<(Kind, bool), Vec<(usize, Lane)>> = BTreeMap::new();
        for ((kind, together, _), mut lanes) in others {
            if lanes.len() >= few {
                lanes.sort_by_key(|(_, lane)| (lane.max, alike(lane)));
                self.place_lanes(kind, together, &lanes);
            } else {
                rest.entry((kind, together)).or_default().extend(lanes);
            }
        }
        for ((kind, together), lanes) in rest {
            self.place_lanes(kind, together, &lanes);
        }
    }

    /// Neighbours go into one group.
    fn place_lanes(&mut self, kind: Kind, together: bool, lanes: &[(usize, Lane)]) {
        let capacity = self.kernels.lanes;
        for lanes in lanes.chunks(capacity * GROUPS_PER_TASK) {
            let task = self.tasks.len();
            for (lane, (rule, _)) in lanes.iter().enumerate() {
                self.places[*rule] = (task, lane);
            }
            let settings: Vec<Lane> = lanes.iter().map(|(_, lane)| *lane).collect();
            self.tasks.push(Task {
                kind,
                together,
                max: settings.iter().map(|lane| lane.max).max().unwrap_or(0),
                groups: settings.chunks(capacity).map(|lanes| LaneGroup::new(lanes, capacity)).collect(),
                ranges: Ranges::default(),
            });
        }
    }

    /// Replays a batch under every setting, on all cores or in the calling thread.
    pub(crate) fn feed(&mut self, batch: &Batch, on_all_cores: bool) {
        if self.tasks.is_empty() {
            return;
        }
        let mut runs = 0;
        for run in batch.runs() {
            if self.segments.len() <= runs {
                self.segments.push(Segments::default());
            }
            self.segments[runs].fill(run);
            runs += 1;
            self.all.episodes += run.idle_ns.len() as u64;
            self.all.idle_ns += run.idle_ns.iter().map(|&idle| u128::from(idle)).sum::<u128>();
        }
        let Engine { kernels, tasks, segments, .. } = self;
        let segments = &segments[..runs];
        if on_all_cores {
            tasks.par_iter_mut().for_each(|task| task.feed(kernels, segments));
        } else {
            tasks.iter_mut().for_each(|task| task.feed(kernels, segments));
        }
    }

    /// All windows as at the start.
    pub(crate) fn restart(&mut self) {
        self.tasks.iter_mut().flat_map(|task| &mut task.groups).for_each(LaneGroup::restart);
    }

    /// What each rule did since the last call, in the order of the rules that were taken.
    pub(crate) fn take(&mut self) -> Vec<Counts> {
        let all = std::mem::take(&mut self.all);
        let tasks: Vec<Vec<Counts>> = self.tasks.iter_mut().map(|task| task.take(all)).collect();
        self.places.iter().map(|&(task, lane)| tasks[task][lane]).collect()
    }
}

/// What decides which kernel a lane needs: whether only windows of zero have to be lifted to the first window, how
/// windows grow, and whether divisions are shifts.
type Needs = (bool, Growth, bool);

fn needs(lane: &Lane) -> Needs {
    (lane.grows_past_start(), lane.growth(), lane.shifts())
}

/// Lanes whose windows are close to each other are close in this order, so that they cover the same blocks.
fn alike(lane: &Lane) -> (Needs, [u32; 3]) {
    (needs(lane), [lane.grow, lane.shrink, lane.start])
}

/// The most episodes that no lane with this maximum can poll 2^32 ns in: a power of two of blocks.
fn part_under(max: u32) -> usize {
    let mut part = SEGMENT;
    while part > BLOCK && part as u64 * u64::from(max) >= 1 << 32 {
        part /= 2;
    }
    part
}

impl Task {
    fn feed(&mut self, kernels: &Kernels, all: &[Segments]) {
        for segments in all {
            let idler = segments.idler;
            for segment in segments.iter() {
                if segment.instant > 0 {
                    self.groups.iter_mut().for_each(|group| group.count_instant(idler, segment.instant));
                }
                // Episodes of a part: as many as can be polled without leaving 32 bits.
                let part = part_under(self.max + segment.idle_loop.poll_step_ns());
                segment.parts(part).for_each(|part| self.feed_part(kernels, part, idler));
            }
        }
    }

    fn feed_part(&mut self, kernels: &Kernels, part: Segment<'_>, idler: usize) {
        let together = self.together && part.way(self.kind) != Way::Ended;
        let mut found = None;
        for group in &mut self.groups {
            if together && found != Some(group.maxima) {
                kernels.find_ranges(self.kind, part, group.maxima, &mut self.ranges);
                found = Some(group.maxima);
            }
            if together && self.ranges.between as usize <= part.lengths.len() / MANY_BETWEEN {
                kernels.together(self.kind, part, &self.ranges, idler, group);
            } else {
                kernels.apart(self.kind, part, idler, group);
            }
        }
    }

    fn take(&mut self, all: Counts) -> Vec<Counts> {
        self.groups.iter_mut().flat_map(|group| group.take(all)).collect()
    }
}
