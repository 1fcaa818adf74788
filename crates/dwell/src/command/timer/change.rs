//! Two recordings of timers, before and after a change.

use crate::output;
use dwell_report::{Cell, Column, Table, duration, number_of};
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
        let mut table = Table::new([
            Column::text("reason", "reason"),
            Column::number("before, exits/s", "before_exits_per_s"),
            Column::number("after, exits/s", "after_exits_per_s"),
            Column::number("before, host time", "before_time_share"),
            Column::number("after, host time", "after_time_share"),
        ]);
        let reasons: BTreeSet<&String> =
            self.each().into_iter().flat_map(|timers| timers.advice.recorded.reasons.keys()).collect();
        for reason in reasons {
            let of = self.each().map(|timers| (timers, timers.advice.recorded.reasons.get(reason)));
            let rates = of.map(|(timers, exits)| {
                Cell::Rounded(exits.map_or(0.0, |exits| timers.per_s(exits.exits as f64)))
            });
            let times = of.map(|(timers, exits)| {
                Cell::share(exits.map_or(Some(0.0), |exits| exits.time_ns.map(|ns| timers.per_s(ns) / 1e9)))
            });
            table.push([Cell::Text(reason.clone())].into_iter().chain(rates).chain(times));
        }
        table
    }

    /// hrtimers that fired on each CPU.
    fn cpus_table(&self) -> Table {
        let mut table = Table::new([
            Column::text("CPU", "cpu"),
            Column::number("before, timers/s", "before_fired_per_s"),
            Column::number("after, timers/s", "after_fired_per_s"),
        ]);
        let cpus: BTreeSet<u32> =
            self.each().into_iter().flat_map(|timers| timers.advice.fired_per_s.keys().copied()).collect();
        for cpu in cpus {
            let rates = self
                .each()
                .map(|timers| Cell::Rounded(timers.advice.fired_per_s.get(&cpu).copied().unwrap_or(0.0)));
            table.push([Cell::Text(cpu.to_string())].into_iter().chain(rates));
        }
        table
    }

    /// Delays of one kind, by share of the timers of which they are known.
    fn delays_table(&self, of: fn(&Delays) -> &[Bucket]) -> Table {
        let mut table = Table::new([
            Column::number("from", "from_ns"),
            Column::number("to", "to_ns"),
            Column::number("before", "before_share"),
            Column::number("after", "after_share"),
        ]);
        let buckets: BTreeSet<(u64, u64)> = self
            .each()
            .into_iter()
            .flat_map(|timers| of(&timers.delays).iter().map(|bucket| (bucket.from_ns, bucket.to_ns)))
            .collect();
        for (from, to) in buckets {
            let shares = self.each().map(|timers| {
                let all = of(&timers.delays);
                let here = all.iter().find(|bucket| bucket.from_ns == from).map_or(0, |bucket| bucket.count);
                let sum: u64 = all.iter().map(|bucket| bucket.count).sum();
                Cell::share((sum > 0).then(|| here as f64 / sum as f64))
            });
            table.push([Cell::Nanos(from as f64), Cell::Nanos(to as f64)].into_iter().chain(shares));
        }
        table
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (when, timers) in ["before", "after"].into_iter().zip(self.each()) {
            let span = duration(timers.advice.span_ns as f64);
            text += &output::wrapped(&format!(
                "{when}: {}: {} of {} over {span}, rule of Linux {}",
                timers.file,
                number_of(timers.advice.timers.into(), "timer"),
                number_of(timers.advice.vcpus as u128, "vCPU"),
                timers.advice.in_force.kernel,
            ));
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
        text
    }
}
