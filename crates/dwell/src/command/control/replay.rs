//! `dwell control --replay`

use crate::check;
use crate::command::replay::table;
use crate::failure::{Answer, Outcome};
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, Format};
use crate::progress;
use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use dwell_control::daemon::decisions::{ChangeWritten, Slice, fewer};
use dwell_control::daemon::tenants::{self, By};
use dwell_control::daemon::words;
use dwell_control::{Change, Observation, Simulated, TENTH_NS, Tenant, Terms, simulate};
use dwell_policy::catalogue::Terms as Learner;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Reader;
use dwell_replay::advice::Origin;
use dwell_replay::{Memory, Pricing, Row, Rule, Source, Values, grid, replay, study};
use dwell_report::{Cell, Column, Table, duration, percent};
use serde::Serialize;
use std::path::PathBuf;

/// What the controller sees of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Observe {
    /// The episodes of each idler, as a recorder sees them.
    Episodes,
    /// The histograms that KVM would have counted of each vCPU.
    Statistics,
}

/// A controlled recording, or several as one host, as printed.
#[derive(Serialize)]
struct Controlled {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vms: Vec<Vm>,
    layer: &'static str,
    version: String,
    halt_cost_ns: u64,
    halt_cost_origin: Origin,
    observation: Observe,
    episodes: u64,
    idlers: usize,
    span_ns: u64,
    decisions: u64,
    originals: Values,
    changes: Vec<ChangeWritten>,
    /// Over time.
    costs: Vec<Slice>,
    /// Costs; the last is the optimum.
    results: Vec<Row>,
    /// Share of the gain of the leader over the originals that control keeps, by logarithms as `dwell study`
    /// has it; null if there is none.
    keeps_of_leader: Option<f64>,
    /// The same of the setting that is best in hindsight.
    keeps_of_best: Option<f64>,
    worst_ten_seconds: Worst,
    notes: Vec<String>,
}

/// One of several recordings.
#[derive(Serialize)]
struct Vm {
    file: String,
    /// How long it is; it is repeated or cut to the span of all.
    span_ns: u64,
    weight: f64,
    most_loss: Option<f64>,
    /// Its idlers, each of which has the weight and the limit for itself.
    #[serde(skip)]
    idlers: usize,
    /// What they cost under control, and under the originals.
    controlled_ns: u128,
    originals_ns: u128,
    /// Times that one of them vetoed the setting that costs least.
    vetoes: u64,
}

impl Vm {
    fn tenant(&self) -> Tenant {
        Tenant { weight: self.weight, most_loss: self.most_loss }
    }
}

#[derive(Serialize)]
struct Worst {
    controlled_ns: f64,
    originals_ns: f64,
}

impl Controlled {
    fn name(&self) -> String {
        self.file.clone().unwrap_or_else(|| format!("{} recordings as VMs of one host", self.vms.len()))
    }
}

/// The most episodes of several recordings, all of which are in memory.
const MOST_EPISODES: f64 = 20e6;

const NEVER: usize = 0;
const ORIGINALS: usize = 1;
const LEADER: usize = 2;
const FIRST_OF_GRID: usize = 3;

pub(super) fn run(
    files: &[PathBuf],
    span: Option<Nanos>,
    vms: &[tenants::Vm],
    model: &ModelArgs,
    observe: Observe,
    format: Format,
) -> Outcome {
    let [file] = files else { return as_one_host(files, span, vms, model, observe, format) };
    ensure!(span.is_none(), "--duration is for several recordings; one is replayed to its end");
    ensure!(vms.is_empty(), "--vm is for several recordings; one has the host for itself");
    let reader = model::open(file)?;
    let metadata = reader.metadata().clone();
    let given = Given::of(&reader, model, observe)?;
    let mut notes = given.model.notes(&metadata);
    notes.extend(given.note());
    let (source, self_check) = check::check(given.model.source(reader))?;
    notes.extend(check::note(&self_check));
    notes.extend(model::note_of_few(source.episodes()));
    notes.extend(model::note_of_time(&metadata));
    show(
        &source,
        &given,
        Names { file: Some(file.display().to_string()), vms: vec![] },
        notes,
        observe,
        format,
    )
}

/// What a recording and the options give.
struct Given {
    model: Model,
    layer: Layer,
    originals: Setting,
    /// Whether the recording has the originals.
    recorded: bool,
}

