//! `dwell-lab study`

mod show;

use anyhow::{Context, bail, ensure};
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, FormatArg};
use dwell_cli::progress;
use dwell_cli::quantity::{self, LatencyArg};
use dwell_lab::study::{FITTED, Priced, Subject, Summary, study};
use dwell_policy::version::{NEWEST_KERNEL, Version};
use dwell_policy::{Layer, Nanos};
use dwell_recording::{IdleIncludes, Reader};
use dwell_replay::check::{SelfCheck, self_check};
use dwell_replay::tune::MIN_EPISODES;
use dwell_replay::{RecordingSource, Source, latency};
use dwell_report::duration;
use serde::Serialize;
use show::{long, words};
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
#[command(after_help = "Example: dwell-lab study recordings --halt-cost 5us,20us,50us")]
pub(crate) struct StudyArgs {
    /// Folder with recordings (*.parquet)
    ///
    /// Other files are skipped. Recordings that cannot be read are listed.
    folder: PathBuf,
    /// Costs of one halt and wakeup in CPU time, separated by commas
    ///
    /// From 0 to 10ms. With 0, halts are free.
    #[arg(long, value_name = "TIME,…", default_value = "5us,20us,50us", value_delimiter = ',')]
    #[arg(value_parser = quantity::halt)]
    halt_cost: Vec<Nanos>,
    #[command(flatten)]
    latency: LatencyArg,
    /// Kernel release whose rules and defaults to use, 5.4 to 7.3
    #[arg(long, value_name = "VERSION", value_parser = kernel, default_value_t = NEWEST_KERNEL)]
    kernel: Version,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Studied {
    folder: String,
    kernel: String,
    /// The latency of all halts, if it was given.
    wakeup_latency_ns: Option<u64>,
    /// That of the other end, where none is known.
    upper_latency_ns: u64,
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
}

#[derive(Serialize)]
struct RecordingJson {
    #[serde(flatten)]
    about: About,
    optimum_cost_ns: u128,
    cost_over_optimum: BTreeMap<&'static str, Option<f64>>,
}

/// A recording without its costs.
#[derive(Clone, Serialize)]
struct About {
    recording: String,
    layer: &'static str,
    /// Whether the leader's parameters were chosen on it.
    fitted: bool,
    idle_includes: IdleIncludes,
    /// Whether the wakeup latency of its halts is known.
    latency_known: bool,
    episodes: u64,
    self_check: SelfCheck,
}

#[derive(Serialize)]
struct SummaryJson {
    policy: &'static str,
    in_hindsight: bool,
    geometric_mean: Option<f64>,
    geometric_mean_fitted: Option<f64>,
    geometric_mean_others: Option<f64>,
    /// Of all, with the upper latency in every halt of recordings of which none is known.
    geometric_mean_late: Option<f64>,
    worst: Option<f64>,
    worst_recording: Option<String>,
}

/// A recording with its figures.
struct Found {
    about: About,
    has_time: bool,
    /// Episodes that start before the previous one of the same idler has ended.
    overlapping: u64,
    priced: Vec<Priced>,
    /// At the other end of what the wakeup latency may be, where it is not known.
    late: Option<Vec<Priced>>,
}

pub(crate) fn run(args: StudyArgs) -> Outcome {
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
        wakeup_latency_ns: args.latency.wakeup_latency.map(Nanos::get),
        upper_latency_ns: latency::UPPER.get(),
        notes: notes(&found),
        unreadable,
        prices: (0..).zip(&args.halt_cost).map(|(place, price)| at_price(&found, place, *price)).collect(),
    };
    output::result(args.format.format, &studied, || long(&studied), || words(&studied))
}

/// A kernel release whose rules are known.
fn kernel(text: &str) -> Result<Version, String> {
    quantity::release(Layer::Host, text)
}

/// The recordings of a folder, in the order of their names.
fn recordings(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = read.with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "parquet"));
    paths.sort();
    Ok(paths)
}

