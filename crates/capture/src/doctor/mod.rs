//! What can be recorded on a machine, and what hinders it.
//!
//! # Idea
//! [`Facilities`] are the ways into the kernel, and whether they are open. Each [`Recorder`] lists what
//! hinders it here: an [`Obstacle`] with its remedy. Nothing is written anywhere. The facts of the machine
//! are those of [`dwell_machine`]; what is worth knowing about its settings is in the crate `dwell-knobs`,
//! module `finding`.

mod facilities;
mod recorder;

pub use facilities::{Bpf, Facilities, Mounted, Perf};
pub use recorder::{Obstacle, Recorder, Support};

use crate::system::System;
use dwell_machine::Facts;
use serde::Serialize;

/// What can be recorded on a machine.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Recordable {
    /// The ways into the kernel.
    pub facilities: Facilities,
    /// What can be recorded.
    pub recorders: Vec<Recorder>,
}

impl Recordable {
    /// Examines a machine of which the facts have been read. Reads only.
    pub fn examine(system: &dyn System, facts: &Facts) -> Recordable {
        let facilities = Facilities::examine(system);
        Recordable { recorders: recorder::all(&facts.host, &facilities), facilities }
    }
}

#[cfg(test)]
mod tests;
