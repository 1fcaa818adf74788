//! Prints a verification.

use crate::failure::Outcome;
use crate::output::{self, Format};
use crate::state::title;
use dwell_knobs::journal::{Change, Id};
use dwell_knobs::verification::{Compared, Figure, Unit, Verdict, Verification, Work, cost_after};
use dwell_report::{Cell, Column, Table, duration, measured, number_of, percent, rounded};
use dwell_stats::{Interval, MIN_ROUNDS};
use serde::Serialize;

#[derive(Serialize)]
struct Verified<'a> {
    change: Id,
    #[serde(flatten)]
    verification: &'a Verification,
    /// Work done in a second, after over before, as a plan from causes predicts it.
    predicted_speed: Option<Interval>,
    /// By how much less a unit of work costs, as such a plan predicts it, as a share.
    predicted_gain_of_a_unit: Option<Interval>,
    /// Each figure before and after the change, for `dwell report --measured`.
    predicted_and_measured: measured::Measured,
}

pub(super) fn report(format: Format, change: &Change, verification: &Verification) -> Outcome {
    let verified = Verified {
        change: change.id,
        verification,
        predicted_speed: change.plan.effect.speed,
        predicted_gain_of_a_unit: gain_of_a_unit(change),
        predicted_and_measured: beside_prediction(change, verification),
    };
    output::result(format, &verified, || for_programs(verification), || text(change, verification))
}

fn gain_of_a_unit(change: &Change) -> Option<Interval> {
    change.plan.effect.speed.and(change.plan.effect.gain).map(|gain| gain.share)
}

/// The work that was measured, beside what a plan from causes predicts of it.
fn by_work(speed: Option<Interval>, gain: Option<Interval>, work: &[Work]) -> Option<String> {
    let range = |of: Interval| match of.limits() {
        Some(limits) => {
            let [value, low, high] = [of.value, limits[0], limits[1]].map(dwell_report::ratio);
            format!("{value} ({low} to {high})")
        }
        None => dwell_report::ratio(of.value),
    };
    let beside = |predicted: Option<Interval>, of: fn(&Work) -> Option<Interval>| {
        let each = work
            .iter()
            .filter_map(|work| of(work).map(|is| format!("{} by {}", range(is), work.unit.many())));
        let measured = each.collect::<Vec<_>>().join(", ");
        match predicted {
            Some(predicted) if measured.is_empty() => format!("{} predicted, not measured", range(predicted)),
            Some(predicted) => format!("{} predicted, {measured} measured", range(predicted)),
            None => measured,
        }
    };
    let is_known = work.iter().any(|work| work.ratio.is_some());
    (is_known || speed.is_some()).then(|| {
        let speed = beside(speed, |work| work.ratio);
        let cost = beside(gain.map(cost_after), Work::cost);
        // Not known where the thread used no CPU time.
        let cost = if cost.is_empty() { cost } else { format!("; cost of a unit: {cost}") };
        format!("After / before: work a second {speed}{cost}.")
    })
}

fn beside_prediction(change: &Change, verification: &Verification) -> measured::Measured {
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
    measured::Measured {
        source: "dwell verify".into(),
        verdict: Some(verification.verdict.words().to_owned()),
        rows: verification.figures.iter().flat_map(rows).flatten().collect(),
    }
}

fn text(change: &Change, verification: &Verification) -> String {
    let mut text = format!(
        "change {}: {}\n{} in {}\n\n{}",
        change.id,
        title(change),
        number_of(verification.rounds.into(), "round"),
        duration(verification.elapsed_s * 1e9),
        output::fitted(&for_people(verification)),
    );
    if let Some(words) = by_work(change.plan.effect.speed, gain_of_a_unit(change), &verification.work) {
        text += &output::wrapped(&format!("\n{words}"));
    }
    text += &output::wrapped(&format!("\nVerdict: {}", verdict(verification)));
    text += &output::notes(&verification.notes);
    text + match verification.reverted {
        true => "the values from before are in force again\n",
        false => "the values from after are in force\n",
    }
}

fn verdict(verification: &Verification) -> String {
    let words = verification.verdict.words();
    if verification.verdict == Verdict::NotEnoughRounds {
        let complete = verification.rounds;
        let needed_s = (verification.elapsed_s / f64::from(complete.max(1)) * MIN_ROUNDS as f64).ceil();
        return format!(
            "{words}: {complete} complete, at least {MIN_ROUNDS} are needed; use --budget {needed_s:.0}s or more, or a shorter --turn"
        );
    }
    match verification.why.join("; ") {
        why if why.is_empty() => words.to_owned(),
        why => format!("{words}; {why}"),
    }
}

/// One row: a figure, predicted and measured.
struct Row {
    name: String,
    predicted: [Option<f64>; 2],
    measured: [Option<Interval>; 2],
    difference: Option<Interval>,
    control: Option<Interval>,
    shown: fn(f64) -> String,
}

fn share_of_cpu(ns_per_s: f64) -> String {
    percent(ns_per_s / 1e9)
}

/// A setting that a user asks for has no prediction, and zeros in place of one.
fn is_predicted(verification: &Verification) -> bool {
    verification.figures.iter().any(|of| of.predicted_before != 0.0 || of.predicted_after != 0.0)
}

