//! `dwell lab doorbell`

use super::campaign::{BLOCK, CampaignArgs, Session, arms};
use super::kvm_counts::{self, ArmCounts};
use super::results::{self, Report, Shown};
use super::wake::{LONGEST_GAP, mean};
use crate::failure::{Answer, Outcome};
use crate::output::FormatArg;
use dwell_lab::experiment::doorbell::{IoThreadSetting, WARM_UP, Work, block, figures};
use dwell_lab::experiment::{KvmCountsByArm, Rig, rounds_of_a_block};
use dwell_lab::gaps::{GapSpec, Gaps};
use dwell_policy::Nanos;
use dwell_stats::Campaign;
use serde::Serialize;

/// Measure I/O threads that block, poll or are busy, on a guest's requests
///
/// Reports round trips, CPU time and sleeps. The guest thinks, writes a request to memory, rings a doorbell
/// (ioeventfd) and waits. The I/O thread works on it for the service time, posts the answer and interrupts the guest
/// by an irqfd, unless the guest watches. What is tried is how the I/O thread waits for the next request.
#[derive(clap::Args)]
#[command(
    after_help = "Loops: blocking (sleeps until the doorbell rings), busy, adaptive:POLICY (watches memory for the policy's\n\
                  window first, as QEMU's event loop does). Then, joined by + : suppress (the guest saves the doorbell while\n\
                  the I/O thread watches), guest:POLICY, host:NS, no-poll-control (how the guest waits).\n\
                  POLICY: never, always, fixed=NS, ski-rental=NS, kvm, haltpoll or aio, the last three with\n\
                  @VERSION and ,NAME=VALUE.\n\n\
                  Example:\n  dwell lab doorbell --serve blocking --serve adaptive:aio@11.1,poll_max_ns=100us+suppress"
)]
pub(crate) struct DoorbellArgs {
    /// Loop of the I/O thread; can be given several times, the first is the baseline
    ///
    /// [default: blocking, adaptive:aio of 7.2, 10.0 and 11.1, the last with poll_max_ns=200us, busy, busy+suppress,
    /// busy+suppress+guest:fixed=200us]
    #[arg(long, value_name = "LOOP")]
    serve: Vec<IoThreadSetting>,
    /// Time between requests, such as exponential:100us
    ///
    /// constant:T, exponential:MEAN, bimodal:T,T,SHARE, recording:FILE or recording:FILE@IDLER.
    #[arg(long, value_name = "GAPS", default_value = "exponential:50us")]
    think: GapSpec,
    /// How long the I/O thread works on each request
    #[arg(long, value_name = "TIME", default_value = "5us", value_parser = crate::quantity::duration)]
    service: Nanos,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

const DEFAULT: [&str; 8] = [
    "blocking",
    "adaptive:aio@7.2",
    "adaptive:aio@10.0",
    "adaptive:aio@11.1",
    "adaptive:aio@11.1,poll_max_ns=200us",
    "busy",
    "busy+suppress",
    "busy+suppress+guest:fixed=200us",
];

const SHOWN: [Shown; 13] = [
    Shown::compared("p50", "p50"),
    Shown::value("p90", "p90"),
    Shown::value("p99", "p99"),
    Shown::compared("mean", "mean"),
    Shown::value("io_cpu_share", "I/O CPU"),
    Shown::compared("io_cpu_ns_per_request", "I/O/request"),
    Shown::value("vcpu_cpu_ns_per_request", "vCPU/request"),
    Shown::value("sleeps_per_request", "sleeps"),
    Shown::value("polls_per_request", "polls"),
    Shown::value("polls_succeeded_per_request", "succeeded"),
    Shown::value("doorbells_per_request", "doorbells"),
    Shown::value("doorbells_suppressed_per_request", "saved"),
    Shown::value("interrupts_per_request", "interrupts"),
];

#[derive(Serialize)]
struct About {
    think: String,
    service_ns: u64,
    requests_per_block: usize,
    seed: u64,
    kvm_statistics_per_request: Vec<ArmCounts>,
}

pub(crate) fn run(args: DoorbellArgs) -> Outcome {
    let think = Gaps::open(args.think, LONGEST_GAP)?;
    let arms = arms(args.serve, &DEFAULT)?;
    let rig = Rig::open(1)?;
    let mut session = Session::open()?;
    let seed = args.campaign.seed();
    // What a request takes besides, roughly; it only decides how long a block is.
    let besides = Nanos(args.service.get() + 40_000);
    let requests = rounds_of_a_block(mean(&think, seed), besides, BLOCK, WARM_UP);
    let work = Work { think, seed, requests, service: args.service };
    let campaign = Campaign::new("doorbell", arms, figures(), args.campaign.options(1))?;
    let mut kept = KvmCountsByArm::default();
    let measurements = session.run_only(|load, stop, tell| {
        campaign.run(load, stop, tell, |turn| block(&rig, &work, turn, &mut kept, stop))
    })?;
    let notes = rig.notes();
    args.campaign.keep(&measurements, 0, &work.think.spec().to_string(), &notes)?;
    let results = measurements.results();
    let about = About {
        think: work.think.spec().to_string(),
        service_ns: args.service.get(),
        requests_per_block: requests,
        seed,
        kvm_statistics_per_request: kvm_counts::of(&measurements, &kept),
    };
    let title = format!(
        "Round trip of a guest's request, thinking time {}, service time {} ns, {requests} requests a block",
        about.think, about.service_ns
    );
    let more = kvm_counts::text(&about.kvm_statistics_per_request, "request");
    let report = Report { about, notes, results: &results };
    results::print(&report, &title, &SHOWN, &more, args.format.format)?;
    Ok(Answer::Yes)
}
