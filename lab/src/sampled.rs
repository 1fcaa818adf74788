//! Figures of all samples of an arm together: quantiles, the mean, and the mean of the greatest.
//!
//! A bootstrap computes the same number some thousand times, each time with other weights of the rounds. The samples are
//! sorted once; for every 256th, the number of samples of each round before it is kept, so that a quantile is
//! found by bisection.

use dwell_stats::histogram::nearest_rank as rank;
use dwell_stats::{Figure, OfSamples, OfWeights};
use std::iter;

/// A quantile of all samples, named `p50`, `p99.9` and so on.
pub fn quantile(q: f64) -> Figure {
    // 0.999 × 100 is not exactly 99.9.
    let percent = (q * 1e9).round() / 1e7;
    Figure::of_samples(format!("p{percent}"), Statistic::Quantile(q))
}

/// The mean of all samples, named `mean`.
pub fn mean() -> Figure {
    Figure::of_samples("mean", Statistic::Mean)
}

/// p50, p90, p99, p99.9, and the mean of the greatest 1 % of all samples, which describes the tail where there are
/// too few samples for p99.9.
pub fn latency() -> [Figure; 5] {
    let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(quantile);
    [p50, p90, p99, p999, Figure::of_samples("worst 1 %", Statistic::Worst(0.01))]
}

/// How a figure is computed.
#[derive(Clone, Copy, Debug)]
enum Statistic {
    /// The mean of all samples.
    Mean,
    /// A quantile of all samples, from 0 to 1.
    Quantile(f64),
    /// The mean of the greatest samples: this share of all, from 0 to 1.
    Worst(f64),
}

impl OfSamples for Statistic {
    fn over(&self, rounds: Vec<Vec<u64>>) -> OfWeights {
        let (pool, statistic) = (Pool::new(rounds), *self);
        Box::new(move |weights| match statistic {
            Statistic::Mean => pool.mean(weights),
            Statistic::Quantile(q) => pool.quantile(weights, q).map(|ns| ns as f64),
            Statistic::Worst(share) => pool.worst(weights, share),
        })
    }

    fn beyond(&self, samples: u64) -> Option<u64> {
        let above = |q: f64| samples - rank(q, samples);
        match self {
            Statistic::Mean => None,
            Statistic::Quantile(q) => Some(above(*q)),
            Statistic::Worst(share) => Some(above(1.0 - share)),
        }
    }
}

/// Samples between two positions with counts.
const STRIDE: usize = 256;

/// All samples of one arm, sorted.
#[derive(Clone, Debug)]
struct Pool {
    /// In ascending order, with the round of each.
    samples: Vec<(u64, u32)>,
    rounds: usize,
    /// For each `STRIDE`th sample and the end, and for each round: the samples before it.
    before: Vec<Before>,
}

/// Samples of one round before a position.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    count: u32,
    sum: f64,
}

/// Samples before a position, each counted with the weight of its round.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Weighted {
    count: u64,
    sum: f64,
}

impl Pool {
    /// Sorts the samples of all rounds.
    fn new<I: IntoIterator<Item = u64>>(rounds: impl IntoIterator<Item = I>) -> Pool {
        let mut samples = Vec::new();
        let mut count = 0;
        for (round, values) in (0u32..).zip(rounds) {
            samples.extend(values.into_iter().zip(iter::repeat(round)));
            count += 1;
        }
        samples.sort_unstable();
        let before = before(&samples, count);
        Pool { samples, rounds: count, before }
    }

    /// The smallest sample that is not below the share `q` of them, 0 to 1 (the nearest rank). `None` where
    /// no sample has any weight.
    fn quantile(&self, weights: &[u32], q: f64) -> Option<u64> {
        let count = self.up_to(self.marks() - 1, weights).count;
        Some(self.first(weights, rank(q, count))?.0)
    }

    /// The mean. `None` where no sample has any weight.
    fn mean(&self, weights: &[u32]) -> Option<f64> {
        let all = self.up_to(self.marks() - 1, weights);
        (all.count > 0).then(|| all.sum / all.count as f64)
    }

    /// The mean of the greatest `share` of the samples, 0 to 1, and at least of one. `None` where no sample has any
    /// weight.
    fn worst(&self, weights: &[u32], share: f64) -> Option<f64> {
        let all = self.up_to(self.marks() - 1, weights);
        let worst = rank(share, all.count);
        let others = self.first(weights, all.count - worst).map_or(0.0, |(_, sum)| sum);
        (worst > 0).then(|| (all.sum - others) / worst as f64)
    }

    fn marks(&self) -> usize {
        self.samples.len() / STRIDE + 2
    }

    /// The samples before a mark.
    fn up_to(&self, mark: usize, weights: &[u32]) -> Weighted {
        let marks = self.before[mark * self.rounds..].iter().zip(weights);
        marks.fold(Weighted::default(), |all, (before, weight)| Weighted {
            count: all.count + u64::from(before.count) * u64::from(*weight),
            sum: all.sum + before.sum * f64::from(*weight),
        })
    }

