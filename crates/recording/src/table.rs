//! Tables as Parquet: what the writers of this workspace share.

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8; few different values, or rows that repeat.
    Text,
    /// 64-bit unsigned integers.
    Unsigned,
    /// 64-bit signed integers.
    Signed,
    /// Lists of 64-bit signed integers.
    SignedList,
    /// 64-bit floating-point numbers.
    Real,
    /// Booleans.
    Flag,
}

impl Kind {
    /// For people, as pandas and DuckDB call it.
    pub const fn describe(self) -> &'static str {
        match self {
            Kind::Text => "a string (VARCHAR)",
            Kind::Unsigned => "a 64-bit unsigned integer (uint64, UBIGINT)",
            Kind::Signed => "a 64-bit signed integer (int64, BIGINT)",
            Kind::SignedList => "a list of 64-bit signed integers (list<int64>, BIGINT[])",
            Kind::Real => "a 64-bit floating-point number (float64, DOUBLE)",
            Kind::Flag => "a boolean",
        }
    }
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether every row has a value.
    pub required: bool,
}

/// A column of a table.
pub const fn field(name: &'static str, kind: Kind, required: bool) -> Field {
    Field { name, kind, required }
}

/// The values of one column in one row group, without those that are not known.
#[derive(Clone, Debug, PartialEq)]
pub enum Values<'a> {
    /// Of [`Kind::Text`].
    Text(Vec<&'a str>),
    /// Of [`Kind::Unsigned`].
    Unsigned(Vec<u64>),
    /// Of [`Kind::Signed`].
    Signed(Vec<i64>),
    /// Of [`Kind::SignedList`]; none is empty.
    SignedList(Vec<&'a [i64]>),
    /// Of [`Kind::Real`].
    Real(Vec<f64>),
    /// Of [`Kind::Flag`].
    Flag(Vec<bool>),
}

impl Values<'_> {
    fn len(&self) -> usize {
        match self {
            Values::Text(texts) => texts.len(),
            Values::Unsigned(numbers) => numbers.len(),
            Values::Signed(numbers) => numbers.len(),
            Values::SignedList(lists) => lists.len(),
            Values::Real(numbers) => numbers.len(),
            Values::Flag(flags) => flags.len(),
        }
    }
}

/// A table could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the table")]
pub struct TableError(#[source] Box<dyn Error + Send + Sync>);

impl From<ParquetError> for TableError {
    fn from(error: ParquetError) -> TableError {
        TableError(error.into())
    }
}

/// A table on its way into a Parquet file, row group by row group.
pub struct TableWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
}

impl<W: Write + Send> TableWriter<W> {
    /// A table of this name with these columns, compressed with zstd of this level, 1 to 22.
    ///
    /// # Errors
    /// Where there is no such level, or `out` cannot be written to.
    pub fn new(
        out: W,
        name: &str,
        fields: &[Field],
        zstd_level: i32,
        created_by: &str,
    ) -> Result<TableWriter<W>, TableError> {
        let fields = || fields.iter().copied();
        let properties = Arc::new(properties(fields(), zstd_level, created_by)?);
        Ok(TableWriter { file: SerializedFileWriter::new(out, schema(name, fields())?, properties)? })
    }

    /// Appends a row group: for each column, in their order, its values, and for one that is not required
    /// which rows have one. A column is taken after the one before it is written.
    ///
    /// # Errors
    /// Where a column is of another kind or has another number of rows than the first, and what writing fails with.
    pub fn row_group<'v>(
        &mut self,
        columns: impl IntoIterator<Item = (Values<'v>, Option<&'v [bool]>)>,
    ) -> Result<(), TableError> {
        let mut group = self.file.next_row_group()?;
        for (values, present) in columns {
            let has = present.map(|rows| rows.iter().filter(|&&has| has).count());
            if let Some(has) = has.filter(|&has| has != values.len()) {
                let what = format!("a column has {} values and {has} rows with one", values.len());
                return Err(TableError(what.into()));
            }
            let levels: Option<Vec<i16>> =
                present.map(|rows| rows.iter().map(|&has| i16::from(has)).collect());
            let levels = levels.as_deref();
            match values {
                Values::Text(texts) => {
                    let texts: Vec<ByteArray> = texts.into_iter().map(ByteArray::from).collect();
                    write_column::<_, ByteArrayType>(&mut group, &texts, levels)?;
                }
                Values::Unsigned(numbers) => {
                    // Parquet stores unsigned integers as signed ones of the same bits.
                    let numbers: Vec<i64> = numbers.into_iter().map(u64::cast_signed).collect();
                    write_column::<_, Int64Type>(&mut group, &numbers, levels)?;
                }
                Values::Signed(numbers) => write_column::<_, Int64Type>(&mut group, &numbers, levels)?,
                Values::SignedList(lists) => write_lists(&mut group, &lists, present)?,
                Values::Real(numbers) => write_column::<_, DoubleType>(&mut group, &numbers, levels)?,
                Values::Flag(flags) => write_column::<_, BoolType>(&mut group, &flags, levels)?,
            }
        }
        group.close()?;
        Ok(())
    }

    /// Adds a text to the metadata of the file.
    pub fn metadata(&mut self, key: &str, text: String) {
        self.file.append_key_value_metadata(KeyValue::new(key.to_owned(), text));
    }

    /// Completes the file and returns what it was written to.
    ///
    /// # Errors
    /// What writing fails with.
    pub fn finish(self) -> Result<W, TableError> {
        Ok(self.file.into_inner()?)
    }
}

