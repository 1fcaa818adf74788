//! `dwell study`

use crate::check;
use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::{model, progress, quantity, settings};
use anyhow::{Context, bail};
use dwell_policy::version::{NEWEST_KERNEL, Version};
use dwell_policy::{Layer, Nanos};
use dwell_recording::IdleIncludes;
use dwell_replay::check::SelfCheck;
use dwell_replay::study::{FITTED, Priced, Subject, Summary, kept, study};
use dwell_replay::tune::MIN_EPISODES;
use dwell_replay::{RecordingSource, Source};
use dwell_report::{Cell, Column, Table, duration};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Compare policies over all recordings in a folder
///
/// For each halt cost, prints what every policy costs on every recording, divided by the cost of the offline optimum,
/// with the geometric mean and the worst recording. `best fixed` and `best kvm` are the fixed window and the setting
/// of KVM's rule that are best for a recording in hindsight. The parameters of `leader` were chosen on some of the
/// bundled recordings, which are marked with a star; means are also given for these and for the others separately.
#[derive(clap::Args)]
#[command(after_help = "Example: dwell study recordings --halt-cost 5us,20us,50us")]
pub(crate) struct Args {
    /// Folder with recordings (*.parquet)
    ///
    /// Other files are skipped. Recordings that cannot be read are listed.
    folder: PathBuf,
    /// Costs of one halt and wakeup in CPU time, separated by commas
    ///
    /// From 0; a bare number is nanoseconds. With 0, halts are free.
    #[arg(long, value_name = "TIME,…", default_value = "5us,20us,50us", value_delimiter = ',')]
    #[arg(value_parser = quantity::duration)]
    halt_cost: Vec<Nanos>,
    /// Wakeup latency to subtract from idle times that include it
    ///
    /// From 0; with 0, idle times are used as recorded.
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = quantity::duration)]
    recorded_latency: Nanos,
    /// Kernel release whose rules and defaults to use, 5.4 to 7.3
    #[arg(long, value_name = "VERSION", hide_possible_values = true, value_parser = crate::suggest::kernels(settings::kernel), default_value_t = NEWEST_KERNEL)]
    kernel: Version,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Studied {
    folder: String,
    kernel: String,
    recorded_latency_ns: u64,
    split: String,
    notes: Vec<String>,
    unreadable: Vec<Unreadable>,
    prices: Vec<AtPrice>,
}

#[derive(Serialize)]
struct Unreadable {
    file: String,
    why: String,
}

#[derive(Serialize)]
struct AtPrice {
    halt_cost_ns: u64,
    recordings: Vec<RecordingJson>,
    summary: Vec<SummaryJson>,
    /// The same of the geometric means.
    outer_keeps: Option<f64>,
}

#[derive(Serialize)]
struct RecordingJson {
    recording: String,
    layer: &'static str,
    /// Whether the leader's parameters were chosen on it.
    fitted: bool,
    idle_includes: IdleIncludes,
    episodes: u64,
    self_check: SelfCheck,
    optimum_cost_ns: u128,
    cost_over_optimum: BTreeMap<&'static str, Option<f64>>,
    /// The share of the leader's gain over KVM's default that the outer controller keeps, with one decision per second.
    outer_keeps: Option<f64>,
}

#[derive(Serialize)]
struct SummaryJson {
    policy: &'static str,
    in_hindsight: bool,
    geometric_mean: Option<f64>,
    geometric_mean_fitted: Option<f64>,
    geometric_mean_others: Option<f64>,
    worst: Option<f64>,
    worst_recording: Option<String>,
}

/// A recording with its figures.
struct Found {
    has_time: bool,
    name: String,
    layer: Layer,
    fitted: bool,
    idle_includes: IdleIncludes,
    episodes: u64,
    self_check: SelfCheck,
    priced: Vec<Priced>,
}

pub(crate) fn run(args: Args) -> Outcome {
    let version = args.kernel;
    let (mut found, mut unreadable) = (vec![], vec![]);
    for path in recordings(&args.folder)? {
        match study_one(&path, version, &args) {
            Ok(one) => found.push(one),
            Err(error) => {
                unreadable.push(Unreadable { file: path.display().to_string(), why: format!("{error:#}") })
            }
        }
    }
    let folder = args.folder.display();
    match unreadable.as_slice() {
        [] if found.is_empty() => bail!("cannot study {folder}: it has no recording (*.parquet)"),
        [Unreadable { why, .. }] if found.is_empty() => bail!("cannot study {folder}: {why}"),
        _ => (),
    }
    for Unreadable { file, why } in &unreadable {
        // Most reasons name the file.
        let name = if why.contains(file.as_str()) { String::new() } else { format!("{file}: ") };
        output::note(&format!("left out: {name}{why}"));
    }
    if found.is_empty() {
        bail!("cannot study {folder}: none of its {} recordings can be used", unreadable.len());
    }
    let studied = Studied {
        folder: args.folder.display().to_string(),
        kernel: version.to_string(),
        split: split(&found),
        recorded_latency_ns: args.recorded_latency.get(),
        notes: notes(&found, args.recorded_latency),
        unreadable,
        prices: (0..).zip(&args.halt_cost).map(|(place, price)| at_price(&found, place, *price)).collect(),
    };
    match args.format.format {
        Format::Json => output::json(&studied)?,
        Format::Csv => output::csv(&long(&studied))?,
        Format::Table => print(&studied)?,
    }
    Ok(Answer::Yes)
}

