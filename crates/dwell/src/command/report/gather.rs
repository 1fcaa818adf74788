//! All figures of a report, computed once. The page and the JSON are views of this value.

mod axis;

use super::Args;
use super::measured::{self, FromFile, WhyFile};
use crate::check;
use crate::command::tune::{self, Tuned};
use crate::command::{apply, info};
use crate::model::{self, Model};
use crate::progress;
use anyhow::Context;
use axis::{align, lay_on_axis, wall_clock};
use dwell_control::daemon::decisions::Decisions;
use dwell_knobs::plan::Plan;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Owner};
use dwell_recording::Metadata;
use dwell_recording::summary::Summary;
use dwell_replay::advice::Advice;
use dwell_replay::alignment::Alignment;
use dwell_replay::check::SelfCheck;
use dwell_replay::figures::{Compared, Figures, Policy, compare};
use dwell_replay::{Rule, Source};
use dwell_report::measured::Measured;
use dwell_trace::exits::ExitTable;
use serde::Serialize;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// The version of the JSON; it rises when a field changes its meaning or goes away.
const FORMAT: u32 = 1;

/// Idlers whose summaries are kept, those with most episodes: a recording may hold thousands of threads.
const SUMMARISED: usize = 64;

/// Everything that a report shows.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) format: u32,
    /// Name and version of the program.
    pub(super) dwell: &'static str,
    /// The command that makes this report again, without output format and file.
    pub(super) command: String,
    /// Where zero is on the axis of time.
    pub(super) time_axis: TimeAxis,
    /// How the clock of a guest was shifted to that of its host, where their halts determine it.
    pub(super) alignment: Option<Alignment>,
    pub(super) recordings: Vec<Recording>,
    /// After by before, where both were given.
    pub(super) comparison: Option<Vec<Compared>>,
    pub(super) plan: Option<PlanFile>,
    pub(super) exits: Vec<FromFile<ExitTable>>,
    pub(super) measured: Vec<FromFile<Measured>>,
    pub(super) why: Vec<WhyFile>,
    pub(super) decisions: Vec<Decisions>,
}

/// The role of a recording in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    Recording,
    Before,
    After,
}

/// Where zero is on the axis of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum TimeAxis {
    /// Recordings are aligned by the time of day, a guest and its host by their halts where that is possible;
    /// zero is the start of the first.
    Common,
    /// Each recording has its own.
    OwnStart,
}

#[derive(Serialize)]
pub(super) struct Recording {
    pub(super) role: Role,
    pub(super) file: String,
    /// Its start on the time axis \[ns\].
    pub(super) axis_start_ns: u64,
    /// Its contents, as `dwell info` prints them, for the idlers with most episodes.
    pub(super) info: Summary,
    pub(super) summaries_left_out: usize,
    /// The advice, as `dwell tune --front` prints it.
    pub(super) tune: Option<Tuned>,
    /// Why there is no advice.
    pub(super) no_advice: Option<String>,
    /// The recording compared with itself.
    pub(super) self_check: SelfCheck,
    /// The same in a sentence.
    pub(super) self_check_words: String,
    /// Notes and warnings, as `dwell info` prints them.
    pub(super) notes: Vec<String>,
    pub(super) figures: Figures,
}

/// A plan and its path.
#[derive(Serialize)]
pub(super) struct PlanFile {
    pub(super) file: String,
    pub(super) plan: Plan,
}

impl Report {
    pub(super) fn gather(args: &Args) -> anyhow::Result<Report> {
        // Small inputs first, so that an error in them is reported before the long work.
        let exits = args.exits.iter().map(|path| measured::exits(path)).collect::<anyhow::Result<_>>()?;
        let measured =
            args.measured.iter().map(|path| measured::read(path)).collect::<anyhow::Result<_>>()?;
        let why = args.why.iter().map(|path| measured::why(path)).collect::<anyhow::Result<_>>()?;
        let decisions =
            args.decisions.iter().map(|path| Decisions::read(path)).collect::<anyhow::Result<_>>()?;
        let plan = args.plan.as_deref().map(plan).transpose()?;
        let planned = plan.as_ref().map(|plan| plan.plan.recommended_setting()).transpose()?;
        let before = args.before.iter().map(|file| (Role::Before, file));
        let after = args.after.iter().map(|file| (Role::After, file));
        let others = args.files.iter().map(|file| (Role::Recording, file));
        let files: Vec<(Role, &PathBuf)> = before.chain(after).chain(others).collect();
        let (mut recordings, mut spans) = (vec![], vec![]);
        for &(role, path) in &files {
            let reader = model::open(path)?;
            spans.push(wall_clock(reader.metadata(), reader.contents()));
            recordings.push(Recording::gather(role, path, reader, args, planned.as_ref())?);
        }
        if let [before, after, ..] = recordings.as_mut_slice()
            && after.role == Role::After
        {
            let of = [&before.info.metadata, &after.info.metadata];
            after.notes.extend(model::note_of_order(of[0], of[1]));
            let [layer_before, layer_after] = of.map(|metadata| metadata.layer.name());
            after.notes.extend((layer_before != layer_after).then(|| {
                format!("it is of the {layer_after} layer, and the one from before of the {layer_before} layer: their figures do not compare")
            }));
        }
        let alignment = align(&files, &mut spans)?;
        let time_axis = lay_on_axis(&mut recordings, &spans);
        let of = |role: Role| recordings.iter().find(|recording| recording.role == role);
        let comparison = match (of(Role::Before), of(Role::After)) {
            (Some(before), Some(after)) => Some(compare(&before.figures.blocks, &after.figures.blocks)),
            _ => None,
        };
        Ok(Report {
            format: FORMAT,
            dwell: env!("CARGO_PKG_VERSION"),
            command: command(std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned())),
            time_axis,
            alignment,
            recordings,
            comparison,
            plan,
            exits,
            measured,
            why,
            decisions,
        })
    }
}

