//! Predictions and measurements, from the JSON of the commands that print both.

use anyhow::{Context, bail};
use dwell_recording::regular;
use dwell_report::measured::{Measured, parse};
use serde::Serialize;
use std::path::Path;

/// The largest JSON file that is read \[bytes\]; those that dwell writes have a few kilobytes.
const LONGEST: u64 = 64 << 20;

#[derive(Serialize)]
pub(super) struct MeasuredFile {
    pub(super) file: String,
    #[serde(flatten)]
    pub(super) measured: Measured,
}

/// Reads the output of a command.
pub(super) fn read(path: &Path) -> anyhow::Result<MeasuredFile> {
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
    Ok(MeasuredFile { file, measured })
}
