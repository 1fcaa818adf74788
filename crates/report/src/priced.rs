//! The columns of a priced row, the same in every table that has one.

use crate::{Cell, Column};
use dwell_replay::Priced;

/// Its columns. `exits`: whether the guest's exits are counted apart from its halts.
pub fn columns(exits: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::number("polling CPU", "polling_share"),
        Column::number("polling/s", "polling_ns_per_s").rank(9),
        Column::number("polls", "polls").rank(6),
        Column::number("success", "success_share").rank(3),
        Column::number("halts", "halts").rank(7),
        Column::number("halts/s", "halts_per_s").rank(1),
        Column::number("latency", "mean_added_latency_ns"),
        Column::number("p99 latency", "p99_added_latency_ns").rank(5),
        Column::number("cost", "cost_share"),
        Column::number("total cost", "cost_ns").rank(8),
        Column::number("/optimum", "cost_over_optimum").rank(2),
    ];
    if exits {
        columns.insert(5, Column::number("exits", "exits").rank(2));
    }
    columns
}

/// Its cells, under [`columns`].
pub fn cells(priced: &Priced, exits: bool) -> Vec<Cell> {
    let mut cells = vec![
        Cell::Share(priced.polling_share()),
        Cell::Nanos(priced.polling_ns_per_s),
        Cell::Count(priced.polls.into()),
        Cell::share(priced.success_share()),
        Cell::Count(priced.halts.into()),
        Cell::Rounded(priced.halts_per_s),
        Cell::Nanos(priced.mean_added_latency_ns),
        Cell::Nanos(priced.p99_added_latency_ns as f64),
        Cell::Share(priced.cost_share()),
        Cell::Nanos(priced.cost_ns as f64),
        Cell::ratio(priced.cost_over_optimum),
    ];
    if exits {
        cells.insert(5, Cell::Count(priced.exits.into()));
    }
    cells
}
