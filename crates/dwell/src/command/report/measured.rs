//! Predictions and measurements, bills and exits, from what other commands print.

use crate::command::why::show;
use crate::progress;
use anyhow::{Context, bail};
use dwell_recording::regular;
use dwell_report::harmless;
use dwell_report::measured::{Measured, parse};
use dwell_timer::why;
use dwell_trace::exits::ExitTable;
use serde::Serialize;
use std::path::Path;

/// The largest JSON file that is read \[bytes\]; those that dwell writes have a few kilobytes.
const LONGEST: u64 = 64 << 20;

/// What was read from a file, or made of it.
#[derive(Serialize)]
pub(super) struct FromFile<T> {
    pub(super) file: String,
    #[serde(flatten)]
    pub(super) of: T,
}

/// The output of `dwell why`.
#[derive(Serialize)]
pub(super) struct WhyFile {
    pub(super) file: String,
    #[serde(flatten)]
    pub(super) report: why::Report,
    /// Each bill as `dwell why` prints it.
    pub(super) words: Vec<String>,
}

pub(super) fn exits(path: &Path) -> anyhow::Result<FromFile<ExitTable>> {
    Ok(FromFile { file: path.display().to_string(), of: ExitTable::read(progress::text(path)?)? })
}

pub(super) fn why(path: &Path) -> anyhow::Result<WhyFile> {
    let file = path.display().to_string();
    let text = regular::read_text(path, LONGEST).with_context(|| format!("cannot read {file}"))?;
    let report = why::Report::parse(&text).with_context(|| format!("cannot read {file}"))?;
    let words = report.bills.iter().map(|one| harmless::lines(&show::bill(one, report.span_ns))).collect();
    Ok(WhyFile { file, report, words })
}

/// Reads the output of a command.
pub(super) fn read(path: &Path) -> anyhow::Result<FromFile<Measured>> {
    let file = path.display().to_string();
    let text = regular::read_text(path, LONGEST).with_context(|| format!("cannot read {file}"))?;
    let measured = parse(&text).with_context(|| {
        format!(
            "cannot read {file}: not the output of `dwell verify`, `dwell-lab validate` or `dwell iothread bench --predict` with \
             --format json"
        )
    })?;
    if measured.rows.is_empty() {
        bail!("cannot use {file}: it has no predictions; run `dwell iothread bench` with --predict");
    }
    Ok(FromFile { file, of: measured })
}