impl Recording {
    fn gather(
        role: Role,
        path: &Path,
        reader: dwell_recording::Reader,
        args: &Args,
        planned: Option<&Setting<Owner>>,
    ) -> anyhow::Result<Recording> {
        let file = path.display().to_string();
        let mut info = Summary::of(&reader)?;
        let mut model = Model::of(&args.model, &reader)?;
        let layer = tune::one_layer(model.whose)?;
        let planned =
            planned.map(|setting| of_layer(setting, layer)).transpose().with_context(|| file.clone())?;
        let (source, self_check) = check::check(model.source(reader))?;
        // A recording that is too short for advice still has figures to show.
        let (tune, no_advice) =
            match tune::advise(&file, &source, None, &mut model, &args.goal, self_check.clone()) {
                Ok(tuned) => (Some(tuned), None),
                Err(why) => (None, Some(format!("{why:#}"))),
            };
        let advice = tune.as_ref().map(|tuned| &tuned.advice);
        let mut policies = policies(&model, source.reader().metadata(), advice);
        if let Some(setting) = planned {
            policies.truncate(1);
            policies.push(Policy { name: "plan".to_owned(), rule: Rule::Layer(setting) });
        }
        let bar = progress::episodes(source.episodes() * 2, "drawing");
        let figures = Figures::of(&source, &policies, &|episodes| bar.inc(episodes));
        bar.finish_and_clear();
        let notes = info::remarks(&info).into_iter().map(|(_, what)| what).collect();
        let summaries_left_out = keep_busiest(&mut info);
        Ok(Recording {
            role,
            axis_start_ns: 0,
            info,
            summaries_left_out,
            tune,
            no_advice,
            self_check_words: self_check.to_string(),
            self_check,
            notes,
            figures: figures.with_context(|| file.clone())?,
            file,
        })
    }
}

/// The setting in force, and the one that is recommended; where none is, the candidate that was rejected.
fn policies(model: &Model, metadata: &Metadata, advice: Option<&Advice>) -> Vec<Policy> {
    let policy = |name: &str, setting: Setting| Policy { name: name.to_owned(), rule: Rule::Layer(setting) };
    let Some(advice) = advice else {
        let (present, _) = model.present(metadata);
        return present.first().map(|&present| policy("present", present)).into_iter().collect();
    };
    let name = if advice.verdict.is_change() { "recommended" } else { "rejected" };
    let chosen = advice.chosen.filter(|chosen| *chosen != advice.present);
    [policy("present", advice.present)]
        .into_iter()
        .chain(chosen.map(|setting| policy(name, setting)))
        .collect()
}

/// The setting of a plan, refused if it is of another layer than the replayed one.
fn of_layer(setting: &Setting<Owner>, layer: Layer) -> anyhow::Result<Setting> {
    let (planned, replayed) = (setting.owner().name(), layer.name());
    setting.of_layer().filter(|setting| setting.layer() == layer).with_context(|| {
        format!(
            "the plan sets the {planned} layer, but the recording is replayed through the rule of the {replayed} layer; \
             use --layer {planned}"
        )
    })
}

fn plan(path: &Path) -> anyhow::Result<PlanFile> {
    Ok(PlanFile { file: path.display().to_string(), plan: apply::read(path)? })
}

/// Keeps the idlers with most episodes, in their order; returns how many were removed.
fn keep_busiest(info: &mut Summary) -> usize {
    let all = info.idlers.len();
    let mut busiest: Vec<usize> = (0..all).collect();
    busiest.sort_by_key(|&at| Reverse(info.idlers[at].stats.episodes));
    busiest.truncate(SUMMARISED);
    let mut place = 0..;
    info.idlers.retain(|_| place.next().is_some_and(|at| busiest.contains(&at)));
    all - info.idlers.len()
}

/// The command line without output format, file and --force, so that it is the same in every format.
pub(super) fn command(mut words: impl Iterator<Item = String>) -> String {
    let mut kept = vec!["dwell".to_owned()];
    while let Some(word) = words.next() {
        match word.as_str() {
            "--format" | "--output" | "-o" => drop(words.next()),
            "--force" => {}
            _ if word.starts_with("--format=") || word.starts_with("--output=") => {}
            _ if word.starts_with("-o") => {}
            _ => kept.push(word),
        }
    }
    kept.join(" ")
}

#[cfg(test)]
mod tests {
    use super::axis::starts_on_axis;
    use super::*;

    #[test]
    fn the_command_is_the_same_for_every_form() {
        let kept = |line: &str| command(line.split(' ').map(str::to_owned));
        let plain = kept("report a.parquet --halt-cost 20us");
        assert_eq!(plain, "dwell report a.parquet --halt-cost 20us");
        for line in [
            "report a.parquet --halt-cost 20us -o x.html --force",
            "report --format json a.parquet --halt-cost 20us",
            "report --format=csv a.parquet --halt-cost 20us --output=x",
            "report a.parquet -ox.html --halt-cost 20us",
        ] {
            assert_eq!(kept(line), plain, "{line}");
        }
    }

    #[test]
    fn only_what_took_place_at_the_same_time_shares_an_axis() {
        assert_eq!(starts_on_axis(&[Some((100, 200)), Some((130, 400))]), Some(vec![0, 30]));
        assert_eq!(starts_on_axis(&[Some((100, 200)), Some((230, 400))]), None);
        assert_eq!(starts_on_axis(&[Some((100, 200)), None]), None);
        assert_eq!(starts_on_axis(&[Some((100, 200))]), None);
    }
}
