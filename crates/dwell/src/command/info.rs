//! `dwell info`

mod facts;

use crate::failure::Outcome;
use crate::model;
use crate::output::{self, FormatArg};
use dwell_policy::Owner;
use dwell_recording::accounting::{LONGEST_POLL_END_NS, are_many};
use dwell_recording::summary::{IdlerSummary, Stats, Summary};
use dwell_recording::timer::{Fire, TimerContents, TimerReader};
use dwell_recording::{LEAST_LENGTHS_NOTE, Metadata, OpenError, Reader};
use dwell_report::{Cell, Column, Table, count, duration, histogram, number_of};
use facts::{facts, head, label};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Print the contents of a recording: idlers, idle times, settings, losses
///
/// Of a recording of timers: vCPUs, timers by how they fired, exits.
///
/// Quantiles of idle times (p5 to p99) are within 0.1 %; all other figures are exact.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Recording in Parquet, written by `dwell record` or `dwell import`
    file: PathBuf,
    #[command(flatten)]
    format: FormatArg,
}

pub(crate) fn run(args: Args) -> Outcome {
    let reader = match Reader::open(&args.file) {
        Err(OpenError::Timers { path }) => return timers(&TimerReader::open(&path)?, &args),
        opened => opened?,
    };
    let summary = Summary::of(&reader)?;
    output::result(
        args.format.format,
        &summary,
        || table(&summary),
        || words(&args.file.display().to_string(), &summary),
    )
}

/// What a recording of timers holds.
#[derive(Serialize)]
struct Timers<'a> {
    metadata: &'a Metadata<Owner>,
    span_ns: u64,
    contents: &'a TimerContents,
    /// Timers that fired, by how their vCPU noticed; `unknown` where that is not known.
    fired: BTreeMap<&'static str, u64>,
    /// Timers that were cancelled or armed anew before they fired.
    not_fired: u64,
}

fn timers(reader: &TimerReader, args: &Args) -> Outcome {
    let (metadata, contents, span_ns) = (reader.metadata(), reader.contents(), reader.span_ns());
    let mut timers = Timers { metadata, span_ns, contents, fired: BTreeMap::new(), not_fired: 0 };
    for row_group in 0..reader.row_groups() {
        for timer in reader.read(row_group)?.timers {
            match timer.fired_ns {
                None => timers.not_fired += 1,
                Some(_) => *timers.fired.entry(timer.fire.map_or("unknown", Fire::name)).or_default() += 1,
            }
        }
    }
    let rate = |number: u64| (span_ns > 0).then(|| Cell::Rounded(number as f64 / (span_ns as f64 / 1e9)));
    let table = || {
        Table::of(&contents.vcpus)
            .column(Column::text("vCPU", "vcpu"), |vcpu| vcpu.name.as_str())
            .column(Column::number("timers", "timers"), |vcpu| vcpu.timers)
            .column(Column::number("/s", "timers_per_s").rank(1), |vcpu| rate(vcpu.timers))
            .column(Column::number("exits", "exits"), |vcpu| vcpu.exits)
            .column(Column::number("/s", "exits_per_s").rank(1), |vcpu| rate(vcpu.exits))
            .table()
    };
    let words = || {
        let mut text = output::wrapped(&format!(
            "{}: {} over {}, timer layer",
            args.file.display(),
            model::timers_of(contents),
            duration(span_ns as f64)
        ));
        text += &facts(metadata, None);
        let fired = timers.fired.iter().map(|(how, number)| format!("{} {how}", count((*number).into())));
        let not = format!("{} did not fire", count(timers.not_fired.into()));
        text += &label("timers:", &fired.chain([not]).collect::<Vec<_>>().join(", "));
        model::left_out(metadata).iter().for_each(|note| text += &label("note:", note));
        format!("{text}\n{}", output::fitted(&table()))
    };
    output::result(args.format.format, &timers, table, words)
}

pub(crate) fn words(file: &str, summary: &Summary) -> String {
    if summary.all.episodes == 0 {
        return head(file, summary);
    }
    format!(
        "{}\n{}\n{:>10}  {:>12}  {:>7}  {:>7}\n{}",
        head(file, summary),
        output::fitted(&table(summary)),
        "idle from",
        "episodes",
        "share",
        "up to",
        histogram(&summary.all.log2_histogram)
    )
}

