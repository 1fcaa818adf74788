//! Timers and exits out of a Parquet file.

use super::{EXIT, ExitRow, FIELDS, Mechanism, TIMER, TimerContents, TimerPart, TimerRow};
use crate::chunk::Scratch;
use crate::decode::{Failure, Input, Translator, guard};
use crate::metadata::{Metadata, TimeRecorded};
use crate::open::{OpenError, Opened};
use crate::reader::{ReadError, RowGroups};
use crate::storage::Storage;
use dwell_policy::Owner;
use dwell_policy::timer::{Fire, VcpuState};
use std::collections::HashMap;
use std::path::Path;

/// Reads a recording of timers, row group by row group.
pub struct TimerReader {
    groups: RowGroups,
    metadata: Metadata<Owner>,
    contents: TimerContents,
    /// For each of [`FIELDS`] its place in the file.
    places: Vec<Option<usize>>,
    vcpus: HashMap<String, u32>,
    reasons: HashMap<String, u32>,
}

/// The rows of one row group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerRows {
    /// The timers, in the order of the file.
    pub timers: Vec<TimerRow>,
    /// The exits, in the order of the file.
    pub exits: Vec<ExitRow>,
}

impl TimerReader {
    /// Opens the recording at `path`.
    ///
    /// # Errors
    /// [`OpenError`], [`NoTimers`](OpenError::NoTimers) for a recording of idle times.
    pub fn open(path: &Path) -> Result<TimerReader, OpenError> {
        TimerReader::new(path, Storage::open(path)?)
    }

    /// Opens a recording that is in memory; errors call it by `name`.
    ///
    /// # Errors
    /// As [`open`](TimerReader::open).
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<TimerReader, OpenError> {
        TimerReader::new(Path::new(name), Storage::Memory(bytes.into()))
    }

    fn new(path: &Path, storage: Storage) -> Result<TimerReader, OpenError> {
        let Opened { file, metadata, contents, places, .. } =
            Opened::<TimerContents, Owner>::timers(path, storage.clone())?;
        let vcpus = (0..).zip(&contents.vcpus).map(|(number, vcpu)| (vcpu.name.clone(), number)).collect();
        let reasons = (0..).zip(&contents.reasons).map(|(number, name)| (name.clone(), number)).collect();
        let groups = RowGroups { path: path.to_owned(), file, storage };
        Ok(TimerReader { groups, metadata, contents, places, vcpus, reasons })
    }

    /// What the recording says about itself.
    pub fn metadata(&self) -> &Metadata<Owner> {
        &self.metadata
    }

    /// What is in it: counts, vCPUs, exit reasons.
    pub fn contents(&self) -> &TimerContents {
        &self.contents
    }

    /// Over what time rates and shares are \[ns\]: the time recorded, lengthened by rows before and after it,
    /// else from the first row to the last time in a row.
    pub fn span_ns(&self) -> u64 {
        span_ns(&self.metadata, self.contents.first_ns.zip(self.contents.last_ns))
    }

    /// Number of row groups.
    pub fn row_groups(&self) -> usize {
        self.groups.len()
    }

    /// Reads row group number `row_group`.
    ///
    /// # Errors
    /// [`ReadError`], which names the row and the column.
    pub fn read(&self, row_group: usize) -> Result<TimerRows, ReadError> {
        let rows = self.groups.rows(row_group)?;
        let mut columns = Table::default();
        for (at, field) in FIELDS.iter().enumerate() {
            guard(|| self.read_column(row_group, at, rows, &mut columns))
                .map_err(|failure| self.groups.error(row_group, field.name, failure))?;
        }
        let mut found = TimerRows::default();
        for row in 0..rows {
            self.row(row, &columns, &mut found).map_err(|(column, what)| {
                self.groups.error(row_group, column, Failure::Value { row, what })
            })?;
        }
        Ok(found)
    }

    fn read_column(
        &self,
        row_group: usize,
        at: usize,
        rows: usize,
        table: &mut Table,
    ) -> Result<(), Failure> {
        let input = self.groups.input(row_group, self.places.get(at).copied().flatten())?;
        let Table { scratch, .. } = table;
        match FIELDS[at].name {
            "kind" => named(input, rows, scratch, &mut table.kind, |name| match name {
                TIMER => Ok(true),
                EXIT => Ok(false),
                _ => Err(format!("`{name}` is no kind of row")),
            }),
            "vcpu" => named(input, rows, scratch, &mut table.vcpu, |name| {
                let number = self.vcpus.get(name).copied();
                number.ok_or_else(|| format!("vCPU `{name}` is not in the list of vCPUs"))
            }),
            "at_ns" => input.unsigned(rows, scratch, &mut table.at_ns),
            "mechanism" => known(input, rows, scratch, &mut table.mechanism, Mechanism::ALL, Mechanism::name),
            "expires_ns" => input.optional(rows, scratch, &mut table.expires_ns),
            "fired_ns" => input.optional(rows, scratch, &mut table.fired_ns),
            "armed_on" => input.optional(rows, scratch, &mut table.armed_on),
            "fired_on" => input.optional(rows, scratch, &mut table.fired_on),
            "vcpu_on" => input.optional(rows, scratch, &mut table.vcpu_on),
            "state" => known(input, rows, scratch, &mut table.state, VcpuState::ALL, VcpuState::name),
            "fire" => known(input, rows, scratch, &mut table.fire, Fire::ALL, Fire::name),
            "entered_ns" => input.optional(rows, scratch, &mut table.entered_ns),
            "late_tsc" => input.optional(rows, scratch, &mut table.late_tsc),
            "duration_ns" => input.optional(rows, scratch, &mut table.duration_ns),
            "reason" => named(input, rows, scratch, &mut table.reason, |name| {
                let number = self.reasons.get(name).copied();
                number.ok_or_else(|| format!("exit reason `{name}` is not in the list of reasons"))
            }),
            _ => known(input, rows, scratch, &mut table.cause, TimerPart::ALL, TimerPart::name),
        }
    }

