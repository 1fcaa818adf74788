//! How results look: numbers for people and for programs, tables, histograms.
//!
//! A [`Table`] is built once. For a terminal it is aligned and its numbers are rounded, with units beside them; as CSV
//! it carries the same cells exact, in base units, with the unit in the column's name.
//!
//! [`page`] makes one self-contained page of a report's JSON. What is drawn there is computed by
//! `dwell_replay::figures`.

pub mod harmless;
mod histogram;
pub mod measured;
pub mod page;
pub mod priced;
mod table;

pub use dwell_replay::number::{count, duration, number_of, percent, ratio, rounded};
pub use histogram::histogram;
pub use table::{Cell, Column, Rows, Table, wrap};
