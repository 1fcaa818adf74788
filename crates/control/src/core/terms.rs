//! What a controller needs to be given.

use crate::core::candidates::Reach;
use dwell_policy::Nanos;

/// What a controller needs to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// CPU time of one halt and wakeup.
    pub halt_cost: Nanos,
    /// The wakeup latency of a halt: by how much what a rule learns from is longer than the episode, where no
    /// episode that was observed has one.
    pub late: Nanos,
    /// No candidate polls for longer.
    pub longest_window: Nanos,
    /// Which parameters can be set.
    pub reach: Reach,
    /// The usual time between two decisions.
    pub period: Nanos,
    /// The CPU time of a second that control itself may use, searches for idlers included; decisions are
    /// further apart where they take more.
    pub cpu_limit: Nanos,
    /// A setting is compared in turns on the machine when it is first taken, and at most so often, and where
    /// idlers mostly halt polling is tried now and then; `None`: never.
    pub verify: Option<Nanos>,
    /// Whether a change is put to [`Controller::question`](super::Controller::question) before it is made.
    pub by_work: bool,
}

impl Terms {
    /// The defaults at this halt cost: lengths without latency, windows up to four halt costs, a decision every 100 ms,
    /// 0.5 % of a CPU.
    pub const fn at(halt_cost: Nanos) -> Terms {
        Terms {
            halt_cost,
            late: Nanos::ZERO,
            longest_window: Nanos(halt_cost.get().saturating_mul(4)),
            reach: Reach::All,
            period: Nanos(100_000_000),
            cpu_limit: Nanos(5_000_000),
            verify: None,
            by_work: false,
        }
    }
}
