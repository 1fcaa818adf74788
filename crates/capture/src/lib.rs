//! Live capture: tracepoints through perf ring buffers, into recordings.
//!
//! The way of the data: the kernel ([`perf`]) or BPF programs ([`bpf`]) write samples into a ring buffer for each
//! CPU; they are read out by the offsets of the running kernel
//! ([`format`](mod@format), [`decode`]), put in order of time and paired to episodes by the crate
//! `dwell-trace`, and written by a thread of its own ([`record`]).
//!
//! ```no_run
//! use dwell_capture::{Recorder, Target, Until};
//! use std::sync::atomic::AtomicBool;
//! use std::time::Duration;
//! # fn main() -> Result<(), dwell_capture::RecordError> {
//! let recorder = Recorder::open(Target::Host { pid: None, exits: false, contention: true, causes: false }, None)?;
//! let until = Until { duration: Some(Duration::from_secs(10)), stop: &AtomicBool::new(false) };
//! let summary = recorder.to_file("vcpus.parquet".as_ref(), &until, &mut ())?;
//! println!("{} episodes", summary.contents.episodes);
//! # Ok(())
//! # }
//! ```

pub mod bpf;
mod clock;
pub mod decode;
pub mod detached;
pub mod doctor;
pub mod energy;
pub mod format;
pub mod kvm_stats;
mod mapping;
pub mod names;
mod native;
pub mod perf;
mod plan;
pub mod polling;
pub mod probe;
pub mod record;
mod rights;
pub mod settings;
mod switches;
pub mod system;
pub mod target;
pub mod tracefs;

#[cfg(test)]
mod tests;

pub use clock::now_ns;
pub use dwell_trace::guest::GuestSource;
pub use record::{Observer, Recorder, Session, Status, Summary, Until, record_anything};
pub use target::{RecordError, Target};
