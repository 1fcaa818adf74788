//! `dwell-lab calibrate`

use super::campaign::{CampaignArgs, Session, writable};
use anyhow::{Context, bail, ensure};
use dwell_cli::failure::Outcome;
use dwell_cli::output::{self, FormatArg};
use dwell_cli::progress;
use dwell_lab::experiment::calibrate::{
    GAPS_US, OWN_ROUNDS, cost, eventfd_write, halted_for_polling, longest_poll, measure, measure_own,
    own_costs,
};
use dwell_lab::experiment::{LabError, Rig};
use dwell_lab::gaps::GapSpec;
use dwell_lab::host::Cores;
use dwell_lab::host::load_on;
use dwell_lab::vm::VmError;
use dwell_machine::{Machine, Sysroot, cpu, kernel};
use dwell_policy::Nanos;
use dwell_recording::newfile;
use dwell_replay::calibration::{Calibration, FORMAT, HaltCost, HaltCosts, HaltOf};
use dwell_report::{Cell, Column, Table};
use dwell_stats::{Interval, MIN_ROUNDS, Measurements, Results};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Measure the cost of a halt, in CPU time and latency, and store it
///
/// Two kinds of halts are measured. Of this system's own CPUs: a thread sleeps for 10 us to 10 ms, and another one
/// wakes it, in a second and a half; needs two CPUs and no KVM, so that a guest can do it too. Of a vCPU, where /dev/kvm can be used: it is
/// woken after the same gaps, once always halting and once polling until the wakeup. `replay` and `tune` use the
/// former as the default of --halt-cost for recordings of guests and threads, the latter for those of hosts, from the
/// same CPU model and kernel release. Where the latter cannot be measured, the former are stored all the same.
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
    args.campaign.at_least(MIN_ROUNDS)?;
    let path = if args.dry_run { None } else { Some(place()?) };
    let (rig, mut notes) = match Rig::open(1) {
        Ok(rig) => {
            let notes = rig.notes();
            (Some(rig), notes)
        }
        Err(LabError::Vm(VmError::NoKvm(error))) => {
            ensure!(
                !args.campaign.keeps_samples(),
                "cannot write --samples, which are of a vCPU's halts: no KVM here ({error}); leave it out for halts of own CPUs"
            );
            (None, vec![format!("halts of a vCPU were not measured: no KVM here ({error})")])
        }
        Err(error) => return Err(error.into()),
    };
    let machine = Sysroot::of_this_machine();
    let mut calibration = Calibration {
        format: FORMAT,
        cpu_model: cpu::model(&machine).unwrap_or_default(),
        kernel: kernel::release(&machine).unwrap_or_default(),
        measured_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        halts: vec![own(&args.campaign, &machine, &mut notes)?],
    };
    // Where a vCPU's halts cannot be measured, as on a busy machine, those of own CPUs are not lost.
    let failed = rig.as_ref().and_then(|rig| {
        let measured = Session::open(rig)
            .and_then(|mut session| vcpu(rig, &mut session, &args.campaign, Intervals::Required));
        measured.map(|costs| calibration.halts.push(costs)).err()
    });
    if let Some(Ok(Some(before))) = path.as_deref().map(Calibration::load) {
        let kept = calibration.keep(before);
        notes
            .extend(kept.iter().map(|halts| format!("{}: kept from the earlier calibration", halts.words())));
    }
    // What cannot be stored is printed all the same, and what cannot be printed is stored.
    let text = serde_json::to_string_pretty(&calibration)? + "\n";
    let stored = path.as_ref().map_or(Ok(()), |path| newfile::write(path, text.as_bytes()));
    output::result(args.format.format, &calibration, || table(&calibration), || people(&calibration))?;
    for note in notes {
        output::remark(&format!("note: {note}"));
    }
    stored?;
    output::remark(&path.map_or("not stored".to_owned(), |path| format!("stored: {}", path.display())));
    failed.map_or_else(|| args.campaign.end(), Err)
}

