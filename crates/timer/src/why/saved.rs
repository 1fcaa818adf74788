//! Bills as `dwell why --format json` prints them, and as they are read again.

use super::{Bill, Removal};
use serde::{Deserialize, Serialize};

/// What was watched, and the bills.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// How long it was watched \[ns\].
    pub span_ns: u64,
    pub events: u64,
    pub lost_events: u64,
    /// Why nothing was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untraced: Option<String>,
    pub bills: Vec<OfSubject>,
}

/// The bill of a process, or of this machine's CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfSubject {
    /// `None`: the CPUs of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The VM's name, else that of the process.
    pub name: String,
    /// What it used before it was watched \[ns of CPU a second\].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unwatched_ns_per_s: Option<u64>,
    /// Of this machine: what /proc/stat counts as not idle \[ns\], and what of that the host gave to others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal_ns: Option<u64>,
    #[serde(flatten)]
    pub bill: Bill,
    pub removals: Vec<Removal>,
}

/// Why a saved report is none.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    #[error("not the output of `dwell why --format json`")]
    Form(#[from] serde_json::Error),
    #[error("the lines of the bill of {name} do not add up to what was counted")]
    Sum { name: String },
}

impl Report {
    /// Reads the output of `dwell why --format json`.
    ///
    /// # Errors
    /// It is something else, or the lines of a bill do not add up to what was counted.
    pub fn parse(text: &str) -> Result<Report, SavedError> {
        let report: Report = serde_json::from_str(text)?;
        for OfSubject { name, bill, .. } in &report.bills {
            if bill.lines.iter().map(|line| u128::from(line.cpu_ns)).sum::<u128>() != bill.cpu_ns.into() {
                return Err(SavedError::Sum { name: name.clone() });
            }
        }
        Ok(report)
    }
}
