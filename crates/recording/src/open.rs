//! What is checked when a recording is opened.

use crate::columns::fields;
use crate::contents::{Contents, twice};
use crate::decode::guard;
use crate::footer;
use crate::metadata::Metadata;
use crate::reader::RowGroups;
use crate::storage::Storage;
use crate::table::{Field, Kind};
use crate::timer::{MOST_ROWS, TIMERS_KEY, TimerContents};
use crate::writer::{CONTENTS_KEY, FORMAT, FORMAT_KEY, METADATA_KEY, SKETCH_FORMAT};
use dwell_policy::{Layer, Owner};
use parquet::basic::{ConvertedType, LogicalType, Type as Physical};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, FileReader, Length};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::ColumnDescriptor;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

/// Idlers of a recording at most: figures of each are kept, with up to about 8 kB an idler. A host has some thousand vCPUs.
pub const MOST_IDLERS: usize = 100_000;

/// Rows of a row group that are read at most: a row group is in memory as a whole, with up to about 100 bytes a row.
/// Writers make groups of about a million rows; a file that claims far more is damaged, or needs more memory than a
/// reader should take without asking.
pub(crate) const MAX_ROWS: usize = 1 << 22;
/// The same of a recording of timers, which takes about 400 bytes a row while a row group is read.
pub(crate) const MAX_TIMER_ROWS: usize = 1 << 20;

/// Why a file was not opened as a recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The system would not open it.
    #[error("cannot open the recording {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is to be read from stdin.
    #[error("cannot read a recording from stdin: it is read by position; write it to a file, and give that")]
    Stdin,
    /// It has no bytes.
    #[error(
        "{path}: the file is empty; a recorder that was killed leaves none, so this is no recording of dwell's"
    )]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// It begins as Parquet does and does not end so.
    #[error(
        "{path}: the file is cut off after {bytes} bytes: its end, which a recording is read by, is missing; copy it again"
    )]
    CutOff {
        /// The file.
        path: PathBuf,
        /// How long it is.
        bytes: u64,
    },
    /// It is compressed, or an archive.
    #[error(
        "{path}: is {what}; unpack it first (`dwell import` reads traces and tables that are compressed)"
    )]
    Packed {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It does not begin and end as Parquet does, or its footer makes no sense.
    #[error("{path}: not a Parquet file, or a damaged one; `dwell import` reads CSV and traces")]
    NotParquet {
        /// The file.
        path: PathBuf,
        /// What Parquet said, or that it panicked and with what words.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The file of another recorder.
    #[error(
        "{path}: {what}, no recording of dwell's; `dwell import {path} --convert -o RECORDING` makes one"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Parquet, but not dwell's.
    #[error("{path}: not a dwell recording: no `{key}` metadata; `dwell import` reads plain tables")]
    NotARecording {
        /// The file.
        path: PathBuf,
        /// The key that is missing.
        key: &'static str,
    },
    /// A sketch, which `dwell-fleet` reads.
    #[error("{path}: a sketch, which has costs and no episodes; `dwell fleet` reads it")]
    Sketch {
        /// The file.
        path: PathBuf,
    },
    /// A recording of timers, where one of idle times is wanted.
    #[error(
        "{path}: this is a recording of timers and VM exits, without idle times; `dwell timer tune`, `dwell timer exits` and `dwell info` read it"
    )]
    Timers {
        /// The file.
        path: PathBuf,
    },
    /// A recording of idle times, where one of timers is wanted.
    #[error(
        "{path}: this is a recording of idle times, without timers and VM exits; `dwell timer record` and `dwell timer import` make one with them"
    )]
    NoTimers {
        /// The file.
        path: PathBuf,
    },
    /// Written in a format that this program does not know.
    #[error("{path}: `dwell.format` is `{found}`; this program reads `{FORMAT}`: use a newer dwell")]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The version it claims.
        found: String,
    },
    /// A metadata value is not what it must be.
    #[error("{path}: metadata `{key}` cannot be understood")]
    BadMetadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What serde said; it names the field.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A column that must be there is not.
    #[error("{path}: no column `{column}`; a recording has one, {kind}")]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// Of what type it must be.
        kind: &'static str,
    },
    /// A column is of another type than it must be.
    #[error("{path}: column `{column}` is {found}; it must be {kind}")]
    ColumnType {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
        /// Of what type it is.
        found: String,
        /// Of what type it must be.
        kind: &'static str,
    },
    /// It is to be read into memory, and would take too much.
    #[error(
        "{path}: {rows} timers and exits, and at most {MOST_ROWS} are read into memory; record for a shorter time"
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// How many there are.
        rows: u64,
    },
    /// The metadata and the data contradict each other.
    #[error("{path}: {what}; the file is damaged or was changed by another program")]
    Contradiction {
        /// The file.
        path: PathBuf,
        /// What does not fit what.
        what: String,
    },
}

/// A file that is a recording as far as its footer shows; no row has been read. Its contents are of type `C`.
#[derive(Debug)]
pub(crate) struct Opened<C, O = Layer> {
    pub(crate) groups: RowGroups,
    pub(crate) metadata: Metadata<O>,
    pub(crate) contents: C,
    /// For each column of the format its place in the file.
    pub(crate) places: Vec<Option<usize>>,
}

