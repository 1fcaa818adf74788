//! `dwell lab calibrate`

use super::campaign::{CampaignArgs, Session};
use crate::calibration;
use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use anyhow::{Context, bail, ensure};
use dwell_lab::experiment::Rig;
use dwell_lab::experiment::calibrate::{Calibration, FORMAT, GAPS_US, HaltCost, cost, measure};
use dwell_policy::Nanos;
use dwell_report::{Cell, Column, Table};
use dwell_stats::{Interval, MIN_ROUNDS, Results};
use std::time::{SystemTime, UNIX_EPOCH};

/// Measure the cost of a halt on this host, in CPU time and latency, and store it
///
/// The same vCPU is woken after the same gaps, once always halting and once polling until the wakeup. `replay` and
/// `tune` use the stored cost as the default of --halt-cost for recordings from the same CPU model and kernel
/// release.
#[derive(clap::Args)]
#[command(
    after_help = "Stored in $XDG_STATE_HOME/dwell/halt-cost.json, else ~/.local/state/dwell/halt-cost.json;\n\
                        remove the file to use the default again."
)]
pub(crate) struct CalibrateArgs {
    /// Measure and print, but do not store the result
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
    let mut session = Session::open(&rig)?;
    let calibration = calibrate(&rig, &mut session, &args.campaign, Intervals::Required)?;
    if !args.dry_run {
        calibration::store(&calibration, &path)?;
    }
    match args.format.format {
        Format::Json => output::json(&calibration)?,
        Format::Csv => output::csv(&table(&calibration))?,
        Format::Table => {
            output::text(
                "Cost of a halt, in addition to that of polling until the wakeup, by gap, with 95 % intervals\n\n",
            )?;
            output::text(&output::fitted(&people(&calibration)))?;
        }
    }
    for note in rig.notes() {
        output::remark(&format!("note: {note}"));
    }
    let stored = if args.dry_run { "not stored" } else { "stored" };
    output::remark(&format!("{stored}: {}", path.display()));
    Ok(Answer::Yes)
}

/// Whether a halt cost without reliable intervals is accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intervals {
    /// It is not: the cost will be stored.
    Required,
    /// It is: the cost is used once, beside measurements that show its error.
    Optional,
}

/// Refuses results of too few rounds for intervals.
fn enough(results: &Results) -> anyhow::Result<()> {
    ensure!(
        results.rounds as usize >= MIN_ROUNDS,
        "cannot measure the cost of a halt: only {} rounds were complete after {}, at least {MIN_ROUNDS} are needed; use a \
         longer --budget",
        results.rounds,
        dwell_report::duration(results.elapsed_s * 1e9)
    );
    Ok(())
}

/// Measures the cost of a halt after each length of gap.
pub(crate) fn calibrate(
    rig: &Rig,
    session: &mut Session,
    campaign: &CampaignArgs,
    intervals: Intervals,
) -> anyhow::Result<Calibration> {
    let share = u32::try_from(GAPS_US.len()).unwrap_or(1);
    let mut costs: Vec<HaltCost> = vec![];
    for gap in GAPS_US.map(Nanos::from_micros) {
        session.about(format!("calibrating, gap {}", dwell_report::duration(gap.get() as f64)));
        let options = campaign.options(share);
        let measured =
            session.run(|load, stop, progress| measure(rig, gap, options, load, stop, progress))?;
        let Some(measurements) = measured.filter(|_| !session.stopped()) else {
            bail!("stopped before all halt costs were measured; nothing was stored");
        };
        let results = measurements.results();
        if intervals == Intervals::Required {
            enough(&results)?;
        }
        for warning in &results.warnings {
            output::remark(&format!(
                "warning: gap of {}: {warning}",
                dwell_report::duration(gap.get() as f64)
            ));
        }
        let cost = cost(gap, &measurements);
        costs.push(cost.context("cannot compute the cost of a halt: KVM does not count polled time here")?);
    }
    session.about("");
    let (cpu_model, kernel) = calibration::this_host();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    Ok(Calibration { format: FORMAT, cpu_model, kernel, measured_at_unix_s: now, costs })
}

fn people(calibration: &Calibration) -> Table {
    let mut table = Table::new([
        Column::number("gap", "gap_ns"),
        Column::number("CPU", "cpu_ns"),
        Column::number("latency", "latency_ns"),
        Column::number("excess of recorded idle time", "idle_excess_ns"),
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
