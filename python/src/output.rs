//! Results as Arrow.

use crate::wrong;
use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use dwell_fleet::{Costs, FIELDS, Question, Row};
use dwell_policy::param::Setting;
use dwell_recording::table::Kind;
use dwell_stats::LogHistogram;
use pyo3::PyResult;
use pyo3_arrow::PyRecordBatch;
use std::collections::HashMap;
use std::sync::Arc;

/// The key of a schema's metadata with the settings whose costs a table has.
pub(crate) const SETTINGS: &str = "dwell.settings";

/// Settings as a JSON list of texts.
pub(crate) fn texts(settings: &[Setting]) -> String {
    let texts: Vec<String> = settings.iter().map(ToString::to_string).collect();
    serde_json::Value::from(texts).to_string()
}

/// The costs, with the columns of `dwell fleet -o`.
pub(crate) fn costs(question: &Question, rows: &[Row]) -> PyResult<PyRecordBatch> {
    let element = Arc::new(Field::new("element", DataType::Int64, false));
    let kind = |kind| match kind {
        Kind::Text => DataType::Utf8,
        Kind::SignedList => DataType::List(Arc::clone(&element)),
        _ => DataType::Int64,
    };
    let fields: Vec<Field> =
        FIELDS.iter().map(|field| Field::new(field.name, kind(field.kind), !field.required)).collect();
    let each = || rows.iter().map(|row| row.costs.as_ref().ok());
    let number = |number: fn(&Costs) -> u64| -> ArrayRef {
        Arc::new(each().map(|costs| costs.map(|costs| number(costs).cast_signed())).collect::<Int64Array>())
    };
    let text = |text: fn(&Costs) -> Option<String>| -> ArrayRef {
        Arc::new(each().map(|costs| costs.and_then(text)).collect::<StringArray>())
    };
    let mut lists = ListBuilder::new(Int64Builder::new()).with_field(element.clone());
    for costs in each() {
        if let Some(costs) = costs {
            costs.cost_ns.iter().for_each(|cost| lists.values().append_value(cost.cast_signed()));
        }
        lists.append(costs.is_some());
    }
    let mut first = ListBuilder::new(Int64Builder::new()).with_field(element.clone());
    for numbers in each().map(|costs| costs.and_then(|costs| costs.first.as_ref())) {
        if let Some(numbers) = numbers {
            numbers.0.iter().for_each(|number| first.values().append_value(number.cast_signed()));
        }
        first.append(numbers.is_some());
    }
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.vm))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.recording))),
        text(|costs| Some(costs.layer.name().to_owned())),
        text(|costs| costs.class.clone()),
        number(|costs| costs.episodes),
        number(|costs| costs.idlers),
        number(|costs| costs.span_ns),
        number(|costs| costs.optimum_ns),
        number(|costs| costs.today_ns),
        text(|costs| costs.today.as_ref().map(ToString::to_string)),
        Arc::new(first.finish()),
        Arc::new(lists.finish()),
        Arc::new(rows.iter().map(|row| row.costs.as_ref().err()).collect::<StringArray>()),
    ];
    let metadata = HashMap::from([
        (SETTINGS.to_owned(), texts(&question.settings)),
        ("dwell.halt_cost_ns".to_owned(), question.halt_cost.get().to_string()),
    ]);
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    Ok(PyRecordBatch::new(RecordBatch::try_new(schema, columns).map_err(wrong)?))
}

/// The buckets that are not empty.
pub(crate) fn histogram(histogram: &LogHistogram) -> PyResult<PyRecordBatch> {
    let names = ["from_ns", "to_ns", "episodes"];
    let fields: Vec<Field> = names.map(|name| Field::new(name, DataType::Int64, false)).into();
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let buckets: Vec<_> = histogram.buckets().collect();
    let column = |values: &mut dyn Iterator<Item = u64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(values.map(signed)))
    };
    let columns = vec![
        column(&mut buckets.iter().map(|bucket| bucket.from_ns)),
        column(&mut buckets.iter().map(|bucket| bucket.to_ns)),
        column(&mut buckets.iter().map(|bucket| bucket.count)),
    ];
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(wrong)?;
    Ok(PyRecordBatch::new(batch))
}
