//! `dwell-lab pingpong`

mod predict;

use super::campaign::{BLOCK, CampaignArgs, Session};
use super::results::{self, Report, Shown};
use super::wake::{mean, open};
use dwell_cli::failure::Outcome;
use dwell_cli::output::FormatArg;
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::pingpong::{Participants, block, exchanges_of_a_block, figures};
use dwell_lab::gaps::GapSpec;
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_stats::{Arms, Campaign};
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
    /// Record the two under each of four maxima of polling, predict their work under the others, and advise
    ///
    /// Under 0, 20us, --host and 1ms. What was predicted is printed beside what was measured without the recorder, the
    /// median of --rounds (7 by default) and half as many before; so is what each advice does. Needs root, for the recorder.
    #[arg(long, conflicts_with_all = ["guest", "samples"])]
    predict: bool,
    /// With --predict: cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = dwell_cli::quantity::halt)]
    halt_cost: Nanos,
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

pub(crate) fn run(args: PingpongArgs) -> Outcome {
    let think = open(args.think.clone())?;
    if args.predict {
        return predict::run(&args, &Rig::open(2)?, &think);
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
    args.campaign.keep(&measurements, 0, &think.spec().to_string(), &notes);
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
    args.campaign.end()
}
