//! Timers and exits out of a Parquet file.

use super::{EXIT, ExitRow, FIELDS, Mechanism, TIMER, TimerContents, TimerPart, TimerRow};
use crate::decode::Failure;
use crate::metadata::{Metadata, TimeRecorded};
use crate::open::{OpenError, Opened};
use crate::reader::ReadError;
use crate::storage::Storage;
use crate::table_reader::Cells;
use dwell_policy::Owner;
use dwell_policy::timer::{Fire, VcpuState};
use std::collections::HashMap;
use std::path::Path;

/// Reads a recording of timers, row group by row group.
#[derive(Debug)]
pub struct TimerReader {
    file: Opened<TimerContents, Owner>,
    vcpus: HashMap<String, u32>,
    reasons: HashMap<String, u32>,
}

/// Rows, such as those of one row group, and the names that are new in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimerRows {
    /// Names of vCPUs; their numbers go on from those of the rows before. None from a [`TimerReader`], whose contents have
    /// all of them.
    pub vcpus: Vec<String>,
    /// Names of exit reasons, as those of vCPUs.
    pub reasons: Vec<String>,
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
        let file = Opened::<TimerContents, Owner>::timers(path, storage)?;
        let TimerContents { vcpus, reasons, .. } = &file.contents;
        let vcpus = (0..).zip(vcpus).map(|(number, vcpu)| (vcpu.name.clone(), number)).collect();
        let reasons = (0..).zip(reasons).map(|(number, name)| (name.clone(), number)).collect();
        Ok(TimerReader { file, vcpus, reasons })
    }

    /// What the recording says about itself.
    pub fn metadata(&self) -> &Metadata<Owner> {
        &self.file.metadata
    }

    /// What is in it: counts, vCPUs, exit reasons.
    pub fn contents(&self) -> &TimerContents {
        &self.file.contents
    }

    /// Over what time rates and shares are \[ns\]: the time recorded, lengthened by rows before and after it,
    /// else from the first row to the last time in a row.
    pub fn span_ns(&self) -> u64 {
        span_ns(&self.file.metadata, self.file.contents.first_ns.zip(self.file.contents.last_ns))
    }

    /// Number of row groups.
    pub fn row_groups(&self) -> usize {
        self.file.groups.len()
    }

    /// Reads row group number `row_group`.
    ///
    /// # Errors
    /// [`ReadError`], which names the row and the column.
    pub fn read(&self, row_group: usize) -> Result<TimerRows, ReadError> {
        let mut columns = FIELDS.each_ref().map(Cells::of);
        self.file.groups.fill(row_group, &FIELDS, &self.file.places, &mut columns)?;
        let mut found = TimerRows::default();
        for row in 0..columns[0].rows() {
            self.row(row, &columns, &mut found).map_err(|(column, what)| {
                self.file.groups.error(row_group, column, Failure::Value { row, what })
            })?;
        }
        Ok(found)
    }

    fn row(
        &self,
        row: usize,
        columns: &[Cells; FIELDS.len()],
        found: &mut TimerRows,
    ) -> Result<(), (&'static str, String)> {
        let [
            kind,
            vcpu,
            at_ns,
            mechanism,
            expires_ns,
            fired_ns,
            armed_on,
            fired_on,
            vcpu_on,
            state,
            fire,
            entered_ns,
            late_tsc,
            duration_ns,
            reason,
            cause,
        ] = columns;
        let null = |column| move || (column, "null, where there must be a value".to_owned());
        let name = vcpu.text(row).ok_or_else(null("vcpu"))?;
        let unknown = || ("vcpu", format!("vCPU `{name}` is not in the list of vCPUs"));
        let vcpu = self.vcpus.get(name).copied().ok_or_else(unknown)?;
        let at_ns = at_ns.number(row).ok_or_else(null("at_ns"))?;
        let cpu = |column: &'static str, cells: &Cells| {
            let number =
                |cpu: u64| u32::try_from(cpu).map_err(|_| (column, format!("{cpu} is no number of a CPU")));
            cells.number(row).map(number).transpose()
        };
        let last_ns = match kind.text(row).ok_or_else(null("kind"))? {
            TIMER => {
                let timer = TimerRow {
                    vcpu,
                    armed_ns: at_ns,
                    mechanism: known("mechanism", mechanism.text(row), Mechanism::ALL, Mechanism::name)?,
                    expires_ns: expires_ns.number(row),
                    fired_ns: fired_ns.number(row),
                    armed_on: cpu("armed_on", armed_on)?,
                    fired_on: cpu("fired_on", fired_on)?,
                    vcpu_on: cpu("vcpu_on", vcpu_on)?,
                    state: known("state", state.text(row), VcpuState::ALL, VcpuState::name)?,
                    fire: known("fire", fire.text(row), Fire::ALL, Fire::name)?,
                    entered_ns: entered_ns.number(row),
                    late_tsc: late_tsc.number(row).map(u64::cast_signed),
                };
                timer.check()?;
                found.timers.push(timer);
                timer.last_ns()
            }
            EXIT => {
                let name = reason.text(row).ok_or_else(null("reason"))?;
                let unknown = || ("reason", format!("exit reason `{name}` is not in the list of reasons"));
                let exit = ExitRow {
                    vcpu,
                    start_ns: at_ns,
                    duration_ns: duration_ns.number(row).ok_or_else(null("duration_ns"))?,
                    reason: self.reasons.get(name).copied().ok_or_else(unknown)?,
                    cause: known("cause", cause.text(row), TimerPart::ALL, TimerPart::name)?,
                };
                found.exits.push(exit);
                exit.last_ns()
            }
            other => return Err(("kind", format!("`{other}` is no kind of row"))),
        };
        match self.file.contents.first_ns.zip(self.file.contents.last_ns) {
            Some((first, last)) if first <= at_ns && last_ns <= last => Ok(()),
            _ => Err(("at_ns", "the row is outside of the span that the file claims".to_owned())),
        }
    }
}

/// Over what time rates are, from the metadata and the first and the last time of a row.
pub(super) fn span_ns(metadata: &Metadata<Owner>, rows: Option<(u64, u64)>) -> u64 {
    let of_rows = || rows.map(|(start_ns, end_ns)| TimeRecorded { start_ns, end_ns });
    let (first_ns, last_ns) = rows.unzip();
    let time = metadata.recorded.map(|time| time.with(first_ns, last_ns)).or_else(of_rows);
    time.map_or(0, TimeRecorded::ns)
}

/// What a text of a column means.
fn known<T: Copy, const N: usize>(
    column: &'static str,
    text: Option<&str>,
    all: [T; N],
    name: impl Fn(T) -> &'static str,
) -> Result<Option<T>, (&'static str, String)> {
    let Some(text) = text else { return Ok(None) };
    let found = all.into_iter().find(|&value| name(value) == text);
    let unknown = || (column, format!("`{text}` is none of {}", all.map(&name).join(", ")));
    found.ok_or_else(unknown).map(Some)
}
