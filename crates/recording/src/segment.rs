//! What ran between idle times, and what woke it.
//!
//! A *segment* is what a task runs from being switched in to being switched out, what a vCPU runs between two halts, or a
//! thread between two waits. Its *cause* is what made the task
//! runnable: a segment of another task, at an offset into it; an interrupt or a timer; or nothing, where it was
//! preempted and goes on. From segments with causes follows what the load does under another setting, and not only
//! what each idle time costs.

use crate::idle_path::IdlePath;
use crate::open::OpenError;
use crate::table::{Field, Kind, TableError, TableWriter, Value};
use crate::table_reader::{LONGEST_TEXT, TableReadError, TableReader};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// The key of a recording's metadata with the [`Place`] of the table.
pub(crate) const SEGMENTS_KEY: &str = "dwell.segments";
/// A recording has at most so many segments: they are in memory as a whole, 56 bytes each.
pub const MOST_SEGMENTS: usize = 1 << 21;
/// The table takes at most so many bytes of a file.
const MOST_BYTES: u64 = 256 << 20;

const FIELDS: [Field; 8] = [
    Field { name: "task", kind: Kind::Text, required: true },
    Field { name: "cpu", kind: Kind::Unsigned, required: true },
    Field { name: "start_ns", kind: Kind::Unsigned, required: true },
    Field { name: "run_ns", kind: Kind::Unsigned, required: true },
    Field { name: "cause", kind: Kind::Text, required: true },
    Field { name: "waker", kind: Kind::Unsigned, required: false },
    Field { name: "woken_ns", kind: Kind::Unsigned, required: false },
    Field { name: "halted", kind: Kind::Unsigned, required: false },
];

/// Where in the file the table is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// What is in it, so that it need not be read for that.
    pub(crate) causes: CauseShares,
}

impl Place {
    /// How many bytes to read; a file may claim any number.
    pub(crate) fn length(self, path: &Path) -> Result<usize, OpenError> {
        usize::try_from(self.bytes).ok().filter(|_| self.bytes <= MOST_BYTES).ok_or_else(|| {
            let what = format!("the segments are said to take {} bytes", self.bytes);
            OpenError::Contradiction { path: path.to_owned(), what }
        })
    }
}

/// A task on a CPU, from switched in to switched out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index into [`Segments::tasks`].
    pub task: u32,
    /// On which CPU.
    pub cpu: u32,
    /// When it was switched in \[ns, the recording's clock\].
    pub start_ns: u64,
    /// How long it ran \[ns\].
    pub run_ns: u64,
    /// What made the task runnable.
    pub cause: Cause,
    /// Whether the CPU halted right before. `Some(false)`: it polled, or did not idle; `None`: not known,
    /// or it was woken before it was in an idle state.
    pub halted: Option<bool>,
    /// How the CPU idled right before; `None`: not known, or not at all. It is not in the table: the reader has it from the
    /// episodes.
    pub idle: Option<IdlePath>,
}

impl Segment {
    /// When it was switched out \[ns\].
    pub const fn end_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.run_ns)
    }
}

/// What made a task runnable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A segment of another task.
    Task {
        /// Index of that segment; it is lower than that of the woken one.
        waker: u32,
        /// How far into it \[ns\]; beyond its end where it has only woken the thread that wakes this one.
        offset_ns: u64,
    },
    /// A timer.
    Timer {
        /// When it fired \[ns, the recording's clock\].
        woken_ns: u64,
    },
    /// An interrupt that is no timer.
    Interrupt {
        /// When the task was woken \[ns, the recording's clock\].
        woken_ns: u64,
    },
    /// Nothing: it was preempted, or yielded, and goes on.
    Preempted,
    /// Not seen.
    Unknown,
}

/// The segments of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Segments {
    /// Names of the tasks.
    pub tasks: Vec<String>,
    /// In order of their start; those of one task, and those of one CPU, do not overlap.
    pub rows: Vec<Segment>,
    /// How long the guest polls between two looks at the clock \[ns\]
    /// ([`Metadata::poll_step_ns`](crate::Metadata::poll_step_ns)); 0: not known.
    pub poll_step_ns: u64,
    /// How much shorter the haltpoll governor found halts than they are recorded \[ns\]
    /// ([`Metadata::residency_shorter_ns`](crate::Metadata::residency_shorter_ns)).
    pub residency_shorter_ns: u64,
    /// CPU time that the hypervisor gave to others while this was recorded \[ns\]
    /// ([`Metadata::stolen_ns`](crate::Metadata::stolen_ns)); 0: none, or not known.
    pub stolen_ns: u64,
    /// By how much recording slowed the load ([`Metadata::slowed`](crate::Metadata::slowed)).
    pub slowed: Option<f64>,
}

