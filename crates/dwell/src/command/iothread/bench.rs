//! `dwell iothread bench`

mod live;
mod show;

use super::predict::{Predicted, Waits};
use super::{MonitorArgs, kernel_thread};
use crate::failure::Outcome;
use crate::output::FormatArg;
use crate::state::StateArgs;
use crate::{privileges, progress, quantity, settings, stop};
use anyhow::{Context, bail, ensure};
use dwell_knobs::iothread::{self, IoThread};
use dwell_knobs::knob::IothreadTarget;
use dwell_knobs::lease::{Holder, Lease, Subject};
use dwell_knobs::qmp::Monitor;
use dwell_machine::load::Load;
use dwell_machine::threads::Thread;
use dwell_policy::Nanos;
use dwell_policy::iothread::Property;
use dwell_policy::param::Setting;
use dwell_report::measured::{self, Measured};
use dwell_stats::{Arms, Campaign, CampaignOptions, Figure, Results, Unit};
use live::Live;
use serde::Serialize;
use show::report;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Measure settings on a running QEMU, then restore the present one
///
/// Paired measurements with intervals, under your own load. The settings are measured in turns of a fraction of a
/// second, in the order A B C A', then in reverse; A is the present setting and A' the same setting once more, which
/// shows the error of the method. Measured are the thread's CPU time, its sleeps and the requests of all block
/// devices of this QEMU. Turns during which other programs used CPU time are repeated. The present values and all that
/// are measured go into the journal first, as a lease. The present ones are restored at the end, after an error and after
/// Ctrl-C, and by `dwell control stop` if dwell is killed; a value that was changed outside dwell meanwhile is left alone
/// and reported. While a `dwell control` runs, nothing is measured.
#[derive(clap::Args)]
#[command(
    after_help = "Example: dwell iothread bench --qmp /run/vm.qmp io0 --set poll-max-ns=0 --set poll-max-ns=300us"
)]
pub(super) struct Args {
    #[command(flatten)]
    monitor: MonitorArgs,
    /// ID of the thread [default: the only one]
    id: Option<String>,
    /// Setting to compare with the present one, such as poll-max-ns=300us
    ///
    /// Can be repeated for more parameters. A name that the setting already has begins another setting.
    #[arg(long, required = true, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Longest time to measure
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = quantity::duration)]
    budget: Nanos,
    /// Length of one turn of a setting
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = quantity::duration)]
    turn: Nanos,
    /// How long a setting is in force before its turn is measured
    ///
    /// QEMU resets its adaptive state when a setting is written.
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = quantity::duration)]
    settle: Nanos,
    /// Repeat turns in which other programs use more than this much CPU
    ///
    /// `50%` and `0.5` are half a CPU, `2` is two CPUs. A turn is repeated once.
    #[arg(long, value_name = "CPUS", default_value = "50%", value_parser = quantity::cpus)]
    max_foreign: f64,
    /// Predict first: record the thread without polling for two seconds
    ///
    /// Prints what a replay predicts beside what is measured. Needs root.
    #[arg(long)]
    predict: bool,
    /// Thread ID (TID), where QEMU does not report it (qemu-storage-daemon)
    #[arg(long, value_name = "TID")]
    thread: Option<u32>,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    format: FormatArg,
}

const CPU_PER_REQUEST: &str = "cpu_ns_per_request";
const SLEEPS_PER_REQUEST: &str = "sleeps_per_request";
const CPU_SHARE: &str = "cpu_share";
const SLEEPS_PER_S: &str = "sleeps_per_s";
const REQUESTS_PER_S: &str = "requests_per_s";

/// How long the waits are recorded for a prediction.
const RECORD: Duration = Duration::from_secs(2);

#[derive(Serialize)]
struct Benched<'a> {
    qemu: &'a str,
    iothread: &'a str,
    thread_id: u32,
    arms: Vec<Arm>,
    findings: &'a Results,
    /// For `dwell report --measured`. Only the sleeps can be compared: the prediction of CPU time is polling
    /// CPU, which is not measured separately.
    predicted_and_measured: Measured,
}

