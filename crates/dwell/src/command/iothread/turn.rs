//! What an I/O thread and its QEMU do in a turn: CPU time, sleeps, requests.

use super::usage;
use dwell_machine::threads::{Thread, Usage};
use std::time::Instant;

/// The counters of a thread and its QEMU at one time.
pub(crate) struct Reading {
    at: Instant,
    usage: Usage,
    requests: u64,
}

/// What happened between two readings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    /// Its length \[s\].
    pub(crate) seconds: f64,
    /// CPU time of the thread \[ns\].
    pub(crate) cpu_ns: f64,
    /// How often the thread slept.
    pub(crate) sleeps: f64,
    /// Requests that the block devices served.
    pub(crate) requests: f64,
}

impl Reading {
    /// Of a thread, where this many requests were served so far.
    pub(crate) fn of(thread: Thread, requests: u64) -> anyhow::Result<Reading> {
        Ok(Reading { at: Instant::now(), usage: usage(thread)?, requests })
    }

    /// What happened since an earlier one.
    pub(crate) fn since(&self, before: &Reading) -> Turn {
        let used = self.usage - before.usage;
        Turn {
            seconds: self.at.duration_since(before.at).as_secs_f64(),
            cpu_ns: used.cpu.get() as f64,
            sleeps: used.switches.voluntary as f64,
            requests: self.requests.saturating_sub(before.requests) as f64,
        }
    }
}
