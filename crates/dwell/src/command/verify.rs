//! `dwell verify`

mod sides;

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::state::{StateArgs, title, wait};
use crate::{progress, quantity, stop};
use anyhow::{Context, bail};
use dwell_knobs::change::{self, Side, Standing};
use dwell_knobs::condition;
use dwell_knobs::journal::{Change, Id, Journal, State};
use dwell_knobs::knob::Knob;
use dwell_knobs::machine::Machine;
use dwell_knobs::verification::{Compared, Figure, Measured, Verdict, Verification, judge};
use dwell_policy::Nanos;
use dwell_report::{Cell, Column, Table, duration};
use dwell_stats::{Arms, Campaign, CampaignOptions, Interval, Results, Ungated, Unit};
use serde::Serialize;
use sides::Sides;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

/// Did it bring what was predicted? Lets the values of before and after take turns, and measures
///
/// The values take turns of a fraction of a second in the order before, after, before, and backwards, under the load that
/// there is; before comes twice so that the error of the method shows. Guests and hosts are recorded (needs root), of an I/O
/// thread CPU time and sleeps are read. In the end the values of after are in force, also after Ctrl-C; killed in between,
/// `dwell revert` takes the change back as ever. What was found is kept in the journal.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The change, as `dwell history` numbers it [default: the latest that is applied]
    id: Option<Id>,
    /// Take the change back unless a gain was measured
    #[arg(long)]
    revert_if_worse: bool,
    /// Exit with 1 unless a gain was measured
    #[arg(long)]
    exit_code: bool,
    /// How long to measure at most
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::duration)]
    budget: Nanos,
    /// Length of one turn
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = quantity::duration)]
    turn: Nanos,
    /// How long values are in force before a turn of them counts, so that windows have found their length
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = quantity::duration)]
    settle: Nanos,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Verified<'a> {
    change: Id,
    #[serde(flatten)]
    verification: &'a Verification,
}

pub(crate) fn run(args: Args) -> Outcome {
    let machine = args.state.machine()?;
    let mut journal = Journal::open(&machine, &args.state.state_dir)?;
    let change = which(&journal, args.id)?;
    is_ours(&machine, &change)?;
    let sides = Sides::open(&machine, &change)?;
    let stop = stop::patiently()?;

    journal.save(&Change { verifying: true, ..change.clone() })?;
    let measured = measure(&args, &machine, &change, sides, &stop);
    change::switch(&machine, &change, Side::After).context("cannot set the values of after again")?;
    journal.save(&Change { verifying: false, ..change.clone() })?;
    let (findings, sides) = measured.context("the values of after are in force again")?;
    let mut verification = conclude(&args, &machine, &change, &findings, &sides);
    if args.revert_if_worse && !verification.verdict.is_gain() {
        verification.reverted = change::revert(&mut journal, change.id, false, &mut wait)?.complete;
    }
    let mut verified = journal.change(change.id)?.clone();
    verified.verifications.push(verification.clone());
    journal.save(&verified)?;
    report(&args, &change, &verification)?;
    if args.revert_if_worse && !verification.verdict.is_gain() && !verification.reverted {
        bail!("the change could not be taken back wholly; `dwell status` shows what is there");
    }
    Ok(if args.exit_code && !verification.verdict.is_gain() { Answer::No } else { Answer::Yes })
}

fn which(journal: &Journal<'_>, id: Option<Id>) -> anyhow::Result<Change> {
    let latest = || journal.changes().iter().rev().find(|change| change.state == State::Applied);
    let change = match id {
        Some(id) => journal.change(id)?,
        None => latest().context("no change is applied; `dwell history` lists what there was")?,
    };
    if change.state != State::Applied {
        bail!("change {} is {}; only one that is applied can be verified", change.id, change.state.name());
    }
    Ok(change.clone())
}

/// What is not as the change left it is not switched back and forth; an interrupted verification may be begun anew.
fn is_ours(machine: &dyn Machine, change: &Change) -> anyhow::Result<()> {
    for entry in change.entries.iter().filter(|entry| entry.knob.is_some()) {
        let standing = change::standing(machine, entry)?;
        let resumes = change.verifying && standing == Standing::Original;
        if standing != Standing::InForce && !resumes {
            bail!(
                "{} is not as change {} has set it; `dwell status` shows what is there",
                entry.place,
                change.id
            );
        }
    }
    Ok(())
}

const BEFORE: &str = "before";
const AFTER: &str = "after";
const WAKES: &str = "wakes_per_s";

/// The error of a turn, as a campaign takes it.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct TurnError(anyhow::Error);

fn measure(
    args: &Args,
    machine: &dyn Machine,
    change: &Change,
    mut sides: Sides,
    stop: &AtomicBool,
) -> anyhow::Result<(Results, Sides)> {
    let unit = |figure: Figure| if figure == Figure::HaltsPerS { Unit::PerSecond } else { Unit::Nanos };
    let figures = Figure::ALL
        .map(|figure| dwell_stats::Figure::of_block(figure.name(), unit(figure)))
        .into_iter()
        .chain([dwell_stats::Figure::of_block(WAKES, Unit::PerSecond)]);
    let plan =
        CampaignOptions { budget: Duration::from_nanos(args.budget.get()), ..CampaignOptions::default() };
    let arms = Arms::new(BEFORE, Side::Before).arm(AFTER, Side::After);
    let campaign = Campaign::new("verify", arms, figures, plan)?;
    let (settle, length) = (Duration::from_nanos(args.settle.get()), Duration::from_nanos(args.turn.get()));
    let mut live = progress::Live::new();
    // The change is measured under the load that is there: no block is repeated for it.
    let start = Instant::now();
    let record = campaign.run(
        &mut Ungated::new(|| start.elapsed()),
        stop,
        &mut |now| {
            if live.due() {
                live.tell(&progress::of_campaign("", now));
            }
        },
        |turn| {
            let mut block = || {
                change::switch(machine, change, *turn.setting)?;
                std::thread::sleep(settle);
                sides.block(length, stop)
            };
            block().map_err(TurnError)
        },
    );
    live.clear();
    Ok((record?.results(), sides))
}

