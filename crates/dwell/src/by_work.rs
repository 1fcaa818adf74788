//! Settings by the work done under them, of recordings that have what woke the tasks: what is printed.

pub(crate) mod host;

use crate::output;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::{CauseShares, Reader, Segments};
use dwell_replay::causal::{Estimate, Estimates, Predictor, Range, RowByWork, Work};
use dwell_report::{Cell, Column, Rows, Table, count, duration, percent, ratio, rounded};
use serde::Serialize;

/// Where another one has woken fewer of the segments of vCPUs or threads, they do not wait for each other.
const WAITING: f64 = 0.1;

/// What ran between idle times and what woke it, of a recording of this layer that has it. Of vCPUs and threads only where
/// they wait for each other: what comes at its own time is exact in a replay of idle times.
pub(crate) fn segments(reader: &Reader, layer: Layer) -> anyhow::Result<Option<Segments>> {
    if reader.metadata().layer != layer || layer == Layer::Driver {
        return Ok(None);
    }
    let waits = |segments: &Segments| {
        let CauseShares { segments, coupled, .. } = segments.shares();
        layer == Layer::Guest || coupled as f64 >= WAITING * segments as f64
    };
    Ok(reader.segments()?.filter(waits))
}

/// Names of the constants, in the order of [`Estimates::all`].
const CONSTANTS: [&str; 8] = [
    "wakeup by a task after a poll",
    "after a halt",
    "by an interrupt or timer after a poll",
    "after a halt",
    "interrupt, for the waker",
    "longer segment after a halt",
    "part of a halt that hides an interrupt",
    "any wakeup through which the host polled",
];

/// What the figures rest on.
#[derive(Serialize)]
pub(crate) struct Basis {
    causes: CauseShares,
    /// The tasks whose segments are the units of work.
    unit_of_work: Vec<String>,
    recorded_work_per_s: f64,
    /// By how much a replay of the present setting is faster than the recording, as a share.
    own_error: f64,
    constants: Estimates,
    /// Whether `dwell verify` can set another setting for a second recording.
    #[serde(skip)]
    can_verify: bool,
}

impl Basis {
    pub(crate) fn of(segments: &Segments, predictor: &Predictor, can_verify: bool) -> Basis {
        let name = |task: &u32| segments.tasks.get(*task as usize).cloned().unwrap_or_default();
        Basis {
            causes: segments.shares(),
            unit_of_work: predictor.leading().iter().map(name).collect(),
            recorded_work_per_s: predictor.recorded_per_s,
            own_error: predictor.own_error,
            constants: predictor.estimates,
            can_verify,
        }
    }

    /// The rows as text, of which the first is the present setting. `figures`: what was replayed of the recording; `other`:
    /// what is to be said of a second one, or nothing.
    pub(crate) fn words(&self, figures: &str, other: &str, rows: &[RowByWork]) -> String {
        let names: Vec<String> =
            self.unit_of_work.iter().map(|name| dwell_report::harmless::line(name)).collect();
        let opening = format!(
            "By work: causes were replayed, which lets the idle times change with the setting instead of keeping those of the \
             recording. {} of {} segments were woken by recorded tasks. Unit of work: a segment of {}; {} a second \
             were recorded, and the present setting replayed does {} of that. {figures} In brackets: what the constants, the \
             recording's length, the times of interrupts and the model's measured error leave open.{other}",
            percent(self.causes.coupled as f64 / self.causes.segments.max(1) as f64),
            count(self.causes.segments.into()),
            names.join(", "),
            format_args!("{:.0}", self.recorded_work_per_s),
            percent(1.0 + self.own_error),
        );
        format!(
            "\n{}\n{}\n{}",
            output::wrapped(&opening),
            output::fitted(&table(rows)),
            output::wrapped(&self.sources(if other.is_empty() { "" } else { "s" }))
        )
    }

