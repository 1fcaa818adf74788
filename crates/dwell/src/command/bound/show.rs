//! Intervals as text, tables and CSV.

use super::Interval;
use crate::output;
use dwell_report::{Cell, Column, Table, duration, number_of, percent, rounded};

/// Lines of an interval report between two headings.
pub(super) const LINES: u64 = 20;

/// One line for a terminal, with a heading where asked for.
pub(super) fn line(interval: &Interval, heading: bool) -> String {
    let f = &interval.total;
    let mark = if f.bound.halts_exact { "" } else { "<=" };
    let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
    let row = format!(
        "{:>9}  {:>10}  {:>8}  {:>8}  {:>12}  {:>12}  {:>8}\n",
        duration(interval.at_ns as f64),
        percent(f.polled_share),
        share(f.success_share),
        share(f.wasted_share),
        format!("{mark}{}", rounded(f.halts_per_s)),
        format!("<={}/s", duration(f.gain_ns_per_s)),
        format!("<={}", percent(f.gain_share)),
    );
    let head = format!(
        "{:>9}  {:>10}  {:>8}  {:>8}  {:>12}  {:>12}  {:>8}\n",
        "after", "CPU polled", "success", "failed", "halts/s", "gain", "of a CPU"
    );
    if heading { head + &row } else { row }
}

pub(super) fn page(interval: &Interval) -> String {
    let f = &interval.total;
    let bound = &f.bound;
    let exactly = if bound.halts_exact { "" } else { "at most " };
    let halt_cost = duration(interval.halt_cost_ns as f64);
    let share_of = |part: Option<f64>| part.map_or_else(|| "none".to_owned(), percent);
    let mut text = format!(
        "{} over {}, halt cost {halt_cost}\n\n\
         polling CPU        {}/s, {} of a CPU\n\
         \x20 in failed polls  {}/s, {}\n\
         successful polls   {} of {} polls/s\n\
         halts              {exactly}{}/s, costing {}/s\n\
         least cost         {}/s, a lower bound for any policy\n\
         gain               at most {}/s, {} of a CPU, for any setting\n",
        number_of(interval.vms.len() as u128, "VM"),
        duration(interval.span_ns as f64),
        duration(f.polled_ns_per_s),
        percent(f.polled_share),
        duration(f.polled_ns_per_s * f.wasted_share.unwrap_or(0.0)),
        share_of(f.wasted_share),
        share_of(f.success_share),
        rounded(bound.polls as f64 / interval.span_ns.max(1) as f64 * 1e9),
        rounded(f.halts_per_s),
        duration(f.halts_per_s * interval.halt_cost_ns as f64),
        duration(bound.least_cost_ns as f64 / interval.span_ns.max(1) as f64 * 1e9),
        duration(f.gain_ns_per_s),
        percent(f.gain_share),
    );
    if interval.vms.len() > 1 {
        text.push_str(&format!("\n{}", output::fitted(&table(interval))));
    }
    if !bound.halts_exact {
        text += "\n";
        text += &output::wrapped(
            "note: these counters have no lengths of halts, so the bound is loose; for a closer estimate run `dwell record host` \
             and `dwell tune`",
        );
    }
    if interval.ended > 0 {
        text.push_str(&format!(
            "\nnote: counts of {} that ended during the measurement are lost\n",
            number_of(interval.ended as u128, "VM")
        ));
    }
    text
}

pub(super) fn table(interval: &Interval) -> Table {
    let rows: Vec<_> =
        interval.vms.iter().map(|vm| (vm.vm.to_string(), vm.process.as_str(), &vm.figures)).collect();
    let all = ("all".to_owned(), "", &interval.total);
    Table::of(rows.iter().chain([&all]))
        .column(Column::number("after", "at_ns").rank(5), |_| Cell::Time(interval.at_ns.into()))
        .column(Column::number("over", "span_ns").rank(5), |_| Cell::Time(interval.span_ns.into()))
        .column(Column::text("VM", "vm"), |row| row.0.as_str())
        .column(Column::text("process", "process").rank(2), |row| row.1)
        .column(Column::number("polling CPU", "polled_share"), |row| Cell::Share(row.2.polled_share))
        .column(Column::number("failed polls", "wasted_share").rank(4), |row| Cell::share(row.2.wasted_share))
        .column(Column::number("success", "success_share").rank(3), |row| Cell::share(row.2.success_share))
        .column(Column::number("polls", "polls").rank(4), |row| row.2.bound.polls)
        .column(Column::number("halts", "halts").rank(3), |row| row.2.bound.halts)
        .column(Column::text("halts are", "halts_are").rank(6), |row| {
            if row.2.bound.halts_exact { "exact" } else { "at most" }
        })
        .column(Column::number("cost", "cost_ns"), |row| Cell::Time(row.2.bound.cost_ns))
        .column(Column::number("least cost", "least_cost_ns"), |row| Cell::Time(row.2.bound.least_cost_ns))
        .column(Column::number("gain at most", "gain_ns"), |row| Cell::Time(row.2.bound.gain_ns))
        .table()
}

/// The rows of an interval as CSV, with a heading before the first.
pub(super) fn csv_lines(interval: &Interval, heading: bool) -> anyhow::Result<String> {
    let mut bytes = vec![];
    table(interval).write_csv(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(if heading { text } else { text.split_once('\n').map_or(String::new(), |(_, rows)| rows.to_owned()) })
}
