//! `dwell-lab policies`

use super::campaign::{BLOCK, CampaignArgs, STOPPED_EARLY, Session, given_or};
use super::results::{self, ArmColumn};
use super::wake::{mean, open};
use anyhow::ensure;
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, Format, FormatArg};
use dwell_cli::quantity;
use dwell_lab::experiment::policies::{COST, Poller, block, figures};
use dwell_lab::experiment::wake::wakes_of_a_block;
use dwell_lab::experiment::waking::WARM_UP;
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::gaps::GapSpec;
use dwell_policy::Nanos;
use dwell_policy::version::NEWEST_KERNEL;
use dwell_replay::Terms;
use dwell_report::{Column, Table, duration};
use dwell_stats::{Campaign, ResultRow, Results};
use serde::Serialize;

/// Measure learning policies against the kernel's rules
///
/// Reports cost, CPU time, halts and latency at one halt cost. The policies `savings` and `leader` decide about the
/// halts of a real vCPU, once in the VMM's thread and once in the guest. They alternate with the rule of today's
/// kernels in the same place, ski rental, never polling, and the kernel's own polling. The cost is the time polled
/// plus halts x halt cost, both as measured, and is compared with that of today's rule. The wakeup latency of a halt,
/// which the policies need to know, is measured first. Every row is printed.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  dwell-lab policies --halt-cost 20us --budget 3min")]
pub(crate) struct PoliciesArgs {
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = quantity::halt)]
    halt_cost: Nanos,
    /// Time between wakeups, such as exponential:100us; can be repeated
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER. [default:
    /// exponential:100us, bimodal:30us,300us,0.7, exponential:40us]
    #[arg(long, value_name = "GAPS")]
    gaps: Vec<GapSpec>,
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
    late_ns: Vec<Late>,
    campaigns: Vec<GapsResult>,
}

/// The wakeup latency of a halt, by the place of the policy.
#[derive(Serialize)]
struct Late {
    place: &'static str,
    late_ns: u64,
}

#[derive(Serialize)]
struct GapsResult {
    gaps: String,
    place: &'static str,
    /// The arm of the leader.
    leader: String,
    wakes_per_block: usize,
    #[serde(rename = "findings")]
    results: Results,
}

fn name(place: Poller) -> &'static str {
    match place {
        Poller::UserSpace => "user space",
        Poller::Guest => "guest",
    }
}

pub(crate) fn run(args: PoliciesArgs) -> Outcome {
    let specs = given_or(args.gaps, &["exponential:100us", "bimodal:30us,300us,0.7", "exponential:40us"])?;
    let gaps = specs.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    let (seed, notes) = (args.campaign.seed(), rig.notes());
    let share = gaps.len() * Poller::ALL.len();
    let (mut late_ns, mut campaigns) = (vec![], vec![]);
    for place in Poller::ALL {
        let late = match place.late(&rig, &session.stop) {
            Err(LabError::Stopped) => break,
            late => late?,
        };
        late_ns.push(Late { place: name(place), late_ns: late.get() });
        let terms = Terms { halt_cost: args.halt_cost, wake_latency: late };
        for gaps in &gaps {
            if session.stopped() {
                break;
            }
            session.about(format!("{}, {}", name(place), gaps.spec()));
            let wakes = wakes_of_a_block(mean(gaps, seed), BLOCK);
            let arms = place.arms(NEWEST_KERNEL, terms);
            let campaign = Campaign::new("policies", arms, figures(), args.campaign.options(share))?;
            let measured = session.run(|load, stop, progress| {
                let cost = args.halt_cost;
                campaign.run(load, stop, progress, |trial| {
                    let sequence = gaps.sequence(seed, trial.sequence, WARM_UP + wakes);
                    block(&rig, trial.setting, &sequence.gaps, cost, stop)
                })
            })?;
            let Some(measurements) = measured else { break };
            args.campaign.keep(&measurements, campaigns.len(), &gaps.spec().to_string(), &notes);
            campaigns.push(GapsResult {
                gaps: gaps.spec().to_string(),
                place: name(place),
                leader: place.leader(terms).to_string(),
                wakes_per_block: wakes,
                results: measurements.results(),
            });
        }
    }
    ensure!(!campaigns.is_empty(), STOPPED_EARLY);
    let compared = Compared { halt_cost_ns: args.halt_cost.get(), seed, notes, late_ns, campaigns };
    match args.format.format {
        Format::Json => output::json(&compared)?,
        Format::Csv => output::csv(&table(&compared))?,
        Format::Table => print(&compared)?,
    }
    args.campaign.end()
}

fn table(compared: &Compared) -> Table {
    let columns = vec![
        ArmColumn::nanos(Column::number("cost/wakeup", "cost_ns_per_wakeup"), COST),
        ArmColumn::ratio(Column::text("/ today's rule, 95 %", "cost_ratio").rank(1), COST),
        ArmColumn::nanos(Column::number("polled", "polled_ns_per_wakeup").rank(4), "polled_ns_per_wakeup"),
        ArmColumn::number(Column::number("halts", "halts_per_wakeup").rank(5), "halts_per_wakeup"),
        ArmColumn::nanos(Column::number("CPU/wakeup", "cpu_ns_per_wakeup").rank(2), "cpu_ns_per_wakeup"),
        ArmColumn::ratio(Column::text("/ today's rule", "cpu_ratio").rank(7), "cpu_ns_per_wakeup"),
        ArmColumn::nanos(Column::number("p50", "p50_ns").rank(3), "p50"),
        ArmColumn::ratio(Column::text("/ today's rule", "p50_ratio").rank(7), "p50"),
        ArmColumn::nanos(Column::number("p99", "p99_ns").rank(6), "p99"),
    ];
    results::arm_table("gaps", columns, compared.campaigns.iter().map(|of| (of.gaps.as_str(), &of.results)))
}

/// On how many gap distributions the leader costs less than today's rule, the whole interval below 1.
fn verdict(compared: &Compared, place: Poller) -> String {
    let here: Vec<&GapsResult> = compared.campaigns.iter().filter(|of| of.place == name(place)).collect();
    let wins = here.iter().filter(|of| {
        let row = of.results.row(&of.leader, COST);
        row.and_then(ResultRow::ratio).is_some_and(|ratio| ratio.high < 1.0)
    });
    format!(
        "{}: leader costs less than today's rule (whole 95 % interval below 1) on {} of {} distributions of gaps",
        name(place),
        wins.count(),
        here.len()
    )
}

fn print(compared: &Compared) -> anyhow::Result<()> {
    let price = duration(compared.halt_cost_ns as f64);
    let title = format!(
        "Policies measured live, per wakeup; cost is the time polled plus {price} per halt; the last arm is today's rule \
         measured again"
    );
    let mut text = format!("{}\n{}\n", output::wrapped(&title), output::fitted(&table(compared)));
    for place in Poller::ALL {
        text += &output::wrapped(&verdict(compared, place));
    }
    output::text(&text)?;
    for Late { place, late_ns } in &compared.late_ns {
        output::remark(&format!(
            "{place}: the wakeup latency of a halt is {}; it is subtracted from idle times",
            duration(*late_ns as f64)
        ));
    }
    for GapsResult { gaps, place, results, .. } in &compared.campaigns {
        results::remarks(&format!("{place}, {gaps}"), results);
    }
    for note in &compared.notes {
        output::remark(&format!("note: {note}"));
    }
    Ok(())
}
