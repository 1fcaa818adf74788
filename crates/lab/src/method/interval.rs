//! Estimates with their intervals, by the bootstrap over rounds.
//!
//! # Method
//! A statistic is computed from rounds, each of which has a weight: 1 for the estimate, and how often it was drawn for a
//! resample (Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, chapters 13 and 14). The interval is between
//! percentiles of the resamples; [`Bootstrap::bca`] moves these for bias and skew.
//!
//! With few rounds such intervals are too narrow: for a mean they lack the factor √(n/(n-1)) and the longer tails of
//! Student's distribution. The percentiles are therefore taken further out, at Φ(√(n/(n-1))·t), as Hesterberg proposes
//! (*What Teachers Should Know About the Bootstrap*, 2015, section 4.3: the expanded percentile interval). Below about
//! six rounds no percentile is far enough out, for no resample leaves the range of the rounds.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Fewest rounds of which an interval says anything.
pub const MIN_ROUNDS: usize = 6;

/// An estimate between two limits. Where nothing is known about a side it is infinite (`null` in JSON).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower limit.
    pub low: f64,
    /// The estimate itself.
    pub value: f64,
    /// Upper limit.
    pub high: f64,
}

impl Interval {
    /// An estimate of unknown accuracy.
    pub const fn unknown(value: f64) -> Interval {
        Interval { low: f64::NEG_INFINITY, value, high: f64::INFINITY }
    }

    /// Lower and upper limit, where both are known.
    pub fn limits(&self) -> Option<[f64; 2]> {
        let limits = [self.low, self.high];
        limits.iter().all(|limit| limit.is_finite()).then_some(limits)
    }

    /// Whether `value` is not outside.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The interval of a growing function of the estimate.
    #[must_use]
    pub fn map(&self, growing: impl Fn(f64) -> f64) -> Interval {
        Interval { low: growing(self.low), value: growing(self.value), high: growing(self.high) }
    }

    /// Of a ratio: by which share its limits are off on either side, 0.02 for ±2 %.
    pub fn ratio_half_width(&self) -> f64 {
        if self.low > 0.0 { (self.high / self.low).sqrt() - 1.0 } else { f64::INFINITY }
    }
}

/// How intervals are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// How often the interval holds the truth, such as 0.95.
    pub confidence: f64,
    /// How many resamples are drawn.
    pub resamples: u32,
    /// The same seed gives the same interval.
    pub seed: u64,
}

impl Bootstrap {
    /// The mean of one value a round, with its BCa interval.
    pub fn mean(&self, values: &[f64]) -> Option<Interval> {
        self.bca(values.len(), |weights| {
            let sum: f64 = weights.iter().zip(values).map(|(weight, value)| f64::from(*weight) * value).sum();
            let count: f64 = weights.iter().copied().map(f64::from).sum();
            (count > 0.0).then(|| sum / count)
        })
    }

    /// The median of one value a round, with its percentile interval.
    pub fn median(&self, values: &[f64]) -> Option<Interval> {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        self.percentile(values.len(), |weights| weighted_median(values, &order, weights))
    }

    /// `statistic` of `rounds` rounds, given the weight of each, with the percentile interval. `None` where the statistic
    /// of all rounds is.
    pub fn percentile(&self, rounds: usize, statistic: impl Fn(&[u32]) -> Option<f64>) -> Option<Interval> {
        self.interval(rounds, statistic, false)
    }

    /// As [`percentile`](Bootstrap::percentile), with the bias-corrected and accelerated interval. Its acceleration comes
    /// from leaving out each round once, which suits smooth statistics such as means, not quantiles.
    pub fn bca(&self, rounds: usize, statistic: impl Fn(&[u32]) -> Option<f64>) -> Option<Interval> {
        self.interval(rounds, statistic, true)
    }

    fn interval(
        &self,
        rounds: usize,
        statistic: impl Fn(&[u32]) -> Option<f64>,
        correct: bool,
    ) -> Option<Interval> {
        let value = statistic(&vec![1; rounds])?;
        let Some(level) = self.expanded_level(rounds) else { return Some(Interval::unknown(value)) };
        let drawn = self.draw(rounds, &statistic);
        if drawn.is_empty() {
            return Some(Interval::unknown(value));
        }
        let shift = if correct { Shift::new(value, &drawn, rounds, &statistic) } else { Shift::default() };
        Some(Interval {
            low: at(&drawn, shift.share(level)).min(value),
            value,
            high: at(&drawn, shift.share(-level)).max(value),
        })
    }