    fn row(&self, row: usize, table: &Table, found: &mut TimerRows) -> Result<(), (&'static str, String)> {
        let null = |column| move || (column, "null, where there must be a value".to_owned());
        let vcpu = table.vcpu.get(row).copied().flatten().ok_or_else(null("vcpu"))?;
        let at_ns = table.at_ns.get(row).copied().unwrap_or(0);
        let last_ns = if table.kind.get(row).copied().flatten().ok_or_else(null("kind"))? {
            let timer = TimerRow {
                vcpu,
                armed_ns: at_ns,
                mechanism: get(&table.mechanism, row),
                expires_ns: get(&table.expires_ns, row),
                fired_ns: get(&table.fired_ns, row),
                armed_on: cpu(&table.armed_on, row, "armed_on")?,
                fired_on: cpu(&table.fired_on, row, "fired_on")?,
                vcpu_on: cpu(&table.vcpu_on, row, "vcpu_on")?,
                state: get(&table.state, row),
                fire: get(&table.fire, row),
                entered_ns: get(&table.entered_ns, row),
                late_tsc: get(&table.late_tsc, row).map(u64::cast_signed),
            };
            timer.check()?;
            found.timers.push(timer);
            timer.last_ns()
        } else {
            let exit = ExitRow {
                vcpu,
                start_ns: at_ns,
                duration_ns: get(&table.duration_ns, row).ok_or_else(null("duration_ns"))?,
                reason: get(&table.reason, row).ok_or_else(null("reason"))?,
                cause: get(&table.cause, row),
            };
            found.exits.push(exit);
            exit.last_ns()
        };
        match self.contents.first_ns.zip(self.contents.last_ns) {
            Some((first, last)) if first <= at_ns && last_ns <= last => Ok(()),
            _ => Err(("at_ns", "the row is outside of the span that the file claims".to_owned())),
        }
    }
}

/// Over what time rates are, from the metadata and the first and the last time of a row.
pub(super) fn span_ns(metadata: &Metadata<Owner>, rows: Option<(u64, u64)>) -> u64 {
    let rows = rows.map(|(start_ns, end_ns)| TimeRecorded { start_ns, end_ns });
    let time = match (metadata.recorded, rows) {
        (Some(time), Some(rows)) => Some(TimeRecorded {
            start_ns: time.start_ns.min(rows.start_ns),
            end_ns: time.end_ns.max(rows.end_ns),
        }),
        (time, rows) => time.or(rows),
    };
    time.map_or(0, TimeRecorded::ns)
}

/// The columns of a row group. `kind` is true for a timer.
#[derive(Default)]
struct Table {
    kind: Vec<Option<bool>>,
    vcpu: Vec<Option<u32>>,
    at_ns: Vec<u64>,
    mechanism: Vec<Option<Mechanism>>,
    expires_ns: Vec<Option<u64>>,
    fired_ns: Vec<Option<u64>>,
    armed_on: Vec<Option<u64>>,
    fired_on: Vec<Option<u64>>,
    vcpu_on: Vec<Option<u64>>,
    state: Vec<Option<VcpuState>>,
    fire: Vec<Option<Fire>>,
    entered_ns: Vec<Option<u64>>,
    late_tsc: Vec<Option<u64>>,
    duration_ns: Vec<Option<u64>>,
    reason: Vec<Option<u32>>,
    cause: Vec<Option<TimerPart>>,
    scratch: Scratch,
}

fn get<T: Copy>(column: &[Option<T>], row: usize) -> Option<T> {
    column.get(row).copied().flatten()
}

fn cpu(
    column: &[Option<u64>],
    row: usize,
    name: &'static str,
) -> Result<Option<u32>, (&'static str, String)> {
    let number = |cpu: u64| u32::try_from(cpu).map_err(|_| (name, format!("{cpu} is no number of a CPU")));
    get(column, row).map(number).transpose()
}

/// A column of texts that mean something.
fn named<T: Copy>(
    input: Input,
    rows: usize,
    scratch: &mut Scratch,
    out: &mut Vec<Option<T>>,
    translate: impl FnMut(&str) -> Result<T, String>,
) -> Result<(), Failure> {
    let mut names = Translator::new(translate);
    input.texts(rows, scratch, |name| {
        out.push(name.map(|name| names.get(name)).transpose()?);
        Ok(())
    })
}

/// A column of names of a few values.
fn known<T: Copy, const N: usize>(
    input: Input,
    rows: usize,
    scratch: &mut Scratch,
    out: &mut Vec<Option<T>>,
    all: [T; N],
    name: impl Fn(T) -> &'static str,
) -> Result<(), Failure> {
    named(input, rows, scratch, out, |text| {
        let found = all.into_iter().find(|&value| name(value) == text);
        found.ok_or_else(|| format!("`{text}` is none of {}", all.map(&name).join(", ")))
    })
}
