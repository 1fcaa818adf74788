//! How results of a campaign are printed.

use dwell_cli::output::{self, Format};
use dwell_report::{Cell, Column, Table, number_of};
use dwell_stats::{Interval, ResultRow, Results, Unit};
use serde::Serialize;

/// A figure of the tables.
pub(crate) struct Shown {
    /// Its name in the results.
    pub(crate) figure: &'static str,
    pub(crate) heading: &'static str,
    /// Whether its ratio to the baseline is shown as well, with its interval.
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

/// An experiment with its results, as printed.
#[derive(Serialize)]
pub(crate) struct Report<'a, T: Serialize> {
    #[serde(flatten)]
    pub(crate) about: T,
    /// Properties of the machine that limit the results.
    pub(crate) notes: Vec<String>,
    #[serde(flatten)]
    pub(crate) results: &'a Results,
}

/// Prints results in a format; `more` follows the tables for people.
pub(crate) fn print<T: Serialize>(
    report: &Report<'_, T>,
    title: &str,
    shown: &[Shown],
    more: &str,
    format: Format,
) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json(report),
        Format::Csv => output::csv(&long(report.results)),
        Format::Table => {
            let results = report.results;
            let mut text =
                format!("{}\n{}\n", output::wrapped(title), output::fitted(&values(results, shown)));
            let heading = format!(
                "Ratio to the baseline, with {} % intervals; the last arm is the baseline measured again:",
                (results.confidence * 100.0).round()
            );
            text += &format!("{}\n{}", output::wrapped(&heading), output::fitted(&compared(results, shown)));
            text += more;
            output::text(&text)?;
            notes(report);
            Ok(())
        }
    }
}

/// Notes and warnings, on stderr.
pub(crate) fn notes<T: Serialize>(report: &Report<'_, T>) {
    let results = report.results;
    let repeated = format!(
        "{} in {}, {} repeated because other programs used CPU time ({})",
        number_of(results.rounds.into(), "round"),
        dwell_report::duration(results.elapsed_s * 1e9),
        number_of(results.gating.rejected.into(), "block"),
        results.gating.source
    );
    let notes = report.notes.iter().map(|note| format!("note: {note}"));
    let warnings = results.warnings.iter().map(|warning| format!("warning: {warning}"));
    for line in std::iter::once(repeated).chain(notes).chain(warnings) {
        output::remark(&line);
    }
}

/// Rounds, repeated blocks and warnings of one campaign of several, on stderr.
pub(crate) fn remarks(campaign: &str, results: &Results) {
    output::remark(&format!(
        "{campaign}: {}, {} repeated because other programs used CPU time",
        number_of(results.rounds.into(), "round"),
        number_of(results.gating.rejected.into(), "block")
    ));
    for warning in &results.warnings {
        output::remark(&format!("warning: {campaign}: {warning}"));
    }
}

/// A column of a table of arms: a figure, and how it is shown.
pub(crate) struct ArmColumn {
    column: Column,
    figure: &'static str,
    shown: fn(&ResultRow) -> Cell,
}

impl ArmColumn {
    /// A figure that is a time.
    pub(crate) fn nanos(column: Column, figure: &'static str) -> ArmColumn {
        ArmColumn { column, figure, shown: |row| row.value.map_or(Cell::Missing, |of| Cell::Nanos(of.value)) }
    }

    /// A share of one CPU.
    pub(crate) fn share(column: Column, figure: &'static str) -> ArmColumn {
        ArmColumn { column, figure, shown: |row| row.value.map_or(Cell::Missing, |of| Cell::Share(of.value)) }
    }

    /// A figure without a unit.
    pub(crate) fn number(column: Column, figure: &'static str) -> ArmColumn {
        ArmColumn { column, figure, shown: |row| Cell::ratio(row.value.map(|of| of.value)) }
    }

    /// A figure's ratio to the baseline.
    pub(crate) fn ratio(column: Column, figure: &'static str) -> ArmColumn {
        ArmColumn {
            column,
            figure,
            shown: |row| row.ratio().map_or(Cell::Missing, |of| Cell::Text(ratio(of))),
        }
    }
}

/// One row for each arm of several campaigns, each with its stimulus: gaps, or a load.
pub(crate) fn arm_table<'r>(
    stimulus: &'static str,
    columns: Vec<ArmColumn>,
    campaigns: impl IntoIterator<Item = (&'r str, &'r Results)>,
) -> Table {
    let (heads, figures): (Vec<Column>, Vec<_>) =
        columns.into_iter().map(|of| (of.column, (of.figure, of.shown))).unzip();
    let named = [Column::text(stimulus, stimulus), Column::text("arm", "arm")];
    let mut table = Table::new(named.into_iter().chain(heads));
    for (gaps, results) in campaigns {
        for arm in arms(results) {
            let names = [gaps, arm].map(|name| Cell::Text(name.to_owned()));
            let cell = |(figure, shown): &(&str, fn(&ResultRow) -> Cell)| {
                results.row(arm, figure).map_or(Cell::Missing, shown)
            };
            table.push(names.into_iter().chain(figures.iter().map(cell)));
        }
    }
    table
}