/// Where to store the calibration; it can be written.
fn place() -> anyhow::Result<PathBuf> {
    const INSTEAD: &str = "set XDG_STATE_HOME to a directory where you may write, or use --dry-run";
    let path = Calibration::path().with_context(|| {
        format!(
            "cannot store the calibration: neither XDG_STATE_HOME nor HOME is an absolute path; {INSTEAD}"
        )
    })?;
    std::fs::create_dir_all(path.parent().unwrap_or(&path))
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(writable(path.clone())?))
        .with_context(|| format!("cannot store the calibration at {}; {INSTEAD}", path.display()))
}

/// Measures halts of this system's own CPUs, which takes a second and a half, whatever the budget is.
fn own(campaign: &CampaignArgs, machine: &dyn Machine, notes: &mut Vec<String>) -> anyhow::Result<HaltCosts> {
    let longest_poll = longest_poll(machine)
        .context("cannot measure halts of this system's own CPUs: its kernel was started with idle=poll, and they never halt")?;
    let mut line = progress::Live::default();
    let show = |round| {
        if line.due() {
            line.show(&format!("calibrating, own CPUs: round {} of {OWN_ROUNDS}", round + 1));
        }
    };
    let mut load = load_on(Cores::first_two()?.all())?;
    let (measured, disturbed) = measure_own(&mut load, campaign.foreign_limit(), show)?;
    line.clear();
    if disturbed > 0 {
        output::remark(&format!(
            "warning: own CPUs: other programs used them in {disturbed} of {OWN_ROUNDS} rounds; the costs may be too high"
        ));
    }
    if longest_poll > Nanos::ZERO {
        let poll = dwell_report::duration(longest_poll.get() as f64);
        notes.push(format!(
            "own CPUs poll for up to {poll} before they halt: sleeps up to twice as long were left out"
        ));
    }
    if machine.hypervisor().is_some() {
        notes.push(
            "own CPUs are vCPUs: what their host spends on a halt cannot be seen from here and is not included"
                .to_owned(),
        );
    }
    let write = eventfd_write().context("cannot measure a write to an eventfd")?;
    let costs = own_costs(&measured, longest_poll, write);
    ensure!(
        !costs.is_empty(),
        "cannot measure halts of this system's own CPUs: they poll for up to {} before they halt",
        dwell_report::duration(longest_poll.get() as f64)
    );
    Ok(HaltCosts { halt_of: HaltOf::OwnCpu, costs })
}

/// Whether a halt cost without reliable intervals is accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Intervals {
    /// It is not: the cost will be stored.
    Required,
    /// It is: the cost is used once, beside measurements that show its error.
    Optional,
}

/// If KVM does not poll until this share of the wakeups that it is to poll for, a halt seems a fifth cheaper than it is.
const MOST_HALTED: f64 = 0.2;

/// What was measured, with enough rounds for intervals if these are required; warns of its limits.
fn complete(
    measured: Option<Measurements>,
    session: &Session,
    what: &str,
    intervals: Intervals,
) -> anyhow::Result<Measurements> {
    let Some(measured) = measured.filter(|_| !session.stopped()) else {
        bail!("stopped before all costs of a vCPU's halts were measured");
    };
    let results = measured.results();
    if intervals == Intervals::Required && (results.rounds as usize) < MIN_ROUNDS {
        bail!(
            "cannot measure the cost of a halt: only {} of {MIN_ROUNDS} rounds ({what}) were complete after {}; use \
             --budget {}s or more",
            results.rounds,
            dwell_report::duration(results.elapsed_s * 1e9),
            least_budget_s(&results)
        );
    }
    for warning in &results.warnings {
        output::remark(&format!("warning: {what}: {warning}"));
    }
    Ok(measured)
}

/// The least budget in which all gaps have enough rounds, if they go on to take as long \[s\]; with a quarter more, since
/// no round is started that might end later.
fn least_budget_s(results: &Results) -> f64 {
    let round_s = results.elapsed_s / f64::from(results.rounds.max(1));
    (round_s * (MIN_ROUNDS * GAPS_US.len()) as f64 * 1.25).ceil()
}

