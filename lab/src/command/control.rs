//! `dwell-lab control`

use super::campaign::{CampaignArgs, STOPPED_EARLY, Session, given_or};
use super::results::{self, ArmColumn};
use super::wake::{mean, open};
use anyhow::ensure;
use dwell_capture::kvm_stats::Counters;
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, Format, FormatArg};
use dwell_cli::quantity;
use dwell_control::{Histograms, Reach, Terms};
use dwell_lab::controlled::{SetMaximum, VmController};
use dwell_lab::experiment::policies::{
    COST, Poller, best_maximum, block, controlled_block, figures, late_in_kernel,
};
use dwell_lab::experiment::wake::wakes_of_a_block;
use dwell_lab::experiment::waking::{RunningVm, WARM_UP};
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::gaps::{GapSpec, Gaps};
use dwell_lab::idle::Idle;
use dwell_policy::param::Setting;
use dwell_policy::version::NEWEST_KERNEL;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Terms as LearnerTerms, kept};
use dwell_report::{Cell, Column, Table, duration};
use dwell_stats::{Arms, Block, Campaign, Figure, ResultRow, Results, Trial, Unit};
use serde::Serialize;
use std::sync::atomic::AtomicBool;

/// Measure a controlled VM against fixed settings and the learner
///
/// One vCPU halts in the kernel, under KVM's own rule. Its maximum (KVM_CAP_HALT_POLL) is the default, 0, the best of a
/// replay of the same gaps, or controlled by its VMM from KVM's statistics as `dwell control` would; in one
/// more arm the guest polls by `leader` above a kernel that does not poll. A block begins with a new VM and a
/// new controller. The cost is the time polled plus halts x halt cost, as measured. "Kept" is the share of
/// the gain over the default that control keeps, of the gain of leader and of the best maximum, by
/// logarithms. Every row is printed.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  dwell-lab control --halt-cost 20us --gaps recording:recordings/event-mix.parquet --budget 1min"
)]
pub(crate) struct ControlArgs {
    /// Cost of one halt and wakeup in CPU time, such as 20us
    ///
    /// From 0 to 10ms.
    #[arg(long, value_name = "TIME", default_value = "20us", value_parser = quantity::halt)]
    halt_cost: Nanos,
    /// Time between wakeups, such as exponential:100us; can be repeated
    ///
    /// constant:TIME, exponential:MEAN, bimodal:TIME,TIME,SHARE, recording:FILE or recording:FILE@IDLER. [default:
    /// exponential:12us, exponential:150us]
    #[arg(long, value_name = "GAPS")]
    gaps: Vec<GapSpec>,
    /// Length of a block, from 100ms to 1min
    ///
    /// Control begins anew in each, and decides for the first time after 10 ms. One gap in every 400 ms is 60 ms
    /// longer, because the kernel stops real-time threads that do not rest.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = block_length)]
    block: Nanos,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

fn block_length(text: &str) -> Result<Nanos, String> {
    let length = quantity::duration(text)?;
    let within = (Nanos(100_000_000)..=Nanos(60_000_000_000)).contains(&length);
    within.then_some(length).ok_or_else(|| "from 100ms to 1min".to_owned())
}

/// How the vCPU idles; `None`: in a kernel whose maximum is controlled.
type Arm = Option<Idle>;

const CONTROLLED: &str = "controlled";

#[derive(Serialize)]
struct Compared {
    halt_cost_ns: u64,
    seed: u64,
    notes: Vec<String>,
    /// By how much a halt in the kernel lasts longer than the idle time.
    late_ns: u64,
    campaigns: Vec<GapsResult>,
}

#[derive(Serialize)]
struct GapsResult {
    gaps: String,
    wakes_per_block: usize,
    best_halt_poll_ns: u32,
    kept_of_leader: Option<f64>,
    kept_of_best: Option<f64>,
    #[serde(rename = "findings")]
    results: Results,
    #[serde(skip)]
    arms: Costs,
}

/// The names of the arms that are compared.
#[derive(Clone)]
struct Costs {
    default: String,
    leader: String,
    best: String,
}

pub(crate) fn run(args: ControlArgs) -> Outcome {
    let specs = given_or(args.gaps.clone(), &["exponential:12us", "exponential:150us"])?;
    let gaps = specs.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let rig = Rig::open(1)?;
    let mut session = Session::open(&rig)?;
    let late = late_in_kernel(&rig, &session.stop)?;
    let guest_late = Poller::Guest.late(&rig, &session.stop)?;
    let leader = Poller::Guest.leader(LearnerTerms { halt_cost: args.halt_cost, wake_latency: guest_late });
    let (seed, notes) = (args.campaign.seed(), rig.notes());
    let share = gaps.len();
    let mut campaigns = vec![];
    for gaps in &gaps {
        if session.stopped() {
            break;
        }
        session.about(gaps.spec().to_string());
        let experiment = Experiment { rig: &rig, gaps, seed, args: &args, late };
        let (arms, names, best) = experiment.arms(leader.clone())?;
        let mut figures = figures();
        figures.push(Figure::of_block("changes", Unit::Count));
        let campaign = Campaign::new("control", arms, figures, args.campaign.options(share))?;
        let measured = session.run(|load, stop, progress| {
            campaign.run(load, stop, progress, |trial| experiment.block(trial, stop))
        })?;
        let Some(measurements) = measured else { break };
        args.campaign.keep(&measurements, campaigns.len(), &gaps.spec().to_string(), &notes);
        let results = measurements.results();
        let cost = |arm: &str| results.row(arm, COST).and_then(|row| row.value).map(|cost| cost.value);
        let of = |other: &str| kept(cost(&names.default)?, cost(other)?, cost(CONTROLLED)?);
        campaigns.push(GapsResult {
            gaps: gaps.spec().to_string(),
            wakes_per_block: experiment.wakes(),
            best_halt_poll_ns: best,
            kept_of_leader: of(&names.leader),
            kept_of_best: of(&names.best),
            results,
            arms: names,
        });
    }
    ensure!(!campaigns.is_empty(), STOPPED_EARLY);
    let compared =
        Compared { halt_cost_ns: args.halt_cost.get(), seed, notes, late_ns: late.get(), campaigns };
    match args.format.format {
        Format::Json => output::json(&compared)?,
        Format::Csv => output::csv(&table(&compared))?,
        Format::Table => print(&compared)?,
    }
    args.campaign.end()
}

/// The blocks of one distribution of gaps.
struct Experiment<'a> {
    rig: &'a Rig,
    gaps: &'a Gaps,
    seed: u64,
    args: &'a ControlArgs,
    late: Nanos,
}

