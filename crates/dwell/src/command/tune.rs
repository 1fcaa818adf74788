//! `dwell tune`

pub(crate) mod plan;

use crate::check::{self, CheckArgs};
use crate::failure::{Answer, Outcome};
use crate::input::{Input, InputArgs};
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, Format, FormatArg};
use crate::{progress, quantity};
use anyhow::{Context, bail};
use dwell_knobs::lines::{self, Lines};
use dwell_machine::Sysroot;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Chunk, Columns, Reader, WakeCause};
use dwell_replay::advice::{Advice, AdviceRow, Goal, Origin, Role, Worth};
use dwell_replay::check::SelfCheck;
use dwell_replay::tune::{Task, tune};
use dwell_replay::{Counts, RecordingSource, Rule, Source, Values, grid};
use dwell_report::{Cell, Column, Table, count, duration, percent, priced, ratio};
use serde::Serialize;

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
    /// Exit with 1 if the advice is to leave the present setting as it is
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    format: FormatArg,
}

/// The goal of the search; without any, the least cost.
#[derive(Debug, clap::Args)]
pub(crate) struct GoalArgs {
    /// Goal: fewest halts with at most this much polling CPU, such as 2%
    ///
    /// A share of one CPU, from 0 to 1 (100%). 0 allows no polling at all.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, conflicts_with = "max_halts_per_s")]
    max_cpu: Option<f64>,
    /// Goal: least polling CPU with at most this many halts per second
    ///
    /// From 0; 0 allows no halt at all.
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    max_halts_per_s: Option<f64>,
    /// Smallest gain that is worth a change, as a share of one CPU, such as 0.5% or 0.005
    ///
    /// From 0 to 1 (100%), for all idlers together. A smaller gain is not recommended, however certain it is, nor is
    /// a gain below 1 % of what the present setting costs. With 0, only the second limit applies.
    #[arg(long, value_name = "SHARE", value_parser = quantity::share, default_value = "0.5%")]
    min_gain: f64,
    #[command(flatten)]
    check: CheckArgs,
}

impl GoalArgs {
    pub(crate) fn goal(&self) -> Goal {
        match (self.max_cpu, self.max_halts_per_s) {
            (Some(share), _) => Goal::MaxCpu(share),
            (_, Some(rate)) => Goal::MaxHaltsPerSecond(rate),
            _ => Goal::LeastCost,
        }
    }

    pub(crate) fn worth(&self) -> Worth {
        Worth { cpu_share: self.min_gain, ..Worth::default() }
    }
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
    /// Whether the first note is the origin of the recording, which is printed first.
    #[serde(skip)]
    begins_with_source: bool,
    lines: Vec<Lines>,
}

pub(crate) fn run(args: Args) -> Outcome {
    let Input { reader, file, note: first_note, is_bundled } = args.input.open()?;
    if is_bundled {
        args.plan.refuse_bundled()?;
    }
    args.plan.refuse_other_machine(reader.metadata())?;
    let mut model = Model::of(&args.model, &reader)?;
    let layer = one_layer(&model)?;
    let target = args.plan.target(layer)?;
    let begins_with_source = first_note.is_some();
    let mut in_force = None;
    if let Some(target) = &target {
        let present = plan::in_force(target)?;
        if let Some(asked) = args.model.versions.qemu {
            let found = present.version();
            anyhow::ensure!(
                (asked.major, asked.minor) == (found.major, found.minor),
                "--qemu {asked}: the QEMU at {} is {found}; leave --qemu out",
                target.socket
            );
        }
        in_force = Some(format!(
            "the setting in force is that of I/O thread {} of the QEMU at {}, {}",
            target.id,
            target.socket,
            present.version()
        ));
        model = model.with_in_force(present);
    }
    let facts = args.plan.facts(&file, &reader)?;
    let (source, check) = check::check(model.source(reader))?;
    let mut tuned = advise(&file, &source, &model, &args.goal, check)?;
    tuned.begins_with_source = begins_with_source;
    tuned.notes.splice(..0, first_note.into_iter().chain(in_force));
    if !args.front {
        tuned.advice.front.clear();
    }
    match args.format.format {
        Format::Json => output::json(&tuned)?,
        Format::Csv if args.front => output::csv(&front_table(&tuned.advice, None))?,
        Format::Csv => output::csv(&table(&tuned.advice))?,
        Format::Table => output::text(&(opening(&tuned) + &front_words(&tuned.advice) + &ending(&tuned)))?,
    }
    if let Some(facts) = facts {
        args.plan.write(&tuned.advice, &model, source.reader().metadata(), facts, target)?;
    }
    let negative = args.exit_code && !tuned.advice.verdict.is_change();
    Ok(if negative { Answer::No } else { Answer::Yes })
}

