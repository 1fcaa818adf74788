//! The report for a terminal.

use super::gather::{Exits, PlanFile, Recording, Report, Role};
use super::measured::MeasuredFile;
use crate::command::{info, tune};
use dwell_capture::energy::ENERGY;
use dwell_control::daemon::decisions::{Decisions, Run};
use dwell_knobs::plan::Effect;
use dwell_replay::figures::{Compared, PolicyFigures};
use dwell_report::measured::Measured;
use dwell_report::{Cell, Column, Table, percent, priced};
use dwell_trace::exits::NARROW;

pub(super) fn words(report: &Report) -> String {
    let mut text = String::new();
    for recording in &report.recordings {
        text += &of_recording(recording);
    }
    if let Some(comparison) = &report.comparison {
        text += &format!("== after / before\n\n{}\n", crate::output::fitted(&compared(comparison)));
    }
    if let Some(PlanFile { file, plan }) = &report.plan {
        let advice = plan.advice.escape_debug();
        text += &format!(
            "== plan {}: {advice}\n\n{}\n",
            file.escape_debug(),
            crate::output::fitted(&promised(&plan.effect))
        );
    }
    for Exits { file, table } in &report.exits {
        text += &format!("== exits: {}\n\n{}\n", file.escape_debug(), table.render(NARROW));
    }
    for MeasuredFile { file, measured } in &report.measured {
        let (source, file) = (measured.source.escape_debug(), file.escape_debug());
        text += &format!(
            "== predicted and measured: {source}, {file}\n\n{}\n",
            crate::output::fitted(&beside(measured))
        );
        if let Some(verdict) = &measured.verdict {
            text += &format!("verdict: {}\n\n", verdict.escape_debug());
        }
    }
    for Decisions { file, runs, .. } in &report.decisions {
        for run in runs {
            let (name, file) = (run.name.escape_debug(), file.escape_debug());
            text += &format!("== control of {name}: {file}\n\n{}\n", crate::output::fitted(&decided(run)));
        }
    }
    text + &format!("made with dwell {}: {}\n", report.dwell, report.command.escape_debug())
}

fn of_recording(recording: &Recording) -> String {
    let what = match recording.role {
        Role::Recording => "",
        Role::Before => "before: ",
        Role::After => "after: ",
    };
    let mut text = format!("== {what}{}\n\n", recording.file.escape_debug());
    match (&recording.tune, &recording.no_advice) {
        (Some(tuned), _) => text += &format!("{}{}\n", tune::opening(tuned), tune::ending(tuned)),
        (None, why) => {
            text += &format!("no advice: {}\n\n", why.as_deref().unwrap_or_default().escape_debug())
        }
    }
    text += &format!("{}\n", info::words(&recording.file, &recording.info));
    if recording.summaries_left_out > 0 {
        text += &format!("{} more idlers with fewer episodes\n\n", recording.summaries_left_out);
    }
    text + &format!(
        "over the whole recording, as replayed and as recorded:\n\n{}\nenergy: {}\n\n",
        crate::output::fitted(&polls(recording)),
        energy(recording)
    )
}

/// Energy, from RAPL's counters.
fn energy(recording: &Recording) -> String {
    let zones = recording.info.metadata.other.get(ENERGY).and_then(|zones| zones.as_object());
    let Some(zones) = zones else { return "not recorded".to_owned() };
    let zone = |(name, uj): (&String, &serde_json::Value)| {
        format!("{} {:.1} J", name.escape_debug(), uj.as_f64().unwrap_or(f64::NAN) / 1e6)
    };
    zones.iter().map(zone).collect::<Vec<_>>().join(", ")
}

