//! The advice on a recording of timers, as text and tables.

use super::vm::exits_in;
use crate::failure::Outcome;
use crate::output::{self, Format};
use dwell_replay::number::rounded;
use dwell_report::{Cell, Column, Table, count, duration, number_of, percent};
use dwell_timer::advice::{SetupRow, TimerAdvice, Verdict};
use dwell_timer::lateness::Late;
use dwell_timer::predict::Cost;
use dwell_timer::recorded::Timers;

/// Prints the advice; `by_reason`: with the exits of each set-up by reason in place of the set-ups.
pub(super) fn print(timers: &Timers, format: Format, by_reason: bool) -> Outcome {
    let words = Words(timers);
    output::result(format, timers, || words.table(by_reason), || words.text(by_reason))
}

/// What was recorded, and the rule in force.
pub(super) fn head(timers: &Timers) -> String {
    let advice = &timers.advice;
    format!(
        "{}: {} of {} over {}, rule of Linux {}",
        timers.file,
        number_of(advice.timers.into(), "timer"),
        number_of(advice.vcpus as u128, "vCPU"),
        duration(advice.span_ns as f64),
        advice.in_force.kernel,
    )
}

struct Words<'a>(&'a Timers);

impl Words<'_> {
    fn text(&self, by_reason: bool) -> String {
        let advice = &self.0.advice;
        let bound = advice.recorded.timer_time_ns.map_or_else(
            || "not known".to_owned(),
            |ns| format!("{} of a CPU", percent(self.0.per_s(ns) / 1e9)),
        );
        let facts: Vec<String> = self
            .0
            .facts
            .iter()
            .map(|fact| format!("{} {} ({})", fact.name, fact.value, fact.origin.words()))
            .collect();
        let check = &advice.check;
        let check = format!(
            "self-check: {} of {} timers compared with the model, {} deviations",
            count(check.compared.into()),
            count(check.timers.into()),
            count(check.deviations().into()),
        );
        let most = format!(
            "Timers that cost no exit at all would save at most {bound} and {} exits per second.",
            rounded(self.0.per_s(advice.recorded.timer_exits as f64)),
        );
        let mut text = [
            output::wrapped(&head(self.0)),
            output::wrapped(&facts.join(", ")),
            output::wrapped(&check),
            format!("\n{}\n", output::wrapped(&most)),
            output::fitted(&self.table(by_reason)),
        ]
        .concat();
        if let Some(advances) = &self.0.advances {
            text += &format!("\nAdvance of timers:\n{}", output::fitted(&advances_table(advances, self.0)));
        }
        if !advice.fired_per_s.is_empty() {
            let cpus = advice.fired_per_s.iter().map(|(cpu, rate)| format!("CPU {cpu} {}", rounded(*rate)));
            let words = format!(
                "hrtimers of vCPUs fired per second, as recorded: {}",
                cpus.collect::<Vec<_>>().join(", ")
            );
            text += &format!("\n{}", output::wrapped(&words));
        }
        text += &format!("\n{}", output::wrapped(&format!("Advice: {}", self.0.words)));
        if let Verdict::Change { row } = advice.verdict
            && let Some(row) = advice.rows.get(row)
        {
            for one in &row.missing {
                text += &output::hanging("  ", "    ", &format!("{}: {}", one.words(), one.remedy()));
            }
        }
        if let Some(better) = &self.0.better {
            text += &output::wrapped(&format!("Advance: {}", better.words));
        }
        text + &output::notes(&self.0.notes)
    }

    fn table(&self, by_reason: bool) -> Table {
        if by_reason {
            return self.by_reason();
        }
        let advice = &self.0.advice;
        let rows = rows(advice);
        let rate = |number: u64| Cell::Rounded(self.0.per_s(number as f64));
        Table::of(&rows)
            .column(Column::number("timer exits/s", "timer_exits_per_s"), |row| rate(row.1.timer_exits))
            .column(Column::number("host time", "timer_time_share"), |row| self.share(row.1.timer_time_ns))
            .column(Column::number("posted/s", "posted_per_s"), |row| rate(row.1.posted))
            .column(Column::number("exits/s", "exits_per_s").rank(3), |row| rate(row.1.exits()))
            .column(Column::number("elsewhere/s", "interrupts_elsewhere_per_s").rank(4), |row| {
                rate(row.1.interrupts_elsewhere)
            })
            .column(Column::number("vCPUs/CPU", "vcpus_per_cpu").rank(2), |row| {
                Cell::ratio(row.2.map(f64::floor))
            })
            .column(Column::text("set-up", "setup").below(), |row| row.0.as_str())
            .table()
    }

    /// The exits by reason, of what was recorded and of each set-up.
    fn by_reason(&self) -> Table {
        let advice = &self.0.advice;
        let rows = rows(advice);
        let reasons =
            rows.iter().flat_map(|row| row.1.reasons.iter().map(move |(reason, exits)| (row, reason, exits)));
        Table::of(reasons)
            .column(Column::text("reason", "reason"), |(_, reason, _)| reason.as_str())
            .column(Column::number("exits/s", "exits_per_s"), |(.., exits)| {
                Cell::Rounded(self.0.per_s(exits.exits as f64))
            })
            .column(Column::number("host time", "time_share"), |(.., exits)| self.share(exits.time_ns))
            .column(Column::text("set-up", "setup"), |(row, ..)| row.0.as_str())
            .table()
    }

    /// CPU time of the whole recording as a share of it.
    fn share(&self, time_ns: Option<f64>) -> Cell {
        Cell::share(time_ns.map(|ns| self.0.per_s(ns) / 1e9))
    }
}

/// What was recorded, its bound, and the set-ups: name, cost, vCPUs for each CPU.
fn rows(advice: &TimerAdvice) -> Vec<(String, &Cost, Option<f64>)> {
    let recorded = ("as recorded".to_owned(), &advice.recorded, None);
    let bound = ("bound: timers without exits".to_owned(), &advice.without_timer_exits, None);
    let rows = advice.rows.iter().map(|row| (name(row), &row.cost, row.vcpus_per_cpu));
    [recorded, bound].into_iter().chain(rows).collect()
}

fn name(row: &SetupRow) -> String {
    let exits = exits_in(&row.setup.vm);
    if row.differs.is_empty() { format!("in force, replayed ({exits})") } else { row.differs.join(" + ") }
}

fn advances_table(advances: &[Late], timers: &Timers) -> Table {
    Table::of(advances)
        .column(Column::text("advance", "advance"), |late| late.advance.clone())
        .column(Column::number("timers", "timers"), |late| late.timers)
        .column(Column::number("late, mean", "mean_ns"), |late| Cell::Nanos(late.mean_ns))
        .column(Column::number("late, p99", "p99_ns"), |late| Cell::Nanos(late.p99_ns))
        .column(Column::number("spin, mean", "mean_spin_ns"), |late| Cell::Nanos(late.mean_spin_ns))
        .column(Column::number("spin", "spin_share"), |late| Cell::Share(timers.per_s(late.spin_ns) / 1e9))
        .table()
}
