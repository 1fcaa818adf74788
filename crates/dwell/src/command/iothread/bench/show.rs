//! Settings measured in turns, as text and tables.

use super::{Args, Arm, Benched, CPU_PER_REQUEST, SLEEPS_PER_REQUEST, measured_row, name_of, values_of};
use crate::command::iothread::predict::Waits;
use crate::failure::Outcome;
use crate::output;
use crate::settings::pairs;
use dwell_policy::param::Setting;
use dwell_report::measured::Measured;
use dwell_report::{Cell, Column, Table, duration, number_of, percent};
use dwell_stats::{Interval, ResultRow, Results, Unit};

pub(super) fn report(
    args: &Args,
    qemu: &str,
    iothread: &str,
    thread_id: u32,
    settings: &[Setting],
    findings: &Results,
    waits: Option<&Waits>,
) -> Outcome {
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
    output::result(args.format.format, &benched, || for_programs(&benched), || words(&benched, waits))
}

fn words(benched: &Benched<'_>, waits: Option<&Waits>) -> String {
    let Benched { qemu, iothread, thread_id, arms, findings, .. } = benched;
    let present = arms.iter().take(1).flat_map(|arm| &arm.values);
    let present = pairs(present.map(|(name, value)| (name, value)));
    let mut text = format!(
        "QEMU {qemu}, iothread {iothread}, thread {thread_id}; {} in {}; present: {}\n\n{}",
        number_of(findings.rounds.into(), "round"),
        duration(findings.elapsed_s * 1e9),
        present,
        output::fitted(&table(benched)),
    );
    if let Some(waits) = waits {
        text += &format!(
            "\npredicted from {} waits of {} requests, recorded without polling and replayed through each setting; \
             CPU is the polling CPU\n",
            dwell_report::count(waits.episodes().into()),
            dwell_report::count(waits.requests().into())
        );
    }
    text += "the present values are in force again\n";
    for warning in &findings.warnings {
        text += &format!("warning: {warning}\n");
    }
    text
}

/// What a replay predicts of a figure: sleeps, or the time polled \[ns\].
fn predicted(benched: &Benched<'_>, row: &ResultRow) -> Option<f64> {
    let predicted = benched.arms.iter().find(|arm| arm.name == row.arm)?.predicted?;
    match row.figure.as_str() {
        SLEEPS_PER_REQUEST => Some(predicted.sleeps),
        CPU_PER_REQUEST => Some(predicted.polled_ns),
        _ => None,
    }
}

/// In the units of the names: ns, shares of a CPU, numbers.
fn for_programs(benched: &Benched<'_>) -> Table {
    let known = |value: Option<f64>| value.filter(|value| value.is_finite()).map(Cell::Rounded);
    let limit = |value: Option<Interval>, at: usize| known(value.and_then(|value| Some(value.limits()?[at])));
    Table::of(&benched.findings.rows)
        .column(Column::text("figure", "figure"), |row| row.figure.as_str())
        .column(Column::text("setting", "arm"), |row| row.arm.as_str())
        .column(Column::number("measured", "value"), |row| known(row.value.map(|value| value.value)))
        .column(Column::number("from", "low_95"), |row| limit(row.value, 0))
        .column(Column::number("to", "high_95"), |row| limit(row.value, 1))
        .column(Column::number("ratio", "ratio"), |row| known(row.ratio().map(|ratio| ratio.value)))
        .column(Column::number("from", "ratio_low_95"), |row| limit(row.ratio(), 0))
        .column(Column::number("to", "ratio_high_95"), |row| limit(row.ratio(), 1))
        .column(Column::number("predicted", "predicted"), |row| known(predicted(benched, row)))
        .table()
}

fn table(benched: &Benched<'_>) -> Table {
    let text = |unit: Unit, value: f64| match unit {
        Unit::Nanos => duration(value),
        Unit::Share => percent(value),
        Unit::Count => dwell_report::ratio(value),
        Unit::PerSecond => format!("{value:.0}"),
    };
    let change = |value: f64| format!("{:+.1} %", (value - 1.0) * 100.0);
    let table = Table::of(&benched.findings.rows)
        .column(Column::text("figure", "figure"), |row| row.figure.as_str())
        .column(Column::text("setting", "arm"), |row| row.arm.as_str())
        .column(Column::number("measured", "value"), |row| {
            let value = row.value?.value;
            Some(match row.unit {
                Unit::Nanos => Cell::Nanos(value),
                Unit::Share => Cell::Share(value),
                Unit::Count => Cell::Ratio(value),
                Unit::PerSecond => Cell::Rounded(value),
            })
        })
        // Too few rounds give a value without an interval.
        .column(Column::text("95 % interval", "interval"), |row| {
            let [low, high] = row.value?.limits()?;
            Some(format!("{} to {}", text(row.unit, low), text(row.unit, high)))
        })
        .column(Column::text("change", "ratio"), |row| {
            row.ratio().map(|ratio| match ratio.limits() {
                Some([low, high]) => format!("{} [{}, {}]", change(ratio.value), change(low), change(high)),
                None => change(ratio.value),
            })
        });
    if benched.arms.iter().all(|arm| arm.predicted.is_none()) {
        return table.table();
    }
    table
        .column(Column::number("predicted", "predicted"), |row| {
            let value = predicted(benched, row)?;
            Some(match row.unit {
                Unit::Nanos => Cell::Text(format!("+ {}", duration(value))),
                _ => Cell::Ratio(value),
            })
        })
        .table()
}
