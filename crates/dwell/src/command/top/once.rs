//! The screen as text, JSON and CSV.

use super::draw::printable;
use super::state::State;
use dwell_report::{Cell, Column, Table, duration};
use serde::Serialize;

#[derive(Serialize)]
pub(crate) struct Exact {
    idler: String,
    wakeups_per_s: f64,
    /// Whether events were lost or may have been, so that there may have been more wakeups.
    at_least: bool,
    idle_p50_ns: u64,
    idle_p99_ns: u64,
    window_ns: Option<u64>,
    success_share: Option<f64>,
    polling_share: Option<f64>,
    /// Bucket 0 counts zeros, k those from 2^(k-1) to 2^k - 1 ns.
    idle_histogram: Vec<u64>,
}

/// The idlers as JSON has them.
pub(crate) fn rows(state: &State) -> Vec<Exact> {
    let exact = |row: super::state::Row| Exact {
        idle_histogram: state.octaves(&row.idler),
        idler: row.idler.to_string(),
        wakeups_per_s: row.wakeups_per_s,
        at_least: !state.at_least().is_empty(),
        idle_p50_ns: row.p50_ns,
        idle_p99_ns: row.p99_ns,
        window_ns: row.window_ns,
        success_share: row.success,
        polling_share: row.polling,
    };
    state.rows().into_iter().map(exact).collect()
}

/// The idlers as a table.
pub(crate) fn table(state: &State) -> Table {
    let rows = state.rows();
    Table::of(&rows)
        .column(Column::text("idler", "idler"), |row| row.idler.to_string())
        .column(Column::number("wakeups/s", "wakeups_per_s"), |row| Cell::Rounded(row.wakeups_per_s))
        .column(Column::number("idle p50", "idle_p50_ns"), |row| Cell::Nanos(row.p50_ns as f64))
        .column(Column::number("idle p99", "idle_p99_ns").rank(2), |row| Cell::Nanos(row.p99_ns as f64))
        .column(Column::number("window", "window_ns"), |row| {
            row.window_ns.map_or(Cell::Missing, |ns| Cell::Nanos(ns as f64))
        })
        .column(Column::number("success", "success_share").rank(1), |row| Cell::share(row.success))
        .column(Column::number("polling CPU", "polling_share"), |row| Cell::share(row.polling))
        .table()
}

/// The table, and the histogram of the first idler.
pub(crate) fn text(state: &State) -> String {
    let rows = state.rows();
    let mut text = format!("{}, last {}", state.target, duration(state.span().as_nanos() as f64));
    if let Some(losses) = state.losses() {
        text.push_str(&format!(", {losses}; counts are lower bounds"));
    }
    for line in &state.control {
        text.push_str(&format!("\n{}", printable(line)));
    }
    text.push_str(&format!("\n\n{}", crate::output::fitted(&table(state))));
    match state.selected(&rows).map(|at| &rows[at].idler) {
        Some(idler) => {
            let histogram = dwell_report::histogram(&state.octaves(idler));
            text.push_str(&format!("\nidle times of {}\n{histogram}", printable(idler)));
        }
        None => text.push_str("\nno idler woke up\n"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::state::Sort;
    use super::super::state::tests::example;
    use super::*;

    #[test]
    fn text_has_table_and_histogram() {
        let text = text(&example());
        assert!(text.starts_with("host, last 1.00 s, at least 3 events lost; counts are lower bounds\n\nidler  wakeups/s  idle p50"), "{text}");
        assert!(
            text.contains("web/0      1,000   49.2 us   49.2 us   200 us    100 %       5.00 %\n"),
            "{text}"
        );
        assert!(
            text.contains("\nidle times of web/0\n   32.8 us         1,000    100 %    100 %  █"),
            "{text}"
        );
        let mut controlled = example();
        controlled.control = vec!["control of host: rests".to_owned()];
        let text = super::text(&controlled);
        assert!(text.contains("lower bounds\ncontrol of host: rests\n\nidler"), "{text}");
        let empty = State::new("guest", Sort::Wakeups, "");
        assert!(super::text(&empty).ends_with("no idler woke up\n"));
    }

    #[test]
    fn json_is_exact() {
        let json = serde_json::to_value(rows(&example())).unwrap();
        assert_eq!(json[0]["window_ns"], 200_000);
        assert_eq!(json[0]["at_least"], true);
        assert_eq!(json[2]["success_share"], serde_json::Value::Null);
    }
}
