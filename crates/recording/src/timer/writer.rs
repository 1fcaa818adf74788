//! Timers and exits into a Parquet file.

use super::{EXIT, ExitRow, FIELDS, TIMER, TIMERS_KEY, TimerContents, TimerRow, TimerRows, VcpuRows};
use crate::metadata::Metadata;
use crate::newfile::NewFile;
use crate::open::MAX_TIMER_ROWS;
use crate::table::{TableError, TableWriter, Value};
use crate::table_reader::LONGEST_TEXT;
use crate::writer::{begin, end};
use crate::{Packing, WriteError};
use dwell_policy::Owner;
use std::fmt;
use std::io::Write;
use std::path::Path;

/// Rows that are held before they are written: about 10 MB.
const ROWS_PER_GROUP: usize = 1 << 16;

/// Writes a recording of timers in bounded memory, as [`Writer`](crate::Writer) does one of idle times.
pub struct TimerWriter<W: Write + Send> {
    file: TableWriter<W>,
    metadata: Metadata<Owner>,
    contents: TimerContents,
    rows: Vec<Row>,
    rows_per_group: usize,
    pushed: u64,
}

/// A timer or an exit.
struct Row {
    vcpu: u32,
    at_ns: u64,
    timer: Option<TimerRow>,
    exit: Option<ExitRow>,
}

impl<W: Write + Send> fmt::Debug for TimerWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimerWriter").field("pushed", &self.pushed).finish_non_exhaustive()
    }
}

impl TimerWriter<NewFile> {
    /// Begins the recording that will be at `path`.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub fn create(path: &Path, metadata: Metadata<Owner>) -> Result<Self, WriteError> {
        let packing = Packing { rows_per_group: ROWS_PER_GROUP, ..Packing::default() };
        TimerWriter::new(NewFile::private(path)?, metadata, packing)
    }

    /// Writes what is left, and gives the file its name. Returns what is in it.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn finish(self) -> Result<TimerContents, WriteError> {
        let (contents, file) = self.close()?;
        file.keep()?;
        Ok(contents)
    }
}

