//! Recordings of timers: when each timer of a vCPU was armed and fired, and every VM exit with its duration.
//!
//! # The file
//!
//! Parquet as the [recordings of idle times](crate), with the same metadata, and one table of two kinds of rows:
//!
//! | column | type | `timer` | `exit` |
//! |---|---|---|---|
//! | `kind` | string | `timer` | `exit` |
//! | `vcpu` | string | whose timer | who exited |
//! | `at_ns` | uint64 | when it was armed | when the guest was left |
//! | `mechanism` | string or null | what carried it at the end: `hv-timer` or `hrtimer` | |
//! | `expires_ns` | uint64 or null | when it was set to fire, CLOCK_MONOTONIC of the host | |
//! | `fired_ns` | uint64 or null | when it fired; null: it was cancelled or armed anew before | |
//! | `armed_on`, `fired_on` | uint64 or null | the pCPU on which it was armed, and fired | |
//! | `vcpu_on` | uint64 or null | the pCPU of the vCPU's thread when it fired | |
//! | `state` | string or null | where the vCPU was when it fired, by [`VcpuState::name`] | |
//! | `fire` | string or null | how the vCPU noticed, by [`Fire::name`] | |
//! | `entered_ns` | uint64 or null | the first guest entry after it fired | |
//! | `late_tsc` | int64 or null | how late the guest was entered, before KVM's wait \[guest TSC cycles\]; negative: early | |
//! | `duration_ns` | uint64 or null | | until the next guest entry |
//! | `reason` | string or null | | the kernel's name for it |
//! | `cause` | string or null | | `arm` or `fire` for the exit of a timer |
//!
//! Null means not known, or that a row of this kind has no such value. Rows are in the order in which they
//! became complete. The key `dwell.timers` has JSON of [`TimerContents`], in place of `dwell.contents`.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use dwell_recording::timer::{ExitRow, TimerPart, TimerRecording, TimerRow};
//! let mut recording = TimerRecording::default();
//! recording.rows.vcpus.push("vm/7/vcpu0".to_owned());
//! recording.rows.reasons.push("MSR_WRITE".to_owned());
//! recording.rows.timers.push(TimerRow { fired_ns: Some(60_000), ..TimerRow::new(0, 10_000) });
//! recording.rows.exits.push(ExitRow { vcpu: 0, start_ns: 9_000, duration_ns: 2_000, reason: 0, cause: Some(TimerPart::Arm) });
//! # let dir = tempfile::tempdir()?;
//! # let path = &dir.path().join("timer.parquet");
//! recording.write(path)?;
//! assert_eq!(TimerRecording::open(path)?.rows.timers, recording.rows.timers);
//! # Ok(())
//! # }
//! ```

mod contents;
mod reader;
mod recording;
mod row;
#[cfg(test)]
mod tests;
mod writer;

pub use contents::{TimerContents, VcpuRows};
pub use dwell_policy::timer::{Fire, VcpuState};
pub use reader::{TimerReader, TimerRows};
pub use recording::{MOST_ROWS, TimerRecording};
pub use row::{ExitRow, Mechanism, TimerPart, TimerRow};
pub use writer::TimerWriter;

use crate::table::{Field, Kind, field};

/// Under this key of the file are its [`TimerContents`].
pub(crate) const TIMERS_KEY: &str = "dwell.timers";

/// Values of the column `kind`.
const TIMER: &str = "timer";
const EXIT: &str = "exit";

/// All columns, in the order in which they are written; a new one goes to the end.
pub const FIELDS: [Field; 16] = [
    field("kind", Kind::Text, true),
    field("vcpu", Kind::Text, true),
    field("at_ns", Kind::Unsigned, true),
    field("mechanism", Kind::Text, false),
    field("expires_ns", Kind::Unsigned, false),
    field("fired_ns", Kind::Unsigned, false),
    field("armed_on", Kind::Unsigned, false),
    field("fired_on", Kind::Unsigned, false),
    field("vcpu_on", Kind::Unsigned, false),
    field("state", Kind::Text, false),
    field("fire", Kind::Text, false),
    field("entered_ns", Kind::Unsigned, false),
    field("late_tsc", Kind::Signed, false),
    field("duration_ns", Kind::Unsigned, false),
    field("reason", Kind::Text, false),
    field("cause", Kind::Text, false),
];
