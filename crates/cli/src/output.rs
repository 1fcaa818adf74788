//! The three formats in which results are printed.

use crate::failure::{Answer, Outcome};
use crate::paint;
use anyhow::Context;
use clap::{ArgMatches, ValueEnum};
use dwell_report::{Table, harmless};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Aligned columns, rounded values.
    Table,
    /// Values not rounded, times in ns.
    Json,
    /// Comma-separated values, not rounded, times in ns.
    Csv,
}

/// `--format`, the same for every command.
#[derive(Debug, clap::Args)]
pub struct FormatArg {
    /// Output format on stdout; messages go to stderr
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// Print all columns of a table, even if it is wider than the terminal
    ///
    /// By default the least important columns are left out of a table that is wider than the terminal, or than the
    /// variable COLUMNS if that is set. A table written to a file or a pipe has all columns, unless COLUMNS is set.
    #[arg(long)]
    wide: bool,
}

/// How wide a line may be; `None` has no limit.
static WIDTH: OnceLock<Option<usize>> = OnceLock::new();

/// A terminal that reports less is treated as this wide.
const NARROWEST: usize = 40;

/// Sets the width of lines to the variable COLUMNS, else to the width of the terminal; --wide removes the limit.
pub fn measure(matches: &ArgMatches) {
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
pub fn fitted(table: &Table) -> String {
    width().map_or_else(|| table.to_text(), |width| table.to_text_within(width))
}

/// A paragraph in lines that fit, at most 120 characters long.
pub fn wrapped(text: &str) -> String {
    dwell_report::wrap(text, width().unwrap_or(LONGEST_LINE).min(LONGEST_LINE))
}

/// Notes below a result, each a paragraph.
pub fn notes(notes: &[String]) -> String {
    notes.iter().map(|note| wrapped(&format!("note: {note}"))).collect()
}

/// A paragraph after `first`, in lines that fit; further lines begin with `rest`, which is as wide as `first`.
pub fn hanging(first: &str, rest: &str, text: &str) -> String {
    let limit = width().unwrap_or(LONGEST_LINE).min(LONGEST_LINE);
    let wrapped = dwell_report::wrap(text, limit.saturating_sub(rest.chars().count()));
    let lines = wrapped.lines().enumerate();
    lines.map(|(number, line)| format!("{}{line}\n", if number == 0 { first } else { rest })).collect()
}

/// Longer lines are hard to read.
const LONGEST_LINE: usize = 120;

pub(crate) const STDOUT: &str = "cannot write to stdout";

/// Prints one value as indented JSON.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    harmless::write_json(&mut out, value)
        .and_then(|()| writeln!(out))
        .and_then(|()| out.flush())
        .context(STDOUT)
}

/// Prints text. Of what would steer the terminal only the colours of [`Paint`](crate::paint::Paint) get there.
pub fn text(text: &str) -> anyhow::Result<()> {
    whole(paint::for_terminal(text).as_bytes())
}

/// Prints a line on stderr, harmless to the terminal. A closed stderr is not an error.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", harmless::line(text));
}

/// Prints a sentence on stderr, in lines that fit.
pub fn remark(text: &str) {
    for line in wrapped(text).lines() {
        note(line);
    }
}

/// Prints what was found out, in the form that was asked for: the outcome of a command that has no negative result.
pub fn result(
    format: Format,
    value: &impl Serialize,
    table: impl FnOnce() -> Table,
    words: impl FnOnce() -> String,
) -> Outcome {
    match format {
        Format::Json => json(value)?,
        Format::Csv => csv(&table())?,
        Format::Table => text(&words())?,
    }
    Ok(Answer::Yes)
}

/// Prints a table as CSV.
pub fn csv(table: &Table) -> anyhow::Result<()> {
    // In memory first: the writer of CSV hides of what kind the error of a closed pipe is.
    let mut bytes = vec![];
    table.write_csv(&mut bytes)?;
    whole(&bytes)
}

/// Prints a file as it is.
pub fn whole(file: &[u8]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(file).and_then(|()| out.flush()).context(STDOUT)
}
