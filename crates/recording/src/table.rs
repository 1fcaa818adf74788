//! Tables as Parquet: what the writers of this workspace share.

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::io::Write;
use std::sync::Arc;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8; few different values, or rows that repeat.
    Text,
    /// 64-bit unsigned integers.
    Unsigned,
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

/// The schema `name` with these columns.
///
/// # Errors
/// What Parquet says.
pub fn schema(name: &str, fields: impl IntoIterator<Item = Field>) -> Result<TypePtr, ParquetError> {
    let field = |field: Field| {
        let (physical, logical) = match field.kind {
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Unsigned => (Physical::INT64, Some(LogicalType::integer(64, false))),
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

/// How these columns are packed: zstd of this level, dictionaries for texts, differences of integers.
///
/// # Errors
/// Where there is no such level.
pub fn properties(
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
        let path = ColumnPath::from(field.name);
        match field.kind {
            Kind::Text => properties.set_column_dictionary_enabled(path, true),
            Kind::Unsigned => properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Kind::Real | Kind::Flag => properties.set_column_encoding(path, Encoding::PLAIN),
        }
    };
    Ok(fields.into_iter().fold(properties, pack).build())
}

/// Writes the next column of a row group: the values there are, and of a column that is not required, for each row 1
/// where it has one and 0 where it has none.
///
/// # Errors
/// What Parquet says, and where the schema has no further column.
pub fn write_column<W: Write + Send, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column =
        group.next_column()?.ok_or_else(|| ParquetError::General("schema has too few columns".to_owned()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}
