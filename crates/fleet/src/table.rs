//! Costs as a table, a row for each recording: the Parquet file of `dwell fleet -o`, and what the Python
//! package returns.

use crate::costs::{Costs, Question};
use crate::folder::Row;
use dwell_recording::table::{Field, Kind, TableError, TableWriter, Value, field};
use std::io::Write;

/// The columns. Those of a recording that does not count are null, and `error` has the reason.
pub const FIELDS: [Field; 13] = [
    field("vm", Kind::Text, true),
    field("recording", Kind::Text, true),
    field("layer", Kind::Text, false),
    field("class", Kind::Text, false),
    field("episodes", Kind::Signed, false),
    field("idlers", Kind::Signed, false),
    field("span_ns", Kind::Signed, false),
    field("optimum_ns", Kind::Signed, false),
    field("today_ns", Kind::Signed, false),
    field("today", Kind::Text, false),
    field("first_lengths", Kind::SignedList, false),
    field("cost_ns", Kind::SignedList, false),
    field("error", Kind::Text, false),
];

/// Recordings of one row group: eight bytes for each and every setting are in memory once more.
const ROWS: usize = 1 << 10;

/// Writes the costs as Parquet. The metadata `dwell.settings` is a JSON list of the settings, in the order of
/// `cost_ns`.
///
/// # Errors
/// What writing fails with.
pub fn write<W: Write + Send>(out: W, question: &Question, rows: &[Row]) -> Result<W, TableError> {
    let created_by = concat!("dwell-fleet ", env!("CARGO_PKG_VERSION"));
    let mut table = TableWriter::new(out, "costs", &FIELDS, 3, created_by)?;
    for rows in rows.chunks(ROWS) {
        row_group(&mut table, rows)?;
    }
    let settings: Vec<String> = question.settings.iter().map(ToString::to_string).collect();
    table.metadata("dwell.settings", serde_json::Value::from(settings).to_string());
    table.metadata("dwell.halt_cost_ns", question.halt_cost.get().to_string());
    table.finish()
}

fn row_group<W: Write + Send>(table: &mut TableWriter<W>, rows: &[Row]) -> Result<(), TableError> {
    fn costs(row: &Row) -> Option<&Costs> {
        row.costs.as_ref().ok()
    }
    // Every number fits: `Question::costs` refuses those that do not.
    let signed = |number: u64| Some(Value::Signed(number.cast_signed()));
    let list =
        |numbers: &[u64]| Value::SignedList(numbers.iter().map(|number| number.cast_signed()).collect());
    table.row_group(
        rows,
        [
            &|row| Some(row.vm.as_str().into()),
            &|row| Some(row.recording.as_str().into()),
            &|row| Some(costs(row)?.layer.name().into()),
            &|row| Some(costs(row)?.class.as_deref()?.into()),
            &|row| signed(costs(row)?.episodes),
            &|row| signed(costs(row)?.idlers),
            &|row| signed(costs(row)?.span_ns),
            &|row| signed(costs(row)?.optimum_ns),
            &|row| signed(costs(row)?.today_ns),
            &|row| Some(Value::Text(costs(row)?.today.as_ref()?.to_string().into())),
            &|row| Some(list(&costs(row)?.first.as_ref()?.0)),
            &|row| Some(list(&costs(row)?.cost_ns)),
            &|row| Some(row.costs.as_ref().err()?.as_str().into()),
        ],
    )
}
