//! Bootstrap intervals: how far an estimate could be off, from the measurements alone.
//!
//! # Method
//! The data are cut into *units*: rounds of a campaign, or blocks of a recording. A *resample* draws as many units as
//! there are, with replacement; the statistic of all resamples shows how far the estimate spreads (Efron and
//! Tibshirani, *An Introduction to the Bootstrap*, 1993, chapters 13 and 14). The interval is between two
//! percentiles of the resamples.
//!
//! * [`blocks`](Bootstrap::blocks) and [`two_samples`](Bootstrap::two_samples) take plain percentiles, for
//!   some dozens of units.
//! * [`percentile`](Bootstrap::percentile), [`bca`](Bootstrap::bca), [`mean`](Bootstrap::mean) and
//!   [`median`](Bootstrap::median) are for few units. Plain percentiles of few units are too narrow: for a
//!   mean they lack the factor √(n/(n-1)) and the longer tails of Student's distribution. Therefore the
//!   percentiles are taken further out, at Φ(√(n/(n-1))·t), as Hesterberg proposes (*What Teachers Should
//!   Know About the Bootstrap*, 2015, section 4.3: the expanded percentile interval). Below [`MIN_ROUNDS`] no
//!   percentile is far enough out, because no resample leaves the range of the units. BCa also corrects for
//!   bias and skew.
//! * [`paired`](Bootstrap::paired) is for differences of two arms that were measured alike. Where the arms do the same,
//!   each difference is as likely above 0 as below it, however far the rounds are apart. The means of all subsets of the
//!   differences are then equally likely on either side of the true value (Hartigan, *Using Subsample Values as Typical
//!   Values*, 1969): the interval is between two of them, and is exact for any number of rounds from [`MIN_ROUNDS`]
//!   on. One round with a burst of load, or a tenfold cost, makes intervals of resamples too narrow: of differences
//!   without an effect they excluded 0 in up to 18 of 100 cases.
//!
//! A seed fixes all draws, so that the same measurements always give the same interval.

use crate::interval::Interval;
use crate::random::SplitMix64;
use crate::whole::place;
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// The fewest rounds from which an interval can be computed that covers the true value as often as its confidence.
pub const MIN_ROUNDS: usize = 6;

/// Blocks that a recording, or a part of it, is cut into for [`Bootstrap::RECORDING`].
pub const BLOCKS: usize = 32;

/// How intervals are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bootstrap {
    /// How often the interval covers the true value, such as 0.95.
    pub confidence: f64,
    /// How many resamples are drawn.
    pub resamples: u32,
    /// The same seed gives the same interval.
    pub seed: u64,
}

/// Units of one resample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// The units drawn, by number, in the order in which they were drawn.
    pub picks: Vec<usize>,
    /// For each unit, how often it was drawn.
    pub weights: Vec<u32>,
}

impl Draw {
    /// All units, each once.
    fn once(units: usize) -> Draw {
        Draw { picks: (0..units).collect(), weights: vec![1; units] }
    }

    fn again(&mut self, random: &mut SplitMix64) {
        self.weights.fill(0);
        let units = self.picks.len() as u64;
        for pick in &mut self.picks {
            *pick = usize::try_from(random.below(units)).unwrap_or(0);
            self.weights[*pick] += 1;
        }
    }

    fn without(&mut self, unit: usize) {
        self.picks.clear();
        self.picks.extend((0..self.weights.len()).filter(|other| *other != unit));
        self.weights.fill(1);
        self.weights[unit] = 0;
    }
}

impl Bootstrap {
    /// For recordings that are cut into [`BLOCKS`] blocks: 95 %, 2,000 resamples, a fixed seed.
    pub const RECORDING: Bootstrap = Bootstrap { confidence: 0.95, resamples: 2_000, seed: 0x6477_656c_6c21 };

    /// The interval of a statistic of `units` units between plain percentiles. The units are stretches of time in their
    /// order: where neighbours are alike it is wider. `None` where the statistic of all units is `None`.
    pub fn blocks(&self, units: usize, statistic: impl Fn(&Draw) -> Option<f64>) -> Option<Interval> {
        self.plain([units], |[draw]| statistic(draw))
    }

    /// The same of a statistic of two independent samples.
    pub fn two_samples(
        &self,
        units: [usize; 2],
        statistic: impl Fn(&Draw, &Draw) -> Option<f64>,
    ) -> Option<Interval> {
        self.plain(units, |[a, b]| statistic(a, b))
    }

