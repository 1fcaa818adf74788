//! Figures of each arm with their intervals, compared with the baseline.

use crate::bootstrap::{Bootstrap, Draw};
use crate::figure::{Figure, OfWeights};
use crate::interval::Interval;
use crate::measurements::{Block, Gating, Measurements, StopReason};
use crate::row::{Comparison, ResultRow};
use crate::warning::{self, Warning};
use serde::Serialize;
use std::collections::BTreeMap;

/// Resamples for the reported intervals. For eight rounds the expanded percentile of a 95 % interval is 0.2 %.
const RESAMPLES: u32 = 10_000;
/// Resamples while the campaign runs, to decide whether more rounds are needed.
const RESAMPLES_BETWEEN: u32 = 1_000;

/// The figures of all arms, with intervals and warnings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Results {
    /// Name of the campaign.
    pub experiment: String,
    /// In order of the figures, and for each figure in order of the arms.
    pub rows: Vec<ResultRow>,
    /// How often an interval covers the true value.
    pub confidence: f64,
    pub rounds: u32,
    /// Blocks repeated for foreign load.
    pub gating: Gating,
    /// Why the campaign ended.
    pub ended: StopReason,
    /// How long it took \[s\].
    pub elapsed_s: f64,
    /// What limits the results.
    pub warnings: Vec<Warning>,
}

impl Results {
    /// The row of an arm and a figure.
    pub fn row(&self, arm: &str, figure: &str) -> Option<&ResultRow> {
        self.rows.iter().find(|row| row.arm == arm && row.figure == figure)
    }
}

impl Measurements {
    /// The figures of all arms with their intervals and warnings.
    pub fn results(&self) -> Results {
        let analysis = Analysis::new(self, RESAMPLES, |_| true);
        let (rows, differing) = (analysis.rows(), analysis.differing());
        Results {
            experiment: self.name.clone(),
            warnings: warning::of(&rows, self, &differing),
            rows,
            confidence: self.options.confidence,
            rounds: self.rounds,
            gating: self.gating.clone(),
            ended: self.ended,
            elapsed_s: self.elapsed.as_secs_f64(),
        }
    }

    /// The ratio of one arm's figure to another's, of which neither need be the baseline.
    pub fn ratio(&self, arm: &str, against: &str, figure: &str) -> Option<Interval> {
        let place = |name: &str| self.arms.iter().position(|arm| arm.name == name);
        let figure = self.figures.iter().find(|of| of.name == figure)?;
        let analysis = Analysis {
            against: place(against)?,
            ..Analysis::new(self, RESAMPLES, |of| of.name == figure.name)
        };
        analysis.ratio(figure, place(arm)?)
    }

    /// Of the figures with a required precision, the one farthest from it: its index, the half width of its
    /// interval, and the half width required.
    pub(super) fn widest(&self) -> Option<(usize, f64, f64)> {
        let analysis = Analysis::new(self, RESAMPLES_BETWEEN, |figure| figure.within.is_some());
        let wanted = self
            .figures
            .iter()
            .enumerate()
            .filter_map(|(number, figure)| Some((number, figure, figure.within?)));
        wanted
            .flat_map(|(number, figure, within)| {
                let ratios = (1..self.arms.len()).map(|arm| analysis.ratio(figure, arm));
                let half_width =
                    |ratio: Option<Interval>| ratio.map_or(f64::INFINITY, |ratio| ratio.ratio_half_width());
                ratios.map(move |ratio| (number, half_width(ratio), within)).collect::<Vec<_>>()
            })
            .max_by(|a, b| (a.1 / a.2).total_cmp(&(b.1 / b.2)))
    }
}

/// The blocks by arm and round.
struct Analysis<'a> {
    measurements: &'a Measurements,
    bootstrap: Bootstrap,
    rounds: Vec<Vec<Vec<&'a Block>>>,
    /// By figure of samples and by arm.
    of_samples: BTreeMap<&'a str, Vec<OfWeights>>,
    /// The arm with which the others are compared: the baseline.
    against: usize,
}

impl<'a> Analysis<'a> {
    /// For the figures that are `wanted`.
    fn new(measurements: &'a Measurements, resamples: u32, wanted: impl Fn(&Figure) -> bool) -> Analysis<'a> {
        let rounds: Vec<Vec<Vec<&Block>>> =
            (0..measurements.arms.len()).map(|arm| measurements.rounds_of(arm)).collect();
        let samples =
            |blocks: &Vec<&Block>| blocks.iter().flat_map(|block| &block.samples_ns).copied().collect();
        let of_figure = |figure: &'a Figure| {
            let of = figure.of_samples.as_ref().filter(|_| wanted(figure))?;
            let of_arms = rounds.iter().map(|rounds| of.over(rounds.iter().map(samples).collect()));
            Some((&*figure.name, of_arms.collect()))
        };
        let of_samples = measurements.figures.iter().filter_map(of_figure).collect();
        let (confidence, seed) = (measurements.options.confidence, measurements.options.seed);
        Analysis {
            measurements,
            bootstrap: Bootstrap { confidence, resamples, seed },
            rounds,
            of_samples,
            against: 0,
        }
    }

    fn rows(&self) -> Vec<ResultRow> {
        let figures = self.measurements.figures.iter();
        figures
            .flat_map(|figure| (0..self.measurements.arms.len()).map(move |arm| self.row(figure, arm)))
            .collect()
    }