fn measured(interval: Interval) -> Measured {
    Measured::new(interval.low, interval.value, interval.high)
}

fn conclude(
    args: &Args,
    machine: &dyn Machine,
    change: &Change,
    findings: &Results,
    sides: &Sides,
) -> Verification {
    let plan = &change.plan;
    let control = format!("{BEFORE} (A/A)");
    let compared = |figure: Figure| {
        let row = |arm: &str| findings.row(arm, figure.name());
        let value = |arm: &str| Some(measured(row(arm)?.value?));
        let difference = |arm: &str| Some(measured(row(arm)?.comparison?.difference));
        let (predicted_before, predicted_after) = figure.predicted(plan);
        Compared {
            figure,
            predicted_before,
            predicted_after,
            before: value(BEFORE),
            after: value(AFTER),
            difference: difference(AFTER),
            control_difference: difference(&control),
        }
    };
    let figures: Vec<Compared> = Figure::ALL.into_iter().map(compared).collect();
    let promised = Figure::promised(plan);
    let void = void(args, machine, change);
    let judged = figures.iter().find(|compared| compared.figure == promised).map_or(Verdict::Unknown, judge);
    let wakes_per_s = findings.row(BEFORE, WAKES).and_then(|row| Some(row.value?.value));
    let span_s = plan.recording.span_ns as f64 / 1e9;
    let planned_wakes_per_s = (span_s > 0.0).then(|| plan.recording.episodes as f64 / span_s);
    let mut notes: Vec<String> = void.iter().cloned().chain(sides.notes()).collect();
    notes.extend(other_load(wakes_per_s, planned_wakes_per_s));
    notes.extend(findings.warnings.iter().filter(|_| void.is_none()).map(ToString::to_string));
    Verification {
        at_unix_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        verdict: if void.is_some() { Verdict::Void } else { judged },
        promised,
        figures,
        rounds: findings.rounds,
        elapsed_s: findings.elapsed_s,
        wakes_per_s,
        planned_wakes_per_s,
        reverted: false,
        notes,
    }
}

/// Why nothing that was set can have an effect on what was measured.
fn void(args: &Args, machine: &dyn Machine, change: &Change) -> Option<String> {
    if !args.state.is_this_machine() {
        return Some(
            "the files below --sysroot are not those of the running kernel, which was measured".to_owned(),
        );
    }
    let knobs = change.entries.iter().filter_map(|entry| Knob::find(entry.knob.as_deref()?));
    knobs.filter_map(|knob| condition::void(machine, knob)).map(|why| why.to_string()).next()
}

/// Loads are called other ones beyond this factor.
const OTHER_LOAD: f64 = 2.0;

fn other_load(now: Option<f64>, planned: Option<f64>) -> Option<String> {
    let (now, planned) = now.zip(planned)?;
    (now > planned * OTHER_LOAD || planned > now * OTHER_LOAD).then(|| {
        format!(
            "the load is another one than in the plan's recording: {now:.0} wakes/s now, {planned:.0} then"
        )
    })
}

fn report(args: &Args, change: &Change, verification: &Verification) -> anyhow::Result<()> {
    let verified = Verified { change: change.id, verification };
    match args.format.format {
        Format::Json => output::json(&verified),
        Format::Csv => output::csv(&table(verification)),
        Format::Table => {
            output::text(&format!(
                "change {}: {}\n{} rounds in {}\n\n",
                change.id,
                title(change),
                verification.rounds,
                duration(verification.elapsed_s * 1e9)
            ))?;
            output::text(&table(verification).to_text())?;
            output::text(&format!("\nVerdict: {}\n", verification.verdict.words()))?;
            for note in &verification.notes {
                output::text(&format!("note: {note}\n"))?;
            }
            output::text(match verification.reverted {
                true => "the change was taken back\n",
                false => "the values of after are in force\n",
            })
        }
    }
}

fn table(verification: &Verification) -> Table {
    let mut table = Table::new([
        Column::text("figure", "figure"),
        Column::number("predicted before", "predicted_before"),
        Column::number("after", "predicted_after"),
        Column::number("measured before", "before"),
        Column::number("after", "after"),
        Column::number("difference", "difference"),
        Column::number("from", "difference_low_95"),
        Column::number("to", "difference_high_95"),
        Column::number("A/A from", "control_low_95"),
        Column::number("to", "control_high_95"),
    ]);
    let value = |measured: Option<Measured>| measured.map_or(Cell::Missing, |m| Cell::Rounded(m.value));
    let limit = |limit: Option<f64>| limit.map_or(Cell::Missing, Cell::Rounded);
    for compared in &verification.figures {
        let (difference, control) = (compared.difference, compared.control_difference);
        table.push([
            Cell::Text(compared.figure.name().to_owned()),
            Cell::Rounded(compared.predicted_before),
            Cell::Rounded(compared.predicted_after),
            value(compared.before),
            value(compared.after),
            value(difference),
            limit(difference.and_then(|m| m.low_95)),
            limit(difference.and_then(|m| m.high_95)),
            limit(control.and_then(|m| m.low_95)),
            limit(control.and_then(|m| m.high_95)),
        ]);
    }
    table
}