fn study_one(path: &Path, version: Version, args: &StudyArgs) -> anyhow::Result<Found> {
    let reader = Reader::open(path)?;
    ensure!(reader.episodes() > 0, "cannot use recording {}: it has no episodes", path.display());
    ensure!(
        !reader.metadata().has_least_lengths(),
        "cannot compare policies: the recording has only lower bounds of idle times"
    );
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let (layer, idle_includes) = (reader.metadata().layer.name(), reader.metadata().idle_includes);
    let has_time = reader.time_recorded().is_some();
    let source = RecordingSource::new(reader, false).with_latency(args.latency.wakeup_latency, None);
    let self_check = self_check(&source)?;
    let source = source.with_poll_pass(self_check.poll_pass());
    let priced = |source: &RecordingSource| {
        let bar = progress::episodes(source.episodes(), "replaying");
        let priced = study(source, version, &Subject::all(), &args.halt_cost, &|episodes| bar.inc(episodes));
        bar.finish_and_clear();
        priced
    };
    let late = match source.knows_latency()? {
        true => None,
        false => Some(priced(&source.at_latency(source.upper_latency()?))?),
    };
    let about = About {
        fitted: FITTED.contains(&name.as_str()),
        recording: name,
        layer,
        idle_includes,
        latency_known: late.is_none(),
        episodes: source.episodes(),
        self_check,
    };
    let priced = priced(&source)?;
    Ok(Found { about, has_time, overlapping: source.overlapping()?, priced, late })
}

fn split(found: &[Found]) -> String {
    let fitted = found.iter().filter(|one| one.about.fitted).count();
    format!(
        "*: the parameters of leader were chosen on these, {fitted} of the {} recordings: every other bundled recording, \
         in the order of their names",
        found.len()
    )
}

fn notes(found: &[Found]) -> Vec<String> {
    let mut notes = vec![];
    let late = found.iter().filter(|one| one.about.idle_includes == IdleIncludes::Wake).count();
    if late > 0 {
        notes.push(format!(
            "idle times of recordings with † ({late}) include the wakeup latency of the recorded halts; --wakeup-latency \
             takes it out"
        ));
    }
    let unknown = found.iter().filter(|one| one.late.is_some()).count();
    if unknown > 0 {
        notes.push(format!(
            "of {unknown} of {} the wakeup latency is not known, and the kernels' rules learn from idle time and latency \
             together: figures are without it, and the row `with {upper} of latency or what there is` has the means with so much in every halt of these, or as \
             much as 99 in 100 lengths that include it have",
            dwell_report::number_of(found.len() as u128, "recording"),
            upper = duration(latency::UPPER.get() as f64),
        ));
    }
    let names = |wanted: &dyn Fn(&Found) -> bool| {
        found
            .iter()
            .filter(|one| wanted(one))
            .map(|one| one.about.recording.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let few = names(&|one| one.about.episodes < MIN_EPISODES);
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
    let of_each = |one: &Found| {
        let overlaps = (one.overlapping > 0).then(|| {
            format!(
                "{} of {} start before the previous one of the same idler has ended: figures cannot be trusted",
                dwell_report::count(one.overlapping.into()),
                dwell_report::number_of(one.about.episodes.into(), "episode"),
            )
        });
        let both = overlaps.into_iter().chain(one.about.self_check.note());
        both.map(|note| format!("{}: {note}", one.about.recording)).collect::<Vec<_>>()
    };
    notes.extend(found.iter().flat_map(of_each));
    notes
}

fn at_price(found: &[Found], place: usize, price: Nanos) -> AtPrice {
    let ratio = |one: &Found, subject: Subject| one.priced[place].ratio(subject);
    let recording = |one: &Found| RecordingJson {
        about: one.about.clone(),
        optimum_cost_ns: one.priced[place].optimum_ns,
        cost_over_optimum: Subject::all()
            .into_iter()
            .map(|subject| (subject.name(), ratio(one, subject)))
            .collect(),
    };
    let summary = |subject: Subject| {
        let of = |wanted: &dyn Fn(&&Found) -> bool| {
            Summary::of(found.iter().filter(wanted).filter_map(|one| ratio(one, subject)))
        };
        let mean = |summary: Option<Summary>| summary.map(|summary| summary.geometric_mean);
        let all = of(&|_| true);
        let late = |one: &Found| one.late.as_ref().unwrap_or(&one.priced)[place].ratio(subject);
        let is_worst = |one: &&Found| ratio(one, subject) == all.map(|all| all.worst);
        SummaryJson {
            policy: subject.name(),
            in_hindsight: subject.in_hindsight(),
            geometric_mean: mean(all),
            geometric_mean_fitted: mean(of(&|one| one.about.fitted)),
            geometric_mean_others: mean(of(&|one| !one.about.fitted)),
            geometric_mean_late: mean(Summary::of(found.iter().filter_map(late))),
            worst: all.map(|all| all.worst),
            worst_recording: all
                .and_then(|_| found.iter().find(is_worst))
                .map(|one| one.about.recording.clone()),
        }
    };
    AtPrice {
        halt_cost_ns: price.get(),
        recordings: found.iter().map(recording).collect(),
        summary: Subject::all().into_iter().map(summary).collect(),
    }
}
