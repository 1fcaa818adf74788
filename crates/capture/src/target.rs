//! What can be recorded, and why it may fail.

use crate::probe::TraceError;
use dwell_policy::Layer;
use dwell_recording::{NewFileError, WriteError};
use dwell_trace::guest::GuestSource;
use std::io;

/// What is to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The vCPUs of this host.
    Host {
        /// Only those of the VM of this process.
        pid: Option<i32>,
        /// Take `kvm:kvm_exit` too, of HLT only: it gives the number of each vCPU reliably, where it fires, and costs
        /// the filter's time (a fraction of a microsecond) at every exit of every VM.
        exits: bool,
        /// Take the scheduler's tracepoints of the CPUs of the vCPUs too, for the time alone of each episode.
        /// They fire at every context switch and wakeup there.
        contention: bool,
        /// Take `kvm:kvm_apic_accept_irq` and `sched:sched_waking` too, for what vCPUs run between the episodes and what
        /// woke them. The former fires at every interrupt of a VM, the latter at every waking on the CPUs of vCPUs.
        causes: bool,
    },
    /// The CPUs of this machine, which may be a guest.
    Guest {
        /// The source of idle periods.
        source: GuestSource,
        /// Take `sched:sched_switch` too, of whatever idles by `power:cpu_idle`, for what runs between the episodes and
        /// what woke it. It fires at every context switch.
        causes: bool,
    },
    /// Threads that wait in system calls.
    Thread {
        /// Those of this process, or this thread.
        pid: Option<i32>,
        /// Those of these names (threads have names of their own; 15 characters count); empty: of any name.
        comm: Vec<String>,
        /// Take `sched:sched_waking` of these threads too, for what they run between the waits and what woke them.
        causes: bool,
    },
}

impl Target {
    /// To which layer the episodes belong.
    pub const fn layer(&self) -> Layer {
        match self {
            Target::Host { .. } => Layer::Host,
            Target::Guest { .. } => Layer::Guest,
            Target::Thread { .. } => Layer::Iothread,
        }
    }

    pub(crate) const fn pid(&self) -> Option<i32> {
        match self {
            Target::Host { pid, .. } | Target::Thread { pid, .. } => *pid,
            Target::Guest { .. } => None,
        }
    }
}

/// Why nothing could be recorded, or not to the end. Where there is a remedy, it is part of the text.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Tracing could not begin.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is no such process or thread.
    #[error("cannot record: there is no process or thread {0}")]
    NoProcess(i32),
    /// Neither process nor name was given.
    #[error("cannot choose the threads to record; give --pid PID or --comm NAME")]
    NoThreads,
    /// Waiting for events, or switching them, failed.
    #[error("cannot {what} the tracepoints")]
    Io { what: &'static str, source: io::Error },
    /// The file could not be made.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// The episodes could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// There was nothing to record, which is why.
    #[error("{0}")]
    Nothing(&'static str),
    /// The thread that writes is gone.
    #[error("the thread that writes the recording ended early")]
    WriterGone,
}