    fn sources(&self, plural: &str) -> String {
        let Estimates { after_poll, after_halt, ipi, longer_segment, .. } = self.constants;
        let named = CONSTANTS.into_iter().zip(self.constants.all());
        let words = named.filter(|(_, of)| *of != Estimate::default()).map(|(name, of)| {
            let source = match of.seen {
                0 if of.calibrated => "given or calibrated".to_owned(),
                0 => "assumed".to_owned(),
                seen => format!("{} in the recording{plural}", count(seen.into())),
            };
            let [ns, low, high] = [of.ns, of.low_ns, of.high_ns].map(|ns| duration(ns as f64));
            format!("{name} {ns} ({low} to {high}, {source})")
        });
        // What a poll and a halt take is seen under a setting under which both occur.
        let narrower = if self.can_verify
            && plural.is_empty()
            && [after_poll, after_halt, ipi, longer_segment].iter().any(|of| of.seen == 0)
        {
            " Ranges get narrower with a recording under another setting: dwell verify --set NAME=VALUE --record BEFORE AFTER, \
             then dwell tune BEFORE --also AFTER."
        } else {
            ""
        };
        format!(
            "Constants: {}. The scheduler's choice of CPUs is taken to stay.{narrower}",
            words.collect::<Vec<_>>().join("; ")
        )
    }
}

/// Whether `dwell verify` could set another setting of the layer where this was recorded.
pub(crate) fn can_verify(present: Setting, reader: &Reader) -> bool {
    present.layer() != Layer::Iothread && reader.metadata().decided_in_place_of_haltpoll().is_none()
}

fn table(rows: &[RowByWork]) -> Table {
    let present = rows.first().map(|row| row.setting.clone()).unwrap_or_default();
    let setting = |row: &RowByWork| {
        let differing = row.setting.differing_from(&present);
        if differing.is_empty() { row.setting.to_string() } else { differing.to_string() }
    };
    Table::of(rows)
        .column(Column::text("policy", "role"), |row| row.role)
        .column(Column::number("speed", "speed"), |row| Cell::Ratio(row.work.speed.middle))
        .column(Column::text("", "speed_range"), |row| format!("({})", between(row.work.speed, ratio)))
        .column(Column::number("cost/work", "cost_per_work_ns"), |row| duration(row.work.cost_ns.middle))
        .column(Column::text("", "cost_range"), |row| format!("({})", between(row.work.cost_ns, duration)))
        .column(Column::number("cycle", "cycle_ns"), |row| duration(row.work.cycle_ns.middle))
        .column(Column::number("CPU/s", "cpu_s"), |row| Cell::Ratio(row.work.cpu_s.middle))
        .column(Column::number("polling", "polled_s").rank(1), |row| percent(row.work.polled_s.middle))
        .column(Column::number("halts/s", "halts_per_s").rank(1), |row| rounded(row.work.halts_per_s.middle))
        .column(Column::text("setting", "setting").below(), setting)
        .table()
}

/// For programs, the table of idle times and behind it the rows by work, if there are any.
pub(crate) fn behind(idle_times: Table, first: &str, rows: &[RowByWork]) -> Table {
    if rows.is_empty() { idle_times } else { idle_times.followed_by(for_programs(first, rows)) }
}

/// The rows for programs, each figure with its range. `first` is the column of what a row is.
pub(crate) fn for_programs(first: &str, rows: &[RowByWork]) -> Table {
    let table = Table::of(rows)
        .column(Column::text("", first), |row| row.role)
        .column(Column::text("", "setting"), |row| row.setting.to_string());
    let table = ranges(table, "speed", |work| work.speed);
    let table = ranges(table, "cost_per_work_ns", |work| work.cost_ns);
    let table = ranges(table, "cycle_ns", |work| work.cycle_ns);
    let table = ranges(table, "cpu_s", |work| work.cpu_s);
    let table = ranges(table, "polled_s", |work| work.polled_s);
    let table = ranges(table, "halts_per_s", |work| work.halts_per_s);
    table.table()
}

/// Adds a figure and the ends of its range.
fn ranges<'a>(table: Rows<&'a RowByWork>, name: &str, of: fn(&Work) -> Range) -> Rows<&'a RowByWork> {
    let number = |end: &str| Column::number("", &format!("{name}{end}"));
    table
        .column(number(""), |row| Cell::Ratio(of(&row.work).middle))
        .column(number("_low"), |row| Cell::Ratio(of(&row.work).low))
        .column(number("_high"), |row| Cell::Ratio(of(&row.work).high))
}

pub(crate) fn between(range: Range, words: impl Fn(f64) -> String) -> String {
    format!("{} to {}", words(range.low), words(range.high))
}