impl<W: Write + Send> TimerWriter<W> {
    /// Begins a recording that is written to `out`.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn new(out: W, metadata: Metadata<Owner>, packing: Packing) -> Result<Self, WriteError> {
        Ok(TimerWriter {
            file: begin(out, &FIELDS, packing)?,
            metadata,
            contents: TimerContents::default(),
            rows: vec![],
            rows_per_group: packing.rows_per_group.clamp(1, MAX_TIMER_ROWS),
            pushed: 0,
        })
    }

    /// What will be written as metadata. It may be changed until the end.
    pub fn metadata_mut(&mut self) -> &mut Metadata<Owner> {
        &mut self.metadata
    }

    /// What was pushed so far.
    pub fn contents(&self) -> &TimerContents {
        &self.contents
    }

    /// Appends rows with the names that are new in them, and leaves none.
    ///
    /// # Errors
    /// [`WriteError::Row`] for a row that cannot be, which is left out with those after it; what writing fails with.
    pub fn push(&mut self, rows: &mut TimerRows) -> Result<(), WriteError> {
        if let Some(name) = rows.vcpus.iter().chain(&rows.reasons).find(|name| name.len() > LONGEST_TEXT) {
            let what = format!("a name has {} bytes, and at most {LONGEST_TEXT} are read", name.len());
            return Err(WriteError::Row { row: self.pushed, what });
        }
        let named = |name| VcpuRows { name, ..VcpuRows::default() };
        self.contents.vcpus.extend(rows.vcpus.drain(..).map(named));
        self.contents.reasons.append(&mut rows.reasons);
        rows.timers.drain(..).try_for_each(|row| self.push_timer(row))?;
        rows.exits.drain(..).try_for_each(|row| self.push_exit(row))
    }

    fn push_timer(&mut self, row: TimerRow) -> Result<(), WriteError> {
        row.check().map_err(|(column, what)| WriteError::Row {
            row: self.pushed,
            what: format!("`{column}`: {what}"),
        })?;
        self.of_vcpu(row.vcpu)?.timers += 1;
        let TimerRow { vcpu, armed_ns: at_ns, .. } = row;
        self.push_row(Row { vcpu, at_ns, timer: Some(row), exit: None }, row.last_ns())
    }

    fn push_exit(&mut self, row: ExitRow) -> Result<(), WriteError> {
        if row.reason as usize >= self.contents.reasons.len() {
            let what = format!("exit reason number {} was not named", row.reason);
            return Err(WriteError::Row { row: self.pushed, what });
        }
        self.of_vcpu(row.vcpu)?.exits += 1;
        let ExitRow { vcpu, start_ns: at_ns, .. } = row;
        self.push_row(Row { vcpu, at_ns, timer: None, exit: Some(row) }, row.last_ns())
    }

    fn of_vcpu(&mut self, vcpu: u32) -> Result<&mut VcpuRows, WriteError> {
        let unnamed = WriteError::Row { row: self.pushed, what: format!("vCPU number {vcpu} was not named") };
        self.contents.vcpus.get_mut(vcpu as usize).ok_or(unnamed)
    }

    fn push_row(&mut self, row: Row, last_ns: u64) -> Result<(), WriteError> {
        self.contents.count(row.at_ns, last_ns);
        self.rows.push(row);
        self.pushed += 1;
        if self.rows.len() >= self.rows_per_group { self.flush() } else { Ok(()) }
    }

    /// Writes what is left, and returns what is in the recording, and where it was written to.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn close(mut self) -> Result<(TimerContents, W), WriteError> {
        if !self.rows.is_empty() {
            self.flush()?;
        }
        let TimerWriter { file, metadata, contents, .. } = self;
        let out = end(file, &metadata, (TIMERS_KEY, &contents))?;
        Ok((contents, out))
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let TimerWriter { file, contents, rows, .. } = self;
        let row_group = file.file.flushed_row_groups().len();
        let name = |vcpu: u32| contents.vcpus.get(vcpu as usize).map_or("", |vcpu| vcpu.name.as_str());
        let reason = |reason: u32| contents.reasons.get(reason as usize).map_or("", String::as_str);
        let result = file.row_group(
            rows,
            [
                &|row: &Row| Some(if row.timer.is_some() { TIMER } else { EXIT }.into()),
                &|row| Some(name(row.vcpu).into()),
                &|row| Some(row.at_ns.into()),
                &|row| Some(row.timer?.mechanism?.name().into()),
                &|row| Some(row.timer?.expires_ns?.into()),
                &|row| Some(row.timer?.fired_ns?.into()),
                &|row| Some(row.timer?.armed_on?.into()),
                &|row| Some(row.timer?.fired_on?.into()),
                &|row| Some(row.timer?.vcpu_on?.into()),
                &|row| Some(row.timer?.state?.name().into()),
                &|row| Some(row.timer?.fire?.name().into()),
                &|row| Some(row.timer?.entered_ns?.into()),
                &|row| Some(Value::Signed(row.timer?.late_tsc?)),
                &|row| Some(row.exit?.duration_ns.into()),
                &|row| Some(reason(row.exit?.reason).into()),
                &|row| Some(row.exit?.cause?.name().into()),
            ],
        );
        rows.clear();
        result.map_err(|TableError(source)| WriteError::RowGroup { row_group, source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_not_written() {
        let packing = Packing { rows_per_group: usize::MAX, ..Packing::default() };
        let mut writer = TimerWriter::new(vec![], Metadata::new(Owner::Timer), packing).unwrap();
        assert_eq!(writer.rows_per_group, MAX_TIMER_ROWS);
        let mut rows = TimerRows { vcpus: vec!["v".repeat(4097)], ..TimerRows::default() };
        let error = writer.push(&mut rows).unwrap_err().to_string();
        assert_eq!(error, "row 0: a name has 4097 bytes, and at most 4096 are read");
    }
}
