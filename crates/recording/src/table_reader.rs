//! Small tables out of a Parquet file, as [`TableWriter`](crate::table::TableWriter) writes them.

use crate::chunk::Scratch;
use crate::decode::{Failure, Input, guard};
use crate::open::{self, OpenError};
use crate::pages;
use crate::reader::ReadError;
use crate::storage::Storage;
use crate::table::{Field, Kind};
use parquet::errors::ParquetError;
use parquet::file::reader::FileReader;
use parquet::file::serialized_reader::SerializedFileReader;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// The values of one column, a row each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cells {
    /// Of [`Kind::Text`].
    Text(Vec<Option<String>>),
    /// Of [`Kind::Unsigned`].
    Unsigned(Vec<Option<u64>>),
}

impl Cells {
    /// The text of a row, where the column is of texts and the row has one.
    pub fn text(&self, row: usize) -> Option<&str> {
        match self {
            Cells::Text(cells) => cells.get(row)?.as_deref(),
            Cells::Unsigned(_) => None,
        }
    }

    /// The number of a row, where the column is of numbers and the row has one.
    pub fn number(&self, row: usize) -> Option<u64> {
        match self {
            Cells::Unsigned(cells) => *cells.get(row)?,
            Cells::Text(_) => None,
        }
    }
}

/// Reads a table as a whole: what it holds is in memory at once. No input makes it panic.
pub struct TableReader {
    path: PathBuf,
    file: SerializedFileReader<Storage>,
    storage: Storage,
}

impl TableReader {
    /// Opens the table at `path`.
    ///
    /// # Errors
    /// [`OpenError`] where the file cannot be read or is no Parquet file.
    pub fn open(path: &Path) -> Result<TableReader, OpenError> {
        let unreadable = |source| OpenError::Unreadable { path: path.to_owned(), source };
        let file = crate::regular::open(path).map_err(unreadable)?;
        TableReader::new(path, Storage::file(file).map_err(unreadable)?)
    }

    /// Opens a table that is in memory; errors call it by `name`.
    ///
    /// # Errors
    /// [`OpenError`] where the bytes are no Parquet file.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<TableReader, OpenError> {
        TableReader::new(Path::new(name), Storage::Memory(bytes.into()))
    }

    fn new(path: &Path, storage: Storage) -> Result<TableReader, OpenError> {
        let file = open::parquet(path, storage.clone())?;
        Ok(TableReader { path: path.to_owned(), file, storage })
    }

    /// What errors call it by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A text of the file's metadata.
    ///
    /// # Errors
    /// [`OpenError::NotARecording`] where there is none of this key.
    pub fn text(&self, key: &'static str) -> Result<&str, OpenError> {
        open::value(&self.path, self.file.metadata(), key)
    }

    /// A value of the file's metadata, which is JSON.
    ///
    /// # Errors
    /// [`OpenError`] where there is none of this key, or it is not what it must be.
    pub fn json<T: DeserializeOwned>(&self, key: &'static str) -> Result<T, OpenError> {
        open::json(&self.path, self.file.metadata(), key)
    }

    /// All rows of these columns of texts and unsigned integers, at most `most` rows.
    ///
    /// # Errors
    /// [`TableReadError`] where there is no such column, there are more rows, or the file is damaged.
    pub fn read(&self, fields: &[Field], most: u64) -> Result<Vec<Cells>, TableReadError> {
        let footer = self.file.metadata();
        let found = footer.file_metadata().schema_descr().columns();
        let place = |field: &Field| -> Result<usize, OpenError> {
            let at = found.iter().position(|column| column.path().string() == field.name);
            let (path, column, kind) = (self.path.clone(), field.name, field.kind.describe());
            let at = at.ok_or(OpenError::NoColumn { path, column, kind })?;
            open::check_type(&self.path, field.name, field.kind, &found[at])?;
            Ok(at)
        };
        let places = fields.iter().map(place).collect::<Result<Vec<usize>, OpenError>>()?;
        let rows = |group: usize| u64::try_from(footer.row_group(group).num_rows()).unwrap_or(u64::MAX);
        let all = (0..footer.num_row_groups()).map(rows).fold(0, u64::saturating_add);
        if all > most {
            let what = format!("there are {all} rows, and at most {most} are read");
            return Err(OpenError::Contradiction { path: self.path.clone(), what }.into());
        }
        let mut columns = vec![];
        for (field, place) in fields.iter().zip(places) {
            let mut cells = match field.kind {
                Kind::Text => Cells::Text(vec![]),
                _ => Cells::Unsigned(vec![]),
            };
            for row_group in 0..footer.num_row_groups() {
                let rows = usize::try_from(rows(row_group)).unwrap_or(0);
                guard(|| {
                    self.input(row_group, place)
                        .map_err(Failure::from)
                        .and_then(|input| fill(input, rows, &mut cells))
                })
                .map_err(|failure| self.error(row_group, field.name, failure))?;
            }
            columns.push(cells);
        }
        Ok(columns)
    }

    fn input(&self, row_group: usize, place: usize) -> Result<Input, ParquetError> {
        let group = self.file.metadata().row_group(row_group);
        pages::check(&self.storage, group.column(place), group.num_rows().unsigned_abs())?;
        let reader = Box::new(self.file.get_row_group(row_group)?.get_column_reader(place)?);
        let nullable = group.column(place).column_descr().max_def_level() > 0;
        Ok(Input::Present { reader, nullable })
    }

    fn error(&self, row_group: usize, column: &'static str, failure: Failure) -> ReadError {
        let path = self.path.clone();
        match failure {
            Failure::Parquet(source) => ReadError::Damaged { path, row_group, column, source: source.into() },
            Failure::Value { row, what } => ReadError::Value { path, row_group, row, column, what },
        }
    }
}

