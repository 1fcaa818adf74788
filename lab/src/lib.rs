//! Experiments on real KVM: what a policy or a setting does, measured.
//!
//! [`vm`] is a small VMM and [`guest`] is what runs in it: functions of this program. [`idle`] is how a vCPU idles, and
//! [`experiment`] measures what that costs. [`gaps`] are the times between wakeups, the same for all settings that are
//! compared. [`host`] is what an experiment needs from the machine: cores, priorities, clocks and the load of other
//! programs, and [`loads`] are programs that load it. [`sampled`] are figures of all samples of an arm, and [`samples`]
//! writes every sample to a file. [`study`] compares policies over recordings.
//!
//! How experiments are run and evaluated is in `dwell-stats`: arms in a balanced order, repeated blocks, intervals and
//! warnings.
#![allow(unsafe_code, reason = "a VMM maps memory, calls KVM, and runs guest code; each block is argued")]

pub mod controlled;
pub mod experiment;
pub mod gaps;
pub mod guest;
pub mod host;
pub mod idle;
pub mod loads;
pub mod sampled;
pub mod samples;
pub mod study;
pub mod vm;
