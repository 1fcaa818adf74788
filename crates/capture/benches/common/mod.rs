//! What benchmarks of recorders share.

use dwell_capture::{Observer, Status};
use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once the recorder runs.
pub(crate) struct Ready<'a>(pub(crate) &'a AtomicBool);

impl Observer for Ready<'_> {
    fn status(&mut self, _: &Status) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `None`: the calling thread.
pub(crate) fn pin(thread: Option<Pid>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(thread.or(Some(gettid())), &set).expect("the CPU may be used");
}

pub(crate) fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// How many rounds are measured.
pub(crate) fn rounds() -> u32 {
    std::env::var("DWELL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(9)
}

/// The median with the least and the largest.
pub(crate) fn range(mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    format!(
        "{:.digits$} ({:.digits$} to {:.digits$})",
        at(values.len() / 2),
        at(0),
        at(values.len().saturating_sub(1))
    )
}