/// The layer whose rule is searched.
pub(crate) fn one_layer(model: &Model) -> anyhow::Result<Layer> {
    match model.whose {
        Whose::One(layer) => Ok(layer),
        Whose::Stacked => {
            bail!("cannot tune two layers at once; give --layer host, guest or iothread")
        }
    }
}

/// Searches for the best setting of the layer's rule, and describes what was found, with the Pareto front.
pub(crate) fn advise(
    file: &str,
    source: &RecordingSource,
    model: &Model,
    goal: &GoalArgs,
    self_check: SelfCheck,
) -> anyhow::Result<Tuned> {
    let metadata = source.reader().metadata();
    model::refuse_least_lengths(metadata).with_context(|| file.to_owned())?;
    goal.check.refuse(file, &self_check)?;
    let layer = one_layer(model)?;
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
    let bar = progress::episodes(source.episodes() * 2, "tuning");
    let advice = tune(&Task {
        source,
        present,
        candidates: &candidates,
        goal: goal.goal(),
        halt_cost: model.halt_cost,
        wakeup_latency: &model.wakeup_latency,
        worth_a_change: goal.worth(),
        progress: &|episodes| bar.inc(episodes),
    });
    bar.finish_and_clear();
    let advice = advice.with_context(|| file.to_owned())?;
    let mut notes: Vec<String> = check::note(&self_check).into_iter().collect();
    if !recorded {
        notes.push("the recording does not have the setting in force; `present` is the default".to_owned());
    }
    notes.extend(model.notes(metadata));
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
    let names = source.reader().contents().idlers.iter().map(|idler| &*idler.name);
    let has_property = layer != Layer::Iothread || model.is_of_a_qemu() || lines::can_set(metadata, names);
    let mut words = if has_property {
        advice.words()
    } else {
        "none: the recorded threads are not QEMU's, as far as their names show, and have no such parameters. The rows show \
         what QEMU's rule would have cost; with --qmp SOCKET --iothread ID they are taken for that thread"
            .to_owned()
    };
    if let Some(more) = closed_loop(source.reader(), &advice)? {
        words += ". ";
        words += &more;
    }
    let lines = match advice.recommended().filter(|_| has_property) {
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
        begins_with_source: false,
    })
}

/// Costs of the present and the chosen setting at the other end of what the wakeup latency may be.
fn other_end(
    source: &RecordingSource,
    upper: Nanos,
    advice: &Advice,
    model: &Model,
) -> anyhow::Result<String> {
    let mut named = vec![("the present setting", advice.present)];
    named
        .extend(advice.chosen.filter(|chosen| *chosen != advice.present).map(|chosen| ("the other", chosen)));
    let rules: Vec<Rule> = named.iter().map(|(_, setting)| Rule::Layer(*setting)).collect();
    let cost_shares = |source: &RecordingSource| -> anyhow::Result<Vec<f64>> {
        let replayed = progress::replay(source, &rules, model.halt_cost)?;
        let share =
            |counts: &Counts| counts.cost_ns(model.halt_cost) as f64 / replayed.span.ns().max(1) as f64;
        Ok(replayed.counts.iter().map(share).collect())
    };
    let (without, with) = (cost_shares(source)?, cost_shares(&source.at_latency(upper))?);
    let costs = named.iter().zip(without.iter().zip(&with));
    let mut words =
        model::unknown_latency(upper, costs.map(|((name, _), (a, b))| ((*name).to_owned(), *a, *b)));
    if let ([a, b, ..], [late_a, late_b, ..]) = (&without[..], &with[..])
        && (a < b) != (late_a < late_b)
    {
        words +=
            ". THE ADVICE DEPENDS ON IT: at that latency the other setting costs more than the present one";
    }
    Ok(words)
}

/// This share of the wakeups by tasks of other recorded CPUs and devices, or more: the load may wait for itself.
const CLOSED_LOOP: f64 = 0.9;

