//! What a machine reports about how its CPUs, vCPUs and I/O threads idle.
//!
//! # Idea
//! Everything that dwell reads from or writes to a machine outside of tracing goes through one seam,
//! [`Machine`]. There is one real implementation, [`Sysroot`] (this machine, or a copy of another machine's
//! files), and one fake for tests, `dwell_testing::machine::Fake`. [`Facts`] are read once and parsed
//! once, here and nowhere else; [`parameter`] has the one reader, parser and printer of module parameters.
//!
//! Reading and writing are two traits: what takes a `&dyn Machine` cannot change it; what takes a `&dyn Writable` can.
//!
//! ```
//! use dwell_machine::{Facts, Machine};
//! use dwell_testing::machine::Fake;
//!
//! let machine = Fake::new()
//!     .file("/proc/sys/kernel/osrelease", "6.18.44\n")
//!     .file("/sys/module/kvm/parameters/halt_poll_ns", "200000\n");
//! let facts = Facts::read(&machine);
//! assert_eq!(facts.kernel.release.as_deref(), Some("6.18.44"));
//! assert_eq!(facts.host.parameters[0].value, Some(200_000));
//! assert_eq!(machine.text("/proc/cmdline"), None);
//! ```
//!
//! # Limits
//! * Opening perf events and mounting tracefs are not here: they need `unsafe` and return descriptors that
//!   only a recorder can use. The crate `dwell-capture` extends [`Machine`] by those two calls.
//! * Files of other users' processes are hidden from anybody but root; [`Host`] counts the processes concerned.
//! * A VM's own longest window (`KVM_CAP_HALT_POLL`), its disabled exits and its poll-control register cannot
//!   be read from outside.

#![forbid(unsafe_code)]

pub mod arch;
pub mod cpu;
pub mod domain;
pub mod identity;
pub mod kernel;
pub mod load;
pub mod parameter;
pub mod process;
pub mod threads;
pub mod wanted;

// The fake of `dwell-testing` is compiled for the unit tests once more, against the types that they test.
#[cfg(test)]
extern crate self as dwell_machine;
#[cfg(test)]
#[path = "../../testing/src/machine.rs"]
pub mod fake;

mod absent;
mod counters;
mod facts;
mod guest;
mod host;
mod hypervisor;
mod kvm;
mod safe;
mod seam;
mod sysroot;
mod timer;
mod value;
mod vmm;

pub use absent::Absent;
pub use counters::{CpuidleCounters, IdleCounts, Kept};
pub use facts::Facts;
pub use guest::{Cpuidle, DwellIdle, Guest};
pub use host::{Absence, Host, Loading, Vcpu, Vm, holds_vm, max_source};
pub use hypervisor::Hypervisor;
pub use kernel::Kernel;
pub use kvm::KvmDevice;
pub use parameter::Parameter;
pub use safe::LONGEST as LONGEST_FILE;
pub use seam::{Lock, Machine, Writable};
pub use sysroot::Sysroot;
pub use timer::{Apicv, Timer, TimerHost, can_post, preemption_timer};
pub use vmm::{IoThread, Manager, VmOptions, Vmm, VmmKind, io_thread_comm};
