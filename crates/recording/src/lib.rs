//! Recordings of how things idle: the file, written and read.
//!
//! An *episode* is from "nothing to do" to the wakeup event, of one *idler*: a guest CPU, a vCPU seen from its host, a
//! thread of an event loop. A *recording* is a file of episodes with what is needed to replay them.
//!
//! # The file
//!
//! Parquet, compressed with zstd, one row an episode; pandas, polars and DuckDB open it as it is.
//!
//! | column | type | |
//! |---|---|---|
//! | `idler` | string | who |
//! | `start_ns` | uint64 | when it began, by the recording's clock |
//! | `idle_ns` | uint64 | how long it took; to where, the metadata says |
//! | `window_ns` | uint64 or null | how long the idler would have polled |
//! | `halted` | boolean or null | false: the event came while it polled |
//! | `wake` | string or null | irq, ipi, timer, io, task, unknown |
//! | `wake_latency_ns` | uint64 or null | from the event to running again |
//! | `ready` | string or null | the handlers that became ready, each once and at most 4,096, with commas between them; empty: none |
//! | `alone_ns` | uint64 or null | how long no other task was runnable on the idler's CPU; `idle_ns` or more: to the end |
//!
//! Null means not known. The rows of one idler are in order of `start_ns`. dwell writes all columns always; a file by
//! another hand may lack those that may be null, and may have others, which are not read. `ready` is a string and not a list because it then shows and compares in any tool,
//! and because the same few sets recur, so that the dictionary stores each set once.
//!
//! Three key-value pairs: `dwell.format` is `1`; `dwell.recording` is JSON of [`Metadata`]; `dwell.contents` is JSON of
//! [`Contents`], counts and the list of idlers. Unknown keys in the JSON are kept. Anything else that is not understood
//! is refused by name.
//!
//! A recording may have a second table, of [`Segments`]: what ran between its idle times, and what woke it.
//! It is a Parquet file within the file, which is skipped by what does not look for it: `dwell.segments` has
//! `{"offset": …, "bytes": …, "causes": …}`, the last with the number of segments by cause.
//!
//! A recording of [timers](timer) is another table, with the same metadata.
//!
//! # The way in and out
//!
//! [`Writer`] and [`Reader`] for the file, [`summary`] for what a recording holds; the crate `dwell-trace` makes
//! recordings out of the text of other tools. All work in bounded memory, and no input makes them panic. The
//! Parquet library can be made to by a damaged file; the reader catches that and says that the file is damaged (the
//! panic's own line still goes to stderr).

#![warn(missing_docs, missing_debug_implementations, clippy::missing_errors_doc)]
#![forbid(unsafe_code)]

pub mod accounting;
mod causes;
mod chunk;
mod columns;
mod contents;
mod decode;
mod episode;
mod footer;
mod idle_path;
mod metadata;
pub mod newfile;
mod open;
mod overlap;
mod pages;
mod reader;
pub mod regular;
mod segment;
mod sparse;
mod storage;
pub mod summary;
pub mod table;
mod table_reader;
mod thrift;
pub mod timer;
mod writer;

pub use causes::with_causes;
pub use chunk::{Chunk, ReadySets};
pub use columns::{COLUMNS, Column, Columns};
pub use contents::{Contents, Idler, LONGEST_TIME_NS};
pub use dwell_policy::{Layer, Owner};
pub use episode::{Episode, WakeCause};
pub use idle_path::{IdlePath, Way};
pub use metadata::{
    CPU_TIME, CPUIDLE, Clock, CpuLoss, HALT_ENTRY, IdleIncludes, LEAST_LENGTHS, LEAST_LENGTHS_NOTE, Losses,
    Metadata, POLL_STEP, REALTIME_OFFSET, RESIDENCY_SHORTER, SWITCHES, SettingValue, SettingsChange, Source,
    TimeRecorded, kernel_on,
};
pub use newfile::{NewFile, NewFileError};
pub use open::{COMPRESSED, FOREIGN, MOST_IDLERS, OpenError, UTF_16};
pub use overlap::Ends;
pub use reader::{ReadError, Reader};
pub use segment::{Cause, CauseShares, MOST_SEGMENTS, Segment, Segments};
pub use table_reader::{Cells, TableReadError, TableReader};
pub use writer::{FORMAT, FORMAT_KEY, IdlerId, Packing, SKETCH_FORMAT, WriteError, Writer};

// The examples of the README are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
