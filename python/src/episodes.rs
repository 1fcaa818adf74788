//! Episodes of a recording as Arrow, and the other way.

use crate::{refused, wrong};
use arrow_array::builder::{BooleanBuilder, StringDictionaryBuilder, UInt64Builder};
use arrow_array::types::Int32Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use dwell_recording::{Chunk, Columns, Reader};
use pyo3::PyResult;
use pyo3_arrow::PyTable;
use std::collections::HashMap;
use std::sync::Arc;

/// The key of a schema's metadata with what a recording says of itself, as in the file.
pub(crate) const METADATA: &str = "dwell.recording";

/// The names of the columns of a recording that are read.
pub(crate) const NAMES: [&str; 8] =
    ["idler", "start_ns", "idle_ns", "window_ns", "halted", "wake", "wake_latency_ns", "alone_ns"];

fn schema(reader: &Reader) -> PyResult<SchemaRef> {
    let text = || DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let types = [
        (text(), false),
        (DataType::UInt64, false),
        (DataType::UInt64, false),
        (DataType::UInt64, true),
        (DataType::Boolean, true),
        (text(), true),
        (DataType::UInt64, true),
        (DataType::UInt64, true),
    ];
    let fields: Vec<Field> =
        NAMES.iter().zip(types).map(|(name, (kind, nullable))| Field::new(*name, kind, nullable)).collect();
    let metadata = serde_json::to_string(reader.metadata()).map_err(wrong)?;
    let pairs = HashMap::from([(METADATA.to_owned(), metadata)]);
    Ok(Arc::new(Schema::new_with_metadata(fields, pairs)))
}

/// All episodes of a recording: a batch for each row group.
pub(crate) fn read(reader: &Reader) -> PyResult<PyTable> {
    let schema = schema(reader)?;
    let columns = Columns::ALL.without(Columns::READY);
    let (mut chunk, mut batches) = (Chunk::default(), vec![]);
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, columns, &mut chunk).map_err(wrong)?;
        batches.push(batch(reader, &chunk, &schema)?);
    }
    PyTable::try_new(batches, schema)
}

fn batch(reader: &Reader, chunk: &Chunk, schema: &SchemaRef) -> PyResult<RecordBatch> {
    let (mut idler, mut wake) =
        (StringDictionaryBuilder::<Int32Type>::new(), StringDictionaryBuilder::<Int32Type>::new());
    for &number in &chunk.idler {
        let named = reader.contents().idlers.get(number as usize);
        idler.append_value(named.map_or("", |idler| &idler.name));
    }
    chunk.wake.iter().for_each(|cause| wake.append_option(cause.map(|cause| cause.name())));
    let known = |values: &[u64]| -> ArrayRef {
        let mut builder = UInt64Builder::with_capacity(values.len());
        builder.append_slice(values);
        Arc::new(builder.finish())
    };
    let optional = |values: &[Option<u64>]| -> ArrayRef {
        let mut builder = UInt64Builder::with_capacity(values.len());
        values.iter().for_each(|value| builder.append_option(*value));
        Arc::new(builder.finish())
    };
    let mut halted = BooleanBuilder::with_capacity(chunk.rows);
    chunk.halted.iter().for_each(|value| halted.append_option(*value));
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(idler.finish()),
        known(&chunk.start_ns),
        known(&chunk.idle_ns),
        optional(&chunk.window_ns),
        Arc::new(halted.finish()),
        Arc::new(wake.finish()),
        optional(&chunk.wake_latency_ns),
        optional(&chunk.alone_ns),
    ];
    RecordBatch::try_new(Arc::clone(schema), arrays).map_err(wrong)
}

/// A column by any of these names, as this type; durations and times are nanoseconds.
pub(crate) fn column(batch: &RecordBatch, names: &[&str], to: &DataType) -> PyResult<Option<ArrayRef>> {
    let found = names.iter().find_map(|name| Some((name, batch.column_by_name(name)?)));
    let Some((name, array)) = found else { return Ok(None) };
    let options = arrow_cast::CastOptions { safe: false, ..Default::default() };
    let cast = |array: &dyn Array, to: &DataType| {
        arrow_cast::cast_with_options(array, to, &options)
            .map_err(|error| refused(format!("cannot read column `{name}`: {error}")))
    };
    let array = match array.data_type() {
        DataType::Duration(_) => cast(array, &DataType::Duration(TimeUnit::Nanosecond))?,
        DataType::Timestamp(_, _) => cast(array, &DataType::Timestamp(TimeUnit::Nanosecond, None))?,
        _ => Arc::clone(array),
    };
    let found = cast(&array, to)?;
    // A fraction would be cut off.
    if array.data_type().is_floating() && cast(&found, array.data_type())?.to_data() != array.to_data() {
        return Err(refused(format!("column `{name}` has fractions: write whole nanoseconds")));
    }
    Ok(Some(found))
}

/// A column that must be there.
pub(crate) fn needed(batch: &RecordBatch, names: &[&str], to: &DataType) -> PyResult<ArrayRef> {
    let found = column(batch, names, to)?;
    found.ok_or_else(|| refused(format!("the table has no column `{}`", names.join("` or `"))))
}
