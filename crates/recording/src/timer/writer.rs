//! Timers and exits into a Parquet file.

use super::{EXIT, ExitRow, FIELDS, TIMER, TIMERS_KEY, TimerContents, TimerRow, VcpuRows};
use super::{Mechanism, TimerPart};
use crate::metadata::Metadata;
use crate::newfile::NewFile;
use crate::table::{TableError, TableWriter, Values};
use crate::writer::{FORMAT, FORMAT_KEY, METADATA_KEY};
use crate::{Packing, WriteError};
use dwell_policy::Owner;
use dwell_policy::timer::{Fire, VcpuState};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

/// Rows that are held before they are written: about 10 MB.
const ROWS_PER_GROUP: usize = 1 << 16;

/// Writes a recording of timers in bounded memory, as [`Writer`](crate::Writer) does one of idle times.
pub struct TimerWriter<W: Write + Send> {
    file: TableWriter<W>,
    metadata: Metadata<Owner>,
    contents: TimerContents,
    vcpus: HashMap<String, u32>,
    reasons: HashMap<String, u32>,
    rows: Vec<Row>,
    row_groups: usize,
    rows_per_group: usize,
    pushed: u64,
}

#[derive(Clone, Copy)]
enum Row {
    Timer(TimerRow),
    Exit(ExitRow),
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
        let created_by = concat!("dwell-recording ", env!("CARGO_PKG_VERSION"));
        let file = TableWriter::new(out, "dwell", &FIELDS, packing.zstd_level, created_by)
            .map_err(|source| WriteError::Frame { part: "schema", source: source.into() })?;
        Ok(TimerWriter {
            file,
            metadata,
            contents: TimerContents::default(),
            vcpus: HashMap::new(),
            reasons: HashMap::new(),
            rows: vec![],
            row_groups: 0,
            rows_per_group: packing.rows_per_group.max(1),
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

    /// The number of the vCPU of this name; a new one becomes part of the contents.
    pub fn vcpu(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.vcpus.get(name) {
            return number;
        }
        let number = next(self.contents.vcpus.len());
        self.contents.vcpus.push(VcpuRows { name: name.to_owned(), ..VcpuRows::default() });
        self.vcpus.insert(name.to_owned(), number);
        number
    }

    /// The number of the exit reason of this name; a new one becomes part of the contents.
    pub fn reason(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.reasons.get(name) {
            return number;
        }
        let number = next(self.contents.reasons.len());
        self.contents.reasons.push(name.to_owned());
        self.reasons.insert(name.to_owned(), number);
        number
    }

    /// Appends a timer.
    ///
    /// # Errors
    /// [`WriteError::Row`] if it cannot be, and the writer is as before; what writing fails with.
    pub fn push_timer(&mut self, row: &TimerRow) -> Result<(), WriteError> {
        row.check().map_err(|(column, what)| WriteError::Row {
            row: self.pushed,
            what: format!("`{column}`: {what}"),
        })?;
        self.of_vcpu(row.vcpu)?.timers += 1;
        self.push(Row::Timer(*row), row.armed_ns, row.last_ns())
    }

    /// Appends an exit.
    ///
    /// # Errors
    /// As [`push_timer`](TimerWriter::push_timer).
    pub fn push_exit(&mut self, row: &ExitRow) -> Result<(), WriteError> {
        if row.reason as usize >= self.contents.reasons.len() {
            let what = format!("exit reason number {} was not named", row.reason);
            return Err(WriteError::Row { row: self.pushed, what });
        }
        self.of_vcpu(row.vcpu)?.exits += 1;
        self.push(Row::Exit(*row), row.start_ns, row.last_ns())
    }

    fn of_vcpu(&mut self, vcpu: u32) -> Result<&mut VcpuRows, WriteError> {
        let unnamed = WriteError::Row { row: self.pushed, what: format!("vCPU number {vcpu} was not named") };
        self.contents.vcpus.get_mut(vcpu as usize).ok_or(unnamed)
    }

    fn push(&mut self, row: Row, first_ns: u64, last_ns: u64) -> Result<(), WriteError> {
        self.contents.count(first_ns, last_ns);
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
        let json = |source: serde_json::Error| WriteError::Metadata { source: source.into() };
        self.file.metadata(FORMAT_KEY, FORMAT.to_owned());
        self.file.metadata(METADATA_KEY, serde_json::to_string(&self.metadata).map_err(json)?);
        self.file.metadata(TIMERS_KEY, serde_json::to_string(&self.contents).map_err(json)?);
        let frame = |source: TableError| WriteError::Frame { part: "metadata", source: source.into() };
        Ok((self.contents, self.file.finish().map_err(frame)?))
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let TimerWriter { file, contents, rows, row_groups, .. } = self;
        let result = write(file, contents, rows);
        rows.clear();
        let failed =
            |source: TableError| WriteError::RowGroup { row_group: *row_groups, source: source.into() };
        result.map_err(failed)?;
        *row_groups += 1;
        Ok(())
    }
}

fn next(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

impl Row {
    fn timer(&self) -> Option<&TimerRow> {
        match self {
            Row::Timer(row) => Some(row),
            Row::Exit(_) => None,
        }
    }

    fn exit(&self) -> Option<&ExitRow> {
        match self {
            Row::Exit(row) => Some(row),
            Row::Timer(_) => None,
        }
    }
}

fn write<W: Write + Send>(
    file: &mut TableWriter<W>,
    contents: &TimerContents,
    rows: &[Row],
) -> Result<(), TableError> {
    let vcpu = |number: u32| contents.vcpus.get(number as usize).map_or("", |vcpu| vcpu.name.as_str());
    let reason = |number: u32| contents.reasons.get(number as usize).map_or("", String::as_str);
    let kinds = rows.iter().map(|row| if row.timer().is_some() { TIMER } else { EXIT }).collect();
    let vcpus = rows.iter().map(|row| match row {
        Row::Timer(TimerRow { vcpu: number, .. }) | Row::Exit(ExitRow { vcpu: number, .. }) => vcpu(*number),
    });
    let times = rows.iter().map(|row| match row {
        Row::Timer(TimerRow { armed_ns: ns, .. }) | Row::Exit(ExitRow { start_ns: ns, .. }) => *ns,
    });
    let required = [Values::Text(kinds), Values::Text(vcpus.collect()), Values::Unsigned(times.collect())];
    let optional: [Optional<'_>; 13] = [
        Optional::text(rows, |row| row.timer()?.mechanism.map(Mechanism::name)),
        Optional::number(rows, |row| row.timer()?.expires_ns),
        Optional::number(rows, |row| row.timer()?.fired_ns),
        Optional::number(rows, |row| row.timer()?.armed_on.map(u64::from)),
        Optional::number(rows, |row| row.timer()?.fired_on.map(u64::from)),
        Optional::number(rows, |row| row.timer()?.vcpu_on.map(u64::from)),
        Optional::text(rows, |row| row.timer()?.state.map(VcpuState::name)),
        Optional::text(rows, |row| row.timer()?.fire.map(Fire::name)),
        Optional::number(rows, |row| row.timer()?.entered_ns),
        Optional::of(rows, Values::Signed, |row| row.timer()?.late_tsc),
        Optional::number(rows, |row| Some(row.exit()?.duration_ns)),
        Optional::text(rows, |row| Some(reason(row.exit()?.reason))),
        Optional::text(rows, |row| row.exit()?.cause.map(TimerPart::name)),
    ];
    let (values, present): (Vec<_>, Vec<_>) =
        optional.into_iter().map(|Optional { values, present }| (values, present)).unzip();
    let optional = values.into_iter().zip(present.iter().map(|present| Some(present.as_slice())));
    file.row_group(required.into_iter().map(|values| (values, None)).chain(optional))
}

/// The values of a column that are known, and which rows have one.
struct Optional<'a> {
    values: Values<'a>,
    present: Vec<bool>,
}

impl<'a> Optional<'a> {
    fn of<T>(
        rows: &'a [Row],
        values: impl FnOnce(Vec<T>) -> Values<'a>,
        value: impl Fn(&'a Row) -> Option<T>,
    ) -> Optional<'a> {
        let all: Vec<Option<T>> = rows.iter().map(value).collect();
        let present = all.iter().map(Option::is_some).collect();
        Optional { values: values(all.into_iter().flatten().collect()), present }
    }

    fn text(rows: &'a [Row], value: impl Fn(&'a Row) -> Option<&'a str>) -> Optional<'a> {
        Optional::of(rows, Values::Text, value)
    }

    fn number(rows: &'a [Row], value: impl Fn(&'a Row) -> Option<u64>) -> Optional<'a> {
        Optional::of(rows, Values::Unsigned, value)
    }
}
