//! Replays thousands of settings at once, as fast as the machine can.
//!
//! # The idea
//! A setting cannot look into the future, so its episodes have to be gone through in order; but settings know nothing
//! of each other. One vector register therefore holds the windows of eight or sixteen settings, and an episode is
//! taken through all of them with the same few instructions ([`Isa`]).
//!
//! Better still, settings of one maximum agree on which episodes are *small* (they grow a window that does not cover
//! them) and which are *big* (they shrink every window). Sorted by maximum, settings of a vector differ in first
//! window and factors only, and what an episode does is decided once for all of them:
//! * a small one costs, per vector, a comparison, the two sums, and the growth where it was not covered; cutting the
//!   grown window to the maximum can wait for the next big one, as no small episode is long enough to tell;
//! * a block of 32 small ones that all windows cover costs one comparison per vector: nothing can change, and the sum
//!   of the block is known;
//! * a run of big ones ends when all windows are zero, or stay as they are: the rest of it is a multiplication.
//!
//! Windows that never change ([`Rule::Fixed`] and its kin) need no replay at all: one binary search
//! per episode tells the shortest window that covers it, and so all others.
//!
//! # Exactness
//! Every count is that of the scalar replay, for any lengths and parameters: tests compare the two. Lanes have 32 bits:
//! * lengths above 2^31 - 1 ns are replayed as this: no lane has a maximum of 2^27 ns or more, a window is at most the
//!   maximum, and no rule compares a length with more than twice the maximum; the sums of lengths are of the true ones;
//! * a maximum of 2^27 ns (134 ms) or more leaves a setting to the scalar replay;
//! * sums are 32 bits only within a part of a strip, so short that no lane can poll 2^32 ns in it;
//! * episodes without length stand between strips, where the windows are in memory.
//!
//! # The bound
//! With a factor that is a power of two, eight settings of KVM's rule in an AVX2 register take one small episode with 6
//! vector operations (compare, minimum, two sums, mask, shift), sixteen in an
//! AVX-512 register with 5. Where each setting has a maximum of its own, it takes about 20 and 14. Comparisons, minima,
//! maxima and shifts of 256 bits begin twice a cycle on recent cores, sums and masks three times: a core cannot be faster
//! than that without skipping. `benches/engine.rs` measures what is reached.
//!
//! # Limits
//! Event loops learn from which of many handlers were ready: their state is no single number, and they are replayed
//! one setting after the other, on all cores. So are guests stacked on hosts.

#![allow(unsafe_code)] // Vector instructions are reached through intrinsics and function pointers that need it.

mod fixed;
mod isa;
mod kernel;
mod lane;
mod lanes;
mod lot;
mod strip;

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
use fixed::Windows;
use isa::{Kernels, Learns};
use lane::{Kind, Lane, Plan};
use lot::Lot;
use rayon::prelude::*;
use std::collections::BTreeMap;
use strip::{BLOCK, STRIP, Strips, Turns};

/// Lots that one thread takes through a strip after one another, so that what is found out about the strip under their
/// maximum is found out once for all of them.
const LOTS_OF_TASK: usize = 8;

/// Settings of one maximum are few if they fill less than this share of a lot; those go with the settings of other
/// maxima.
const FEW: usize = 4;

/// Many settings that are fed the same episodes.
pub(crate) struct Engine {
    kernels: Kernels,
    tasks: Vec<Task>,
    windows: Windows,
    /// For each rule where its counts are found.
    places: Vec<Place>,
    strips: Vec<Strips>,
    /// Number of episodes and their length; the rest is zero.
    all: Counts,
}

#[derive(Clone, Copy)]
enum Place {
    Window(u64),
    Lane { task: usize, lane: usize },
}

/// Lots of one rule, and of one maximum or of many.
struct Task {
    learns: Learns,
    /// The maximum, if it is the same for all lanes \[ns\].
    max: Option<i32>,
    /// Episodes of a part of a strip: as many as can be polled without leaving 32 bits.
    part: usize,
    lots: Vec<Lot>,
    turns: Turns,
}