impl Given {
    fn of(reader: &Reader, args: &ModelArgs, observe: Observe) -> anyhow::Result<Given> {
        let metadata = reader.metadata();
        model::refuse_least_lengths(metadata)?;
        let model = Model::of(args, reader)?;
        let Whose::One(layer) = model.whose else {
            bail!("--layer guest+host: control sets one layer; give guest, host or iothread")
        };
        ensure!(
            layer != Layer::Driver,
            "control of the idle driver dwell_idle is not replayed over recordings; --layer guest replays control of haltpoll"
        );
        ensure!(
            observe == Observe::Episodes || layer == Layer::Host,
            "--observe statistics needs --layer host: only KVM counts such histograms"
        );
        let (settings, recorded) = model.present(metadata);
        let originals = settings[0];
        Ok(Given { model, layer, originals, recorded })
    }

    fn note(&self) -> Option<String> {
        (!self.recorded).then(|| "the recording has no setting: the originals are the defaults".to_owned())
    }
}

/// What is controlled.
struct Names {
    file: Option<String>,
    vms: Vec<Vm>,
}

/// The recordings at the same time, each as a VM of one host, which has one setting.
fn as_one_host(
    files: &[PathBuf],
    span: Option<Nanos>,
    listed: &[tenants::Vm],
    args: &ModelArgs,
    observe: Observe,
    format: Format,
) -> Outcome {
    let mut sources = vec![];
    let (mut vms, mut notes) = (vec![], vec![]);
    let name_of = |file: &PathBuf| file.file_stem().map(|name| name.to_string_lossy().into_owned());
    let is_of = |vm: &tenants::Vm, file: &PathBuf| matches!(&vm.by, By::Name(name) if name_of(file).as_ref() == Some(name));
    for vm in listed {
        let By::Name(name) = &vm.by else { continue };
        ensure!(
            files.iter().any(|file| is_of(vm, file)),
            "--vm {name}: no recording has this name; give the name of a file without its directory and its end"
        );
    }
    let mut first: Option<Given> = None;
    for file in files {
        let name = file.display().to_string();
        let reader = model::open(file)?;
        let given = Given::of(&reader, args, observe).with_context(|| name.clone())?;
        ensure!(
            given.layer == Layer::Host,
            "several recordings are controlled as VMs of one host: give --layer host ({name} is of the {} layer)",
            given.layer.name()
        );
        if let Some(first) = &first {
            let same =
                (given.model.version, given.model.halt_cost) == (first.model.version, first.model.halt_cost);
            ensure!(
                same,
                "{name} is of another kernel or halt cost than the first recording: one host has one; give --kernel and --halt-cost"
            );
            ensure!(
                given.originals == first.originals,
                "{name} was recorded under another setting than the first recording: one host has one"
            );
        }
        let (source, self_check) = check::check(given.model.source(reader)).with_context(|| name.clone())?;
        first.get_or_insert(given);
        notes.extend(check::note(&self_check).map(|note| format!("{name}: {note}")));
        let span_ns = source.visit(0..u64::MAX, &mut |_| ())?.ns();
        ensure!(span_ns > 0, "{name}: there are no episodes; leave it out");
        let Tenant { weight, most_loss } =
            listed.iter().find(|vm| is_of(vm, file)).map_or_else(Tenant::default, |vm| vm.tenant);
        let idlers = source.idlers();
        vms.push(Vm {
            file: name,
            span_ns,
            weight,
            most_loss,
            idlers,
            controlled_ns: 0,
            originals_ns: 0,
            vetoes: 0,
        });
        sources.push(source);
    }
    let Some(given) = first else { bail!("--replay needs a recording") };
    let mut spans: Vec<u64> = vms.iter().map(|vm| vm.span_ns).collect();
    spans.sort_unstable();
    let span_ns = span.map_or(spans[spans.len() / 2], Nanos::get);
    ensure!(span_ns > 0, "--duration: 0 is no time; give some seconds");
    // Of each millisecond that a recording has, as many episodes as it has.
    let episodes: f64 = sources
        .iter()
        .zip(&vms)
        .map(|(source, vm)| source.episodes() as f64 * span_ns as f64 / vm.span_ns as f64)
        .sum();
    ensure!(
        episodes <= MOST_EPISODES,
        "these are {episodes:.0} episodes, more than {MOST_EPISODES}; give a shorter --duration"
    );
    notes.push(format!(
        "all begin at the same time; those that are shorter than {} are repeated, those that are longer are cut; --duration sets that time",
        duration(span_ns as f64)
    ));
    notes.extend(given.note());
    let all: Vec<&dyn Source> = sources.iter().map(|source| source as &dyn Source).collect();
    let source = Memory::together(&all, span_ns)?;
    show(&source, &given, Names { file: None, vms }, notes, observe, format)
}

