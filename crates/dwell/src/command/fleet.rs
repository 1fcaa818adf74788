//! `dwell fleet`

mod page;
mod plans;
mod release;
mod show;
mod unknown;
mod weight;

use crate::failure::Outcome;
use crate::output::{self, FormatArg};
use crate::overwrite::ForceArg;
use crate::quantity::LatencyArg;
use crate::settings::VersionArgs;
use crate::{progress, quantity};
use anyhow::Context;
use dwell_fleet::{Choice, Classes, Fineness, HeldOut, Question, Rollout, Row, rollout};
use dwell_policy::{Layer, Nanos};
use dwell_recording::NewFile;
use dwell_report::{count, percent};
use dwell_stats::Interval;
use serde::Serialize;
use show::{table_of, vms, words};
use std::path::{Path, PathBuf};

/// Choose the few settings that cost least over the recordings of many VMs
///
/// Replays every recording in a folder, and in the folders below it, through several hundred settings, on all
/// cores. Then chooses one setting for all VMs, two settings of which each VM gets the better one, and so on,
/// and one setting for each class. Prints what each choice costs the VMs that had no part in it, beside the
/// settings in force (`today`), the best setting of each VM in hindsight (`own best`) and the offline
/// optimum. The regret of a VM is its cost above that of its own best setting. Costs are sums over all
/// recordings: a VM that was recorded for longer weighs more.
///
/// A VM is named after its file, without folders and extension: files of one name in several folders are recordings
/// of one VM. Recordings that are damaged, empty or implausible, or that fail the self-check, are listed and do not
/// count.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell fleet recordings --halt-cost 20us\n  \
                        dwell fleet fleet --class tenant --held-out day2 --settings 1,2,5 -o costs.parquet --plan plans")]
pub(crate) struct Args {
    /// Folder with recordings or sketches of recordings (*.parquet)
    folder: PathBuf,
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms. With 0, halts are free and never polling is best.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = quantity::halt)]
    halt_cost: Nanos,
    /// Layer whose rule to replay: host, guest or iothread
    #[arg(long, value_name = "LAYER", default_value = "host", value_parser = crate::suggest::idling_layers(layer))]
    layer: Layer,
    #[command(flatten)]
    versions: VersionArgs,
    #[command(flatten)]
    latency: LatencyArg,
    /// How many settings to choose, separated by commas
    ///
    /// From 1 to 100.
    #[arg(long, value_name = "N,…", default_value = "1,2,5", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=100))]
    settings: Vec<u8>,
    /// Settings to try: coarse (several hundred) or fine (more than 20,000)
    ///
    /// Costs are in memory for every recording and setting, eight bytes each: fine takes 190 KB for each recording.
    #[arg(long, value_name = "GRID", default_value = "coarse", value_parser = fineness)]
    grid: Fineness,
    /// Classes of VMs: a label of the recordings' metadata, or a table in a file
    ///
    /// A label is kernel, qemu, cpu_model, machine, or a key that was added to the metadata. A name that ends
    /// in .csv is a file whose first line is `vm,class` and that has a VM and its class in each other line.
    /// All VMs of a class get one setting; VMs without a class get one for themselves.
    #[arg(long, value_name = "LABEL|FILE.csv")]
    class: Option<String>,
    /// VMs to leave out of the choice and to report on: a share of all, such as 50%, or a folder
    ///
    /// A share, from 0 to less than 1 (100%), is drawn by a hash of the VMs' names. A folder is a component of the
    /// path, such as the day of the recordings; write `/` behind a name that is a number. With 0, settings are chosen and
    /// reported on all recordings.
    #[arg(long, value_name = "SHARE|FOLDER", default_value = "50%", value_parser = HeldOut::parse)]
    held_out: HeldOut,
    /// Write the cost of every recording and setting to this Parquet file
    ///
    /// A row for each recording, with its costs in ns as a list in the order of the settings, which the metadata
    /// `dwell.settings` has. Recordings that do not count have the reason in the column `error`.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a page with the regret of the VMs and the ones that lose most to this file (HTML)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    plans: plans::PlansArgs,
    #[command(flatten)]
    force: ForceArg,
    #[command(flatten)]
    format: FormatArg,
}

