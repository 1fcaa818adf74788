//! Against a real QEMU: the models, the importer, the monitor, the live comparison, and KVM's statistics files.
//!
//! `.ci/qemu` gets what is needed; what is not there makes its tests skip and say why.

mod control;
mod exact;
mod guest;
mod halts;
mod live;
mod recorded;
mod two_threads;
mod why;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One guest at a time: they would keep each other from running.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