/// What a replay does not show of a load that waits for itself; nothing where the recording does not show such a load.
fn closed_loop(reader: &Reader, advice: &Advice) -> anyhow::Result<Option<String>> {
    let (mut chunk, mut known, mut by_tasks, mut by_devices) = (Chunk::default(), 0u64, 0u64, 0u64);
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, Columns::WAKE, &mut chunk)?;
        for wake in chunk.wake.iter().flatten().filter(|wake| **wake != WakeCause::Unknown) {
            known += 1;
            by_tasks += u64::from(*wake == WakeCause::Ipi);
            by_devices += u64::from(*wake == WakeCause::Irq);
        }
    }
    let share = |of: u64| of as f64 / known.max(1) as f64;
    if share(by_tasks + by_devices) < CLOSED_LOOP || 2 * known < reader.episodes() {
        return Ok(None);
    }
    let direction = match advice.more_halts_per_s() {
        Some(more) if more > 0.0 => {
            "this one halts more often: expect less work done, up to several times less"
        }
        Some(more) if more < 0.0 => {
            "this one halts less often: expect more work done, and more CPU time in all"
        }
        _ => "fewer halts get more work done, at more CPU time in all, and more halts less",
    };
    let whose = if share(by_tasks) >= CLOSED_LOOP && reader.contents().idlers.len() > 1 {
        format!(
            "{} of the wakeups were by tasks of other CPUs, which idle themselves: this load waits for itself, its \
             throughput will change with the setting, and a replay does not show that",
            percent(share(by_tasks))
        )
    } else {
        format!(
            "{} of the wakeups were by tasks of other CPUs, {} by devices: where a request is sent only after the answer to \
             the one before, the load waits for itself, its throughput will change with the setting, and a replay does not \
             show that",
            percent(share(by_tasks)),
            percent(share(by_devices))
        )
    };
    Ok(Some(format!(
        "{whose}. As a rule of thumb, {direction}. Measure work before and after: dwell verify --work CMD"
    )))
}

/// So many rows of the front are printed as text.
const FRONT_ROWS: usize = 20;

/// The Pareto front; parameters that are as `present` are left out, if that is given, and all but every so many rows.
fn front_table(advice: &Advice, present: Option<&Values>) -> Table {
    let mut table =
        Table::new(priced::columns(false).into_iter().chain([Column::text("setting", "setting").below()]));
    let rows = advice.front.len();
    let most = if present.is_some() { FRONT_ROWS } else { rows };
    // Evenly, the first and the last among them.
    let shown = |row: usize| rows <= most || row * (most - 1) % (rows - 1) < most - 1;
    for (_, row) in advice.front.iter().enumerate().filter(|(at, _)| shown(*at)) {
        let setting =
            present.map_or_else(|| row.setting.clone(), |present| row.setting.differing_from(present));
        let setting = if setting.is_empty() { "as present".to_owned() } else { setting.to_string() };
        table.push(priced::cells(&row.figures, false).into_iter().chain([Cell::Text(setting)]));
    }
    table
}

/// The policies of an advice, on the second half.
fn table(advice: &Advice) -> Table {
    let mut columns = vec![Column::text("policy", "role")];
    columns.extend(priced::columns(false));
    columns.push(Column::number("(1st half)", "fitted_cost_over_optimum").rank(4));
    columns.push(Column::text("setting", "setting").below());
    let mut table = Table::new(columns);
    let present = advice.row(Role::Present).map(|row| row.row.setting.clone()).unwrap_or_default();
    for AdviceRow { role, row, fitted } in &advice.rows {
        let mut cells = vec![Cell::Text(role.name().to_owned())];
        cells.extend(priced::cells(&row.figures, false));
        cells.push(Cell::ratio(fitted.cost_over_optimum));
        cells.push(Cell::Text(setting_words(*role, &row.setting, &present)));
        table.push(cells);
    }
    table
}

/// The parameters in which a row differs from the present setting; all of them for the present setting itself.
fn setting_words(role: Role, setting: &Values, present: &Values) -> String {
    let differing = setting.differing_from(present);
    match role {
        Role::Present => setting.to_string(),
        // Their parameter is the halt cost, which is printed above.
        Role::Learner(_) => String::new(),
        _ if differing.is_empty() && !setting.is_empty() => "as present".to_owned(),
        _ => differing.to_string(),
    }
}

