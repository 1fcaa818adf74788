//! The report as one long table: one figure per row.

use super::gather::{Recording, Report};
use dwell_report::{Cell, Column, Table};
use serde::Serialize;
use serde_json::Value;

/// All figures of the JSON, one row for each number or string, with its path.
pub(super) fn table(report: &Report) -> anyhow::Result<Vec<u8>> {
    let mut table = Table::new([
        Column::text("recording", "recording"),
        Column::text("figure", "figure"),
        Column::text("value", "value"),
    ]);
    for recording in &report.recordings {
        let Recording { file, .. } = recording;
        flatten(&mut table, file, "", &value(recording)?);
    }
    let mut rest = value(report)?;
    if let Some(fields) = rest.as_object_mut() {
        fields.remove("recordings");
    }
    flatten(&mut table, "", "", &rest);
    let mut bytes = vec![];
    table.write_csv(&mut bytes)?;
    Ok(bytes)
}

/// Through text: sums of time may have more bits than a directly made value can hold.
fn value(figures: &impl Serialize) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&serde_json::to_string(figures)?)?)
}

/// Adds what is in a value, its place written as in `figures.policies.0.halts`.
fn flatten(table: &mut Table, recording: &str, place: &str, value: &Value) {
    let below = |name: &str| if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") };
    let text = match value {
        Value::Object(fields) => {
            return fields.iter().for_each(|(name, value)| flatten(table, recording, &below(name), value));
        }
        Value::Array(values) => {
            let numbered = values.iter().enumerate();
            return numbered
                .for_each(|(at, value)| flatten(table, recording, &below(&at.to_string()), value));
        }
        Value::Null => return,
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    table.push([Cell::Text(recording.to_owned()), Cell::Text(place.to_owned()), Cell::Text(text)]);
}
