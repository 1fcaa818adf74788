//! Costs as a table, a row for each recording: the Parquet file of `dwell fleet -o`, and what the Python
//! package returns.

use crate::costs::Question;
use crate::folder::Row;
use dwell_recording::table::{Field, Kind, TableError, TableWriter, Values, field};
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
    let settings: Vec<String> = question.settings().iter().map(ToString::to_string).collect();
    table.metadata("dwell.settings", serde_json::Value::from(settings).to_string());
    table.metadata("dwell.halt_cost_ns", question.halt_cost().get().to_string());
    table.finish()
}

fn row_group<W: Write + Send>(table: &mut TableWriter<W>, rows: &[Row]) -> Result<(), TableError> {
    let costs = || rows.iter().filter_map(|row| row.costs.as_ref().ok());
    let counts: Vec<bool> = rows.iter().map(|row| row.costs.is_ok()).collect();
    let fails: Vec<bool> = counts.iter().map(|counts| !counts).collect();
    let has = |has: &dyn Fn(&crate::Costs) -> bool| -> Vec<bool> {
        rows.iter().map(|row| row.costs.as_ref().is_ok_and(has)).collect()
    };
    let (classed, has_today) = (has(&|costs| costs.class.is_some()), has(&|costs| costs.today.is_some()));
    let today: Vec<String> =
        costs().filter_map(|costs| costs.today.as_ref()).map(ToString::to_string).collect();
    // Every number fits: `Question::costs` refuses those that do not.
    let signed = |number: &dyn Fn(&crate::Costs) -> u64| {
        Values::Signed(costs().map(|costs| number(costs).cast_signed()).collect())
    };
    let lists: Vec<Vec<i64>> =
        costs().map(|costs| costs.cost_ns.iter().map(|cost| cost.cast_signed()).collect()).collect();
    let with_first = has(&|costs| costs.first.is_some());
    let first: Vec<Vec<i64>> = costs()
        .filter_map(|costs| costs.first.as_ref())
        .map(|first| first.numbers().iter().map(|number| number.cast_signed()).collect())
        .collect();
    table.row_group([
        (Values::Text(rows.iter().map(|row| row.vm.as_str()).collect()), None),
        (Values::Text(rows.iter().map(|row| row.recording.as_str()).collect()), None),
        (Values::Text(costs().map(|costs| costs.layer.name()).collect()), Some(&counts[..])),
        (Values::Text(costs().filter_map(|costs| costs.class.as_deref()).collect()), Some(&classed[..])),
        (signed(&|costs| costs.episodes), Some(&counts[..])),
        (signed(&|costs| costs.idlers), Some(&counts[..])),
        (signed(&|costs| costs.span_ns), Some(&counts[..])),
        (signed(&|costs| costs.optimum_ns), Some(&counts[..])),
        (signed(&|costs| costs.today_ns), Some(&counts[..])),
        (Values::Text(today.iter().map(String::as_str).collect()), Some(&has_today[..])),
        (Values::SignedList(first.iter().map(Vec::as_slice).collect()), Some(&with_first[..])),
        (Values::SignedList(lists.iter().map(Vec::as_slice).collect()), Some(&counts[..])),
        (
            Values::Text(
                rows.iter().filter_map(|row| row.costs.as_ref().err().map(String::as_str)).collect(),
            ),
            Some(&fails[..]),
        ),
    ])
}
