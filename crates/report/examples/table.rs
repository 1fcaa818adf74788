//! Prints a table for people and the same as CSV:
//!
//! `cargo run -p dwell-report --example table`

use dwell_report::{Cell, Column, Table};

fn main() -> std::io::Result<()> {
    let mut table = Table::new([
        Column::text("policy", "policy"),
        Column::number("cost", "cost_ns"),
        Column::number("success", "success"),
    ]);
    table.push([Cell::Text("never".to_owned()), Cell::Nanos(600_123_456.0), Cell::Missing]);
    table.push([Cell::Text("always".to_owned()), Cell::Nanos(3_080_000_000.0), Cell::Share(1.0)]);
    print!("{}", table.to_text());
    table.write_csv(std::io::stdout().lock())
}
