//! Which numbers are reported for each arm.

use serde::Serialize;
use std::borrow::Cow;

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Nanoseconds.
    Nanos,
    /// A mean number of things.
    Count,
    /// A share of one, such as of a CPU.
    Share,
    /// A rate per second.
    PerSecond,
}

/// How a figure is computed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureSource {
    Block,
    /// The mean of all samples.
    Mean,
    /// A quantile of all samples, from 0 to 1.
    Quantile(f64),
    /// The mean of the greatest samples: this share of all, from 0 to 1.
    Worst(f64),
}

/// A number that is reported for each arm.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub(crate) name: Cow<'static, str>,
    pub(crate) unit: Unit,
    pub(crate) source: FigureSource,
    pub(crate) within: Option<f64>,
}

impl Figure {
    fn new(name: impl Into<Cow<'static, str>>, unit: Unit, source: FigureSource) -> Figure {
        Figure { name: name.into(), unit, source, within: None }
    }

    /// A figure that each block computes under this name. Its value in a round is the mean over the round's blocks.
    pub fn of_block(name: impl Into<Cow<'static, str>>, unit: Unit) -> Figure {
        Figure::new(name, unit, FigureSource::Block)
    }

    /// A quantile of all samples, named `p50`, `p99.9` and so on.
    pub fn quantile(q: f64) -> Figure {
        // 0.999 × 100 is not exactly 99.9.
        let percent = (q * 1e9).round() / 1e7;
        Figure::new(format!("p{percent}"), Unit::Nanos, FigureSource::Quantile(q))
    }

    /// The mean of all samples, named `mean`.
    pub fn mean() -> Figure {
        Figure::new("mean", Unit::Nanos, FigureSource::Mean)
    }

    /// p50, p90, p99, p99.9, and the mean of the greatest 1 % of all samples, which describes the tail where there are
    /// too few samples for p99.9.
    pub fn latency() -> [Figure; 5] {
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(Figure::quantile);
        let worst = Figure::new("worst 1 %", Unit::Nanos, FigureSource::Worst(0.01));
        [p50, p90, p99, p999, worst]
    }

    /// The same figure under another name.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Figure {
        Figure { name: name.into(), ..self }
    }

    /// Requires a precision: rounds are added until the interval of its ratio to the baseline has at most
    /// this half width in every arm. 0.02 is ±2 %.
    #[must_use]
    pub fn within(self, half_width: f64) -> Figure {
        Figure { within: Some(half_width), ..self }
    }
}
