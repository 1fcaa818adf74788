//! One period of idling.

use crate::accounting::Outcome;
use serde::{Deserialize, Serialize};

/// From "nothing to do" to the wakeup event, of one idler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Episode<'a, I = &'a str> {
    /// Who idled: by name, or by the number that it has where the episode is from.
    pub idler: I,
    /// When it began \[ns, the recording's clock\].
    pub start_ns: u64,
    /// How long it took \[ns\]; [`IdleIncludes`](crate::IdleIncludes) says up to where.
    pub idle_ns: u64,
    /// How long the idler would have polled before halting \[ns\].
    pub window_ns: Option<u64>,
    /// Whether the idler halted; if not, the wakeup event came while it polled.
    pub halted: Option<bool>,
    /// What kind of event ended it.
    pub wake: Option<WakeCause>,
    /// From the wakeup event to the idler running \[ns\].
    pub wake_latency_ns: Option<u64>,
    /// Handlers of an event loop that became ready. `Some(&[])`: known to be none. The names are not empty and
    /// hold no comma.
    pub ready: Option<&'a [&'a str]>,
    /// How long after `start_ns` no other task was runnable on the idler's CPU \[ns\]: KVM ends a poll when
    /// there is one. 0: there was one from the start. `idle_ns` or more: none until the end of the episode,
    /// and then a recorder of dwell's writes `idle_ns`. `None`: not known.
    pub alone_ns: Option<u64>,
}

impl<I: Default> Episode<'_, I> {
    /// An episode of which nothing but start and length is known.
    pub fn new(idler: I, start_ns: u64, idle_ns: u64) -> Self {
        Episode { idler, start_ns, idle_ns, ..Episode::default() }
    }

    /// How it went; `poll_step_ns` as in [`Outcome::of`].
    pub fn outcome(&self, poll_step_ns: u64) -> Outcome {
        Outcome::of(self.idle_ns, self.window_ns, self.halted, self.alone_ns, poll_step_ns)
    }
}

dwell_policy::named! {
    /// What kind of event ended an episode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum WakeCause {
        /// An interrupt of a device.
        Irq = "irq",
        /// An interrupt of another CPU.
        Ipi = "ipi",
        /// A timer.
        Timer = "timer",
        /// A file descriptor or virtqueue of an event loop.
        Io = "io",
        /// A task was woken; by what is not known.
        Task = "task",
        /// The recorder looked and could not tell.
        Unknown = "unknown",
    }

    /// The name used in files.
    pub fn name

    /// The kind of this name, if there is one.
    pub fn from_name
}