impl Segments {
    /// When the task of a row became runnable, where its cause has a time \[ns, the recording's clock\].
    pub fn woken_ns(&self, row: &Segment) -> Option<u64> {
        match row.cause {
            Cause::Task { waker, offset_ns } => {
                Some(self.rows.get(waker as usize)?.start_ns.saturating_add(offset_ns))
            }
            Cause::Timer { woken_ns } | Cause::Interrupt { woken_ns } => Some(woken_ns),
            Cause::Preempted | Cause::Unknown => None,
        }
    }

    /// Some of the rows. What another one woke was woken at that time.
    #[must_use]
    pub fn part(&self, rows: Range<usize>) -> Segments {
        self.of(rows, |_, _| true)
    }

    /// The same of those that `keep` says.
    #[must_use]
    pub fn only(&self, keep: impl Fn(usize, &Segment) -> bool) -> Segments {
        self.of(0..self.rows.len(), keep)
    }

    fn of(&self, range: Range<usize>, keep: impl Fn(usize, &Segment) -> bool) -> Segments {
        let (mut rows, mut places) = (vec![], vec![]);
        for (place, row) in self.rows.iter().enumerate().take(range.end).skip(range.start) {
            let is_kept = keep(place, row);
            places.push(u32::try_from(rows.len()).ok().filter(|_| is_kept));
            if !is_kept {
                continue;
            }
            let cause = match row.cause {
                Cause::Task { waker, offset_ns } => {
                    let kept = (waker as usize).checked_sub(range.start).and_then(|place| places.get(place));
                    match (kept.copied().flatten(), self.woken_ns(row)) {
                        (Some(waker), _) => Cause::Task { waker, offset_ns },
                        (None, Some(woken_ns)) => Cause::Interrupt { woken_ns },
                        (None, None) => Cause::Unknown,
                    }
                }
                other => other,
            };
            rows.push(Segment { cause, ..*row });
        }
        Segments { tasks: self.tasks.clone(), rows, ..*self }
    }

    /// Whether it is a thread of the program that recorded them, which has its name.
    pub fn is_recorder(&self, task: u32) -> bool {
        self.tasks.get(task as usize).is_some_and(|name| name.starts_with(RECORDER))
    }
}

/// What the names of the recorder's own threads begin with.
const RECORDER: &str = "dwell/";

/// Segments by their cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CauseShares {
    /// All segments.
    pub segments: u64,
    /// Woken by a segment that is in the recording: they come when it comes.
    pub coupled: u64,
    /// Woken by an interrupt: at its own time, or so long after a request.
    pub interrupts: u64,
    /// Woken by a timer: at its own time, or so long after it was set.
    pub timers: u64,
    /// Preempted, and went on.
    pub preempted: u64,
    /// Not known.
    pub unknown: u64,
}

impl Segments {
    /// How many have which cause.
    pub fn shares(&self) -> CauseShares {
        let mut shares = CauseShares { segments: self.rows.len() as u64, ..CauseShares::default() };
        for row in &self.rows {
            *match row.cause {
                Cause::Task { .. } => &mut shares.coupled,
                Cause::Interrupt { .. } => &mut shares.interrupts,
                Cause::Timer { .. } => &mut shares.timers,
                Cause::Preempted => &mut shares.preempted,
                Cause::Unknown => &mut shares.unknown,
            } += 1;
        }
        shares
    }

