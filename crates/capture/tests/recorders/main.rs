//! Recorders on this machine, in one program, so that they do not run beside each other. `stress` is a program of its own: it
//! measures the memory of its process.

mod bound;
mod bpf;
mod causes;
mod contention;
mod guest;
mod haltpoll;
mod kvm_stats;
mod lost;
mod same_trace;
mod vcpu;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One recorder or vCPU at a time: they would count each other's events, and take each other's CPUs.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
