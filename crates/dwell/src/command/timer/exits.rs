//! `dwell timer exits`

use crate::command::import::recognise;
use crate::failure::{Answer, Outcome};
use crate::input::is_parquet;
use crate::output::{self, Format, FormatArg};
use crate::{model, progress};
use anyhow::bail;
use dwell_recording::timer::{TimerPart, TimerReader};
use dwell_report::{Cell, Column, Table, count, percent};
use dwell_timer::exits::{self, TimerExits};
use dwell_trace::exits::ExitTable;
use serde::Serialize;
use std::path::PathBuf;

/// Print the table of VM exits that `perf kvm stat` would print
///
/// Reads a recording of timers (`dwell timer record`, `dwell timer import`), or text of `perf script`, `trace-cmd report`
/// or ftrace with kvm:kvm_exit and kvm:kvm_entry. An exit lasts until the next entry of the same thread, so the time of
/// HLT includes the poll or sleep of the vCPU.
///
/// Of a recording, the exits that timers caused are counted too: those in which a guest arms its timer, and those that
/// its firing takes.
#[derive(clap::Args)]
#[command(after_help = "Example: perf record -a -e kvm:kvm_exit,kvm:kvm_entry -- sleep 10\n         \
                        perf script --ns > exits.txt\n         dwell timer exits exits.txt")]
pub(crate) struct Args {
    /// Recording of timers, or text of `perf script`; - reads the text from stdin
    file: PathBuf,
    /// Width of the column of exit reasons: 20 as in older perf, 40 as in newer perf
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    width: u16,
    /// Print byte for byte what `perf kvm stat report` prints
    ///
    /// The same table, with perf's title and blank lines before and after it. perf prints it to stderr, dwell
    /// to stdout.
    #[arg(long, conflicts_with = "format")]
    as_perf: bool,
    #[command(flatten)]
    format: FormatArg,
}

pub(super) fn run(args: Args) -> Outcome {
    let mut notes = vec![];
    let (exits, timer) = if is_parquet(&args.file) {
        let reader = TimerReader::open(&args.file)?;
        let (exits, timer) = exits::table(&reader)?;
        notes = model::left_out(reader.metadata());
        (exits, Some(timer))
    } else {
        let mut text = progress::text(&args.file)?;
        recognise(&mut text)?;
        let exits = ExitTable::read(text)?;
        if exits.left_out.lost_events > 0 {
            notes.push(format!(
                "{} events lost by the recorder: exits may be missing",
                exits.left_out.lost_events
            ));
        }
        (exits, None)
    };
    if exits.total_samples == 0 {
        bail!(
            "cannot make a table of {}: no kvm_exit is followed by a kvm_entry of the same thread; \
             record with `perf record -a -e kvm:kvm_exit,kvm:kvm_entry`",
            args.file.display()
        );
    }
    match args.format.format {
        Format::Table if args.as_perf => output::text(&exits.report(usize::from(args.width)))?,
        Format::Table => output::text(&exits.render(usize::from(args.width)))?,
        Format::Json => output::json(&Counted { exits: &exits, timer: timer.as_deref().map(Shares::of) })?,
        Format::Csv => output::csv(&table(&exits, timer.as_deref()))?,
    }
    if let Some(timer) = timer {
        let shares = Shares::of(&timer);
        let share = |(samples, ns): (u64, u64)| {
            let of = |part: u64, all: u64| percent(part as f64 / all.max(1) as f64);
            let (samples_share, time) = (of(samples, exits.total_samples), of(ns, exits.total_ns));
            format!("{} ({samples_share} of the exits, {time} of their time)", count(samples.into()))
        };
        output::note(&format!(
            "exits of timers: {} to arm them, {} as they fire",
            share((shares.arm_samples, shares.arm_ns)),
            share((shares.fire_samples, shares.fire_ns)),
        ));
    }
    notes.iter().for_each(|note| output::note(note));
    Ok(Answer::Yes)
}

#[derive(Serialize)]
struct Counted<'a> {
    #[serde(flatten)]
    exits: &'a ExitTable,
    #[serde(skip_serializing_if = "Option::is_none")]
    timer: Option<Shares<'a>>,
}

/// The exits of timers.
#[derive(Serialize)]
struct Shares<'a> {
    arm_samples: u64,
    arm_ns: u64,
    fire_samples: u64,
    fire_ns: u64,
    by_reason: &'a [TimerExits],
}

impl Shares<'_> {
    fn of(by_reason: &[TimerExits]) -> Shares<'_> {
        let sum = |wanted: TimerPart| {
            let of_part = by_reason.iter().filter(|exits| exits.part == wanted);
            of_part.fold((0, 0), |(samples, ns): (u64, u64), exits| {
                (samples + exits.samples, ns.saturating_add(exits.total_ns))
            })
        };
        let ((arm_samples, arm_ns), (fire_samples, fire_ns)) = (sum(TimerPart::Arm), sum(TimerPart::Fire));
        Shares { arm_samples, arm_ns, fire_samples, fire_ns, by_reason }
    }
}

fn table(exits: &ExitTable, timer: Option<&[TimerExits]>) -> Table {
    let table = Table::of(&exits.rows)
        .column(Column::text("reason", "reason"), |row| row.reason.as_str())
        .column(Column::number("samples", "samples"), |row| row.samples)
        .column(Column::number("total", "total_ns"), |row| row.total_ns)
        .column(Column::number("min", "min_ns"), |row| row.min_ns)
        .column(Column::number("max", "max_ns"), |row| row.max_ns)
        .column(Column::number("average", "average_ns"), |row| Cell::Nanos(row.average_ns()))
        .column(Column::number("standard error", "standard_error_percent"), |row| {
            Cell::Ratio(row.standard_error_percent())
        });
    let Some(timer) = timer else { return table.table() };
    let of = |reason: &str, part: TimerPart| {
        let found = timer.iter().find(|exits| exits.reason == reason && exits.part == part);
        found.map_or(0, |exits| exits.samples)
    };
    table
        .column(Column::number("arm", "arm"), |row| of(&row.reason, TimerPart::Arm))
        .column(Column::number("fire", "fire"), |row| of(&row.reason, TimerPart::Fire))
        .table()
}