    /// Refuses what [`from_table`] does not read: too many rows, and names that are too long.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.rows.len() > MOST_SEGMENTS {
            return Err(format!(
                "there are {} segments, and at most {MOST_SEGMENTS} are read",
                self.rows.len()
            ));
        }
        match self.tasks.iter().find(|task| task.len() > LONGEST_TEXT) {
            Some(task) => {
                Err(format!("a task has a name of {} bytes, and at most {LONGEST_TEXT} are read", task.len()))
            }
            None => Ok(()),
        }
    }

    /// The table as a Parquet file.
    pub(crate) fn to_table(&self, zstd_level: i32) -> Result<Vec<u8>, TableError> {
        let created_by = concat!("dwell-recording ", env!("CARGO_PKG_VERSION"));
        let mut table = TableWriter::new(vec![], "segments", &FIELDS, zstd_level, created_by)?;
        table.row_group(
            &self.rows,
            [
                &|row| Some(self.tasks.get(row.task as usize).map_or("", String::as_str).into()),
                &|row| Some(row.cpu.into()),
                &|row| Some(row.start_ns.into()),
                &|row| Some(row.run_ns.into()),
                &|row| {
                    let cause = match row.cause {
                        Cause::Task { .. } => "task",
                        Cause::Timer { .. } => "timer",
                        Cause::Interrupt { .. } => "interrupt",
                        Cause::Preempted => "preempted",
                        Cause::Unknown => "unknown",
                    };
                    Some(cause.into())
                },
                &|row| match row.cause {
                    Cause::Task { waker, .. } => Some(waker.into()),
                    _ => None,
                },
                &|row| self.woken_ns(row).map(Value::from),
                &|row| row.halted.map(|halted| u32::from(halted).into()),
            ],
        )?;
        table.finish()
    }
}