fn layer(text: &str) -> Result<Layer, String> {
    Layer::from_name(text)
        .filter(|layer| *layer != Layer::Driver)
        .ok_or_else(|| "layers that can be replayed: host, guest, iothread".to_owned())
}

fn fineness(text: &str) -> Result<Fineness, String> {
    let known = Fineness::ALL.map(Fineness::name).join(" or ");
    Fineness::ALL.into_iter().find(|grid| grid.name() == text).ok_or(format!("write {known}"))
}

/// A fleet, as it is printed.
#[derive(Serialize)]
struct Printed<'a> {
    folder: String,
    layer: &'static str,
    version: String,
    halt_cost_ns: u64,
    settings_tried: usize,
    recordings: usize,
    episodes: u64,
    left_out: Vec<LeftOut<'a>>,
    #[serde(flatten)]
    rollout: &'a Rollout,
    notes: Vec<String>,
}

/// A recording that does not count.
#[derive(Serialize)]
struct LeftOut<'a> {
    recording: &'a str,
    why: &'a str,
}

pub(crate) fn run(args: Args) -> Outcome {
    args.versions.check(&[args.layer])?;
    args.plans.check(args.layer)?;
    let recordings = release::recordings_of(&args.folder)?;
    let inputs = recordings.iter().map(|recording| args.folder.join(recording));
    let inputs: Vec<PathBuf> = inputs.chain(args.class.as_ref().map(PathBuf::from)).collect();
    let (version, of_release) = release::choose(&args, &recordings)?;
    let (label, table) = args.class()?;
    args.plans.create_folder()?;
    let results = [args.output.clone(), args.report.clone(), args.plans.order()];
    args.force.may_write_all(&results.into_iter().flatten().collect::<Vec<_>>(), &inputs)?;
    let question = Question {
        wakeup_latency: args.latency.wakeup_latency,
        label,
        ..Question::new(args.layer, version, args.halt_cost, args.grid)
    };
    let rows = replay(&args.folder, &recordings, &question, table.as_ref());
    let left_out: Vec<LeftOut<'_>> = rows
        .iter()
        .filter_map(|row| Some(LeftOut { recording: &row.recording, why: row.costs.as_ref().err()? }))
        .collect();
    for LeftOut { recording, why } in &left_out {
        output::note(&format!("left out: {recording}: {why}"));
    }
    if let Some(path) = &args.output {
        write_costs(path, &question, &rows)?;
    }
    let numbers: Vec<usize> = args.settings.iter().copied().map(usize::from).collect();
    let cannot = || format!("cannot choose settings for {}", args.folder.display());
    let found = rollout(&rows, &question.settings, &numbers, &args.held_out).with_context(cannot)?;
    let mut notes = notes(&args, &rows, &found);
    notes.extend(of_release);
    let late = |question: &Question| {
        let late = replay(&args.folder, &recordings, question, table.as_ref());
        rollout(&late, &question.settings, &numbers, &args.held_out).with_context(cannot)
    };
    notes.extend(unknown::note(&question, &rows, &found, late)?);
    notes.extend(args.plans.write(&question, &rows, &found, args.force)?);
    let printed = Printed {
        folder: args.folder.display().to_string(),
        layer: args.layer.name(),
        version: version.to_string(),
        halt_cost_ns: args.halt_cost.get(),
        settings_tried: question.settings.len(),
        recordings: rows.len(),
        episodes: rows.iter().filter_map(|row| Some(row.costs.as_ref().ok()?.episodes)).sum(),
        left_out,
        rollout: &found,
        notes,
    };
    if let Some(path) = &args.report {
        page::write(path, &printed)?;
    }
    output::result(args.format.format, &printed, || table_of(&found.choices, true), || words(&printed))
}

