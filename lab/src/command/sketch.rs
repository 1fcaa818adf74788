//! `dwell-lab sketch`

use anyhow::{Context, ensure};
use dwell_cli::failure::{Answer, Outcome};
use dwell_cli::output::{self, FormatArg};
use dwell_cli::quantity::LatencyArg;
use dwell_fleet::sketch::{OPTIMUM_ERROR, is_edge};
use dwell_fleet::{Fineness, Question, Sketch};
use dwell_policy::{Layer, Nanos};
use dwell_recording::Reader;
use dwell_replay::Versions;
use dwell_report::{Cell, Column, Table, duration};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Compare sketches of recordings with their exact replay
///
/// Makes the sketch of each recording as `dwell sketch` does. Prints the largest error of any setting at several halt
/// costs, and that of the offline optimum with its bound.
#[derive(clap::Args)]
#[command(after_help = "Example: dwell-lab sketch recordings/*.parquet")]
pub(crate) struct SketchArgs {
    /// Recordings (*.parquet)
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Exit with 1 if a bound does not hold
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    latency: LatencyArg,
    #[command(flatten)]
    format: FormatArg,
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

pub(crate) fn run(args: &SketchArgs) -> Outcome {
    let rows = args
        .files
        .iter()
        .map(|file| checked(file, args.latency.wakeup_latency))
        .collect::<anyhow::Result<Vec<Checked>>>()?;
    let holds = rows.iter().all(|row| row.holds);
    output::result(args.format.format, &rows, || table(&rows), || words(&rows))?;
    Ok(if holds || !args.exit_code { Answer::Yes } else { Answer::No })
}

fn table(rows: &[Checked]) -> Table {
    Table::of(rows)
        .column(Column::text("recording", "recording"), |row| row.recording.as_str())
        .column(Column::number("bytes", "bytes"), |row| row.bytes)
        .column(Column::number("episodes", "episodes"), |row| row.episodes)
        .column(Column::number("settings", "settings"), |row| row.settings)
        .column(Column::number("largest error", "largest_error"), |row| Cell::Share(row.largest_error))
        .column(Column::number("of optimum", "optimum_error"), |row| Cell::Share(row.optimum_error))
        .column(Column::number("its bound", "optimum_bound"), |row| Cell::Share(row.optimum_bound))
        .column(Column::text("bounds", "bounds"), |row| if row.holds { "hold" } else { "do not hold" })
        .table()
}

fn words(rows: &[Checked]) -> String {
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
    format!("{}\n{}", output::fitted(&table(rows)), output::wrapped(&text))
}

fn checked(file: &Path, wakeup_latency: Option<Nanos>) -> anyhow::Result<Checked> {
    let open = || Reader::open(file);
    let reader = open()?;
    let versions = Versions::of_recording(reader.metadata());
    let sketch = Sketch::of(reader, versions, wakeup_latency)
        .with_context(|| format!("cannot make a sketch of {}", file.display()))?;
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
            let question =
                Question { wakeup_latency, ..Question::new(layer, version, halt_cost, Fineness::Coarse) };
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
        episodes: sketch.header().episodes,
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
