//! Where the CPU time of a VM's process goes: its bill, by cause.
//!
//! # Idea
//! The scheduler reports each stretch of CPU time of each thread (`sched:sched_stat_runtime`), in the nanoseconds that
//! /proc counts. What the thread did in it is known from its other events: a vCPU polls, runs its guest after a wakeup by
//! something, or has left it for a device of the VMM; an event loop waits, works on what woke it, or is in user space
//! without a system call before the next wait, which is where polling is. A `Ledger` lays one over the other.
//!
//! What a thread used by /proc and is not found in this way is a line of its own, so that the lines of a
//! [`Bill`] add up to what /proc counted, exactly.
//!
//! # Limits
//! * The end of a halt shows only afterwards, so labels are laid on time that is past.
//! * A burst of a vCPU, from a wakeup to the next halt, is of what woke it, whatever else comes meanwhile.
//! * Where KVM emits neither `kvm_exit` nor `kvm_entry`, exits that KVM handles itself are part of the burst.

mod bill;
mod cpus;
mod ledger;
pub mod live;
mod live_cpus;
mod names;
mod removal;
mod removal_cpus;
mod saved;
mod slices;
mod tasks;
mod watch;

#[cfg(test)]
mod cpus_tests;
#[cfg(test)]
mod tests;

pub use bill::{Bill, Counted, Line, Polls};
pub use cpus::{Cpus, NameOf, Numbers};
pub use live_cpus::{CpusBill, watch_cpus};
pub use names::{Device, Wake};
pub use removal::{Known, Removal, removals};
pub use removal_cpus::removals_of_cpus;
pub use saved::{OfSubject, Report, SavedError};
pub use tasks::{Class, Task};
pub use watch::{Describe, Watch};

use serde::{Deserialize, Serialize};

/// What CPU time went for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Cause {
    /// A CPU polled, by cpuidle's counters, which do not have what came of it.
    Poll,
    /// A vCPU polled and then slept after all.
    FailedPoll,
    /// A vCPU polled until it was woken.
    SuccessfulPoll,
    /// A vCPU went to sleep, or came back from it.
    Halt,
    /// A vCPU ran its guest, exits that KVM handles included, after a wakeup.
    Run { wake: Wake },
    /// KVM handled an exit of this reason, which came from the access of a device if one is known.
    Exit { reason: String, device: Option<Device> },
    /// The VMM served a vCPU's access of a device.
    Device { device: Device },
    /// A vCPU was in its VMM for another reason.
    Vmm,
    /// An event loop entered a wait, slept, and left it.
    Wait,
    /// An event loop was in user space without a system call, up to the next wait: it polled or computed.
    BeforeWait,
    /// An event loop worked after a wait that its timeout ended, for a timer of this device if that is known.
    Timeout { device: Option<Device> },
    /// An event loop worked on a descriptor that was ready.
    Ready {
        /// How /proc names it, if that is known.
        descriptor: Option<String>,
        /// The thread of the process that wrote to it.
        by: Option<String>,
    },
    /// Of this machine's CPUs: a task ran, after something woke it.
    Task {
        #[serde(skip_serializing_if = "Option::is_none")]
        woken_by: Option<String>,
    },
    /// A kernel thread did this work of a work queue.
    Work { function: String },
    /// A timer's function was called.
    Timer {
        function: String,
        /// The task that it woke.
        #[serde(skip_serializing_if = "Option::is_none")]
        wakes: Option<String>,
    },
    /// An interrupt or a softirq was handled.
    Interrupt { name: String },
    /// The idle task entered an idle state, or left it.
    IdleTask,
    /// What a thread did that is not looked into.
    Whole,
    /// Counted by /proc and not seen in the events.
    Rest,
}
