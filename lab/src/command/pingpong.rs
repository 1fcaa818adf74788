//! `dwell-lab pingpong`

use super::campaign::{BLOCK, CampaignArgs, Session};
use super::results::{self, Report, Shown};
use super::wake::{LONGEST_GAP, mean};
use anyhow::Context;
use dwell_cli::failure::{Answer, Outcome};
use dwell_cli::output::{self, FormatArg};
use dwell_cli::stop;
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::coupled::{Between, Maxima, Pair, Prediction, Recorded};
use dwell_lab::experiment::pingpong::{Participants, block, exchanges_of_a_block, figures};
use dwell_lab::gaps::{GapSpec, Gaps};
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_report::{Cell, Column, Table, duration, percent};
use dwell_stats::{Arms, Campaign, median};
use serde::Serialize;

/// Measure two vCPUs that wait for each other
///
/// Reports round trips, CPU time, HLT exits, IPIs sent and IPIs avoided. One vCPU thinks, sends a message and waits;
/// the other replies at once. The arms: two threads of the host (sleeping on a futex, and spinning), and two vCPUs
/// without polling, with host polling, with guest polling (haltpoll governor), with both, and with both where the
/// guest disables host polling (MSR_KVM_POLL_CONTROL), as the governor does. With --predict, what a recording under one
/// maximum of host polling predicts of the work under another, beside what was measured.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  dwell-lab pingpong --think exponential:100us --guest fixed=300us")]
pub(crate) struct PingpongArgs {
    /// Time between messages, such as exponential:100us
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER.
    #[arg(long, value_name = "GAPS", default_value = "constant:20us")]
    think: GapSpec,
    /// Longest window of the host (halt_poll_ns) in the arms with host polling
    ///
    /// From 0; 0 disables host polling.
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = dwell_cli::quantity::duration)]
    host: Nanos,
    /// Policy of the guest in the arms with guest polling
    ///
    /// `dwell params --policies` lists the policies.
    #[arg(long, value_name = "POLICY", default_value = "haltpoll")]
    guest: String,
    /// Record the two under each of four maxima of polling and predict their work under the others
    ///
    /// Under 0, 20us, --host and 1ms. What was predicted is printed beside what was measured without the recorder, the
    /// median of --rounds (7 by default). Needs root, for the recorder.
    #[arg(long, conflicts_with_all = ["guest", "samples"])]
    predict: bool,
    /// With --predict: each vCPU is in a VM of its own, and rings the doorbell of the other
    ///
    /// A write to a port (ioeventfd) is an interrupt (irqfd) of the other VM.
    #[arg(long, requires = "predict", conflicts_with = "threads")]
    apart: bool,
    /// With --predict: two threads in place of the vCPUs, with eventfds and the polling of QEMU's event loops
    ///
    /// They are recorded without polling only: polls of a thread cannot be seen from outside.
    #[arg(long, requires = "predict")]
    threads: bool,
    /// With --predict: the guest polls, too, as the haltpoll governor does
    ///
    /// The settings are neither, the host up to --host, the guest up to 200 us, and both. Guest and host are recorded
    /// together.
    #[arg(long, requires = "predict", conflicts_with_all = ["apart", "threads"])]
    layers: bool,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

/// The guest's maximum with --layers \[ns\]: haltpoll's default.
const GUEST_NS: u32 = 200_000;

const SHOWN: [Shown; 9] = [
    Shown::compared("mean", "mean"),
    Shown::compared("p50", "p50"),
    Shown::compared("p99", "p99"),
    Shown::value("cpu_share", "CPU of both"),
    Shown::compared("cpu_ns_per_exchange", "CPU/exchange"),
    Shown::value("hlt_exits_per_exchange", "HLT exits"),
    Shown::value("host_polls_per_exchange", "host polls"),
    Shown::value("ipis_sent_per_exchange", "IPIs sent"),
    Shown::value("ipis_avoided_per_exchange", "IPIs avoided"),
];

