//! How does this machine idle, what rules it, and what can be recorded here?
//!
//! # Idea
//! Every fact is probed once, from files below a [`Root`] and from the few answers that only instructions and system
//! calls give ([`Machine`]). [`Report`] holds the facts. [`Finding`]s are drawn from the facts alone: settings that
//! do nothing, that equal others, or that do harm, each with its reason and remedy. Nothing is written anywhere.
//!
//! # Terms
//! * **void**: a setting that no code reads in the present state of the machine.
//! * **equivalent**: a setting that acts exactly as another one does.
//! * **obstacle**: what stands in the way of a recorder.
//!
//! # Limits
//! * Other users' processes hide their files from anybody but root; the report counts them.
//! * A VM's own longest window (`KVM_CAP_HALT_POLL`), its disabled exits and its poll-control register cannot be read
//!   from outside.
//! * What an iothread's properties are now, only its monitor knows; the report has those of the command line.

mod facilities;
mod finding;
mod recorder;

pub use facilities::{Facilities, Mounted, Perf};
pub use finding::{Finding, NoDriver, Severity};
pub use recorder::{Obstacle, Recorder, Verdict};

use crate::system::System;
use dwell_machine::Facts;
use serde::Serialize;

/// How a machine idles.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The facts of the machine.
    #[serde(flatten)]
    pub facts: Facts,
    /// The ways into the kernel.
    pub facilities: Facilities,
    /// What can be recorded.
    pub recorders: Vec<Recorder>,
    /// What is worth knowing, the gravest first.
    #[serde(serialize_with = "finding::explained")]
    pub findings: Vec<Finding>,
}

impl Report {
    /// Examines a machine. Reads only.
    pub fn examine(system: &dyn System) -> Report {
        let facts = Facts::read(system);
        let facilities = Facilities::examine(system);
        Report {
            recorders: recorder::all(&facts.host, &facilities),
            findings: finding::of(&facts),
            facts,
            facilities,
        }
    }

    /// The gravest of the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(Finding::severity).max()
    }
}

#[cfg(test)]
mod tests;
