//! The controller of polling settings: [`core`] decides, without a clock and without I/O, and [`daemon`] observes a
//! machine, decides in time, and writes what was decided.

#![forbid(unsafe_code)]

pub mod core;
pub mod daemon;

pub use crate::core::*;