/// Measures the cost of a vCPU's halt after each length of gap.
pub(super) fn vcpu(
    rig: &Rig,
    session: &mut Session,
    campaign: &CampaignArgs,
    intervals: Intervals,
) -> anyhow::Result<HaltCosts> {
    let options = campaign.options(GAPS_US.len());
    let mut costs: Vec<HaltCost> = vec![];
    for gap in GAPS_US.map(Nanos::from_micros) {
        let what = format!("vCPU, gap of {}", dwell_report::duration(gap.get() as f64));
        session.about(format!("calibrating, {what}"));
        let options = options.clone();
        let measured =
            session.run(|load, stop, progress| measure(rig, gap, options, load, stop, progress))?;
        let measured = complete(measured, session, &what, intervals)?;
        if intervals == Intervals::Required {
            campaign.keep(&measured, costs.len(), &GapSpec::Constant(gap).to_string(), &[]);
            let halted = halted_for_polling(&measured).unwrap_or(0.0);
            ensure!(
                halted <= MOST_HALTED,
                "cannot measure the cost of a halt ({what}): KVM ended its poll before {} of the wakeups, as it does while another \
                 task waits for the CPU; stop other programs",
                dwell_report::percent(halted)
            );
        }
        let cost = cost(gap, &measured);
        costs.push(cost.context("cannot compute the cost of a halt: KVM does not count polled time here")?);
    }
    session.about("");
    Ok(HaltCosts { halt_of: HaltOf::Vcpu, costs })
}

fn people(calibration: &Calibration) -> String {
    let mut text = String::new();
    for HaltCosts { halt_of, costs } in &calibration.halts {
        let (about, gap) = match halt_of {
            HaltOf::OwnCpu => {
                ("CPU time of both threads, and from the event to the sleeping thread", "sleep")
            }
            HaltOf::Vcpu => ("in addition to those of polling until the wakeup", "gap"),
        };
        let mut columns = vec![
            Column::number(gap, "gap_ns"),
            Column::number("CPU", "cpu_ns"),
            Column::number("latency", "latency_ns"),
        ];
        if costs.iter().any(|cost| cost.idle_excess_ns.is_some()) {
            columns.push(Column::number("excess of recorded idle time", "idle_excess_ns"));
        }
        if costs.iter().any(|cost| cost.waker_ns.is_some()) {
            columns.push(Column::number("of which the waker", "waker_ns"));
        }
        let mut table = Table::new(columns);
        let spread = |Interval { value, low, high }: Interval| {
            let [value, low, high] = [value, low, high].map(dwell_report::duration);
            Cell::Text(format!("{value} [{low}, {high}]"))
        };
        for cost in costs {
            let cells = [cost.cpu_ns, cost.latency_ns]
                .into_iter()
                .chain(cost.idle_excess_ns)
                .chain(cost.waker_ns)
                .map(spread);
            table.push([Cell::Nanos(cost.gap_ns as f64)].into_iter().chain(cells));
        }
        let separator = if text.is_empty() { "" } else { "\n" };
        text += &format!(
            "{separator}{}: {about}, with 95 % intervals\n\n{}",
            halt_of.words(),
            output::fitted(&table)
        );
    }
    text
}

fn table(calibration: &Calibration) -> Table {
    let figures = ["cpu", "latency", "idle_excess", "waker"];
    let columns = figures
        .iter()
        .flat_map(|figure| ["ns", "low_ns", "high_ns"].map(|end| format!("{figure}_{end}")))
        .map(|name| Column::number(&name, &name));
    let first = [Column::text("halt_of", "halt_of"), Column::number("gap_ns", "gap_ns")];
    let mut table = Table::new(first.into_iter().chain(columns));
    for HaltCosts { halt_of, costs } in &calibration.halts {
        let name = match halt_of {
            HaltOf::OwnCpu => "own_cpu",
            HaltOf::Vcpu => "vcpu",
        };
        for HaltCost { gap_ns, cpu_ns, latency_ns, idle_excess_ns, waker_ns } in costs {
            let spreads = [Some(*cpu_ns), Some(*latency_ns), *idle_excess_ns, *waker_ns];
            let cells = spreads.into_iter().flat_map(|spread| match spread {
                Some(s) => [s.value, s.low, s.high].map(Cell::Ratio),
                None => [Cell::Missing, Cell::Missing, Cell::Missing],
            });
            let first = [Cell::Text(name.to_owned()), Cell::Count((*gap_ns).into())];
            table.push(first.into_iter().chain(cells));
        }
    }
    table
}
