//! `dwell tune`

mod plan;

use crate::command::replay::values;
use crate::failure::{Answer, Outcome};
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, Format, FormatArg};
use crate::whence::{Whence, WhenceArgs};
use crate::{progress, quantity};
use anyhow::{Context, bail};
use dwell_knobs::lines::{self, Lines};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_replay::tune::{Advice, Candidate, Goal, Interval, Role, Row, Task, Verdict, WORTH_A_CHANGE, tune};
use dwell_replay::{RecordingSource, Rule, Source, grid};
use dwell_report::{Cell, Column, Table, count, duration, percent, ratio};
use serde::Serialize;
use std::collections::BTreeMap;

/// Find the setting that gives what you want for the least CPU, checked on data it was not fitted to
///
/// Prints first what could be gained at all, then what the present setting, the recommended one and the bounds cost on
/// the second half of the recording; the recommendation is chosen on the first half. If it does not hold on the second,
/// or gains less than the noise, the advice is to leave things as they are. Nothing on the machine is changed; what is
/// advised can be written into a plan, which `dwell apply` carries out.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  dwell tune recordings/guest-memcached_poisson10k.parquet --layer host --halt-cost 20us\n  \
                        dwell tune idle.parquet --max-cpu 2%"
)]
pub(crate) struct Args {
    #[command(flatten)]
    whence: WhenceArgs,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    goal: GoalArgs,
    /// Print the settings that are best for some price, the Pareto front on the second half: none of those tried burns
    /// less CPU and halts less than one of these
    #[arg(long)]
    front: bool,
    #[command(flatten)]
    plan: plan::PlanArgs,
    /// Exit with 1 if the advice is to leave the setting as it is
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// What a good setting is; without any, the one of least cost.
#[derive(Debug, clap::Args)]
pub(crate) struct GoalArgs {
    /// Goal: fewest halts while at most this much of one CPU is burnt polling, such as 2% or 0.02
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, conflicts_with = "max_halts_per_s")]
    max_cpu: Option<f64>,
    /// Goal: least CPU burnt with at most so many halts per second
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    max_halts_per_s: Option<f64>,
}

impl GoalArgs {
    pub(crate) fn goal(&self) -> Goal {
        match (self.max_cpu, self.max_halts_per_s) {
            (Some(share), _) => Goal::MaxCpu(share),
            (_, Some(rate)) => Goal::MaxHaltsPerSecond(rate),
            _ => Goal::LeastCost,
        }
    }
}

/// The halves are called different if the present setting does so many times better on one than on the other.
const DIFFERENT: f64 = 1.25;

/// The advice with all its figures, as it is printed.
#[derive(Serialize)]
pub(crate) struct Tuned {
    file: String,
    layer: &'static str,
    version: String,
    goal: String,
    pub(crate) halt_cost_ns: u64,
    wake_latency_ns: u64,
    episodes: u64,
    idlers: usize,
    settings_tried: usize,
    fitted_span_ns: u64,
    pub(crate) judged_span_ns: u64,
    upper_bound: UpperBound,
    verdict: &'static str,
    advice: String,
    gain: Option<GainJson>,
    notes: Vec<String>,
    /// Whether the first note says where the recording comes from, which is told before anything else.
    #[serde(skip)]
    says_whence: bool,
    pub(crate) rows: Vec<RowJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) front: Option<Vec<FrontJson>>,
    lines: Vec<Lines>,
}

/// A setting of the Pareto front, on the second half.
#[derive(Serialize)]
pub(crate) struct FrontJson {
    setting: BTreeMap<&'static str, serde_json::Value>,
    cpu_burnt_ns_per_s: f64,
    cpu_burnt_share: f64,
    halts: u64,
    halts_per_s: f64,
    mean_added_latency_ns: f64,
    p99_added_latency_ns: u64,
    cost_ns: u128,
}

/// What no policy can exceed: the present cost less the optimum's.
#[derive(Serialize)]
struct UpperBound {
    present_cost_ns_per_s: f64,
    optimum_cost_ns_per_s: f64,
    gain_ns_per_s: f64,
}

#[derive(Serialize)]
struct GainJson {
    of: &'static str,
    share: f64,
    low_95: f64,
    high_95: f64,
}

