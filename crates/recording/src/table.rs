//! Tables as Parquet: what the writers of this workspace share.

use crate::newfile::hint;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::borrow::Cow;
use std::error::Error;
use std::io::Write;
use std::sync::Arc;

dwell_policy::named! {
    /// What a column holds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// UTF-8; few different values, or rows that repeat.
        Text = "a string (VARCHAR)",
        /// 64-bit unsigned integers.
        Unsigned = "a 64-bit unsigned integer (uint64, UBIGINT)",
        /// 64-bit signed integers.
        Signed = "a 64-bit signed integer (int64, BIGINT)",
        /// Lists of 64-bit signed integers.
        SignedList = "a list of 64-bit signed integers (list<int64>, BIGINT[])",
        /// 64-bit floating-point numbers.
        Real = "a 64-bit floating-point number (float64, DOUBLE)",
        /// Booleans.
        Flag = "a boolean",
    }

    /// For people, as pandas and DuckDB call it.
    pub fn describe
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

/// One value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Of [`Kind::Text`].
    Text(Cow<'a, str>),
    /// Of [`Kind::Unsigned`].
    Unsigned(u64),
    /// Of [`Kind::Signed`].
    Signed(i64),
    /// Of [`Kind::SignedList`]; not empty.
    SignedList(Vec<i64>),
    /// Of [`Kind::Real`].
    Real(f64),
    /// Of [`Kind::Flag`].
    Flag(bool),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Value<'a> {
        Value::Text(text.into())
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Value::Unsigned(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Value::Unsigned(number.into())
    }
}

