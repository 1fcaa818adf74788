//! `dwell status`

mod history;

use crate::failure::{Answer, Outcome};
use crate::output::{self, FormatArg};
use crate::state::{StateArgs, ago};
use dwell_knobs::change::{self, Standing};
use dwell_knobs::journal::{self, Change, Entry, Id, JournalError, Readable, State};
use dwell_knobs::lease::Holder;
use dwell_knobs::place::Place;
use dwell_knobs::value::shown;
use dwell_machine::{Writable, identity};
use dwell_report::{Column, Table};
use serde::Serialize;
use std::time::Duration;

/// Print which of dwell's changes are in force
///
/// Lists the changes that are not reverted, with the value before, the value that was set and the present value, and what a
/// running `dwell control` does. Changes nothing.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Exit with 1 if any value that was set is not in force
    #[arg(long)]
    exit_code: bool,
    /// List every change that dwell made on this machine, oldest first
    ///
    /// With --format json, each change has its plan, the original values and the result of `dwell verify`.
    #[arg(long, conflicts_with = "exit_code")]
    history: bool,
    /// Print what the running `dwell control` does; it is an error if none runs
    #[arg(long, conflicts_with_all = ["exit_code", "history"])]
    control: bool,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Open<'a> {
    change: Id,
    state: State,
    since_unix_s: u64,
    /// Whether the values are kept over a reboot.
    kept: bool,
    /// Whether `dwell control` changes the values all the time.
    lease: bool,
    /// Whether the machine has been rebooted since; null if not known.
    rebooted: Option<bool>,
    verifying: bool,
    places: Vec<Row<'a>>,
    remark: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    knob: Option<&'a str>,
    place: &'a Place,
    original: Option<&'a str>,
    applied: Option<&'a str>,
    #[serde(flatten)]
    standing: Seen,
    /// The later change that has set the present value.
    set_by: Option<Id>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Seen {
    Known(Standing),
    Unreadable { standing: &'static str, why: String },
}

pub(crate) fn run(args: Args) -> Outcome {
    let machine = args.state.machine()?;
    if args.control {
        return super::control::status(&machine.path(&args.state.state_dir), args.format.format);
    }
    args.state.remark_if_missing(&machine);
    let readable = journal::read_readable(&machine, &args.state.state_dir)?;
    if args.history {
        return history::run(readable, args.format.format);
    }
    let Readable { changes, unreadable } = readable;
    let mut unreadable = unreadable.into_iter().map(anyhow::Error::from).peekable();
    // What is in force is not known then.
    if unreadable.peek().is_some() && !changes.iter().any(|change| change.state.is_open()) {
        return unreadable.next().map_or(Ok(Answer::Yes), Err);
    }
    let now = identity::boot_id(&machine);
    let open: Vec<Open<'_>> = changes
        .iter()
        .filter(|change| change.state.is_open())
        .map(|change| examine(&machine, change, &changes, &args.state, now.as_deref()))
        .collect();
    let text = || {
        let controlled = super::control::lines(&machine.path(&args.state.state_dir));
        words(&open) + &controlled.iter().map(|line| output::wrapped(line)).collect::<String>()
    };
    output::result(args.format.format, &open, || table(&open), text)?;
    if let Some(error) = unreadable.next() {
        return Err(error);
    }
    let in_force = |change: &Open<'_>, row: &Row<'_>| match row.standing {
        Seen::Known(Standing::InForce) => true,
        // What control has set.
        Seen::Known(Standing::OnTheWay { .. }) => change.lease,
        _ => false,
    };
    let all = |change: &Open<'_>| change.places.iter().all(|row| in_force(change, row));
    let all = open.iter().all(|change| change.state == State::Applied && all(change));
    Ok(if args.exit_code && !all { Answer::No } else { Answer::Yes })
}

fn examine<'a>(
    machine: &dyn Writable,
    change: &'a Change,
    changes: &[Change],
    state: &StateArgs,
    now: Option<&str>,
) -> Open<'a> {
    let row = |(entry, standing): (&'a Entry, Result<Standing, String>)| {
        let standing = match standing {
            Ok(standing) => Seen::Known(standing),
            Err(why) => Seen::Unreadable { standing: "unreadable", why },
        };
        let set_by = match &standing {
            Seen::Known(Standing::Foreign { found }) => {
                change::set_by(changes, change.id, &entry.place, found.as_deref())
            }
            _ => None,
        };
        Row {
            knob: entry.knob.as_deref(),
            place: &entry.place,
            original: entry.original.as_deref(),
            applied: entry.applied.as_deref(),
            standing,
            set_by,
        }
    };
    let rebooted = change.boot_id.as_deref().zip(now).map(|(then, now)| then != now);
    let standings = change::standings(machine, change, changes);
    let places: Vec<Row<'a>> = change.entries.iter().zip(standings).map(row).collect();
    let verified = change.verifying.then(|| journal::is_not_verified(machine, &state.state_dir));
    let remark = match verified {
        Some(Err(JournalError::Verified { .. })) => {
            Some("a running `dwell verify` switches between its values".to_owned())
        }
        Some(Err(_)) => Some(format!(
            "a `dwell verify` of it runs, or was interrupted, which only root sees; if it was, take it back: {}",
            state.revert(change.id)
        )),
        Some(Ok(())) | None if change.lease && !change.left => Some(of_lease(machine, state)),
        Some(Ok(())) | None => remark(change, &state.revert(change.id), rebooted, &places),
    };
    Open {
        change: change.id,
        state: change.state,
        since_unix_s: change.since_unix_s,
        kept: change.kept,
        lease: change.lease,
        rebooted,
        verifying: change.verifying,
        places,
        remark,
    }
}