#[derive(Serialize)]
pub(crate) struct RowJson {
    role: &'static str,
    policy: &'static str,
    setting: BTreeMap<&'static str, serde_json::Value>,
    cpu_burnt_ns_per_s: f64,
    cpu_burnt_share: f64,
    polls: u64,
    polls_succeeded: u64,
    success_share: Option<f64>,
    polled_ns: u128,
    halts: u64,
    halts_per_s: f64,
    mean_added_latency_ns: f64,
    p99_added_latency_ns: u64,
    cost_ns: u128,
    cost_over_optimum: Option<f64>,
    fitted_cost_over_optimum: Option<f64>,
}

pub(crate) fn run(args: Args) -> Outcome {
    let Whence { reader, file, note: first_note } = args.whence.open()?;
    let model = Model::of(&args.model, reader.metadata())?;
    let layer = one_layer(&model)?;
    let target = args.plan.target(layer)?;
    let facts = args.plan.facts(&file, &reader)?;
    let source = RecordingSource::new(reader, layer == Layer::Iothread);
    let (mut tuned, advice) = advise(&file, &source, &model, args.goal.goal())?;
    tuned.says_whence = first_note.is_some();
    tuned.notes.splice(..0, first_note);
    if !args.front {
        tuned.front = None;
    }
    match args.format.format {
        Format::Json => output::json(&tuned)?,
        Format::Csv => output::csv(&tuned.front.as_deref().map_or_else(|| table(&tuned), front_table))?,
        Format::Table => output::text(&(opening(&tuned) + &front_words(&tuned) + &ending(&tuned)))?,
    }
    if let Some(facts) = facts {
        let metadata = source.reader().metadata();
        let (present, told) = model.present(metadata);
        let told = plan::Told { tuned: &tuned, model: &model, metadata, present: present[0], told, target };
        args.plan.write(&told, &advice, facts)?;
    }
    let negative = args.exit_code && !advice.verdict.is_change();
    Ok(if negative { Answer::No } else { Answer::Yes })
}

/// The layer whose rule is searched.
pub(crate) fn one_layer(model: &Model) -> anyhow::Result<Layer> {
    match model.whose {
        Whose::One(layer) => Ok(layer),
        Whose::Stacked => {
            bail!("the rule of one layer is searched at a time; --layer is host, guest or iothread")
        }
    }
}

/// Searches for the best setting of the layer's rule, and says what came of it, the Pareto front with it.
pub(crate) fn advise(
    file: &str,
    source: &RecordingSource,
    model: &Model,
    goal: Goal,
) -> anyhow::Result<(Tuned, Advice)> {
    let metadata = source.reader().metadata();
    model::refuse_least_lengths(metadata).with_context(|| file.to_owned())?;
    let layer = one_layer(model)?;
    let (present, told) = model.present(metadata);
    let present = present[0];
    let candidates = grid::settings(layer, model.version);
    let bar = progress::episodes(source.episodes() * 2, "tuning");
    let advice = tune(&Task {
        source,
        present,
        candidates: &candidates,
        goal,
        halt_cost: model.halt_cost,
        progress: &|episodes| bar.inc(episodes),
    });
    bar.finish_and_clear();
    let advice = advice.with_context(|| file.to_owned())?;
    let mut notes = vec![];
    if !told {
        notes.push("the recording does not tell the setting in force; `present` is the default".to_owned());
    }
    notes.extend(model.notes(metadata));
    notes.extend(halves_differ(&row_json(advice.row(Role::Present), &advice, model)));
    let mut tuned = describe(file.to_owned(), source, model, goal, &present, &advice, notes);
    tuned.front = Some(front_json(&advice, model));
    Ok((tuned, advice))
}

fn halves_differ(present: &RowJson) -> Option<String> {
    let (fitted, judged) = (present.fitted_cost_over_optimum?, present.cost_over_optimum?);
    (fitted > judged * DIFFERENT || judged > fitted * DIFFERENT).then(|| {
        format!(
            "the halves differ: the present setting costs {} times optimum on the first and {} on the second; \
             a longer recording would tell more",
            ratio(fitted),
            ratio(judged)
        )
    })
}

