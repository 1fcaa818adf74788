//! `dwell control --replay`

mod host;
mod show;

use crate::check;
use crate::failure::Outcome;
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, Format};
use crate::progress;
use anyhow::{bail, ensure};
use dwell_control::daemon::decisions::{ChangeWritten, Slice};
use dwell_control::daemon::tenants;
use dwell_control::daemon::words as reasons;
use dwell_control::{Change, Observation, Simulated, Tenant, Terms, simulate};
use dwell_policy::catalogue::Terms as Learner;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_recording::Reader;
use dwell_replay::advice::Origin;
use dwell_replay::{Counts, Row, Rule, Source, Values, grid, kept, replay};
use host::as_one_host;
use serde::Serialize;
use show::{changes, costs, words};
use std::path::PathBuf;

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
    observation: Observation,
    episodes: u64,
    idlers: usize,
    span_ns: u64,
    decisions: u64,
    originals: Values,
    changes: Vec<ChangeWritten>,
    costs: Vec<Slice>,
    /// Costs; the last is the optimum.
    results: Vec<Row>,
    /// Share of the gain of the leader over the originals that control keeps, by logarithms as `dwell-lab study`
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

/// The most idlers, of each of which a controller keeps about 200 kB: 2 GB.
const MOST_CONTROLLED: usize = 10_000;

const NEVER: usize = 0;
const ORIGINALS: usize = 1;
const LEADER: usize = 2;
const FIRST_OF_GRID: usize = 3;

pub(super) fn run(
    files: &[PathBuf],
    span: Option<Nanos>,
    vms: &[tenants::Vm],
    model: &ModelArgs,
    observe: Observation,
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
    notes.extend(self_check.note());
    notes.extend(model::notes_of_length(source.episodes(), &metadata));
    show(&source, &given, Some(file.display().to_string()), vec![], notes, observe, format)
}

/// The longest time that is replayed \[ns\], 31 days: each tenth of a second of it has costs, also where nothing happens.
const LONGEST_NS: u64 = 31 * 86_400 * 1_000_000_000;

/// What a recording and the options give.
struct Given {
    model: Model,
    layer: Layer,
    originals: Setting,
    /// Whether the recording has the originals.
    recorded: bool,
}

impl Given {
    fn of(reader: &Reader, args: &ModelArgs, observe: Observation) -> anyhow::Result<Given> {
        let metadata = reader.metadata();
        model::refuse_least_lengths(metadata, "replay")?;
        ensure!(
            reader.span_ns() <= LONGEST_NS,
            "control is replayed over at most 31 days, and the recording claims {} from its first start to its last end; \
             `dwell info` shows its times",
            dwell_report::duration(reader.span_ns() as f64)
        );
        let model = Model::of(args, reader)?;
        let Whose::One(layer) = model.whose else {
            bail!("control sets one layer; give --layer guest, host or iothread")
        };
        ensure!(
            layer != Layer::Driver,
            "control of the idle driver dwell_idle is not replayed over recordings; --layer guest replays control of haltpoll"
        );
        ensure!(
            observe == Observation::Episodes || layer == Layer::Host,
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

/// Controls a recording, by its file, or several as these VMs.
fn show(
    source: &dyn Source,
    given: &Given,
    file: Option<String>,
    mut vms: Vec<Vm>,
    notes: Vec<String>,
    observe: Observation,
    format: Format,
) -> Outcome {
    let Given { model, layer, originals, .. } = given;
    let (layer, originals) = (*layer, *originals);
    let tenants: Vec<Tenant> =
        vms.iter().flat_map(|vm| std::iter::repeat_n(vm.tenant(), vm.idlers)).collect();
    let known = source.idlers();
    ensure!(
        known <= MOST_CONTROLLED,
        "cannot control {known} idlers: each takes 200 kB of memory, and {MOST_CONTROLLED} are the most; record fewer"
    );
    let simulated = control(source, originals, model.halt_cost, observe, &tenants)?;
    let mut idlers = simulated.idlers.iter();
    for vm in &mut vms {
        for of in idlers.by_ref().take(vm.idlers) {
            vm.controlled_ns += of.controlled.cost_ns(model.halt_cost);
            vm.originals_ns += of.originals.cost_ns(model.halt_cost);
            vm.vetoes += of.vetoes;
        }
    }
    let mut rules = vec![Rule::NEVER, Rule::Layer(originals), Rule::leader(Learner::at(model.halt_cost))];
    rules.extend(grid::settings(layer, model.version).into_iter().map(Rule::Layer));
    let replayed = replay(source, &rules, model.halt_cost, &|_| ())?;
    let pricing = model.pricing(&replayed);
    let cost = |place: usize| replayed.counts[place].cost_ns(model.halt_cost);
    let best = (FIRST_OF_GRID..rules.len()).min_by_key(|place| cost(*place)).unwrap_or(ORIGINALS);
    let row = |name: &str, place: usize| {
        let row = pricing.row(&rules[place], &replayed.counts[place]);
        Row { policy: name.to_owned(), ..row }
    };
    let alone = |policy: &str, counts: &Counts| Row {
        policy: policy.to_owned(),
        setting: Values::default(),
        figures: pricing.price(counts),
    };
    let kept = |other: usize| {
        let controlled = simulated.controlled.cost_ns(model.halt_cost) as f64;
        kept(cost(ORIGINALS) as f64, cost(other) as f64, controlled)
    };
    let [controlled_ns, originals_ns] = simulated.worst_ten_seconds();
    let called = |idler: u64| {
        let mut left = usize::try_from(idler).unwrap_or(usize::MAX);
        let of = vms.iter().find(|vm| {
            let is_its = left < vm.idlers;
            left = left.saturating_sub(vm.idlers);
            is_its
        });
        of.map_or_else(|| format!("idler {idler}"), |vm| vm.file.clone())
    };
    let reason = |change: &Change| reasons::line(change, &called);
    let of = |change: &Change| ChangeWritten::of(change, simulated.started_ns, reason(change));
    let made = simulated.changes.iter().map(of).collect();
    let controlled = Controlled {
        file,
        vms,
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
            alone("controlled", &simulated.controlled),
            alone("optimum", &replayed.optimum),
        ],
        keeps_of_leader: kept(LEADER),
        keeps_of_best: kept(best),
        worst_ten_seconds: Worst { controlled_ns, originals_ns },
        notes,
    };
    output::result(format, &controlled, || changes(&controlled), || words(&controlled))
}

fn control(
    source: &dyn Source,
    originals: Setting,
    halt_cost: Nanos,
    observe: Observation,
    tenants: &[Tenant],
) -> anyhow::Result<Simulated> {
    let bar = progress::episodes(source.episodes(), "controlling");
    let simulated =
        simulate(source, originals, Terms::at(halt_cost), observe, tenants, &|episodes| bar.inc(episodes));
    bar.finish_and_clear();
    Ok(simulated?)
}
