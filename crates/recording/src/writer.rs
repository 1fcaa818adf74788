//! Episodes into a Parquet file.

use crate::columns::fields;
use crate::contents::{Contents, Idler};
use crate::decode::{MOST_TEXT, check_set, within};
use crate::episode::{Episode, WakeCause};
use crate::metadata::Metadata;
use crate::newfile::{NewFile, NewFileError, hint};
use crate::open::{MAX_ROWS, MOST_IDLERS};
use crate::segment::{Place, SEGMENTS_KEY, Segments};
use crate::table::{Field, TableError, TableWriter, plain, write_column};
use bytes::Bytes;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedFileWriter;
use serde::Serialize;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::fmt;
use std::io::Write;
use std::path::Path;

/// Value of `dwell.format` in what this crate writes, and the only one that it reads.
pub const FORMAT: &str = "1";
/// Value of `dwell.format` in a sketch, a table of `dwell-fleet`.
pub const SKETCH_FORMAT: &str = "sketch-2";
/// The key of a file's metadata with the version of its format.
pub const FORMAT_KEY: &str = "dwell.format";
pub(crate) const METADATA_KEY: &str = "dwell.recording";
pub(crate) const CONTENTS_KEY: &str = "dwell.contents";

/// Why a recording could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The file could not be made, or not be put in its place.
    #[error(transparent)]
    File(#[from] NewFileError),
    /// An idler's episodes must come in order of their start.
    #[error(
        "episode {episode} of idler `{idler}` starts at {start_ns} ns, before the one before it, at {previous_ns} ns; \
         sort the episodes of each idler by start_ns"
    )]
    OutOfOrder {
        /// Which of all episodes pushed, from 0.
        episode: u64,
        /// Whose.
        idler: String,
        /// When it starts \[ns\].
        start_ns: u64,
        /// When the one before it started \[ns\].
        previous_ns: u64,
    },
    /// The name is ambiguous in the list of those that were ready.
    #[error("episode {episode}: the name of a ready handler, `{handler}`, is empty or holds a comma")]
    HandlerName {
        /// Which of all episodes pushed, from 0.
        episode: u64,
        /// The name.
        handler: String,
    },
    /// A set of handlers that is not read.
    #[error("episode {episode}: the ready handlers: {what}")]
    ReadySet {
        /// Which of all episodes pushed, from 0.
        episode: u64,
        /// What is wrong with it.
        what: String,
    },
    /// More idlers than are read.
    #[error(
        "episode {episode} is of another idler than the {MOST_IDLERS} before it, and a recording has no more; record fewer idlers"
    )]
    TooManyIdlers {
        /// Which of all episodes pushed, from 0.
        episode: u64,
    },
    /// Writing or compressing failed.
    #[error("cannot write row group {row_group} of the recording{}", hint(.source.as_ref()))]
    RowGroup {
        /// From 0.
        row_group: usize,
        /// What Parquet said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The number is not one of this writer's.
    #[error("episode {episode} is of idler number {idler}, which this recording has not")]
    UnknownIdler {
        /// Which of all episodes pushed, from 0.
        episode: u64,
        /// The number.
        idler: u32,
    },
    /// A row of a recording of timers is not one that may be.
    #[error("row {row}: {what}")]
    Row {
        /// Which of all rows pushed, from 0.
        row: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The schema or the metadata could not be written.
    #[error("cannot write the {part} of the recording{}", hint(.source.as_ref()))]
    Frame {
        /// `schema`, `segments` or `metadata`.
        part: &'static str,
        /// What Parquet or serde said.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// How a recording is packed. The contents are the same whatever is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    /// Rows of a row group, from 1 to what readers take: what is held in memory before it is written, 25 to 60 bytes each.
    pub rows_per_group: usize,
    /// zstd level, 1 (fast) to 22 (small).
    pub zstd_level: i32,
}

impl Default for Packing {
    /// 256 Ki rows: about 10 MB of memory, and row groups enough for a few threads from one million episodes on.
    /// zstd 3 is zstd's own default.
    fn default() -> Packing {
        Packing { rows_per_group: 1 << 18, zstd_level: 3 }
    }
}

/// Writes a recording, in bounded memory: one row group is held at a time.
///
/// A file is written under a temporary name and gets its own in [`finish`](Writer::finish). If that is not reached,
/// there is no file and what was there before is untouched.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use dwell_recording::{Episode, Layer, Metadata, Writer};
/// let dir = tempfile::tempdir()?;
/// let mut writer = Writer::create(&dir.path().join("a.parquet"), Metadata::new(Layer::Guest))?;
/// writer.push(&Episode::new("cpu0", 0, 12_000))?;
/// let contents = writer.finish()?;
/// assert_eq!(contents.episodes, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Writer<W: Write + Send> {
    file: TableWriter<W>,
    metadata: Metadata,
    contents: Contents,
    idlers: Idlers,
    rows: Rows,
    rows_per_group: usize,
    zstd_level: i32,
    segments: Option<Segments>,
}

impl Writer<NewFile> {
    /// Begins the recording that will be at `path`.
    ///
    /// # Errors
    /// Where the file cannot be made.
    pub fn create(path: &Path, metadata: Metadata) -> Result<Self, WriteError> {
        Writer::create_packed(path, metadata, Packing::default())
    }

    /// Begins the recording that will be at `path`, packed as asked.
    ///
    /// # Errors
    /// Where the file cannot be made, or zstd has no such level.
    pub fn create_packed(path: &Path, metadata: Metadata, packing: Packing) -> Result<Self, WriteError> {
        Writer::new(NewFile::private(path)?, metadata, packing)
    }

    /// Writes what is left, and gives the file its name. Returns what is in it.
    ///
    /// # Errors
    /// What writing fails with; there is no new file then.
    pub fn finish(self) -> Result<Contents, WriteError> {
        let (contents, file) = self.close()?;
        file.keep()?;
        Ok(contents)
    }
}

impl<W: Write + Send> Writer<W> {
    /// Begins a recording that is written to `out`.
    ///
    /// # Errors
    /// Where `out` cannot be written to, or zstd has no such level.
    pub fn new(out: W, metadata: Metadata, packing: Packing) -> Result<Self, WriteError> {
        Ok(Writer {
            file: begin(out, &fields().collect::<Vec<_>>(), packing)?,
            metadata,
            contents: Contents::default(),
            idlers: Idlers::default(),
            rows: Rows::default(),
            rows_per_group: packing.rows_per_group.clamp(1, MAX_ROWS),
            zstd_level: packing.zstd_level,
            segments: None,
        })
    }

    /// What will be written as metadata. It may be changed until the end: settings that change and events that get
    /// lost are known only while recording.
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// What ran between the episodes, to be written after them.
    pub fn set_segments(&mut self, segments: Segments) {
        self.segments = Some(segments);
    }

    /// What was pushed so far.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// The number of the idler of this name, for [`push_numbered`](Writer::push_numbered). An idler that is new becomes
    /// part of the contents at once, so that one should be asked for when its first episode is there.
    ///
    /// # Errors
    /// [`WriteError::TooManyIdlers`].
    pub fn idler(&mut self, name: &str) -> Result<IdlerId, WriteError> {
        self.idlers.number(name, self.contents.episodes, &mut self.contents.idlers).map(IdlerId)
    }

    /// Appends one episode. After an error that is about the episode itself the writer is as before; after one of
    /// writing, [`close`](Writer::close) and [`finish`](Writer::finish) fail too.
    ///
    /// # Errors
    /// [`WriteError`]: what is wrong with the episode, or what writing a row group fails with.
    pub fn push(&mut self, episode: &Episode<'_>) -> Result<(), WriteError> {
        let ready = self.join_handlers(episode.ready)?;
        let idler = self.idler(episode.idler)?;
        self.push_joined(idler, episode, ready)
    }

    /// As [`push`](Writer::push), without looking for a name: the episode's own is not looked at.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use dwell_recording::{Episode, Layer, Metadata, Packing, Writer};
    /// let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), Packing::default())?;
    /// let cpu = writer.idler("cpu0")?;
    /// writer.push_numbered(cpu, &Episode::new("", 0, 12_000))?;
    /// assert_eq!(writer.contents().idlers[0].episodes, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`push`](Writer::push); [`WriteError::UnknownIdler`] for the number of another writer.
    pub fn push_numbered<I>(&mut self, idler: IdlerId, episode: &Episode<'_, I>) -> Result<(), WriteError> {
        let ready = self.join_handlers(episode.ready)?;
        self.push_joined(idler, episode, ready)
    }

    fn push_joined<I>(
        &mut self,
        idler: IdlerId,
        episode: &Episode<'_, I>,
        ready: Option<String>,
    ) -> Result<(), WriteError> {
        if self.rows.ready_bytes + ready.as_ref().map_or(0, String::len) > MOST_TEXT {
            self.flush()?;
        }
        let (number, idler) = (self.contents.episodes, idler.0);
        let known = self.contents.idlers.get_mut(idler as usize).zip(self.idlers.all.get_mut(idler as usize));
        let Some((entry, state)) = known else {
            return Err(WriteError::UnknownIdler { episode: number, idler });
        };
        let (start_ns, previous_ns) = (episode.start_ns, state.start_ns);
        if start_ns < previous_ns {
            let idler = entry.name.clone();
            return Err(WriteError::OutOfOrder { episode: number, idler, start_ns, previous_ns });
        }
        state.start_ns = start_ns;
        entry.episodes += 1;
        if self.rows.push_ready(idler, ready) {
            let names = episode.ready.unwrap_or_default().iter().map(|name| (*name).to_owned());
            entry.handlers.extend(names.filter(|name| state.handlers.insert(name.clone())));
        }
        self.rows.push(idler, episode);
        self.contents.count(episode.start_ns, episode.idle_ns);
        if self.rows.idler.len() >= self.rows_per_group { self.flush() } else { Ok(()) }
    }

    /// A set of handlers as its column has it.
    fn join_handlers(&self, names: Option<&[&str]>) -> Result<Option<String>, WriteError> {
        let (Some(names), episode) = (names, self.contents.episodes) else { return Ok(None) };
        if let Some(name) = names.iter().find(|name| name.is_empty() || name.contains(',')) {
            return Err(WriteError::HandlerName { episode, handler: (*name).to_owned() });
        }
        let joined = names.join(",");
        if !self.rows.ready_numbers.contains_key(&joined) {
            let checked = check_set(names.iter().copied()).and_then(|()| within(0, joined.as_bytes()));
            checked.map_err(|what| WriteError::ReadySet { episode, what })?;
        }
        Ok(Some(joined))
    }

    /// Writes what is left, and returns what is in the recording, and where it was written to.
    ///
    /// # Errors
    /// What writing fails with, now or before.
    pub fn close(mut self) -> Result<(Contents, W), WriteError> {
        if !self.rows.idler.is_empty() {
            self.flush()?;
        }
        let Writer { mut file, metadata, contents, zstd_level, segments, .. } = self;
        if let Some(segments) = segments {
            let frame = |source| WriteError::Frame { part: "segments", source };
            segments.check().map_err(|what| frame(what.into()))?;
            let table = segments.to_table(zstd_level).map_err(|TableError(source)| frame(source))?;
            let offset = file.file.bytes_written() as u64;
            let place = Place { offset, bytes: table.len() as u64, causes: segments.shares() };
            file.file.write_all(&table).map_err(|source| frame(source.into()))?;
            file.metadata(SEGMENTS_KEY, json(&place)?);
        }
        let out = end(file, &metadata, (CONTENTS_KEY, &contents))?;
        Ok((contents, out))
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        let row_group = self.file.file.flushed_row_groups().len();
        let names: Vec<ByteArray> =
            self.contents.idlers.iter().map(|idler| ByteArray::from(idler.name.as_str())).collect();
        write_rows(&mut self.file.file, &std::mem::take(&mut self.rows), &names)
            .map_err(|source| WriteError::RowGroup { row_group, source: plain(source) })
    }
}

/// Begins a recording of any kind.
pub(crate) fn begin<W: Write + Send>(
    out: W,
    fields: &[Field],
    packing: Packing,
) -> Result<TableWriter<W>, WriteError> {
    let created_by = concat!("dwell-recording ", env!("CARGO_PKG_VERSION"));
    TableWriter::new(out, "dwell", fields, packing.zstd_level, created_by)
        .map_err(|TableError(source)| WriteError::Frame { part: "schema", source })
}

/// Ends a recording of any kind: with its metadata, and its contents under their key.
pub(crate) fn end<W: Write + Send>(
    mut file: TableWriter<W>,
    metadata: &impl Serialize,
    (key, contents): (&str, &impl Serialize),
) -> Result<W, WriteError> {
    file.metadata(FORMAT_KEY, FORMAT.to_owned());
    file.metadata(METADATA_KEY, json(metadata)?);
    file.metadata(key, json(contents)?);
    file.finish().map_err(|TableError(source)| WriteError::Frame { part: "metadata", source })
}

fn json(value: &impl Serialize) -> Result<String, WriteError> {
    serde_json::to_string(value)
        .map_err(|source| WriteError::Frame { part: "metadata", source: source.into() })
}

/// An idler of one [`Writer`], by [`Writer::idler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdlerId(u32);

impl IdlerId {
    /// Its index in [`Contents::idlers`].
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Numbers of idlers, and where each is.
#[derive(Debug, Default)]
struct Idlers {
    numbers: HashMap<String, u32>,
    /// The idler of the last episode: most often the next one's too.
    last: u32,
    all: Vec<IdlerState>,
}

#[derive(Debug, Default)]
struct IdlerState {
    /// When its last episode started \[ns\].
    start_ns: u64,
    handlers: HashSet<String>,
}

impl Idlers {
    fn number(&mut self, name: &str, episode: u64, list: &mut Vec<Idler>) -> Result<u32, WriteError> {
        if list.get(self.last as usize).is_some_and(|idler| idler.name == name) {
            return Ok(self.last);
        }
        if let Some(&number) = self.numbers.get(name) {
            self.last = number;
            return Ok(number);
        }
        let number = u32::try_from(list.len())
            .ok()
            .filter(|_| list.len() < MOST_IDLERS)
            .ok_or(WriteError::TooManyIdlers { episode })?;
        self.numbers.insert(name.to_owned(), number);
        self.all.push(IdlerState::default());
        list.push(Idler { name: name.to_owned(), ..Idler::default() });
        self.last = number;
        Ok(number)
    }
}

/// The values of a column that are not null, and which rows have one: the form in which Parquet takes them.
///
/// Most recorders know a thing always or never; the levels of the first rows are written down only when they differ.
struct Optional<T> {
    values: Vec<T>,
    /// How many rows there were while all or none had a value; `levels` is empty until one differs, and then has all.
    alike: usize,
    levels: Vec<i16>,
}

impl<T> Default for Optional<T> {
    fn default() -> Self {
        Optional { values: Vec::new(), alike: 0, levels: Vec::new() }
    }
}

impl<T> Optional<T> {
    #[inline]
    fn push(&mut self, value: Option<T>) {
        if self.levels.is_empty() && (self.alike == 0 || self.values.is_empty() == value.is_none()) {
            self.alike += 1;
        } else {
            if self.levels.is_empty() {
                self.levels = self.first_levels();
            }
            self.levels.push(i16::from(value.is_some()));
        }
        self.values.extend(value);
    }

    fn first_levels(&self) -> Vec<i16> {
        vec![i16::from(!self.values.is_empty()); self.alike]
    }

    /// For every row, whether it has a value.
    fn levels(&self) -> Cow<'_, [i16]> {
        if self.levels.is_empty() { Cow::Owned(self.first_levels()) } else { Cow::Borrowed(&self.levels) }
    }
}

/// The row group that is being filled.
#[derive(Default)]
struct Rows {
    idler: Vec<u32>,
    start_ns: Vec<i64>,
    idle_ns: Vec<i64>,
    window_ns: Optional<i64>,
    halted: Optional<bool>,
    wake: Optional<WakeCause>,
    wake_latency_ns: Optional<i64>,
    ready: Optional<u32>,
    ready_sets: Vec<ByteArray>,
    ready_numbers: HashMap<String, u32>,
    ready_seen: HashSet<(u32, u32)>,
    /// Length of the texts of the sets, each once for each idler.
    ready_bytes: usize,
    alone_ns: Optional<i64>,
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("rows", &self.idler.len()).finish_non_exhaustive()
    }
}