fn describe(
    file: String,
    source: &RecordingSource,
    model: &Model,
    goal: Goal,
    present: &Setting,
    advice: &Advice,
    notes: Vec<String>,
) -> Tuned {
    let per_second = |ns: u128| ns as f64 / (advice.judged_span_ns.max(1) as f64 / 1e9);
    let cost = |role: Role| per_second(advice.row(role).counts.cost_ns(model.halt_cost));
    let upper_bound = UpperBound {
        present_cost_ns_per_s: cost(Role::Present),
        optimum_cost_ns_per_s: cost(Role::Optimum),
        gain_ns_per_s: cost(Role::Present) - cost(Role::Optimum),
    };
    let recommended = recommended(advice);
    Tuned {
        file,
        layer: model.whose.name(),
        version: model.version.to_string(),
        goal: goal_text(goal, model),
        halt_cost_ns: model.halt_cost.get(),
        wake_latency_ns: model.wake_latency.get(),
        episodes: source.episodes(),
        idlers: source.idlers(),
        settings_tried: advice.tried,
        fitted_span_ns: advice.fitted_span_ns,
        judged_span_ns: advice.judged_span_ns,
        upper_bound,
        verdict: verdict_name(advice.verdict),
        advice: advice_text(advice, model, goal),
        gain: (advice.verdict != Verdict::Unattainable).then(|| gain_json(goal, advice.gain)),
        notes,
        says_whence: false,
        rows: advice.rows.iter().map(|row| row_json(row, advice, model)).collect(),
        front: None,
        lines: recommended.map_or_else(Vec::new, |setting| lines::of(&setting, present)),
    }
}

/// The setting to change to, if that is the advice.
fn recommended(advice: &Advice) -> Option<Setting> {
    match advice.row(Role::Recommended).rule {
        Some(Rule::Layer(setting)) if advice.verdict.is_change() => Some(setting),
        _ => None,
    }
}

fn row_json(row: &Row, advice: &Advice, model: &Model) -> RowJson {
    let span_s = advice.judged_span_ns.max(1) as f64 / 1e9;
    let bound = advice.row(Role::Optimum);
    let over = |cost: u128, bound: u128| (bound > 0).then(|| cost as f64 / bound as f64);
    let counts = &row.counts;
    let cost_ns = counts.cost_ns(model.halt_cost);
    RowJson {
        role: row.role.name(),
        policy: row.rule.as_ref().map_or("optimum", Rule::name),
        setting: row.rule.as_ref().map(values).unwrap_or_default(),
        cpu_burnt_ns_per_s: counts.polled_ns as f64 / span_s,
        cpu_burnt_share: counts.polled_ns as f64 / span_s / 1e9,
        polls: counts.polls,
        polls_succeeded: counts.polls_succeeded,
        success_share: counts.success_rate(),
        polled_ns: counts.polled_ns,
        halts: counts.halts,
        halts_per_s: counts.halts as f64 / span_s,
        mean_added_latency_ns: counts.mean_latency_ns(model.wake_latency),
        p99_added_latency_ns: counts.p99_latency_ns(model.wake_latency),
        cost_ns,
        cost_over_optimum: over(cost_ns, bound.counts.cost_ns(model.halt_cost)),
        fitted_cost_over_optimum: over(
            row.fitted.cost_ns(model.halt_cost),
            bound.fitted.cost_ns(model.halt_cost),
        ),
    }
}

fn front_json(advice: &Advice, model: &Model) -> Vec<FrontJson> {
    let span_s = advice.judged_span_ns.max(1) as f64 / 1e9;
    let json = |candidate: &Candidate| FrontJson {
        setting: values(&Rule::Layer(candidate.setting)),
        cpu_burnt_ns_per_s: candidate.counts.polled_ns as f64 / span_s,
        cpu_burnt_share: candidate.counts.polled_ns as f64 / span_s / 1e9,
        halts: candidate.counts.halts,
        halts_per_s: candidate.counts.halts as f64 / span_s,
        mean_added_latency_ns: candidate.counts.mean_latency_ns(model.wake_latency),
        p99_added_latency_ns: candidate.counts.p99_latency_ns(model.wake_latency),
        cost_ns: candidate.counts.cost_ns(model.halt_cost),
    };
    advice.front.iter().map(json).collect()
}

/// One column for each parameter.
pub(crate) fn front_table(front: &[FrontJson]) -> Table {
    let names: Vec<&'static str> =
        front.first().map(|row| row.setting.keys().copied().collect()).unwrap_or_default();
    let fixed = [
        Column::number("CPU burnt", "cpu_burnt_share"),
        Column::number("ns/s", "cpu_burnt_ns_per_s"),
        Column::number("halts/s", "halts_per_s"),
        Column::number("mean latency", "mean_added_latency_ns"),
        Column::number("p99 latency", "p99_added_latency_ns"),
        Column::number("cost", "cost_ns"),
    ];
    let mut table = Table::new(fixed.into_iter().chain(names.iter().map(|name| Column::number(name, name))));
    for row in front {
        let fixed = [
            Cell::Share(row.cpu_burnt_share),
            Cell::Rounded(row.cpu_burnt_ns_per_s),
            Cell::Rounded(row.halts_per_s),
            Cell::Nanos(row.mean_added_latency_ns),
            Cell::Nanos(row.p99_added_latency_ns as f64),
            Cell::Nanos(row.cost_ns as f64),
        ];
        let value =
            |name: &&str| Cell::Text(row.setting.get(*name).map_or_else(String::new, ToString::to_string));
        table.push(fixed.into_iter().chain(names.iter().map(value)));
    }
    table
}

