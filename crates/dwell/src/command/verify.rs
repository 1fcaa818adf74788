//! `dwell verify`

mod conclude;
mod record;
mod show;
mod sides;
mod unapplied;
mod watch;
mod work;

use super::apply::{self, How};
use crate::failure::{Answer, Outcome};
use crate::output::FormatArg;
use crate::state::{StateArgs, wait};
use crate::{privileges, progress, quantity, stop};
use anyhow::{Context, Error, bail, ensure};
use conclude::conclude;
use dwell_knobs::change::{self, Permission, Side, Standing};
use dwell_knobs::journal::{self, Change, Id, Journal, State};
use dwell_knobs::lease;
use dwell_knobs::place::Place;
use dwell_knobs::verification::Figure;
use dwell_machine::Writable;
use dwell_policy::Nanos;
use dwell_stats::{Arms, Campaign, CampaignOptions, Results, Unit};
use record::RecordArgs;
use sides::Sides;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use unapplied::SetArgs;
use work::WorkArgs;

/// Measure what a change, or a setting, does to the load
///
/// Switches between the values from before and after the change every fraction of a second, under the present load,
/// in the order before, after, before, and then in reverse. The values from before are measured twice; the difference
/// between the two is the error of the method. A verdict needs at least six such rounds. Guests and hosts are
/// recorded, which needs root; for an I/O thread, CPU time and sleeps are read.
///
/// The verdict is by the work done and by what a unit of work costs: where less work is done the change is a
/// regression, whatever a second costs. Work is what --work or --work-metric counts; else the context switches and
/// wakeups of a guest, the wakeups of a host, the requests to QEMU's block devices. A gain is confirmed only if it is
/// as predicted.
///
/// At the end, and after Ctrl-C, the values from after the change are in force, with --set those from before. If dwell
/// is killed meanwhile, `dwell revert` restores those from before. The result is kept in the journal.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell verify --revert-if-worse\n  \
                        dwell verify --set guest_halt_poll_ns=0 --record before.parquet after.parquet")]
pub(crate) struct Args {
    /// Number of the change, as `dwell status --history` prints it
    ///
    /// [default: the latest change that is applied]
    id: Option<Id>,
    /// Revert the change unless a gain was measured, with no work lost
    #[arg(long)]
    revert_if_worse: bool,
    /// Exit with 1 unless a gain was measured
    #[arg(long)]
    exit_code: bool,
    /// Longest time to measure
    ///
    /// A round takes 6 times --turn and --settle together.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::duration)]
    budget: Nanos,
    /// How long to measure before each switch
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = quantity::duration)]
    turn: Nanos,
    /// How long to wait after each switch, so that windows reach their length
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = quantity::duration)]
    settle: Nanos,
    #[command(flatten)]
    set: SetArgs,
    #[command(flatten)]
    record: RecordArgs,
    #[command(flatten)]
    work: WorkArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

pub(crate) fn run(args: Args) -> Outcome {
    args.record.check()?;
    let machine = args.state.machine()?;
    let stop = stop::patiently()?;
    if !args.set.is_given() {
        return verify(&args, &machine, args.id, &stop);
    }
    journal::is_not_verified(&machine, &args.state.state_dir)?;
    let plan = args.set.plan(&machine)?;
    args.work.check()?;
    // What has no effect was refused with the reason.
    let permission = Permission { force: false, no_effect: true };
    let how = How { persist: false, permission, dry_run: false, verifying: true, has_overrides: false };
    let (_, id) =
        apply::carry_out(&machine, &plan, &args.state, how).context("cannot measure the setting")?;
    let id = id.context("the values are in force already")?;
    let verified = verify(&args, &machine, Some(id), &stop);
    // Where it failed; else this finds nothing to do.
    let reverted = Journal::open_to_revert(&machine, &args.state.state_dir)
        .map_err(anyhow::Error::from)
        .and_then(|mut journal| Ok(change::revert(&mut journal, id, false, &mut wait)?));
    let left = "cannot restore all values from before; `dwell status` shows what is in force";
    ensure!(reverted.context(left)?.complete, "{left}");
    verified
}

/// Measures a change, by its number or the latest.
fn verify(args: &Args, machine: &dyn Writable, id: Option<Id>, stop: &AtomicBool) -> Outcome {
    let _alone = journal::lock_for_verifying(machine, &args.state.state_dir)?;
    let change = {
        let journal = Journal::open(machine, &args.state.state_dir)?;
        let change = which(&journal, id)?;
        is_not_leased(journal.changes(), &change)?;
        is_ours(machine, &change, journal.changes())?;
        change
    };
    let verified = Verified { machine, state_directory: &args.state.state_dir, id: change.id };
    privileges::record();
    let sides = Sides::open(machine, &change, &args.work)?;

    verified.with(|journal, change| Ok(journal.save(&Change { verifying: true, ..change })?))?;
    let measured = measure(args, &verified, sides, stop);
    verified
        .with(|journal, change| {
            change::switch(machine, &change, Side::After, &mut std::thread::sleep)?;
            // A setting that is only measured is reverted at the end.
            Ok(journal.save(&Change { verifying: args.set.is_given(), ..change })?)
        })
        .context("cannot set the values from after the change again")?;
    let (results, sides) = measured.with_context(|| match args.set.is_given() {
        true => "cannot measure the setting",
        false => "cannot verify the change; the values from after are in force again",
    })?;
    let mut verification = conclude(args, machine, &change, &results, &sides);
    let reverts = args.set.is_given() || args.revert_if_worse && !verification.verdict.is_gain();
    verified.with(|journal, change| {
        if reverts {
            verification.reverted = change::revert(journal, change.id, false, &mut wait)?.complete;
        }
        let mut change = journal.change(change.id)?.clone();
        change.verifications.push(verification.clone());
        Ok(journal.save(&change)?)
    })?;
    let shown = show::report(args.format.format, &change, &verification);
    if reverts && !verification.reverted {
        bail!("cannot revert all of the change; `dwell status` shows what is in force");
    }
    shown?;
    Ok(if args.exit_code && !verification.verdict.is_gain() { Answer::No } else { Answer::Yes })
}