#[derive(Serialize)]
struct About {
    think: String,
    exchanges_per_block: usize,
    seed: u64,
    ways_to_idle: Vec<(&'static str, String)>,
}

/// What was predicted, beside what was measured.
#[derive(Serialize)]
struct Predicted {
    think: String,
    between: Between,
    notes: Vec<String>,
    recordings: Vec<Recorded>,
    cells: Vec<Prediction>,
    median_error: Option<f64>,
}

fn predict(args: &PingpongArgs, rig: &Rig, think: &Gaps) -> Outcome {
    let host_ns = u32::try_from(args.host.get()).context("--host: at most 4294967295 ns")?;
    let mut maxima_ns = vec![0, 20_000, host_ns, 1_000_000];
    maxima_ns.sort_unstable();
    maxima_ns.dedup();
    let settings: Vec<Maxima> = match args.layers {
        true => [(0, 0), (0, host_ns), (GUEST_NS, 0), (GUEST_NS, host_ns)]
            .map(|(guest_ns, maximum_ns)| Maxima { guest_ns, maximum_ns })
            .into(),
        false => maxima_ns.into_iter().map(Maxima::of).collect(),
    };
    let seed = args.campaign.seed();
    let exchanges = exchanges_of_a_block(mean(think, seed), Nanos::from_micros(80), BLOCK);
    let rounds = Some(args.campaign.options(1).max_rounds).filter(|rounds| *rounds < u32::MAX).unwrap_or(7);
    let stop = stop::on_ctrl_c()?;
    let between = match args {
        PingpongArgs { threads: true, .. } => Between::Threads,
        PingpongArgs { apart: true, .. } => Between::Vms,
        PingpongArgs { layers: true, .. } => Between::Layers,
        _ => Between::Vcpus,
    };
    let pair = Pair { rig, between, think, seed, exchanges };
    let (recordings, cells) = pair.predict(&settings, rounds, &stop)?;
    let predicted = Predicted {
        think: think.spec().to_string(),
        between,
        notes: rig.notes(),
        median_error: median(cells.iter().map(|cell| cell.error().abs()).collect()),
        recordings,
        cells,
    };
    output::result(
        args.format.format,
        &predicted,
        || cells_table(&predicted),
        || predicted_words(&predicted),
    )?;
    Ok(Answer::Yes)
}

fn named(between: Between, maxima: Maxima) -> String {
    let [guest, own] = [maxima.guest_ns, maxima.maximum_ns].map(|ns| duration(ns.into()));
    if between == Between::Layers { format!("guest {guest}, host {own}") } else { own }
}

fn cells_table(predicted: &Predicted) -> Table {
    let named = |maxima: Maxima| named(predicted.between, maxima);
    Table::of(&predicted.cells)
        .column(Column::text("recorded under", "recorded"), |cell| named(cell.recorded))
        .column(Column::text("predicted for", "other"), |cell| named(cell.other))
        .column(Column::number("speed predicted", "predicted"), |cell| Cell::Ratio(cell.predicted.value))
        .column(Column::number("from", "predicted_low"), |cell| Cell::Ratio(cell.predicted.low))
        .column(Column::number("to", "predicted_high"), |cell| Cell::Ratio(cell.predicted.high))
        .column(Column::number("measured", "measured"), |cell| Cell::Ratio(cell.measured))
        .column(Column::number("error", "error"), |cell| Cell::Share(cell.error()))
        .column(Column::text("in range", "in_range"), |cell| if cell.is_in_range() { "yes" } else { "no" })
        .table()
}

fn predicted_words(predicted: &Predicted) -> String {
    let two = match predicted.between {
        Between::Vcpus => "vCPUs",
        Between::Vms => "vCPUs of two VMs",
        Between::Threads => "threads",
        Between::Layers => "vCPUs that poll themselves up to so many us, above a host that polls,",
    };
    let mut text = format!("Two {two} that wait for each other, thinking time {}\n\n", predicted.think);
    text += &output::fitted(&cells_table(predicted));
    text.push('\n');
    for of in &predicted.recordings {
        let coupled = of.causes.coupled as f64 / of.causes.segments.max(1) as f64;
        text += &output::wrapped(&format!(
            "{}: {:.0} exchanges/s measured, {:.0} recorded; {} of {} segments were woken by the other",
            named(predicted.between, of.maxima),
            of.measured_per_s,
            of.exchanges_per_s,
            percent(coupled),
            of.causes.segments
        ));
    }
    let within = predicted.cells.iter().filter(|cell| cell.is_in_range()).count();
    text += &format!(
        "\nmedian error {}, {within} of {} in the range\n",
        percent(predicted.median_error.unwrap_or(f64::NAN)),
        predicted.cells.len()
    );
    for note in &predicted.notes {
        text += &output::wrapped(&format!("note: {note}"));
    }
    text
}

pub(crate) fn run(args: PingpongArgs) -> Outcome {
    let think = Gaps::open(args.think.clone(), LONGEST_GAP)?;
    if args.predict {
        return predict(&args, &Rig::open(2)?, &think);
    }
    let vcpus = [
        ("no polling", "host:0".to_owned()),
        ("host polling", format!("host:{}", args.host.get())),
        ("guest polling", format!("guest:{}", args.guest)),
        ("both", format!("guest:{}+host:{}", args.guest, args.host.get())),
        ("both, no poll control", format!("guest:{}+host:{}+no-poll-control", args.guest, args.host.get())),
    ];
    let parsed =
        vcpus.iter().map(|(name, idle)| Ok((*name, Participants::Vcpus(Box::new(idle.parse::<Idle>()?)))));
    let parsed: Vec<(&str, Participants)> = parsed.collect::<anyhow::Result<_>>()?;
    let rig = Rig::open(2)?;
    let mut session = Session::open(&rig)?;
    let native = [("native, futex", Participants::Futex), ("native, spinning", Participants::Spin)];
    let (first, rest) = parsed.split_first().expect("never empty");
    let others = rest.iter().chain(&native);
    let arms = others
        .fold(Arms::new(first.0, first.1.clone()), |arms, (name, players)| arms.arm(name, players.clone()));
    let seed = args.campaign.seed();
    // A rough estimate of an exchange without polling; it only decides the length of a block.
    let exchanges = exchanges_of_a_block(mean(&think, seed), Nanos::from_micros(80), BLOCK);
    let campaign = Campaign::new("pingpong", arms, figures(), args.campaign.options(1))?;
    let measurements = session.run_only(|load, stop, progress| {
        campaign.run(load, stop, progress, |turn| block(&rig, &think, seed, exchanges, turn, stop))
    })?;
    let notes = rig.notes();
    args.campaign.keep(&measurements, 0, &think.spec().to_string(), &notes)?;
    let results = measurements.results();
    let about = About {
        think: think.spec().to_string(),
        exchanges_per_block: exchanges,
        seed,
        ways_to_idle: vcpus.to_vec(),
    };
    let title = format!(
        "Round trip between two vCPUs, thinking time {}, {exchanges} exchanges per block",
        about.think
    );
    let report = Report { about, notes, results: &results };
    results::print(&report, &title, &SHOWN, "", args.format.format)?;
    Ok(Answer::Yes)
}
