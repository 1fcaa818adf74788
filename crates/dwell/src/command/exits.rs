//! `dwell exits`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::progress;
use anyhow::bail;
use dwell_report::{Cell, Column, Table};
use dwell_trace::exits::ExitTable;
use std::path::PathBuf;

/// Print the table of VM exits that `perf kvm stat` would print
///
/// Reads text of `perf script`, plain or gzip, with kvm:kvm_exit and kvm:kvm_entry. An exit lasts until the next
/// entry of the same thread, so the time of HLT includes the poll or sleep of the vCPU.
#[derive(clap::Args)]
#[command(after_help = "Example: perf record -a -e kvm:kvm_exit,kvm:kvm_entry -- sleep 10\n         \
                        perf script --ns > exits.txt\n         dwell exits exits.txt")]
pub(crate) struct Args {
    /// Text of `perf script`; - reads stdin
    file: PathBuf,
    /// Width of the column of exit reasons: 20 as in older perf, 40 as in newer perf
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    width: u16,
    #[command(flatten)]
    format: FormatArg,
}

pub(crate) fn run(args: Args) -> Outcome {
    let exits = ExitTable::read(progress::text(&args.file)?)?;
    if exits.total_samples == 0 {
        bail!(
            "cannot make a table of {}: no kvm_exit is followed by a kvm_entry of the same thread; \
             record with `perf record -a -e kvm:kvm_exit,kvm:kvm_entry`",
            args.file.display()
        );
    }
    match args.format.format {
        Format::Table => output::text(&exits.render(usize::from(args.width)))?,
        Format::Json => output::json(&exits)?,
        Format::Csv => output::csv(&table(&exits))?,
    }
    Ok(Answer::Yes)
}

fn table(exits: &ExitTable) -> Table {
    let mut table = Table::new([
        Column::text("reason", "reason"),
        Column::number("samples", "samples"),
        Column::number("total", "total_ns"),
        Column::number("min", "min_ns"),
        Column::number("max", "max_ns"),
        Column::number("average", "average_ns"),
        Column::number("standard error", "standard_error_percent"),
    ]);
    for row in &exits.rows {
        table.push([
            Cell::Text(row.reason.clone()),
            Cell::Count(row.samples.into()),
            Cell::Count(row.total_ns.into()),
            Cell::Count(row.min_ns.into()),
            Cell::Count(row.max_ns.into()),
            Cell::Nanos(row.average_ns()),
            Cell::Ratio(row.standard_error_percent()),
        ]);
    }
    table
}
