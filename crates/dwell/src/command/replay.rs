//! `dwell replay`

use crate::by_work::host::{Above, Host, Seen, TOO_LITTLE};
use crate::by_work::{self, Basis};
use crate::check;
use crate::failure::Outcome;
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, FormatArg};
use crate::progress;
use crate::settings;
use anyhow::{Context, ensure};
use dwell_policy::param::Setting;
use dwell_recording::Reader;
use dwell_replay::advice::Origin;
use dwell_replay::causal::{self, Predictor, RowByWork};
use dwell_replay::check::SelfCheck;
use dwell_replay::{Counts, Replayed, Row, Rule, Source};
use dwell_report::{Column, Table, duration, priced};
use serde::Serialize;
use std::path::PathBuf;

/// Replay a recording through settings and print what each would have cost
///
/// Prints polling CPU, halts and their cost for never polling, always polling and each setting given. An episode of
/// length d under a window w polls for min(d, w) and succeeds if d <= w; otherwise the idler halts. The cost is the
/// time polled + halts x halt cost. A replay starts in the state of a new vCPU or CPU. Where the recording has what
/// woke its tasks or vCPUs, a second table has the work done under each setting, as `dwell tune` predicts it.
#[derive(clap::Args)]
#[command(
    mut_arg("layer", |arg| arg.value_parser(crate::suggest::replayed_layers(Whose::parse)).long_help(
        "Layer whose rule to replay [default: the layer of the recording]\n\n\
         host is KVM halt polling, guest the haltpoll governor, driver the idle driver dwell_idle of a guest, iothread QEMU's \
         adaptive polling, and guest+host a polling guest on a host that may poll as well. A recording of one layer can be \
         replayed through the rule of another.",
    )),
    after_help = "Examples:\n  dwell replay recordings/guest-memcached_poisson10k.parquet --layer host --kernel 6.18 \
                        --set halt_poll_ns=160us --set halt_poll_ns_shrink=2 --set halt_poll_ns=50us\n  \
                        dwell replay iothread.parquet --qemu 11.1"
)]
pub(crate) struct Args {
    /// Recording in Parquet, written by `dwell record` or `dwell import`
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Parameter to set, over the defaults of the version
    ///
    /// Can be repeated for more parameters. A name that the setting already has begins another setting, which is
    /// replayed as well; so does the word `default`, which is the setting of all defaults. Times take ns, us, ms or
    /// s. `dwell params` lists names, ranges and defaults. Without --set, the settings in force while recording are
    /// replayed, else the defaults. With --layer guest+host, the names of both layers are accepted.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Policy to replay beside the settings, such as leader@20us
    ///
    /// Can be given several times.
    #[arg(long, value_name = "POLICY", value_parser = crate::suggest::policies(settings::policy), hide_possible_values = true, long_help = settings::policy_help())]
    policy: Vec<Rule>,
    /// With --layer guest+host: the host polls as well
    ///
    /// Use it for hosts without poll control. With poll control, the guest's haltpoll driver switches host polling
    /// off.
    #[arg(long)]
    host_polls_too: bool,
    /// The host's recording of the same time: replay the guest and its host together
    ///
    /// By `dwell record host`, while `dwell record guest` ran in the guest; each of the guest's halts is found in it. The
    /// layer is guest+host, and the table by work is of both: without --set, of the guest polling, the host, both and
    /// neither.
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArg,
}

/// Policies and their costs, as printed.
#[derive(Serialize)]
struct Costs {
    file: String,
    layer: &'static str,
    version: String,
    halt_cost_ns: u64,
    halt_cost_origin: Origin,
    wakeup_latency_ns: f64,
    wakeup_latency_origin: Origin,
    episodes: u64,
    idlers: usize,
    span_ns: u64,
    idle_ns: u128,
    optimum_cost_ns: u128,
    self_check: SelfCheck,
    notes: Vec<String>,
    results: Vec<Row>,
    /// The settings by the work done under them, where the recording has what woke the tasks.
    #[serde(skip_serializing_if = "Option::is_none")]
    work: Option<ReplayedByWork>,
}

