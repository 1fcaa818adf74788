//! What a device did: the numbers behind `--format json`.

use dwell_idle::Totals;
use serde::Serialize;
use std::fmt;

/// Of one virtqueue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QueueCounts {
    /// Chains that were no requests.
    pub malformed: u64,
    /// How often the ring was found to be broken.
    pub broken: u64,
    /// Notifications of the driver.
    pub calls: u64,
}

/// Of the requests of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests that were answered.
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub write_zeroes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// System calls that submitted operations to io_uring.
    pub submissions: u64,
    #[serde(flatten)]
    pub queues: QueueCounts,
}

impl QueueCounts {
    pub(crate) fn add(&mut self, other: &QueueCounts) {
        self.malformed += other.malformed;
        self.broken += other.broken;
        self.calls += other.calls;
    }
}

/// What a device and its I/O thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    #[serde(flatten)]
    pub counts: Counts,
    /// Waits of the I/O thread.
    pub waits: u64,
    /// Those in which it halted.
    pub halts: u64,
    /// Those in which it polled and did not halt.
    pub caught: u64,
    /// How often it was preempted while it polled.
    pub preempted: u64,
    /// CPU time of the I/O thread \[ns\].
    pub cpu_ns: u64,
}

impl Statistics {
    pub(crate) fn new(counts: Counts, totals: Totals, cpu_ns: u64) -> Statistics {
        let Totals { episodes, halts, caught, preempted, .. } = totals;
        Statistics { counts, waits: episodes, halts, caught, preempted, cpu_ns }
    }
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts {
            requests,
            reads,
            writes,
            flushes,
            discards,
            write_zeroes,
            errors,
            submissions,
            queues,
            ..
        } = self.counts;
        writeln!(
            f,
            "requests      {requests} ({reads} reads, {writes} writes, {flushes} flushes, {discards} discards, {write_zeroes} write-zeroes)"
        )?;
        writeln!(f, "bytes         {} read, {} written", self.counts.read_bytes, self.counts.written_bytes)?;
        writeln!(
            f,
            "errors        {errors} ({} malformed chains, {} broken rings)",
            queues.malformed, queues.broken
        )?;
        writeln!(f, "notifications {} of the driver, {submissions} submissions to io_uring", queues.calls)?;
        writeln!(
            f,
            "waits         {} ({} polled through, {} halts, {} preempted)",
            self.waits, self.caught, self.halts, self.preempted
        )?;
        write!(
            f,
            "CPU time      {:.3} s of the I/O thread",
            std::time::Duration::from_nanos(self.cpu_ns).as_secs_f64()
        )
    }
}