impl Opened<Contents> {
    /// A recording of idle times.
    pub(crate) fn new(path: &Path, storage: Storage) -> Result<Opened<Contents>, OpenError> {
        let groups = RowGroups::open_recording(path, storage)?;
        if groups.text(TIMERS_KEY).is_ok() {
            return Err(OpenError::Timers { path: path.to_owned() });
        }
        Opened::of(groups, CONTENTS_KEY, fields(), MAX_ROWS, check)
    }
}

impl Opened<TimerContents, Owner> {
    /// A recording of timers.
    pub(crate) fn timers(path: &Path, storage: Storage) -> Result<Opened<TimerContents, Owner>, OpenError> {
        let groups = RowGroups::open_recording(path, storage)?;
        if groups.text(TIMERS_KEY).is_err() && groups.text(CONTENTS_KEY).is_ok() {
            return Err(OpenError::NoTimers { path: path.to_owned() });
        }
        let fields = crate::timer::FIELDS.iter().copied();
        Opened::of(groups, TIMERS_KEY, fields, MAX_TIMER_ROWS, TimerContents::check)
    }
}

impl<C: DeserializeOwned, O: TryFrom<Owner, Error: Display>> Opened<C, O> {
    /// The contents are under `key`; `check` compares them with the number of rows.
    fn of(
        groups: RowGroups,
        key: &'static str,
        fields: impl Iterator<Item = Field>,
        most_rows: usize,
        check: impl FnOnce(&C, u64) -> Result<(), String>,
    ) -> Result<Opened<C, O>, OpenError> {
        let metadata = groups.json(METADATA_KEY)?;
        let contents = groups.json(key)?;
        let places = groups.find_columns(fields)?;
        rows(groups.footer(), most_rows)
            .and_then(|rows| check(&contents, rows))
            .map_err(|what| groups.contradiction(what))?;
        Ok(Opened { groups, metadata, contents, places })
    }
}

impl RowGroups {
    /// A Parquet file whose footer makes sense.
    pub(crate) fn open(path: &Path, storage: Storage) -> Result<RowGroups, OpenError> {
        if storage.len() == 0 {
            return Err(OpenError::Empty { path: path.to_owned() });
        }
        let named = |names: &[(&[u8], &'static str)]| {
            names.iter().find(|(magic, _)| holds(&storage, 0, magic)).map(|(_, what)| *what)
        };
        if let Some(what) = named(&FOREIGN) {
            return Err(OpenError::Foreign { path: path.to_owned(), what });
        }
        if let Some(what) = named(&PACKED).or(holds(&storage, 257, b"ustar").then_some("a tar archive")) {
            return Err(OpenError::Packed { path: path.to_owned(), what });
        }
        if holds(&storage, 0, PARQUET) && !holds(&storage, storage.len().saturating_sub(4), PARQUET) {
            return Err(OpenError::CutOff { path: path.to_owned(), bytes: storage.len() });
        }
        let file =
            guard(|| footer::check(&storage).and_then(|()| SerializedFileReader::new(storage.clone())))
                .map_err(|source: ParquetError| OpenError::NotParquet {
                    path: path.to_owned(),
                    source: source.into(),
                })?;
        Ok(RowGroups { path: path.to_owned(), file, storage })
    }

    fn open_recording(path: &Path, storage: Storage) -> Result<RowGroups, OpenError> {
        let groups = RowGroups::open(path, storage)?;
        match groups.text(FORMAT_KEY)? {
            FORMAT => Ok(groups),
            SKETCH_FORMAT => Err(OpenError::Sketch { path: path.to_owned() }),
            other => {
                let found = other.to_owned();
                Err(OpenError::UnknownFormat { path: path.to_owned(), found })
            }
        }
    }

    pub(crate) fn footer(&self) -> &ParquetMetaData {
        self.file.metadata()
    }

    /// A text of the file's metadata.
    pub(crate) fn text(&self, key: &'static str) -> Result<&str, OpenError> {
        let pairs = self.footer().file_metadata().key_value_metadata().map_or(&[][..], Vec::as_slice);
        let pair = pairs.iter().find(|pair| pair.key == key);
        pair.and_then(|pair| pair.value.as_deref())
            .ok_or_else(|| OpenError::NotARecording { path: self.path.clone(), key })
    }

    /// A value of the file's metadata, which is JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self, key: &'static str) -> Result<T, OpenError> {
        serde_json::from_str(self.text(key)?).map_err(|source| OpenError::BadMetadata {
            path: self.path.clone(),
            key,
            source: source.into(),
        })
    }

    pub(crate) fn contradiction(&self, what: String) -> OpenError {
        OpenError::Contradiction { path: self.path.clone(), what }
    }