impl Rows {
    /// Everything but `ready`. Parquet stores unsigned integers as signed ones of the same bits.
    fn push<I>(&mut self, idler: u32, episode: &Episode<'_, I>) {
        self.idler.push(idler);
        self.start_ns.push(episode.start_ns.cast_signed());
        self.idle_ns.push(episode.idle_ns.cast_signed());
        self.window_ns.push(episode.window_ns.map(u64::cast_signed));
        self.halted.push(episode.halted);
        self.wake.push(episode.wake);
        self.wake_latency_ns.push(episode.wake_latency_ns.map(u64::cast_signed));
        self.alone_ns.push(episode.alone_ns.map(u64::cast_signed));
    }

    /// Returns whether this idler has this set of handlers for the first time in this row group.
    fn push_ready(&mut self, idler: u32, joined: Option<String>) -> bool {
        let Some(joined) = joined else {
            self.ready.push(None);
            return false;
        };
        let bytes = joined.len();
        let number = match self.ready_numbers.get(&joined) {
            Some(&number) => number,
            None => {
                let number = u32::try_from(self.ready_sets.len()).unwrap_or(u32::MAX);
                self.ready_sets.push(ByteArray::from(joined.as_str()));
                self.ready_numbers.insert(joined, number);
                number
            }
        };
        self.ready.push(Some(number));
        let is_new = self.ready_seen.insert((idler, number));
        self.ready_bytes += if is_new { bytes } else { 0 };
        is_new
    }
}