/// The change that is verified. The journal is locked only while something is written.
struct Verified<'a> {
    machine: &'a dyn Writable,
    state_directory: &'a str,
    id: Id,
}

impl Verified<'_> {
    /// Does something with the journal locked, unless the change was reverted meanwhile.
    fn with<T>(&self, what: impl FnOnce(&mut Journal<'_>, Change) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let mut journal = Journal::open_to_revert(self.machine, self.state_directory)?;
        let change = journal.change(self.id)?.clone();
        ensure!(change.state == State::Applied, "change {} was {} meanwhile", self.id, change.state.name());
        what(&mut journal, change)
    }
}

fn which(journal: &Journal<'_>, id: Option<Id>) -> anyhow::Result<Change> {
    let is_applied = |change: &&Change| change.state == State::Applied && !change.lease;
    let latest = || journal.changes().iter().rev().find(is_applied);
    let change = match id {
        Some(id) => journal.change(id)?,
        None => latest().context("no change is applied; `dwell status --history` lists all changes")?,
    };
    if change.lease {
        bail!("cannot verify change {}: it is a lease, whose values `dwell control` sets", change.id);
    }
    if change.state != State::Applied {
        bail!("cannot verify change {}: it is {}, not applied", change.id, change.state.name());
    }
    Ok(change.clone())
}

/// What a controller changes all the time cannot be measured beside it.
fn is_not_leased(changes: &[Change], change: &Change) -> anyhow::Result<()> {
    let has = |place: &Place| change.entries.iter().any(|entry| entry.place == *place);
    let lease = lease::open(changes).find(|lease| lease.entries.iter().any(|entry| has(&entry.place)));
    match lease {
        Some(lease) => bail!(
            "cannot verify change {}: its values are those of a `dwell control` (change {}); `dwell control stop` ends that",
            change.id,
            lease.id
        ),
        None => Ok(()),
    }
}

/// Refuses where a value was changed outside dwell. An interrupted verification may be started again.
fn is_ours(machine: &dyn Writable, change: &Change, changes: &[Change]) -> anyhow::Result<()> {
    let standings = change::standings(machine, change, changes);
    for (entry, standing) in change.entries.iter().zip(standings).filter(|(entry, _)| entry.knob.is_some()) {
        let standing = standing.map_err(Error::msg)?;
        let resumes = change.verifying && standing == Standing::Original;
        if standing != Standing::InForce && !resumes {
            bail!(
                "{} is no longer as change {} has set it; `dwell status` shows what is in force",
                entry.place,
                change.id
            );
        }
    }
    Ok(())
}

const BEFORE: &str = "before";
const AFTER: &str = "after";

fn measure(
    args: &Args,
    verified: &Verified<'_>,
    mut sides: Sides,
    stop: &AtomicBool,
) -> anyhow::Result<(Results, Sides)> {
    let of = |figure: Figure| if figure == Figure::Halts { Unit::PerSecond } else { Unit::Nanos };
    let figure = dwell_stats::Figure::of_block;
    let work = sides.units().into_iter().flat_map(|unit| {
        [figure(unit.per_s(), Unit::PerSecond), figure(unit.promised_per_unit(), Unit::Count)]
    });
    let figures = Figure::ALL.into_iter().map(|of_block| figure(of_block.name(), of(of_block))).chain(work);
    let options =
        CampaignOptions { budget: Duration::from_nanos(args.budget.get()), ..CampaignOptions::default() };
    let arms = Arms::new(BEFORE, Side::Before).arm(AFTER, Side::After);
    let campaign = Campaign::new("verify", arms, figures, options)?;
    let (settle, length) = (Duration::from_nanos(args.settle.get()), Duration::from_nanos(args.turn.get()));
    let switch = |side: Side| -> anyhow::Result<()> {
        verified.with(|_, change| {
            Ok(change::switch(verified.machine, &change, side, &mut std::thread::sleep)?)
        })?;
        std::thread::sleep(settle);
        Ok(())
    };
    sides.record(&args.record, Duration::from_nanos(args.budget.get()), stop, &switch)?;
    // The change is measured under the load that is there: no block is repeated for it.
    let start = Instant::now();
    let results = progress::campaign(&campaign, &mut || start.elapsed(), stop, |turn| {
        switch(*turn.setting)?;
        sides.block(verified.machine, *turn.setting, length, stop)
    })?;
    Ok((results, sides))
}
