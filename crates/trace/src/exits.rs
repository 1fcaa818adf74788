//! The table of VM exits that `perf kvm stat report` prints, out of `kvm:kvm_exit` and `kvm:kvm_entry`.
//!
//! An exit begins with `kvm_exit` and ends with the next `kvm_entry` of the same thread, so the row of HLT holds the
//! whole sleep. A thread counts from its first `kvm_entry` on; an end without a begin, or one before its begin, is
//! left out and counted. Mean and spread are Welford's running ones, in doubles and in the order of the trace, so that
//! the rows are perf's to the last digit.

use crate::event::TracepointKind;
use crate::import::perf::{Line, Order, ThreadVcpus, exit_reason};
use crate::import::{ImportError, Input, excerpt, remedy, text};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write as _;

/// Time outside of the guest, for one reason of exit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExitRow {
    /// The reason, as the kernel names it.
    pub reason: String,
    pub samples: u64,
    /// Time in all \[ns\].
    pub total_ns: u64,
    /// Shortest \[ns\].
    pub min_ns: u64,
    /// Longest \[ns\].
    pub max_ns: u64,
    /// Running mean \[ns\].
    pub mean_ns: f64,
    /// Running sum of squared differences from the mean \[ns²\].
    pub m2: f64,
}

impl ExitRow {
    fn new(reason: &str) -> ExitRow {
        ExitRow { reason: reason.to_owned(), min_ns: u64::MAX, ..ExitRow::default() }
    }

    fn add(&mut self, ns: u64) {
        self.samples += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
        let value = ns as f64;
        let delta = value - self.mean_ns;
        self.mean_ns += delta / self.samples as f64;
        self.m2 += delta * (value - self.mean_ns);
    }

    /// Standard error of the mean, in percent of it; 0 where there is no spread to speak of.
    pub fn standard_error_percent(&self) -> f64 {
        if self.samples < 2 || self.mean_ns == 0.0 {
            return 0.0;
        }
        let samples = self.samples as f64;
        let variance = self.m2 / (samples - 1.0);
        100.0 * (variance / samples).sqrt() / self.mean_ns
    }

    /// Mean \[ns\]: all time over all samples.
    pub fn average_ns(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.total_ns as f64 / self.samples as f64 }
    }

    /// The line of this row, its name right-aligned to `width`.
    pub fn render(&self, table: &ExitTable, width: usize) -> String {
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 * 100.0 };
        format!(
            "{:>width$} {:>10} {:>8.2}% {:>8.2}% {:>9.2}us {:>9.2}us {:>9.2}us ( +-{:>7.2}% )",
            self.reason,
            self.samples,
            share(self.samples, table.total_samples),
            share(self.total_ns, table.total_ns),
            self.min_ns as f64 / 1e3,
            self.max_ns as f64 / 1e3,
            self.average_ns() / 1e3,
            self.standard_error_percent(),
        )
    }
}

/// Time outside of the guest, by reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExitTable {
    /// One row a reason; the one with most samples first, equals by name.
    pub rows: Vec<ExitRow>,
    /// Samples of all rows.
    pub total_samples: u64,
    /// Time of all rows \[ns\].
    pub total_ns: u64,
    /// What was not counted.
    pub left_out: LeftOut,
}

/// What is in a trace and not in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// `kvm_exit` before the first `kvm_entry` of its thread.
    pub before_first_entry: u64,
    /// `kvm_entry` without a `kvm_exit` before it.
    pub entries_without_exit: u64,
    /// `kvm_exit` that another one follows, or nothing.
    pub exits_without_entry: u64,
    /// Pairs whose end is before their begin.
    pub backwards: u64,
    /// Other events and lines.
    pub other_lines: u64,
    /// Events that perf lost.
    pub lost_events: u64,
}

impl ExitTable {
    /// Counts the exits of a text of events.
    pub fn read(mut input: Input<'_>) -> Result<ExitTable, ImportError> {
        let mut counter = ExitCounter::default();
        while let Some(bytes) = input.next_line()? {
            let line = text(bytes);
            if let Err(what) = counter.line(&line) {
                return Err(ImportError::Refused(format!("{} {what}", input.place())));
            }
        }
        if let Some(why) = counter.order.no_times(input.name()) {
            return Err(ImportError::Refused(why));
        }
        let table = counter.finish();
        if table.total_samples == 0 {
            return Err(ImportError::NoEpisodes(format!(
                "{}: no exit in {} lines has both its kvm_exit and its kvm_entry; record with \
                 `perf record -a -e kvm:kvm_exit,kvm:kvm_entry`",
                input.name(),
                input.line()
            )));
        }
        Ok(table)
    }

    /// The table as perf prints it, without its title. `width`: of the name column, 20 in perf and 40 in newer
    /// perfs, for the long names of other architectures.
    pub fn render(&self, width: usize) -> String {
        let mut out = format!(
            "{:>width$} {:>10} {:>9} {:>9} {:>11} {:>11} {:>16} \n\n",
            "VM-EXIT", "Samples", "Samples%", "Time%", "Min Time", "Max Time", "Avg time"
        );
        for row in &self.rows {
            let _ = writeln!(out, "{}", row.render(self, width));
        }
        let total_us = self.total_ns as f64 / 1e3;
        let samples = self.total_samples;
        let _ = writeln!(out, "\nTotal Samples:{samples}, Total events handled time:{total_us:.2}us.");
        out
    }