/// Settings by the work done.
#[derive(Serialize)]
struct ReplayedByWork {
    #[serde(flatten)]
    basis: Basis,
    /// What the host's recording has of the guest's halts.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<Seen>,
    settings: Vec<RowByWork>,
}

impl ReplayedByWork {
    /// Of a recording that has causes, and the setting that was in force.
    fn of(
        reader: &Reader,
        model: &mut Model,
        asked: &[Vec<Setting>],
    ) -> anyhow::Result<Option<ReplayedByWork>> {
        let (present, true) = model.present(reader.metadata()) else { return Ok(None) };
        let [present] = present[..] else { return Ok(None) };
        let Some(segments) = by_work::segments(reader, present.layer())? else { return Ok(None) };
        let predictor = Predictor::of_all(&segments, &Rule::Layer(present), &[], model.calibrated())?;
        let Some(predictor) = predictor else { return Ok(None) };
        model.halts_cost_at_least(predictor.added_by_halt());
        let never = causal::with_maximum(present, 0);
        let rules = [("in force", present), ("never", never)].into_iter();
        let rules = rules.chain(asked.iter().flatten().map(|setting| ("", *setting)));
        let rules =
            causal::distinct(rules.map(|(role, setting)| (role, Rule::Layer(setting))), |(_, rule)| *rule);
        let settings = causal::rows(&predictor, &rules, model.halt_cost)?;
        let basis = Basis::of(&segments, &predictor, by_work::can_verify(present, reader));
        Ok(Some(ReplayedByWork { basis, host: None, settings }))
    }

    /// Of a guest and its host that were recorded together; `asked` are the rules of --set.
    fn above(
        host: &Host,
        reader: &Reader,
        model: &mut Model,
        asked: &[Rule],
    ) -> anyhow::Result<ReplayedByWork> {
        let above = host.above(reader, model)?;
        let known = above.calibrated(model);
        let Above { segments, seen, present } = above;
        let predictor = Predictor::of_all(&segments, &present, &seen.by_host, known)?;
        let predictor = predictor.context(TOO_LITTLE)?;
        model.halts_cost_at_least(predictor.added_by_halt());
        let mut rules = vec![("in force", present)];
        rules.extend(causal::references(&present));
        if !asked.is_empty() {
            rules.truncate(2);
            rules.extend(asked.iter().map(|rule| ("", *rule)));
        }
        let rules = causal::distinct(rules, |(_, rule)| *rule);
        let settings = causal::rows(&predictor, &rules, model.halt_cost)?;
        let basis = Basis::of(&segments, &predictor, false);
        Ok(ReplayedByWork { basis, host: Some(seen), settings })
    }
}

