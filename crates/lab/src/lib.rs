//! Experiments on a real machine: what a policy or a setting really does, measured so that it can be believed.
//!
//! [`host`] is what an experiment needs of the machine it runs on: cores, priorities, clocks, and to know when others
//! disturb it. [`method`] is how experiments are run and judged, whatever they measure: arms in a balanced order, the same
//! stimulus for each, disturbed blocks repeated, intervals and warnings. [`vm`] is a small VMM and [`guest`] what runs in it:
//! functions of this program. [`idle`] says how a vCPU idles, and [`experiment`] measures what that costs.
#![allow(unsafe_code, reason = "a VMM maps memory, calls KVM, and runs guest code; each block is argued")]

pub mod experiment;
pub mod guest;
pub mod host;
pub mod idle;
pub mod method;
pub mod vm;