    /// The places of these fields in the file.
    pub(crate) fn find_columns(
        &self,
        fields: impl Iterator<Item = Field>,
    ) -> Result<Vec<Option<usize>>, OpenError> {
        let found = self.footer().file_metadata().schema_descr().columns();
        let mut places = vec![];
        for field in fields {
            let place = found.iter().position(|descriptor| descriptor.path().string() == field.name);
            match place.and_then(|at| found.get(at)) {
                Some(descriptor) => check_type(&self.path, field.name, field.kind, descriptor)?,
                None if field.required => {
                    let kind = field.kind.describe();
                    return Err(OpenError::NoColumn { path: self.path.clone(), column: field.name, kind });
                }
                None => {}
            }
            places.push(place);
        }
        Ok(places)
    }
}

/// What recorders' own files begin with, and what they are.
pub const FOREIGN: [(&[u8], &str); 3] = [
    (b"PERFILE2", "a perf.data of perf"),
    // Of a big-endian machine.
    (b"2ELIFREP", "a perf.data of perf"),
    (b"\x17\x08\x44tracing", "a trace.dat of trace-cmd"),
];

/// What compressed files begin with: gzip, xz and zstd.
pub const COMPRESSED: [&[u8]; 3] = [b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"];
/// What a text in UTF-16 begins with.
pub const UTF_16: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];
pub(crate) const PACKED: [(&[u8], &str); 4] = [
    (COMPRESSED[0], "compressed by gzip"),
    (COMPRESSED[1], "compressed by xz"),
    (COMPRESSED[2], "compressed by zstd"),
    (b"PK\x03\x04", "a zip archive"),
];
/// What a Parquet file begins and ends with.
const PARQUET: &[u8] = b"PAR1";

fn holds(storage: &Storage, at: u64, magic: &[u8]) -> bool {
    storage.get_bytes(at, magic.len()).is_ok_and(|bytes| bytes == magic)
}

fn check_type(
    path: &Path,
    column: &'static str,
    kind: Kind,
    found: &ColumnDescriptor,
) -> Result<(), OpenError> {
    let logical = found.logical_type_ref();
    let fits = match kind {
        Kind::Text => {
            found.physical_type() == Physical::BYTE_ARRAY
                && (matches!(logical, Some(LogicalType::String))
                    || found.converted_type() == ConvertedType::UTF8)
        }
        Kind::Unsigned => {
            found.physical_type() == Physical::INT64 && found.converted_type() == ConvertedType::UINT_64
        }
        Kind::Signed => found.physical_type() == Physical::INT64 && logical.is_none(),
        Kind::SignedList => false,
        Kind::Real => found.physical_type() == Physical::DOUBLE,
        Kind::Flag => found.physical_type() == Physical::BOOLEAN,
    };
    if fits && found.max_rep_level() == 0 && found.max_def_level() <= 1 {
        return Ok(());
    }
    let logical = logical.map_or_else(String::new, |logical| format!(" ({logical:?})"));
    Err(OpenError::ColumnType {
        path: path.to_owned(),
        column,
        found: format!("{}{logical}", found.physical_type()),
        kind: kind.describe(),
    })
}

/// How many rows there are in all, none of the row groups with more than `most`.
fn rows(footer: &ParquetMetaData, most: usize) -> Result<u64, String> {
    let mut rows: u64 = 0;
    for (index, group) in footer.row_groups().iter().enumerate() {
        let count = group.num_rows();
        if !usize::try_from(count).is_ok_and(|count| count <= most) {
            return Err(format!(
                "row group {index} claims {count} rows, and at most {most} are read; write it with smaller row groups"
            ));
        }
        rows = rows.saturating_add(count.unsigned_abs());
    }
    Ok(rows)
}

fn check(contents: &Contents, rows: u64) -> Result<(), String> {
    if contents.idlers.len() > MOST_IDLERS {
        let idlers = contents.idlers.len();
        return Err(format!(
            "there are {idlers} idlers, and at most {MOST_IDLERS} are read, as each takes several kB of memory; record fewer"
        ));
    }
    let idlers: u64 = contents.idlers.iter().fold(0, |sum, idler| sum.saturating_add(idler.episodes));
    if rows != contents.episodes || idlers != contents.episodes {
        return Err(format!(
            "there are {rows} rows, `{CONTENTS_KEY}` says {} episodes and {idlers} over all idlers",
            contents.episodes
        ));
    }
    if let Some((first, last)) = contents.first_start_ns.zip(contents.last_end_ns)
        && first > last
    {
        return Err(format!("`{CONTENTS_KEY}` says that the episodes are from {first} ns to {last} ns"));
    }
    match twice(contents.idlers.iter().map(|idler| &idler.name)) {
        Some(name) => Err(format!("`{CONTENTS_KEY}` lists idler `{name}` twice")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::Idler;

    #[test]
    fn more_idlers_than_are_kept_are_refused() {
        let of = |number: usize| {
            let idler = |number: usize| Idler { name: format!("cpu{number}"), ..Idler::default() };
            check(&Contents { idlers: (0..number).map(idler).collect(), ..Contents::default() }, 0)
        };
        assert_eq!(of(MOST_IDLERS), Ok(()));
        assert!(of(MOST_IDLERS + 1).unwrap_err().contains("there are 100001 idlers, and at most 100000"));
    }
}