pub(crate) fn run(mut args: Args) -> Outcome {
    let reader = model::open(&args.file)?;
    let metadata = reader.metadata().clone();
    model::refuse_least_lengths(&metadata, "replay").with_context(|| args.file.display().to_string())?;
    if args.host.is_some() {
        args.model.above_host()?;
    }
    let model = Model::of(&args.model, &reader)?;
    ensure!(
        !args.host_polls_too || model.whose == Whose::Stacked,
        "--host-polls-too needs --layer guest+host"
    );
    let host = args.host.as_deref().map(|path| Host::open(path, args.model.versions.kernel)).transpose()?;
    let mut model = model.with_host_version(host.as_ref().map(|host| host.version));
    let mut notes = vec![];
    let asked = if args.set.is_empty() {
        let (present, recorded) = model.present(&metadata);
        let which = if recorded {
            "those in force while recording"
        } else {
            "the defaults, since the recording has none"
        };
        notes.push(format!("without --set, the settings shown are {which}"));
        vec![present]
    } else {
        settings::groups("--set", &args.set, &model.defaults())?
    };
    let of_settings: Vec<Rule> = asked.iter().map(|settings| rule(settings, args.host_polls_too)).collect();
    let work = match &host {
        Some(host) => {
            let given = if args.set.is_empty() { &[][..] } else { &of_settings };
            Some(ReplayedByWork::above(host, &reader, &mut model, given)?)
        }
        None => ReplayedByWork::of(&reader, &mut model, &asked)?,
    };
    notes.splice(..0, model.notes(&metadata));
    let mut rules = vec![Rule::NEVER, Rule::ALWAYS];
    rules.extend(of_settings);
    rules.extend(&args.policy);

    let (source, self_check) = check::check(model.source(reader))?;
    notes.extend(self_check.note());
    notes.extend(model::notes_of_length(source.episodes(), &metadata));
    let outcome = progress::replay(&source, &rules, model.halt_cost)?;
    notes.extend(model::note_of_overlaps(&source)?);
    notes.extend(model.note_of_latency(&source)?);
    let pricing = model.pricing(&outcome);
    let Replayed { counts, optimum: bound, .. } = outcome;
    let mut replayed = Costs {
        file: args.file.display().to_string(),
        layer: model.whose.name(),
        version: model.version.to_string(),
        halt_cost_ns: model.halt_cost.get(),
        halt_cost_origin: model.halt_cost_origin,
        wakeup_latency_ns: model.wakeup_latency.mean_ns(),
        wakeup_latency_origin: model.wakeup_latency_origin,
        episodes: bound.episodes,
        idlers: source.idlers(),
        span_ns: pricing.span_ns,
        idle_ns: bound.idle_ns,
        optimum_cost_ns: pricing.optimum_ns,
        self_check,
        notes,
        results: rules.iter().zip(&counts).map(|(rule, counts)| pricing.row(rule, counts)).collect(),
        work,
    };
    if let Some(upper) = model.upper_latency(&source)? {
        let late = progress::replay(&source.at_latency(upper), &rules, model.halt_cost)?;
        let share = |counts: &Counts| pricing.price(counts).cost_share();
        let costs = replayed.results.iter().zip(counts.iter().zip(&late.counts));
        let alike = |row: &Row| replayed.results.iter().filter(|other| other.policy == row.policy).count();
        let name = |row: &Row| match row.setting.to_string() {
            setting if alike(row) > 1 && !setting.is_empty() => format!("{} {setting}", row.policy),
            _ => row.policy.clone(),
        };
        let costs = costs.map(|(row, (without, with))| (name(row), share(without), share(with)));
        let note = model::unknown_latency(upper, costs);
        replayed.notes.insert(0, note);
    }
    let stacked = model.whose == Whose::Stacked;
    let table = || {
        let work = replayed.work.as_ref().map_or(&[][..], |work| &work.settings);
        by_work::behind(table(&replayed.results, stacked), "policy", work)
    };
    output::result(args.format.format, &replayed, table, || words(&replayed, stacked))
}

fn rule(settings: &[Setting], poll_control: bool) -> Rule {
    match settings {
        [guest, host] => Rule::Stacked { guest: *guest, host: *host, poll_control },
        _ => Rule::Layer(settings[0]),
    }
}

/// A row for each policy. `exits`: as [`priced::columns`].
pub(crate) fn table(results: &[Row], exits: bool) -> Table {
    let table = Table::of(results).column(Column::text("policy", "policy"), |row| row.policy.as_str());
    priced::columns(table, exits, |row| &row.figures)
        .column(Column::text("setting", "setting").below(), |row| row.setting.to_string())
        .table()
}

fn words(costs: &Costs, stacked: bool) -> String {
    let head = format!(
        "{}: {} over {}, {}",
        costs.file,
        model::episodes_of(costs.episodes, costs.idlers),
        duration(costs.span_ns as f64),
        model::rule_of(costs.layer, &costs.version),
    );
    let halt_cost = model::halt_cost_words(costs.halt_cost_ns, costs.halt_cost_origin);
    let work = costs.work.as_ref().map_or_else(String::new, |work| {
        let seen = work.host.as_ref().map_or_else(String::new, Seen::words);
        work.basis.words(&format!("Figures are of all of it.{seen}"), "", &work.settings)
    });
    format!(
        "{}{}optimum, a lower bound for any policy: {}\n\n{}\n{work}{}",
        output::wrapped(&head),
        output::wrapped(&format!("halt cost: {halt_cost}")),
        duration(costs.optimum_cost_ns as f64),
        output::fitted(&table(&costs.results, stacked)),
        output::notes(&costs.notes),
    )
}
