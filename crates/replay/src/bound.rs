//! What no policy of a class can beat.

use crate::counts::Counts;
use crate::source::Batch;
use dwell_policy::Nanos;
use dwell_policy::reference::Optimum;

/// What the optimum does: polls through every episode that is worth less than a halt, halts at once in the others.
#[derive(Clone, Copy, Debug)]
pub struct OptimumBound {
    policy: Optimum,
    counts: Counts,
}

impl OptimumBound {
    /// At this price of a halt.
    pub fn new(halt_cost: Nanos) -> OptimumBound {
        OptimumBound { policy: Optimum { halt_cost }, counts: Counts::default() }
    }

    /// Takes in episodes.
    pub fn feed(&mut self, batch: &Batch) {
        for idle in batch.runs().flat_map(|run| &run.idle_ns).copied() {
            self.counts.episodes += 1;
            self.counts.idle_ns += u128::from(idle);
            self.counts.count(self.policy.window(Nanos(idle)).get(), idle);
        }
    }

    /// What it did.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// The best fixed window for some episodes, in hindsight.
///
/// Episodes are counted in bins; a bin knows its number, sum and longest, so that the cost of every window that ends
/// at the longest episode of a bin is exact. Lengths below 4096 ns have a bin each, above that an octave has 2048: the
/// window found is a real one with its real cost, and at most 1/2048 longer than the very best.
#[derive(Clone, Debug, Default)]
pub struct FixedWindows {
    bins: Vec<Bin>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    episodes: u64,
    idle_ns: u128,
    longest_ns: u64,
}

const BITS: u32 = 11;

impl FixedWindows {
    /// Takes in episodes.
    pub fn feed(&mut self, batch: &Batch) {
        for idle in batch.runs().flat_map(|run| &run.idle_ns).copied() {
            self.add(idle);
        }
    }

    fn add(&mut self, idle: u64) {
        let index = bin_of(idle);
        if index >= self.bins.len() {
            self.bins.resize(index + 1, Bin::default());
        }
        let bin = &mut self.bins[index];
        bin.episodes += 1;
        bin.idle_ns += u128::from(idle);
        bin.longest_ns = bin.longest_ns.max(idle);
    }

    /// The window of least cost at this price of a halt, and what it does; the shortest of equals.
    pub fn best(&self, halt_cost: Nanos) -> (Nanos, Counts) {
        self.least(|counts| Some(counts.cost_ns(halt_cost)))
    }

    /// The window of least `value`, among those for which it is something, and what it does; the shortest of equals.
    /// Without any, the window zero.
    pub fn least<T: PartialOrd>(&self, value: impl Fn(&Counts) -> Option<T>) -> (Nanos, Counts) {
        let mut all = Counts::default();
        for bin in &self.bins {
            all.episodes += bin.episodes;
            all.idle_ns += bin.idle_ns;
        }
        // Episodes of no length are over before anything is decided.
        let instant = self.bins.first().map_or(0, |bin| bin.episodes);
        let halts = all.episodes - instant;
        let never = Counts { halts, exits: halts, ..all };
        let mut best = (Nanos::ZERO, never, value(&never));
        let (mut caught, mut caught_ns) = (0, 0);
        for bin in self.bins.iter().filter(|bin| bin.episodes > 0) {
            caught += bin.episodes;
            caught_ns += bin.idle_ns;
            if bin.longest_ns == 0 {
                continue;
            }
            let halts = all.episodes - caught;
            let counts = Counts {
                polls: all.episodes,
                polls_succeeded: caught,
                polled_ns: caught_ns + u128::from(halts) * u128::from(bin.longest_ns),
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
                best = (Nanos(bin.longest_ns), counts, better);
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
        let mut bank = Bank::new(&[Rule::Fixed(window)], 0).unwrap();
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

    proptest! {
        #[test]
        fn best_fixed_window_is_as_good_as_trying_them_all(idle in lengths(), k in 0u64..1 << 20) {
            let mut windows = FixedWindows::default();
            let mut optimum = OptimumBound::new(Nanos(k));
            Memory::of_one(&idle).visit(0..u64::MAX, &mut |batch| { windows.feed(batch); optimum.feed(batch) }).unwrap();
            let (window, counts) = windows.best(Nanos(k));
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