fn show(
    source: &dyn Source,
    given: &Given,
    mut names: Names,
    notes: Vec<String>,
    observe: Observe,
    format: Format,
) -> Outcome {
    let Given { model, layer, originals, .. } = given;
    let (layer, originals) = (*layer, *originals);
    let tenants: Vec<Tenant> =
        names.vms.iter().flat_map(|vm| std::iter::repeat_n(vm.tenant(), vm.idlers)).collect();
    let simulated = control(source, originals, model.halt_cost, observe, &tenants)?;
    let mut idlers = simulated.idlers.iter();
    for vm in &mut names.vms {
        for of in idlers.by_ref().take(vm.idlers) {
            vm.controlled_ns += of.controlled.cost_ns(model.halt_cost);
            vm.originals_ns += of.originals.cost_ns(model.halt_cost);
            vm.vetoes += of.vetoes;
        }
    }
    let mut rules = vec![Rule::Never, Rule::Layer(originals), Rule::leader(Learner::at(model.halt_cost))];
    rules.extend(grid::settings(layer, model.version).into_iter().map(Rule::Layer));
    let replayed = replay(source, &rules, model.halt_cost, &|_| ())?;
    let pricing = Pricing {
        halt_cost: model.halt_cost,
        wakeup_latency: &model.wakeup_latency,
        span_ns: replayed.span.ns(),
        optimum_ns: replayed.optimum.cost_ns(model.halt_cost),
    };
    let cost = |place: usize| replayed.counts[place].cost_ns(model.halt_cost);
    let best = (FIRST_OF_GRID..rules.len()).min_by_key(|place| cost(*place)).unwrap_or(ORIGINALS);
    let row = |name: &str, place: usize| {
        let row = pricing.row(&rules[place], &replayed.counts[place]);
        Row { policy: name.to_owned(), ..row }
    };
    let figures = |counts| pricing.price(counts);
    let alone =
        |policy: &str, figures| Row { policy: policy.to_owned(), setting: Values::default(), figures };
    let kept = |other: usize| {
        let controlled = simulated.controlled.cost_ns(model.halt_cost) as f64;
        study::kept(cost(ORIGINALS) as f64, cost(other) as f64, controlled)
    };
    let [controlled_ns, originals_ns] = simulated.worst_ten_seconds();
    let called = |idler: u64| {
        let mut left = usize::try_from(idler).unwrap_or(usize::MAX);
        let of = names.vms.iter().find(|vm| {
            let is_its = left < vm.idlers;
            left = left.saturating_sub(vm.idlers);
            is_its
        });
        of.map_or_else(|| format!("idler {idler}"), |vm| vm.file.clone())
    };
    let reason = |change: &Change| words::line(change, &called);
    let of = |change: &Change| ChangeWritten::of(change, simulated.started_ns, reason(change));
    let made = simulated.changes.iter().map(of).collect();
    let controlled = Controlled {
        file: names.file,
        vms: names.vms,
        layer: layer.name(),
        version: model.version.to_string(),
        halt_cost_ns: model.halt_cost.get(),
        halt_cost_origin: model.halt_cost_origin,
        observation: observe,
        episodes: source.episodes(),
        idlers: source.idlers(),
        span_ns: pricing.span_ns,
        decisions: simulated.decisions,
        originals: Values::from(&originals),
        changes: made,
        costs: costs(&simulated),
        results: vec![
            row("originals", ORIGINALS),
            row("never", NEVER),
            row("best in hindsight", best),
            row("leader", LEADER),
            alone("controlled", figures(&simulated.controlled)),
            alone("optimum", figures(&replayed.optimum)),
        ],
        keeps_of_leader: kept(LEADER),
        keeps_of_best: kept(best),
        worst_ten_seconds: Worst { controlled_ns, originals_ns },
        notes,
    };
    match format {
        Format::Json => output::json(&controlled)?,
        Format::Csv => output::csv(&changes(&controlled))?,
        Format::Table => print(&controlled)?,
    }
    Ok(Answer::Yes)
}

fn control(
    source: &dyn Source,
    originals: Setting,
    halt_cost: Nanos,
    observe: Observe,
    tenants: &[Tenant],
) -> anyhow::Result<Simulated> {
    let observation = match observe {
        Observe::Episodes => Observation::Episodes,
        Observe::Statistics => Observation::Statistics,
    };
    let bar = progress::episodes(source.episodes(), "controlling");
    let simulated = simulate(source, originals, Terms::at(halt_cost), observation, tenants, &|episodes| {
        bar.inc(episodes)
    });
    bar.finish_and_clear();
    Ok(simulated?)
}

