//! The three forms in which results are printed.

use crate::paint;
use clap::{ArgMatches, ValueEnum};
use dwell_report::{Table, harmless};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

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
    /// Print every column of a table, also those that do not fit the terminal
    ///
    /// Without it the columns of least interest are left out where the terminal, or the variable COLUMNS, is narrower
    /// than the table. A table that goes to a file or a pipe has all of them.
    #[arg(long)]
    wide: bool,
}

/// How wide a line may be; `None` has no limit.
static WIDTH: OnceLock<Option<usize>> = OnceLock::new();

/// A terminal that reports less is taken for one of this width: nothing can be shown in it.
const NARROWEST: usize = 40;

/// Finds out how wide lines may be: as wide as the variable COLUMNS or the terminal, unless --wide is given.
pub(crate) fn measure(matches: &ArgMatches) {
    let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
    let terminal = || {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_col > 0)?;
        io::stdout().is_terminal().then(|| usize::from(size.ws_col))
    };
    let width = if is_wide(matches) { None } else { columns().or_else(terminal) };
    let _ = WIDTH.set(width.map(|width| width.max(NARROWEST)));
}

fn is_wide(matches: &ArgMatches) -> bool {
    let here = matches.try_get_one::<bool>("wide").ok().flatten().copied().unwrap_or(false);
    here || matches.subcommand().is_some_and(|(_, below)| is_wide(below))
}

fn width() -> Option<usize> {
    WIDTH.get().copied().flatten()
}

/// A table in lines that fit.
pub(crate) fn fitted(table: &Table) -> String {
    width().map_or_else(|| table.to_text(), |width| table.to_text_within(width))
}

/// A paragraph in lines that fit, at most 120 characters long.
pub(crate) fn wrapped(text: &str) -> String {
    dwell_report::wrap(text, width().unwrap_or(LONGEST_LINE).min(LONGEST_LINE))
}

/// Longer lines are hard to read.
const LONGEST_LINE: usize = 120;

/// Prints one value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    harmless::write_json(&mut out, value).map_err(io::Error::from)?;
    writeln!(out)?;
    Ok(out.flush()?)
}

/// Prints text. Of what would steer the terminal only the colours of [`Paint`](crate::paint::Paint) get there.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(paint::for_terminal(text).as_bytes())?;
    Ok(out.flush()?)
}

/// Prints a line on stderr, harmless to the terminal.
pub(crate) fn note(text: &str) {
    eprintln!("{}", harmless::line(text));
}

/// Prints a table as CSV.
pub(crate) fn csv(table: &Table) -> anyhow::Result<()> {
    Ok(table.write_csv(io::stdout().lock())?)
}