    /// The normal quantile at which the lower limit is, expanded for few rounds; below two nothing is known.
    fn expanded_level(&self, rounds: usize) -> Option<f64> {
        let n = rounds as f64;
        let student = StudentsT::new(0.0, 1.0, n - 1.0).ok().filter(|_| rounds >= 2)?;
        let tail = (1.0 - self.confidence.clamp(0.0, 1.0)) / 2.0;
        Some((n / (n - 1.0)).sqrt() * student.inverse_cdf(tail))
    }

    /// The statistic of all resamples of which it has a value, in order of size.
    fn draw(&self, rounds: usize, statistic: impl Fn(&[u32]) -> Option<f64>) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(self.seed);
        let mut weights = vec![0u32; rounds];
        let mut drawn: Vec<f64> = (0..self.resamples)
            .filter_map(|_| {
                weights.fill(0);
                (0..rounds).for_each(|_| weights[random.random_range(0..rounds)] += 1);
                statistic(&weights)
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        drawn
    }
}

/// Where BCa takes its percentiles: bias z0 and acceleration a. Zero of both is the percentile interval.
#[derive(Default)]
struct Shift {
    bias: f64,
    acceleration: f64,
}

impl Shift {
    fn new(value: f64, drawn: &[f64], rounds: usize, statistic: impl Fn(&[u32]) -> Option<f64>) -> Shift {
        let below = drawn.partition_point(|x| *x < value);
        let equal = drawn.partition_point(|x| *x <= value) - below;
        let n = drawn.len() as f64;
        let share = ((below as f64 + equal as f64 / 2.0) / n).clamp(0.5 / n, 1.0 - 0.5 / n);
        Shift { bias: Normal::standard().inverse_cdf(share), acceleration: acceleration(rounds, statistic) }
    }

    /// The share of the resamples that is below the limit of normal quantile `level`.
    fn share(&self, level: f64) -> f64 {
        let shifted = self.bias + level;
        let stretched = 1.0 - self.acceleration * shifted;
        // Beyond the pole of a skew that is too strong for the correction, the outermost resample is taken.
        if stretched <= 0.0 {
            return if level < 0.0 { 0.0 } else { 1.0 };
        }
        Normal::standard().cdf(self.bias + shifted / stretched)
    }
}

fn acceleration(rounds: usize, statistic: impl Fn(&[u32]) -> Option<f64>) -> f64 {
    let mut weights = vec![1u32; rounds];
    let mut without = Vec::with_capacity(rounds);
    for round in 0..rounds {
        weights[round] = 0;
        without.extend(statistic(&weights));
        weights[round] = 1;
    }
    let mean = without.iter().sum::<f64>() / without.len() as f64;
    let power = |k| without.iter().map(|x| (mean - x).powi(k)).sum::<f64>();
    let scale = 6.0 * power(2).powf(1.5);
    if scale > 0.0 { power(3) / scale } else { 0.0 }
}

/// The value below which `share` of the sorted `drawn` are.
fn at(drawn: &[f64], share: f64) -> f64 {
    let last = drawn.len().saturating_sub(1);
    // Between -1 and the number of resamples, which is a u32.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let index = (share * (drawn.len() as f64 + 1.0) - 1.0).round().clamp(0.0, last as f64) as usize;
    drawn[index]
}

/// The middle of the values, each taken as often as its weight says; between the two in the middle, their mean.
fn weighted_median(values: &[f64], order: &[usize], weights: &[u32]) -> Option<f64> {
    let count: u32 = weights.iter().sum();
    let nth = |wanted: u32| {
        let mut before = 0;
        order.iter().find(|index| {
            before += weights[**index];
            before > wanted
        })
    };
    let (low, high) = (nth(count.checked_sub(1)? / 2)?, nth(count / 2)?);
    Some(f64::midpoint(values[*low], values[*high]))
}

#[cfg(test)]
mod tests;
