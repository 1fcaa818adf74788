//! `pingpong --predict`: what recordings predict and advise, beside what was measured.

use super::super::campaign::BLOCK;
use super::super::results;
use super::super::wake::mean;
use super::PingpongArgs;
use anyhow::Context;
use dwell_cli::failure::{Answer, Outcome};
use dwell_cli::{output, stop};
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::coupled::{Between, Compared, Judgement, Maxima, Pair, Prediction};
use dwell_lab::experiment::pingpong::exchanges_of_a_block;
use dwell_lab::gaps::Gaps;
use dwell_policy::Nanos;
use dwell_replay::Values;
use dwell_report::{Cell, Column, Table, duration, percent, ratio};
use dwell_stats::{Interval, median};
use serde::Serialize;

/// The guest's maximum with --layers \[ns\]: haltpoll's default.
const GUEST_NS: u32 = 200_000;

/// What was predicted and advised, beside what was measured.
#[derive(Serialize)]
struct Predicted {
    think: String,
    between: Between,
    halt_cost_ns: u64,
    notes: Vec<String>,
    #[serde(flatten)]
    compared: Compared,
    median_error: Errors,
}

/// Of predictions.
#[derive(Serialize)]
struct Errors {
    speed: Option<f64>,
    cpu: Option<f64>,
}

pub(super) fn run(args: &PingpongArgs, rig: &Rig, think: &Gaps) -> Outcome {
    let host_ns = u32::try_from(args.host.get()).context("--host: at most 4294967295 ns")?;
    let mut maxima_ns = vec![0, 20_000, host_ns, 1_000_000];
    maxima_ns.sort_unstable();
    maxima_ns.dedup();
    let settings: Vec<Maxima> = match args.layers {
        true => [(0, 0), (0, host_ns), (GUEST_NS, 0), (GUEST_NS, host_ns)]
            .map(|(guest_ns, maximum_ns)| Maxima { guest_ns, maximum_ns })
            .into(),
        false => maxima_ns.into_iter().map(Maxima::of).collect(),
    };
    let seed = args.campaign.seed();
    let exchanges = exchanges_of_a_block(mean(think, seed), Nanos::from_micros(80), BLOCK);
    let rounds = Some(args.campaign.options(1).max_rounds).filter(|rounds| *rounds < u32::MAX).unwrap_or(7);
    let stop = stop::on_ctrl_c()?;
    let between = match args {
        PingpongArgs { threads: true, .. } => Between::Threads,
        PingpongArgs { apart: true, .. } => Between::Vms,
        PingpongArgs { layers: true, .. } => Between::Layers,
        _ => Between::Vcpus,
    };
    let pair = Pair { rig, between, think, seed, exchanges, halt_cost: args.halt_cost };
    let compared = pair.predict(&settings, rounds, &stop)?;
    let error = |of: fn(&Prediction) -> &Judgement| {
        median(compared.cells.iter().map(|cell| of(cell).error().abs()).collect())
    };
    let predicted = Predicted {
        think: think.spec().to_string(),
        between,
        halt_cost_ns: args.halt_cost.get(),
        notes: rig.notes(),
        median_error: Errors { speed: error(|cell| &cell.speed), cpu: error(|cell| &cell.cpu) },
        compared,
    };
    output::result(
        args.format.format,
        &predicted,
        || cells_table(&predicted),
        || predicted_words(&predicted),
    )?;
    Ok(Answer::Yes)
}

fn named(between: Between, maxima: Maxima) -> String {
    let [guest, own] = [maxima.guest_ns, maxima.maximum_ns].map(|ns| duration(ns.into()));
    if between == Between::Layers { format!("guest {guest}, host {own}") } else { own }
}