/// What a column has in a row; `None`: nothing is known.
pub type Of<'a, R> = &'a dyn Fn(&'a R) -> Option<Value<'a>>;

/// A table could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the table{}", hint(.0.as_ref()))]
pub struct TableError(#[source] pub(crate) Box<dyn Error + Send + Sync>);

impl From<ParquetError> for TableError {
    fn from(error: ParquetError) -> TableError {
        TableError(plain(error))
    }
}

/// The error of the system where it is one, without the name that Parquet has for such.
pub(crate) fn plain(error: ParquetError) -> Box<dyn Error + Send + Sync> {
    match error {
        ParquetError::External(error) => error,
        error => error.into(),
    }
}

/// A table on its way into a Parquet file, row group by row group.
#[derive(Debug)]
pub struct TableWriter<W: Write + Send> {
    pub(crate) file: SerializedFileWriter<W>,
    fields: Vec<Field>,
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
        let properties = Arc::new(properties(fields, zstd_level, created_by)?);
        let file = SerializedFileWriter::new(out, schema(name, fields)?, properties)?;
        Ok(TableWriter { file, fields: fields.to_owned() })
    }

    /// Appends a row group: for each column, in their order, what it has in each row.
    ///
    /// # Errors
    /// Where a value is of another kind than its column, one that is required is not there or a list is empty, and
    /// what writing fails with.
    pub fn row_group<'r, R, const N: usize>(
        &mut self,
        rows: &'r [R],
        columns: [Of<'r, R>; N],
    ) -> Result<(), TableError> {
        let mut group = self.file.next_row_group()?;
        for (field, of) in self.fields.iter().zip(columns) {
            let (mut texts, mut integers, mut reals, mut flags) = (vec![], vec![], vec![], vec![]);
            let (mut levels, mut repeated) = (vec![], vec![]);
            // A list that is there is one level further than one that is null, and an element one further than that.
            let element = if field.required { 1 } else { 2 };
            for row in rows {
                let value = of(row);
                match &value {
                    Some(Value::SignedList(list)) => {
                        levels.extend(list.iter().map(|_| element));
                        repeated.extend((0..list.len()).map(|at| i16::from(at > 0)));
                    }
                    value => {
                        levels.push(i16::from(value.is_some()));
                        repeated.push(0);
                    }
                }
                match (field.kind, value) {
                    (_, None) if !field.required => {}
                    (Kind::Text, Some(Value::Text(text))) => texts.push(ByteArray::from(&*text)),
                    // Parquet stores unsigned integers as signed ones of the same bits.
                    (Kind::Unsigned, Some(Value::Unsigned(number))) => integers.push(number.cast_signed()),
                    (Kind::Signed, Some(Value::Signed(number))) => integers.push(number),
                    (Kind::SignedList, Some(Value::SignedList(list))) if !list.is_empty() => {
                        integers.extend(list);
                    }
                    (Kind::Real, Some(Value::Real(number))) => reals.push(number),
                    (Kind::Flag, Some(Value::Flag(flag))) => flags.push(flag),
                    (_, value) => {
                        let Field { name, kind, .. } = field;
                        let what = format!("{value:?} in column `{name}`, which has {}", kind.describe());
                        return Err(TableError(what.into()));
                    }
                }
            }
            let optional = (!field.required).then_some(levels.as_slice());
            match field.kind {
                Kind::Text => write_column::<_, ByteArrayType>(&mut group, &texts, optional)?,
                Kind::Unsigned | Kind::Signed => {
                    write_column::<_, Int64Type>(&mut group, &integers, optional)?
                }
                Kind::SignedList => {
                    write::<_, Int64Type>(&mut group, &integers, Some(&levels), Some(&repeated))?
                }
                Kind::Real => write_column::<_, DoubleType>(&mut group, &reals, optional)?,
                Kind::Flag => write_column::<_, BoolType>(&mut group, &flags, optional)?,
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
fn schema(name: &str, fields: &[Field]) -> Result<TypePtr, ParquetError> {
    let field = |field: &Field| {
        let (physical, logical) = match field.kind {
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Unsigned => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Kind::Signed => (Physical::INT64, None),
            Kind::SignedList => return list(*field),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Flag => (Physical::BOOLEAN, None),
        };
        let repetition = if field.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let built = Type::primitive_type_builder(field.name, physical);
        built.with_logical_type(logical).with_repetition(repetition).build().map(Arc::new)
    };
    let fields = fields.iter().map(field).collect::<Result<_, _>>()?;
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
fn properties(fields: &[Field], zstd_level: i32, created_by: &str) -> Result<WriterProperties, ParquetError> {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(zstd_level)?))
        .set_created_by(created_by.to_owned())
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk);
    let pack = |properties: parquet::file::properties::WriterPropertiesBuilder, field: &Field| {
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
    Ok(fields.iter().fold(properties, pack).build())
}

/// Writes the next column of a row group: the values there are, and of a column that is not required, for each row 1
/// where it has one and 0 where it has none. An error where the schema has no further column.
pub(crate) fn write_column<W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    write::<W, T>(group, values, levels, None)
}

/// The same of lists too: what is `repeated` is a further element.
fn write<W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
    repeated: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("schema has too few columns".to_owned()))?;
    column.typed::<T>().write_batch(values, levels, repeated)?;
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

    fn table(ns: Option<Value<'static>>) -> Result<Vec<u8>, TableError> {
        let mut table = TableWriter::new(vec![], "test", &FIELDS, 3, "test")?;
        let rows = [("a", None), ("b", ns)];
        table.row_group(&rows, [&|row| Some(row.0.into()), &|row| row.1.clone()])?;
        table.metadata("key", "text".to_owned());
        table.finish()
    }

    #[test]
    fn rows_without_a_value_are_null() {
        let bytes = table(Some(u64::MAX.into())).unwrap();
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
        let rows = [vec![1, 2, 3], vec![-4]];
        let list = |list: &Vec<i64>| Some(Value::SignedList(list.clone()));
        table.row_group(&rows, [&list, &|row| list(row).filter(|_| row.len() == 1)]).unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(table.finish().unwrap())).unwrap();
        let rows: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        assert_eq!(rows, ["{all: [1, 2, 3], some: null}", "{all: [-4], some: [-4]}"]);
    }

    #[test]
    fn a_value_of_another_kind_and_an_empty_list_are_errors() {
        for value in [Value::Flag(true), Value::Signed(1), Value::SignedList(vec![])] {
            let error = table(Some(value)).unwrap_err();
            assert!(
                error.source().is_some_and(|source| source.to_string().contains("in column `ns`")),
                "{error}"
            );
        }
        const LIST: [Field; 1] = [Field { name: "all", kind: Kind::SignedList, required: true }];
        let mut table = TableWriter::new(vec![], "test", &LIST, 3, "test").unwrap();
        assert!(table.row_group(&[()], [&|()| Some(Value::SignedList(vec![]))]).is_err());
        assert!(table.row_group(&[()], [&|()| None]).is_err());
    }
}