/// Reads what [`Segments::to_table`] wrote, and refuses what no recording has.
pub(crate) fn from_table(table: &TableReader) -> Result<Segments, TableReadError> {
    let columns = table.read(&FIELDS, MOST_SEGMENTS as u64)?;
    let [tasks, cpus, starts, runs, causes, wakers, woken, halted] = columns.as_slice() else {
        return Ok(Segments::default());
    };
    let mut segments = Segments::default();
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut row = 0;
    while let (Some(task), Some(start_ns)) = (tasks.text(row), starts.number(row)) {
        let refused = |what: &str| {
            let what = format!("segment {row}: {what}");
            TableReadError::from(OpenError::Contradiction { path: table.path().to_owned(), what })
        };
        let count = u32::try_from(segments.tasks.len()).unwrap_or(u32::MAX);
        let task = *numbers.entry(task.to_owned()).or_insert_with(|| {
            segments.tasks.push(task.to_owned());
            count
        });
        let cpu = cpus.number(row).and_then(|cpu| u32::try_from(cpu).ok());
        let woken_ns = woken.number(row);
        let no_time = || refused("a wakeup without a time");
        let cause = match causes.text(row) {
            Some("task") => {
                let waker = wakers.number(row).and_then(|waker| u32::try_from(waker).ok());
                let by = waker.and_then(|waker| segments.rows.get(waker as usize).map(|by| (waker, by)));
                let (waker, by) = by.ok_or_else(|| refused("its waker is not before it"))?;
                let offset_ns = woken_ns.ok_or_else(no_time)?.checked_sub(by.start_ns);
                let offset_ns = offset_ns.ok_or_else(|| refused("it is woken before its waker starts"))?;
                Cause::Task { waker, offset_ns }
            }
            Some("timer") => Cause::Timer { woken_ns: woken_ns.ok_or_else(no_time)? },
            Some("interrupt") => Cause::Interrupt { woken_ns: woken_ns.ok_or_else(no_time)? },
            Some("preempted") => Cause::Preempted,
            _ => Cause::Unknown,
        };
        if segments.rows.last().is_some_and(|before| before.start_ns > start_ns) {
            return Err(refused("it starts before the one before it"));
        }
        segments.rows.push(Segment {
            task,
            cpu: cpu.ok_or_else(|| refused("no CPU"))?,
            start_ns,
            run_ns: runs.number(row).ok_or_else(|| refused("no length"))?,
            cause,
            halted: halted.number(row).map(|halted| halted != 0),
            idle: None,
        });
        row += 1;
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chunk, Columns, Episode, IdleIncludes, Layer, Metadata, Packing, Reader, Way, Writer};

    fn recording() -> Segments {
        let row = |task, start_ns, cause, halted| Segment {
            task,
            cpu: task,
            start_ns,
            run_ns: 50,
            cause,
            halted,
            idle: None,
        };
        Segments {
            tasks: vec!["redis/7".to_owned(), "client/8".to_owned()],
            rows: vec![
                row(0, 100, Cause::Unknown, None),
                row(1, 130, Cause::Task { waker: 0, offset_ns: 20 }, Some(true)),
                row(0, 200, Cause::Timer { woken_ns: 190 }, Some(false)),
                row(1, 260, Cause::Interrupt { woken_ns: 255 }, None),
                row(0, 260, Cause::Preempted, None),
            ],
            ..Segments::default()
        }
    }

    fn written(segments: Option<Segments>) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), Packing::default()).unwrap();
        writer.push(&Episode::new("cpu0", 150, 40)).unwrap();
        if let Some(segments) = segments {
            writer.set_segments(segments);
        }
        writer.close().unwrap().1
    }

    #[test]
    fn segments_are_read_back_and_episodes_as_without_them() {
        let reader = Reader::from_bytes("r", written(Some(recording()))).unwrap();
        assert_eq!(reader.segments().unwrap(), Some(recording()));
        let mut chunk = Chunk::default();
        reader.read(0, Columns::ALL, &mut chunk).unwrap();
        assert_eq!((chunk.start_ns[0], chunk.idle_ns[0]), (150, 40));
        assert_eq!(Reader::from_bytes("r", written(None)).unwrap().segments().unwrap(), None);
        let shares = recording().shares();
        let CauseShares { segments, coupled, interrupts, timers, preempted, unknown } = shares;
        assert_eq!([segments, coupled, interrupts, timers, preempted, unknown], [5, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_segment_has_the_idle_time_before_it() {
        let episode = Episode::new("cpu0", 160, 25);
        let episode = Episode { window_ns: Some(0), halted: Some(true), wake_latency_ns: Some(5), ..episode };
        let read = |includes: IdleIncludes| {
            let metadata = Metadata { idle_includes: includes, ..Metadata::new(Layer::Guest) };
            let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
            writer.push(&episode).unwrap();
            writer.set_segments(recording());
            let reader = Reader::from_bytes("r", writer.close().unwrap().1).unwrap();
            reader.segments().unwrap().unwrap().rows[2].idle
        };
        let path = |exit_ns: u32| Some(IdlePath { entry_ns: 10, exit_ns, way: Way::Halted });
        assert_eq!(read(IdleIncludes::Event), path(10));
        assert_eq!(read(IdleIncludes::Wake), path(15));
    }

    #[test]
    fn a_part_keeps_when_its_tasks_were_woken() {
        let (whole, part) = (recording(), recording().part(1..4));
        assert_eq!(part.rows.len(), 3);
        let woken = |of: &Segments| of.rows.iter().map(|row| of.woken_ns(row)).collect::<Vec<_>>();
        assert_eq!(woken(&part), woken(&whole)[1..4]);
        assert_eq!(whole.part(0..5), whole);
        assert!(whole.part(9..12).rows.is_empty());
    }

    #[test]
    fn segments_that_are_not_read_are_not_written() {
        let row = recording().rows[0];
        let write = |segments: Segments| {
            let mut writer =
                Writer::new(Vec::new(), Metadata::new(Layer::Guest), Packing::default()).unwrap();
            writer.set_segments(segments);
            crate::with_causes(&writer.close().unwrap_err()).to_string()
        };
        let many = write(Segments { rows: vec![row; MOST_SEGMENTS + 1], ..recording() });
        assert!(many.contains("there are 2097153 segments, and at most 2097152 are read"), "{many}");
        let long = write(Segments { tasks: vec!["t".repeat(4097)], ..recording() });
        assert!(long.contains("a task has a name of 4097 bytes, and at most 4096 are read"), "{long}");
    }

    #[test]
    fn segments_that_cannot_be_are_refused() {
        let error = |change: fn(&mut Segments)| {
            let mut segments = recording();
            change(&mut segments);
            Reader::from_bytes("r", written(Some(segments))).unwrap().segments().unwrap_err().to_string()
        };
        let waker = error(|segments| segments.rows[1].cause = Cause::Task { waker: 1, offset_ns: 0 });
        assert!(waker.contains("segment 1: its waker is not before it"), "{waker}");
        let order = error(|segments| segments.rows[3].start_ns = 10);
        assert!(order.contains("segment 3: it starts before the one before it"), "{order}");
    }
}
