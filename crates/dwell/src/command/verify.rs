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
use dwell_knobs::verification::{self, Compared, Figure, Verdict, Verification, judge};
use dwell_machine::Writable;
use dwell_policy::Nanos;
use dwell_report::{Cell, Column, Table, duration, measured};
use dwell_stats::{Arms, Campaign, CampaignOptions, Interval, MIN_ROUNDS, Results, Ungated, Unit};
use serde::Serialize;
use sides::Sides;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime};

/// Measure whether an applied change has the effect that its plan predicts
///
/// Switches between the values from before and after the change every fraction of a second, under the present load,
/// in the order before, after, before, and then in reverse. The values from before are measured twice; the difference
/// between the two is the error of the method. A verdict needs at least six such rounds. Guests and hosts are
/// recorded, which needs root; for an I/O thread, CPU time and sleeps are read. At the end, and after Ctrl-C, the
/// values from after the change are in force. If dwell is killed meanwhile, `dwell revert` reverts the change. The
/// result is kept in the journal.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of the change, as `dwell history` prints it
    ///
    /// [default: the latest change that is applied]
    id: Option<Id>,
    /// Revert the change unless a gain was measured
    #[arg(long)]
    revert_if_worse: bool,
    /// Exit with 1 unless a gain was measured
    #[arg(long)]
    exit_code: bool,
    /// Longest time to measure; a round takes 6 times --turn and --settle together
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = quantity::duration)]
    budget: Nanos,
    /// How long to measure before each switch
    #[arg(long, value_name = "TIME", default_value = "400ms", value_parser = quantity::duration)]
    turn: Nanos,
    /// How long to wait after each switch, so that windows reach their length
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
    /// Each figure before and after the change, for `dwell report --measured`.
    predicted_and_measured: measured::Measured,
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
    change::switch(&machine, &change, Side::After)
        .context("cannot set the values from after the change again")?;
    journal.save(&Change { verifying: false, ..change.clone() })?;
    let (results, sides) =
        measured.context("cannot verify the change; the values from after are in force again")?;
    let mut verification = conclude(&args, &machine, &change, &results, &sides);
    if args.revert_if_worse && !verification.verdict.is_gain() {
        verification.reverted = change::revert(&mut journal, change.id, false, &mut wait)?.complete;
    }
    let mut verified = journal.change(change.id)?.clone();
    verified.verifications.push(verification.clone());
    journal.save(&verified)?;
    report(&args, &change, &verification)?;
    if args.revert_if_worse && !verification.verdict.is_gain() && !verification.reverted {
        bail!("cannot revert all of the change; `dwell status` shows what is in force");
    }
    Ok(if args.exit_code && !verification.verdict.is_gain() { Answer::No } else { Answer::Yes })
}

fn which(journal: &Journal<'_>, id: Option<Id>) -> anyhow::Result<Change> {
    let latest = || journal.changes().iter().rev().find(|change| change.state == State::Applied);
    let change = match id {
        Some(id) => journal.change(id)?,
        None => latest().context("no change is applied; `dwell history` lists all changes")?,
    };
    if change.state != State::Applied {
        bail!("cannot verify change {}: it is {}, not applied", change.id, change.state.name());
    }
    Ok(change.clone())
}

/// Refuses where a value was changed outside dwell. An interrupted verification may be started again.
fn is_ours(machine: &dyn Writable, change: &Change) -> anyhow::Result<()> {
    for entry in change.entries.iter().filter(|entry| entry.knob.is_some()) {
        let standing = change::standing(machine, entry)?;
        let resumes = change.verifying && standing == Standing::Original;
        if standing != Standing::InForce && !resumes {
            bail!(
                "{} was changed outside dwell since change {}; `dwell status` shows what is in force",
                entry.place,
                change.id
            );
        }
    }
    Ok(())
}

const BEFORE: &str = "before";
const AFTER: &str = "after";
const WAKEUPS: &str = "wakeups_per_s";

/// The error of a block, as a campaign needs it.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct TurnError(anyhow::Error);

