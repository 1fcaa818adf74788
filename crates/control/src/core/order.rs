//! What histograms leave open of the lengths that are drawn from them: their order, and where they are within a bucket.
//!
//! A rule that adapts depends on both. In some loads short episodes follow short ones, in others they
//! alternate with long ones; and whether a window covers lengths from a bucket twice as wide depends on where
//! in it they are. What was counted tells: how many polls and halts the rule made of the lengths, and how
//! long it polled. So lengths are shifted within their buckets, and put into an order in which neighbours are
//! more or less alike, such that the rule in force makes of them what was counted. Both degrees are kept as
//! long as that agrees; a setting whose counts depend on neither tells nothing about them.

use crate::core::pricing::play_all;
use crate::core::sample::Episode;
use crate::core::trust::{LIMIT, SHARE};
use dwell_replay::{Counts, Player};
use dwell_stats::SplitMix64;
use dwell_stats::whole::whole;

/// The correlations of the ranks of neighbours that are tried; 0 is the order in which they were drawn.
const ALIKE: [f64; 9] = [0.0, -0.9, -0.6, -0.3, 0.3, 0.6, 0.8, 0.9, 0.97];
/// How often places within a bucket, from 0 to 1, are squared, or below 0 their roots taken: lengths become
/// shorter above 0, and longer below.
const SKEW: [i32; 5] = [0, -2, -1, 1, 2];

/// Periods for which less is tried after all degrees were tried in vain.
const WAITS: u32 = 7;

/// What is known of one idler's lengths.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Order {
    alike: f64,
    skew: i32,
    /// For so many periods other degrees are tried only where these would end trust.
    waits: u32,
}

impl Order {
    /// The lengths as they agree best with what `rule` has made of them.
    pub(crate) fn arrange(
        &mut self,
        drawn: &[Episode],
        counted: &Counts,
        rule: &Player,
        random: &mut SplitMix64,
    ) -> Vec<Episode> {
        // The same random numbers for all degrees: only the degrees differ.
        let begin = random.clone();
        let mut sorted = None;
        let mut of = |order: Order| {
            *random = begin.clone();
            let arranged = order.apply(drawn, &mut sorted, random);
            (order, apart(&arranged, counted, rule), arranged)
        };
        // What would end trust is not left as it is.
        let limit = if self.waits == 0 { 1.0 } else { 2.0 };
        let mut best = of(*self);
        if best.1 > limit {
            for skew in SKEW {
                let other = of(Order { skew, ..best.0 });
                if other.1 < best.1 {
                    best = other;
                }
            }
        }
        if best.1 > limit {
            for alike in ALIKE {
                let other = of(Order { alike, ..best.0 });
                if other.1 < best.1 {
                    best = other;
                }
            }
        }
        // What no degree explains is not tried again at once.
        let waits = if best.1 > 1.0 { self.waits.checked_sub(1).unwrap_or(WAITS) } else { 0 };
        *self = Order { waits, ..best.0 };
        best.2
    }

    /// `sorted` has the drawn lengths once they were needed by their length.
    fn apply(
        self,
        drawn: &[Episode],
        sorted: &mut Option<Vec<Episode>>,
        random: &mut SplitMix64,
    ) -> Vec<Episode> {
        let shifted = |episode: &Episode| shifted(*episode, self.skew);
        if self.alike == 0.0 {
            return drawn.iter().map(shifted).collect();
        }
        let sorted = sorted.get_or_insert_with(|| {
            let mut sorted = drawn.to_vec();
            sorted.sort_unstable_by_key(|episode| (episode.idle_ns, episode.alone_ns));
            sorted
        });
        let mut all = drawn.to_vec();
        // Shifted they are still in order.
        for (place, episode) in places(all.len(), self.alike, random).into_iter().zip(sorted.iter()) {
            all[place] = shifted(episode);
        }
        all
    }
}

/// An episode elsewhere in its bucket.
fn shifted(episode: Episode, skew: i32) -> Episode {
    let Some(log) = episode.idle_ns.checked_ilog2().filter(|_| skew != 0) else { return episode };
    let low = 1u64 << log;
    let mut place = (episode.idle_ns - low) as f64 / low as f64;
    for _ in 0..skew.abs() {
        place = if skew > 0 { place * place } else { place.sqrt() };
    }
    // Below `low`, as the place is below 1.
    let above = whole(place * low as f64);
    Episode { idle_ns: low + above.min(low - 1), ..episode }
}

/// The places of so many lengths, from the shortest to the longest, such that their ranks follow an
/// autoregressive series.
fn places(number: usize, alike: f64, random: &mut SplitMix64) -> Vec<usize> {
    let fresh = (1.0 - alike * alike).sqrt();
    // Near enough to normal: only the ranks matter.
    let mut normal = || (0..4).map(|_| random.below(1 << 20) as f64).sum::<f64>() / f64::from(1 << 20) - 2.0;
    let mut last = normal();
    let series = (0..number as u64).map(|place| {
        last = alike * last + fresh * normal();
        // Within ±2^14; whole numbers are sorted faster.
        let rank = whole((last + f64::from(1 << 14)) * f64::from(1 << 16));
        rank << 32 | place
    });
    let mut series: Vec<u64> = series.collect();
    series.sort_unstable();
    series.into_iter().map(|ranked| usize::try_from(ranked & u64::from(u32::MAX)).unwrap_or(0)).collect()
}

