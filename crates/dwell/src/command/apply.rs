//! `dwell apply`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::state::{StateArgs, wait};
use anyhow::{Context, anyhow};
use dwell_knobs::change::{self, Obstacle, Past, Permission, Ready};
use dwell_knobs::journal::{self, Id, Journal};
use dwell_knobs::place::Place;
use dwell_knobs::plan::{Plan, Write};
use dwell_machine::Writable;
use dwell_recording::regular;
use dwell_report::{Cell, Column, Table};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Apply a plan, with a journal of the values before it
///
/// Original values go to the journal first, each value is read back, and everything is put back if one write fails.
/// The plan is compared with the machine before anything is written: another version, other values than it leads
/// from, a knob that is read-only or that nothing reads here are refused, all of them at once. What was set works at
/// once and until the next boot (of QEMU: until it ends); --persist keeps it. `dwell revert` takes it back at any
/// time, also after this program or the machine has crashed.
#[derive(clap::Args)]
#[command(
    after_help = "Example: dwell tune --plan plan.toml; dwell apply plan.toml --dry-run; dwell apply plan.toml"
)]
pub(crate) struct Args {
    /// The plan, as `dwell tune --plan` writes it
    plan: PathBuf,
    /// Check everything, print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Also keep the values over a reboot
    ///
    /// By modprobe.d, tmpfiles.d, a oneshot unit of systemd, or libvirt's configuration. `dwell revert` removes that
    /// again.
    #[arg(long)]
    persist: bool,
    /// Apply although the version or present values differ, or nothing reads the knob
    ///
    /// What differs is printed all the same.
    #[arg(long)]
    force: bool,
    /// Carry it out although nothing reads the knob here
    #[arg(long)]
    allow_no_effect: bool,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Applied<'a> {
    /// The number that takes it back; null if nothing was written.
    change: Option<Id>,
    /// Whether anything was written, or with `--dry-run` would be.
    changed: bool,
    dry_run: bool,
    writes: &'a [Write],
    kept: Vec<Kept<'a>>,
    notes: &'a [String],
}

#[derive(Serialize)]
struct Kept<'a> {
    place: &'a Place,
    text: &'a str,
}

pub(crate) fn run(args: Args) -> Outcome {
    let plan = read(&args.plan)?;
    let machine = args.state.machine()?;
    let (ready, change) = match args.dry_run {
        true => {
            let changes = journal::read_all(&machine, &args.state.state_dir)?;
            (check(&machine, &plan, &args, &changes)?, None)
        }
        false => carry_out(&machine, &plan, &args)?,
    };
    report(&args, &ready, change)?;
    Ok(Answer::Yes)
}

/// The longest plan that is read \[bytes\]; `dwell tune --plan` writes some kilobytes.
const LONGEST_PLAN: u64 = 1 << 20;

/// Reads a plan.
pub(crate) fn read(path: &Path) -> anyhow::Result<Plan> {
    let text = regular::read_text(path, LONGEST_PLAN)
        .with_context(|| format!("cannot read the plan {}", path.display()))?;
    Plan::from_toml(&text).with_context(|| path.display().to_string())
}

fn carry_out(machine: &dyn Writable, plan: &Plan, args: &Args) -> anyhow::Result<(Ready, Option<Id>)> {
    if !machine.exists(&args.state.state_dir) {
        // What is refused anyway makes no journal.
        check(machine, plan, args, &[])?;
    }
    let mut journal = Journal::open(machine, &args.state.state_dir).context("nothing was changed")?;
    let ready = check(machine, plan, args, journal.changes())?;
    if ready.is_nothing() {
        return Ok((ready, None));
    }
    let change = change::apply(&mut journal, &ready, &mut wait)?;
    Ok((ready, Some(change.id)))
}

fn check(
    machine: &dyn Writable,
    plan: &Plan,
    args: &Args,
    changes: &[journal::Change],
) -> anyhow::Result<Ready> {
    let permission = Permission { force: args.force, no_effect: args.allow_no_effect };
    change::check(machine, plan, args.persist, permission, changes).map_err(|obstacles| refusal(&obstacles))
}

/// All that is in the way, and what gets past it.
fn refusal(obstacles: &[Obstacle]) -> anyhow::Error {
    let told: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    let needs = |past| obstacles.iter().any(|obstacle| obstacle.past() == past);
    let way = match (needs(Past::Nothing), needs(Past::Force), needs(Past::AllowNoEffect)) {
        (true, ..) => "",
        (_, true, _) => "; --force carries it out nevertheless",
        _ => "; --allow-no-effect carries it out nevertheless",
    };
    anyhow!("refused, nothing was changed: {}{way}", told.join("; "))
}

fn report(args: &Args, ready: &Ready, change: Option<Id>) -> anyhow::Result<()> {
    let kept = ready.entries.iter().filter(|entry| entry.knob.is_none());
    let kept = kept.filter_map(|entry| Some(Kept { place: &entry.place, text: entry.applied.as_deref()? }));
    let applied = Applied {
        change,
        changed: !ready.is_nothing(),
        dry_run: args.dry_run,
        writes: &ready.writes,
        kept: kept.collect(),
        notes: &ready.notes,
    };
    match args.format.format {
        Format::Json => output::json(&applied),
        Format::Csv => output::csv(&table(&applied)),
        Format::Table => output::text(&words(&applied)),
    }
}

fn table(applied: &Applied<'_>) -> Table {
    let mut table = Table::new([
        Column::text("knob", "knob"),
        Column::number("from", "from"),
        Column::number("to", "to"),
        Column::number("then wait, ms", "then_wait_ms").rank(2),
        Column::text("place", "place").rank(1),
    ]);
    for write in applied.writes {
        table.push([
            Cell::Text(write.knob.clone()),
            Cell::Text(write.from.to_string()),
            Cell::Text(write.to.to_string()),
            if write.then_wait_ms > 0 { Cell::Count(write.then_wait_ms.into()) } else { Cell::Missing },
            Cell::Text(write.place.to_string()),
        ]);
    }
    for kept in &applied.kept {
        let place = Cell::Text(kept.place.to_string());
        table.push([Cell::Text("(kept)".to_owned()), Cell::Missing, Cell::Missing, Cell::Missing, place]);
    }
    table
}

fn words(applied: &Applied<'_>) -> String {
    let head = match (applied.dry_run, applied.change) {
        (true, _) if applied.writes.is_empty() && applied.kept.is_empty() => {
            "nothing would be written: the values of the plan are in force already\n"
        }
        (true, _) => "would be written, in this order:\n\n",
        (false, None) => "nothing was written: the values of the plan are in force already\n",
        (false, Some(_)) => "written and read back, in this order:\n\n",
    };
    let mut text = head.to_owned();
    if !applied.writes.is_empty() || !applied.kept.is_empty() {
        text += &output::fitted(&table(applied));
    }
    for kept in applied.kept.iter().filter(|_| applied.dry_run) {
        text += &format!("\n# {}\n{}\n", kept.place, kept.text.trim_end());
    }
    for note in applied.notes {
        text += &format!("note: {note}\n");
    }
    if let Some(id) = applied.change {
        text += &format!("change {id}; take it back with: dwell revert {id}\n");
    }
    text
}
