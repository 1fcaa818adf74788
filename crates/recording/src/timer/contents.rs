//! What is in a recording of timers, counted while it was written.

use super::TIMERS_KEY;
use crate::contents::twice;
use serde::{Deserialize, Serialize};

/// Counts over all rows, and the names that rows refer to. Kept as JSON under the key `dwell.timers` of the
/// Parquet file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerContents {
    /// Earliest `at_ns`; `None` if there is no row.
    pub first_ns: Option<u64>,
    /// Latest time, of `fired_ns`, `entered_ns` and the ends of exits too; `None` if there is no row.
    pub last_ns: Option<u64>,
    /// The vCPUs.
    pub vcpus: Vec<VcpuRows>,
    /// The exit reasons, by the kernel's names.
    pub reasons: Vec<String>,
}

/// A vCPU and its rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VcpuRows {
    /// Its name, unique in the recording.
    pub name: String,
    /// Number of its timers.
    pub timers: u64,
    /// Number of its exits.
    pub exits: u64,
}

impl TimerContents {
    /// Number of timers, of all vCPUs.
    pub fn timers(&self) -> u64 {
        self.vcpus.iter().fold(0, |sum, vcpu| sum.saturating_add(vcpu.timers))
    }

    /// Number of exits, of all vCPUs.
    pub fn exits(&self) -> u64 {
        self.vcpus.iter().fold(0, |sum, vcpu| sum.saturating_add(vcpu.exits))
    }

    pub(super) fn count(&mut self, first_ns: u64, last_ns: u64) {
        self.first_ns = Some(self.first_ns.map_or(first_ns, |first| first.min(first_ns)));
        self.last_ns = Some(self.last_ns.map_or(last_ns, |last| last.max(last_ns)));
    }

    /// Compares them with the number of rows in the file.
    pub(crate) fn check(&self, rows: u64) -> Result<(), String> {
        let (timers, exits) = (self.timers(), self.exits());
        if timers.checked_add(exits) != Some(rows) {
            return Err(format!(
                "there are {rows} rows, `{TIMERS_KEY}` says {timers} timers and {exits} exits over all vCPUs"
            ));
        }
        let vcpu = twice(self.vcpus.iter().map(|vcpu| &vcpu.name)).map(|name| ("vCPU", name));
        let reason = || twice(&self.reasons).map(|name| ("reason", name));
        match vcpu.or_else(reason) {
            Some((what, name)) => Err(format!("`{TIMERS_KEY}` lists {what} `{name}` twice")),
            None => Ok(()),
        }
    }
}