/// Notes and warnings, each with its label: what the recording is too short for, what it does not contain, and what cannot
/// be.
pub(crate) fn remarks(summary: &Summary) -> Vec<(&'static str, String)> {
    if summary.all.episodes == 0 {
        let what = "the recording has no episodes: nothing idled, or nothing that was recorded";
        return vec![("note:", what.to_owned())];
    }
    let least = summary.metadata.has_least_lengths().then(|| LEAST_LENGTHS_NOTE.to_owned());
    let notes = model::notes_of_length(summary.all.episodes, &summary.metadata).chain(least);
    let notes = notes.chain(model::note_of_slowing(&summary.metadata));
    let notes = notes.chain(model::left_out(&summary.metadata));
    let preempted = (summary.preempted_polls > 0).then(|| {
        format!(
            "in {} others had the CPU, for {} in all: these ended more than {} after their windows",
            number_of(summary.preempted_polls.into(), "poll"),
            duration(summary.lost_in_polls_ns as f64),
            duration(LONGEST_POLL_END_NS as f64),
        )
    });
    let notes = notes.chain(preempted).map(|note| ("note:", note));
    let start_early = |number: u64, than: &str| {
        let start = if number == 1 { "starts" } else { "start" };
        let what = format!("{} {start} before the previous one{than}", model::episodes(number));
        (number > 0).then_some(("warning:", what))
    };
    let polls = summary.polls_that_went_on;
    let went_on = are_many(polls, summary.all.episodes).then(|| {
        let what = format!(
            "{} end more than {} after {}: others had the CPU, or they end at interrupts that woke no task, as earlier \
             releases recorded them (record or import again)",
            number_of(polls.into(), "successful poll"),
            duration(LONGEST_POLL_END_NS as f64),
            if polls == 1 { "its event" } else { "their events" },
        );
        ("warning:", what)
    });
    let warnings = [
        went_on,
        start_early(summary.out_of_order, ""),
        start_early(summary.overlapping, " of the same idler has ended"),
    ];
    let contradictions =
        summary.contradictions.iter().map(|what| ("warning:", dwell_report::harmless::line(what)));
    notes.chain(warnings.into_iter().flatten()).chain(contradictions).collect()
}

/// For all idlers together the share of idle time has no meaning, so neither it nor a rate is given, nor where there were
/// no times.
pub(crate) fn table(summary: &Summary) -> Table {
    let all = (summary.idlers.len() != 1).then_some(("all", &summary.all, None));
    let idlers = summary.idlers.iter().map(|idler| (idler.name.as_str(), &idler.stats, Some(idler)));
    let nanos = |stats: &Stats, ns: f64| (stats.episodes > 0).then_some(Cell::Nanos(ns));
    let time = |stats: &Stats, ns: u64| (stats.episodes > 0).then_some(Cell::Time(ns.into()));
    let quantile = |stats: &Stats, wanted: f64| {
        let found = stats.quantiles.iter().find(|q| (q.quantile - wanted).abs() < 1e-9)?;
        nanos(stats, found.idle_ns as f64)
    };
    let has_times = !summary.metadata.has_least_lengths();
    let rate = |stats: &Stats, idler: Option<&IdlerSummary>| {
        let ns = idler.filter(|_| has_times).map(|idler| idler.span_ns).filter(|&ns| ns > 0)?;
        Some(Cell::Rounded(stats.episodes as f64 / (ns as f64 / 1e9)))
    };
    let share = |part: u64, all: u64| Cell::share((all > 0).then(|| part as f64 / all as f64));
    Table::of(all.into_iter().chain(idlers))
        .column(Column::text("idler", "idler"), |(name, ..)| name)
        .column(Column::number("episodes", "episodes"), |(_, stats, _)| stats.episodes)
        .column(Column::number("/s", "episodes_per_s").rank(1), |(_, stats, idler)| rate(stats, idler))
        .column(Column::number("idle", "idle_share").rank(1), |(.., idler)| {
            Cell::share(idler.filter(|_| has_times).and_then(IdlerSummary::idle_share))
        })
        .column(Column::number("min", "min_ns").rank(8), |(_, stats, _)| time(stats, stats.min_ns))
        .column(Column::number("p5", "p5_ns").rank(6), |(_, stats, _)| quantile(stats, 0.05))
        .column(Column::number("p25", "p25_ns").rank(5), |(_, stats, _)| quantile(stats, 0.25))
        .column(Column::number("p50", "p50_ns"), |(_, stats, _)| quantile(stats, 0.5))
        .column(Column::number("p75", "p75_ns").rank(5), |(_, stats, _)| quantile(stats, 0.75))
        .column(Column::number("p95", "p95_ns").rank(3), |(_, stats, _)| quantile(stats, 0.95))
        .column(Column::number("p99", "p99_ns").rank(2), |(_, stats, _)| quantile(stats, 0.99))
        .column(Column::number("max", "max_ns").rank(7), |(_, stats, _)| time(stats, stats.max_ns))
        .column(Column::number("mean", "mean_ns").rank(4), |(_, stats, _)| nanos(stats, stats.mean_ns))
        .column(Column::number("halted", "halted_share").rank(2), |(_, stats, _)| {
            share(stats.halted, stats.halted + stats.polled)
        })
        .column(Column::number("wakeup latency", "mean_wake_latency_ns").rank(3), |(_, stats, _)| {
            (stats.latencies > 0).then(|| Cell::Nanos(stats.total_latency_ns as f64 / stats.latencies as f64))
        })
        .table()
}
