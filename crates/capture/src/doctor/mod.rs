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
mod guest;
mod host;
mod kernel;
mod machine;
mod param;
mod process;
mod recorder;
mod root;
mod timer;
mod vmm;

pub use facilities::{Facilities, Mounted};
pub use finding::{Finding, NoDriver, Severity};
pub use guest::Guest;
pub use host::{Host, Presence, Vcpu, Vm};
pub use kernel::Kernel;
pub use machine::{Hypervisor, KvmDevice, Machine, OnlyFiles, Perf, ThisMachine};
pub use param::{Value, written};
pub use recorder::{Obstacle, Recorder, Verdict};
pub use root::{Absent, Root};
pub use timer::Timer;
pub use vmm::{IoThread, Kind, Vmm};

use serde::Serialize;

/// How a machine idles.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The running kernel.
    pub kernel: Kernel,
    /// KVM, as the host of VMs.
    pub host: Host,
    /// This machine's own CPUs.
    pub guest: Guest,
    /// Timers of VMs.
    pub timer: Timer,
    /// Virtual machine monitors with their I/O threads.
    pub vmms: Vec<Vmm>,
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
    pub fn examine(root: &Root, machine: &dyn Machine) -> Report {
        let kernel = Kernel::examine(root);
        let processes = process::all(root);
        let host = Host::examine(root, machine, &kernel, &processes);
        let facilities = Facilities::examine(root, machine);
        let mut report = Report {
            guest: Guest::examine(root, machine, &kernel),
            timer: Timer::examine(root, &kernel),
            vmms: processes.iter().filter_map(Vmm::of).collect(),
            recorders: recorder::all(&host, &facilities),
            findings: vec![],
            kernel,
            host,
            facilities,
        };
        report.findings = finding::of(&report);
        report
    }

    /// The gravest of the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(Finding::severity).max()
    }
}

#[cfg(test)]
mod tests;
