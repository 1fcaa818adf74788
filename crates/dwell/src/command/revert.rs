//! `dwell revert`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::state::{StateArgs, wait};
use anyhow::{Context, bail};
use dwell_knobs::change::{self, Outcome as Of, Reverted};
use dwell_knobs::journal::{self, Id, Journal};
use dwell_knobs::place::Place;
use dwell_knobs::value::shown;
use dwell_report::{Cell, Column, Table};
use serde::Serialize;

/// Restore the values from before a change
///
/// Restores the original values in reverse order and removes what --persist added. Works in any later process, also
/// after a crash or a reboot. A value that is neither the original nor the one that dwell wrote was changed outside
/// dwell: it is left alone and reported. Exits with 2 if any value is not as it was before.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of the change, as `dwell history` prints it
    ///
    /// [default: the latest change that is not reverted]
    #[arg(conflicts_with = "all")]
    id: Option<Id>,
    /// Revert all changes, the latest first
    #[arg(long)]
    all: bool,
    /// Also overwrite values that were changed outside dwell
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

pub(crate) fn run(args: Args) -> Outcome {
    let machine = args.state.machine()?;
    if args.id.is_none() && journal::read_all(&machine, &args.state.state_dir)?.is_empty() {
        // A missing journal is not created.
        report(&args, &[])?;
        return Ok(Answer::Yes);
    }
    let mut journal = Journal::open(&machine, &args.state.state_dir)?;
    let ids = which(&args, &journal)?;
    let mut done = vec![];
    for id in ids {
        match change::revert(&mut journal, id, args.force, &mut wait) {
            Ok(reverted) => done.push(reverted),
            Err(error) => {
                report(&args, &done)?;
                return Err(error.into());
            }
        }
    }
    report(&args, &done)?;
    let left: usize = done.iter().filter(|reverted| !reverted.complete).count();
    match left {
        0 => Ok(Answer::Yes),
        _ => bail!(told(&done)),
    }
}

fn which(args: &Args, journal: &Journal<'_>) -> anyhow::Result<Vec<Id>> {
    let open = journal.changes().iter().rev().filter(|change| change.state.is_open()).map(|change| change.id);
    match args.id {
        _ if args.all => Ok(open.collect()),
        Some(id) => Ok(vec![journal.change(id)?.id]),
        None => Ok(open.take(1).collect()),
    }
}

fn rows(done: &[Reverted]) -> Vec<Row<'_>> {
    let row = |reverted: &Reverted| {
        let change = reverted.id;
        move |(place, original, outcome)| Row { change, place, original, outcome }
    };
    done.iter()
        .flat_map(|reverted| reverted.places.iter().map(|(p, o, w)| (p, o, w)).map(row(reverted)))
        .collect()
}

/// The values that were not restored, as one line.
fn told(done: &[Reverted]) -> String {
    let mut told = vec![];
    for row in rows(done) {
        match row.outcome {
            Of::LeftAlone { found, by: Some(by) } => told.push(format!(
                "{} was left alone: change {by} has set it to {} since; revert that first, or all with --all",
                row.place,
                shown(found.as_deref())
            )),
            Of::LeftAlone { found, by: None } => told.push(format!(
                "{} was left alone: it was changed outside dwell to {} (it was {} before change {}); --force overwrites it",
                row.place,
                shown(found.as_deref()),
                shown(row.original.as_deref()),
                row.change
            )),
            Of::Failed { why } => told.push(format!("cannot restore {}: {why}", row.place)),
            _ => {}
        }
    }
    told.join("; ")
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
                    _ => "is reverted in part",
                };
                output::text(&format!("change {} {state}\n", reverted.id))?;
            }
            Ok(())
        }
    }
    .context("cannot print the result; the values are restored")
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::new([
        Column::number("change", "change"),
        Column::text("original", "original"),
        Column::text("outcome", "outcome"),
        Column::text("found", "found").rank(2),
        Column::text("place", "place").below(),
    ]);
    for row in rows {
        let (outcome, found) = match row.outcome {
            Of::Restored => ("restored", None),
            Of::AlreadyBack => ("was restored already", None),
            Of::Gone => ("no longer exists", None),
            Of::Overwritten { found } => ("overwritten", Some(shown(found.as_deref()))),
            Of::LeftAlone { found, .. } => ("left alone", Some(shown(found.as_deref()))),
            Of::Failed { why } => ("failed", Some(why.clone())),
        };
        table.push([
            Cell::Count(row.change.into()),
            Cell::Text(shown(row.original.as_deref())),
            Cell::Text(outcome.to_owned()),
            found.map_or(Cell::Missing, Cell::Text),
            Cell::Text(row.place.to_string()),
        ]);
    }
    table
}
