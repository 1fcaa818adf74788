//! One figure of one arm, with its interval.

use crate::figure::Unit;
use crate::interval::Interval;
use crate::schedule::Role;
use serde::Serialize;

/// One arm compared with the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Arm / baseline; for figures of blocks, the geometric mean over rounds. `None` where a value is not positive.
    pub ratio: Option<Interval>,
    /// For figures of blocks: the median of the rounds' ratios. If it is far from `ratio`, a few rounds cause the
    /// difference.
    pub median_ratio: Option<Interval>,
    /// Arm - baseline, in the unit of the figure.
    pub difference: Interval,
}

/// One figure of one arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResultRow {
    /// Name of the arm.
    pub arm: String,
    /// Role of the arm.
    pub role: Role,
    /// Name of the figure.
    pub figure: String,
    pub unit: Unit,
    /// The value; for figures of blocks, the mean over rounds. `None` where it is not known.
    pub value: Option<Interval>,
    /// Comparison with the baseline; `None` for the baseline itself and where either value is not known.
    pub comparison: Option<Comparison>,
    /// Rounds in which the figure is known.
    pub rounds: usize,
    /// For figures of samples: the number of samples.
    pub samples: Option<u64>,
    /// For quantiles: samples above it. For the worst 1 %: how many these are.
    pub beyond: Option<u64>,
}

impl ResultRow {
    /// The ratio to the baseline, where it is known.
    pub fn ratio(&self) -> Option<Interval> {
        self.comparison?.ratio
    }
}
