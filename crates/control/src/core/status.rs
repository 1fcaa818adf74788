//! What a controller shows of itself, and of the idlers in the last period.

use crate::core::trust::Lost;
use dwell_policy::param::Setting;
use dwell_replay::Counts;

/// The state of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The setting in force.
    pub present: Setting,
    /// What control cost in the last 10 s more than 1.01 times the originals \[ns\]; negative is saved.
    pub owed_ns: f64,
    /// Whether the originals are in force for a while after a loss.
    pub rests: bool,
    /// Why the originals are in force, if that is as the rule does not do what was counted.
    pub untrusted: Option<Lost>,
    /// The wakeup latency of a halt as recorded, the median of the idlers' \[ns\]; `None` where none was.
    pub latency_ns: Option<u64>,
}

/// What the last period showed of one idler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    pub idler: u64,
    /// The share of the time in which it was watched.
    pub share: f64,
    /// What was counted in that time.
    pub counted: Counts,
    /// What that cost, and what it would have cost; `None` where no episodes are known.
    pub costs: Option<Costs>,
}

/// What an idler cost while it was watched \[ns\].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    pub measured: f64,
    /// As predicted of the setting in force.
    pub predicted: f64,
    /// As predicted of the originals.
    pub originals: f64,
    pub optimum: f64,
}
