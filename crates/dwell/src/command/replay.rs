//! `dwell replay`

use crate::failure::{Answer, Outcome};
use crate::model::{self, Model, ModelArgs, Whose};
use crate::output::{self, Format, FormatArg};
use crate::progress;
use crate::settings;
use anyhow::bail;
use dwell_policy::param::{self, Setting, Unit};
use dwell_replay::{Counts, RecordingSource, Replayed, Rule, Source};
use dwell_report::{Cell, Column, Table};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Replay a recording through settings: what each would have cost
///
/// Prints, for never polling, always polling and each setting asked for: CPU burnt polling, halts, and their cost.
/// An episode of length d under a window w polls min(d, w) and succeeds if d <= w, else the idler halts;
/// cost = time polled + halts x halt cost. The state starts as on a fresh vCPU or CPU.
#[derive(clap::Args)]
#[command(
    after_help = "Example: dwell replay recordings/guest-memcached_poisson10k.parquet --layer host --kernel 6.18 \
                        --set halt_poll_ns=160us --set halt_poll_ns_shrink=2 --set halt_poll_ns=50us"
)]
pub(crate) struct Args {
    /// Recording in Parquet, as `dwell import` writes it
    file: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Parameter to set, over the defaults of the version; can be given again for more parameters
    ///
    /// A name that the setting already has begins another setting, to be shown beside it; so does the word `default`,
    /// which stands for the defaults. Times take ns, us, ms or s. `dwell params` lists names, ranges and defaults.
    /// Without any, the settings in force while recording are replayed, else the defaults. With --layer guest+host the
    /// names of both layers are taken.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Policy to replay beside the settings, such as leader@20us; can be given several times
    #[arg(long, value_name = "POLICY", value_parser = str::parse::<Rule>, long_help = settings::policy_help())]
    policy: Vec<Rule>,
    /// With --layer guest+host: the guest leaves host polling on (as where the host has no poll control); without it the
    /// guest's haltpoll driver has switched it off
    #[arg(long)]
    host_polls_too: bool,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Answered {
    file: String,
    layer: &'static str,
    version: String,
    halt_cost_ns: u64,
    wake_latency_ns: u64,
    episodes: u64,
    idlers: usize,
    span_ns: u64,
    idle_ns: u128,
    optimum_cost_ns: u128,
    notes: Vec<String>,
    results: Vec<Replay>,
}

#[derive(Serialize)]
struct Replay {
    policy: &'static str,
    setting: BTreeMap<&'static str, serde_json::Value>,
    polls: u64,
    polls_succeeded: u64,
    polled_ns: u128,
    halts: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exits: Option<u64>,
    cost_ns: u128,
    cost_over_optimum: Option<f64>,
    mean_added_latency_ns: f64,
    p99_added_latency_ns: u64,
}

pub(crate) fn run(args: Args) -> Outcome {
    let reader = model::open(&args.file)?;
    let metadata = reader.metadata().clone();
    let model = Model::of(&args.model, &metadata)?;
    if args.host_polls_too && model.whose != Whose::Stacked {
        bail!("--host-polls-too needs --layer guest+host");
    }
    let mut notes = model.notes(&metadata);
    let asked = if args.set.is_empty() {
        let (present, told) = model.present(&metadata);
        let whence = if told { "in force while recording" } else { "the defaults; the recording names none" };
        notes.push(format!("no --set: the settings shown are {whence}"));
        vec![present]
    } else {
        settings::groups(&args.set, &model.defaults())?
    };
    let mut rules = vec![Rule::Never, Rule::Always];
    rules.extend(asked.iter().map(|settings| rule(settings, args.host_polls_too)));
    rules.extend(&args.policy);

    let source = RecordingSource::new(reader, model.whose == Whose::One(dwell_policy::Layer::Iothread));
    let Replayed { span, counts, optimum: bound } = progress::replay(&source, &rules, model.halt_cost)?;
    let bound_ns = bound.cost_ns(model.halt_cost);
    let replayed = Answered {
        file: args.file.display().to_string(),
        layer: model.whose.name(),
        version: model.version.to_string(),
        halt_cost_ns: model.halt_cost.get(),
        wake_latency_ns: model.wake_latency.get(),
        episodes: bound.episodes,
        idlers: source.idlers(),
        span_ns: span.ns(),
        idle_ns: bound.idle_ns,
        optimum_cost_ns: bound_ns,
        notes,
        results: rules
            .iter()
            .zip(&counts)
            .map(|(rule, counts)| replay(rule, counts, &model, bound_ns))
            .collect(),
    };
    match args.format.format {
        Format::Json => output::json(&replayed)?,
        Format::Csv => output::csv(&table(&replayed))?,
        Format::Table => print(&replayed)?,
    }
    Ok(Answer::Yes)
}

fn rule(settings: &[Setting], poll_control: bool) -> Rule {
    match settings {
        [guest, host] => Rule::Stacked { guest: *guest, host: *host, poll_control },
        _ => Rule::Layer(settings[0]),
    }
}

/// A rule's parameters for JSON: switches are truth values, all else numbers in the unit of the parameter.
pub(crate) fn values(rule: &Rule) -> BTreeMap<&'static str, serde_json::Value> {
    let is_switch = |name: &str| {
        name == "poll_control"
            || dwell_policy::Layer::ALL
                .into_iter()
                .flat_map(param::table)
                .any(|param| param.name == name && param.unit == Unit::Switch && param.min == 0)
    };
    rule.values()
        .into_iter()
        .map(|(name, value)| (name, if is_switch(name) { (value != 0).into() } else { value.into() }))
        .collect()
}

