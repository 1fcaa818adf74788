//! `dwell tune`

mod both;
mod goal;
mod other;
pub(crate) mod plan;
mod show;
mod unknown;
mod work;

use crate::by_work;
use crate::check;
use crate::failure::{Answer, Outcome};
use crate::input::{Input, InputArgs};
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, FormatArg};
use crate::progress;
use anyhow::{Context, bail};
use dwell_knobs::lines::{self, Lines};
use dwell_machine::Sysroot;
use dwell_machine::load::SHARED_CORE;
use dwell_policy::Layer;
use dwell_replay::advice::{Advice, Origin};
use dwell_replay::check::{NotPossible, SelfCheck};
use dwell_replay::tune::{Task, tune};
use dwell_replay::{RecordingSource, Source, grid};
use dwell_report::ratio;
pub(crate) use goal::GoalArgs;
use serde::Serialize;
use show::{cores, front_table, front_words, table};
pub(crate) use show::{ending, opening};
use std::path::{Path, PathBuf};
use unknown::{closed_loop, other_end};
use work::ByWork;

/// Recommend a setting, or advise to leave the present one
///
/// Prints the largest possible gain, then the costs of the present setting, of the recommended one and of the bounds.
/// Settings are chosen on the first half of the recording and judged on the second. If the gain does not hold there,
/// cannot be distinguished from noise or is not worth a change, the advice is to leave the present setting as it is,
/// and no setting is called recommended. Nothing on the machine is changed; --plan writes the recommended setting to
/// a plan for `dwell apply`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  dwell tune recordings/guest-memcached_poisson10k.parquet --layer host --halt-cost 20us\n  \
                        dwell tune idle.parquet --max-cpu 2%"
)]
pub(crate) struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    goal: GoalArgs,
    /// Also print the Pareto front of polling CPU and halts
    ///
    /// These are the tried settings that no other beats in both, on the second half of the recording. Each of them is
    /// the best for some halt cost or limit.
    #[arg(long)]
    front: bool,
    #[command(flatten)]
    plan: plan::PlanArgs,
    /// A recording of the same load under another setting, for what one setting cannot show
    ///
    /// Both need what woke the tasks, as `dwell record` keeps it. From the other come latencies that FILE does not
    /// show, and whether interrupts wait for the work before them. How well its work is predicted from FILE is printed.
    #[arg(long, value_name = "FILE", requires = "file")]
    also: Option<PathBuf>,
    /// The host's recording of the same time: one advice for the guest and its host
    ///
    /// By `dwell record host`, while `dwell record guest` wrote FILE in the guest. The layer is then guest+host. All pairs of
    /// maxima of both are tried, and then what is near the best.
    #[arg(long, value_name = "FILE", requires = "file", conflicts_with_all = ["also", "front", "plan", "qmp"])]
    host: Option<PathBuf>,
    /// Exit with 1 if the advice is to leave the present setting as it is
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// The advice on a recording, as it is printed.
#[derive(Serialize)]
pub(crate) struct Tuned {
    file: String,
    layer: &'static str,
    version: String,
    episodes: u64,
    idlers: usize,
    halt_cost_origin: Origin,
    wakeup_latency_origin: Origin,
    /// The advice as a sentence.
    #[serde(rename = "advice")]
    words: String,
    #[serde(flatten)]
    pub(crate) advice: Advice,
    self_check: SelfCheck,
    notes: Vec<String>,
    /// Settings by the work done under them, where the recording has what woke the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    work: Option<ByWork>,
    /// Whether the first note is the origin of the recording, which is printed first.
    #[serde(skip)]
    begins_with_source: bool,
    lines: Vec<Lines>,
}

pub(crate) fn run(mut args: Args) -> Outcome {
    // Before anything is recorded.
    args.plan.check(args.input.file().into_iter().chain(&args.also))?;
    if args.host.is_some() {
        args.model.above_host()?;
    }
    let Input { reader, file, note: first_note, is_bundled } = args.input.open()?;
    if is_bundled {
        args.plan.refuse_bundled(first_note.as_deref().unwrap_or_default())?;
    }
    if let Some(host) = &args.host {
        let answer = both::run(file, reader, host, &args.model, &args.goal, args.format.format)?;
        return Ok(if args.exit_code { answer } else { Answer::Yes });
    }
    args.plan.refuse_other_machine(reader.metadata())?;
    let mut model = Model::of(&args.model, &reader)?;
    let layer = one_layer(model.whose)?;
    let target = args.plan.target(layer)?;
    let begins_with_source = first_note.is_some();
    let mut of_target = vec![];
    if let Some(target) = &target {
        let recorded = reader.contents().idlers.iter().map(|idler| &*idler.name);
        let (present, others) = plan::in_force(target, recorded)?;
        args.plan.refuse_other_threads(others.as_ref())?;
        if let Some(asked) = args.model.versions.qemu {
            let found = present.version();
            anyhow::ensure!(
                (asked.major, asked.minor) == (found.major, found.minor),
                "--qemu {asked}: the QEMU at {} is {found}; leave --qemu out",
                target.socket
            );
        }
        of_target.push(format!(
            "the setting in force is that of I/O thread {} of the QEMU at {}, {}",
            target.id,
            target.socket,
            present.version()
        ));
        of_target.extend(others);
        model = model.with_in_force(present);
    }
    let facts = args.plan.facts(&file, &reader)?;
    let (source, check) = check::check(model.source(reader))?;
    let mut tuned = advise(&file, &source, args.also.as_deref(), &mut model, &args.goal, check)?;
    tuned.begins_with_source = begins_with_source;
    tuned.notes.splice(..0, first_note.into_iter().chain(of_target));
    if !args.front {
        tuned.advice.front.clear();
    }
    let csv = || match args.front {
        true => front_table(&tuned.advice, None),
        false => by_work::behind(table(&tuned.advice), "role", tuned.work.as_ref().map_or(&[], ByWork::rows)),
    };
    let text = || opening(&tuned) + &front_words(&tuned.advice) + &ending(&tuned);
    output::result(args.format.format, &tuned, csv, text)?;
    if let Some(facts) = facts {
        args.plan.write(&tuned, &model, source.reader().metadata(), facts, target)?;
    }
    let negative = args.exit_code && !tuned.advice.verdict.is_change();
    Ok(if negative { Answer::No } else { Answer::Yes })
}