#[derive(Serialize)]
struct Arm {
    name: String,
    values: Vec<(String, i64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<Predicted>,
}

pub(super) fn run(args: &Args) -> Outcome {
    let (machine, socket) = (args.state.machine()?, super::socket(&args.monitor.qmp)?);
    let mut monitor = iothread::connect(&machine, &socket)?;
    let thread = which(&mut monitor, args.id.as_deref())?;
    let qemu = monitor.greeting().version.clone();
    let settings = settings_of(&qemu, &thread, &args.set)?;
    let (pid, tid) = kernel_thread(&monitor, &thread, args.thread)?;
    // A monitor serves one client at a time, and every write connects anew.
    drop(monitor);
    privileges::record();
    let stop = stop::patiently()?;
    let holder = Holder::begin(&machine, &args.state.state_dir)?;
    let subject = Subject::Iothread(IothreadTarget { socket, id: thread.id.clone(), domain: None });
    let without_polling = if args.predict { Some(without_polling(&settings[0])?) } else { None };
    let all: Vec<Setting> = settings.iter().copied().chain(without_polling).collect();
    let lease = Lease::take(&machine, &holder, &subject, settings[0], &all)?;
    let mut live = Live { machine: &machine, lease, observed: Thread::of(pid, tid) };
    let measured = measure(args, &mut live, &settings, without_polling, pid, &stop);
    let restored = live.restore();
    let (findings, waits) = match (measured, restored) {
        (Ok((findings, _)), Ok(())) if findings.rounds == 0 => bail!(
            "stopped before the first round was complete; there are no results, and the present values are in force again"
        ),
        (Ok(measured), Ok(())) => measured,
        (Err(error), Ok(())) => return Err(error.context("the present values are in force again")),
        (Ok(_), Err(error)) => return Err(error),
        (Err(error), Err(also)) => return Err(also.context(format!("{error:#}; then"))),
    };
    report(args, &qemu, &thread.id, tid, &settings, &findings, waits.as_ref())
}

fn which(monitor: &mut Monitor, id: Option<&str>) -> anyhow::Result<IoThread> {
    if let Some(id) = id {
        return Ok(iothread::find(monitor, id)?);
    }
    let mut all = iothread::list(monitor)?;
    let ids: Vec<&str> = all.iter().map(|thread| &*thread.id).collect();
    ensure!(
        all.len() == 1,
        "cannot choose an I/O thread; give its ID, one of: {}",
        if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
    );
    all.pop().context("this QEMU has no I/O thread")
}

/// The present setting, and those to compare with it.
fn settings_of(qemu: &str, thread: &IoThread, asked: &[String]) -> anyhow::Result<Vec<Setting>> {
    let present = iothread::setting(thread, qemu)?;
    let groups = settings::groups("--set", asked, &[present])?;
    let mut all = vec![present];
    for mut setting in groups.into_iter().map(|group| group[0]) {
        for (param, value) in setting.clone().iter() {
            setting.set(param.name, thread.stored(param.name, value))?;
        }
        ensure!(setting != present, "--set: these values are in force, which is measured in any case");
        ensure!(!all.contains(&setting), "--set: `{}` is given twice", name_of(&setting, &present));
        all.push(setting);
    }
    Ok(all)
}

/// The values in which a setting differs from the present one.
fn name_of(setting: &Setting, present: &Setting) -> String {
    let differing = settings::differing(setting, present);
    if differing.is_empty() { "present".to_owned() } else { differing }
}

fn values_of(setting: &Setting) -> Vec<(String, i64)> {
    setting.iter().map(|(param, value)| (param.name.to_owned(), value)).collect()
}

fn measure(
    args: &Args,
    live: &mut Live<'_>,
    settings: &[Setting],
    without_polling: Option<Setting>,
    pid: u32,
    stop: &AtomicBool,
) -> anyhow::Result<(Results, Option<Waits>)> {
    let waits = without_polling.map(|setting| record_waits(live, &setting, stop)).transpose()?;
    let present = settings[0];
    let mut arms = Arms::new("present", present);
    for setting in &settings[1..] {
        arms = arms.arm(&name_of(setting, &present), *setting);
    }
    let figures = [
        Figure::of_block(CPU_PER_REQUEST, Unit::Nanos),
        Figure::of_block(SLEEPS_PER_REQUEST, Unit::Count),
        Figure::of_block(REQUESTS_PER_S, Unit::PerSecond),
        Figure::of_block(CPU_SHARE, Unit::Share),
        Figure::of_block(SLEEPS_PER_S, Unit::PerSecond),
    ];
    let plan = CampaignOptions {
        budget: Duration::from_nanos(args.budget.get()),
        foreign_limit: args.max_foreign,
        // A host with guests is never quiet: another round is better than waiting.
        repeats: 1,
        quiet_wait: Duration::from_millis(300),
        ..CampaignOptions::default()
    };
    let campaign = Campaign::new("iothread", arms, figures, plan)?;
    let mut load = Load::open()?;
    load.add_own(pid);
    let (settle, length) = (Duration::from_nanos(args.settle.get()), Duration::from_nanos(args.turn.get()));
    let results = progress::campaign(&campaign, &mut load, stop, |trial| live.turn(trial, settle, length))?;
    Ok((results, waits))
}

fn record_waits(live: &mut Live<'_>, without_polling: &Setting, stop: &AtomicBool) -> anyhow::Result<Waits> {
    live.set(without_polling)?;
    let thread = live.observed;
    Waits::record(thread, RECORD, stop, || live.requests())
        .context("cannot record the thread without polling")
}

fn without_polling(present: &Setting) -> anyhow::Result<Setting> {
    let mut without = *present;
    without.set(Property::PollMaxNs.name(), 0)?;
    Ok(without)
}

fn measured_row(iothread: &str, arm: &Arm, findings: &Results) -> Option<measured::Row> {
    let predicted = arm.predicted?.sleeps;
    let value = findings.row(&arm.name, SLEEPS_PER_REQUEST)?.value?;
    Some(measured::Row {
        subject: format!("{iothread}, {}", arm.name),
        figure: SLEEPS_PER_REQUEST.into(),
        predicted,
        measured: value.value,
        error: measured::error(predicted, value),
    })
}
