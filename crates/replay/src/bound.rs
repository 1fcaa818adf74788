//! Lower bounds: what no policy of a class can go below.

use crate::counts::Counts;
use crate::source::{Batch, Run};
use dwell_policy::Nanos;
use dwell_policy::reference::Optimum;

/// What the optimum does: polls through every episode that is shorter than the halt cost and that no other
/// task on the core would cut short, halts at once in the others.
#[derive(Clone, Copy, Debug)]
pub struct OptimumBound {
    policy: Optimum,
    counts: Counts,
}

impl OptimumBound {
    /// At this halt cost.
    pub fn new(halt_cost: Nanos) -> OptimumBound {
        OptimumBound { policy: Optimum { halt_cost }, counts: Counts::default() }
    }

    pub fn feed(&mut self, batch: &Batch) {
        for (idle, alone) in batch.runs().flat_map(Run::idle_and_alone) {
            self.counts.episodes += 1;
            self.counts.idle_ns += u128::from(idle);
            let window = if idle <= alone { self.policy.window(Nanos(idle)).get() } else { 0 };
            self.counts.count(window, idle);
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// The best fixed window for some episodes, in hindsight.
///
/// Episodes are counted in bins; a bin has their number, sum and longest, so that the cost of every window that ends
/// at the longest episode of a bin is exact. Lengths below 4096 ns have a bin each, above that an octave has 2048: the
/// window found is a real one with its real cost, and at most 1/2048 longer than the very best.
///
/// Episodes in which another task wanted the core before the end always halt; of these a bin counts the times alone. As
/// both kinds may be in one bin, a window then ends where the bin does.
#[derive(Clone, Debug, Default)]
pub struct FixedWindows {
    bins: Vec<Bin>,
    /// Lengths of the episodes that another task cut short \[ns\].
    contended_idle_ns: u128,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    /// Episodes that a poll may last to the end of, by their lengths.
    episodes: u64,
    idle_ns: u128,
    longest_ns: u64,
    /// All others, by the times alone.
    contended: u64,
    alone_ns: u128,
}

const BITS: u32 = 11;

impl FixedWindows {
    pub fn feed(&mut self, batch: &Batch) {
        for (idle, alone) in batch.runs().flat_map(Run::idle_and_alone) {
            if idle <= alone {
                let bin = self.bin(idle);
                bin.episodes += 1;
                bin.idle_ns += u128::from(idle);
                bin.longest_ns = bin.longest_ns.max(idle);
            } else {
                self.contended_idle_ns += u128::from(idle);
                let bin = self.bin(alone);
                bin.contended += 1;
                bin.alone_ns += u128::from(alone);
            }
        }
    }

    fn bin(&mut self, length: u64) -> &mut Bin {
        let index = bin_of(length);
        if index >= self.bins.len() {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }

    /// The window of least `value`, among those for which it is something, and what it does; the shortest of equals.
    /// Without any, the window zero.
    pub fn least<T: PartialOrd>(&self, value: impl Fn(&Counts) -> Option<T>) -> (Nanos, Counts) {
        let mut all = Counts { idle_ns: self.contended_idle_ns, ..Counts::default() };
        let mut contended = 0;
        for bin in &self.bins {
            all.episodes += bin.episodes + bin.contended;
            all.idle_ns += bin.idle_ns;
            contended += bin.contended;
        }
        // Episodes of no length are over before anything is decided.
        let instant = self.bins.first().map_or(0, |bin| bin.episodes);
        let halts = all.episodes - instant;
        let never = Counts { halts, exits: halts, ..all };
        let mut best = (Nanos::ZERO, never, value(&never));
        let (mut caught, mut caught_ns) = (0, 0);
        let (mut cut_short, mut cut_short_ns) = (0, 0);
        for (index, bin) in self.bins.iter().enumerate() {
            caught += bin.episodes;
            caught_ns += bin.idle_ns;
            cut_short += bin.contended;
            cut_short_ns += bin.alone_ns;
            if bin.longest_ns == 0 {
                continue;
            }
            let window = if contended == 0 { bin.longest_ns } else { end_of_bin(index) };
            let halts = all.episodes - caught;
            let counts = Counts {
                polls: all.episodes,
                polls_succeeded: caught,
                polled_ns: caught_ns + cut_short_ns + u128::from(halts - cut_short) * u128::from(window),
                halts,
                exits: halts,
                ..all
            };
            let better = match (value(&counts), &best.2) {
                (Some(new), Some(old)) => (new < *old).then_some(new),
                (new, None) => new,
                (None, Some(_)) => None,
            };
            if better.is_some() {
                best = (Nanos(window), counts, better);
            }
        }
        (best.0, best.1)
    }
}

/// Bins rise with the length, and none spans more than 1/2048 of its lower end.
fn bin_of(idle: u64) -> usize {
    let octave = (u64::BITS - idle.leading_zeros()).saturating_sub(BITS + 1);
    ((octave as usize) << BITS) + usize::try_from(idle >> octave).unwrap_or(usize::MAX)
}

/// The longest length of a bin.
fn end_of_bin(index: usize) -> u64 {
    let octave = (index >> BITS).saturating_sub(1);
    let within = (index - (octave << BITS)) as u128;
    u64::try_from(((within + 1) << octave) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Memory, Source};
    use crate::{Bank, Rule};
    use proptest::prelude::*;

    fn lengths() -> impl Strategy<Value = Vec<u64>> {
        let length = prop_oneof![0u64..20, 0u64..10_000, 0u64..1 << 30, any::<u64>()];
        prop::collection::vec(length, 1..200)
    }

    fn fixed(idle: &[u64], window: Nanos) -> Counts {
        let mut bank = Bank::new(&[Rule::fixed(window)], 0).unwrap();
        Memory::of_one(idle).visit(0..u64::MAX, &mut |batch| bank.feed(batch)).unwrap();
        bank.take()[0]
    }

    #[test]
    fn bins_rise_with_the_length() {
        let mut last = 0;
        for idle in (0..20_000).chain((0..64).flat_map(|b| [1u64 << b, (1 << b) + 1])).chain([u64::MAX]) {
            if idle >= last {
                assert!(bin_of(idle) >= bin_of(last), "{idle} after {last}");
                last = idle;
            }
        }
        assert_ne!(bin_of(4094), bin_of(4095));
    }

    #[test]
    fn a_bin_ends_before_the_next_begins() {
        for idle in (0..20_000).chain((12..64).flat_map(|b| [1u64 << b, (1 << b) + 1, (3 << (b - 1)) - 1])) {
            let end = end_of_bin(bin_of(idle));
            assert!(end >= idle && bin_of(end) == bin_of(idle), "{idle}: {end}");
            assert!(end == u64::MAX || bin_of(end + 1) == bin_of(idle) + 1, "{idle}: {end}");
        }
        assert_eq!(end_of_bin(bin_of(u64::MAX)), u64::MAX);
    }

    proptest! {
        #[test]
        fn best_fixed_window_is_as_good_as_trying_them_all_under_contention(
            episodes in prop::collection::vec(
                (
                    prop_oneof![0u64..20, 0u64..10_000, 0u64..1 << 30],
                    prop::option::of(prop_oneof![0u64..20, 0u64..20_000]),
                ),
                1..200,
            ),
            k in 0u64..1 << 20,
        ) {
            let source = Memory::contended(episodes.iter().map(|&(idle, alone)| (0, idle, alone)));
            let (mut windows, mut optimum) = (FixedWindows::default(), OptimumBound::new(Nanos(k)));
            source.visit(0..u64::MAX, &mut |batch| { windows.feed(batch); optimum.feed(batch) }).unwrap();
            let fixed = |window: u64| {
                let mut bank = Bank::new(&[Rule::fixed(Nanos(window))], 0).unwrap();
                source.visit(0..u64::MAX, &mut |batch| bank.feed(batch)).unwrap();
                bank.take()[0]
            };
            let (window, counts) = windows.least(|counts| Some(counts.cost_ns(Nanos(k))));
            prop_assert_eq!(counts, fixed(window.get()));
            let tried = episodes.iter().map(|(idle, _)| *idle).chain([0]).map(|w| fixed(w).cost_ns(Nanos(k)));
            let least = tried.min().unwrap();
            let cost = counts.cost_ns(Nanos(k));
            prop_assert!(cost >= least && cost as f64 <= least as f64 * (1.0 + 1.0 / 2048.0) + 1.0);
            let bound: u128 = episodes.iter().map(|&(d, alone)| {
                u128::from(if alone.is_none_or(|alone| alone >= d) { d.min(k) } else { k })
            }).sum();
            prop_assert_eq!(optimum.counts().cost_ns(Nanos(k)), bound);
            prop_assert!(bound <= cost);
        }

        #[test]
        fn best_fixed_window_is_as_good_as_trying_them_all(idle in lengths(), k in 0u64..1 << 20) {
            let mut windows = FixedWindows::default();
            let mut optimum = OptimumBound::new(Nanos(k));
            Memory::of_one(&idle).visit(0..u64::MAX, &mut |batch| { windows.feed(batch); optimum.feed(batch) }).unwrap();
            let (window, counts) = windows.least(|counts| Some(counts.cost_ns(Nanos(k))));
            prop_assert_eq!(counts, fixed(&idle, window));
            let tried = idle.iter().copied().chain([0]).map(|w| fixed(&idle, Nanos(w)).cost_ns(Nanos(k)));
            let least = tried.min().unwrap();
            let cost = counts.cost_ns(Nanos(k));
            prop_assert!(cost >= least && cost as f64 <= least as f64 * (1.0 + 1.0 / 2048.0) + 1.0);
            let bound: u128 = idle.iter().map(|&d| u128::from(d.min(k))).sum();
            prop_assert_eq!(optimum.counts().cost_ns(Nanos(k)), bound);
            prop_assert!(bound <= cost);
        }
    }
}
