//! The columns of a priced row, the same in every table that has one.

use crate::{Cell, Column, Rows};
use dwell_replay::Priced;

/// Adds its columns. `exits`: whether the guest's exits are counted apart from its halts.
#[must_use]
pub fn columns<'a, T: Copy>(table: Rows<T>, exits: bool, of: impl Fn(T) -> &'a Priced) -> Rows<T> {
    let mut table = table
        .column(Column::number("polling CPU", "polling_share"), |row| Cell::Share(of(row).polling_share()))
        .column(Column::number("polling/s", "polling_ns_per_s").rank(9), |row| {
            Cell::Nanos(of(row).polling_ns_per_s)
        })
        .column(Column::number("polls", "polls").rank(6), |row| of(row).polls)
        .column(Column::number("success", "success_share").rank(3), |row| {
            Cell::share(of(row).success_share())
        })
        .column(Column::number("halts", "halts").rank(7), |row| of(row).halts);
    if exits {
        table = table.column(Column::number("exits", "exits").rank(2), |row| of(row).exits);
    }
    table
        .column(Column::number("halts/s", "halts_per_s").rank(1), |row| Cell::Rounded(of(row).halts_per_s))
        .column(Column::number("latency", "mean_added_latency_ns"), |row| {
            Cell::Nanos(of(row).mean_added_latency_ns)
        })
        .column(Column::number("p99 latency", "p99_added_latency_ns").rank(5), |row| {
            Cell::Time(of(row).p99_added_latency_ns.into())
        })
        .column(Column::number("cost", "cost_share"), |row| Cell::Share(of(row).cost_share()))
        .column(Column::number("total cost", "cost_ns").rank(8), |row| Cell::Time(of(row).cost_ns))
        .column(Column::number("/optimum", "cost_over_optimum").rank(2), |row| {
            Cell::ratio(of(row).cost_over_optimum)
        })
}
