//! What a wakeup costs on a machine.

use serde::Serialize;

/// What a poll, a halt and their wakeups cost \[ns\]: numbers to replay with, or what is known of them
/// ([`Estimates`](super::Estimates)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Constants<T: Default + PartialEq = u64> {
    /// From the wakeup by another task to running, of a CPU that polls.
    pub after_poll: T,
    /// From the wakeup by another task to running, of a CPU that halted.
    pub after_halt: T,
    /// From the wakeup by an interrupt or timer to running, of a CPU that polls.
    pub external_poll: T,
    /// From the wakeup by an interrupt or timer to running, of a CPU that halted. Where the handler runs on the CPU itself
    /// it is little more than after a poll, and where it runs on another one as much as after a wakeup by a task.
    pub external_halt: T,
    /// How much longer the waker runs where it wakes a CPU that halted: it sends an interrupt, in a guest by an exit.
    pub ipi: T,
    /// How much longer the first segment after a halt is: cold caches, and what the host runs first.
    pub longer_segment: T,
    /// What of a halt hides an interrupt: the task is woken only so long after the interrupt was raised.
    pub hidden: T,
    /// From any wakeup to running, of a guest's CPU that halted and for which its host polled until then. Nothing where no host
    /// was recorded.
    #[serde(skip_serializing_if = "is_nothing")]
    pub after_host_poll: T,
}

fn is_nothing<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl<T: Copy + Default + PartialEq> Constants<T> {
    /// In the order of the fields.
    pub const fn all(&self) -> [T; 8] {
        [
            self.after_poll,
            self.after_halt,
            self.external_poll,
            self.external_halt,
            self.ipi,
            self.longer_segment,
            self.hidden,
            self.after_host_poll,
        ]
    }
}

impl<T: Default + PartialEq> From<[T; 8]> for Constants<T> {
    /// In the order of the fields.
    fn from(all: [T; 8]) -> Constants<T> {
        let [after_poll, after_halt, external_poll, external_halt, ipi, rest @ ..] = all;
        let [longer_segment, hidden, after_host_poll] = rest;
        Constants {
            after_poll,
            after_halt,
            external_poll,
            external_halt,
            ipi,
            longer_segment,
            hidden,
            after_host_poll,
        }
    }
}

impl Constants {
    /// From the event that ends a halt to running \[ns\].
    pub const fn halt_ns(&self, by_interrupt: bool) -> u64 {
        if by_interrupt { self.hidden.saturating_add(self.external_halt) } else { self.after_halt }
    }

    /// From the event that ends a poll to running \[ns\].
    pub const fn poll_ns(&self, by_interrupt: bool) -> u64 {
        if by_interrupt { self.external_poll } else { self.after_poll }
    }
}

/// When interrupts and timers come, which are caused by nothing that is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum External {
    /// At their own times, whatever the machine does: open-loop clients, periodic timers.
    Absolute,
    /// So long after the task last ran as in the recording: disks, remote servers, sleeps.
    Relative,
    /// Relative of a task that hardly anything but others wakes: what else does so once in a while must not hold it back to
    /// that time where it is done with the rest sooner. Relative, too, of one whose wakeups are seen to come so long after
    /// its own segments. Absolute of any other. What is woken by a task that runs seldom, and by an interrupt or timer
    /// itself, is woken by that.
    ByTask,
    /// The same, and relative of any other.
    ByTaskElseRelative,
}

impl External {
    pub(super) const fn is_by_task(self) -> bool {
        matches!(self, External::ByTask | External::ByTaskElseRelative)
    }
}
