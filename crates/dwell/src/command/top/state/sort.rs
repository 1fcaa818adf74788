//! Columns to sort by.

use super::Row;
use clap::ValueEnum;
use std::cmp::Ordering;

/// A column to sort by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Wakeups per second.
    #[default]
    #[value(alias = "wakes")]
    Wakeups,
    /// Median idle time.
    P50,
    /// 99th percentile of the idle time.
    P99,
    /// Polling window in force.
    Window,
    /// Share of polls that succeed.
    Success,
    /// Polling CPU.
    Cpu,
    /// Name.
    Name,
}

impl Sort {
    /// The columns, from left to right.
    pub(crate) const ALL: [Sort; 7] =
        [Sort::Name, Sort::Wakeups, Sort::P50, Sort::P99, Sort::Window, Sort::Success, Sort::Cpu];

    /// The heading of the column.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Sort::Name => "idler",
            Sort::Wakeups => "wakeups/s",
            Sort::P50 => "idle p50",
            Sort::P99 => "idle p99",
            Sort::Window => "window",
            Sort::Success => "success",
            Sort::Cpu => "polling",
        }
    }

    pub(super) fn after(self, steps: usize) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + steps) % Sort::ALL.len()]
    }
}

/// Largest first, names from A to Z; unknown values last.
pub(super) fn compare(sort: Sort, a: &Row, b: &Row) -> Ordering {
    let known = |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
    match sort {
        Sort::Name => a.idler.cmp(&b.idler),
        Sort::Wakeups => b.wakeups_per_s.total_cmp(&a.wakeups_per_s),
        Sort::P50 => b.p50_ns.cmp(&a.p50_ns),
        Sort::P99 => b.p99_ns.cmp(&a.p99_ns),
        Sort::Window => b.window_ns.cmp(&a.window_ns),
        Sort::Success => known(a.success, b.success),
        Sort::Cpu => known(a.polling, b.polling),
    }
}