fn goal_text(goal: Goal, model: &Model) -> String {
    match goal {
        Goal::LeastCost => format!("least cost, one halt worth {}", duration(model.halt_cost.get() as f64)),
        Goal::MaxCpu(share) => format!("fewest halts with at most {} of a CPU burnt", percent(share)),
        Goal::MaxHaltsPerSecond(rate) => format!("least CPU burnt with at most {rate} halts per second"),
    }
}

/// What the gain is a gain of.
fn gain_of(goal: Goal) -> &'static str {
    match goal {
        Goal::LeastCost => "cost",
        Goal::MaxCpu(_) => "halts",
        Goal::MaxHaltsPerSecond(_) => "CPU burnt",
    }
}

fn gain_json(goal: Goal, gain: Interval) -> GainJson {
    GainJson { of: gain_of(goal), share: gain.value, low_95: gain.low, high_95: gain.high }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Change => "change",
        Verdict::AlreadyBest => "leave it: already best",
        Verdict::WithinNoise => "leave it: within noise",
        Verdict::TooSmall => "leave it: too small",
        Verdict::MissedLimit => "leave it: missed the limit",
        Verdict::Unattainable => "leave it: unattainable",
    }
}

fn advice_text(advice: &Advice, model: &Model, goal: Goal) -> String {
    let row = advice.row(Role::Recommended);
    let json = |role| row_json(advice.row(role), advice, model);
    let recommended = differences(&json(Role::Recommended), &json(Role::Present));
    let gain = advice.gain;
    let interval = format!(
        "{} less {} than the present setting on the second half (95 % interval {} to {})",
        percent(gain.value),
        gain_of(goal),
        percent(gain.low),
        percent(gain.high)
    );
    match advice.verdict {
        Verdict::Change if gain.value < 0.0 => format!(
            "set {recommended}: the present setting breaks the limit, this one keeps it on both halves, at {} more {}",
            percent(-gain.value),
            gain_of(goal)
        ),
        Verdict::Change => {
            let over = row_json(row, advice, model);
            let shown = |value: Option<f64>| value.map_or("-".to_owned(), ratio);
            format!(
                "set {recommended}: {interval}; {} times optimum there, {} on the first half, which it was chosen on",
                shown(over.cost_over_optimum),
                shown(over.fitted_cost_over_optimum)
            )
        }
        Verdict::AlreadyBest => {
            "leave it: of all settings tried the present one is best on the first half".to_owned()
        }
        Verdict::WithinNoise => {
            format!(
                "leave it: {recommended} was best on the first half, but gains {interval}, which is within the noise"
            )
        }
        Verdict::TooSmall => format!(
            "leave it: {recommended} gains {interval}; less than {} is not worth a change",
            percent(WORTH_A_CHANGE)
        ),
        Verdict::MissedLimit => format!(
            "leave it: {recommended} kept the limit on the first half and broke it on the second; \
             this load changes too much for that limit, or the recording is too short"
        ),
        Verdict::Unattainable => "leave it: none of the settings tried meets the limit on the first half; \
             the rows `never` and `always` show how far the rule can go"
            .to_owned(),
    }
}

/// The parameters in which a row differs from the present setting; all of them for the present setting itself.
fn differences(row: &RowJson, present: &RowJson) -> String {
    let differs = |(name, value): &(&&'static str, &serde_json::Value)| {
        row.role == present.role || present.setting.get(**name) != Some(value)
    };
    let shown: Vec<String> =
        row.setting.iter().filter(differs).map(|(name, value)| format!("{name}={value}")).collect();
    if shown.is_empty() && !row.setting.is_empty() { "as present".to_owned() } else { shown.join(" ") }
}

