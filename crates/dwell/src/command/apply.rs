//! `dwell apply`

use crate::failure::Outcome;
use crate::input::is_parquet;
use crate::output::{self, FormatArg};
use crate::state::{StateArgs, wait};
use anyhow::{Context, anyhow, bail};
use dwell_knobs::change::{self, Obstacle, Override, Permission, Ready};
use dwell_knobs::journal::{self, Id, Journal};
use dwell_knobs::place::Place;
use dwell_knobs::plan::{Plan, Write};
use dwell_machine::Writable;
use dwell_recording::regular;
use dwell_report::{Column, Table};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Apply a plan and journal the original values
///
/// Writes the original values to the journal first, reads each value back after it is written, and restores all of
/// them if one write fails. Before anything is written, the plan is compared with this machine: it is refused, with
/// all reasons at once, if the version or the present values differ from those of the plan, or if a parameter is
/// read-only or has no effect here. The values take effect at once and last until the next boot (those of QEMU: until
/// it exits); --persist keeps them. `dwell revert` restores the original values at any time, also after dwell or the
/// machine has crashed.
#[derive(clap::Args)]
#[command(
    after_help = "Example: dwell tune --plan plan.toml; dwell apply plan.toml --dry-run; dwell apply plan.toml"
)]
pub(crate) struct Args {
    /// Plan, written by `dwell tune --plan`
    plan: PathBuf,
    /// Check everything and print what would be written, but write nothing
    #[arg(long)]
    dry_run: bool,
    /// Also keep the values over a reboot
    ///
    /// Uses modprobe.d, tmpfiles.d, a oneshot unit of systemd, or libvirt's configuration. `dwell revert` removes
    /// what was added.
    #[arg(long)]
    persist: bool,
    /// Apply even if the version or present values differ, or a parameter has no effect
    ///
    /// The differences are printed all the same.
    #[arg(long)]
    force: bool,
    /// Apply even if a parameter has no effect here
    #[arg(long)]
    allow_no_effect: bool,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Applied<'a> {
    /// Number of the change, for `dwell revert`; null if nothing was written.
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
    let permission = Permission { force: args.force, no_effect: args.allow_no_effect };
    let how = How {
        persist: args.persist,
        permission,
        dry_run: args.dry_run,
        verifying: false,
        has_overrides: true,
    };
    let (ready, change) = carry_out(&machine, &plan, &args.state, how)?;
    let shown = report(&args, &ready, change);
    match change {
        Some(id) => shown.with_context(|| format!("change {id} is in force, which could not be printed")),
        None => shown,
    }
}

/// The largest plan that is read \[bytes\]; `dwell tune --plan` writes a few kilobytes.
const LONGEST_PLAN: u64 = 1 << 20;

pub(crate) fn read(path: &Path) -> anyhow::Result<Plan> {
    if is_parquet(path) {
        bail!(
            "cannot read the plan {0}: it is a recording; make a plan of it with `dwell tune {0} --plan plan.toml`",
            path.display()
        );
    }
    let text = regular::read_text(path, LONGEST_PLAN)
        .with_context(|| format!("cannot read the plan {}", path.display()))?;
    Plan::from_toml(&text).with_context(|| path.display().to_string())
}

/// How a plan is carried out.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// Whether values are kept over a reboot.
    pub(crate) persist: bool,
    pub(crate) permission: Permission,
    /// Whether nothing is written.
    pub(crate) dry_run: bool,
    /// Whether the values are in force only to be measured.
    pub(crate) verifying: bool,
    /// Whether the command has options that permit more.
    pub(crate) has_overrides: bool,
}

/// Checks a plan and, unless nothing is to be written, carries it out. Returns the number of the change, if
/// one was made.
pub(crate) fn carry_out(
    machine: &dyn Writable,
    plan: &Plan,
    state: &StateArgs,
    how: How,
) -> anyhow::Result<(Ready, Option<Id>)> {
    let check = |changes: &[journal::Change]| {
        change::check(machine, plan, how.persist, how.permission, changes)
            .map_err(|obstacles| refusal(&obstacles, how.has_overrides))
    };
    if how.dry_run {
        let changes = journal::read_all(machine, &state.state_dir)?;
        return Ok((check(&changes)?, None));
    }
    if !machine.exists(&state.state_dir) {
        // A plan that is refused leaves no journal.
        check(&[])?;
    }
    let mut journal = Journal::open(machine, &state.state_dir).context("nothing was changed")?;
    // Before the values are compared: a verification switches them.
    journal.is_not_verified().context("nothing was changed")?;
    let ready = Ready { verifying: how.verifying, ..check(journal.changes())? };
    if ready.is_nothing() {
        return Ok((ready, None));
    }
    let change = change::apply(&mut journal, &ready, &mut wait)?;
    Ok((ready, Some(change.id)))
}

/// All reasons to refuse the plan, and the option that overrides them.
fn refusal(obstacles: &[Obstacle], has_overrides: bool) -> anyhow::Error {
    let told: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
    let needs = |past| obstacles.iter().any(|obstacle| obstacle.past() == past);
    let way = match (needs(Override::Nothing), needs(Override::Force), needs(Override::AllowNoEffect)) {
        _ if !has_overrides => "",
        (true, ..) => "",
        (_, true, _) => "; --force applies it anyway",
        _ => "; --allow-no-effect applies it anyway",
    };
    let what = if has_overrides { "cannot apply the plan, " } else { "" };
    anyhow!("{what}nothing was changed: {}{way}", told.join("; "))
}

fn report(args: &Args, ready: &Ready, change: Option<Id>) -> Outcome {
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
    output::result(args.format.format, &applied, || table(&applied), || words(&applied, &args.state))
}

fn table(applied: &Applied<'_>) -> Table {
    let writes = applied.writes.iter().map(|write| (Some(write), &write.place));
    let kept = applied.kept.iter().map(|kept| (None, kept.place));
    Table::of(writes.chain(kept))
        .column(Column::text("knob", "knob"), |(write, _)| write.map_or("(kept)", |write| &write.knob))
        .column(Column::number("from", "from"), |(write, _)| write.map(|write| write.from.to_string()))
        .column(Column::number("to", "to"), |(write, _)| write.map(|write| write.to.to_string()))
        .column(Column::number("wait, ms", "then_wait_ms").rank(2), |(write, _)| {
            write.map(|write| write.then_wait_ms).filter(|&ms| ms > 0)
        })
        .column(Column::text("place", "place").rank(1), |(_, place)| place.to_string())
        .table()
}

fn words(applied: &Applied<'_>, state: &StateArgs) -> String {
    let head = match (applied.dry_run, applied.change) {
        (true, _) if applied.writes.is_empty() && applied.kept.is_empty() => {
            "nothing to write: the values of the plan are in force already\n"
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
    text += &output::notes(applied.notes);
    if let Some(id) = applied.change {
        text += &format!("change {id}; revert it with: {}\n", state.revert(id));
    }
    text
}