/// How far what the rule makes of the episodes is from what was counted: 1 is half of what ends trust.
fn apart(episodes: &[Episode], counted: &Counts, rule: &Player) -> f64 {
    let made = play_all(&mut rule.clone(), episodes);
    let all = counted.episodes as f64;
    let scale = all / episodes.len().max(1) as f64;
    let far = |made: f64, counted: f64, of: f64| {
        let limit = (LIMIT * counted).max(SHARE * of);
        (scale * made - counted).abs() / (limit / 2.0).max(1.0)
    };
    let polls = far(made.polls as f64, counted.polls as f64, all);
    let halts = far(made.halts as f64, counted.halts as f64, all);
    // Trust does not look at it; but lengths that are polled for are told by it.
    let polled = far(made.polled_ns as f64, counted.polled_ns as f64, 0.0);
    polls.max(halts).max(polled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::draw::Histograms;
    use crate::core::pricing::{fresh, play};
    use dwell_policy::Layer;
    use dwell_policy::host::{BUCKETS, bucket};
    use dwell_policy::param::Setting;
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    /// Polls for 50 us after an episode that was no longer.
    fn after_short() -> Player {
        let mut setting = Setting::defaults(Layer::Host, Version::new(6, 18));
        for (name, value) in
            [("halt_poll_ns", 50_000), ("halt_poll_ns_grow_start", 50_000), ("halt_poll_ns_shrink", 0)]
        {
            setting.set(name, value).unwrap();
        }
        fresh(setting).unwrap()
    }

    /// What the rule makes of these lengths, and what is drawn from the histograms that KVM would have of it.
    fn drawn(lengths: &[u64]) -> (Counts, Vec<Episode>) {
        let mut rule = after_short();
        let [mut success, mut fail, mut wait] = [[0u64; BUCKETS]; 3];
        let (mut success_ns, mut fail_ns) = (0, 0);
        for idle_ns in lengths {
            let did = play(&mut rule, Episode::of(*idle_ns));
            let polled = u64::try_from(did.polled_ns).unwrap();
            match (did.polls, did.halts) {
                (1, 0) => (success[bucket(polled)] += 1, success_ns += polled).0,
                (polls, _) => {
                    fail[bucket(polled)] += polls;
                    fail_ns += polled;
                    wait[bucket(idle_ns - polled)] += 1;
                }
            }
        }
        let histograms = Histograms { success: &success, fail: &fail, wait: &wait, success_ns, fail_ns };
        (histograms.counts(), histograms.draw(1024, 0, &mut SplitMix64::new(3)))
    }

    fn arranged(lengths: &[u64]) -> (Order, f64, f64) {
        let (counted, drawn) = drawn(lengths);
        let rule = after_short();
        let mut order = Order::default();
        let after = order.arrange(&drawn, &counted, &rule, &mut SplitMix64::new(5));
        (order, apart(&drawn, &counted, &rule), apart(&after, &counted, &rule))
    }

    #[test]
    fn runs_are_told_from_what_was_counted() {
        let mut random = SplitMix64::new(1);
        let runs: Vec<u64> =
            (0..2_000)
                .map(|n| {
                    if n / 50 % 2 == 0 { 8_192 + random.below(8_192) } else { 150_000 + random.below(90_000) }
                })
                .collect();
        let (order, before, after) = arranged(&runs);
        assert!(order.alike >= 0.8 && before > 2.0 && after < 2.0, "{order:?} {before} {after}");
    }

    #[test]
    fn places_within_a_bucket_are_told_from_what_was_counted() {
        // 32.8 to 65.5 us are one bucket, of which the window covers half; all of these lengths are in that half.
        let mut random = SplitMix64::new(1);
        let short: Vec<u64> = (0..4_000)
            .map(|n| if n / 400 % 2 == 0 { 34_000 + random.below(4_000) } else { 300_000 })
            .collect();
        let (order, before, after) = arranged(&short);
        assert!(order.skew > 0 && before > 4.0 && after < before / 3.0, "{order:?} {before} {after}");
    }

    proptest! {
        /// Whatever was counted, no length leaves its bucket, and none is lost.
        #[test]
        fn lengths_stay_in_their_buckets(
            lengths in prop::collection::vec(0u64.., 0..300),
            (polls, halts) in (0u64..400, 0u64..400),
            seed in any::<u64>(),
        ) {
            let late = |idle_ns| Episode { latency_ns: Some(1_000), ..Episode::of(idle_ns) };
            let drawn: Vec<Episode> = lengths.iter().copied().map(late).collect();
            let counted = Counts { episodes: lengths.len() as u64, polls, halts, ..Counts::default() };
            let mut order = Order::default();
            let after =
                order.arrange(&drawn, &counted, &after_short(), &mut SplitMix64::new(seed));
            let buckets = |all: &[Episode]| {
                let mut of: Vec<_> = all.iter().map(|episode| episode.idle_ns.checked_ilog2()).collect();
                of.sort_unstable();
                of
            };
            prop_assert_eq!(buckets(&drawn), buckets(&after));
        }
    }
}