/// The arms in order.
pub(crate) fn arms(results: &Results) -> Vec<&str> {
    let mut arms: Vec<&str> = vec![];
    for row in &results.rows {
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

fn values(results: &Results, shown: &[Shown]) -> Table {
    // What is compared with the baseline stays; of the rest the last is of least interest.
    let columns = (1..).zip(shown).map(|(place, shown)| {
        Column::number(shown.heading, shown.figure).rank(if shown.compared { 0 } else { place })
    });
    let mut table = Table::new([Column::text("arm", "arm")].into_iter().chain(columns));
    for arm in arms(results) {
        let of = |shown: &Shown| {
            let row = results.row(arm, shown.figure)?;
            Some(cell(row.value?.value, row.unit))
        };
        let cells = shown.iter().map(|shown| of(shown).unwrap_or(Cell::Missing));
        table.push([Cell::Text(arm.to_owned())].into_iter().chain(cells));
    }
    table
}

fn compared(results: &Results, shown: &[Shown]) -> Table {
    let shown: Vec<&Shown> = shown.iter().filter(|shown| shown.compared).collect();
    let columns =
        (0..).zip(&shown).map(|(place, shown)| Column::number(shown.heading, shown.figure).rank(place));
    let mut table = Table::new([Column::text("arm", "arm")].into_iter().chain(columns));
    for arm in arms(results).into_iter().skip(1) {
        let of = |figure: &str| results.row(arm, figure).and_then(ResultRow::ratio).map(ratio);
        let cells = shown.iter().map(|shown| of(shown.figure).map_or(Cell::Missing, Cell::Text));
        table.push([Cell::Text(arm.to_owned())].into_iter().chain(cells));
    }
    table
}

pub(crate) fn ratio(interval: Interval) -> String {
    let limits = interval.limits().map_or_else(String::new, |[low, high]| format!(" [{low:.3}, {high:.3}]"));
    format!("{:.3}{limits}", interval.value)
}

/// One row for each figure of each arm.
fn long(results: &Results) -> Table {
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
    for row in &results.rows {
        let unit = match row.unit {
            Unit::Nanos => "ns",
            Unit::Count => "count",
            Unit::Share => "share",
            Unit::PerSecond => "per_second",
        };
        let numbers = |interval: Option<Interval>| {
            [interval.map(|i| i.value), interval.map(|i| i.low), interval.map(|i| i.high)].map(Cell::ratio)
        };
        let words = [&results.experiment, &row.arm, &row.figure].map(|text| Cell::Text(text.clone()));
        let cells = words.into_iter().chain([Cell::Text(unit.to_owned())]);
        let cells = cells.chain(numbers(row.value)).chain(numbers(row.ratio()));
        table.push(cells.chain([Cell::Count(row.rounds as u128)]));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure};
    use dwell_testing::environment::FakeEnvironment;
    use std::convert::Infallible;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn tables_of_many_figures_fit_and_keep_what_is_compared() {
        const FIGURES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let figures = FIGURES.map(|name| Figure::of_block(name, Unit::Count));
        let options = CampaignOptions { min_rounds: 1, max_rounds: 1, ..CampaignOptions::default() };
        let arms = Arms::new("adaptive:aio@11.1,poll_max_ns=10ms", ());
        let campaign = Campaign::new("test", arms, figures, options).unwrap();
        let measure = |_: &dwell_stats::Trial<'_, ()>| {
            let block = FIGURES.into_iter().fold(Block::new(vec![1]), |block, name| block.figure(name, 1.0));
            Ok::<_, Infallible>(block)
        };
        let stop = AtomicBool::new(false);
        let record = campaign.run(&mut FakeEnvironment::always(None), &stop, &mut |_| (), measure).unwrap();
        let results = record.results();
        let shown = FIGURES.map(|figure| {
            if figure == "h" {
                Shown::compared(figure, "CPU/wakeup")
            } else {
                Shown::value(figure, "a heading")
            }
        });
        for width in [80, 120] {
            let text = values(&results, &shown).to_text_within(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            assert!(text.contains("CPU/wakeup") && text.contains("--wide also shows"), "{width}: {text}");
        }
    }
}
