//! Small tables out of a Parquet file, as [`TableWriter`](crate::table::TableWriter) writes them.

use crate::chunk::Scratch;
use crate::decode::{Failure, Input, Translator, guard, within};
use crate::open::OpenError;
use crate::reader::{ReadError, RowGroups};
use crate::storage::Storage;
use crate::table::{Field, Kind};
use serde::de::DeserializeOwned;
use std::path::Path;

/// The longest text of a cell that is read \[bytes\].
pub(crate) const LONGEST_TEXT: usize = 4096;

/// The values of one column, a row each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cells {
    /// Of [`Kind::Text`]: the texts of each row group, and which of them each row has.
    Text(Vec<String>, Vec<Option<u32>>),
    /// Of integers; those with a sign have the same bits.
    Unsigned(Vec<Option<u64>>),
}

impl Cells {
    /// None yet, of a column.
    pub(crate) fn of(field: &Field) -> Cells {
        match field.kind {
            Kind::Text => Cells::Text(vec![], vec![]),
            _ => Cells::Unsigned(vec![]),
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        match self {
            Cells::Text(_, cells) => cells.len(),
            Cells::Unsigned(cells) => cells.len(),
        }
    }

    /// The text of a row, where the column is of texts and the row has one.
    pub fn text(&self, row: usize) -> Option<&str> {
        match self {
            Cells::Text(texts, cells) => Some(texts.get((*cells.get(row)?)? as usize)?),
            Cells::Unsigned(_) => None,
        }
    }

    /// The number of a row, where the column is of numbers and the row has one.
    pub fn number(&self, row: usize) -> Option<u64> {
        match self {
            Cells::Unsigned(cells) => *cells.get(row)?,
            Cells::Text(..) => None,
        }
    }

    fn fill(&mut self, input: Input, rows: usize) -> Result<(), Failure> {
        match self {
            Cells::Unsigned(numbers) => input.optional(rows, &mut Scratch::default(), numbers),
            Cells::Text(texts, cells) => {
                let mut bytes = texts.iter().map(String::len).sum();
                let mut numbers = Translator::new(|text| {
                    if text.len() > LONGEST_TEXT {
                        return Err(format!("{} bytes, and at most {LONGEST_TEXT} are read", text.len()));
                    }
                    bytes = within(bytes, text.as_bytes())?;
                    let number = u32::try_from(texts.len()).map_err(|_| "too many texts".to_owned())?;
                    texts.push(text.to_owned());
                    Ok(number)
                });
                input.texts(rows, &mut Scratch::default(), |text| {
                    cells.push(text.map(|text| numbers.get(text)).transpose()?);
                    Ok(())
                })
            }
        }
    }
}

impl RowGroups {
    /// Appends a row group to the cells of columns, of which the places in the file are known.
    pub(crate) fn fill(
        &self,
        row_group: usize,
        fields: &[Field],
        places: &[Option<usize>],
        columns: &mut [Cells],
    ) -> Result<(), ReadError> {
        let rows = self.rows(row_group)?;
        for ((field, &place), cells) in fields.iter().zip(places).zip(columns) {
            guard(|| cells.fill(self.input(row_group, place)?, rows))
                .map_err(|failure| self.error(row_group, field.name, failure))?;
        }
        Ok(())
    }
}

/// Reads a table as a whole: what it holds is in memory at once. No input makes it panic.
#[derive(Debug)]
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
        Ok(TableReader { groups: RowGroups::open(path, storage)? })
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
        self.groups.text(key)
    }

    /// A value of the file's metadata, which is JSON.
    ///
    /// # Errors
    /// [`OpenError`] where there is none of this key, or it is not what it must be.
    pub fn json<T: DeserializeOwned>(&self, key: &'static str) -> Result<T, OpenError> {
        self.groups.json(key)
    }

    /// All rows of these columns of texts and unsigned integers, at most `most` rows.
    ///
    /// # Errors
    /// [`TableReadError`] where there is no such column, there are more rows, or the file is damaged.
    pub fn read(&self, fields: &[Field], most: u64) -> Result<Vec<Cells>, TableReadError> {
        let all_required = fields.iter().map(|field| Field { required: true, ..*field });
        let places = self.groups.find_columns(all_required)?;
        let rows = (0..self.groups.len()).map(|group| self.groups.rows(group));
        let rows = rows.collect::<Result<Vec<usize>, ReadError>>()?;
        let all = rows.iter().fold(0, |all: u64, &rows| all.saturating_add(rows as u64));
        if all > most {
            let what = format!("there are {all} rows, and at most {most} are read");
            return Err(self.groups.contradiction(what).into());
        }
        let mut columns: Vec<Cells> = fields.iter().map(Cells::of).collect();
        for row_group in 0..rows.len() {
            self.groups.fill(row_group, fields, &places, &mut columns)?;
        }
        Ok(columns)
    }
}

/// A table could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    use crate::table::TableWriter;

    const FIELDS: [Field; 2] = [
        Field { name: "name", kind: Kind::Text, required: true },
        Field { name: "ns", kind: Kind::Unsigned, required: false },
    ];

    fn written() -> Vec<u8> {
        let mut table = TableWriter::new(vec![], "test", &FIELDS, 3, "test").unwrap();
        for names in [["a", "b"], ["c", "a"]] {
            let last = names[1];
            let ns = |name: &&str| (*name == last).then_some(u64::MAX.into());
            table.row_group(&names, [&|name| Some((*name).into()), &ns]).unwrap();
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

    /// A few rows of long texts, which pack well, took gigabytes.
    #[test]
    fn long_texts_and_too_many_of_them_are_refused() {
        let read = |lengths: &[usize]| {
            let mut table = TableWriter::new(vec![], "test", &FIELDS[..1], 3, "test").unwrap();
            for length in lengths {
                table
                    .row_group(&["a".repeat(*length)], [&|text: &String| Some(text.as_str().into())])
                    .unwrap();
            }
            let table = TableReader::from_bytes("t", table.finish().unwrap()).unwrap();
            table.read(&FIELDS[..1], 9).map(|cells| cells[0].rows())
        };
        assert_eq!(read(&[4096, 4096]).unwrap(), 2);
        let error = read(&[1, 4097]).unwrap_err().to_string();
        assert_eq!(error, "t: row 0 of row group 1, `name`: 4097 bytes, and at most 4096 are read");
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