    fn row(&self, figure: &Figure, arm: usize) -> ResultRow {
        let values = self.values(figure, arm);
        let value = if figure.of_samples.is_none() {
            let known: Vec<f64> = values.iter().flatten().copied().collect();
            self.bootstrap.mean(&known)
        } else {
            self.bootstrap.percentile(self.rounds[arm].len(), |draw| self.sampled(figure, arm, draw))
        };
        let full = |round: &&Vec<&Block>| round.iter().any(|block| !block.samples_ns.is_empty());
        let blocks = self.rounds[arm].iter().flatten();
        let samples = blocks.map(|block| block.samples_ns.len() as u64).sum();
        ResultRow {
            arm: self.measurements.arms[arm].name.clone(),
            role: self.measurements.arms[arm].role,
            figure: figure.name.to_string(),
            unit: figure.unit,
            value,
            comparison: if arm == 0 { None } else { self.compare(figure, arm) },
            rounds: if figure.of_samples.is_none() {
                values.iter().flatten().count()
            } else {
                self.rounds[arm].iter().filter(full).count()
            },
            samples: figure.of_samples.as_ref().map(|_| samples),
            beyond: figure.of_samples.as_ref().and_then(|of| of.beyond(samples)),
        }
    }

    /// A figure of blocks by round: the mean over the blocks, where all have it.
    fn values(&self, figure: &Figure, arm: usize) -> Vec<Option<f64>> {
        let of_block =
            |block: &&Block| block.figures.get(&figure.name).copied().filter(|value| value.is_finite());
        self.rounds[arm]
            .iter()
            .map(|blocks| {
                let values: Option<Vec<f64>> = blocks.iter().map(of_block).collect();
                values.filter(|values| !values.is_empty()).map(|v| v.iter().sum::<f64>() / v.len() as f64)
            })
            .collect()
    }

    fn compare(&self, figure: &Figure, arm: usize) -> Option<Comparison> {
        let ratio = self.ratio(figure, arm);
        let (difference, median_ratio) = if figure.of_samples.is_none() {
            let difference: Vec<f64> = self.pairs(figure, arm).iter().map(|(b, a)| a - b).collect();
            let median = self.bootstrap.median(&self.log_ratios(figure, arm));
            (self.bootstrap.paired(&difference)?, median.map(|log| log.map(f64::exp)))
        } else {
            let difference = |draw: &Draw| self.both(figure, arm, draw).map(|(b, a)| a - b);
            (self.bootstrap.percentile(self.rounds[arm].len(), difference)?, None)
        };
        Some(Comparison { ratio, median_ratio, difference })
    }

    /// The figures in which the control differs from the baseline, where any of all does so by chance no more often than
    /// one alone misses its interval. None with too few rounds for intervals, which has its own warning.
    fn differing(&self) -> Vec<&'a str> {
        let Measurements { figures, rounds, options, arms, .. } = self.measurements;
        if (*rounds as usize) < crate::MIN_ROUNDS {
            return vec![];
        }
        // No interval of so few rounds is stricter than that.
        let strictest = 2.001 / f64::from(*rounds).exp2();
        let miss = ((1.0 - options.confidence) / figures.len().max(1) as f64).max(strictest);
        let strict = Bootstrap { confidence: 1.0 - miss, ..self.bootstrap };
        let ratio = |figure: &Figure| self.ratio_by(&strict, figure, arms.len() - 1);
        let differs = |figure: &&Figure| ratio(figure).is_some_and(|ratio| !ratio.contains(1.0));
        figures.iter().filter(differs).map(|figure| &*figure.name).collect()
    }

    fn ratio(&self, figure: &Figure, arm: usize) -> Option<Interval> {
        self.ratio_by(&self.bootstrap, figure, arm)
    }

    fn ratio_by(&self, bootstrap: &Bootstrap, figure: &Figure, arm: usize) -> Option<Interval> {
        let log = if figure.of_samples.is_none() {
            bootstrap.paired(&self.log_ratios(figure, arm))
        } else {
            bootstrap.percentile(self.rounds[arm].len(), |draw| {
                let (b, a) = self.both(figure, arm, draw).filter(|(b, a)| *b > 0.0 && *a > 0.0)?;
                Some((a / b).ln())
            })
        };
        log.map(|log| log.map(f64::exp))
    }

    /// A figure of blocks, for what is compared with and the arm, in the rounds that have both.
    fn pairs(&self, figure: &Figure, arm: usize) -> Vec<(f64, f64)> {
        let (baseline, values) = (self.values(figure, self.against), self.values(figure, arm));
        baseline.into_iter().zip(values).filter_map(|(baseline, value)| Some((baseline?, value?))).collect()
    }

    /// Empty unless all values are positive.
    fn log_ratios(&self, figure: &Figure, arm: usize) -> Vec<f64> {
        let pairs = self.pairs(figure, arm);
        let positive = pairs.iter().all(|(b, a)| *b > 0.0 && *a > 0.0);
        pairs.iter().filter(|_| positive).map(|(b, a)| (a / b).ln()).collect()
    }

    /// A figure of samples in a resample of the rounds.
    fn sampled(&self, figure: &Figure, arm: usize, draw: &Draw) -> Option<f64> {
        self.of_samples.get(&*figure.name)?[arm](&draw.weights)
    }

    /// The same for what is compared with and for the arm.
    fn both(&self, figure: &Figure, arm: usize, draw: &Draw) -> Option<(f64, f64)> {
        Some((self.sampled(figure, self.against, draw)?, self.sampled(figure, arm, draw)?))
    }
}

#[cfg(test)]
mod tests;