impl Experiment<'_> {
    fn wakes(&self) -> usize {
        wakes_of_a_block(mean(self.gaps, self.seed), self.args.block)
    }

    /// The arms, the names of those that are compared, and the best maximum \[ns\].
    fn arms(&self, leader: Idle) -> anyhow::Result<(Arms<Arm>, Costs, u32)> {
        /// Gaps that the best maximum is chosen by.
        const CHOSEN_BY: usize = 20_000;
        let idle_times = self.gaps.sequence(self.seed, 0, CHOSEN_BY).gaps;
        let best = best_maximum(NEWEST_KERNEL, &idle_times, self.late, self.args.halt_cost)?;
        let default = Idle::host(originals().1);
        let names = Costs {
            default: default.to_string(),
            leader: leader.to_string(),
            best: Idle::host(best).to_string(),
        };
        let mut all = vec![Idle::host(0), Idle::host(best), leader];
        all.dedup();
        all.retain(|idle| *idle != default);
        let arms = Arms::new(&names.default, Some(default));
        let arms = all.into_iter().fold(arms, |arms, idle| arms.arm(&idle.to_string(), Some(idle)));
        Ok((arms.arm(CONTROLLED, None), names, best))
    }

    fn block(&self, trial: &Trial<'_, Arm>, stop: &AtomicBool) -> Result<Block, LabError> {
        let gaps = self.gaps.sequence(self.seed, trial.sequence, WARM_UP + self.wakes()).gaps;
        match trial.setting {
            Some(idle) => {
                let block = block(self.rig, idle, &gaps, self.args.halt_cost, stop)?;
                Ok(block.figure("changes", 0.0))
            }
            None => self.controlled(&gaps, stop),
        }
    }

    fn controlled(&self, gaps: &[Nanos], stop: &AtomicBool) -> Result<Block, LabError> {
        let (originals, default) = originals();
        let terms = Terms { late: self.late, reach: Reach::Maximum, ..Terms::at(self.args.halt_cost) };
        let mut control = VmController::new(originals, terms)?;
        control.controller().start(0);
        let (mut last, mut changes) = (None, 0u32);
        let block = controlled_block(self.rig, default, gaps, self.args.halt_cost, stop, |since, vm| {
            let Some(before) = &last else {
                last = Some(vm.counters()?);
                return Ok(());
            };
            if since.get() < control.next_at_ns() {
                return Ok(());
            }
            let now = vm.counters()?;
            let counted = now.clone().since(Counters::clone(before));
            last = Some(now);
            // A kernel without histograms is not controlled.
            let Some(counted) = Histograms::of(&counted) else { return Ok(()) };
            changes += u32::from(control.step(since.get(), &counted, &mut Vm(vm))?.is_some());
            Ok(())
        })?;
        Ok(block.figure("changes", changes.into()))
    }
}

