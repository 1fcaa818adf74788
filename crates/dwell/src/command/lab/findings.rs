//! How findings are shown.

use crate::output::{self, Format};
use dwell_report::{Cell, Column, Table};
use dwell_stats::{Interval, ResultRow, Results, Unit};
use serde::Serialize;

/// One figure as people see it.
pub(crate) struct Shown {
    /// Its name in the findings.
    pub(crate) figure: &'static str,
    /// Its heading.
    pub(crate) heading: &'static str,
    /// Whether it is also shown by the baseline, with its interval.
    pub(crate) compared: bool,
}

impl Shown {
    pub(crate) const fn value(figure: &'static str, heading: &'static str) -> Shown {
        Shown { figure, heading, compared: false }
    }

    pub(crate) const fn compared(figure: &'static str, heading: &'static str) -> Shown {
        Shown { figure, heading, compared: true }
    }
}

/// An experiment with its findings, as it is printed.
#[derive(Serialize)]
pub(crate) struct Told<'a, T: Serialize> {
    /// What was run.
    #[serde(flatten)]
    pub(crate) about: T,
    /// What a reader has to know of the machine.
    pub(crate) notes: Vec<String>,
    #[serde(flatten)]
    pub(crate) findings: &'a Results,
}

/// Prints findings in the form asked for; `more` follows the tables for people.
pub(crate) fn print<T: Serialize>(
    told: &Told<'_, T>,
    title: &str,
    shown: &[Shown],
    more: &str,
    format: Format,
) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(told),
        Format::Csv => output::csv(&long(told.findings)),
        Format::Table => {
            let findings = told.findings;
            let mut text = format!("{title}\n\n{}\n", values(findings, shown).to_text());
            text += &format!(
                "By the baseline, with {} % intervals; the last arm is the baseline once more:\n\n{}",
                (findings.confidence * 100.0).round(),
                compared(findings, shown).to_text()
            );
            text += more;
            output::text(&text)?;
            notes(told);
            Ok(())
        }
    }
}

/// What has to be known before believing, on stderr.
pub(crate) fn notes<T: Serialize>(told: &Told<'_, T>) {
    let findings = told.findings;
    eprintln!(
        "{} rounds in {}, {} blocks repeated because others took CPU time ({})",
        findings.rounds,
        dwell_report::duration(findings.elapsed_s * 1e9),
        findings.gating.rejected,
        findings.gating.source
    );
    for note in &told.notes {
        eprintln!("note: {note}");
    }
    for warning in &findings.warnings {
        eprintln!("warning: {warning}");
    }
}

/// The arms in order, each once.
pub(crate) fn arms(findings: &Results) -> Vec<&str> {
    let mut arms: Vec<&str> = vec![];
    for row in &findings.rows {
        if !arms.contains(&row.arm.as_str()) {
            arms.push(&row.arm);
        }
    }
    arms
}

fn cell(value: f64, unit: Unit) -> Cell {
    match unit {
        Unit::Nanos => Cell::Nanos(value),
        Unit::Share => Cell::Share(value),
        Unit::Count | Unit::PerSecond => Cell::Ratio(value),
    }
}

fn values(findings: &Results, shown: &[Shown]) -> Table {
    let columns = shown.iter().map(|shown| Column::number(shown.heading, shown.figure));
    let mut table = Table::new([Column::text("arm", "arm")].into_iter().chain(columns));
    for arm in arms(findings) {
        let of = |shown: &Shown| {
            let row = findings.row(arm, shown.figure)?;
            Some(cell(row.value?.value, row.unit))
        };
        let cells = shown.iter().map(|shown| of(shown).unwrap_or(Cell::Missing));
        table.push([Cell::Text(arm.to_owned())].into_iter().chain(cells));
    }
    table
}

fn compared(findings: &Results, shown: &[Shown]) -> Table {
    let shown: Vec<&Shown> = shown.iter().filter(|shown| shown.compared).collect();
    let columns = shown.iter().map(|shown| Column::number(shown.heading, shown.figure));
    let mut table = Table::new([Column::text("arm", "arm")].into_iter().chain(columns));
    for arm in arms(findings).into_iter().skip(1) {
        let of = |figure: &str| findings.row(arm, figure).and_then(ResultRow::ratio).map(ratio);
        let cells = shown.iter().map(|shown| of(shown.figure).map_or(Cell::Missing, Cell::Text));
        table.push([Cell::Text(arm.to_owned())].into_iter().chain(cells));
    }
    table
}

pub(crate) fn ratio(interval: Interval) -> String {
    let limits = interval.limits().map_or_else(String::new, |[low, high]| format!(" [{low:.3}, {high:.3}]"));
    format!("{:.3}{limits}", interval.value)
}

/// Every figure of every arm, a row each.
fn long(findings: &Results) -> Table {
    let mut table = Table::new([
        Column::text("experiment", "experiment"),
        Column::text("arm", "arm"),
        Column::text("figure", "figure"),
        Column::text("unit", "unit"),
        Column::number("value", "value"),
        Column::number("low", "low"),
        Column::number("high", "high"),
        Column::number("ratio", "ratio"),
        Column::number("ratio low", "ratio_low"),
        Column::number("ratio high", "ratio_high"),
        Column::number("rounds", "rounds"),
    ]);
    for row in &findings.rows {
        let unit = match row.unit {
            Unit::Nanos => "ns",
            Unit::Count => "count",
            Unit::Share => "share",
            Unit::PerSecond => "per_second",
        };
        let numbers = |interval: Option<Interval>| {
            [interval.map(|i| i.value), interval.map(|i| i.low), interval.map(|i| i.high)].map(Cell::ratio)
        };
        let words = [&findings.experiment, &row.arm, &row.figure].map(|text| Cell::Text(text.clone()));
        let cells = words.into_iter().chain([Cell::Text(unit.to_owned())]);
        let cells = cells.chain(numbers(row.value)).chain(numbers(row.ratio()));
        table.push(cells.chain([Cell::Count(row.rounds as u128)]));
    }
    table
}
