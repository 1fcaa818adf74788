//! `dwell sketch`

use crate::failure::Outcome;
use crate::model;
use crate::output::{self, FormatArg};
use crate::overwrite::ForceArg;
use crate::quantity::LatencyArg;
use crate::settings::VersionArgs;
use anyhow::Context;
use dwell_fleet::{Input, Sketch};
use dwell_policy::Nanos;
use dwell_recording::{NewFile, Reader};
use dwell_replay::Versions;
use dwell_report::{Column, Table, count, duration};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make a sketch of recordings: what every setting of a grid costs, in kilobytes
///
/// A sketch has, for each of several hundred settings and for the setting in force, the halts and the polling
/// CPU that the exact replay of the recording gives. `dwell fleet` and the Python package read it like the
/// recording, at any halt cost: the costs are the same to the last digit. It also has the idle times in bins,
/// the time recorded, losses, and the metadata that classes come from. It has no episodes: other commands need
/// the recording.
///
/// Several files, recordings or sketches of one layer, are merged into one sketch: sums of the files, each
/// replayed by itself.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell sketch dwell-host.parquet -o vm7.parquet\n  \
                        dwell sketch hour*.parquet -o day.parquet")]
pub(crate) struct Args {
    /// Recordings or sketches (*.parquet)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Sketch to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    force: ForceArg,
    #[command(flatten)]
    versions: VersionArgs,
    #[command(flatten)]
    latency: LatencyArg,
    #[command(flatten)]
    format: FormatArg,
}

/// A sketch that was written, as it is printed.
#[derive(Serialize)]
struct Written {
    output: String,
    bytes: u64,
    layer: &'static str,
    recordings: u64,
    episodes: u64,
    recorded_ns: u64,
    lost_events: u64,
    lost_at_least: bool,
    cut_short: u64,
    rules: Vec<RuleOf>,
}

#[derive(Serialize)]
struct RuleOf {
    layer: &'static str,
    version: String,
    settings: usize,
}

pub(crate) fn run(args: Args) -> Outcome {
    let output = &args.output;
    args.force.may_write(output, &args.files)?;
    let mut merged: Option<Sketch> = None;
    for file in &args.files {
        let sketch = of_file(&args, file)?;
        merged = Some(match merged {
            Some(before) => before.merge(&sketch)?,
            None => sketch,
        });
    }
    let sketch = merged.context("no file was given")?;
    write(&sketch, output)?;
    let written = written(&sketch, output);
    output::result(args.format.format, &written, || table(&written), || words(&written))
}

/// The sketch of a file, which may be one already.
fn of_file(args: &Args, file: &Path) -> anyhow::Result<Sketch> {
    let cannot = || format!("cannot make a sketch of {}", file.display());
    match Input::open(file).with_context(cannot)? {
        Input::Sketch(sketch) => Ok(*sketch),
        Input::Recording(reader) => {
            of(*reader, &args.versions, args.latency.wakeup_latency).with_context(cannot)
        }
    }
}

/// The sketch of a recording, under the rules of its releases if no others are asked for.
pub(crate) fn of(reader: Reader, versions: &VersionArgs, late: Option<Nanos>) -> anyhow::Result<Sketch> {
    let versions = versions.over(Versions::of_recording(reader.metadata()));
    Ok(Sketch::of(reader, versions, late)?)
}

/// Writes it under its name once it is complete.
pub(crate) fn write(sketch: &Sketch, path: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot write the sketch {}", path.display());
    let file = sketch.write(NewFile::create(path)?).with_context(cannot)?;
    Ok(file.keep()?)
}

fn written(sketch: &Sketch, output: &Path) -> Written {
    let header = sketch.header();
    let rule = |(layer, version, settings): (&'static str, dwell_policy::version::Version, usize)| RuleOf {
        layer,
        version: version.to_string(),
        settings,
    };
    Written {
        output: output.display().to_string(),
        bytes: std::fs::metadata(output).map_or(0, |there| there.len()),
        layer: sketch.layer().name(),
        recordings: header.recordings,
        episodes: header.episodes,
        recorded_ns: header.span_ns,
        lost_events: header.lost_events,
        lost_at_least: header.lost_at_least,
        cut_short: sketch.cut_short(),
        rules: sketch.rules().map(rule).collect(),
    }
}

/// One line about it, and the next step.
fn words(written: &Written) -> String {
    let rule =
        |rule: &RuleOf| format!("{} settings of the {} rule of {}", rule.settings, rule.layer, rule.version);
    let rules: Vec<String> = written.rules.iter().map(rule).collect();
    output::wrapped(&format!(
        "{}: {} bytes; {} over {} in {}; {}",
        written.output,
        count(written.bytes.into()),
        model::episodes(written.episodes),
        duration(written.recorded_ns as f64),
        dwell_report::number_of(written.recordings.into(), "recording"),
        rules.join(", "),
    )) + "next: dwell fleet FOLDER, with the sketches of all VMs in it\n"
}

/// A row for each rule.
fn table(written: &Written) -> Table {
    Table::of(&written.rules)
        .column(Column::text("output", "output"), |_| written.output.clone())
        .column(Column::number("bytes", "bytes"), |_| written.bytes)
        .column(Column::text("layer", "layer"), |_| written.layer)
        .column(Column::number("recordings", "recordings"), |_| written.recordings)
        .column(Column::number("episodes", "episodes"), |_| written.episodes)
        .column(Column::number("recorded", "recorded_ns"), |_| written.recorded_ns)
        .column(Column::text("rule", "rule"), |rule| rule.layer)
        .column(Column::text("version", "version"), |rule| rule.version.clone())
        .column(Column::number("settings", "settings"), |rule| rule.settings)
        .table()
}