/// The recordings of a folder, in the order of their names.
fn recordings(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let paths: Result<Vec<PathBuf>, _> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.with_context(|| format!("cannot read the folder {}", folder.display()))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    paths.sort();
    Ok(paths)
}

fn study_one(path: &Path, version: Version, args: &Args) -> anyhow::Result<Found> {
    let reader = model::open(path)?;
    model::refuse_least_lengths(reader.metadata())?;
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let (layer, idle_includes) = (reader.metadata().layer, reader.metadata().idle_includes);
    let has_time = reader.time_recorded().is_some();
    let (source, self_check) = check::check(RecordingSource::new(reader, false))?;
    let source = source.without_latency(args.recorded_latency);
    let bar = progress::episodes(source.episodes(), "replaying");
    let priced = study(&source, version, &Subject::all(), &args.halt_cost, &|episodes| bar.inc(episodes));
    bar.finish_and_clear();
    let fitted = FITTED.contains(&name.as_str());
    Ok(Found {
        has_time,
        name,
        layer,
        fitted,
        idle_includes,
        episodes: source.episodes(),
        self_check,
        priced: priced?,
    })
}

fn split(found: &[Found]) -> String {
    let fitted = found.iter().filter(|one| one.fitted).count();
    format!(
        "*: the parameters of leader were chosen on these, {fitted} of the {} recordings: every other bundled recording, \
         in the order of their names",
        found.len()
    )
}

