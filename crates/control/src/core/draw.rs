//! Lengths drawn from KVM's statistics histograms.
//!
//! # What they tell
//! A poll that succeeded gives the length of its episode; one that failed only its window; a wait is the rest
//! of the episode after the window, plus the wakeup latency *L*. Which poll belongs to which wait is not
//! counted: they are drawn as independent, and a wait that a poll came before is longer by the mean of the
//! failed polls. Within a bucket all lengths are equally likely.
//!
//! # Limits
//! Episodes are drawn as independent of each other, though a rule that adapts depends on their order. Lengths are only
//! as fine as the buckets, powers of two.

use crate::core::sample::Episode;
use dwell_replay::Counts;
use dwell_stats::SplitMix64;

/// What a statistics file counted in a period. Bucket 0 counts zeros, *k* those from 2^(*k*-1) to 2^*k* - 1
/// ns, the last all the rest.
#[derive(Clone, Copy, Debug)]
pub struct Histograms<'a> {
    /// Lengths of successful polls.
    pub success: &'a [u64],
    /// Lengths of failed polls.
    pub fail: &'a [u64],
    pub wait: &'a [u64],
    /// Successful polls together \[ns\].
    pub success_ns: u64,
    /// Failed polls together \[ns\].
    pub fail_ns: u64,
}

/// How many lengths there are.
fn number_of(buckets: &[u64]) -> u64 {
    buckets.iter().copied().fold(0, u64::saturating_add)
}

impl Histograms<'_> {
    /// The episodes that were counted.
    pub fn episodes(&self) -> u64 {
        number_of(self.success).saturating_add(number_of(self.wait))
    }

    /// What the vCPUs did.
    pub fn counts(&self) -> Counts {
        let (succeeded, halts) = (number_of(self.success), number_of(self.wait));
        Counts {
            episodes: self.episodes(),
            polls: succeeded.saturating_add(number_of(self.fail)),
            polls_succeeded: succeeded,
            polled_ns: u128::from(self.success_ns) + u128::from(self.fail_ns),
            halts,
            exits: halts,
            ..Counts::default()
        }
    }

    /// So many lengths, at most one for each episode, where a halt adds `late_ns` to its wait.
    pub fn draw(&self, most: usize, late_ns: u64, random: &mut SplitMix64) -> Vec<Episode> {
        let (fails, waits) = (number_of(self.fail), number_of(self.wait));
        let window = self.fail_ns.checked_div(fails).unwrap_or(0);
        let all = self.episodes();
        let number = most.min(usize::try_from(all).unwrap_or(usize::MAX));
        let mut draw = || {
            let place = random.below(all);
            match in_bucket(self.success, place, random) {
                Ok(idle_ns) => Episode::of(idle_ns),
                Err(place) => {
                    let wait = in_bucket(self.wait, place, random).unwrap_or(0);
                    let polled = random.below(waits) < fails;
                    let before = if polled { window } else { 0 };
                    // A wait begins after the poll, so no episode is shorter than its poll.
                    Episode::of(before + wait.saturating_sub(late_ns).max(1))
                }
            }
        };
        (0..number).map(|_| draw()).collect()
    }
}

/// A length from the bucket that holds number `place`; else how far `place` is behind the last bucket.
fn in_bucket(buckets: &[u64], mut place: u64, random: &mut SplitMix64) -> Result<u64, u64> {
    for (bucket, count) in buckets.iter().enumerate() {
        if place < *count {
            if bucket == 0 {
                return Ok(0);
            }
            let low = 1u64 << (bucket - 1).min(62);
            return Ok(low + random.below(low));
        }
        place -= count;
    }
    Err(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::host::{BUCKETS, bucket};

    #[test]
    fn lengths_are_those_of_the_buckets() {
        let [mut success, mut fail, mut wait] = [[0u64; BUCKETS]; 3];
        success[bucket(12_000)] = 3_000;
        fail[bucket(20_000)] = 1_000;
        wait[bucket(100_000)] = 1_000;
        let histograms = Histograms {
            success: &success,
            fail: &fail,
            wait: &wait,
            success_ns: 36_000_000,
            fail_ns: 20_000_000,
        };
        assert_eq!(histograms.episodes(), 4_000);
        let drawn = histograms.draw(2_000, 12_000, &mut SplitMix64::new(1));
        let (short, long): (Vec<Episode>, Vec<Episode>) =
            drawn.into_iter().partition(|episode| episode.idle_ns < 16_384);
        assert!((1_400..1_600).contains(&short.len()), "{}", short.len());
        assert!(short.iter().all(|episode| episode.idle_ns >= 8_192));
        // 65,536 to 131,071, with the poll before it and without the latency.
        assert!(long.iter().all(|episode| (73_536..139_072).contains(&episode.idle_ns)));
        let counts = histograms.counts();
        assert_eq!((counts.polls, counts.halts, counts.polled_ns), (4_000, 1_000, 56_000_000));
        let none = Histograms { success: &[], fail: &[], wait: &[], success_ns: 0, fail_ns: 7 };
        assert_eq!(none.draw(10, 0, &mut SplitMix64::new(1)), []);
    }
}