/// Whether the process of a lease runs, which only root sees.
fn of_lease(machine: &dyn Writable, state: &StateArgs) -> String {
    let stop = state.command("control stop");
    match Holder::begin_within(machine, &state.state_dir, Duration::ZERO) {
        Ok(_) => format!(
            "the `dwell control` or `dwell iothread bench` of this lease was killed; restore the originals: {stop}"
        ),
        Err(_) => format!(
            "it is the lease of a `dwell control`, of which `dwell status --control` has what it does, or of a `dwell iothread \
             bench`; end it: {stop}"
        ),
    }
}

/// What to do about a change.
fn remark(change: &Change, revert: &str, rebooted: Option<bool>, places: &[Row<'_>]) -> Option<String> {
    let live = |row: &&Row<'_>| row.place.is_live();
    let original = |row: &Row<'_>| matches!(row.standing, Seen::Known(Standing::Original | Standing::Gone));
    if change.state == State::Unfinished {
        return Some(format!("it was interrupted half-way; revert it: {revert}"));
    }
    if change.left {
        return Some(
            "a `dwell control` has ended and left its setting; the next one adopts it, and `dwell control stop` restores the \
             originals"
                .to_owned(),
        );
    }
    if change.verifying {
        return Some(format!(
            "a `dwell verify` of it was interrupted, and values from before the change may be in force; take it back: {revert}"
        ));
    }
    if rebooted == Some(true) && !change.kept && places.iter().filter(live).all(original) {
        return Some("a reboot has undone it; apply the plan again, or with --persist".to_owned());
    }
    let is_gone = |row: &Row<'_>| matches!(row.standing, Seen::Known(Standing::Gone));
    if of_qemu(places) && places.iter().all(is_gone) {
        return Some(format!(
            "its QEMU has ended or was started anew, with its own values; close it: {revert}"
        ));
    }
    None
}

fn of_qemu(places: &[Row<'_>]) -> bool {
    places.iter().any(|row| matches!(row.place, Place::Iothread { .. }))
}

fn words(open: &[Open<'_>]) -> String {
    if open.is_empty() {
        return "nothing that dwell has changed is in force\n".to_owned();
    }
    let mut text = output::fitted(&table(open));
    for change in open {
        let kept = match change.kept {
            true => "kept over a reboot",
            false if of_qemu(&change.places) => "until QEMU ends",
            false => "until the next boot",
        };
        text += &format!(
            "change {}: {}, {}, {kept}\n",
            change.change,
            change.state.name(),
            ago(change.since_unix_s)
        );
        // Several values of one monitor cannot be read for one reason.
        let mut reasons: Vec<&str> = change.places.iter().filter_map(Row::why_unreadable).collect();
        reasons.dedup();
        for why in reasons {
            text += &output::wrapped(&format!("warning: change {}: {why}", change.change));
        }
        if let Some(remark) = &change.remark {
            text += &output::wrapped(&format!("note: change {}: {remark}", change.change));
        }
    }
    text
}

fn table(open: &[Open<'_>]) -> Table {
    Table::of(open.iter().flat_map(|change| change.places.iter().map(move |row| (change, row))))
        .column(Column::number("change", "change"), |(change, _)| change.change)
        .column(Column::text("knob", "knob"), |(_, row)| row.knob.unwrap_or("(kept in)"))
        .column(Column::text("before", "original"), |(_, row)| brief(row, row.original))
        .column(Column::text("set", "applied"), |(_, row)| brief(row, row.applied))
        .column(Column::text("now", "standing"), |(change, row)| row.words(change.lease))
        .column(Column::text("place", "place").below(), |(_, row)| row.place.to_string())
        .table()
}

/// The text of a file is shown as its length.
fn brief(row: &Row<'_>, value: Option<&str>) -> String {
    match (row.knob, value) {
        (None, Some(text)) => format!("{} bytes", text.len()),
        (_, value) => shown(value),
    }
}

impl Row<'_> {
    fn why_unreadable(&self) -> Option<&str> {
        match &self.standing {
            Seen::Unreadable { why, .. } => Some(why),
            Seen::Known(_) => None,
        }
    }

    fn words(&self, lease: bool) -> String {
        match &self.standing {
            Seen::Known(Standing::OnTheWay { found }) if lease => {
                format!("{}, set by control", shown(found.as_deref()))
            }
            Seen::Known(Standing::InForce) => "in force".to_owned(),
            Seen::Known(Standing::Original) => "as before".to_owned(),
            Seen::Known(Standing::Gone) => "no longer in force".to_owned(),
            Seen::Known(Standing::OnTheWay { found }) => format!("{}, on the way", shown(found.as_deref())),
            Seen::Known(Standing::Foreign { found }) => {
                let by = self
                    .set_by
                    .map_or("changed outside dwell".to_owned(), |by| format!("set by change {by}"));
                format!("{}, {by}", shown(found.as_deref()))
            }
            Seen::Unreadable { standing, .. } => (*standing).to_owned(),
        }
    }
}
