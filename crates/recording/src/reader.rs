//! Episodes out of a Parquet file.

use crate::chunk::Chunk;
use crate::columns::{COLUMNS, Column, Columns};
use crate::contents::Contents;
use crate::decode::{Failure, Input, ReadyParser, Translator, guard};
use crate::episode::WakeCause;
use crate::idle_path::{self, Idled, Way};
use crate::metadata::{IdleIncludes, Metadata, TimeRecorded};
use crate::open::{OpenError, Opened};
use crate::pages;
use crate::segment::{self, CauseShares, Place, SEGMENTS_KEY, Segments};
use crate::storage::Storage;
use crate::table_reader::{TableReadError, TableReader};
use dwell_policy::Layer;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader};
use parquet::file::serialized_reader::SerializedFileReader;
use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why a row group could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There are fewer row groups.
    #[error("{path}: row group {row_group} is wanted, there are {row_groups}")]
    NoSuchRowGroup {
        /// The recording.
        path: PathBuf,
        /// From 0.
        row_group: usize,
        /// How many there are.
        row_groups: usize,
    },
    /// Parquet could not make sense of a column: the file is damaged.
    #[error("{path}: cannot read `{column}` in row group {row_group}; the file is damaged")]
    Damaged {
        /// The recording.
        path: PathBuf,
        /// From 0.
        row_group: usize,
        /// The column.
        column: &'static str,
        /// What Parquet said, or that it panicked and with what words.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A value is there that must not be.
    #[error("{path}: row {row} of row group {row_group}, `{column}`: {what}")]
    Value {
        /// The recording.
        path: PathBuf,
        /// From 0.
        row_group: usize,
        /// Of the row group, from 0.
        row: usize,
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        what: String,
    },
}

/// Reads a recording, row group by row group.
///
/// `&Reader` may be used by several threads at once, each with a [`Chunk`] of its own: row groups do not depend on
/// each other, and reading moves no cursor.
///
/// ```
/// # fn sum(path: &std::path::Path) -> Result<u64, Box<dyn std::error::Error>> {
/// use dwell_recording::{Chunk, Columns, Reader};
/// let reader = Reader::open(path)?;
/// let mut chunk = Chunk::default();
/// let mut idle_ns = 0;
/// for row_group in 0..reader.row_groups() {
///     reader.read(row_group, Columns::IDLE_NS, &mut chunk)?;
///     idle_ns += chunk.idle_ns.iter().sum::<u64>();
/// }
/// # Ok(idle_ns)
/// # }
/// ```
#[derive(Debug)]
pub struct Reader {
    file: Opened<Contents>,
    idlers: HashMap<String, u32>,
    handlers: Vec<HashMap<String, u32>>,
}

impl Reader {
    /// Opens the recording at `path`.
    ///
    /// # Errors
    /// [`OpenError`] where the file cannot be read or is no recording.
    pub fn open(path: &Path) -> Result<Reader, OpenError> {
        Reader::new(path, Storage::open(path)?)
    }

