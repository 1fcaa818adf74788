//! Settings measured in turns, as text and tables.

use super::{Args, Arm, Benched, CPU_PER_REQUEST, SLEEPS_PER_REQUEST, measured_row, name_of, values_of};
use crate::command::iothread::predict::Waits;
use crate::output::{self, Format};
use dwell_policy::param::Setting;
use dwell_report::measured::Measured;
use dwell_report::{Cell, Column, Table, duration, percent};
use dwell_stats::{Results, Unit};

pub(super) fn report(
    args: &Args,
    qemu: &str,
    iothread: &str,
    thread_id: u32,
    settings: &[Setting],
    findings: &Results,
    waits: Option<&Waits>,
) -> anyhow::Result<()> {
    let predicted = waits.map(|waits| waits.predict(settings)).transpose()?;
    let arm = |(index, setting): (usize, &Setting)| Arm {
        name: name_of(setting, &settings[0]),
        values: values_of(setting),
        predicted: predicted.as_ref().and_then(|all| all.get(index).copied()),
    };
    let arms: Vec<Arm> = settings.iter().enumerate().map(arm).collect();
    let predicted_and_measured = Measured {
        source: "dwell iothread bench".into(),
        verdict: None,
        rows: arms.iter().filter_map(|arm| measured_row(iothread, arm, findings)).collect(),
    };
    let benched = Benched { qemu, iothread, thread_id, arms, findings, predicted_and_measured };
    match args.format.format {
        Format::Json => output::json(&benched)?,
        Format::Csv => output::csv(&table(&benched))?,
        Format::Table => {
            output::text(&format!(
                "QEMU {qemu}, iothread {iothread}, thread {thread_id}; {} rounds in {}; present: {}\n\n",
                findings.rounds,
                duration(findings.elapsed_s * 1e9),
                benched.arms.first().map_or_else(String::new, |arm| {
                    arm.values
                        .iter()
                        .map(|(name, value)| format!("{name}={value}"))
                        .collect::<Vec<_>>()
                        .join(" ")
                })
            ))?;
            output::text(&output::fitted(&table(&benched)))?;
            if let Some(waits) = waits {
                output::text(&format!(
                    "\npredicted from {} waits of {} requests, recorded without polling and replayed through each setting; \
                     CPU is the polling CPU\n",
                    dwell_report::count(waits.episodes().into()),
                    dwell_report::count(waits.requests().into())
                ))?;
            }
            output::text("the present values are in force again\n")?;
            for warning in &findings.warnings {
                output::text(&format!("warning: {warning}\n"))?;
            }
        }
    }
    Ok(())
}

fn table(benched: &Benched<'_>) -> Table {
    let predicts = benched.arms.iter().any(|arm| arm.predicted.is_some());
    let mut columns = vec![
        Column::text("figure", "figure"),
        Column::text("setting", "arm"),
        Column::number("measured", "value"),
        Column::text("95 % interval", "interval"),
        Column::text("change", "ratio"),
    ];
    if predicts {
        columns.push(Column::number("predicted", "predicted"));
    }
    let mut table = Table::new(columns);
    for row in &benched.findings.rows {
        let cell = |value: f64| match row.unit {
            Unit::Nanos => Cell::Nanos(value),
            Unit::Share => Cell::Share(value),
            Unit::Count => Cell::Ratio(value),
            Unit::PerSecond => Cell::Rounded(value),
        };
        let text = |value: f64| match row.unit {
            Unit::Nanos => duration(value),
            Unit::Share => percent(value),
            Unit::Count => dwell_report::ratio(value),
            Unit::PerSecond => format!("{value:.0}"),
        };
        // Too few rounds give a value without an interval.
        let limits = row.value.and_then(|value| value.limits());
        let interval = limits.map(|[low, high]| format!("{} to {}", text(low), text(high)));
        let change = |value: f64| format!("{:+.1} %", (value - 1.0) * 100.0);
        let ratio = row.ratio().map(|ratio| match ratio.limits() {
            Some([low, high]) => format!("{} [{}, {}]", change(ratio.value), change(low), change(high)),
            None => change(ratio.value),
        });
        let mut cells = vec![
            Cell::Text(row.figure.clone()),
            Cell::Text(row.arm.clone()),
            row.value.map_or(Cell::Missing, |interval| cell(interval.value)),
            interval.map_or(Cell::Missing, Cell::Text),
            ratio.map_or(Cell::Missing, Cell::Text),
        ];
        if predicts {
            let predicted = benched.arms.iter().find(|arm| arm.name == row.arm).and_then(|arm| arm.predicted);
            cells.push(match (row.figure.as_str(), predicted) {
                (SLEEPS_PER_REQUEST, Some(predicted)) => Cell::Ratio(predicted.sleeps),
                (CPU_PER_REQUEST, Some(predicted)) => {
                    Cell::Text(format!("+ {}", duration(predicted.polled_ns)))
                }
                _ => Cell::Missing,
            });
        }
        table.push(cells);
    }
    table
}
