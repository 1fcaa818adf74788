//! What a search is for.

use crate::check::CheckArgs;
use crate::quantity;
use dwell_replay::advice::{Goal, Worth};

/// The goal of the search; without any, the least cost.
#[derive(Debug, clap::Args)]
pub(crate) struct GoalArgs {
    /// Goal: fewest halts with at most this much polling CPU, such as 2%
    ///
    /// A share of one CPU, from 0 to 1 (100%). 0 allows no polling at all.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, conflicts_with = "max_halts_per_s")]
    max_cpu: Option<f64>,
    /// Goal: least polling CPU with at most this many halts per second
    ///
    /// From 0; 0 allows no halt at all.
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    max_halts_per_s: Option<f64>,
    /// Smallest gain that is worth a change, as a share of one CPU, such as 0.5% or 0.005
    ///
    /// From 0 to 1 (100%), for all idlers together. A smaller gain is not recommended, however certain it is, nor is
    /// a gain below 1 % of what the present setting costs. With 0, only the second limit applies.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, default_value = "0.5%")]
    min_gain: f64,
    #[command(flatten)]
    pub(super) check: CheckArgs,
}

impl GoalArgs {
    pub(crate) fn goal(&self) -> Goal {
        match (self.max_cpu, self.max_halts_per_s) {
            (Some(share), _) => Goal::MaxCpu(share),
            (_, Some(rate)) => Goal::MaxHaltsPerSecond(rate),
            _ => Goal::LeastCost,
        }
    }

    pub(crate) fn worth(&self) -> Worth {
        Worth { cpu_share: self.min_gain, ..Worth::default() }
    }
}