    /// All that `perf kvm stat report` prints of a trace of the whole machine, byte for byte: the table
    /// between its title and its blank lines. `width`: as for [`render`](ExitTable::render).
    pub fn report(&self, width: usize) -> String {
        format!("\n\nAnalyze events for all VMs, all VCPUs:\n\n{}\n", self.render(width))
    }
}

/// Counts exits, given one by one.
///
/// ```
/// use dwell_trace::exits::ExitCounter;
/// let mut counter = ExitCounter::default();
/// counter.entry(7, 100);
/// counter.exit(7, 200, "HLT");
/// counter.entry(7, 5200);
/// let table = counter.finish();
/// assert_eq!(table.rows[0].reason, "HLT");
/// assert_eq!(table.total_ns, 5000);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ExitCounter {
    reasons: HashMap<String, usize>,
    rows: Vec<ExitRow>,
    /// What each thread that has entered a guest is in: an exit, by row and begin, or the guest.
    threads: HashMap<i32, Option<(usize, u64)>>,
    vcpus: ThreadVcpus,
    order: Order,
    left_out: LeftOut,
}

impl ExitCounter {
    fn row(&mut self, reason: &str) -> usize {
        match self.reasons.get(reason) {
            Some(&row) => row,
            None => {
                self.reasons.insert(reason.to_owned(), self.rows.len());
                self.rows.push(ExitRow::new(reason));
                self.rows.len() - 1
            }
        }
    }

    /// Adds an exit that took so long.
    pub fn add(&mut self, reason: &str, ns: u64) {
        let row = self.row(reason);
        self.rows[row].add(ns);
    }

    /// Thread `tid` left its guest at `time_ns`.
    pub fn exit(&mut self, tid: i32, time_ns: u64, reason: &str) {
        let row = self.row(reason);
        match self.threads.get_mut(&tid) {
            Some(open) => {
                let before = open.replace((row, time_ns));
                self.left_out.exits_without_entry += u64::from(before.is_some());
            }
            None => self.left_out.before_first_entry += 1,
        }
    }

    /// Thread `tid` entered its guest at `time_ns`.
    pub fn entry(&mut self, tid: i32, time_ns: u64) {
        let Some(open) = self.threads.get_mut(&tid) else {
            self.threads.insert(tid, None);
            return;
        };
        let Some((row, begin_ns)) = open.take() else {
            self.left_out.entries_without_exit += 1;
            return;
        };
        match (time_ns.checked_sub(begin_ns), self.rows.get_mut(row)) {
            (Some(ns), Some(row)) => row.add(ns),
            _ => self.left_out.backwards += 1,
        }
    }

    /// The table of what was counted.
    pub fn finish(self) -> ExitTable {
        let mut left_out = self.left_out;
        left_out.exits_without_entry += self.threads.values().flatten().count() as u64;
        let mut rows = self.rows;
        rows.retain(|row| row.samples > 0);
        rows.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.reason.cmp(&b.reason)));
        ExitTable {
            total_samples: rows.iter().map(|row| row.samples).sum(),
            total_ns: rows.iter().fold(0, |sum: u64, row| sum.saturating_add(row.total_ns)),
            rows,
            left_out,
        }
    }

    /// Takes a line of a text of events. The error is what is wrong with it.
    fn line(&mut self, line: &str) -> Result<(), String> {
        let named = |word: &str| matches!(word, "kvm:kvm_exit:" | "kvm:kvm_entry:");
        let unparsable = || {
            let text = excerpt(line.trim().as_bytes());
            let how = remedy(&"kvm:kvm_exit", line).map_or_else(String::new, |how| format!("; {how}"));
            Err(format!("names `kvm:kvm_exit` or `kvm:kvm_entry` but cannot be parsed: `{text}`{how}"))
        };
        let parsed = Line::parse(line);
        if let Line::Event(event) = &parsed {
            self.order.add(event, 0);
        }
        match parsed {
            Line::Event(event) => match (event.tracepoint(), exit_reason(event.text)) {
                (Some(TracepointKind::Exit | TracepointKind::Entry), _) if event.lacks_thread() => {
                    let how = "has no thread, by which vCPUs are told apart; use `perf script -F +comm,+tid`";
                    return Err(how.to_owned());
                }
                (Some(TracepointKind::Exit), Some(reason)) => {
                    self.vcpus.check(&event)?;
                    self.exit(event.tid, event.time_ns, &reason);
                }
                (Some(TracepointKind::Exit), None) => return unparsable(),
                (Some(TracepointKind::Entry), _) => self.entry(event.tid, event.time_ns),
                _ => self.left_out.other_lines += 1,
            },
            Line::Lost { events, .. } => {
                self.left_out.lost_events = self.left_out.lost_events.saturating_add(events);
            }
            Line::Other if line.split_whitespace().any(named) => return unparsable(),
            Line::Comment(_) | Line::TaskName { .. } | Line::Other => self.left_out.other_lines += 1,
        }
        Ok(())
    }
}
