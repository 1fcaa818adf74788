//! `dwell-lab neighbour`

use super::campaign::{CampaignArgs, STOPPED_EARLY, Session, given_or};
use super::results::{self, ArmColumn};
use super::wake::open;
use anyhow::ensure;
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, Format, FormatArg};
use dwell_cli::quantity;
use dwell_idle::{Halt, Price};
use dwell_lab::experiment::neighbour::{CPU, Cell, Neighbour, RECOVERY, Subject, WORK, Way, block, figures};
use dwell_lab::experiment::policies::Poller;
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::gaps::GapSpec;
use dwell_policy::Nanos;
use dwell_replay::Terms;
use dwell_report::{Column, Table, duration};
use dwell_stats::{Arms, Campaign, Results};
use serde::Serialize;

/// Measure what polling takes from a neighbour on the same core
///
/// An idler and a neighbour share a core under the fair scheduler, and the idler is woken again and again: a vCPU of the
/// lab's machine, then a thread under dwell-idle. The neighbour computes, computes in bursts, or is a second
/// vCPU that idles in the same way. Ways to idle alternate: never poll (the baseline), haltpoll's defaults, KVM's own
/// polling up to 200us (vCPUs only), `leader` that is not told of preemptions, and `leader`. Each block begins
/// beside the neighbour for 1 s and ends without it. Reports the neighbour's work, the idler's CPU time and latency
/// beside it, and how long after the neighbour has left the idler polls again, for at most 1.2 s. Every row is printed.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  dwell-lab neighbour --gaps recording:recordings/guest-redis_c1.parquet --budget 5min"
)]
pub(crate) struct NeighbourArgs {
    /// Cost of one halt and wakeup in CPU time that leader is given, such as 20us
    ///
    /// From 0 to 10ms.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = quantity::halt)]
    halt_cost: Nanos,
    /// Time from an event that the idler has seen to the next, such as exponential:40us; can be repeated
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER. [default:
    /// bimodal:15us,150us,0.7]
    #[arg(long, value_name = "GAPS")]
    gaps: Vec<GapSpec>,
    /// Neighbour: busy, bursty or vcpu; can be repeated [default: all]
    #[arg(long, value_name = "NEIGHBOUR")]
    neighbour: Vec<Neighbour>,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

#[derive(Serialize)]
struct Compared {
    halt_cost_ns: u64,
    seed: u64,
    notes: Vec<String>,
    campaigns: Vec<Beside>,
}

#[derive(Serialize)]
struct Beside {
    idler: String,
    neighbour: String,
    gaps: String,
    wake_latency_ns: u64,
    #[serde(rename = "findings")]
    results: Results,
}

impl Beside {
    fn name(&self) -> String {
        format!("{}, {}, {}", self.idler, self.neighbour, self.gaps)
    }
}

/// Gaps of a block; it begins again where it is longer.
const GAPS: usize = 1 << 15;

fn arms(subject: Subject) -> Arms<Way> {
    let (first, others) = subject.ways().split_first().unwrap_or((&Way::Never, &[]));
    let arms = Arms::new(&first.to_string(), *first);
    others.iter().fold(arms, |arms, way| arms.arm(&way.to_string(), *way))
}

pub(crate) fn run(args: NeighbourArgs) -> Outcome {
    let specs = given_or(args.gaps, &["bimodal:15us,150us,0.7"])?;
    let gaps = specs.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let wanted = |one: &Neighbour| args.neighbour.is_empty() || args.neighbour.contains(one);
    let cells = |subject: Subject| subject.neighbours().iter().copied().filter(wanted);
    let share = gaps.len() * Subject::ALL.into_iter().flat_map(cells).count();
    // On all CPUs, so that it comes before this thread is kept on one.
    let of_thread = Halt::measure()?.typical(Price::default()).latency;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    let (seed, notes) = (args.campaign.seed(), rig.notes());
    let mut campaigns = vec![];
    for subject in Subject::ALL {
        if cells(subject).next().is_none() || session.stopped() {
            continue;
        }
        // The wakeup latency of a halt, which leader needs to know.
        let wake_latency = match subject {
            Subject::Thread => of_thread,
            Subject::Vcpu => match Poller::Guest.late(&rig, &session.stop) {
                Err(LabError::Stopped) => break,
                late => late?,
            },
        };
        let terms = Terms { halt_cost: args.halt_cost, wake_latency };
        for neighbour in cells(subject) {
            for gaps in &gaps {
                if session.stopped() {
                    break;
                }
                session.about(format!("{subject}, {neighbour}, {}", gaps.spec()));
                let options = args.campaign.options(share);
                let campaign = Campaign::new("neighbour", arms(subject), figures(), options)?;
                let measured = session.run(|load, stop, progress| {
                    campaign.run(load, stop, progress, |trial| {
                        let sequence = gaps.sequence(seed, trial.sequence, GAPS);
                        block(
                            &rig,
                            Cell { subject, neighbour, terms, gaps: &sequence.gaps },
                            *trial.setting,
                            stop,
                        )
                    })
                })?;
                let Some(measurements) = measured else { break };
                args.campaign.keep(&measurements, campaigns.len(), &gaps.spec().to_string(), &notes);
                campaigns.push(Beside {
                    idler: subject.to_string(),
                    neighbour: neighbour.to_string(),
                    gaps: gaps.spec().to_string(),
                    wake_latency_ns: wake_latency.get(),
                    results: measurements.results(),
                });
            }
        }
    }
    ensure!(!campaigns.is_empty(), STOPPED_EARLY);
    let compared = Compared { halt_cost_ns: args.halt_cost.get(), seed, notes, campaigns };
    match args.format.format {
        Format::Json => output::json(&compared)?,
        Format::Csv => output::csv(&table(&compared))?,
        Format::Table => print(&compared)?,
    }
    args.campaign.end()
}

fn table(compared: &Compared) -> Table {
    let columns = vec![
        ArmColumn::number(Column::number("work/s", "neighbour_work_per_s").rank(5), WORK),
        ArmColumn::ratio(Column::text("/ never, 95 %", "neighbour_work_ratio"), WORK),
        ArmColumn::nanos(Column::number("CPU/wakeup", "cpu_ns_per_wakeup").rank(1), CPU),
        ArmColumn::ratio(Column::text("/ never", "cpu_ratio").rank(4), CPU),
        ArmColumn::nanos(Column::number("p50", "p50_ns").rank(2), "p50"),
        ArmColumn::nanos(Column::number("p99", "p99_ns").rank(3), "p99"),
        ArmColumn::nanos(Column::number("mean", "mean_ns").rank(6), "mean"),
        ArmColumn::number(Column::number("wakeups/s", "wakeups_per_s").rank(7), "wakeups_per_s"),
        ArmColumn::number(Column::number("preempted/s", "preemptions_per_s").rank(8), "preemptions_per_s"),
        ArmColumn::nanos(Column::number("polls again", "recovery_ns").rank(1), RECOVERY),
    ];
    let names: Vec<String> = compared.campaigns.iter().map(Beside::name).collect();
    let results = compared.campaigns.iter().map(|of| &of.results);
    results::arm_table("idler, neighbour, gaps", columns, names.iter().map(String::as_str).zip(results))
}

fn print(compared: &Compared) -> anyhow::Result<()> {
    let title = format!(
        "An idler and a neighbour on one core; leader's halt cost is {}; the last arm is `never` measured again",
        duration(compared.halt_cost_ns as f64)
    );
    output::text(&format!("{}\n{}\n", output::wrapped(&title), output::fitted(&table(compared))))?;
    for of in &compared.campaigns {
        results::remarks(&of.name(), &of.results);
    }
    for note in &compared.notes {
        output::remark(&format!("note: {note}"));
    }
    Ok(())
}
