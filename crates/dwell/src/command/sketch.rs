//! `dwell sketch`

use crate::failure::{Answer, Outcome};
use crate::model::{self, LatencyArg};
use crate::output::{self, Format, FormatArg};
use crate::overwrite::ForceArg;
use crate::settings::VersionArgs;
use anyhow::{Context, ensure};
use dwell_fleet::sketch::{OPTIMUM_ERROR, is_edge};
use dwell_fleet::{Fineness, Input, Question, Sketch};
use dwell_policy::{Layer, Nanos};
use dwell_recording::{NewFile, Reader};
use dwell_replay::Versions;
use dwell_report::{Cell, Column, Table, count, duration};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Make a sketch of recordings: what every setting of a grid costs, in kilobytes
///
/// A sketch has, for each of several hundred settings and for the setting in force, the halts and the polling
/// CPU that the exact replay of the recording gives. `dwell fleet` and the Python package read it like the
/// recording, at any halt cost: the costs are the same to the last digit. It also has the idle times in bins,
/// alone and by the idle time before, the time recorded, losses, and the metadata that classes come from. It
/// has no episodes: other commands need the recording.
///
/// Several files, recordings or sketches of one layer, are merged into one sketch: sums of the files, each
/// replayed by itself.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell sketch dwell-host.parquet -o vm7.parquet\n  \
                        dwell sketch hour*.parquet -o day.parquet\n  dwell sketch --check recordings/*.parquet")]
pub(crate) struct Args {
    /// Recordings or sketches (*.parquet)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Sketch to write
    #[arg(long, short, value_name = "FILE", required_unless_present = "check")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArg,
    /// Compare the sketch of each recording with its exact replay
    ///
    /// Prints the largest error of any setting at several halt costs, and that of the offline optimum with
    /// its bound. With --exit-code the exit code is 1 if a bound does not hold.
    #[arg(long, conflicts_with = "output")]
    check: bool,
    /// Exit with 1 if a bound does not hold
    #[arg(long, requires = "check")]
    exit_code: bool,
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
    if args.check {
        return check(&args);
    }
    let output = args.output.as_deref().context("no --output was given")?;
    args.force.may_write(output)?;
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
    match args.format.format {
        Format::Json => output::json(&written)?,
        Format::Csv => output::csv(&table(&written))?,
        Format::Table => output::text(&words(&written))?,
    }
    Ok(Answer::Yes)
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
    let mut file = sketch.write(NewFile::create(path)?).with_context(cannot)?;
    file.flush().with_context(cannot)?;
    Ok(file.keep()?)
}

fn written(sketch: &Sketch, output: &Path) -> Written {
    let (lost_events, lost_at_least) = sketch.lost();
    let rule = |(layer, version, settings): (&'static str, dwell_policy::version::Version, usize)| RuleOf {
        layer,
        version: version.to_string(),
        settings,
    };
    Written {
        output: output.display().to_string(),
        bytes: std::fs::metadata(output).map_or(0, |there| there.len()),
        layer: sketch.layer().name(),
        recordings: sketch.recordings(),
        episodes: sketch.episodes(),
        recorded_ns: sketch.span_ns(),
        lost_events,
        lost_at_least,
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
    let mut table = Table::new([
        Column::text("output", "output"),
        Column::number("bytes", "bytes"),
        Column::text("layer", "layer"),
        Column::number("recordings", "recordings"),
        Column::number("episodes", "episodes"),
        Column::number("recorded", "recorded_ns"),
        Column::text("rule", "rule"),
        Column::text("version", "version"),
        Column::number("settings", "settings"),
    ]);
    for rule in &written.rules {
        table.push([
            Cell::Text(written.output.clone()),
            Cell::Count(written.bytes.into()),
            Cell::Text(written.layer.to_owned()),
            Cell::Count(written.recordings.into()),
            Cell::Count(written.episodes.into()),
            Cell::Count(written.recorded_ns.into()),
            Cell::Text(rule.layer.to_owned()),
            Cell::Text(rule.version.clone()),
            Cell::Count(rule.settings as u128),
        ]);
    }
    table
}

/// The halt costs that are checked: preferred numbers, and one within a bin.
const HALT_COSTS: [Nanos; 5] = [Nanos(5_000), Nanos(20_000), Nanos(33_333), Nanos(50_000), Nanos(1_000_000)];

/// A recording beside its sketch.
#[derive(Serialize)]
struct Checked {
    recording: String,
    bytes: usize,
    episodes: u64,
    settings: usize,
    /// The largest difference of the cost of a setting to its exact replay, as a share, at any of the halt
    /// costs; the bound is 0.
    largest_error: f64,
    /// The same of the optimum; the bound is 0 at preferred numbers.
    optimum_error: f64,
    optimum_bound: f64,
    holds: bool,
}

fn check(args: &Args) -> Outcome {
    let rows = args.files.iter().map(|file| checked(args, file)).collect::<anyhow::Result<Vec<Checked>>>()?;
    let holds = rows.iter().all(|row| row.holds);
    let mut table = Table::new([
        Column::text("recording", "recording"),
        Column::number("bytes", "bytes"),
        Column::number("episodes", "episodes"),
        Column::number("settings", "settings"),
        Column::number("largest error", "largest_error"),
        Column::number("of optimum", "optimum_error"),
        Column::number("its bound", "optimum_bound"),
        Column::text("bounds", "bounds"),
    ]);
    for row in &rows {
        let holds = if row.holds { "hold" } else { "do not hold" };
        table.push([
            Cell::Text(row.recording.clone()),
            Cell::Count(row.bytes as u128),
            Cell::Count(row.episodes.into()),
            Cell::Count(row.settings as u128),
            Cell::share(Some(row.largest_error)),
            Cell::share(Some(row.optimum_error)),
            Cell::share(Some(row.optimum_bound)),
            Cell::Text(holds.to_owned()),
        ]);
    }
    match args.format.format {
        Format::Json => output::json(&rows)?,
        Format::Csv => output::csv(&table)?,
        Format::Table => {
            let most = |of: fn(&Checked) -> f64| rows.iter().map(of).fold(0.0, f64::max);
            let costs: Vec<String> = HALT_COSTS.iter().map(|cost| duration(cost.get() as f64)).collect();
            let text = format!(
                "largest error over {} and halt costs of {}: {} for the settings (bound 0), {:.3} % for the optimum (bound 0 at \
                 preferred numbers, else {:.0} %)",
                dwell_report::number_of(rows.len() as u128, "recording"),
                costs.join(", "),
                match most(|row| row.largest_error) {
                    0.0 => "0".to_owned(),
                    error => format!("{:.3} %", error * 100.0),
                },
                most(|row| row.optimum_error) * 100.0,
                OPTIMUM_ERROR * 100.0,
            );
            output::text(&format!("{}\n{}", output::fitted(&table), output::wrapped(&text)))?;
        }
    }
    Ok(if holds || !args.exit_code { Answer::Yes } else { Answer::No })
}

fn checked(args: &Args, file: &Path) -> anyhow::Result<Checked> {
    let open = || Reader::open(file);
    let sketch = of(open()?, &args.versions, args.latency.wakeup_latency)?;
    let bytes = sketch.write(vec![])?;
    let size = bytes.len();
    let sketch = Sketch::from_bytes(&file.display().to_string(), bytes)?;
    let (mut largest, mut optimum_error, mut optimum_bound, mut holds) = (0.0f64, 0.0f64, 0.0f64, true);
    let mut settings = 0;
    for halt_cost in HALT_COSTS {
        settings = 0;
        for (layer, version, number) in sketch.rules() {
            settings += number;
            let layer = Layer::from_name(layer).context("a layer without a name")?;
            let question = Question::new(layer, version, halt_cost, Fineness::Coarse)
                .with_latency(args.latency.wakeup_latency);
            let (exact, found) = (question.costs(open()?)?, question.costs(sketch.clone())?);
            let pairs = || {
                let today = std::iter::once((exact.today_ns, found.today_ns));
                exact.cost_ns.iter().copied().zip(found.cost_ns.iter().copied()).chain(today)
            };
            largest = pairs().map(|(exact, found)| error(exact, found).abs()).fold(largest, f64::max);
            holds &= pairs().all(|(exact, found)| exact == found);
            let (optimum, bound) = sketch.optimum_ns(halt_cost);
            let over = optimum.checked_sub(exact.optimum_ns.into());
            holds &= over.is_some_and(|over| over <= bound);
            let share = bound as f64 / exact.optimum_ns.max(1) as f64;
            holds &= share <= OPTIMUM_ERROR && (bound == 0 || !is_edge(halt_cost));
            optimum_error = optimum_error.max(error(exact.optimum_ns, found.optimum_ns).abs());
            optimum_bound = optimum_bound.max(share);
        }
    }
    ensure!(settings > 0, "{}: no rule can be replayed for its layer", file.display());
    Ok(Checked {
        recording: file.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
        bytes: size,
        episodes: sketch.episodes(),
        settings,
        largest_error: largest,
        optimum_error,
        optimum_bound,
        holds,
    })
}

/// By how much a number is too high, as a share.
fn error(exact: u64, found: u64) -> f64 {
    if exact == found { 0.0 } else { found as f64 / exact.max(1) as f64 - 1.0 }
}