fn cells_table(predicted: &Predicted) -> Table {
    let named = |maxima: Maxima| named(predicted.between, maxima);
    Table::of(&predicted.compared.cells)
        .column(Column::text("recorded under", "recorded"), |cell| named(cell.recorded))
        .column(Column::text("predicted for", "other"), |cell| named(cell.other))
        .column(Column::number("speed predicted", "predicted"), |cell| {
            Cell::Ratio(cell.speed.predicted.value)
        })
        .column(Column::number("from", "predicted_low"), |cell| Cell::Ratio(cell.speed.predicted.low))
        .column(Column::number("to", "predicted_high"), |cell| Cell::Ratio(cell.speed.predicted.high))
        .column(Column::number("measured", "measured"), |cell| Cell::Ratio(cell.speed.measured))
        .column(Column::number("error", "error"), |cell| Cell::Share(cell.speed.error()))
        .column(Column::text("in range", "in_range"), |cell| yes_or_no(cell.speed.is_in_range()))
        .column(Column::number("CPU/exchange predicted", "cpu_predicted"), |cell| {
            Cell::Ratio(cell.cpu.predicted.value)
        })
        .column(Column::number("measured", "cpu_measured"), |cell| Cell::Ratio(cell.cpu.measured))
        .column(Column::text("in range", "cpu_in_range"), |cell| yes_or_no(cell.cpu.is_in_range()))
        .table()
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Values that differ from those of the recorded setting.
fn change(values: &Values) -> String {
    if values.iter().next().is_none() { "as recorded".to_owned() } else { values.to_string() }
}

/// What is advised from each recording, beside what it does.
fn advised_table(predicted: &Predicted) -> Table {
    let judged = |Judgement { predicted: Interval { low, value, high }, measured }: Judgement| {
        format!("{} for {} ({} to {})", ratio(measured), ratio(value), ratio(low), ratio(high))
    };
    Table::of(&predicted.compared.advised)
        .column(Column::text("recorded under", "recorded"), |row| named(predicted.between, row.recorded))
        .column(Column::text("advice", "advice"), |row| change(&row.change))
        .column(Column::text("speed, for predicted", "speed"), |row| judged(row.speed))
        .column(Column::text("CPU/exchange, for predicted", "cpu"), |row| judged(row.cpu))
        .column(Column::text("least CPU/exchange", "best"), |row| change(&row.best))
        .column(Column::text("over that", "over_best"), |row| results::ratio(row.over_best))
        .table()
}

fn predicted_words(predicted: &Predicted) -> String {
    let two = match predicted.between {
        Between::Vcpus => "vCPUs",
        Between::Vms => "vCPUs of two VMs",
        Between::Threads => "threads",
        Between::Layers => "vCPUs that poll themselves up to so many us, above a host that polls,",
    };
    let mut text = format!("Two {two} that wait for each other, thinking time {}\n\n", predicted.think);
    text += &output::fitted(&cells_table(predicted));
    text.push('\n');
    text += &output::fitted(&advised_table(predicted));
    text.push('\n');
    for of in &predicted.compared.recordings {
        let coupled = of.causes.coupled as f64 / of.causes.segments.max(1) as f64;
        text += &output::wrapped(&format!(
            "{}: {:.0} exchanges/s measured, {:.0} recorded; {} of {} segments were woken by the other",
            named(predicted.between, of.maxima),
            of.measured.per_s,
            of.exchanges_per_s,
            percent(coupled),
            of.causes.segments
        ));
    }
    for (figure, median_error, of) in [
        ("speed", predicted.median_error.speed, (|cell| &cell.speed) as fn(&Prediction) -> &Judgement),
        ("CPU time of an exchange", predicted.median_error.cpu, |cell| &cell.cpu),
    ] {
        let cells = &predicted.compared.cells;
        let within = cells.iter().filter(|cell| of(cell).is_in_range()).count();
        let error = percent(median_error.unwrap_or(f64::NAN));
        text += &format!("{figure}: median error {error}, {within} of {} in the range\n", cells.len());
    }
    for note in &predicted.notes {
        text += &output::wrapped(&format!("note: {note}"));
    }
    text
}
