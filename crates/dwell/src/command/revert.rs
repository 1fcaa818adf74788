//! `dwell revert`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::state::{StateArgs, wait};
use anyhow::{Context, anyhow, bail};
use dwell_knobs::change::{self, Outcome as Of, RevertError, Reverted};
use dwell_knobs::journal::{self, Id, Journal, JournalError, Readable};
use dwell_knobs::lease;
use dwell_knobs::place::Place;
use dwell_knobs::value::shown;
use dwell_recording::with_causes;
use dwell_report::{Column, Table};
use serde::Serialize;

/// Restore the values from before a change
///
/// Restores the original values in reverse order and removes what --persist added. Works in any later process, also
/// after a crash or a reboot. A value that is neither the original nor the one that dwell wrote was changed outside
/// dwell: it is left alone and reported. Exits with 2 if any value is not as it was before.
///
/// The values that a `dwell control` sets are one change, its lease. It is not reverted while the controller runs, and
/// otherwise only with its number or --all; `dwell control stop` ends a controller and its lease.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of the change, as `dwell status --history` prints it
    ///
    /// [default: the latest change that is not reverted, and is no lease]
    #[arg(conflicts_with = "all")]
    id: Option<Id>,
    /// Revert all changes, the latest first
    #[arg(long)]
    all: bool,
    /// Also overwrite values that were changed outside dwell, or set by a later change
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Row<'a> {
    change: Id,
    place: &'a Place,
    original: &'a Option<String>,
    #[serde(flatten)]
    outcome: &'a Of,
}

impl Row<'_> {
    fn why_failed(&self) -> Option<&str> {
        match self.outcome {
            Of::Failed { why } => Some(why),
            _ => None,
        }
    }
}

pub(crate) fn run(args: Args) -> Outcome {
    let machine = args.state.machine()?;
    let Readable { changes, unreadable } = journal::read_readable(&machine, &args.state.state_dir)?;
    if args.id.is_none() && changes.is_empty() && unreadable.is_empty() {
        // A missing journal is not created.
        report(&args, &[])?;
        return Ok(Answer::Yes);
    }
    let mut journal = Journal::open_to_revert(&machine, &args.state.state_dir)?;
    let (mut done, mut failed) = (vec![], None);
    for id in which(&args, &journal)? {
        match change::revert(&mut journal, id, args.force, &mut wait) {
            Ok(reverted) => done.push(reverted),
            // The other changes are reverted all the same.
            Err(RevertError::Journal(error @ JournalError::Controlled { .. })) => {
                failed.get_or_insert(anyhow!(error).context(format!("cannot revert change {id}, a lease")));
            }
            Err(error) => {
                // The reason matters more than that it cannot be printed what was done.
                let _ = report(&args, &done);
                return Err(error.into());
            }
        }
    }
    for error in journal.unreadable() {
        match error {
            // It is none of dwell's.
            JournalError::Stray { .. } => output::note(&format!("dwell: {error}")),
            error => {
                failed.get_or_insert(anyhow!(with_causes(error)));
            }
        }
    }
    if let (None, true, Some(lease)) = (args.id, done.is_empty(), lease::open(journal.changes()).next()) {
        let stop = args.state.command("control stop");
        output::note(&format!("change {}, a lease, is not reverted; end it: {stop}", lease.id));
    }
    let shown = if failed.is_none() || !done.is_empty() { report(&args, &done) } else { Ok(()) };
    let left = not_restored(&done);
    // A closed pipe must not hide what was not restored.
    match failed {
        _ if !left.is_empty() => bail!(left),
        Some(error) => Err(error),
        None => shown.map(|()| Answer::Yes),
    }
}

fn which(args: &Args, journal: &Journal<'_>) -> anyhow::Result<Vec<Id>> {
    let open = journal.changes().iter().rev().filter(|change| change.state.is_open());
    match args.id {
        _ if args.all => Ok(open.map(|change| change.id).collect()),
        Some(id) => Ok(vec![journal.change(id)?.id]),
        None => Ok(open.filter(|change| !change.lease).take(1).map(|change| change.id).collect()),
    }
}

fn rows(done: &[Reverted]) -> Vec<Row<'_>> {
    let mut rows = vec![];
    for Reverted { id, places, .. } in done {
        for (place, original, outcome) in places {
            rows.push(Row { change: *id, place, original, outcome });
        }
    }
    rows
}

/// The values that were not restored, as one line.
fn not_restored(done: &[Reverted]) -> String {
    let (mut left, rows) = (vec![], rows(done));
    // Several values of one monitor are not restored for one reason.
    let failed =
        rows.chunk_by(|row, next| row.why_failed().is_some() && row.why_failed() == next.why_failed());
    for group in failed {
        let row = &group[0];
        match row.outcome {
            Of::LeftAlone { found, by: Some(by) } => left.push(format!(
                "{} was left alone: it is {}, and change {by} has set it since; revert that first, or all with --all",
                row.place,
                shown(found.as_deref())
            )),
            Of::LeftAlone { found, by: None } => left.push(format!(
                "{} was left alone: it was changed outside dwell to {} (it was {} before change {}); --force overwrites it",
                row.place,
                shown(found.as_deref()),
                shown(row.original.as_deref()),
                row.change
            )),
            Of::Failed { why } => {
                let places: Vec<String> = group.iter().map(|row| row.place.to_string()).collect();
                left.push(format!("cannot restore {}: {why}", places.join(", ")));
            }
            _ => {}
        }
    }
    left.join("; ")
}

fn report(args: &Args, done: &[Reverted]) -> anyhow::Result<()> {
    let rows = rows(done);
    match args.format.format {
        Format::Json => output::json(&rows),
        Format::Csv => output::csv(&table(&rows)),
        Format::Table if done.is_empty() => output::text("nothing to revert\n"),
        Format::Table => {
            if !rows.is_empty() {
                output::text(&output::fitted(&table(&rows)))?;
            }
            for reverted in done {
                let state = match (reverted.complete, reverted.places.is_empty()) {
                    (true, true) => "was reverted before",
                    (true, false) => "is reverted",
                    _ if reverted
                        .places
                        .iter()
                        .any(|(_, _, of)| matches!(of, Of::Restored | Of::Overwritten { .. })) =>
                    {
                        "is reverted in part"
                    }
                    _ => "is not reverted",
                };
                output::text(&format!("change {} {state}\n", reverted.id))?;
            }
            Ok(())
        }
    }
    .context("cannot print the result; the values are restored")
}

fn table(rows: &[Row<'_>]) -> Table {
    let outcome = |row: &Row<'_>| match row.outcome {
        Of::Restored => "restored",
        Of::AlreadyBack => "was restored already",
        Of::Gone => "no longer in force",
        Of::Overwritten { .. } => "overwritten",
        Of::LeftAlone { .. } => "left alone",
        Of::Failed { .. } => "failed",
    };
    let found = |row: &Row<'_>| match row.outcome {
        Of::Overwritten { found } | Of::LeftAlone { found, .. } => Some(shown(found.as_deref())),
        // Why is in the error.
        Of::Failed { .. } | Of::Restored | Of::AlreadyBack | Of::Gone => None,
    };
    Table::of(rows)
        .column(Column::number("change", "change"), |row| row.change)
        .column(Column::text("original", "original"), |row| shown(row.original.as_deref()))
        .column(Column::text("outcome", "outcome"), outcome)
        .column(Column::text("found", "found").rank(2), found)
        .column(Column::text("place", "place").below(), |row| row.place.to_string())
        .table()
}