/// The costs of learning policies, which no kernel has, and how to get one.
fn better_rules(tuned: &Tuned) -> String {
    let advice = &tuned.advice;
    let cost = |role: Role| advice.figures(role).cost_over_optimum;
    let over = |role: Role| cost(role).map_or_else(|| "-".to_owned(), ratio);
    // By one part in a hundred: less does not show in what is printed.
    if tuned.layer == Layer::Driver.name() {
        return format!(
            "At this halt cost leader would cost {} times the optimum and savings {}; the best setting of the driver in \
             hindsight costs {}.",
            over(Role::LEADER),
            over(Role::SAVINGS),
            over(Role::BestInHindsight)
        );
    }
    let learner_is_better = cost(Role::LEADER)
        .zip(cost(Role::BestInHindsight))
        .is_some_and(|(leader, best)| leader < 0.99 * best);
    let offer = if tuned.layer == Layer::Guest.name() && learner_is_better {
        format!(
            "\nFor guests of KVM the idle driver dwell_idle has leader: install dwell-idle-dkms (kernel/dwell_idle), then\n\
             modprobe dwell_idle halt_cost_ns={}",
            advice.halt_cost_ns
        )
    } else {
        String::new()
    };
    format!(
        "A learning policy would cost {} times the optimum (leader) or {} (savings); the best setting of today's rule\n\
         in hindsight costs {}. The crate dwell-policy has both policies; no kernel does.{offer}",
        over(Role::LEADER),
        over(Role::SAVINGS),
        over(Role::BestInHindsight)
    )
}

/// The possible gain, the cost of each policy, and the advice, as text.
pub(crate) fn opening(tuned: &Tuned) -> String {
    let advice = &tuned.advice;
    let share = |ns_per_s: f64| percent(ns_per_s / 1e9);
    let first = if tuned.begins_with_source { tuned.notes.first().map(String::as_str) } else { None };
    let first = first.map_or_else(String::new, output::wrapped);
    let head = format!(
        "{}: {}, {} layer, rule of {} {}",
        tuned.file,
        model::episodes_of(tuned.episodes, tuned.idlers),
        tuned.layer,
        if tuned.layer == Layer::Iothread.name() { "QEMU" } else { "Linux" },
        tuned.version,
    );
    let costs = format!("halt cost: {}", model::halt_cost_words(advice.halt_cost_ns, tuned.halt_cost_origin));
    let bound = format!(
        "Prices are CPU time polled plus halts at the halt cost, in shares of a CPU. Any policy could gain at most {}: the \
         present setting costs {}, of which CPU time polled {}, and the optimum, a lower bound for any policy, {}.",
        share(advice.upper_bound.gain_ns_per_s.max(0.0)),
        share(advice.upper_bound.present_cost_ns_per_s),
        share(advice.figures(Role::Present).polling_ns_per_s),
        share(advice.upper_bound.optimum_cost_ns_per_s),
    );
    let halves = format!(
        "{} settings were tried on the first half of the recording ({}). On the second half ({}), which was not used for \
         the choice:",
        count(advice.settings_tried as u128),
        duration(advice.fitted_span_ns as f64),
        duration(advice.judged_span_ns as f64),
    );
    [
        first,
        output::wrapped(&head),
        output::wrapped(&format!("goal: {}", advice.goal)),
        output::wrapped(&costs),
        "\n".to_owned(),
        output::wrapped(&bound),
        "\n".to_owned(),
        output::wrapped(&halves),
        "\n".to_owned(),
        output::fitted(&table(advice)),
        "\n".to_owned(),
        output::wrapped(&format!("Advice: {}", tuned.words)),
        "\n".to_owned(),
        output::wrapped(&better_rules(tuned).replace('\n', " ")),
    ]
    .concat()
}

/// The Pareto front as text; empty if it was not asked for.
fn front_words(advice: &Advice) -> String {
    if advice.front.is_empty() {
        return String::new();
    }
    let words = format!(
        "No setting tried has both less polling CPU and fewer halts than one of these {}, on the second half{}:",
        count(advice.front.len() as u128),
        if advice.front.len() > FRONT_ROWS {
            format!("; {FRONT_ROWS} are shown, --format csv has all")
        } else {
            String::new()
        },
    );
    let present = Values::from(&advice.present);
    format!("\n{}\n{}", output::wrapped(&words), output::fitted(&front_table(advice, Some(&present))))
}

/// The lines that set the advised values, and the notes, as text.
pub(crate) fn ending(tuned: &Tuned) -> String {
    let mut text = String::new();
    for Lines { about, lines } in &tuned.lines {
        text += &format!("\n# {about}\n{}\n", lines.join("\n"));
    }
    let rest = tuned.notes.iter().skip(usize::from(tuned.begins_with_source));
    for (number, note) in rest.enumerate() {
        let before = if number == 0 { "\n" } else { "" };
        text += &format!("{before}{}", output::wrapped(&format!("note: {note}")));
    }
    text
}
