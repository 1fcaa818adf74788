//! What a wakeup costs on a machine.

/// What a poll, a halt and their wakeups cost \[ns\].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Constants {
    /// From the wakeup by another task to running, of a CPU that polls.
    pub after_poll_ns: u64,
    /// The same, of a wakeup by an interrupt or timer.
    pub external_poll_ns: u64,
    /// From the wakeup by another task to running, of a CPU that halted.
    pub after_halt_ns: u64,
    /// From the wakeup by an interrupt or timer to running, of a CPU that halted. Where the handler runs on the CPU itself
    /// it is little more than after a poll, and where it runs on another one as much as after a wakeup by a task.
    pub external_halt_ns: u64,
    /// How much longer the waker runs where it wakes a CPU that halted: it sends an interrupt, in a guest by an exit.
    pub ipi_ns: u64,
    /// How much longer the first segment after a halt is: cold caches, and what the host runs first.
    pub longer_segment_ns: u64,
    /// What of a halt hides an interrupt: the task is woken only so long after the interrupt was raised.
    pub hidden_ns: u64,
}

impl Constants {
    /// As measured in a nested guest of 2 vCPUs, with Linux 6.18: for tests and benches.
    pub const OF_A_NESTED_GUEST: Constants = Constants {
        after_poll_ns: 1_800,
        external_poll_ns: 1_800,
        after_halt_ns: 20_000,
        external_halt_ns: 1_800,
        ipi_ns: 7_000,
        longer_segment_ns: 4_000,
        hidden_ns: 3_000,
    };

    /// From the event that ends a halt to running.
    pub const fn halt_ns(&self, by_interrupt: bool) -> u64 {
        if by_interrupt { self.hidden_ns.saturating_add(self.external_halt_ns) } else { self.after_halt_ns }
    }

    /// From the event that ends a poll to running.
    pub const fn poll_ns(&self, by_interrupt: bool) -> u64 {
        if by_interrupt { self.external_poll_ns } else { self.after_poll_ns }
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