/// Writes a row group: the columns in the order of [`COLUMNS`](crate::COLUMNS).
fn write_rows<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    rows: &Rows,
    names: &[ByteArray],
) -> Result<(), ParquetError> {
    let wake = |wake: &WakeCause| ByteArray::from(Bytes::from_static(wake.name().as_bytes()));
    let wakes: Vec<ByteArray> = rows.wake.values.iter().map(wake).collect();
    let ready = pick(&rows.ready.values, &rows.ready_sets);
    let mut group = file.next_row_group()?;
    write_column::<_, ByteArrayType>(&mut group, &pick(&rows.idler, names), None)?;
    write_column::<_, Int64Type>(&mut group, &rows.start_ns, None)?;
    write_column::<_, Int64Type>(&mut group, &rows.idle_ns, None)?;
    write_column::<_, Int64Type>(&mut group, &rows.window_ns.values, Some(&rows.window_ns.levels()))?;
    write_column::<_, BoolType>(&mut group, &rows.halted.values, Some(&rows.halted.levels()))?;
    write_column::<_, ByteArrayType>(&mut group, &wakes, Some(&rows.wake.levels()))?;
    let latency = &rows.wake_latency_ns;
    write_column::<_, Int64Type>(&mut group, &latency.values, Some(&latency.levels()))?;
    write_column::<_, ByteArrayType>(&mut group, &ready, Some(&rows.ready.levels()))?;
    write_column::<_, Int64Type>(&mut group, &rows.alone_ns.values, Some(&rows.alone_ns.levels()))?;
    group.close()?;
    Ok(())
}