/// KVM's defaults, and the maximum among them \[ns\].
fn originals() -> (Setting, u32) {
    let originals = Setting::defaults(Layer::Host, NEWEST_KERNEL);
    let max = originals.get("halt_poll_ns").and_then(|max| u32::try_from(max).ok());
    (originals, max.unwrap_or(0))
}

struct Vm<'m>(RunningVm<'m>);

impl SetMaximum for Vm<'_> {
    type Error = LabError;

    fn set_halt_poll_ns(&mut self, ns: u32) -> Result<(), LabError> {
        self.0.set_halt_poll_ns(ns)
    }
}

fn table(compared: &Compared) -> Table {
    let columns = vec![
        ArmColumn::nanos(Column::number("cost/wakeup", "cost_ns_per_wakeup"), COST),
        ArmColumn::ratio(Column::text("/ default, 95 %", "cost_ratio").rank(1), COST),
        ArmColumn::number(Column::number("halts", "halts_per_wakeup").rank(2), "halts_per_wakeup"),
        ArmColumn::nanos(Column::number("polled", "polled_ns_per_wakeup").rank(3), "polled_ns_per_wakeup"),
        ArmColumn::number(Column::number("changes", "changes_per_block").rank(4), "changes"),
        ArmColumn::nanos(Column::number("CPU/wakeup", "cpu_ns_per_wakeup").rank(5), "cpu_ns_per_wakeup"),
        ArmColumn::nanos(Column::number("p50", "p50_ns").rank(6), "p50"),
        ArmColumn::nanos(Column::number("p99", "p99_ns").rank(7), "p99"),
    ];
    results::arm_table("gaps", columns, compared.campaigns.iter().map(|of| (of.gaps.as_str(), &of.results)))
}

/// What control keeps, for each distribution of gaps.
fn kept_table(compared: &Compared) -> Table {
    let mut table = Table::new([
        Column::text("gaps", "gaps"),
        Column::text("best maximum", "best_halt_poll_ns"),
        Column::number("kept of leader's gain", "kept_of_leader"),
        Column::number("kept of the best maximum's", "kept_of_best"),
    ]);
    for result in &compared.campaigns {
        let share = |share: Option<f64>| share.map_or(Cell::Missing, Cell::Share);
        table.push([
            Cell::Text(result.gaps.clone()),
            Cell::Text(duration(result.best_halt_poll_ns.into())),
            share(result.kept_of_leader),
            share(result.kept_of_best),
        ]);
    }
    table
}

/// What is kept of all gains together: the sum of logarithms of the one over the sum of those of the other.
fn kept_in_all(compared: &Compared, other: impl Fn(&GapsResult) -> &str) -> Option<f64> {
    let (mut of_control, mut of_other) = (0.0, 0.0);
    for result in &compared.campaigns {
        let gain = |arm: &str| {
            let ratio = result.results.row(arm, COST).and_then(ResultRow::ratio)?;
            Some(-ratio.value.ln())
        };
        of_control += gain(CONTROLLED)?;
        of_other += gain(other(result)).unwrap_or(0.0);
    }
    (of_other > 1e-3).then(|| of_control / of_other)
}

fn print(compared: &Compared) -> anyhow::Result<()> {
    let price = duration(compared.halt_cost_ns as f64);
    let title = format!(
        "A controlled VM, measured live, per wakeup; cost is the time polled plus {price} per halt; the last arm is the default \
         measured again"
    );
    let mut text = format!("{}\n{}\n", output::wrapped(&title), output::fitted(&table(compared)));
    text += &format!(
        "{}\n{}\n",
        output::wrapped("The share of a gain over the default that control keeps:"),
        output::fitted(&kept_table(compared))
    );
    for (of, share) in [
        ("leader", kept_in_all(compared, |result| &result.arms.leader)),
        ("the best maximum", kept_in_all(compared, |result| &result.arms.best)),
    ] {
        if let Some(share) = share {
            let percent = share * 100.0;
            text +=
                &output::wrapped(&format!("Over all gaps, control keeps {percent:.0} % of the gain of {of}"));
        }
    }
    output::text(&text)?;
    output::remark(&format!(
        "a halt in the kernel lasts {} longer than the idle time; control takes this into account",
        duration(compared.late_ns as f64)
    ));
    for GapsResult { gaps, results, .. } in &compared.campaigns {
        results::remarks(gaps, results);
    }
    for note in &compared.notes {
        output::remark(&format!("note: {note}"));
    }
    Ok(())
}
