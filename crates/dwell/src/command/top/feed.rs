//! Where episodes come from while they happen.

use clap::ValueEnum;
use std::sync::Arc;
use std::time::Duration;

/// What to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// vCPUs, from KVM's tracepoints.
    Host,
    /// The CPUs of this machine.
    Guest,
    /// Threads that wait in system calls.
    Thread,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Host => "host",
            Target::Guest => "guest",
            Target::Thread => "thread",
        }
    }
}

/// An episode that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Who idled.
    pub(crate) idler: Arc<str>,
    /// How long \[ns\].
    pub(crate) idle_ns: u64,
    /// How long it would have polled before halting \[ns\]; 0: it did not poll; `None`: not known.
    pub(crate) window_ns: Option<u64>,
    /// Whether it halted; `None`: not known.
    pub(crate) halted: Option<bool>,
}

/// The episodes of some time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// The time they are of.
    pub(crate) span: Duration,
    /// The episodes, in any order.
    pub(crate) episodes: Vec<Seen>,
    /// Events that were lost meanwhile.
    pub(crate) lost: u64,
}

/// Gives episodes as they end.
pub(crate) trait Feed {
    /// Those that have ended since the last call, or since the feed began. Does not wait.
    ///
    /// # Errors
    /// Why there will be no more.
    fn next(&mut self) -> anyhow::Result<Batch>;
}

/// Episodes of this machine. The recorder of the capture crate is to be put behind this.
pub(crate) fn live(target: Target, pid: Option<u32>, comm: Option<&str>) -> anyhow::Result<Box<dyn Feed>> {
    anyhow::bail!(
        "this build has no recorder to watch {} with (--pid {pid:?}, --comm {comm:?})",
        target.name()
    )
}
