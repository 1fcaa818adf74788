//! `dwell lab calibrate`

use super::campaign::{Along, CampaignArgs};
use crate::calibration;
use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use anyhow::bail;
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::calibrate::{Calibration, FORMAT, GAPS_US, HaltCost, cost, measure};
use dwell_policy::Nanos;
use dwell_report::{Cell, Column, Table};
use dwell_stats::Interval;
use std::time::{SystemTime, UNIX_EPOCH};

/// Measure what a halt and its wake cost on this host, in CPU time and latency, and store it
///
/// The same vCPU is woken after the same gaps, once always halting and once polling until the wake. `replay` and `tune`
/// take the stored cost as the default of --halt-cost for recordings of the same CPU model and kernel release.
#[derive(clap::Args)]
#[command(
    after_help = "Stored in $XDG_STATE_HOME/dwell/halt-cost.json, else ~/.local/state/dwell/halt-cost.json;\n\
                        remove the file to go back to the default."
)]
pub(crate) struct CalibrateArgs {
    /// Measure and print, but store nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    campaign: CampaignArgs,
    #[command(flatten)]
    format: FormatArg,
}

pub(crate) fn run(args: CalibrateArgs) -> Outcome {
    let path = calibration::path()?;
    let rig = Rig::open(1)?;
    let mut along = Along::open()?;
    let calibration = calibrate(&rig, &mut along, &args.campaign, Intervals::Needed)?;
    if !args.dry_run {
        calibration::store(&calibration, &path)?;
    }
    match args.format.format {
        Format::Json => output::json(&calibration)?,
        Format::Csv => output::csv(&table(&calibration))?,
        Format::Table => {
            output::text(
                "What a halt costs after a gap, beyond polling until the wake, with 95 % intervals\n\n",
            )?;
            output::text(&people(&calibration).to_text())?;
        }
    }
    for note in rig.notes() {
        eprintln!("note: {note}");
    }
    let stored = if args.dry_run { "not stored" } else { "stored" };
    eprintln!("{stored}: {}", path.display());
    Ok(Answer::Yes)
}

/// Whether a measurement that is too short for intervals will do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intervals {
    /// It will not: it is to be stored and believed later.
    Needed,
    /// It will: it is used once, beside measurements that tell how far it can be believed.
    Welcome,
}

/// Measures the cost of a halt after each length of gap.
pub(crate) fn calibrate(
    rig: &Rig,
    along: &mut Along,
    campaign: &CampaignArgs,
    intervals: Intervals,
) -> anyhow::Result<Calibration> {
    let share = u32::try_from(GAPS_US.len()).unwrap_or(1);
    let mut costs: Vec<HaltCost> = vec![];
    for gap in GAPS_US.map(Nanos::from_micros) {
        along.about(format!("calibrating, gap {}", dwell_report::duration(gap.get() as f64)));
        let plan = campaign.plan(share);
        let record = along.run(|load, stop, tell| measure(rig, gap, plan, load, stop, tell))?;
        if along.stopped() {
            bail!("stopped before everything was measured; nothing is stored");
        }
        let findings = record.results();
        for warning in &findings.warnings {
            eprintln!("warning: gap of {}: {warning}", dwell_report::duration(gap.get() as f64));
        }
        let known = |cost: &HaltCost| {
            let finite = cost.cpu_ns.low.is_finite() && cost.idle_excess_ns.low.is_finite();
            finite || intervals == Intervals::Welcome
        };
        let Some(cost) = cost(gap, &record).filter(known) else {
            bail!(
                "only {} rounds were possible in {}, too few for intervals; give more time with --budget, or come back \
                 when the machine is quieter",
                findings.rounds,
                dwell_report::duration(findings.elapsed_s * 1e9)
            );
        };
        costs.push(cost);
    }
    along.about("");
    let (cpu_model, kernel) = calibration::this_host();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Calibration { format: FORMAT, cpu_model, kernel, measured_at_unix_s: now, costs })
}

fn people(calibration: &Calibration) -> Table {
    let mut table = Table::new([
        Column::number("gap", "gap_ns"),
        Column::number("CPU", "cpu_ns"),
        Column::number("latency", "latency_ns"),
        Column::number("recorded idle time too long by", "idle_excess_ns"),
    ]);
    let spread = |Interval { value, low, high }: Interval| {
        let [value, low, high] = [value, low, high].map(dwell_report::duration);
        Cell::Text(format!("{value} [{low}, {high}]"))
    };
    for HaltCost { gap_ns, cpu_ns, latency_ns, idle_excess_ns } in &calibration.costs {
        let cells = [*cpu_ns, *latency_ns, *idle_excess_ns].map(spread);
        table.push([Cell::Nanos(*gap_ns as f64)].into_iter().chain(cells));
    }
    table
}

fn table(calibration: &Calibration) -> Table {
    let figures = ["cpu", "latency", "idle_excess"];
    let columns = figures
        .iter()
        .flat_map(|figure| ["ns", "low_ns", "high_ns"].map(|end| format!("{figure}_{end}")))
        .map(|name| Column::number(&name, &name));
    let mut table = Table::new([Column::number("gap_ns", "gap_ns")].into_iter().chain(columns));
    for HaltCost { gap_ns, cpu_ns, latency_ns, idle_excess_ns } in &calibration.costs {
        let spreads = [cpu_ns, latency_ns, idle_excess_ns];
        let cells = spreads.into_iter().flat_map(|s| [s.value, s.low, s.high].map(Cell::Ratio));
        table.push([Cell::Count((*gap_ns).into())].into_iter().chain(cells));
    }
    table
}
