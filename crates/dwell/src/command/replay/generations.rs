//! `dwell replay --generations`: QEMU's generations of polling, compared.
//!
//! The rules of 7.2 (one polling time for each thread), 10.0 (one for each handler) and 11.1 (block times smoothed by
//! poll-weight), each with its defaults and with the setting in force or given; for 11.1 also the smoothed block time
//! for each poll-weight.

mod show;

use super::Args;
use crate::failure::{Answer, Outcome};
use crate::model;
use crate::output::{self, Format};
use crate::{progress, settings};
use anyhow::Context;
use dwell_policy::iothread::{Property, Release};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Metadata;
use dwell_replay::advice::{Goal, Role, Worth};
use dwell_replay::smooth::{self, Smoothed};
use dwell_replay::tune::{Task, tune};
use dwell_replay::{Counts, Pricing, RecordingSource, Row, Rule, Source, WakeupLatency, grid};
use serde::Serialize;
use show::{print, table, upgrade};
use std::path::Path;

/// The first release of each generation that distributions carry.
const RELEASES: [Version; 3] = [Version::new(7, 2), Version::new(10, 0), Version::new(11, 1)];

#[derive(Serialize)]
struct Compared {
    file: String,
    episodes: u64,
    idlers: usize,
    span_ns: u64,
    halt_cost_ns: u64,
    wakeup_latency_ns: f64,
    optimum_cost_ns: u128,
    results: Vec<Result>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    best: Vec<Result>,
    #[serde(skip_serializing_if = "Option::is_none")]
    best_span_ns: Option<u64>,
    smoothed: Vec<Weight>,
    upgrade: String,
    notes: Vec<String>,
}

/// A setting under the rule of one QEMU.
#[derive(Serialize)]
struct Result {
    qemu: String,
    rule: &'static str,
    which: &'static str,
    #[serde(flatten)]
    row: Row,
}

#[derive(Serialize)]
struct Weight {
    weight: i64,
    mean_handler_ns: f64,
    forgotten_share: f64,
    mean_window_ns: f64,
}

pub(super) fn run(args: &Args) -> Outcome {
    let file = &args.file;
    let reader = model::open(file)?;
    let metadata = reader.metadata().clone();
    let source = RecordingSource::new(reader, true).with_latency(args.model.wakeup_latency, None);
    let chosen = chosen(args, &metadata)?;
    let compared = compare(args, file, &metadata, &source, &chosen)?;
    match args.format.format {
        Format::Json => output::json(&compared)?,
        Format::Csv => output::csv(&table(&compared.results))?,
        Format::Table => print(&compared)?,
    }
    Ok(Answer::Yes)
}

/// The setting to compare with the defaults, in each generation; `None` where none is known.
fn chosen(args: &Args, metadata: &Metadata) -> anyhow::Result<Vec<Option<Setting>>> {
    let of = |version: Version| -> anyhow::Result<Option<Setting>> {
        if args.set.is_empty() {
            return Ok(settings::recorded(Layer::Iothread, version, metadata));
        }
        // poll-weight is used only by generations that have it.
        let weight = Property::PollWeight.name();
        let known =
            |item: &str| version.at_least(11, 1) || !item.replace('_', "-").trim().starts_with(weight);
        let asked = args.set.iter().flat_map(|text| text.split(',')).filter(|item| known(item));
        let asked: Vec<String> = asked.map(str::to_owned).collect();
        let defaults = Setting::defaults(Layer::Iothread, version);
        let groups = settings::groups(&asked, &[defaults])?;
        anyhow::ensure!(
            groups.len() <= 1,
            "--set: a parameter is given twice; --generations takes one setting"
        );
        Ok(Some(groups.into_iter().next().map_or(defaults, |group| group[0])))
    };
    RELEASES.into_iter().map(of).collect()
}