    /// Opens a recording that is in memory; errors call it by `name`.
    ///
    /// # Errors
    /// [`OpenError`] where the bytes are no recording.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Reader, OpenError> {
        Reader::new(Path::new(name), Storage::Memory(bytes.into()))
    }

    fn new(path: &Path, storage: Storage) -> Result<Reader, OpenError> {
        let file = Opened::<Contents>::new(path, storage)?;
        let list = &file.contents.idlers;
        let number = |names: &mut dyn Iterator<Item = &String>| -> HashMap<String, u32> {
            (0..).zip(names).map(|(number, name)| (name.clone(), number)).collect()
        };
        let idlers = number(&mut list.iter().map(|idler| &idler.name));
        let handlers = list.iter().map(|idler| number(&mut idler.handlers.iter())).collect();
        Ok(Reader { file, idlers, handlers })
    }

    /// What errors call the recording: its path, or the name that was given.
    pub fn name(&self) -> String {
        self.file.groups.path.display().to_string()
    }

    /// What the recording says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.file.metadata
    }

    /// The time recorded, if the metadata have it, lengthened by what episodes there are before and after it.
    pub fn time_recorded(&self) -> Option<TimeRecorded> {
        let Contents { first_start_ns, last_end_ns, .. } = self.file.contents;
        Some(self.file.metadata.recorded?.with(first_start_ns, last_end_ns))
    }

    /// Over what time rates and shares are \[ns\]: the time recorded, else from the first start of an episode
    /// to the last end.
    pub fn span_ns(&self) -> u64 {
        self.time_recorded().map_or(self.file.contents.span_ns(), TimeRecorded::ns)
    }

    /// What is in it: counts, idlers and their handlers.
    pub fn contents(&self) -> &Contents {
        &self.file.contents
    }

    /// Number of episodes.
    pub fn episodes(&self) -> u64 {
        self.file.contents.episodes
    }

    /// Number of row groups.
    pub fn row_groups(&self) -> usize {
        self.file.groups.len()
    }

    /// Number of episodes in a row group; 0 if there is no such row group.
    pub fn row_group_rows(&self, row_group: usize) -> u64 {
        self.file.groups.rows(row_group).unwrap_or(0) as u64
    }

    /// What ran between the episodes and what woke it; `None` where the recording does not have that.
    ///
    /// # Errors
    /// [`TableReadError`] where the file is damaged.
    pub fn segments(&self) -> Result<Option<Segments>, TableReadError> {
        let Some(place) = self.segments_place()? else { return Ok(None) };
        let RowGroups { path, storage, .. } = &self.file.groups;
        let bytes = storage.get_bytes(place.offset, place.length(path)?);
        let bytes =
            bytes.map_err(|source| OpenError::NotParquet { path: path.clone(), source: source.into() })?;
        let mut segments = segment::from_table(&TableReader::from_storage(path, Storage::Memory(bytes))?)?;
        if self.metadata().layer == Layer::Guest {
            let idled = self.idled(&idle_path::spans(&segments.rows))?;
            idle_path::add(&mut segments.rows, &idled);
        }
        let stolen_ns = self.metadata().stolen_ns().unwrap_or(0);
        Ok(Some(Segments {
            poll_step_ns: self.poll_step_ns(),
            residency_shorter_ns: self.metadata().residency_shorter_ns(),
            stolen_ns,
            slowed: self.metadata().slowed(),
            ..segments
        }))
    }

    /// The episodes of a guest's CPUs that begin in these spans.
    fn idled(&self, spans: &HashMap<u32, Range<u64>>) -> Result<HashMap<u32, Vec<Idled>>, ReadError> {
        let mut cpus: HashMap<u32, Vec<Idled>> = HashMap::new();
        let number = |idler: u32| {
            let name = &self.contents().idlers.get(idler as usize)?.name;
            name.strip_prefix("cpu")?.parse::<u32>().ok()
        };
        let is_whole = self.metadata().idle_includes == IdleIncludes::Wake;
        let mut chunk = Chunk::default();
        for row_group in 0..self.row_groups() {
            self.read(row_group, Columns::COURSE, &mut chunk)?;
            for row in 0..chunk.rows {
                let Some(cpu) = number(chunk.idler[row]) else { continue };
                let (start_ns, idle_ns) = (chunk.start_ns[row], chunk.idle_ns[row]);
                if !spans.get(&cpu).is_some_and(|span| span.contains(&start_ns)) {
                    continue;
                }
                let late_ns = chunk.wake_latency_ns[row].filter(|_| !is_whole).unwrap_or(0);
                let left_ns = start_ns.saturating_add(idle_ns).saturating_add(late_ns);
                let way = Way::of(chunk.window_ns[row], chunk.halted[row]);
                // A halt without a latency has ended at a time that is not known.
                let known =
                    is_whole || chunk.halted[row] == Some(false) || chunk.wake_latency_ns[row].is_some();
                cpus.entry(cpu).or_default().push(Idled { start_ns, left_ns, way: way.filter(|_| known) });
            }
        }
        Ok(cpus)
    }

    /// How long the recorded guest polls between two looks at the clock \[ns\]; 0: not known.
    pub fn poll_step_ns(&self) -> u64 {
        let metadata = self.metadata();
        metadata.poll_step_ns().filter(|_| metadata.layer == Layer::Guest).unwrap_or(0)
    }

    /// What woke the tasks of the recording, counted; `None` where it does not have that.
    ///
    /// # Errors
    /// [`OpenError`] where the file is damaged.
    pub fn cause_shares(&self) -> Result<Option<CauseShares>, OpenError> {
        Ok(self.segments_place()?.map(|place| place.causes))
    }

    fn segments_place(&self) -> Result<Option<Place>, OpenError> {
        match self.file.groups.json(SEGMENTS_KEY) {
            Err(OpenError::NotARecording { .. }) => Ok(None),
            place => place.map(Some),
        }
    }

    /// Reads `columns` of row group number `row_group` into `chunk`, and empties what was there.
    ///
    /// # Errors
    /// [`ReadError`] where there is no such row group, or the file is damaged; `chunk` is empty then.
    pub fn read(&self, row_group: usize, columns: Columns, chunk: &mut Chunk) -> Result<(), ReadError> {
        chunk.clear();
        chunk.rows = self.file.groups.rows(row_group)?;
        chunk.poll_step_ns = self.poll_step_ns();
        // `ready` is numbered by idler, so it cannot be read without.
        let with_idler = columns.contains(Columns::READY) && !columns.contains(Columns::IDLER);
        let wanted = if with_idler { columns | Columns::IDLER } else { columns };
        for (column, &place) in COLUMNS.iter().zip(&self.file.places).filter(|(c, _)| wanted.contains(c.set))
        {
            if let Err(failure) = guard(|| self.read_column(row_group, column, place, chunk)) {
                chunk.clear();
                return Err(self.file.groups.error(row_group, column.name, failure));
            }
        }
        if with_idler {
            chunk.idler.clear();
        }
        match self.out_of_span(chunk) {
            Some((row, column)) => {
                chunk.clear();
                let what = "the episode is outside of the span that the file claims".to_owned();
                Err(self.file.groups.error(row_group, column, Failure::Value { row, what }))
            }
            None => Ok(()),
        }
    }

    /// The first row that is not within the span of the recording's contents, and its column, as far as was read.
    fn out_of_span(&self, chunk: &Chunk) -> Option<(usize, &'static str)> {
        let (first, last) = self.file.contents.first_start_ns.zip(self.file.contents.last_end_ns)?;
        let early = chunk.start_ns.iter().position(|&start_ns| start_ns < first || start_ns > last);
        let ends = chunk.start_ns.iter().zip(&chunk.idle_ns);
        let late = || ends.clone().position(|(start_ns, idle_ns)| start_ns.saturating_add(*idle_ns) > last);
        early.map(|row| (row, "start_ns")).or_else(|| late().map(|row| (row, "idle_ns")))
    }

    fn read_column(
        &self,
        row_group: usize,
        column: &Column,
        place: Option<usize>,
        chunk: &mut Chunk,
    ) -> Result<(), Failure> {
        let input = self.file.groups.input(row_group, place)?;
        let Chunk { rows, scratch, .. } = chunk;
        let rows = *rows;
        match column.set {
            Columns::IDLER => match self.only_idler(row_group, place) {
                Some(only) => {
                    chunk.idler.resize(rows, only);
                    Ok(())
                }
                None => {
                    let mut names = Translator::new(|name: &str| {
                        let number = self.idlers.get(name).copied();
                        number.ok_or_else(|| format!("idler `{name}` is not in the list of idlers"))
                    });
                    input.texts(rows, scratch, |name| {
                        chunk.idler.push(names.get_some(name)?);
                        Ok(())
                    })
                }
            },
            Columns::START_NS => input.unsigned(rows, scratch, &mut chunk.start_ns),
            Columns::IDLE_NS => input.unsigned(rows, scratch, &mut chunk.idle_ns),
            Columns::WINDOW_NS => input.optional(rows, scratch, &mut chunk.window_ns),
            Columns::HALTED => input.flags(rows, scratch, &mut chunk.halted),
            Columns::WAKE => {
                let mut wakes = Translator::new(|name: &str| {
                    WakeCause::from_name(name).ok_or_else(|| format!("`{name}` is no kind of wakeup event"))
                });
                let wake = &mut chunk.wake;
                input.texts(rows, scratch, |name| {
                    wake.push(name.map(|name| wakes.get(name)).transpose()?);
                    Ok(())
                })
            }
            Columns::WAKE_LATENCY_NS => input.optional(rows, scratch, &mut chunk.wake_latency_ns),
            Columns::ALONE_NS => input.optional(rows, scratch, &mut chunk.alone_ns),
            _ => {
                let mut parser = ReadyParser::new(&self.handlers);
                let (idler, ready) = (&chunk.idler, &mut chunk.ready);
                input.texts(rows, scratch, |names| parser.push(names, idler, ready))
            }
        }
    }

    /// The one idler of a row group, where its statistics say that there is but one. Decoding a name for each row
    /// costs more than reading a column of integers, and most recordings are of one idler.
    fn only_idler(&self, row_group: usize, place: Option<usize>) -> Option<u32> {
        let statistics = self.file.groups.footer().row_group(row_group).column(place?).statistics()?;
        let exact = statistics.min_is_exact() && statistics.max_is_exact();
        let (min, max) = (statistics.min_bytes_opt()?, statistics.max_bytes_opt()?);
        if !exact || min != max || statistics.null_count_opt() != Some(0) {
            return None;
        }
        self.idlers.get(std::str::from_utf8(min).ok()?).copied()
    }
}