fn notes(found: &[Found], recorded_latency: Nanos) -> Vec<String> {
    let late = found.iter().filter(|one| one.idle_includes == IdleIncludes::Wake).count();
    let said = if recorded_latency > Nanos::ZERO {
        format!("{} of it was subtracted", duration(recorded_latency.get() as f64))
    } else {
        "they are used as recorded, the same for every policy and the optimum; --recorded-latency subtracts it".to_owned()
    };
    let of_late = format!(
        "idle times of recordings with † ({late}) include the wakeup latency of the recorded halts: {said}"
    );
    let short = "KVM's rule under the controller starts at its default: the time to the first decision is in the figures, and is \
                 a large part of a recording of a few seconds";
    let mut notes = if late > 0 { vec![of_late] } else { vec![] };
    notes.push(short.to_owned());
    let names = |wanted: &dyn Fn(&Found) -> bool| {
        found.iter().filter(|one| wanted(one)).map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let few = names(&|one| one.episodes < MIN_EPISODES);
    if !few.is_empty() {
        notes.push(format!(
            "recordings with fewer than {MIN_EPISODES} episodes, too few to compare policies: {few}"
        ));
    }
    let timeless = names(&|one| !one.has_time);
    if !timeless.is_empty() {
        notes.push(format!(
            "recordings that do not contain the time recorded, replayed from the first episode to the last: {timeless}"
        ));
    }
    let compared = |one: &Found| check::note(&one.self_check).map(|note| format!("{}: {note}", one.name));
    notes.extend(found.iter().filter_map(compared));
    notes
}

fn at_price(found: &[Found], place: usize, price: Nanos) -> AtPrice {
    let ratio = |one: &Found, subject: Subject| one.priced[place].ratio(subject);
    let recording = |one: &Found| RecordingJson {
        recording: one.name.clone(),
        layer: one.layer.name(),
        fitted: one.fitted,
        idle_includes: one.idle_includes,
        episodes: one.episodes,
        self_check: one.self_check.clone(),
        optimum_cost_ns: one.priced[place].optimum_ns,
        cost_over_optimum: Subject::all()
            .into_iter()
            .map(|subject| (subject.name(), ratio(one, subject)))
            .collect(),
        outer_keeps: outer_keeps(|subject| ratio(one, subject)),
    };
    let summary = |subject: Subject| {
        let of = |wanted: &dyn Fn(&&Found) -> bool| {
            Summary::of(found.iter().filter(wanted).filter_map(|one| ratio(one, subject)))
        };
        let mean = |summary: Option<Summary>| summary.map(|summary| summary.geometric_mean);
        let all = of(&|_| true);
        let is_worst = |one: &&Found| ratio(one, subject) == all.map(|all| all.worst);
        SummaryJson {
            policy: subject.name(),
            in_hindsight: subject.in_hindsight(),
            geometric_mean: mean(all),
            geometric_mean_fitted: mean(of(&|one| one.fitted)),
            geometric_mean_others: mean(of(&|one| !one.fitted)),
            worst: all.map(|all| all.worst),
            worst_recording: all.and_then(|_| found.iter().find(is_worst)).map(|one| one.name.clone()),
        }
    };
    let mean = |subject| Summary::of(found.iter().filter_map(|one| ratio(one, subject)));
    AtPrice {
        halt_cost_ns: price.get(),
        recordings: found.iter().map(recording).collect(),
        summary: Subject::all().into_iter().map(summary).collect(),
        outer_keeps: outer_keeps(|subject| mean(subject).map(|summary| summary.geometric_mean)),
    }
}

fn outer_keeps(ratio: impl Fn(Subject) -> Option<f64>) -> Option<f64> {
    kept(ratio(Subject::Kvm)?, ratio(Subject::LEADER)?, ratio(Subject::Outer)?)
}

const MEAN: &str = "geometric mean";

/// Recordings by policies, and below them the means and the worst.
fn table(at: &AtPrice) -> Table {
    let subjects = Subject::all();
    // Today's rules, the leader and the best in hindsight are the most important columns.
    let rank = |name: &str| match name {
        "kvm" | "haltpoll" | "leader" | "best fixed" => 0,
        "best kvm" | "savings" => 1,
        "never" | "ski rental" => 2,
        _ => 3,
    };
    let policies = subjects
        .iter()
        .map(|subject| Column::number(subject.name(), subject.name()).rank(rank(subject.name())));
    let head = [Column::text("recording", "recording"), Column::number("episodes", "episodes").rank(9)];
    let last = [Column::number("kept by 1s", "outer_keeps").rank(4)];
    let mut table = Table::new(head.into_iter().chain(policies).chain(last));
    for one in &at.recordings {
        let late = if one.idle_includes == IdleIncludes::Wake { "†" } else { "" };
        // No blank: a name and its marks stay on one line.
        let name = format!("{}{}{late}", one.recording, if one.fitted { "*" } else { "" });
        let ratios = subjects.iter().map(|subject| Cell::ratio(one.cost_over_optimum[subject.name()]));
        let first = [Cell::Text(name), Cell::Count(one.episodes.into())];
        table.push(first.into_iter().chain(ratios).chain([Cell::share(one.outer_keeps)]));
    }
    let mut row = |name: &str, value: &dyn Fn(&SummaryJson) -> Cell| {
        let cells = at.summary.iter().map(value);
        let last = if name == MEAN { Cell::share(at.outer_keeps) } else { Cell::Text(String::new()) };
        let first = [Cell::Text(name.to_owned()), Cell::Text(String::new())];
        table.push(first.into_iter().chain(cells).chain([last]));
    };
    // Means differ in their fourth digit.
    let fine = |mean: Option<f64>| mean.map_or(Cell::Missing, |mean| Cell::Text(format!("{mean:.4}")));
    row(MEAN, &|of| fine(of.geometric_mean));
    if at.recordings.iter().any(|one| one.fitted) {
        row("  of those with *", &|of| fine(of.geometric_mean_fitted));
        row("  of the others", &|of| fine(of.geometric_mean_others));
    }
    row("worst", &|of| Cell::ratio(of.worst));
    table
}

/// A row for each price, recording and policy.
fn long(studied: &Studied) -> Table {
    let mut table = Table::new([
        Column::number("halt cost", "halt_cost_ns"),
        Column::text("recording", "recording"),
        Column::text("layer", "layer"),
        Column::text("fitted", "fitted"),
        Column::number("episodes", "episodes"),
        Column::text("policy", "policy"),
        Column::number("/optimum", "cost_over_optimum"),
    ]);
    for at in &studied.prices {
        for one in &at.recordings {
            for subject in Subject::all() {
                table.push([
                    Cell::Count(at.halt_cost_ns.into()),
                    Cell::Text(one.recording.clone()),
                    Cell::Text(one.layer.to_owned()),
                    Cell::Text(one.fitted.to_string()),
                    Cell::Count(one.episodes.into()),
                    Cell::Text(subject.name().to_owned()),
                    Cell::ratio(one.cost_over_optimum[subject.name()]),
                ]);
            }
        }
    }
    table
}

fn print(studied: &Studied) -> anyhow::Result<()> {
    let episodes: u64 = studied.prices[0].recordings.iter().map(|one| one.episodes).sum();
    let head = format!(
        "{}: {} of {}, rules of Linux {}; cost / optimum",
        studied.folder,
        model::episodes(episodes),
        dwell_report::number_of(studied.prices[0].recordings.len() as u128, "recording"),
        studied.kernel,
    );
    let any_fitted = studied.prices[0].recordings.iter().any(|one| one.fitted);
    let split = if any_fitted { output::wrapped(&studied.split) } else { String::new() };
    output::text(&(output::wrapped(&head) + &split))?;
    for at in &studied.prices {
        let price = duration(at.halt_cost_ns as f64);
        output::text(&format!("\nHalt cost {price}:\n\n{}", output::fitted(&table(at))))?;
    }
    for note in &studied.notes {
        output::text(&format!("\n{}", output::wrapped(&format!("note: {note}"))))?;
    }
    Ok(())
}