impl Engine {
    /// An engine for all of the rules that it can replay; the answer says which ones, in order.
    pub(crate) fn new<'a>(rules: impl Iterator<Item = &'a Rule>, isa: Isa) -> (Engine, Vec<bool>) {
        let plans: Vec<Plan> = rules.map(Plan::of).collect();
        let mut engine = Engine {
            kernels: isa.kernels(),
            tasks: vec![],
            windows: Windows::default(),
            places: vec![],
            strips: vec![],
            all: Counts::default(),
        };
        let taken: Vec<bool> = plans.iter().map(|plan| *plan != Plan::Scalar).collect();
        let taken_plans: Vec<Plan> = plans.into_iter().filter(|plan| *plan != Plan::Scalar).collect();
        engine.seat(&taken_plans);
        (engine, taken)
    }

    fn seat(&mut self, plans: &[Plan]) {
        let mut windows = vec![];
        let mut groups: BTreeMap<(Kind, u32), Vec<(usize, Lane)>> = BTreeMap::new();
        for (rule, plan) in plans.iter().enumerate() {
            match *plan {
                Plan::Lane(lane) => {
                    let max = if lane.can_run_together() { lane.max } else { 0 };
                    groups.entry((lane.kind, max)).or_default().push((rule, lane));
                }
                Plan::Window(window) => windows.push(window),
                Plan::Scalar => {}
            }
        }
        self.places =
            plans.iter().map(|plan| Place::Window(if let Plan::Window(w) = plan { *w } else { 0 })).collect();
        self.windows = Windows::new(windows);

        let few = self.kernels.lanes_together / FEW;
        let mut odd: BTreeMap<Kind, Vec<(usize, Lane)>> = BTreeMap::new();
        for ((kind, max), lanes) in groups {
            if max == 0 || lanes.len() < few {
                odd.entry(kind).or_default().extend(lanes);
            } else {
                self.seat_group(kind, Some(max), lanes);
            }
        }
        for (kind, lanes) in odd {
            self.seat_group(kind, None, lanes);
        }
    }

    /// Lanes that are alike sit together: those that need the same kernel, and whose windows cover the same blocks.
    fn seat_group(&mut self, kind: Kind, max: Option<u32>, mut lanes: Vec<(usize, Lane)>) {
        let alike =
            |lane: &Lane| (lane.grows_past_start(), lane.grow, lane.shifts(), lane.shrink, lane.start);
        if max.is_some() {
            lanes.sort_by_key(|(_, lane)| alike(lane));
        } else {
            lanes.sort_by_key(|(_, lane)| (lane.grows_by_shift(), lane.shifts(), lane.max));
        }
        let capacity = if max.is_some() { self.kernels.lanes_together } else { self.kernels.lanes_apart };
        for lanes in lanes.chunks(capacity * LOTS_OF_TASK) {
            let task = self.tasks.len();
            for (lane, (rule, _)) in lanes.iter().enumerate() {
                self.places[*rule] = Place::Lane { task, lane };
            }
            let settings: Vec<Lane> = lanes.iter().map(|(_, lane)| *lane).collect();
            self.tasks.push(Task {
                learns: match kind {
                    Kind::Host => Learns::Episode,
                    Kind::Guest => Learns::Halt,
                    Kind::GuestMicros => Learns::HaltMicros,
                },
                max: max.and_then(|max| i32::try_from(max).ok()),
                part: part_under(settings.iter().map(|lane| lane.max).max().unwrap_or(0)),
                lots: settings.chunks(capacity).map(|lanes| Lot::new(lanes, capacity)).collect(),
                turns: Turns::default(),
            });
        }
    }

    /// Lets every setting live through a batch.
    pub(crate) fn feed(&mut self, batch: &Batch) {
        if self.places.is_empty() {
            return;
        }
        let mut runs = 0;
        for run in batch.runs() {
            if self.strips.len() <= runs {
                self.strips.push(Strips::default());
            }
            if !self.tasks.is_empty() {
                self.strips[runs].fill(run.idler, &run.idle_ns);
            }
            runs += 1;
            self.all.episodes += run.idle_ns.len() as u64;
            self.all.idle_ns += run.idle_ns.iter().map(|&idle| u128::from(idle)).sum::<u128>();
        }
        let Engine { kernels, tasks, windows, strips, .. } = self;
        let strips = &strips[..if tasks.is_empty() { 0 } else { runs }];
        rayon::join(
            || batch.runs().for_each(|run| windows.feed(&run.idle_ns)),
            || tasks.par_iter_mut().for_each(|task| task.feed(kernels, strips)),
        );
    }

    /// What each rule did since this was asked last, in the order of the rules that were taken.
    pub(crate) fn take(&mut self) -> Vec<Counts> {
        let all = std::mem::take(&mut self.all);
        let windows = self.windows.take(all);
        let tasks: Vec<Vec<Counts>> = self.tasks.iter_mut().map(|task| task.take(all)).collect();
        let of_window = |window: u64| {
            let found = windows.binary_search_by_key(&window, |(window, _)| *window);
            found.map_or(all, |index| windows[index].1)
        };
        let counts = |place: &Place| match *place {
            Place::Window(window) => of_window(window),
            Place::Lane { task, lane } => tasks[task][lane],
        };
        self.places.iter().map(counts).collect()
    }
}

/// The most episodes that no lane with this maximum can poll 2^32 ns in: a power of two of blocks.
fn part_under(max: u32) -> usize {
    let mut part = STRIP;
    while part > BLOCK && part as u64 * u64::from(max) >= 1 << 32 {
        part /= 2;
    }
    part
}

impl Task {
    fn feed(&mut self, kernels: &Kernels, all: &[Strips]) {
        for strips in all {
            let idler = strips.idler;
            for strip in strips.iter() {
                if strip.instant > 0 {
                    self.lots.iter_mut().for_each(|lot| lot.live_through_instants(idler, strip.instant));
                }
                for part in strip.parts(self.part) {
                    if let Some(max) = self.max {
                        kernels.find_turns(self.learns, part, max, &mut self.turns);
                        for lot in &mut self.lots {
                            kernels.together(self.learns, part, &self.turns, max, idler, lot);
                        }
                    } else {
                        for lot in &mut self.lots {
                            kernels.apart(self.learns, part, idler, lot);
                        }
                    }
                }
            }
        }
    }

    fn take(&mut self, all: Counts) -> Vec<Counts> {
        let counts = |tally: lot::Tally| Counts {
            polls: all.episodes - tally.unpolled,
            // An episode that does not halt succeeds, unless it has no length and there was no window.
            polls_succeeded: all.episodes - tally.halts - tally.unpolled_instant,
            polled_ns: u128::from(tally.polled_ns),
            halts: tally.halts,
            exits: tally.halts,
            ..all
        };
        self.lots.iter_mut().flat_map(Lot::take).map(counts).collect()
    }
}
