//! KVM's local APIC timer: which mechanism carries a guest's timer, what that costs, and how early it is set.

mod tsc;

pub use tsc::{GuestTsc, Scale};
