//! From blocks to figures with intervals, each arm beside the baseline.

use super::interval::{Bootstrap, Interval};
use super::pool::Pool;
use super::record::{Block, Ended, Gating, Record};
use super::schedule::Role;
use super::warning::{self, Warning};
use serde::Serialize;
use std::borrow::Cow;

/// Resamples behind the intervals that are reported. Expanded percentiles of 95 % lie at 0.2 % for eight rounds.
const RESAMPLES: u32 = 10_000;
/// Resamples while rounds are still added, only to see whether more are needed.
const RESAMPLES_BETWEEN: u32 = 1_000;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Nanos,
    /// A number of things, on average.
    Count,
    /// A share of one, such as of a CPU.
    Share,
    /// Things per second.
    PerSecond,
}

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Each block tells it.
    Block,
    /// The mean of all samples.
    Mean,
    /// A quantile of all samples, from 0 to 1.
    Quantile(f64),
    /// The mean of the greatest of all samples, as a share from 0 to 1.
    Worst(f64),
}

/// A number that is reported of each arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    name: Cow<'static, str>,
    unit: Unit,
    source: Source,
    within: Option<f64>,
}

impl Figure {
    /// One that each block tells under this name. Its value in a round is the mean of the round's blocks.
    pub fn of_block(name: impl Into<Cow<'static, str>>, unit: Unit) -> Figure {
        Figure { name: name.into(), unit, source: Source::Block, within: None }
    }

    /// A quantile of all samples, called `p50`, `p99.9` and so on.
    pub fn quantile(q: f64) -> Figure {
        // 99.9 is not what 0.999 × 100 comes to.
        let percent = (q * 1e9).round() / 1e7;
        Figure {
            name: format!("p{percent}").into(),
            unit: Unit::Nanos,
            source: Source::Quantile(q),
            within: None,
        }
    }

    /// The mean of all samples, called `mean`.
    pub fn mean() -> Figure {
        Figure { name: "mean".into(), unit: Unit::Nanos, source: Source::Mean, within: None }
    }

    /// The mean of the slowest 1 % of all samples, called `worst 1 %`: it tells of the tail where p99.9 would be a
    /// maximum in disguise.
    pub fn worst_percent() -> Figure {
        Figure { name: "worst 1 %".into(), unit: Unit::Nanos, source: Source::Worst(0.01), within: None }
    }

    /// p50, p90, p99, p99.9 and the worst 1 %.
    pub fn latency() -> [Figure; 5] {
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(Figure::quantile);
        [p50, p90, p99, p999, Figure::worst_percent()]
    }

    /// Under another name.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Figure {
        Figure { name: name.into(), ..self }
    }

    /// Rounds are added until its ratio to the baseline is known to so little on either side, in every arm: 0.02 is ±2 %.
    #[must_use]
    pub fn within(self, half_width: f64) -> Figure {
        Figure { within: Some(half_width), ..self }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// To how little on either side it shall be known, by [`within`](Figure::within).
    pub fn wanted(&self) -> Option<f64> {
        self.within
    }

    /// Its unit.
    pub fn unit(&self) -> Unit {
        self.unit
    }
}

/// One arm beside the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The arm by the baseline; of figures that blocks tell, the geometric mean over rounds. `None` where a value is not
    /// positive.
    pub ratio: Option<Interval>,
    /// Of figures that blocks tell: the median of the rounds' ratios. If it is far from `ratio`, a few rounds make the
    /// difference.
    pub median_ratio: Option<Interval>,
    /// The arm less the baseline, in the figure's unit.
    pub difference: Interval,
}

/// One figure of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The arm.
    pub arm: String,
    /// What it is for.
    pub role: Role,
    /// The figure.
    pub figure: String,
    /// Its unit.
    pub unit: Unit,
    /// Its value; of figures that blocks tell, the mean over rounds. `None` where there is none.
    pub value: Option<Interval>,
    /// Beside the baseline; `None` for the baseline itself and where either has no value.
    pub comparison: Option<Comparison>,
    /// Rounds behind it.
    pub rounds: usize,
    /// Of figures of samples: how many there are.
    pub samples: Option<u64>,
    /// Of quantiles: how many samples lie beyond it. Of the worst: how many these are.
    pub beyond: Option<u64>,
}

impl Row {
    /// The ratio to the baseline, where there is one.
    pub fn ratio(&self) -> Option<Interval> {
        self.comparison?.ratio
    }
}

/// The figures of all arms.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// The experiment.
    pub experiment: String,
    /// Figure by figure, in each of them arm by arm.
    pub rows: Vec<Row>,
    /// How often an interval holds the truth.
    pub confidence: f64,
    /// Complete rounds.
    pub rounds: u32,
    /// How well blocks could be kept undisturbed.
    pub gating: Gating,
    /// Why no more was measured.
    pub ended: Ended,
    /// How long it took \[s\].
    pub elapsed_s: f64,
    /// What a reader has to know before believing any of it.
    pub warnings: Vec<Warning>,
}

impl Findings {
    pub(super) fn new(record: &Record) -> Findings {
        let rows = Analysis::new(record, RESAMPLES).rows();
        let mut findings = Findings {
            experiment: record.name.clone(),
            rows,
            confidence: record.plan.confidence,
            rounds: record.rounds,
            gating: record.gating.clone(),
            ended: record.ended,
            elapsed_s: record.elapsed.as_secs_f64(),
            warnings: Vec::new(),
        };
        findings.warnings = warning::of(&findings, record);
        findings
    }