fn fill(input: Input, rows: usize, cells: &mut Cells) -> Result<(), Failure> {
    match cells {
        Cells::Text(texts) => input.texts(rows, &mut Scratch::default(), |text| {
            let text = text.map(|text| std::str::from_utf8(text).map(str::to_owned)).transpose();
            texts.push(text.map_err(|_| "the text is not UTF-8".to_owned())?);
            Ok(())
        }),
        Cells::Unsigned(numbers) => input.optional(rows, &mut Scratch::default(), numbers),
    }
}

/// A table could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TableReadError {
    /// It is not the table that is wanted.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is damaged.
    #[error(transparent)]
    Read(#[from] ReadError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{TableWriter, Values};

    const FIELDS: [Field; 2] = [
        Field { name: "name", kind: Kind::Text, required: true },
        Field { name: "ns", kind: Kind::Unsigned, required: false },
    ];

    fn written() -> Vec<u8> {
        let mut table = TableWriter::new(vec![], "test", &FIELDS, 3, "test").unwrap();
        for names in [["a", "b"], ["c", "a"]] {
            let present = [false, true];
            let columns = [
                (Values::Text(names.to_vec()), None),
                (Values::Unsigned(vec![u64::MAX]), Some(&present[..])),
            ];
            table.row_group(columns).unwrap();
        }
        table.metadata("key", "[1, 2]".to_owned());
        table.finish().unwrap()
    }

    #[test]
    fn what_was_written_is_read() {
        let table = TableReader::from_bytes("t", written()).unwrap();
        let cells = table.read(&FIELDS, 4).unwrap();
        let names: Vec<_> = (0..4).filter_map(|row| cells[0].text(row)).collect();
        assert_eq!(names, ["a", "b", "c", "a"]);
        assert_eq!(cells[1], Cells::Unsigned(vec![None, Some(u64::MAX), None, Some(u64::MAX)]));
        assert_eq!(cells[1].number(1), Some(u64::MAX));
        assert_eq!(table.json::<Vec<u8>>("key").unwrap(), [1, 2]);
    }

    #[test]
    fn other_tables_are_refused() {
        let table = TableReader::from_bytes("t", written()).unwrap();
        let error = |fields: &[Field], most| table.read(fields, most).unwrap_err().to_string();
        assert!(error(&FIELDS, 3).contains("4 rows"));
        let other = [Field { name: "other", ..FIELDS[0] }];
        assert!(error(&other, 9).contains("no column `other`"));
        let text = [Field { kind: Kind::Text, ..FIELDS[1] }];
        assert!(error(&text, 9).contains("column `ns` is"));
        assert!(matches!(table.text("no"), Err(OpenError::NotARecording { key: "no", .. })));
        assert!(matches!(TableReader::from_bytes("t", vec![]), Err(OpenError::Empty { .. })));
    }
}
