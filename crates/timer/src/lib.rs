//! Timers of vCPUs: what carries them, who may post them, and what they cost.
//!
//! * [`record`] and [`import`] make a [recording of timers](dwell_recording::timer) of this host's events or of a
//!   text of `perf script`; [`pairing`] is what both make its rows by.
//! * A [`TimerVm`] is a VM on a host as far as its timers depend on them; [`describe`](mod@describe) finds out which
//!   it is, [`posting::compare`] compares the merged and the proposed posting rules for it, [`upgrade::compare`] two
//!   kernels.
//! * [`check`](mod@check) compares each recorded timer with the model, [`predict`] replays a recording under another
//!   set-up, [`lateness`] under another advance, and [`advice`] chooses; [`recorded`] has all of it, and the plan.
//!
//! * [`why`] has the bill of a VM's CPU time, by cause.
//!
//! The models are in [`dwell_policy::timer`], the file format in [`dwell_recording::timer`].

#![forbid(unsafe_code)]

pub mod advice;
pub mod check;
pub mod describe;
pub mod exits;
pub mod import;
pub mod lateness;
pub mod page;
pub mod pairing;
pub mod posting;
pub mod predict;
pub mod record;
pub mod recorded;
pub mod tally;
pub mod upgrade;
mod vm;
pub mod why;

#[cfg(test)]
pub(crate) use vm::VM;
pub use vm::{Bill, Bills, Pcpu, TimerVm};
