//! The CPU time that control itself takes.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The CPU time of this process.
pub(super) fn of_process() -> Duration {
    time(ClockId::ProcessCPUTime)
}

/// The CPU time of this thread.
pub(super) fn of_thread() -> Duration {
    time(ClockId::ThreadCPUTime)
}

fn time(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