/// What is predicted, and the work.
fn rows(verification: &Verification) -> Vec<Row> {
    let is_predicted = is_predicted(verification);
    let predicted = verification.figures.iter().map(|of| Row {
        name: match of.figure {
            Figure::Halts => "halts/s".to_owned(),
            Figure::Cost | Figure::PollingCpu => of.figure.words().to_owned(),
        },
        predicted: [of.predicted_before, of.predicted_after].map(|of| is_predicted.then_some(of)),
        measured: [of.before, of.after],
        difference: of.difference,
        control: of.control_difference,
        shown: if of.figure == Figure::Halts { rounded } else { share_of_cpu },
    });
    let work = verification.work.iter().flat_map(|of| {
        let planned = verification.planned_wakeups_per_s.filter(|_| of.unit == Unit::Wakeup);
        let each = Row {
            name: format!("{} per {}", verification.promised.words(), of.unit.one()),
            predicted: [None; 2],
            measured: [of.promised_before, of.promised_after],
            difference: of.promised_difference,
            control: None,
            shown: if verification.promised == Figure::Halts { dwell_report::ratio } else { duration },
        };
        let done = Row {
            name: format!("{}/s", of.unit.many()),
            predicted: [planned; 2],
            measured: [of.before, of.after],
            difference: None,
            control: None,
            shown: rounded,
        };
        [done, each]
    });
    predicted.chain(work).collect()
}

fn for_people(verification: &Verification) -> Table {
    let shown = |row: &Row, value: Option<f64>| value.map(row.shown);
    let measured = |row: &Row, at: usize| shown(row, row.measured[at].map(|measured| measured.value));
    let within = |row: &Row, interval: Option<Interval>| {
        let limits = interval.and_then(|interval| interval.limits());
        limits.map(|[low, high]| format!("{} to {}", (row.shown)(low), (row.shown)(high)))
    };
    let rows = rows(verification);
    let mut table = Table::of(&rows).column(Column::text("figure", "figure"), |row| row.name.as_str());
    if is_predicted(verification) {
        table = table
            .column(Column::number("predicted before", "predicted_before").rank(3), |row| {
                shown(row, row.predicted[0])
            })
            .column(Column::number("predicted after", "predicted_after").rank(1), |row| {
                shown(row, row.predicted[1])
            });
    }
    table
        .column(Column::number("measured before", "before"), |row| measured(row, 0))
        .column(Column::number("measured after", "after"), |row| measured(row, 1))
        .column(Column::number("difference", "difference"), |row| {
            shown(row, row.difference.map(|difference| difference.value))
        })
        .column(Column::text("95 % interval", "interval").rank(2), |row| within(row, row.difference))
        .column(Column::text("A/A", "control").rank(4), |row| within(row, row.control))
        .table()
}

/// In the units of the names: ns/s for CPU time, ns or a number for what is promised by unit of work.
fn for_programs(verification: &Verification) -> Table {
    let names = verification
        .figures
        .iter()
        .map(|of| of.figure.name())
        .chain(verification.work.iter().flat_map(|of| [of.unit.per_s(), of.unit.promised_per_unit()]));
    let rows = rows(verification);
    let known = |value: Option<f64>| value.filter(|v| v.is_finite()).map(Cell::Rounded);
    let of = |interval: Option<Interval>, part: fn(Interval) -> f64| known(interval.map(part));
    Table::of(names.zip(&rows))
        .column(Column::text("figure", "figure"), |(name, _)| name)
        .column(Column::number("predicted before", "predicted_before"), |(_, row)| known(row.predicted[0]))
        .column(Column::number("predicted after", "predicted_after"), |(_, row)| known(row.predicted[1]))
        .column(Column::number("measured before", "before"), |(_, row)| of(row.measured[0], |is| is.value))
        .column(Column::number("measured after", "after"), |(_, row)| of(row.measured[1], |is| is.value))
        .column(Column::number("difference", "difference"), |(_, row)| of(row.difference, |is| is.value))
        .column(Column::number("from", "difference_low_95"), |(_, row)| of(row.difference, |is| is.low))
        .column(Column::number("to", "difference_high_95"), |(_, row)| of(row.difference, |is| is.high))
        .column(Column::number("A/A from", "control_low_95"), |(_, row)| of(row.control, |is| is.low))
        .column(Column::number("A/A to", "control_high_95"), |(_, row)| of(row.control, |is| is.high))
        .table()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_of_the_work_is_left_out() {
        let interval = |value| Interval { value, low: f64::NAN, high: f64::NAN };
        // A thread that used no CPU time.
        let work = Work {
            unit: Unit::Request,
            before: None,
            after: None,
            ratio: Some(interval(1.0)),
            promised_before: None,
            promised_after: None,
            promised_difference: None,
        };
        let words = |speed, gain, work: &[Work]| by_work(speed, gain, work);
        let known = [work];
        assert_eq!(words(None, None, &known).unwrap(), "After / before: work a second 1.00 by requests.");
        assert_eq!(
            words(Some(interval(1.1)), Some(interval(0.2)), &known).unwrap(),
            "After / before: work a second 1.10 predicted, 1.00 by requests measured; cost of a unit: 0.80 predicted, not \
             measured."
        );
        assert_eq!(words(None, None, &[]), None);
    }
}
