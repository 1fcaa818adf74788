//! Samples of many rounds and their quantiles, for any weights of the rounds.
//!
//! A bootstrap computes the same quantiles some thousand times, each time with other weights. The samples are
//! sorted once; for every 256th, the number of samples of each round before it is kept, so that a quantile is
//! found by bisection.

use crate::histogram::nearest_rank as rank;
use std::iter;

/// Samples between two positions with counts.
const STRIDE: usize = 256;

/// All samples of one arm, sorted.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
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
    pub(crate) fn new<I: IntoIterator<Item = u64>>(rounds: impl IntoIterator<Item = I>) -> Pool {
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

    /// How many samples there are.
    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }

    /// How many samples are above quantile `q`, 0 to 1.
    pub(crate) fn beyond(&self, q: f64) -> u64 {
        let count = self.samples.len() as u64;
        count - rank(q, count)
    }

    /// The smallest sample that is not below the share `q` of them, 0 to 1 (the nearest rank). `None` where
    /// no sample has any weight.
    pub(crate) fn quantile(&self, weights: &[u32], q: f64) -> Option<u64> {
        let count = self.up_to(self.marks() - 1, weights).count;
        Some(self.first(weights, rank(q, count))?.0)
    }

    /// The mean. `None` where no sample has any weight.
    pub(crate) fn mean(&self, weights: &[u32]) -> Option<f64> {
        let all = self.up_to(self.marks() - 1, weights);
        (all.count > 0).then(|| all.sum / all.count as f64)
    }

    /// The mean of the greatest `share` of the samples, 0 to 1, and at least of one. `None` where no sample has any
    /// weight.
    pub(crate) fn worst(&self, weights: &[u32], share: f64) -> Option<f64> {
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
    use proptest::prelude::*;

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
        assert_eq!(
            (pool.beyond(0.5), pool.beyond(0.99), pool.beyond(0.999), pool.beyond(1.0)),
            (50, 1, 0, 0)
        );
        assert_eq!(pool.worst(&ones(&rounds), 0.02), Some(99.5));
        assert_eq!(pool.mean(&[0, 2]), Some(75.5));
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
            prop_assert_eq!(pool.len(), rounds.iter().map(Vec::len).sum::<usize>());
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
