//! The three forms in which results are printed.

use clap::ValueEnum;
use dwell_report::Table;
use serde::Serialize;
use std::io::{self, Write};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Aligned columns, rounded, for people.
    Table,
    /// One JSON object, exact, times in ns.
    Json,
    /// Comma-separated columns, exact, times in ns.
    Csv,
}

/// `--format`, the same for every command.
#[derive(Debug, clap::Args)]
pub(crate) struct FormatArg {
    /// Form of the output on stdout; words beside the data go to stderr
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
}

/// Prints one value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Prints text as it is.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a table as CSV.
pub(crate) fn csv(table: &Table) -> anyhow::Result<()> {
    Ok(table.write_csv(io::stdout().lock())?)
}