    fn plain<const SAMPLES: usize>(
        &self,
        units: [usize; SAMPLES],
        statistic: impl Fn(&[Draw; SAMPLES]) -> Option<f64>,
    ) -> Option<Interval> {
        let value = statistic(&units.map(Draw::once))?;
        let drawn = self.resample(units, &statistic);
        let wider = widening(units, &statistic);
        // A whole number of resamples, at most all of them.
        let tail = place(drawn.len() as f64 * self.tail());
        let limit = |place: usize| drawn.get(place).map_or(value, |drawn| value + wider * (drawn - value));
        Some(Interval { low: limit(tail), value, high: limit(drawn.len().saturating_sub(1 + tail)) })
    }

    /// The mean of one value per unit, with its BCa interval.
    pub fn mean(&self, values: &[f64]) -> Option<Interval> {
        self.bca(values.len(), |draw| {
            let weighted = draw.weights.iter().zip(values);
            let sum: f64 = weighted.map(|(weight, value)| f64::from(*weight) * value).sum();
            let count: f64 = draw.weights.iter().copied().map(f64::from).sum();
            (count > 0.0).then(|| sum / count)
        })
    }

    /// The mean of one difference per unit, each symmetric about the true one, with an interval of the means of subsets. Of
    /// fewer than [`MIN_ROUNDS`] units the limits of 95 % are not known.
    pub fn paired(&self, differences: &[f64]) -> Option<Interval> {
        let value = mean(differences.iter().copied())?;
        // All subsets, where these are not more than the resamples; else as many, at random.
        let subsets = 1u64.checked_shl(differences.len().try_into().ok()?).map(|all| all - 1);
        let every = subsets.filter(|subsets| *subsets <= u64::from(self.resamples));
        let mut random = SplitMix64::new(self.seed);
        let subset = |number: u64| {
            let has = |unit: &usize| match every {
                Some(_) => number >> unit & 1 == 1,
                None => random.bits() >> 63 == 1,
            };
            let picked: Vec<usize> = (0..differences.len()).filter(has).collect();
            mean(picked.into_iter().map(|unit| differences[unit]))
        };
        let mut means: Vec<f64> = (1..=every.unwrap_or(self.resamples.into())).filter_map(subset).collect();
        means.sort_by(f64::total_cmp);
        // The true value is in each of the gaps between the means, and beyond them, with the same probability. A whole
        // number of gaps, at most all of them.
        let beyond = place((means.len() as f64 + 1.0) * self.tail());
        let limits = beyond.checked_sub(1).map(|place| [means[place], means[means.len() - 1 - place]]);
        let known = |[low, high]: [f64; 2]| Interval { low: low.min(value), value, high: high.max(value) };
        Some(limits.map_or(Interval::unknown(value), known))
    }

    /// The median of one value per unit, with its expanded percentile interval.
    pub fn median(&self, values: &[f64]) -> Option<Interval> {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        self.percentile(values.len(), |draw| weighted_median(values, &order, &draw.weights))
    }

    /// The expanded percentile interval of a statistic of `units` units. `None` where the statistic of all units is
    /// `None`.
    pub fn percentile(&self, units: usize, statistic: impl Fn(&Draw) -> Option<f64>) -> Option<Interval> {
        self.expanded(units, statistic, false)
    }

    /// As [`percentile`](Bootstrap::percentile), bias-corrected and accelerated. The acceleration is computed
    /// by leaving out each unit once, which suits smooth statistics such as means, not quantiles.
    pub fn bca(&self, units: usize, statistic: impl Fn(&Draw) -> Option<f64>) -> Option<Interval> {
        self.expanded(units, statistic, true)
    }

    fn expanded(
        &self,
        units: usize,
        statistic: impl Fn(&Draw) -> Option<f64>,
        correct: bool,
    ) -> Option<Interval> {
        let value = statistic(&Draw::once(units))?;
        let Some(level) = self.expanded_level(units) else { return Some(Interval::unknown(value)) };
        let drawn = self.resample([units], |[draw]| statistic(draw));
        if drawn.is_empty() {
            return Some(Interval::unknown(value));
        }
        let shift = if correct { Shift::new(value, &drawn, units, &statistic) } else { Shift::default() };
        Some(Interval {
            low: at(&drawn, shift.share(level)).min(value),
            value,
            high: at(&drawn, shift.share(-level)).max(value),
        })
    }

    /// The share of resamples beyond either limit.
    fn tail(&self) -> f64 {
        (1.0 - self.confidence.clamp(0.0, 1.0)) / 2.0
    }

    /// The normal quantile of the lower limit, expanded for few units. `None` below two units.
    fn expanded_level(&self, units: usize) -> Option<f64> {
        let n = units as f64;
        let student = StudentsT::new(0.0, 1.0, n - 1.0).ok().filter(|_| units >= 2)?;
        Some((n / (n - 1.0)).sqrt() * student.inverse_cdf(self.tail()))
    }

