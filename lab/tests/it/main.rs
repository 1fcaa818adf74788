//! The lab on the real KVM and its program, so that experiments do not run beside each other.

mod live;
mod program;
mod sketch;
mod study;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Experiments need the cores for themselves.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