fn pick(numbers: &[u32], from: &[ByteArray]) -> Vec<ByteArray> {
    numbers.iter().filter_map(|&number| from.get(number as usize).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layer;
    use std::io;

    fn writer() -> Writer<Vec<u8>> {
        Writer::new(Vec::new(), Metadata::new(Layer::Iothread), Packing::default()).unwrap()
    }

    #[test]
    fn row_groups_have_no_more_rows_than_are_read() {
        let packing = Packing { rows_per_group: usize::MAX, ..Packing::default() };
        let writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap();
        assert_eq!(writer.rows_per_group, MAX_ROWS);
    }

    /// A disk that was full for a moment: the recording lacks a row group, and is none.
    #[test]
    fn what_failed_to_be_written_once_cannot_be_finished() {
        struct Full(u32);
        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += 1;
                if self.0 == 2 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let packing = Packing { rows_per_group: 1 << 14, ..Packing::default() };
        let mut writer = Writer::new(Full(0), Metadata::new(Layer::Guest), packing).unwrap();
        let failed =
            (0..1 << 16).filter(|at| writer.push(&Episode::new("cpu0", at * at, *at)).is_err()).count();
        assert!(failed > 0 && writer.close().is_err(), "{failed}");
    }

    #[test]
    fn sets_of_handlers_that_are_not_read_are_not_written() {
        let mut writer = writer();
        let many: Vec<String> = (0..4097).map(|number| number.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let refused = |writer: &mut Writer<_>, ready| {
            writer.push(&Episode { ready: Some(ready), ..Episode::new("io", 0, 5) }).unwrap_err().to_string()
        };
        let error = refused(&mut writer, &["a", "b", "a"]);
        assert_eq!(error, "episode 0: the ready handlers: handler `a` is in the set twice");
        assert!(refused(&mut writer, &many).ends_with("the set has more than 4096 handlers"));
        assert!(writer.contents().idlers.is_empty());
    }

    #[test]
    fn a_row_group_ends_before_its_sets_are_too_long() {
        let mut writer = writer();
        let episode = Episode { ready: Some(&["a", "b"]), ..Episode::new("io", 0, 5) };
        writer.push(&episode).unwrap();
        writer.push(&episode).unwrap();
        assert_eq!(writer.rows.ready_bytes, 3);
        writer.rows.ready_bytes = MOST_TEXT - 2;
        writer.push(&episode).unwrap();
        assert_eq!((writer.rows.idler.len(), writer.rows.ready_bytes), (1, 3));
    }
}
