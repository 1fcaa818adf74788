//! `dwell status --history`: every change, the oldest first.

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format};
use crate::state::{ago, title};
use dwell_knobs::journal::{Change, Readable};
use dwell_report::{Cell, Column, Table};

pub(super) fn run(Readable { changes, unreadable }: Readable, format: Format) -> Outcome {
    match format {
        _ if changes.is_empty() && !unreadable.is_empty() => {}
        Format::Json => output::json(&changes)?,
        Format::Csv => output::csv(&table(&changes))?,
        Format::Table if changes.is_empty() => output::text("dwell has made no changes here\n")?,
        Format::Table => output::text(&output::fitted(&table(&changes)))?,
    }
    unreadable.into_iter().next().map_or(Ok(Answer::Yes), |error| Err(error.into()))
}

fn table(changes: &[Change]) -> Table {
    let mut table = Table::new([
        Column::number("change", "change"),
        Column::text("state", "state"),
        Column::text("since", "since_unix_s"),
        Column::text("layer", "layer").rank(2),
        Column::text("kept", "kept").rank(3),
        Column::text("verified", "verified").rank(1),
        Column::text("what", "what"),
    ]);
    for change in changes {
        let verdict = change.verifications.last().map(|last| last.verdict.words());
        table.push([
            Cell::Count(change.id.into()),
            Cell::Text(change.state.name().to_owned()),
            Cell::Text(ago(change.since_unix_s)),
            Cell::Text(change.plan.owner.name().to_owned()),
            Cell::Text(if change.kept { "yes" } else { "no" }.to_owned()),
            verdict.map_or(Cell::Missing, |verdict| Cell::Text(verdict.to_owned())),
            Cell::Text(title(change)),
        ]);
    }
    table
}
