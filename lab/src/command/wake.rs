//! `dwell-lab wake`

use super::campaign::{BLOCK, CampaignArgs, Session, arms};
use super::results::{self, Report, Shown};
use dwell_capture::kvm_stats::Counters;
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, FormatArg};
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::wake::{CountersByArm, block, figures, wakes_of_a_block};
use dwell_lab::gaps::{GapSpec, Gaps, GapsError};
use dwell_lab::idle::Idle;
use dwell_policy::Nanos;
use dwell_stats::Campaign;
use serde::Serialize;
use std::fmt::Write;

/// Measure wakeups of a vCPU under several ways to idle
///
/// Reports latency, CPU time, context switches, polls and halts. After the guest has seen an event, the stimulus
/// thread waits for a gap and wakes the guest through an irqfd, or through memory where the guest polls memory.
/// Latency is measured from the write to the first instruction of the guest's program after its halt.
#[derive(clap::Args)]
#[command(after_help = "IDLE is one or more of these, joined by +:\n  \
                  host:TIME        halts in the kernel, which polls for up to TIME first\n  \
                  user:POLICY      halts exit to the VMM's thread, which polls\n  \
                  guest:POLICY     the guest polls before it halts\n  \
                  no-poll-control  the guest disables host polling (MSR_KVM_POLL_CONTROL = 0)\n\
                  `dwell params --policies` lists the policies.\n\n\
                        Example:\n  dwell-lab wake --gaps exponential:50us --idle host:0 --idle host:200us --idle guest:haltpoll")]
pub(crate) struct WakeArgs {
    /// Way to idle; can be repeated; the first is the baseline
    ///
    /// [default: host:0, host:50us, host:200us, guest:haltpoll, user:fixed=200us]
    #[arg(long, value_name = "IDLE")]
    idle: Vec<Idle>,
    /// Time between wakeups, such as exponential:100us
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER.
    #[arg(long, value_name = "GAPS", default_value = "exponential:100us")]
    gaps: GapSpec,
    /// Also print KVM's histograms of polls and sleeps for each arm
    #[arg(long)]
    histograms: bool,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

const SHOWN: [Shown; 12] = [
    Shown::compared("p50", "p50"),
    Shown::value("p90", "p90"),
    Shown::compared("p99", "p99"),
    Shown::value("worst 1 %", "worst 1 %"),
    Shown::compared("cpu_ns_per_wakeup", "CPU/wakeup"),
    Shown::value("cpu_share", "CPU"),
    Shown::value("switches_per_wakeup", "switches"),
    Shown::value("polls_per_wakeup", "polls"),
    Shown::value("polls_succeeded_per_wakeup", "succeeded"),
    Shown::value("polled_ns_per_wakeup", "polled"),
    Shown::value("halts_per_wakeup", "halts"),
    Shown::value("hlt_exits_per_wakeup", "HLT exits"),
];

#[derive(Serialize)]
struct About {
    gaps: String,
    wakes_per_block: usize,
    seed: u64,
    kvm_counters: Vec<ArmCounts>,
}

#[derive(Serialize)]
struct ArmCounts {
    arm: String,
    counters: Counters,
}

/// Longer gaps are shortened to this, so that a block ends.
const LONGEST_GAP: Nanos = Nanos::from_micros(20_000);

/// Gaps drawn to see what they are like.
const SOME: usize = 1_000;

/// Gaps to measure with; reports on stderr how many are shortened.
///
/// # Errors
/// A recording of gaps cannot be read.
pub(crate) fn open(spec: GapSpec) -> Result<Gaps, GapsError> {
    let gaps = Gaps::open(spec, LONGEST_GAP)?;
    let cut = gaps.sequence(1, 0, SOME).cut;
    if cut > 0 {
        let longest = dwell_report::duration(LONGEST_GAP.get() as f64);
        output::remark(&format!(
            "note: {}: {cut} of {} are longer than {longest}, and are shortened to it",
            gaps.spec(),
            dwell_report::number_of(SOME as u128, "gap")
        ));
    }
    Ok(gaps)
}

pub(crate) fn run(args: WakeArgs) -> Outcome {
    let gaps = open(args.gaps)?;
    let default = ["host:0", "host:50us", "host:200us", "guest:haltpoll", "user:fixed=200us"];
    let arms = arms(args.idle, &default)?;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    let names: Vec<String> = arms.as_slice().iter().map(|arm| arm.name.clone()).collect();
    let seed = args.campaign.seed();
    let wakes = wakes_of_a_block(mean(&gaps, seed), BLOCK);
    let campaign = Campaign::new("wake", arms, figures(), args.campaign.options(1))?;
    let mut kept = CountersByArm::default();
    let measurements = session.run_only(|load, stop, progress| {
        campaign.run(load, stop, progress, |turn| block(&rig, &gaps, seed, wakes, turn, &mut kept, stop))
    })?;
    let notes = rig.notes();
    args.campaign.keep(&measurements, 0, &gaps.spec().to_string(), &notes);
    let results = measurements.results();
    let counters = names
        .into_iter()
        .enumerate()
        .filter_map(|(arm, name)| Some(ArmCounts { arm: name, counters: kept.counters(arm)?.clone() }));
    let about = About {
        gaps: gaps.spec().to_string(),
        wakes_per_block: wakes,
        seed,
        kvm_counters: counters.collect(),
    };
    let title = format!("Wakeups of one vCPU after gaps of {}, {wakes} wakeups per block", about.gaps);
    let histograms = if args.histograms { histograms(&about.kvm_counters) } else { String::new() };
    let report = Report { about, notes, results: &results };
    results::print(&report, &title, &SHOWN, &histograms, args.format.format)?;
    args.campaign.end()
}

/// The mean of the gaps, from a sequence of them.
pub(crate) fn mean(gaps: &Gaps, seed: u64) -> Nanos {
    Nanos(gaps.sequence(seed, 0, SOME).total().get() / SOME as u64)
}

/// KVM's own histograms of the arms: how long successful polls, failed polls and halts took.
fn histograms(arms: &[ArmCounts]) -> String {
    let mut text = String::new();
    for ArmCounts { arm, counters } in arms {
        let kinds = [
            ("successful polls", &counters.halt_poll_success_hist),
            ("failed polls", &counters.halt_poll_fail_hist),
            ("slept", &counters.halt_wait_hist),
        ];
        for (kind, buckets) in kinds {
            if let Some(buckets) = buckets.as_ref().filter(|buckets| buckets.iter().any(|n| *n > 0)) {
                let _ =
                    write!(text, "\n{arm}, {kind} (KVM's histogram):\n{}", dwell_report::histogram(buckets));
            }
        }
    }
    text
}
