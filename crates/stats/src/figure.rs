//! Which numbers are reported for each arm.

use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Debug;
use std::sync::Arc;

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

/// A number by how often each round counts.
pub type OfWeights = Box<dyn Fn(&[u32]) -> Option<f64>>;

/// A number of all samples of an arm together, such as a quantile. `dwell-lab` has some.
pub trait OfSamples: Debug + Send + Sync {
    /// The number of the samples of each round, by how often a round counts. `None` where no sample counts.
    fn over(&self, rounds: Vec<Vec<u64>>) -> OfWeights;

    /// Of so many samples those that it rests on, if that may be too few.
    fn beyond(&self, samples: u64) -> Option<u64>;
}

/// A number that is reported for each arm.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub(crate) name: Cow<'static, str>,
    pub(crate) unit: Unit,
    /// Computed by each block, if it is not of all samples.
    #[serde(skip)]
    pub(crate) of_samples: Option<Arc<dyn OfSamples>>,
    pub(crate) within: Option<f64>,
}

impl Figure {
    /// A figure that each block computes under this name. Its value in a round is the mean over the round's blocks.
    pub fn of_block(name: impl Into<Cow<'static, str>>, unit: Unit) -> Figure {
        Figure { name: name.into(), unit, of_samples: None, within: None }
    }

    /// A figure of all samples.
    pub fn of_samples(name: impl Into<Cow<'static, str>>, of_samples: impl OfSamples + 'static) -> Figure {
        Figure { of_samples: Some(Arc::new(of_samples)), ..Figure::of_block(name, Unit::Nanos) }
    }

    /// Requires a precision: rounds are added until the interval of its ratio to the baseline has at most
    /// this half width in every arm. 0.02 is ±2 %.
    #[must_use]
    pub fn within(self, half_width: f64) -> Figure {
        Figure { within: Some(half_width), ..self }
    }
}