fn replay(rule: &Rule, counts: &Counts, model: &Model, bound_ns: u128) -> Replay {
    let cost_ns = counts.cost_ns(model.halt_cost);
    Replay {
        policy: rule.name(),
        setting: values(rule),
        polls: counts.polls,
        polls_succeeded: counts.polls_succeeded,
        polled_ns: counts.polled_ns,
        halts: counts.halts,
        exits: (model.whose == Whose::Stacked).then_some(counts.exits),
        cost_ns,
        cost_over_optimum: (bound_ns > 0).then(|| cost_ns as f64 / bound_ns as f64),
        mean_added_latency_ns: counts.mean_latency_ns(model.wake_latency),
        p99_added_latency_ns: counts.p99_latency_ns(model.wake_latency),
    }
}

/// `halt_poll_ns=200000 …`, or nothing.
fn setting_text(setting: &BTreeMap<&'static str, serde_json::Value>) -> String {
    setting.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

fn table(replayed: &Answered) -> Table {
    let stacked = replayed.results.iter().any(|r| r.exits.is_some());
    let mut columns = vec![
        Column::text("policy", "policy"),
        Column::number("CPU burnt", "cpu_burnt_share"),
        Column::number("ns/s", "polled_ns_per_s"),
        Column::number("polls", "polls"),
        Column::number("success", "success_share"),
        Column::number("halts", "halts"),
        Column::number("halts/s", "halts_per_s"),
        Column::number("mean latency", "mean_added_latency_ns"),
        Column::number("p99 latency", "p99_added_latency_ns"),
        Column::number("cost", "cost_ns"),
        Column::number("/optimum", "cost_over_optimum"),
        Column::text("setting", "setting"),
    ];
    if stacked {
        columns.insert(7, Column::number("exits", "exits"));
    }
    let mut table = Table::new(columns);
    let seconds = replayed.span_ns as f64 / 1e9;
    let per_second = |n: f64| if seconds > 0.0 { Some(n / seconds) } else { None };
    for result in &replayed.results {
        let polled = per_second(result.polled_ns as f64);
        let success = (result.polls > 0).then(|| result.polls_succeeded as f64 / result.polls as f64);
        let mut row = vec![
            Cell::Text(result.policy.to_owned()),
            Cell::share(polled.map(|ns| ns / 1e9)),
            polled.map_or(Cell::Missing, Cell::Rounded),
            Cell::Count(result.polls.into()),
            Cell::share(success),
            Cell::Count(result.halts.into()),
            per_second(result.halts as f64).map_or(Cell::Missing, Cell::Rounded),
            Cell::Nanos(result.mean_added_latency_ns),
            Cell::Nanos(result.p99_added_latency_ns as f64),
            Cell::Nanos(result.cost_ns as f64),
            Cell::ratio(result.cost_over_optimum),
            Cell::Text(setting_text(&result.setting)),
        ];
        if stacked {
            row.insert(7, result.exits.map_or(Cell::Missing, |n| Cell::Count(n.into())));
        }
        table.push(row);
    }
    table
}

fn print(replayed: &Answered) -> anyhow::Result<()> {
    use dwell_report::{count, duration};
    let head = format!(
        "{}: {} episodes of {} idler{} over {}, {} layer, rule of {}, one halt worth {}\n\
         the optimum, which no policy can beat, costs {}\n\n",
        replayed.file,
        count(replayed.episodes.into()),
        replayed.idlers,
        if replayed.idlers == 1 { "" } else { "s" },
        duration(replayed.span_ns as f64),
        replayed.layer,
        replayed.version,
        duration(replayed.halt_cost_ns as f64),
        duration(replayed.optimum_cost_ns as f64),
    );
    output::text(&head)?;
    output::text(&table(replayed).to_text())?;
    for note in &replayed.notes {
        output::text(&format!("note: {note}\n"))?;
    }
    Ok(())
}
