//! The columns of a recording: names, types, encodings, and which of them to read.

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use std::ops::BitOr;
use std::sync::Arc;

/// A set of columns of a recording.
///
/// ```
/// use dwell_recording::Columns;
/// let columns = Columns::IDLER | Columns::IDLE_NS;
/// assert!(columns.contains(Columns::IDLER));
/// assert!(!columns.contains(Columns::IDLER | Columns::WAKE));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Columns(u8);

impl Columns {
    /// No column; only the number of rows is of interest.
    pub const NONE: Columns = Columns(0);
    /// `idler`: UTF-8, never null.
    pub const IDLER: Columns = Columns(1);
    /// `start_ns`: u64, never null.
    pub const START_NS: Columns = Columns(1 << 1);
    /// `idle_ns`: u64, never null.
    pub const IDLE_NS: Columns = Columns(1 << 2);
    /// `window_ns`: u64.
    pub const WINDOW_NS: Columns = Columns(1 << 3);
    /// `halted`: boolean.
    pub const HALTED: Columns = Columns(1 << 4);
    /// `wake`: UTF-8, one of [`Wake::ALL`](crate::Wake::ALL).
    pub const WAKE: Columns = Columns(1 << 5);
    /// `wake_latency_ns`: u64.
    pub const WAKE_LATENCY_NS: Columns = Columns(1 << 6);
    /// `ready`: UTF-8, names of handlers with a comma between them.
    pub const READY: Columns = Columns(1 << 7);
    /// Every column.
    pub const ALL: Columns = Columns(u8::MAX);

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Columns) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Columns {
    type Output = Columns;

    fn bitor(self, other: Columns) -> Columns {
        Columns(self.0 | other.0)
    }
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Unsigned,
    Flag,
}

impl Kind {
    /// For people, as pandas and DuckDB call it.
    pub(crate) const fn describe(self) -> &'static str {
        match self {
            Kind::Text => "a string (VARCHAR)",
            Kind::Unsigned => "a 64-bit unsigned integer (uint64, UBIGINT)",
            Kind::Flag => "a boolean",
        }
    }
}

pub(crate) struct Column {
    pub(crate) set: Columns,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

const fn column(set: Columns, name: &'static str, kind: Kind, required: bool) -> Column {
    Column { set, name, kind, required }
}

/// All columns, in the order in which they are written. A writer always writes all of them (an all-null column costs
/// a few bytes a row group), so that `SELECT … FROM 'recordings/*.parquet'` finds one schema in every file.
pub(crate) const COLUMNS: [Column; 8] = [
    column(Columns::IDLER, "idler", Kind::Text, true),
    column(Columns::START_NS, "start_ns", Kind::Unsigned, true),
    column(Columns::IDLE_NS, "idle_ns", Kind::Unsigned, true),
    column(Columns::WINDOW_NS, "window_ns", Kind::Unsigned, false),
    column(Columns::HALTED, "halted", Kind::Flag, false),
    column(Columns::WAKE, "wake", Kind::Text, false),
    column(Columns::WAKE_LATENCY_NS, "wake_latency_ns", Kind::Unsigned, false),
    column(Columns::READY, "ready", Kind::Text, false),
];

pub(crate) fn schema() -> parquet::errors::Result<TypePtr> {
    let mut fields = Vec::with_capacity(COLUMNS.len());
    for column in &COLUMNS {
        let (physical, logical) = match column.kind {
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Unsigned => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Kind::Flag => (Physical::BOOLEAN, None),
        };
        let repetition = if column.required { Repetition::REQUIRED } else { Repetition::OPTIONAL };
        let field = Type::primitive_type_builder(column.name, physical)
            .with_logical_type(logical)
            .with_repetition(repetition)
            .build()?;
        fields.push(Arc::new(field));
    }
    Ok(Arc::new(Type::group_type_builder("dwell").with_fields(fields).build()?))
}

pub(crate) fn properties(zstd_level: i32) -> parquet::errors::Result<WriterProperties> {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(zstd_level)?))
        .set_created_by(concat!("dwell-recording ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk);
    for column in &COLUMNS {
        let path = ColumnPath::from(column.name);
        properties = match column.kind {
            Kind::Text => properties.set_column_dictionary_enabled(path, true),
            Kind::Unsigned => properties.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Kind::Flag => properties.set_column_encoding(path, Encoding::PLAIN),
        };
    }
    Ok(properties.build())
}