/// Polls and their results, by policy.
fn polls(recording: &Recording) -> Table {
    let mut table = Table::new([
        Column::text("policy", "policy"),
        Column::number("polls", "polls"),
        Column::number("success", "success_share").rank(1),
        Column::number("polled", "polled_ns").rank(3),
        Column::number("failed", "wasted_share"),
        Column::number("halts", "halts").rank(4),
        Column::number("halts/s", "halts_per_s"),
        Column::number("window p5", "window_p5_ns").rank(6),
        Column::number("p50", "window_p50_ns").rank(5),
        Column::number("p95", "window_p95_ns").rank(6),
        Column::text("setting", "setting"),
    ]);
    let seconds = recording.info.span_ns as f64 / 1e9;
    let rate = |halts: u64| if seconds > 0.0 { Cell::Rounded(halts as f64 / seconds) } else { Cell::Missing };
    let part = |part: f64, all: f64| Cell::share((all > 0.0).then(|| part / all));
    let nanos = |ns: u64| Cell::Nanos(ns as f64);
    for PolicyFigures {
        policy, setting, polls, polls_succeeded, polled_ns, wasted_ns, halts, windows, ..
    } in &recording.figures.policies
    {
        table.push([
            Cell::Text(policy.clone()),
            Cell::Count((*polls).into()),
            part(*polls_succeeded as f64, *polls as f64),
            Cell::Nanos(*polled_ns as f64),
            part(*wasted_ns as f64, *polled_ns as f64),
            Cell::Count((*halts).into()),
            rate(*halts),
            nanos(windows.p5_ns),
            nanos(windows.p50_ns),
            nanos(windows.p95_ns),
            Cell::Text(setting.clone()),
        ]);
    }
    let recorded = &recording.figures.recorded;
    if recorded.known > 0 {
        let windows = recorded.windows_known > 0;
        let ended = &recorded.ends;
        let known = |cell: Cell| if windows { cell } else { Cell::Missing };
        table.push([
            Cell::Text("as recorded".to_owned()),
            known(Cell::Count(recorded.polls.into())),
            part(recorded.polls_succeeded as f64, recorded.polls as f64),
            known(Cell::Nanos(recorded.polled_ns as f64)),
            part(ended.wasted_ns as f64, recorded.polled_ns as f64),
            Cell::Count(recorded.halts.into()),
            rate(recorded.halts),
            known(nanos(ended.windows.p5_ns)),
            known(nanos(ended.windows.p50_ns)),
            known(nanos(ended.windows.p95_ns)),
        ]);
    }
    table
}

/// The changes of a controller.
fn decided(run: &Run) -> Table {
    Table::of(&run.changes)
        .column(Column::number("after", "at_ns"), |change| Cell::Nanos(change.at_ns as f64))
        .column(Column::text("cause", "cause"), |change| change.cause.clone())
        .column(Column::text("change and reason", "reason"), |change| change.reason.clone())
        .table()
}

/// The predictions of a plan.
fn promised(effect: &Effect) -> Table {
    let mut columns = vec![Column::text("policy", "policy")];
    columns.extend(priced::columns(false));
    let mut table = Table::new(columns);
    let rows = [("present", &effect.present), ("plan", &effect.recommended), ("optimum", &effect.optimum)];
    for (policy, predicted) in rows {
        let cells = priced::cells(predicted, false).into_iter();
        table.push([Cell::Text(policy.to_owned())].into_iter().chain(cells));
    }
    table
}

fn compared(comparison: &[Compared]) -> Table {
    let value = |row: &Compared, value: Option<f64>| {
        value.map(|value| if row.figure.ends_with("_ns") { Cell::Nanos(value) } else { Cell::Rounded(value) })
    };
    let interval = |ratio: &dwell_stats::Interval| {
        format!("[{}, {}]", dwell_report::ratio(ratio.low), dwell_report::ratio(ratio.high))
    };
    Table::of(comparison)
        .column(Column::text("figure", "figure"), |row| row.figure)
        .column(Column::number("before", "before"), |row| value(row, row.before))
        .column(Column::number("after", "after"), |row| value(row, row.after))
        .column(Column::number("ratio", "ratio"), |row| Cell::ratio(row.ratio.map(|ratio| ratio.value)))
        .column(Column::text("95 % interval", "interval"), |row| row.ratio.as_ref().map(interval))
        .table()
}

fn beside(measured: &Measured) -> Table {
    let value = |figure: &str, value: f64| {
        if figure.ends_with("_ns") { Cell::Nanos(value) } else { Cell::Ratio(value) }
    };
    let end = |end: f64| if end.is_finite() { percent(end) } else { "?".to_owned() };
    Table::of(&measured.rows)
        .column(Column::text("load and setting", "subject"), |row| row.subject.as_str())
        .column(Column::text("figure", "figure"), |row| row.figure.to_string())
        .column(Column::number("predicted", "predicted"), |row| value(&row.figure, row.predicted))
        .column(Column::number("measured", "measured"), |row| value(&row.figure, row.measured))
        .column(Column::number("error", "error"), |row| {
            Cell::share(Some(row.error.value).filter(|value| value.is_finite()))
        })
        .column(Column::text("95 % interval", "interval"), |row| {
            format!("[{}, {}]", end(row.error.low), end(row.error.high))
        })
        .table()
}
