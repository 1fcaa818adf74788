//! Recordings of many VMs: what every setting of a grid would have cost each, and the few settings that cost
//! least over all.
//!
//! The work is map and reduce:
//! * map: [`costs`](Question::costs) replays one recording through every setting of a [`Question`] and
//!   returns its [`Costs`];
//! * reduce: [`rollout`](rollout()) chooses settings on some of the costs and reports on others.
//!
//! All sums are of integers, so that the result is the same in whatever order and on however many machines
//! the recordings were worked through. A recording that cannot be used has an error in place of its costs;
//! the others count.
//!
//! Memory: one row group of a recording for each thread, and eight bytes for each recording and setting.
#![forbid(unsafe_code)]

pub mod alike;
pub mod choice;
mod costs;
mod folder;
mod release;
mod rollout;
pub mod sketch;
mod split;
mod table;

pub use costs::{Costs, Fineness, Question, Unusable};
pub use folder::{Classes, ClassesError, Row, classes, recordings, vm_of};
pub use release::Releases;
pub use rollout::{A_CLASS, Choice, ChosenOn, Rollout, RolloutError, Used, VmCost, rollout};
pub use sketch::{Header, Input, Sketch, SketchError};
pub use split::{HeldOut, waves};
pub use table::{FIELDS, write};
