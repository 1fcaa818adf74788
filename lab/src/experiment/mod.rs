//! The experiments: what is run on a real KVM, and what is measured.
//!
//! Each measures in *blocks*, mostly of at most half a second, which [`Campaign`](dwell_stats::Campaign)
//! orders, repeats and compares.

pub mod calibrate;
pub mod coupled;
pub mod doorbell;
mod loops;
pub mod neighbour;
pub mod pingpong;
pub mod policies;
pub mod timer;
pub mod validate;
pub mod wake;
pub mod waking;

mod arm;
mod halt_costs;
mod kvm_counts;
mod layers;
mod recorded;
mod rig;
mod run;
mod service;

pub use arm::ParseArmError;
pub use kvm_counts::{KvmCounts, KvmCountsByArm};
pub use rig::{Placed, Rig};
pub use run::rounds_of_a_block;

use crate::host::{ClockError, CoresError, PinError};
use crate::vm::VmError;
use dwell_capture::RecordError;
use dwell_policy::Nanos;
use dwell_policy::param::SetError;
use dwell_recording::{OpenError, ReadError, TableReadError};
use dwell_replay::RuleError;
use std::io;

/// Why an experiment could not be done.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The VM could not be made, or failed.
    #[error(transparent)]
    Vm(#[from] VmError),
    /// A policy that cannot be run.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The recording could not be compared with itself.
    #[error(transparent)]
    Replay(#[from] dwell_replay::ReplayError),
    /// Another experiment is running on this machine.
    #[error("another dwell experiment is running on this machine; wait until it has ended")]
    NotAlone,
    /// There are not enough CPUs.
    #[error(transparent)]
    Cores(#[from] CoresError),
    /// A core may not be used any more.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// The time-stamp counter cannot be used as a clock here.
    #[error(transparent)]
    Clock(#[from] ClockError),
    /// What a thread has used cannot be read.
    #[error("cannot read the CPU time of a thread: {0}")]
    Usage(io::Error),
    /// An eventfd cannot be made, rung or waited for.
    #[error("cannot use an eventfd: {0}")]
    Bell(io::Error),
    /// Own halts cannot be measured.
    #[error(transparent)]
    Halt(dwell_idle::MeasureHaltError),
    /// A wakeup that the guest has not seen.
    #[error("wakeup {event} was lost: the guest did not see it within five seconds")]
    Lost {
        /// Which one, from 1.
        event: u64,
    },
    /// A guest that drives itself did not come to its end.
    #[error(
        "the guest did not finish its block within five seconds: an interrupt was lost, or a service time is too long"
    )]
    Stuck,
    /// The vCPU stopped running before its time.
    #[error("the vCPU's thread ended early")]
    Gone,
    /// dwell's recorder cannot record here.
    #[error(transparent)]
    Record(Box<RecordError>),
    /// The recorder lost events, so that nothing can be predicted from what it saw.
    #[error("cannot predict: {lost} trace events of a block were lost")]
    LostEvents { lost: u64 },
    /// What the recorder wrote cannot be read, which is a mistake of this program.
    #[error(transparent)]
    Read(Box<ReadError>),
    #[error(transparent)]
    Open(Box<OpenError>),
    /// Nothing was recorded of what woke the vCPUs or threads.
    #[error(
        "cannot predict: the recording has too little of what woke the vCPUs or threads; in a PID namespace, and for vCPUs \
         without kvm:kvm_apic_accept_irq, it has nothing of it"
    )]
    NoCauses,
    /// It is not known which of the host's episodes are which of the guest's halts.
    #[error(
        "the guest's halts and the host's recording do not show by how much their clocks differ: thinking times that differ help, \
         such as --think exponential:100us"
    )]
    NotAligned,
    /// The guest's recording could not be made.
    #[error(transparent)]
    Write(#[from] dwell_recording::WriteError),
    #[error(transparent)]
    Segments(Box<TableReadError>),
    /// The version of the running kernel cannot be read.
    #[error("cannot predict: the version of the running kernel is not known")]
    UnknownKernel,
    /// A setting that the rule does not take.
    #[error(transparent)]
    Setting(#[from] SetError),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// Halts have to be handled in the kernel here.
    #[error("this experiment needs halts in the kernel (host:), not in user space (user:)")]
    NeedsKernelHalts,
    /// A thread panicked, which is a mistake of this program.
    #[error("a thread of the experiment panicked")]
    Panicked,
    /// The user stopped it.
    #[error("stopped")]
    Stopped,
}

// Boxed, since they are large and rare.
impl From<RecordError> for LabError {
    fn from(error: RecordError) -> LabError {
        LabError::Record(Box::new(error))
    }
}

impl From<ReadError> for LabError {
    fn from(error: ReadError) -> LabError {
        LabError::Read(Box::new(error))
    }
}

impl From<TableReadError> for LabError {
    fn from(error: TableReadError) -> LabError {
        LabError::Segments(Box::new(error))
    }
}

impl From<OpenError> for LabError {
    fn from(error: OpenError) -> LabError {
        LabError::Open(Box::new(error))
    }
}

/// For so long a real-time thread may run: the kernel stops it after 950 ms of a second, unless told
/// otherwise (`sched_rt_runtime_us`).
const LONGEST_RUN: Nanos = Nanos::from_micros(500_000);

/// How often a block repeats what takes `one` each time, so that it takes about as long as asked; at least 20 times.
fn repeats_of_a_block(one: Nanos, block: Nanos, most: usize) -> usize {
    let repeats = block.get() / one.get().max(1_000);
    usize::try_from(repeats).unwrap_or(most).clamp(20, most)
}

/// What the operating system answers, as an error.
fn os<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> LabError {
    move |error| VmError::Os { what, error: error.into() }.into()
}