/// An open Parquet file, of which row groups are read.
pub(crate) struct RowGroups {
    pub(crate) path: PathBuf,
    pub(crate) file: SerializedFileReader<Storage>,
    pub(crate) storage: Storage,
}

impl fmt::Debug for RowGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowGroups").field("path", &self.path).finish_non_exhaustive()
    }
}

impl RowGroups {
    pub(crate) fn len(&self) -> usize {
        self.footer().num_row_groups()
    }

    /// Number of rows in a row group.
    pub(crate) fn rows(&self, row_group: usize) -> Result<usize, ReadError> {
        let row_groups = self.len();
        if row_group >= row_groups {
            return Err(ReadError::NoSuchRowGroup { path: self.path.clone(), row_group, row_groups });
        }
        Ok(usize::try_from(self.footer().row_group(row_group).num_rows()).unwrap_or(0))
    }

    /// The column at this place of the file.
    pub(crate) fn input(&self, row_group: usize, place: Option<usize>) -> Result<Input, ParquetError> {
        let Some(place) = place else { return Ok(Input::Absent) };
        let group = self.footer().row_group(row_group);
        pages::check(&self.storage, group.column(place), group.num_rows().unsigned_abs())?;
        let reader = Box::new(self.file.get_row_group(row_group)?.get_column_reader(place)?);
        let nullable = group.column(place).column_descr().max_def_level() > 0;
        Ok(Input::Present { reader, nullable })
    }