    /// The `count`th sample, from 1, and the sum of all up to it. `None` where there are fewer, or `count` is 0.
    fn first(&self, weights: &[u32], count: u64) -> Option<(u64, f64)> {
        let (mut low, mut high) = (0, self.marks() - 1);
        // Before `low` there are fewer than `count`.
        while high - low > 1 {
            let middle = low.midpoint(high);
            if self.up_to(middle, weights).count < count { low = middle } else { high = middle }
        }
        let mut all = self.up_to(low, weights);
        for (value, round) in &self.samples[low * STRIDE..] {
            let weight = u64::from(weights[*round as usize]).min(count.saturating_sub(all.count));
            all.count += weight;
            all.sum += *value as f64 * weight as f64;
            if all.count == count && weight > 0 {
                return Some((*value, all.sum));
            }
        }
        None
    }
}

fn before(samples: &[(u64, u32)], rounds: usize) -> Vec<Before> {
    let mut now = vec![Before::default(); rounds];
    let mut marks = Vec::with_capacity((samples.len() / STRIDE + 2) * rounds);
    for (place, (value, round)) in samples.iter().enumerate() {
        if place % STRIDE == 0 {
            marks.extend_from_slice(&now);
        }
        let now = &mut now[*round as usize];
        now.count += 1;
        now.sum += *value as f64;
    }
    if samples.len().is_multiple_of(STRIDE) {
        marks.extend_from_slice(&now);
    }
    marks.extend_from_slice(&now);
    marks
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Measurements, SplitMix64, Trial};
    use dwell_testing::environment::FakeEnvironment;
    use proptest::prelude::*;
    use std::convert::Infallible;
    use std::sync::atomic::AtomicBool;

    /// Every sample as often as its round says, in order.
    fn expanded(rounds: &[Vec<u64>], weights: &[u32]) -> Vec<u64> {
        let mut all: Vec<u64> = rounds
            .iter()
            .zip(weights)
            .flat_map(|(round, weight)| {
                round.iter().flat_map(|value| iter::repeat_n(*value, *weight as usize))
            })
            .collect();
        all.sort_unstable();
        all
    }

    fn ones(rounds: &[Vec<u64>]) -> Vec<u32> {
        vec![1; rounds.len()]
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        let rounds = [(1..=50).collect(), (51..=100).rev().collect::<Vec<u64>>()];
        let pool = Pool::new(rounds.clone());
        for (q, value) in
            [(0.0, 1), (0.005, 1), (0.01, 1), (0.07, 7), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)]
        {
            assert_eq!(pool.quantile(&ones(&rounds), q), Some(value), "{q}");
        }
        let beyond = [0.5, 0.99, 0.999, 1.0].map(|q| Statistic::Quantile(q).beyond(100));
        assert_eq!(beyond, [50, 1, 0, 0].map(Some));
        assert_eq!(pool.worst(&ones(&rounds), 0.02), Some(99.5));
        assert_eq!(pool.mean(&[0, 2]), Some(75.5));
    }

    /// Runs so many rounds of two arms, of which `b` has the setting 2; each block gets the number of blocks before it.
    fn measure(
        rounds: u32,
        figures: &[Figure],
        mut samples: impl FnMut(&Trial<'_, f64>, u32) -> Vec<u64>,
    ) -> Measurements {
        let options = CampaignOptions {
            min_rounds: 1,
            max_rounds: rounds,
            warm_up: false,
            ..CampaignOptions::default()
        };
        let arms = Arms::new("a", 1.0).arm("b", 2.0);
        let campaign = Campaign::new("test", arms, figures.to_vec(), options).unwrap();
        let mut before = 0;
        let stop = AtomicBool::new(false);
        let run = campaign.run(&mut FakeEnvironment::disturbed([]), &stop, &mut |_| (), |trial| {
            before += 1;
            Ok::<_, Infallible>(Block::new(samples(trial, before - 1)))
        });
        run.unwrap()
    }

    #[test]
    fn quantiles_of_too_few_samples_are_warned_of() {
        let figures = [quantile(0.5), quantile(0.99), quantile(0.999)];
        let measurements = measure(8, &figures, |_, _| (0..100).map(|i| 1_000 + i).collect());
        let warnings: Vec<String> = measurements.results().warnings.iter().map(ToString::to_string).collect();
        // 8 rounds of 2 blocks of 100 samples: 16 beyond p99, 1 beyond p99.9.
        let few = ["a", "b", "a (A/A)"]
            .map(|arm| format!("{arm}: only 1 of 1600 samples are above p99.9; at least 10 are needed"));
        assert_eq!(warnings, few);
    }

    #[test]
    fn quantiles_are_of_all_samples_and_have_their_names() {
        let figures: Vec<Figure> = latency().into_iter().chain([mean()]).collect();
        let measurements = measure(10, &figures, |trial, before| {
            // Block by block another stretch: only all together they are 0 to 599 times the setting.
            let of_arm = u64::from(before) * 10;
            (of_arm..of_arm + 10).map(|i| if *trial.setting == 2.0 { 2 * i } else { i }).collect()
        });
        let results = measurements.results();
        let names: Vec<&str> = results.rows.iter().step_by(3).map(|row| row.figure.as_str()).collect();
        assert_eq!(names, ["p50", "p90", "p99", "p99.9", "worst 1 %", "mean"]);
        for row in &results.rows {
            let arm = measurements.arms.iter().position(|arm| arm.name == row.arm).unwrap();
            let blocks = measurements.rounds_of(arm);
            let mut all: Vec<u64> = blocks.iter().flatten().flat_map(|b| b.samples_ns.clone()).collect();
            all.sort_unstable();
            let mean = |values: &[u64]| values.iter().sum::<u64>() as f64 / values.len() as f64;
            let expected = match row.figure.as_str() {
                "p50" => all[99] as f64,
                "p90" => all[179] as f64,
                "p99" => all[197] as f64,
                "p99.9" => all[199] as f64,
                "worst 1 %" => mean(&all[198..]),
                _ => mean(&all),
            };
            let found = (row.value.unwrap().value, row.samples);
            assert_eq!(found, (expected, Some(200)), "{} {}", row.arm, row.figure);
        }
    }

    /// A made-up machine: latencies wander from round to round, are noisy from block to block, and b's are 1.1 times
    /// a's. Of 200 campaigns of 10 rounds the intervals hold the truth in 95 %: 190, with a standard error of 3.
    #[test]
    fn intervals_of_ratios_hold_the_truth() {
        const TRUTH: f64 = 1.1;
        let figures = [quantile(0.5), quantile(0.9), mean()];
        let mut held = std::collections::BTreeMap::<String, u32>::new();
        for campaign in 0..200 {
            let mut random = SplitMix64::new(campaign);
            // Of twelve uniform numbers, about normal.
            let normal = |random: &mut SplitMix64| {
                (0..12).map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
            };
            let wander: Vec<f64> = (0..10).map(|_| (0.2 * normal(&mut random)).exp()).collect();
            let measurements = measure(10, &figures, |trial, _| {
                let scale = wander[trial.round as usize] * if *trial.setting == 2.0 { TRUTH } else { 1.0 };
                let noise = (0.05 * normal(&mut random)).exp();
                (0..50)
                    .map(|_| 100_000 + random.exponential(1e5))
                    .map(|ns| scaled(ns, scale * noise))
                    .collect()
            });
            for figure in ["p50", "p90", "mean"] {
                let ratio = measurements.ratio("b", "a", figure).unwrap();
                *held.entry(figure.to_owned()).or_default() += u32::from(ratio.contains(TRUTH));
            }
        }
        assert!(held.len() == 3 && held.values().all(|held| (180..=200).contains(held)), "{held:?}");
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most some million")]
    fn scaled(ns: u64, by: f64) -> u64 {
        (ns as f64 * by) as u64
    }

    #[test]
    fn nothing_comes_of_nothing() {
        let none: [Vec<u64>; 0] = [];
        for (pool, weights) in [(Pool::new(none), &[][..]), (Pool::new([vec![1, 2], vec![]]), &[0, 5][..])] {
            assert_eq!(pool.quantile(weights, 0.5), None);
            assert_eq!(pool.mean(weights), None);
            assert_eq!(pool.worst(weights, 0.01), None);
        }
    }

    proptest! {
        #[test]
        fn any_weights_give_what_sorting_gives(
            rounds in prop::collection::vec(prop::collection::vec(0u64..1_000_000, 0..400), 0..6),
            weights in prop::collection::vec(0u32..4, 6),
            q in 0.0f64..=1.0,
        ) {
            let weights = &weights[..rounds.len()];
            let pool = Pool::new(rounds.clone());
            let all = expanded(&rounds, weights);
            if all.is_empty() {
                prop_assert_eq!(pool.quantile(weights, q), None);
                return Ok(());
            }
            let at = (1..=all.len()).find(|at| *at as f64 >= q * all.len() as f64).unwrap();
            prop_assert_eq!(pool.quantile(weights, q), Some(all[at - 1]));
            let mean = |values: &[u64]| values.iter().sum::<u64>() as f64 / values.len() as f64;
            prop_assert!((pool.mean(weights).unwrap() - mean(&all)).abs() < 1e-6);
            prop_assert!((pool.worst(weights, q).unwrap() - mean(&all[all.len() - at..])).abs() < 1e-6);
        }
    }
}
