//! Two recordings of timers, before and after a change.

use super::words::head;
use crate::{model, output};
use dwell_report::{Cell, Column, Table};
use dwell_stats::Bucket;
use dwell_timer::lateness::Delays;
use dwell_timer::recorded::Timers;
use std::collections::BTreeSet;

/// What was recorded before a change of the host or the VM, and after it.
pub(super) struct Change<'a> {
    pub(super) before: &'a Timers,
    pub(super) after: &'a Timers,
}

impl Change<'_> {
    /// Both, in order.
    fn each(&self) -> [&Timers; 2] {
        [self.before, self.after]
    }

    /// The exits by reason, as recorded.
    pub(super) fn exits_table(&self) -> Table {
        let reasons: BTreeSet<&String> =
            self.each().into_iter().flat_map(|timers| timers.advice.recorded.reasons.keys()).collect();
        let exits = |timers: &Timers, reason: &String| {
            let exits = timers.advice.recorded.reasons.get(reason);
            Cell::Rounded(exits.map_or(0.0, |exits| timers.per_s(exits.exits as f64)))
        };
        let time = |timers: &Timers, reason: &String| {
            let exits = timers.advice.recorded.reasons.get(reason);
            Cell::share(exits.map_or(Some(0.0), |exits| exits.time_ns.map(|ns| timers.per_s(ns) / 1e9)))
        };
        Table::of(reasons)
            .column(Column::text("reason", "reason"), String::as_str)
            .column(Column::number("before, exits/s", "before_exits_per_s"), |of| exits(self.before, of))
            .column(Column::number("after, exits/s", "after_exits_per_s"), |of| exits(self.after, of))
            .column(Column::number("before, host time", "before_time_share"), |of| time(self.before, of))
            .column(Column::number("after, host time", "after_time_share"), |of| time(self.after, of))
            .table()
    }

    /// hrtimers that fired on each CPU.
    fn cpus_table(&self) -> Table {
        let cpus: BTreeSet<u32> =
            self.each().into_iter().flat_map(|timers| timers.advice.fired_per_s.keys().copied()).collect();
        let rate = |timers: &Timers, cpu: u32| {
            Cell::Rounded(timers.advice.fired_per_s.get(&cpu).copied().unwrap_or(0.0))
        };
        Table::of(cpus)
            .column(Column::text("CPU", "cpu"), |cpu| cpu.to_string())
            .column(Column::number("before, timers/s", "before_fired_per_s"), |cpu| rate(self.before, cpu))
            .column(Column::number("after, timers/s", "after_fired_per_s"), |cpu| rate(self.after, cpu))
            .table()
    }

    /// Delays of one kind, by share of the timers of which they are known.
    fn delays_table(&self, of: fn(&Delays) -> &[Bucket]) -> Table {
        let buckets: BTreeSet<(u64, u64)> = self
            .each()
            .into_iter()
            .flat_map(|timers| of(&timers.delays).iter().map(|bucket| (bucket.from_ns, bucket.to_ns)))
            .collect();
        let share = |timers: &Timers, from: u64| {
            let all = of(&timers.delays);
            let here = all.iter().find(|bucket| bucket.from_ns == from).map_or(0, |bucket| bucket.count);
            let sum: u64 = all.iter().map(|bucket| bucket.count).sum();
            Cell::share((sum > 0).then(|| here as f64 / sum as f64))
        };
        Table::of(buckets)
            .column(Column::number("from", "from_ns"), |(from, _)| Cell::Nanos(from as f64))
            .column(Column::number("to", "to_ns"), |(_, to)| Cell::Nanos(to as f64))
            .column(Column::number("before", "before_share"), |(from, _)| share(self.before, from))
            .column(Column::number("after", "after_share"), |(from, _)| share(self.after, from))
            .table()
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (when, timers) in ["before", "after"].into_iter().zip(self.each()) {
            text += &output::wrapped(&format!("{when}: {}", head(timers)));
        }
        let tables = [
            ("Exits by reason", self.exits_table()),
            ("hrtimers of vCPUs that fired on each CPU", self.cpus_table()),
            ("How late hrtimers fired, share of timers", self.delays_table(|delays| &delays.fired)),
            ("From firing to the guest, share of timers", self.delays_table(|delays| &delays.entered)),
        ];
        for (title, table) in tables {
            if !table.is_empty() {
                text += &format!("\n{title}:\n{}", output::fitted(&table));
            }
        }
        let mut notes = Vec::from_iter(model::note_of_order(&self.before.metadata, &self.after.metadata));
        for timers in self.each() {
            let lacks = model::left_out(&timers.metadata).into_iter();
            notes.extend(lacks.map(|note| format!("{}: {note}", timers.file)));
        }
        text + &output::notes(&notes)
    }
}
