//! Looks at statistics between two decisions.
//!
//! Histograms have no order. Read several times in a period, they tell at least how the load changes from one
//! look to the next, though not within one: runs of short episodes, and of long ones, are then runs in what
//! is drawn.

use crate::core::draw::Histograms;
use crate::core::sample::{Episode, STRETCH, Stretches};
use dwell_policy::Nanos;
use dwell_replay::Counts;
use dwell_stats::SplitMix64;

/// The shortest time between two looks \[ns\].
const SHORTEST_NS: u64 = 10_000_000;
/// The longest \[ns\]: no period that decides something is longer.
const LONGEST_NS: u64 = 10_000_000_000;
/// Statistics files that are read in one look of the shortest time; of more, looks are rarer.
const FILES: u64 = 4;

/// When to look: so often that a look sees a stretch of episodes.
#[derive(Clone, Debug)]
pub struct Looks {
    every_ns: u64,
    /// When to look next, if no decision comes before \[ns\].
    pub next_ns: u64,
}

impl Looks {
    /// A look at so many statistics files saw so many episodes.
    pub fn looked(&mut self, now_ns: u64, files: usize, episodes: u64) {
        let least = SHORTEST_NS * (files as u64).div_ceil(FILES).max(1);
        let wanted =
            if episodes < STRETCH as u64 { self.every_ns.saturating_mul(2) } else { self.every_ns / 2 };
        self.every_ns = wanted.clamp(least.min(LONGEST_NS), LONGEST_NS);
        self.next_ns = now_ns.saturating_add(self.every_ns);
    }
}

impl Default for Looks {
    /// The first look is the first decision's.
    fn default() -> Looks {
        Looks { every_ns: SHORTEST_NS, next_ns: SHORTEST_NS }
    }
}

/// What the looks of a period saw of one idler.
#[derive(Clone, Debug)]
pub struct Drawn {
    counted: Counts,
    kept: Stretches,
    most: usize,
}

impl Drawn {
    /// Nothing yet; at most `most` lengths are kept.
    pub fn new(most: usize) -> Drawn {
        Drawn { counted: Counts::default(), kept: Stretches::new(most), most }
    }

    /// Draws as many lengths as there were episodes since the last look, or the most that are kept; a halt
    /// adds `late` to its wait.
    pub fn look(&mut self, counted: &Histograms<'_>, late: Nanos, random: &mut SplitMix64) {
        self.counted += counted.counts();
        counted.draw(self.most, late.get(), random).into_iter().for_each(|episode| self.kept.push(episode));
    }

    /// What was counted and drawn; begins anew.
    pub fn take(&mut self) -> (Counts, Vec<Episode>) {
        (std::mem::take(&mut self.counted), self.kept.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::host::{BUCKETS, bucket};

    #[test]
    fn looks_are_as_long_as_it_takes_to_see_a_stretch() {
        let mut looks = Looks::default();
        let mut at = |files, episodes| {
            let now = looks.next_ns;
            looks.looked(now, files, episodes);
            (looks.next_ns - now) / 1_000_000
        };
        assert_eq!(
            [at(1, 90), at(1, 3), at(1, 3), at(1, 90), at(1, 90), at(1, 90)],
            [10, 20, 40, 20, 10, 10]
        );
        assert_eq!([at(64, 6_000), at(1, 90)], [160, 80]);
        (0..40).for_each(|_| {
            at(1, 0);
        });
        assert_eq!(at(1, 0), 10_000);
    }

    #[test]
    fn what_is_drawn_is_in_the_order_of_the_looks_and_in_proportion_to_them() {
        let mut drawn = Drawn::new(1024);
        let mut random = SplitMix64::new(1);
        for (number, waits) in [(0u32, 900), (1, 300), (2, 900)] {
            let mut wait = [0; BUCKETS];
            wait[bucket(1_000 << (4 * number))] = waits;
            let counted = Histograms { success: &[], fail: &[], wait: &wait, success_ns: 0, fail_ns: 0 };
            drawn.look(&counted, Nanos::ZERO, &mut random);
        }
        let (counted, episodes) = drawn.take();
        assert_eq!((counted.episodes, counted.halts), (2_100, 2_100));
        assert!((512..=1024).contains(&episodes.len()), "{}", episodes.len());
        let of =
            |low: u64| episodes.iter().filter(|episode| (low..2 * low).contains(&episode.idle_ns)).count();
        let shares = [512, 8_192, 131_072].map(|low| of(low) * 7 / episodes.len());
        assert_eq!(shares[1], 1, "{shares:?} sevenths");
        assert!(episodes.is_sorted_by_key(|episode| episode.idle_ns.ilog2()));
        assert_eq!(drawn.take(), (Counts::default(), vec![]));
    }
}
