//! `dwell report`

mod gather;
mod measured;

use crate::command::tune::GoalArgs;
use crate::failure::{Answer, Outcome};
use crate::model::ModelArgs;
use crate::output;
use crate::overwrite::ForceArg;
use anyhow::{Context, bail};
use clap::ValueEnum;
use dwell_recording::newfile;
use dwell_report::page;
use gather::Report;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

/// Write a page about how a machine idles, what it costs and what could be gained
///
/// Writes one self-contained HTML file: charts that can be zoomed, a table of the numbers behind each chart, the
/// provenance of the recordings, and all figures as JSON to download. The page needs no network. --format json gives
/// the same figures. Long recordings are summarised, so the page stays small whatever the number of
/// episodes.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
        dwell report recordings/guest-mix.parquet -o report.html\n  \
        dwell report --before monday.parquet --after tuesday.parquet --halt-cost 20us -o change.html\n  \
        dwell report host.parquet --plan plan.toml -o plan.html\n  \
        dwell report host.parquet guest.parquet --exits exits.txt --measured validate.json -o report.html")]
pub(crate) struct Args {
    /// Recordings in Parquet, written by `dwell record` or `dwell import`
    ///
    /// Recordings with the time of day, as `dwell record` writes them, that overlap are drawn on one time axis: a
    /// guest and its host, for example. Others each start at zero.
    #[arg(value_name = "FILE", required_unless_present_any = ["before", "decisions"])]
    files: Vec<PathBuf>,
    /// Recording from before a change, to compare with --after
    #[arg(long, value_name = "A", requires = "after")]
    before: Option<PathBuf>,
    /// Recording from after the change
    #[arg(long, value_name = "B", requires = "before")]
    after: Option<PathBuf>,
    /// Plan to show, written by `dwell tune --plan`
    ///
    /// Its setting is drawn in place of the recommended one, and its writes and predictions are shown.
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,
    /// Text of `perf script` with kvm:kvm_exit and kvm:kvm_entry
    ///
    /// For the table of VM exits. Can be repeated, for example for before and after.
    #[arg(long, value_name = "TEXT")]
    exits: Vec<PathBuf>,
    /// Predictions and measurements to show, as JSON
    ///
    /// The output of `dwell verify`, `dwell-lab validate` or `dwell iothread bench --predict` with --format json. Can
    /// be repeated.
    #[arg(long, value_name = "JSON")]
    measured: Vec<PathBuf>,
    /// CPU time by cause to show, as JSON
    ///
    /// The output of `dwell why --format json`. Can be repeated.
    #[arg(long, value_name = "JSON")]
    why: Vec<PathBuf>,
    /// Decisions of the controller to draw over time
    ///
    /// The log of `dwell control --log`, or the output of `dwell control --replay` with --format json. Can be repeated.
    #[arg(long, value_name = "JSON")]
    decisions: Vec<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    goal: GoalArgs,
    /// Output format
    ///
    /// Values of JSON are not rounded, and times are in ns.
    #[arg(long, value_enum, default_value_t = Form::Html)]
    format: Form,
    /// File to write [default: stdout; required for a page if stdout is a terminal]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    force: ForceArg,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One self-contained page.
    Html,
    /// Values not rounded, times in ns.
    Json,
}

pub(crate) fn run(args: Args) -> Outcome {
    if args.format == Form::Html && args.output.is_none() && io::stdout().is_terminal() {
        bail!("cannot write a page to a terminal: give a file with -o report.html, or use --format json");
    }
    if let Some(path) = &args.output {
        let texts = [&args.exits, &args.measured, &args.why, &args.decisions].into_iter().flatten();
        let inputs = args.files.iter().chain([&args.before, &args.after, &args.plan].into_iter().flatten());
        args.force.may_write(path, inputs.chain(texts))?;
    }
    let report = Report::gather(&args)?;
    let rendered = match args.format {
        Form::Html => page::page(&title(&report), &json(&report)?).into_bytes(),
        Form::Json => json(&report)?.into_bytes(),
    };
    put(&args, &rendered)
}

/// Writes the report to where it was asked for.
fn put(args: &Args, rendered: &[u8]) -> Outcome {
    match &args.output {
        Some(path) => {
            newfile::write(path, rendered)
                .with_context(|| format!("cannot write the report {}", path.display()))?;
            output::note(&format!(
                "{}: {} bytes",
                path.display(),
                dwell_report::count(rendered.len() as u128)
            ));
        }
        None => output::whole(rendered)?,
    }
    Ok(Answer::Yes)
}

/// The one line of JSON that the page contains and offers as a download, byte for byte.
fn json(report: &Report) -> anyhow::Result<String> {
    Ok(page::embeddable(&serde_json::to_string(report)?) + "\n")
}

fn title(report: &Report) -> String {
    let name = |file: &str| {
        Path::new(file).file_name().map_or(file.to_owned(), |name| name.to_string_lossy().into())
    };
    let names: Vec<String> = report.recordings.iter().map(|recording| name(&recording.file)).collect();
    match names.as_slice() {
        [] => "dwell report".to_owned(),
        [one] => format!("{one} - dwell report"),
        [first, rest @ ..] => format!("{first} and {} more - dwell report", rest.len()),
    }
}