    pub(crate) fn error(&self, row_group: usize, column: &'static str, failure: Failure) -> ReadError {
        let path = self.path.clone();
        match failure {
            Failure::Parquet(source) => ReadError::Damaged { path, row_group, column, source: source.into() },
            Failure::Value { row, what } => ReadError::Value { path, row_group, row, column, what },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cause, Episode, Packing, Segment, Writer};

    /// An hour of episodes beside a second of segments was held in memory as a whole.
    #[test]
    fn episodes_outside_of_the_segments_are_not_held() {
        let mut metadata = Metadata::new(Layer::Guest);
        metadata.other.insert(crate::CPU_TIME.to_owned(), serde_json::json!({ "busy": 600, "steal": 400 }));
        let mut writer = Writer::new(Vec::new(), metadata, Packing::default()).unwrap();
        for start_ns in (0..100).map(|number| number * 10) {
            for cpu in ["cpu0", "cpu1"] {
                writer.push(&Episode { halted: Some(false), ..Episode::new(cpu, start_ns, 2) }).unwrap();
            }
        }
        let row = |start_ns| {
            let (cause, halted, idle) = (Cause::Unknown, None, None);
            Segment { task: 0, cpu: 1, start_ns, run_ns: 5, cause, halted, idle }
        };
        let rows = vec![row(203), row(213), row(233)];
        writer.set_segments(Segments { tasks: vec!["a/1".to_owned()], rows, ..Segments::default() });
        let reader = Reader::from_bytes("r", writer.close().unwrap().1).unwrap();
        let Segments { rows, stolen_ns, .. } = reader.segments().unwrap().unwrap();
        assert_eq!(stolen_ns, 400);
        let idle: Vec<bool> = rows.iter().map(|row| row.idle.is_some()).collect();
        assert_eq!(idle, [false, true, false], "of two episodes it is not known which");
        let idled = reader.idled(&idle_path::spans(&rows)).unwrap();
        let starts: Vec<u64> = idled[&1].iter().map(|idled| idled.start_ns).collect();
        assert_eq!((idled.len(), starts), (1, vec![210, 220, 230]));
    }
}