pub(crate) fn table(tuned: &Tuned) -> Table {
    let mut table = Table::new([
        Column::text("policy", "role"),
        Column::number("CPU burnt", "cpu_burnt_share"),
        Column::number("ns/s", "cpu_burnt_ns_per_s"),
        Column::number("polls", "polls"),
        Column::number("success", "success_share"),
        Column::number("halts/s", "halts_per_s"),
        Column::number("mean latency", "mean_added_latency_ns"),
        Column::number("p99 latency", "p99_added_latency_ns"),
        Column::number("cost", "cost_ns"),
        Column::number("/optimum", "cost_over_optimum"),
        Column::number("(1st half)", "fitted_cost_over_optimum"),
        Column::text("setting", "setting"),
    ]);
    let present = tuned.rows.iter().find(|row| row.role == Role::Present.name());
    for row in &tuned.rows {
        table.push([
            Cell::Text(row.role.to_owned()),
            Cell::Share(row.cpu_burnt_share),
            Cell::Rounded(row.cpu_burnt_ns_per_s),
            Cell::Count(row.polls.into()),
            Cell::share(row.success_share),
            Cell::Rounded(row.halts_per_s),
            Cell::Nanos(row.mean_added_latency_ns),
            Cell::Nanos(row.p99_added_latency_ns as f64),
            Cell::Nanos(row.cost_ns as f64),
            Cell::ratio(row.cost_over_optimum),
            Cell::ratio(row.fitted_cost_over_optimum),
            Cell::Text(present.map_or_else(String::new, |present| differences(row, present))),
        ]);
    }
    table
}

/// What rules that no kernel has yet would have got.
fn better_rules(tuned: &Tuned) -> String {
    let over = |role: Role| {
        let row = tuned.rows.iter().find(|row| row.role == role.name());
        row.and_then(|row| row.cost_over_optimum).map_or_else(|| "-".to_owned(), ratio)
    };
    format!(
        "What a better rule would get: {} times the optimum (leader) or {} (savings), where the best setting of \
         today's rule\ngets {} in hindsight. The crate dwell-policy has both; no kernel does.",
        over(Role::Leader),
        over(Role::Savings),
        over(Role::BestInHindsight)
    )
}

/// What could be gained, what each policy costs, and the advice, for people.
pub(crate) fn opening(tuned: &Tuned) -> String {
    let share = |ns_per_s: f64| percent(ns_per_s / 1e9);
    let first = if tuned.says_whence { tuned.notes.first().map(String::as_str) } else { None };
    let first = first.map_or_else(String::new, |note| format!("{note}\n"));
    let head = format!(
        "{first}{}: {} episodes of {} idler{}, {} layer, rule of {} {}\n\
         goal: {}\n\n\
         At most {} of a CPU can be gained by any policy: at {} for a halt the present setting costs {},\n\
         and the optimum, which knows the future, {}.\n\n\
         {} settings tried on the first half ({}). On the second half ({}), which had no part in the choice:\n\n",
        tuned.file,
        count(tuned.episodes.into()),
        tuned.idlers,
        if tuned.idlers == 1 { "" } else { "s" },
        tuned.layer,
        if tuned.layer == Layer::Iothread.name() { "QEMU" } else { "Linux" },
        tuned.version,
        tuned.goal,
        share(tuned.upper_bound.gain_ns_per_s.max(0.0)),
        duration(tuned.halt_cost_ns as f64),
        share(tuned.upper_bound.present_cost_ns_per_s),
        share(tuned.upper_bound.optimum_cost_ns_per_s),
        count(tuned.settings_tried as u128),
        duration(tuned.fitted_span_ns as f64),
        duration(tuned.judged_span_ns as f64),
    );
    format!("{head}{}\nAdvice: {}\n\n{}\n", table(tuned).to_text(), tuned.advice, better_rules(tuned))
}

/// The Pareto front for people; nothing where none is wanted.
fn front_words(tuned: &Tuned) -> String {
    let Some(front) = &tuned.front else { return String::new() };
    format!(
        "\nNo setting tried burns less CPU and halts less than one of these {}, on the second half:\n\n{}",
        count(front.len() as u128),
        front_table(front).to_text()
    )
}

/// The lines that would set what is advised, and what has to be known, for people.
pub(crate) fn ending(tuned: &Tuned) -> String {
    let mut text = String::new();
    for Lines { about, lines } in &tuned.lines {
        text += &format!("\n# {about}\n{}\n", lines.join("\n"));
    }
    let rest = tuned.notes.iter().skip(usize::from(tuned.says_whence));
    for (number, note) in rest.enumerate() {
        let before = if number == 0 { "\n" } else { "" };
        text += &format!("{before}note: {note}\n");
    }
    text
}