/// The costs of each tenth of a second, or of several together.
fn costs(simulated: &Simulated) -> Vec<Slice> {
    let slice = |(number, &[measured_ns, originals_ns, optimum_ns]): (u64, &[f64; 3])| Slice {
        from_ns: number * TENTH_NS,
        to_ns: (number + 1) * TENTH_NS,
        measured_ns,
        originals_ns,
        optimum_ns,
    };
    fewer((0..).zip(&simulated.tenths_ns).map(slice).collect())
}

fn changes(controlled: &Controlled) -> Table {
    let mut table = Table::new([
        Column::number("after", "at_ns"),
        Column::text("setting", "setting"),
        Column::number("writes", "writes"),
        Column::text("change and reason", "reason"),
    ]);
    for change in &controlled.changes {
        table.push([
            Cell::Nanos(change.at_ns() as f64),
            Cell::Text(change.to().to_string()),
            Cell::Count(change.writes as u128),
            Cell::Text(change.reason.clone()),
        ]);
    }
    table
}

/// What control costs each VM.
fn vms(vms: &[Vm]) -> Table {
    let mut table = Table::new([
        Column::text("VM", "file"),
        Column::number("weight", "weight"),
        Column::number("limit", "most_loss"),
        Column::number("cost", "controlled_ns"),
        Column::number("originals", "originals_ns"),
        Column::number("ratio", "ratio"),
        Column::number("vetoes", "vetoes"),
    ]);
    for vm in vms {
        let [controlled, originals] = [vm.controlled_ns, vm.originals_ns].map(|ns| ns as f64);
        table.push([
            Cell::Text(vm.file.clone()),
            Cell::Text(vm.weight.to_string()),
            Cell::share(vm.most_loss),
            Cell::Nanos(controlled),
            Cell::Nanos(originals),
            Cell::Ratio(controlled / originals),
            Cell::Count(vm.vetoes.into()),
        ]);
    }
    table
}

fn print(controlled: &Controlled) -> anyhow::Result<()> {
    output::text(&output::wrapped(&format!(
        "{}: {} over {}, {} layer, rule of {} {}",
        controlled.name(),
        model::episodes_of(controlled.episodes, controlled.idlers),
        duration(controlled.span_ns as f64),
        controlled.layer,
        if controlled.layer == Layer::Iothread.name() { "QEMU" } else { "Linux" },
        controlled.version,
    )))?;
    let halt_cost = model::halt_cost_words(controlled.halt_cost_ns, controlled.halt_cost_origin);
    output::text(&output::wrapped(&format!("halt cost: {halt_cost}")))?;
    output::text(&output::wrapped(&format!("originals: {}", controlled.originals)))?;
    output::text("\n")?;
    for change in &controlled.changes {
        let at = format!("{:>9}  ", duration(change.at_ns() as f64));
        output::text(&output::hanging(&at, &" ".repeat(at.len()), &change.reason))?;
    }
    let writes: usize = controlled.changes.iter().map(|change| change.writes).sum();
    output::text(&format!(
        "{}decisions: {}, changes: {}, parameters written: {writes}\n\n",
        if controlled.changes.is_empty() { "" } else { "\n" },
        controlled.decisions,
        controlled.changes.len(),
    ))?;
    output::text(&(output::fitted(&table(&controlled.results, false)) + "\n"))?;
    if !controlled.vms.is_empty() {
        output::text(&(output::fitted(&vms(&controlled.vms)) + "\n"))?;
    }
    let share = |kept: Option<f64>| kept.map_or_else(|| "there is none".to_owned(), percent);
    output::text(&format!(
        "kept of the gain of the leader             {}\n",
        share(controlled.keeps_of_leader)
    ))?;
    output::text(&format!(
        "kept of the gain of the best in hindsight  {}\n",
        share(controlled.keeps_of_best)
    ))?;
    let Worst { controlled_ns, originals_ns } = controlled.worst_ten_seconds;
    if originals_ns > 0.0 {
        output::text(&format!(
            "worst 10 s: {} under control, {} under the originals, ratio {:.3}\n",
            duration(controlled_ns),
            duration(originals_ns),
            controlled_ns / originals_ns
        ))?;
    }
    for note in &controlled.notes {
        output::text(&output::wrapped(&format!("note: {note}")))?;
    }
    Ok(())
}
