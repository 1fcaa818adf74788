//! `dwell-lab timer`

use super::campaign::{BLOCK, CampaignArgs, Session, arms};
use super::kvm_counts::{self, ArmCounts};
use super::results::{self, Report, Shown};
use super::wake::{mean, open};
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, FormatArg};
use dwell_lab::experiment::timer::{ExitCounts, Predicted, Timer, WARM_UP, block, figures, predicted};
use dwell_lab::experiment::{KvmCountsByArm, Rig, rounds_of_a_block};
use dwell_lab::gaps::GapSpec;
use dwell_policy::Nanos;
use dwell_report::{Cell, Column, Table};
use dwell_stats::Campaign;
use serde::Serialize;

/// Measure a guest's timer that the kernel or a thread keeps
///
/// Reports lateness, CPU time and exits. The guest sets a deadline, halts, and records how late its next instruction
/// runs. Its timer is kept by the local APIC in the kernel (TSC-deadline mode), or by a housekeeping thread on
/// another core, which injects an interrupt. A second table has what the model of KVM's timer predicts for this host
/// and for others: the mechanism that carries a timer, and its exits.
#[derive(clap::Args)]
#[command(after_help = "TIMER is one of these:\n  \
                  in-kernel        KVM's local APIC timer\n  \
                  spin             a thread spins until the deadline\n  \
                  spin-early=TIME  a thread injects TIME early, and the guest polls for the rest\n  \
                  timerfd          a thread sleeps on an absolute timerfd; a doorbell passes the deadline\n\
                  followed by any of these, joined by +:\n  \
                  msi              inject by KVM_SIGNAL_MSI instead of irqfd\n  \
                  host:TIME        the kernel polls for up to TIME when the guest halts\n  \
                  no-poll-control  the guest disables host polling (MSR_KVM_POLL_CONTROL = 0)\n\n\
                  Example:\n  dwell-lab timer --timer in-kernel --timer spin-early=20us+msi --ahead constant:500us")]
pub(crate) struct TimerArgs {
    /// What keeps the timer; can be repeated; the first is the baseline
    ///
    /// [default: in-kernel, in-kernel+host:200us, spin, spin+msi, spin-early=30us, timerfd]
    #[arg(long, value_name = "TIMER")]
    timer: Vec<Timer>,
    /// How far ahead each timer is set, such as exponential:100us
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER. A
    /// deadline nearer than the time it takes to set a timer has passed when the timer is set.
    #[arg(long, value_name = "GAPS", default_value = "constant:100us")]
    ahead: GapSpec,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

const DEFAULT: [&str; 6] =
    ["in-kernel", "in-kernel+host:200us", "spin", "spin+msi", "spin-early=30us", "timerfd"];

const SHOWN: [Shown; 12] = [
    Shown::compared("p50", "p50"),
    Shown::value("p90", "p90"),
    Shown::compared("p99", "p99"),
    Shown::value("p99.9", "p99.9"),
    Shown::value("worst 1 %", "worst 1 %"),
    Shown::value("mean", "mean"),
    Shown::compared("vcpu_cpu_ns_per_timer", "vCPU/timer"),
    Shown::value("housekeeper_cpu_ns_per_timer", "thread/timer"),
    Shown::value("housekeeper_cpu_share", "thread CPU"),
    Shown::value("early_share", "early"),
    Shown::value("passed_share", "passed"),
    Shown::value("hlt_exits_per_timer", "HLT exits"),
];

#[derive(Serialize)]
struct About {
    ahead: String,
    timers_per_block: usize,
    seed: u64,
    kvm_statistics_per_timer: Vec<ArmCounts>,
    predicted: Vec<Predicted>,
}

pub(crate) fn run(args: TimerArgs) -> Outcome {
    let ahead = open(args.ahead)?;
    let arms = arms(args.timer, &DEFAULT)?;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    let seed = args.campaign.seed();
    // A rough estimate of the overhead of a timer; it only decides the length of a block.
    let timers = rounds_of_a_block(mean(&ahead, seed), Nanos::from_micros(40), BLOCK, WARM_UP);
    let campaign = Campaign::new("timer", arms, figures(), args.campaign.options(1))?;
    let mut kept = KvmCountsByArm::default();
    let measurements = session.run_only(|load, stop, progress| {
        campaign.run(load, stop, progress, |turn| block(&rig, &ahead, seed, timers, turn, &mut kept, stop))
    })?;
    let mut notes = rig.notes();
    let predicted = predicted(&rig).unwrap_or_else(|error| {
        notes.push(format!("cannot predict the timer: {error}"));
        vec![]
    });
    args.campaign.keep(&measurements, 0, &ahead.spec().to_string(), &notes);
    let results = measurements.results();
    let about = About {
        ahead: ahead.spec().to_string(),
        timers_per_block: timers,
        seed,
        kvm_statistics_per_timer: kvm_counts::of(&measurements, &kept),
        predicted,
    };
    let title = format!("Measured: lateness of timers set {} ahead, {timers} timers per block", about.ahead);
    let more = kvm_counts::text(&about.kvm_statistics_per_timer, "timer") + &prediction(&about.predicted);
    let report = Report { about, notes, results: &results };
    results::print(&report, &title, &SHOWN, &more, args.format.format)?;
    args.campaign.end()
}

fn prediction(rows: &[Predicted]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new([
        Column::text("host", "host"),
        Column::text("nohz_full", "housekeeping"),
        Column::text("HLT exits", "hlt_exits"),
        Column::text("guest runs", "running_path"),
        Column::text("set + fire", "running_exits"),
        Column::text("guest halted", "halted_path").rank(1),
        Column::text("set + fire", "halted_exits").rank(1),
        Column::text("interrupt of a running guest", "running_fire").rank(2),
    ]);
    let words = |yes: bool| Cell::Text(if yes { "yes" } else { "no" }.to_owned());
    let exits = |bill: &ExitCounts| Cell::Text(format!("{} + {}", bill.arming, bill.firing));
    for row in rows {
        table.push([
            Cell::Text(row.host.clone()),
            words(row.housekeeping),
            words(!row.hlt_in_guest),
            Cell::Text(row.running.path.to_owned()),
            exits(&row.running),
            Cell::Text(row.halted.path.to_owned()),
            exits(&row.halted),
            Cell::Text(row.running.fire.clone()),
        ]);
    }
    let above = "The exits above are all of the vCPU's, including those for entering CPL0 to set the timer and to halt.";
    let about = format!(
        "Predicted, not measured, by the model of KVM's timer: the mechanism that carries a timer of the guest's local APIC, and \
         the exits to set it and to let it fire (HLT exits excluded). Hosts other than this one run the same kernel. A timer is \
         set early by: {}",
        rows[0].advance
    );
    format!("\n{}\n{}\n{}", output::wrapped(above), output::wrapped(&about), output::fitted(&table))
}
