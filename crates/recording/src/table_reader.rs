//! Small tables out of a Parquet file, as [`TableWriter`](crate::table::TableWriter) writes them.

use crate::chunk::Scratch;
use crate::decode::{Failure, Input, guard};
use crate::open::{self, OpenError};
use crate::reader::{ReadError, RowGroups};
use crate::storage::Storage;
use crate::table::{Field, Kind};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::FileReader;
use serde::de::DeserializeOwned;
use std::path::Path;

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
    groups: RowGroups,
}

impl TableReader {
    /// Opens the table at `path`.
    ///
    /// # Errors
    /// [`OpenError`] where the file cannot be read or is no Parquet file.
    pub fn open(path: &Path) -> Result<TableReader, OpenError> {
        TableReader::from_storage(path, Storage::open(path)?)
    }

    /// Opens a table that is in memory; errors call it by `name`.
    ///
    /// # Errors
    /// [`OpenError`] where the bytes are no Parquet file.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<TableReader, OpenError> {
        TableReader::from_storage(Path::new(name), Storage::Memory(bytes.into()))
    }

    pub(crate) fn from_storage(path: &Path, storage: Storage) -> Result<TableReader, OpenError> {
        let file = open::parquet(path, storage.clone())?;
        Ok(TableReader { groups: RowGroups { path: path.to_owned(), file, storage } })
    }

    /// What errors call it by.
    pub fn path(&self) -> &Path {
        &self.groups.path
    }

    /// A text of the file's metadata.
    ///
    /// # Errors
    /// [`OpenError::NotARecording`] where there is none of this key.
    pub fn text(&self, key: &'static str) -> Result<&str, OpenError> {
        open::value(self.path(), self.footer(), key)
    }

    /// A value of the file's metadata, which is JSON.
    ///
    /// # Errors
    /// [`OpenError`] where there is none of this key, or it is not what it must be.
    pub fn json<T: DeserializeOwned>(&self, key: &'static str) -> Result<T, OpenError> {
        open::json(self.path(), self.footer(), key)
    }

    /// All rows of these columns of texts and unsigned integers, at most `most` rows.
    ///
    /// # Errors
    /// [`TableReadError`] where there is no such column, there are more rows, or the file is damaged.
    pub fn read(&self, fields: &[Field], most: u64) -> Result<Vec<Cells>, TableReadError> {
        let all_required = fields.iter().map(|field| Field { required: true, ..*field });
        let (places, _) = open::find_columns(self.path(), self.footer(), all_required)?;
        let rows = (0..self.groups.len()).map(|group| self.groups.rows(group));
        let rows = rows.collect::<Result<Vec<usize>, ReadError>>()?;
        let all = rows.iter().fold(0, |all: u64, &rows| all.saturating_add(rows as u64));
        if all > most {
            let what = format!("there are {all} rows, and at most {most} are read");
            return Err(OpenError::Contradiction { path: self.path().to_owned(), what }.into());
        }
        let mut columns = vec![];
        for (field, place) in fields.iter().zip(places) {
            let mut cells = match field.kind {
                Kind::Text => Cells::Text(vec![]),
                _ => Cells::Unsigned(vec![]),
            };
            for (row_group, &rows) in rows.iter().enumerate() {
                guard(|| fill(self.groups.input(row_group, place)?, rows, &mut cells))
                    .map_err(|failure| self.groups.error(row_group, field.name, failure))?;
            }
            columns.push(cells);
        }
        Ok(columns)
    }

    fn footer(&self) -> &ParquetMetaData {
        self.groups.file.metadata()
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
