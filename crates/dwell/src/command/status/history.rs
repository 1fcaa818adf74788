//! `dwell status --history`: every change, the oldest first.

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format};
use crate::state::{ago, title};
use dwell_knobs::journal::{Change, Readable};
use dwell_report::{Column, Table};

pub(super) fn run(Readable { changes, unreadable }: Readable, format: Format) -> Outcome {
    match format {
        _ if changes.is_empty() && !unreadable.is_empty() => {}
        Format::Json => output::json(&changes)?,
        Format::Csv => output::csv(&table(&changes, |since_unix_s| since_unix_s.to_string()))?,
        Format::Table if changes.is_empty() => output::text("dwell has made no changes here\n")?,
        Format::Table => output::text(&output::fitted(&table(&changes, ago)))?,
    }
    unreadable.into_iter().next().map_or(Ok(Answer::Yes), |error| Err(error.into()))
}

fn table(changes: &[Change], time: fn(u64) -> String) -> Table {
    let verdict = |change: &Change| Some(change.verifications.last()?.verdict.words());
    Table::of(changes)
        .column(Column::number("change", "change"), |change| change.id)
        .column(Column::text("state", "state"), |change| change.state.name())
        .column(Column::text("since", "since_unix_s"), |change| time(change.since_unix_s))
        .column(Column::text("layer", "layer").rank(2), |change| change.plan.owner.name())
        .column(Column::text("kept", "kept").rank(3), |change| if change.kept { "yes" } else { "no" })
        .column(Column::text("verified", "verified").rank(1), verdict)
        .column(Column::text("what", "what"), title)
        .table()
}
