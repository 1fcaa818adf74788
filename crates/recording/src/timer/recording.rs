//! A whole recording of timers in memory.

use super::{TimerReader, TimerRows, TimerWriter};
use crate::metadata::Metadata;
use crate::open::OpenError;
use crate::{Owner, TableReadError, WriteError};
use std::path::Path;

/// Rows that a recording in memory has at most: about 1.5 GB. [`TimerReader`] reads any number.
pub const MOST_ROWS: u64 = 1 << 24;

/// A recording of timers.
#[derive(Clone, Debug, PartialEq)]
pub struct TimerRecording {
    /// What the recording says about itself; its layer is [`Owner::Timer`].
    pub metadata: Metadata<Owner>,
    /// All vCPUs and exit reasons, the timers in the order in which they became complete, and the exits in order of
    /// their ends.
    pub rows: TimerRows,
}

impl Default for TimerRecording {
    /// An empty one.
    fn default() -> TimerRecording {
        TimerRecording { metadata: Metadata::new(Owner::Timer), rows: TimerRows::default() }
    }
}

impl TimerRecording {
    /// Reads the recording at `path`.
    ///
    /// # Errors
    /// [`TableReadError`].
    pub fn open(path: &Path) -> Result<TimerRecording, TableReadError> {
        TimerRecording::read(&TimerReader::open(path)?, path)
    }

    /// Reads a recording that is in memory; errors call it by `name`.
    ///
    /// # Errors
    /// [`TableReadError`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<TimerRecording, TableReadError> {
        TimerRecording::read(&TimerReader::from_bytes(name, bytes)?, Path::new(name))
    }

    fn read(reader: &TimerReader, path: &Path) -> Result<TimerRecording, TableReadError> {
        let contents = reader.contents();
        let rows = contents.timers().saturating_add(contents.exits());
        if rows > MOST_ROWS {
            return Err(OpenError::TooLong { path: path.to_owned(), rows }.into());
        }
        let mut rows = TimerRows {
            vcpus: contents.vcpus.iter().map(|vcpu| vcpu.name.clone()).collect(),
            reasons: contents.reasons.clone(),
            ..TimerRows::default()
        };
        for row_group in 0..reader.row_groups() {
            let group = reader.read(row_group)?;
            rows.timers.extend(group.timers);
            rows.exits.extend(group.exits);
        }
        Ok(TimerRecording { metadata: reader.metadata().clone(), rows })
    }

    /// Over what time rates and shares are \[ns\]: the time recorded, lengthened by rows before and after it,
    /// else from the first row to the last time in a row.
    pub fn span_ns(&self) -> u64 {
        let timers = self.rows.timers.iter().map(|timer| (timer.armed_ns, timer.last_ns()));
        let exits = self.rows.exits.iter().map(|exit| (exit.start_ns, exit.last_ns()));
        let rows =
            timers.chain(exits).reduce(|(first, last), (start, end)| (first.min(start), last.max(end)));
        super::reader::span_ns(&self.metadata, rows)
    }

    /// Puts it into a file at `path`.
    ///
    /// # Errors
    /// [`WriteError`]: what writing fails with, and where a row refers to a name that is not there.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        let mut writer = TimerWriter::create(path, self.metadata.clone())?;
        writer.push(&mut self.rows.clone())?;
        writer.finish()?;
        Ok(())
    }
}