/// The layer whose rule is searched.
pub(crate) fn one_layer(whose: Whose) -> anyhow::Result<Layer> {
    match whose {
        Whose::One(layer) => Ok(layer),
        Whose::Stacked => bail!("advice on two layers needs both recordings: dwell tune GUEST --host HOST"),
    }
}

/// Searches for the best setting of the layer's rule, and describes what was found, with the Pareto front.
pub(crate) fn advise(
    file: &str,
    source: &RecordingSource,
    also: Option<&Path>,
    model: &mut Model,
    goal: &GoalArgs,
    self_check: SelfCheck,
) -> anyhow::Result<Tuned> {
    let metadata = source.reader().metadata();
    model::refuse_least_lengths(metadata, "advise").with_context(|| file.to_owned())?;
    goal.check.refuse(file, &self_check)?;
    let layer = one_layer(model.whose)?;
    let (present, recorded) = model.present(metadata);
    let present = present[0];
    let candidates = match layer {
        Layer::Driver => grid::driver(&present, model.halt_cost),
        _ => grid::settings(layer, model.version),
    };
    anyhow::ensure!(
        !candidates.is_empty(),
        "a halt cost of {} is above the range of the driver's parameter",
        model.halt_cost
    );
    let mut work = ByWork::of(source.reader(), also, model, present, goal.goal(), goal.worth())?;
    let bar = progress::episodes(source.episodes() * 2, "tuning");
    let advice = tune(&Task {
        source,
        present,
        candidates: &candidates,
        goal: goal.goal(),
        halt_cost: model.halt_cost,
        wakeup_latency: &model.wakeup_latency,
        worth_a_change: goal.worth(),
        decided: work.as_ref().map(ByWork::decided),
        progress: &|episodes| bar.inc(episodes),
    });
    bar.finish_and_clear();
    let mut advice = advice.with_context(|| file.to_owned())?;
    let stolen = metadata.stolen_share().filter(|_| matches!(layer, Layer::Guest | Layer::Driver));
    if stolen.is_some_and(|share| share >= SHARED_CORE) && advice.gives_way() {
        work.iter_mut().for_each(ByWork::gives_way);
    }
    let mut notes: Vec<String> = self_check.note().into_iter().collect();
    if !recorded {
        let is_other = matches!(self_check, SelfCheck::NotPossible { why: NotPossible::NotDefault });
        let other = "`present` is the default, which was not in force: the recording contradicts it. `dwell import \
                     --in-force NAME=VALUE` gives the setting that was";
        let unknown = "the recording does not have the setting in force; `present` is the default";
        notes.push(if is_other && layer == metadata.layer { other } else { unknown }.to_owned());
    }
    notes.extend(model.notes(metadata));
    notes.extend(model::note_of_overlaps(source)?);
    notes.extend(model.note_of_latency(source)?);
    notes.extend(stolen.map(cores));
    if source.time_recorded().is_none() {
        notes.push(
            "the recording does not contain the time recorded: its halves have equally many episodes, and rates are over the \
             time from the first episode to the last"
                .to_owned(),
        );
    }
    if let Some(upper) = model.upper_latency(source)? {
        notes.insert(0, other_end(source, upper, &advice, model)?);
    }
    let machine = Sysroot::of_this_machine();
    let has_property = model.has_parameters();
    let own = match &mut work {
        _ if !has_property => {
            "none: the recorded threads are not QEMU's, as far as their names show, and have no such parameters. The rows \
             show what QEMU's rule would have cost; with --qmp SOCKET --iothread ID they are taken for that thread"
                .to_owned()
        }
        Some(work) => work.advice(advice.by_idle_times, model)?,
        None => advice.words(),
    };
    let more = if work.is_none() { closed_loop(source.reader(), &advice)? } else { None };
    let words = own + &more.map_or_else(String::new, |more| format!(". {more}"));
    let recommended = advice.recommended().filter(|_| has_property);
    let lines = match recommended {
        Some(setting) => lines::for_recording(&setting, &present, metadata, &machine),
        None => vec![],
    };
    if let Some((fitted, judged)) = advice.halves_differ() {
        notes.push(format!(
            "the halves differ: the present setting costs {} times the optimum on the first and {} on the second; a longer \
             recording would make the advice more certain",
            ratio(fitted),
            ratio(judged)
        ));
    }
    Ok(Tuned {
        file: file.to_owned(),
        layer: model.whose.name(),
        version: model.version.to_string(),
        episodes: source.episodes(),
        idlers: source.idlers(),
        halt_cost_origin: model.halt_cost_origin,
        wakeup_latency_origin: model.wakeup_latency_origin,
        words,
        lines,
        advice,
        self_check,
        notes,
        work,
        begins_with_source: false,
    })
}