    /// The row of an arm and a figure.
    pub fn row(&self, arm: &str, figure: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.arm == arm && row.figure == figure)
    }
}

impl Record {
    /// Of the figures that shall be known precisely, the one that is farthest from it: its number, how far its interval
    /// reaches, and how far it shall.
    pub(super) fn widest(&self) -> Option<(usize, f64, f64)> {
        let analysis = Analysis::new(self, RESAMPLES_BETWEEN);
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

/// The blocks of a record, laid out by arm and round.
struct Analysis<'a> {
    record: &'a Record,
    bootstrap: Bootstrap,
    rounds: Vec<Vec<Vec<&'a Block>>>,
    pools: Vec<Pool>,
}

impl<'a> Analysis<'a> {
    fn new(record: &'a Record, resamples: u32) -> Analysis<'a> {
        let rounds: Vec<Vec<Vec<&Block>>> = (0..record.arms.len()).map(|arm| record.rounds_of(arm)).collect();
        let samples = |blocks: &Vec<&'a Block>| {
            blocks.clone().into_iter().flat_map(|block| block.samples_ns.iter().copied())
        };
        let pools = rounds.iter().map(|rounds| Pool::new(rounds.iter().map(samples))).collect();
        let (confidence, seed) = (record.plan.confidence, record.plan.seed);
        Analysis { record, bootstrap: Bootstrap { confidence, resamples, seed }, rounds, pools }
    }

    fn rows(&self) -> Vec<Row> {
        let figures = self.record.figures.iter();
        figures.flat_map(|figure| (0..self.record.arms.len()).map(move |arm| self.row(figure, arm))).collect()
    }

    fn row(&self, figure: &Figure, arm: usize) -> Row {
        let pool = &self.pools[arm];
        let values = self.values(figure, arm);
        let of_block = figure.source == Source::Block;
        let value = if of_block {
            let known: Vec<f64> = values.iter().flatten().copied().collect();
            self.bootstrap.mean(&known)
        } else {
            self.bootstrap.percentile(self.rounds[arm].len(), |weights| sampled(figure.source, pool, weights))
        };
        let full = |round: &&Vec<&Block>| round.iter().any(|block| !block.samples_ns.is_empty());
        Row {
            arm: self.record.arms[arm].name.clone(),
            role: self.record.arms[arm].role,
            figure: figure.name.to_string(),
            unit: figure.unit,
            value,
            comparison: if arm == 0 { None } else { self.compare(figure, arm) },
            rounds: if of_block {
                values.iter().flatten().count()
            } else {
                self.rounds[arm].iter().filter(full).count()
            },
            samples: (!of_block).then_some(pool.len() as u64),
            beyond: match figure.source {
                Source::Block | Source::Mean => None,
                Source::Quantile(q) => Some(pool.beyond(q)),
                Source::Worst(share) => Some(pool.beyond(1.0 - share)),
            },
        }
    }

    /// A figure that blocks tell, by round: the mean of the blocks, where all know it.
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
        let (difference, median_ratio) = match figure.source {
            Source::Block => {
                let difference: Vec<f64> = self.pairs(figure, arm).iter().map(|(b, a)| a - b).collect();
                let median = self.bootstrap.median(&self.log_ratios(figure, arm));
                (self.bootstrap.mean(&difference)?, median.map(|log| log.map(f64::exp)))
            }
            source => {
                let difference = |weights: &[u32]| self.both(source, arm, weights).map(|(b, a)| a - b);
                (self.bootstrap.percentile(self.rounds[arm].len(), difference)?, None)
            }
        };
        Some(Comparison { ratio, median_ratio, difference })
    }

    fn ratio(&self, figure: &Figure, arm: usize) -> Option<Interval> {
        let log = match figure.source {
            Source::Block => self.bootstrap.mean(&self.log_ratios(figure, arm)),
            source => self.bootstrap.percentile(self.rounds[arm].len(), |weights| {
                self.both(source, arm, weights)
                    .filter(|(b, a)| *b > 0.0 && *a > 0.0)
                    .map(|(b, a)| (a / b).ln())
            }),
        };
        log.map(|log| log.map(f64::exp))
    }

    /// A figure that blocks tell, of the baseline and the arm, in the rounds that have both.
    fn pairs(&self, figure: &Figure, arm: usize) -> Vec<(f64, f64)> {
        let (baseline, values) = (self.values(figure, 0), self.values(figure, arm));
        baseline.into_iter().zip(values).filter_map(|(baseline, value)| Some((baseline?, value?))).collect()
    }

    /// Empty unless all values are positive.
    fn log_ratios(&self, figure: &Figure, arm: usize) -> Vec<f64> {
        let pairs = self.pairs(figure, arm);
        let positive = pairs.iter().all(|(b, a)| *b > 0.0 && *a > 0.0);
        pairs.iter().filter(|_| positive).map(|(b, a)| (a / b).ln()).collect()
    }

    /// A figure of samples, of the baseline and the arm, for any weights of the rounds.
    fn both(&self, source: Source, arm: usize, weights: &[u32]) -> Option<(f64, f64)> {
        Some((sampled(source, &self.pools[0], weights)?, sampled(source, &self.pools[arm], weights)?))
    }
}

fn sampled(source: Source, pool: &Pool, weights: &[u32]) -> Option<f64> {
    match source {
        Source::Block => None,
        Source::Mean => pool.mean(weights),
        Source::Quantile(q) => pool.quantile(weights, q).map(|ns| ns as f64),
        Source::Worst(share) => pool.worst(weights, share),
    }
}

#[cfg(test)]
mod tests;