fn compare(
    args: &Args,
    file: &Path,
    metadata: &Metadata,
    source: &RecordingSource,
    chosen: &[Option<Setting>],
) -> anyhow::Result<Compared> {
    let mut which = vec![];
    for (version, chosen) in RELEASES.into_iter().zip(chosen) {
        let defaults = Setting::defaults(Layer::Iothread, version);
        which.push(("defaults", defaults));
        which.extend(chosen.filter(|chosen| *chosen != defaults).map(|chosen| ("asked", chosen)));
    }
    let asked_name = if args.set.is_empty() { "in force" } else { "as asked" };
    let rules: Vec<Rule> = which.iter().map(|(_, setting)| Rule::Layer(*setting)).collect();
    let replayed = progress::replay(source, &rules, halt_cost(args))?;
    let wakeup_latency = wakeup_latency(args, source)?;
    let pricing = Pricing {
        halt_cost: halt_cost(args),
        wakeup_latency: &wakeup_latency,
        span_ns: replayed.span.ns(),
        optimum_ns: replayed.optimum.cost_ns(halt_cost(args)),
    };
    let results: Vec<Result> = which
        .iter()
        .zip(&replayed.counts)
        .map(|((which, setting), counts)| {
            let which = if *which == "asked" { asked_name } else { which };
            result(setting, which, pricing.row(&Rule::Layer(*setting), counts))
        })
        .collect();
    let mut notes = vec![];
    if !source.knows_latency()? {
        let upper = source.upper_latency()?;
        let late = progress::replay(&source.at_latency(upper), &rules, halt_cost(args))?;
        let share = |counts: &Counts| pricing.price(counts).cost_share();
        let costs = results.iter().zip(replayed.counts.iter().zip(&late.counts));
        notes.push(model::unknown_latency(
            upper,
            costs.map(|(result, (without, with))| {
                (format!("{} with {}", result.qemu, result.which), share(without), share(with))
            }),
        ));
    }
    let (best, best_span_ns) = if args.best {
        best(file, metadata, source, halt_cost(args), &wakeup_latency)?
    } else {
        (vec![], None)
    };
    let newest = chosen.last().copied().flatten();
    let weighted = newest.unwrap_or_else(|| Setting::defaults(Layer::Iothread, RELEASES[2]));
    let smoothed = smooth::by_weight(source, &weighted)?.iter().map(weight).collect();
    Ok(Compared {
        file: file.display().to_string(),
        episodes: source.episodes(),
        idlers: source.idlers(),
        span_ns: pricing.span_ns,
        halt_cost_ns: halt_cost(args).get(),
        wakeup_latency_ns: wakeup_latency.mean_ns(),
        optimum_cost_ns: pricing.optimum_ns,
        upgrade: upgrade(&results, metadata, source.handlers()),
        results,
        best,
        best_span_ns,
        smoothed,
        notes: notes.into_iter().chain(self::notes(metadata, source)).collect(),
    })
}

/// The cost of a halt, which is the same for all generations.
fn halt_cost(args: &Args) -> Nanos {
    args.model.halt_cost.unwrap_or(model::HALT_COST)
}

/// The latency of a halt: as given, else as recorded, else the halt cost.
fn wakeup_latency(args: &Args, source: &RecordingSource) -> anyhow::Result<WakeupLatency> {
    if let Some(given) = args.model.wakeup_latency {
        return Ok(WakeupLatency::constant(given));
    }
    let recorded = WakeupLatency::of_recording(source.reader())?;
    Ok(recorded.unwrap_or_else(|| WakeupLatency::constant(halt_cost(args))))
}

fn result(setting: &Setting, which: &'static str, row: Row) -> Result {
    let release = Release::new(setting.version());
    let rule = release.map_or("", |release| release.revision().name());
    Result { qemu: setting.version().to_string(), rule, which, row }
}

/// The best setting of each generation, by its figures on the half that it was not chosen on.
fn best(
    file: &Path,
    metadata: &Metadata,
    source: &RecordingSource,
    halt_cost: Nanos,
    wakeup_latency: &WakeupLatency,
) -> anyhow::Result<(Vec<Result>, Option<u64>)> {
    model::refuse_least_lengths(metadata)?;
    let mut all = vec![];
    let mut span_ns = 0;
    for version in RELEASES {
        let candidates = grid::settings(Layer::Iothread, version);
        let bar = progress::episodes(source.episodes() * 2, "tuning");
        let advice = tune(&Task {
            source,
            present: Setting::defaults(Layer::Iothread, version),
            candidates: &candidates,
            goal: Goal::LeastCost,
            halt_cost,
            wakeup_latency,
            worth_a_change: Worth::default(),
            decided: None,
            progress: &|episodes| bar.inc(episodes),
        });
        bar.finish_and_clear();
        let advice = advice.with_context(|| file.display().to_string())?;
        span_ns = advice.judged_span_ns;
        // The candidate of the first half, whether its gain over the defaults is worth a change or not.
        let row =
            [Role::Recommended, Role::Rejected, Role::Present].iter().find_map(|role| advice.row(*role));
        if let (Some(setting), Some(row)) = (advice.chosen, row) {
            all.push(result(&setting, "best", row.row.clone()));
        }
    }
    Ok((all, Some(span_ns)))
}

fn weight(smoothed: &Smoothed) -> Weight {
    Weight {
        weight: smoothed.weight,
        mean_handler_ns: smoothed.mean_handler_ns(),
        forgotten_share: smoothed.forgotten as f64 / smoothed.readied.max(1) as f64,
        mean_window_ns: smoothed.mean_window_ns(),
    }
}

fn notes(metadata: &Metadata, source: &RecordingSource) -> Vec<String> {
    let mut notes = model::notes_of_recording(metadata);
    notes.extend(model::note_of_few(source.episodes()));
    notes.extend(model::note_of_time(metadata));
    notes
}
