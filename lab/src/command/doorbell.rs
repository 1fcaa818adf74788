//! `dwell-lab doorbell`

use super::campaign::{BLOCK, CampaignArgs, Session, arms};
use super::kvm_counts::{self, ArmCounts};
use super::results::{self, Report, Shown};
use super::wake::{mean, open};
use dwell_cli::failure::Outcome;
use dwell_cli::output::FormatArg;
use dwell_lab::experiment::doorbell::{IoThreadSetting, WARM_UP, Work, block, figures};
use dwell_lab::experiment::{KvmCountsByArm, Rig, rounds_of_a_block};
use dwell_lab::gaps::GapSpec;
use dwell_policy::Nanos;
use dwell_stats::Campaign;
use serde::Serialize;

/// Measure how an I/O thread waits for a guest's requests: blocking, polling, busy
///
/// Reports round trips, CPU time and sleeps. The guest thinks, writes a request to memory, rings a doorbell
/// (ioeventfd) and waits. The I/O thread works on the request for the service time, writes the response and
/// interrupts the guest by an irqfd, unless the guest polls. The arms differ in how the I/O thread waits for the next
/// request.
#[derive(clap::Args)]
#[command(after_help = "LOOP is one of these:\n  \
                  blocking         sleep until the doorbell rings\n  \
                  busy             poll without end\n  \
                  adaptive:POLICY  poll for the policy's window first, as QEMU's event loop does\n\
                  followed by any of these, joined by +:\n  \
                  suppress         the guest rings no doorbell while the I/O thread polls\n  \
                  guest:POLICY     the guest polls before it halts\n  \
                  host:TIME        the kernel polls for up to TIME when the guest halts\n  \
                  no-poll-control  the guest disables host polling (MSR_KVM_POLL_CONTROL = 0)\n\
                  `dwell params --policies` lists the policies.\n\n\
                  Example:\n  dwell-lab doorbell --serve blocking --serve adaptive:aio@11.1,poll_max_ns=100us+suppress")]
pub(crate) struct DoorbellArgs {
    /// Loop of the I/O thread; can be repeated; the first is the baseline
    ///
    /// [default: blocking, adaptive:aio of 7.2, 10.0 and 11.1, the last with poll_max_ns=200us, busy, busy+suppress,
    /// busy+suppress+guest:fixed=200us]
    #[arg(long, value_name = "LOOP")]
    serve: Vec<IoThreadSetting>,
    /// Time between requests, such as exponential:100us
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER.
    #[arg(long, value_name = "GAPS", default_value = "exponential:50us")]
    think: GapSpec,
    /// How long the I/O thread works on each request
    #[arg(long, value_name = "TIME", default_value = "5us", value_parser = dwell_cli::quantity::duration)]
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
    Shown::value("doorbells_suppressed_per_request", "suppressed"),
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
    let think = open(args.think)?;
    let arms = arms(args.serve, &DEFAULT)?;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    let seed = args.campaign.seed();
    // A rough estimate of the overhead of a request; it only decides the length of a block.
    let besides = Nanos(args.service.get() + 40_000);
    let requests = rounds_of_a_block(mean(&think, seed), besides, BLOCK, WARM_UP);
    let work = Work { think, seed, requests, service: args.service };
    let campaign = Campaign::new("doorbell", arms, figures(), args.campaign.options(1))?;
    let mut kept = KvmCountsByArm::default();
    let measurements = session.run_only(|load, stop, progress| {
        campaign.run(load, stop, progress, |turn| block(&rig, &work, turn, &mut kept, stop))
    })?;
    let notes = rig.notes();
    args.campaign.keep(&measurements, 0, &work.think.spec().to_string(), &notes);
    let results = measurements.results();
    let about = About {
        think: work.think.spec().to_string(),
        service_ns: args.service.get(),
        requests_per_block: requests,
        seed,
        kvm_statistics_per_request: kvm_counts::of(&measurements, &kept),
    };
    let title = format!(
        "Round trip of a guest's request, thinking time {}, service time {} ns, {requests} requests per block",
        about.think, about.service_ns
    );
    let more = kvm_counts::text(&about.kvm_statistics_per_request, "request");
    let report = Report { about, notes, results: &results };
    results::print(&report, &title, &SHOWN, &more, args.format.format)?;
    args.campaign.end()
}