/// The schema `name` with these columns.
pub(crate) fn schema(name: &str, fields: impl IntoIterator<Item = Field>) -> Result<TypePtr, ParquetError> {
    let field = |field: Field| {
        let (physical, logical) = match field.kind {
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Unsigned => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Kind::Signed => (Physical::INT64, None),
            Kind::SignedList => return list(field),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Flag => (Physical::BOOLEAN, None),
        };
        let repetition = if field.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let built = Type::primitive_type_builder(field.name, physical);
        built.with_logical_type(logical).with_repetition(repetition).build().map(Arc::new)
    };
    let fields = fields.into_iter().map(field).collect::<Result<_, _>>()?;
    Ok(Arc::new(Type::group_type_builder(name).with_fields(fields).build()?))
}

/// A column of lists as Parquet has it: a group of a repeated group of elements.
fn list(field: Field) -> Result<TypePtr, ParquetError> {
    let element = Type::primitive_type_builder("element", Physical::INT64);
    let element = Arc::new(element.with_repetition(Repetition::REQUIRED).build()?);
    let elements = Type::group_type_builder("list").with_repetition(Repetition::REPEATED);
    let elements = Arc::new(elements.with_fields(vec![element]).build()?);
    let repetition = if field.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
    let list = Type::group_type_builder(field.name).with_logical_type(Some(LogicalType::List));
    Ok(Arc::new(list.with_repetition(repetition).with_fields(vec![elements]).build()?))
}

/// How these columns are packed: zstd of this level, dictionaries for texts, differences of integers. An error where
/// there is no such level.
pub(crate) fn properties(
    fields: impl IntoIterator<Item = Field>,
    zstd_level: i32,
    created_by: &str,
) -> Result<WriterProperties, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(zstd_level)?))
        .set_created_by(created_by.to_owned())
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk);
    let pack = |properties: parquet::file::properties::WriterPropertiesBuilder, field: Field| {
        let path = match field.kind {
            Kind::SignedList => vec![field.name.to_owned(), "list".to_owned(), "element".to_owned()].into(),
            _ => ColumnPath::from(field.name),
        };
        match field.kind {
            Kind::Text => properties.set_column_dictionary_enabled(path, true),
            Kind::Unsigned | Kind::Signed | Kind::SignedList => {
                properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
            }
            Kind::Real | Kind::Flag => properties.set_column_encoding(path, Encoding::PLAIN),
        }
    };
    Ok(fields.into_iter().fold(properties, pack).build())
}

/// Writes the next column of a row group: the values there are, and of a column that is not required, for each row 1
/// where it has one and 0 where it has none. An error where the schema has no further column.
pub(crate) fn write_column<W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("schema has too few columns".to_owned()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// Writes the next column of a row group, of lists: those there are, and of a column that is not required
/// which rows have one. An error for an empty list, and where the schema has no further column.
fn write_lists<W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    lists: &[&[i64]],
    present: Option<&[bool]>,
) -> Result<(), ParquetError> {
    if lists.iter().any(|list| list.is_empty()) {
        return Err(ParquetError::General("a list is empty".to_owned()));
    }
    // A list that is there is one level further than one that is null, and an element one further than that.
    let element = if present.is_some() { 2 } else { 1 };
    let mut rest = lists.iter();
    let (mut numbers, mut levels, mut repeated) = (vec![], vec![], vec![]);
    let rows = present.map_or(lists.len(), <[bool]>::len);
    for row in 0..rows {
        match rest.as_slice().first().filter(|_| present.is_none_or(|present| present[row])) {
            Some(list) => {
                numbers.extend_from_slice(list);
                levels.extend(list.iter().map(|_| element));
                repeated.extend((0..list.len()).map(|at| i16::from(at > 0)));
                rest.next();
            }
            None => {
                levels.push(0);
                repeated.push(0);
            }
        }
    }
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("schema has too few columns".to_owned()))?;
    column.typed::<Int64Type>().write_batch(&numbers, Some(&levels), Some(&repeated))?;
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    const FIELDS: [Field; 2] = [
        Field { name: "name", kind: Kind::Text, required: true },
        Field { name: "ns", kind: Kind::Unsigned, required: false },
    ];

    fn table(ns: Values<'_>) -> Result<Vec<u8>, TableError> {
        let mut table = TableWriter::new(vec![], "test", &FIELDS, 3, "test")?;
        table.row_group([(Values::Text(vec!["a", "b"]), None), (ns, Some(&[false, true][..]))])?;
        table.metadata("key", "text".to_owned());
        table.finish()
    }

    #[test]
    fn rows_without_a_value_are_null() {
        let bytes = table(Values::Unsigned(vec![u64::MAX])).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(rows, [r#"{name: "a", ns: null}"#, r#"{name: "b", ns: 18446744073709551615}"#]);
        let pairs = reader.metadata().file_metadata().key_value_metadata().unwrap();
        assert_eq!(pairs[0].value.as_deref(), Some("text"));
    }

    #[test]
    fn lists_are_read_back_and_rows_without_one_are_null() {
        const LISTS: [Field; 2] = [
            Field { name: "all", kind: Kind::SignedList, required: true },
            Field { name: "some", kind: Kind::SignedList, required: false },
        ];
        let mut table = TableWriter::new(vec![], "test", &LISTS, 3, "test").unwrap();
        let (a, b): (&[i64], &[i64]) = (&[1, 2, 3], &[-4]);
        let some = (Values::SignedList(vec![b]), Some(&[false, true][..]));
        table.row_group([(Values::SignedList(vec![a, b]), None), some]).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(table.finish().unwrap())).unwrap();
        let rows: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(rows, ["{all: [1, 2, 3], some: null}", "{all: [-4], some: [-4]}"]);
    }

    #[test]
    fn a_column_with_another_number_of_values_is_an_error() {
        for ns in [vec![], vec![1, 2, 3]] {
            let error = table(Values::Unsigned(ns)).unwrap_err();
            assert!(error.source().is_some(), "{error}");
        }
    }
}