    /// The statistic of all resamples for which it is not `None`, in ascending order. One generator draws all
    /// samples of a resample, one after the other.
    fn resample<const SAMPLES: usize>(
        &self,
        units: [usize; SAMPLES],
        statistic: impl Fn(&[Draw; SAMPLES]) -> Option<f64>,
    ) -> Vec<f64> {
        let mut random = SplitMix64::new(self.seed);
        let mut draws = units.map(Draw::once);
        let mut drawn: Vec<f64> = (0..self.resamples)
            .filter_map(|_| {
                draws.iter_mut().for_each(|draw| draw.again(&mut random));
                statistic(&draws)
            })
            .collect();
        drawn.sort_by(f64::total_cmp);
        drawn
    }
}

/// How BCa moves the percentiles: bias z0 and acceleration a. Zero of both is the percentile interval.
#[derive(Default)]
struct Shift {
    bias: f64,
    acceleration: f64,
}

impl Shift {
    fn new(value: f64, drawn: &[f64], units: usize, statistic: impl Fn(&Draw) -> Option<f64>) -> Shift {
        let below = drawn.partition_point(|x| *x < value);
        let equal = drawn.partition_point(|x| *x <= value) - below;
        let n = drawn.len() as f64;
        let share = ((below as f64 + equal as f64 / 2.0) / n).clamp(0.5 / n, 1.0 - 0.5 / n);
        Shift { bias: Normal::standard().inverse_cdf(share), acceleration: acceleration(units, statistic) }
    }

    /// The share of the resamples below the limit at normal quantile `level`.
    fn share(&self, level: f64) -> f64 {
        let shifted = self.bias + level;
        let stretched = 1.0 - self.acceleration * shifted;
        // Beyond the pole, the skew is too strong for the correction: take the outermost resample.
        if stretched <= 0.0 {
            return if level < 0.0 { 0.0 } else { 1.0 };
        }
        Normal::standard().cdf(self.bias + shifted / stretched)
    }
}

fn acceleration(units: usize, statistic: impl Fn(&Draw) -> Option<f64>) -> f64 {
    let without = without_each([units], 0, |[draw]| statistic(draw));
    let mean = without.iter().sum::<f64>() / without.len() as f64;
    let power = |k| without.iter().map(|x| (mean - x).powi(k)).sum::<f64>();
    let scale = 6.0 * power(2).powf(1.5);
    if scale > 0.0 { power(3) / scale } else { 0.0 }
}

/// The statistic without each unit of a sample in turn, where it has a value.
fn without_each<const SAMPLES: usize>(
    units: [usize; SAMPLES],
    sample: usize,
    statistic: impl Fn(&[Draw; SAMPLES]) -> Option<f64>,
) -> Vec<f64> {
    let mut draws = units.map(Draw::once);
    let without = |unit: usize| {
        draws[sample].without(unit);
        statistic(&draws)
    };
    (0..units[sample]).filter_map(without).collect()
}

/// The largest correlation of neighbours that is allowed for: [`BLOCKS`] blocks do not show a larger one.
const MOST_ALIKE: f64 = 0.9;

/// By how much an interval of resamples, which takes units for independent, is too narrow where neighbours are alike. A sum of
/// values of which each has a correlation of r with the next, as in an autoregression, varies (1 + r) / (1 - r) times as much as
/// one of independent values. The values are what the statistic is without each unit. Of n values the correlation found is
/// on average (1 + 3r) / n too low (Kendall, *Note on Bias in the Estimation of Autocorrelation*, 1954).
fn widening<const SAMPLES: usize>(
    units: [usize; SAMPLES],
    statistic: impl Fn(&[Draw; SAMPLES]) -> Option<f64>,
) -> f64 {
    let (mut independent, mut alike) = (0.0, 0.0);
    for sample in 0..SAMPLES {
        let values = without_each(units, sample, &statistic);
        if values.len() < MIN_ROUNDS {
            continue;
        }
        let (count, centre) = (values.len() as f64, mean(values.iter().copied()).unwrap_or(0.0));
        let lagged: f64 = values.windows(2).map(|pair| (pair[0] - centre) * (pair[1] - centre)).sum();
        let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
        if squares > 0.0 {
            let found = (count * lagged / squares + 1.0) / (count - 3.0);
            let next = found.clamp(0.0, MOST_ALIKE);
            independent += squares;
            alike += squares * (1.0 + next) / (1.0 - next);
        }
    }
    if independent > 0.0 { f64::sqrt(alike / independent) } else { 1.0 }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// The value below which `share` of the sorted `drawn` are.
fn at(drawn: &[f64], share: f64) -> f64 {
    let last = drawn.len().saturating_sub(1);
    // Between -1 and the number of resamples, which is a u32.
    drawn[place((share * (drawn.len() as f64 + 1.0) - 1.0).round().clamp(0.0, last as f64))]
}

/// The median of the values, each counted as often as its weight; of an even number, the mean of the two in the middle.
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
