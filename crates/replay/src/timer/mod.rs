//! Timers of vCPUs: who may post them, what carries them, and what they cost.
//!
//! A [`TimerVm`] is a VM on a host as far as its timers depend on them; [`posting::compare`] puts the merged
//! and the proposed posting rules side by side for it, [`upgrade::compare`] two kernels. Every answer is that
//! of the models in [`dwell_policy::timer`].

pub mod advice;
pub mod check;
pub mod lateness;
pub mod posting;
pub mod predict;
pub mod tally;
pub mod upgrade;
mod vm;

#[cfg(test)]
pub(crate) use vm::VM;
pub use vm::{Bill, Bills, Pcpu, TimerVm};
