//! The sub-commands, one file each.

mod campaign;
mod kvm_counts;
mod results;

pub(crate) mod calibrate;
pub(crate) mod control;
pub(crate) mod doorbell;
pub(crate) mod guest;
pub(crate) mod neighbour;
pub(crate) mod pingpong;
pub(crate) mod policies;
pub(crate) mod sketch;
pub(crate) mod study;
pub(crate) mod timer;
pub(crate) mod validate;
pub(crate) mod wake;