impl Args {
    /// The label of the metadata, or the table, that has the classes.
    fn class(&self) -> anyhow::Result<(Option<String>, Option<Classes>)> {
        let Some(class) = &self.class else { return Ok((None, None)) };
        if !class.ends_with(".csv") {
            return Ok((Some(class.clone()), None));
        }
        let text =
            std::fs::read_to_string(class).with_context(|| format!("cannot read the classes {class}"))?;
        let table =
            dwell_fleet::classes(&text).with_context(|| format!("cannot read the classes {class}"))?;
        Ok((None, Some(table)))
    }
}

/// The costs of recordings in a folder, with a bar, and the classes of a table.
fn replay(folder: &Path, recordings: &[String], question: &Question, classes: Option<&Classes>) -> Vec<Row> {
    let bar = progress::recordings(recordings.len() as u64);
    let mut rows = Row::of_files(folder, recordings, question, &|| bar.done());
    if let Some(classes) = classes {
        Row::classify(&mut rows, classes);
    }
    rows
}

fn write_costs(path: &Path, question: &Question, rows: &[Row]) -> anyhow::Result<()> {
    let cannot = || format!("cannot write the costs to {}", path.display());
    let file = dwell_fleet::write(NewFile::create(path)?, question, rows).with_context(cannot)?;
    Ok(file.keep()?)
}

fn notes(args: &Args, rows: &[Row], found: &Rollout) -> Vec<String> {
    let mut notes = vec![found.held_out.clone()];
    let of_other = |row: &&Row| row.costs.as_ref().is_ok_and(|costs| costs.layer != args.layer);
    let others = rows.iter().filter(of_other).count();
    if others > 0 {
        notes.push(format!(
            "recordings of another layer than {}, whose rule is replayed: {}; idle times of two layers differ",
            args.layer.name(),
            count(others as u128)
        ));
    }
    if found.today_is_default > 0 {
        notes.push(format!(
            "the recordings of {} do not have the setting in force: `today` is the default",
            vms(found.today_is_default)
        ));
    }
    if found.new_vms > 0 {
        notes.push(format!(
            "{} had no part in the choice and {} no class: of several settings each got the one that is best for the VMs \
             whose first idle times are most like its own",
            vms(found.new_vms),
            if found.new_vms == 1 { "has" } else { "have" },
        ));
    }
    let known = |of: &&Choice| of.class.is_none() && of.gain_interval.is_some_and(|of| of.limits().is_some());
    let intervals =
        found.choices.iter().filter(known).filter_map(|choice| Some((choice, choice.gain_interval?)));
    let of = |(choice, of): (&Choice, Interval)| {
        format!("`{}` {} to {}", choice.choice, percent(of.low), percent(of.high))
    };
    let intervals: Vec<String> = intervals.map(of).collect();
    if !intervals.is_empty() {
        notes.push(format!("95 % intervals of the gain, by how far VMs differ: {}", intervals.join(", ")));
    }
    for chosen in &found.chosen_on {
        if chosen.least_ns < chosen.cost_ns {
            notes.push(format!(
                "`{}` was not proven to be the best choice on the VMs it was made on: none costs less by more than {:.2} %",
                chosen.choice,
                // Rounded up: the bound has to hold.
                (10_000.0 * (1.0 - chosen.least_ns as f64 / chosen.cost_ns as f64)).ceil() / 100.0
            ));
        }
    }
    let classed = rows.iter().any(|row| row.costs.as_ref().is_ok_and(|costs| costs.class.is_some()));
    if let Some(class) = args.class.as_ref().filter(|_| !classed) {
        notes.push(format!("no recording has a class by {class}"));
    }
    notes.extend(weight::note(rows));
    notes
}