fn measure(
    args: &Args,
    machine: &dyn Writable,
    change: &Change,
    mut sides: Sides,
    stop: &AtomicBool,
) -> anyhow::Result<(Results, Sides)> {
    let unit = |figure: Figure| if figure == Figure::Halts { Unit::PerSecond } else { Unit::Nanos };
    let figures = Figure::ALL
        .map(|figure| dwell_stats::Figure::of_block(figure.name(), unit(figure)))
        .into_iter()
        .chain([dwell_stats::Figure::of_block(WAKEUPS, Unit::PerSecond)]);
    let options =
        CampaignOptions { budget: Duration::from_nanos(args.budget.get()), ..CampaignOptions::default() };
    let arms = Arms::new(BEFORE, Side::Before).arm(AFTER, Side::After);
    let campaign = Campaign::new("verify", arms, figures, options)?;
    let (settle, length) = (Duration::from_nanos(args.settle.get()), Duration::from_nanos(args.turn.get()));
    let mut live = progress::Live::new();
    // The change is measured under the load that is there: no block is repeated for it.
    let start = Instant::now();
    let record = campaign.run(
        &mut Ungated::new(|| start.elapsed()),
        stop,
        &mut |now| {
            if live.due() {
                live.show(&progress::of_campaign("", now));
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

fn conclude(
    args: &Args,
    machine: &dyn Writable,
    change: &Change,
    results: &Results,
    sides: &Sides,
) -> Verification {
    let plan = &change.plan;
    let control = format!("{BEFORE} (A/A)");
    let compared = |figure: Figure| {
        let row = |arm: &str| results.row(arm, figure.name());
        let value = |arm: &str| row(arm)?.value;
        let difference = |arm: &str| Some(row(arm)?.comparison?.difference);
        let (predicted_before, predicted_after) =
            (figure.of(&plan.effect.present), figure.of(&plan.effect.recommended));
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
    let promised = verification::promised(plan);
    let no_effect = no_effect(args, machine, change);
    let judged = figures
        .iter()
        .find(|compared| compared.figure == promised)
        .map_or(Verdict::NotMeasured, |compared| judge(compared, results.rounds));
    let wakeups_per_s = results.row(BEFORE, WAKEUPS).and_then(|row| Some(row.value?.value));
    let span_s = plan.recording.span_ns as f64 / 1e9;
    let planned_wakeups_per_s = (span_s > 0.0).then(|| plan.recording.episodes as f64 / span_s);
    let mut notes: Vec<String> = no_effect.iter().cloned().chain(sides.notes()).collect();
    notes.extend(other_load(wakeups_per_s, planned_wakeups_per_s));
    notes.extend(results.warnings.iter().filter(|_| no_effect.is_none()).map(ToString::to_string));
    Verification {
        at_unix_s: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        verdict: if no_effect.is_some() { Verdict::NoEffect } else { judged },
        promised,
        figures,
        rounds: results.rounds,
        elapsed_s: results.elapsed_s,
        wakeups_per_s,
        planned_wakeups_per_s,
        reverted: false,
        notes,
    }
}

/// Why nothing that was set can have an effect on what was measured.
fn no_effect(args: &Args, machine: &dyn Writable, change: &Change) -> Option<String> {
    if !args.state.is_this_machine() {
        return Some(
            "the files below --sysroot are not those of the running kernel, which was measured".to_owned(),
        );
    }
    let knobs = change.entries.iter().filter_map(|entry| Knob::find(entry.knob.as_deref()?));
    knobs.filter_map(|knob| condition::no_effect(machine, knob)).map(|why| why.to_string()).next()
}

/// Beyond this factor the loads differ.
const OTHER_LOAD: f64 = 2.0;

fn other_load(now: Option<f64>, planned: Option<f64>) -> Option<String> {
    let (now, planned) = now.zip(planned)?;
    (now > planned * OTHER_LOAD || planned > now * OTHER_LOAD).then(|| {
        format!(
            "the load differs from that of the plan's recording: {now:.0} wakeups/s now, {planned:.0} then"
        )
    })
}

fn report(args: &Args, change: &Change, verification: &Verification) -> anyhow::Result<()> {
    let rows = |of: &Compared| {
        let sides = [("before", of.predicted_before, of.before), ("after", of.predicted_after, of.after)];
        let figure = of.figure.name();
        sides.map(|(side, predicted, value)| {
            let value = value?;
            Some(measured::Row {
                subject: format!("change {}, {side}", change.id),
                figure: figure.into(),
                predicted,
                measured: value.value,
                error: measured::error(predicted, value),
            })
        })
    };
    let predicted_and_measured = measured::Measured {
        source: "dwell verify".into(),
        verdict: Some(verification.verdict.words().to_owned()),
        rows: verification.figures.iter().flat_map(rows).flatten().collect(),
    };
    let verified = Verified { change: change.id, verification, predicted_and_measured };
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
            output::text(&output::fitted(&table(verification)))?;
            output::text(&format!("\nVerdict: {}\n", verdict(verification)))?;
            for note in &verification.notes {
                output::text(&output::wrapped(&format!("note: {note}")))?;
            }
            output::text(match verification.reverted {
                true => "the change was reverted automatically\n",
                false => "the values from after are in force\n",
            })
        }
    }
}

fn verdict(verification: &Verification) -> String {
    let words = verification.verdict.words();
    if verification.verdict == Verdict::NotEnoughRounds {
        let complete = verification.rounds;
        return format!(
            "{words}: {complete} complete, at least {MIN_ROUNDS} are needed; use a longer --budget or a shorter --turn"
        );
    }
    words.to_owned()
}

fn table(verification: &Verification) -> Table {
    let mut table = Table::new([
        Column::text("figure", "figure"),
        Column::number("predicted before", "predicted_before").rank(3),
        Column::number("predicted after", "predicted_after"),
        Column::number("measured before", "before").rank(2),
        Column::number("measured after", "after"),
        Column::number("difference", "difference"),
        Column::number("from", "difference_low_95"),
        Column::number("to", "difference_high_95"),
        Column::number("A/A from", "control_low_95").rank(4),
        Column::number("A/A to", "control_high_95").rank(4),
    ]);
    let value = |measured: Option<Interval>| measured.map_or(Cell::Missing, |m| Cell::Rounded(m.value));
    let limit = |limit: Option<f64>| limit.filter(|l| l.is_finite()).map_or(Cell::Missing, Cell::Rounded);
    for compared in &verification.figures {
        let (difference, control) = (compared.difference, compared.control_difference);
        table.push([
            Cell::Text(compared.figure.name().to_owned()),
            Cell::Rounded(compared.predicted_before),
            Cell::Rounded(compared.predicted_after),
            value(compared.before),
            value(compared.after),
            value(difference),
            limit(difference.map(|m| m.low)),
            limit(difference.map(|m| m.high)),
            limit(control.map(|m| m.low)),
            limit(control.map(|m| m.high)),
        ]);
    }
    table
}
