//! `dwell iothread bench`

use super::predict::{Predicted, Waits};
use super::turn::{Reading, Turn};
use super::{MonitorArgs, kernel_thread};
use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::{progress, quantity, settings, stop};
use anyhow::{Context, anyhow, bail, ensure};
use dwell_knobs::iothread::{self, IoThread};
use dwell_knobs::qmp::Monitor;
use dwell_machine::load::Load;
use dwell_machine::threads::Thread;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_report::measured::{self, Measured};
use dwell_report::{Cell, Column, Table, duration, percent};
use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure, Progress, Results, Trial, Unit};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Measure settings on a running QEMU, then restore the present one
///
/// Paired measurements with intervals, under your own load. The settings are measured in turns of a fraction of a
/// second, in the order A B C A', then in reverse; A is the present setting and A' the same setting once more, which
/// shows the error of the method. Measured are the thread's CPU time, its sleeps and the requests of all block
/// devices of this QEMU. Turns during which other programs used CPU time are repeated. The present values are
/// restored at the end, after an error and after Ctrl-C; a value that was changed outside dwell meanwhile is left
/// alone and reported.
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
    let mut monitor = args.monitor.connect()?;
    let thread = which(&mut monitor, args.id.as_deref())?;
    let qemu = monitor.greeting().version.clone();
    let settings = settings_of(&qemu, &thread, &args.set)?;
    let (pid, tid) = kernel_thread(&monitor, &thread, args.thread)?;
    let stop = stop::patiently()?;
    let mut live = Live {
        monitor,
        before: thread.clone(),
        now: thread,
        observed: Thread::of(pid, tid),
        restored: false,
    };
    let measured = measure(args, &mut live, &settings, pid, &stop);
    let restored = live.restore();
    let (findings, waits) = match (measured, restored) {
        (Ok(measured), Ok(())) => measured,
        (Err(error), Ok(())) => return Err(error.context("the present values are in force again")),
        (Ok(_), Err(error)) => return Err(error),
        (Err(error), Err(also)) => return Err(also.context(format!("{error:#}; then"))),
    };
    report(args, &qemu, &live.before.id, tid, &settings, &findings, waits.as_ref())?;
    Ok(Answer::Yes)
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
    let version = Version::parse(qemu).with_context(|| format!("`{qemu}` is not a version of QEMU"))?;
    let mut present = Setting::defaults(Layer::Iothread, version);
    for (name, value) in &thread.properties {
        present.set(name, *value).map_err(|error| anyhow!("the present {name} = {value}: {error}"))?;
    }
    let groups = settings::groups(asked, &[present])?;
    let mut all = vec![present];
    for setting in groups.into_iter().map(|group| group[0]) {
        ensure!(
            !all.contains(&setting),
            "--set: `{}` is given twice, or is the setting in force",
            name_of(&setting, &present)
        );
        all.push(setting);
    }
    Ok(all)
}

/// The values in which a setting differs from the present one.
fn name_of(setting: &Setting, present: &Setting) -> String {
    let pairs = setting.iter().zip(present.iter());
    let differing: Vec<String> = pairs
        .filter(|(a, b)| a.1 != b.1)
        .map(|((param, value), _)| format!("{}={value}", param.name))
        .collect();
    if differing.is_empty() { "present".to_owned() } else { differing.join(" ") }
}

fn values_of(setting: &Setting) -> Vec<(String, i64)> {
    setting.iter().map(|(param, value)| (param.name.to_owned(), value)).collect()
}

/// A running QEMU whose I/O thread is being set.
struct Live {
    monitor: Monitor,
    before: IoThread,
    /// The values that were set last.
    now: IoThread,
    observed: Thread,
    restored: bool,
}

impl Live {
    fn set(&mut self, values: &[(String, i64)]) -> anyhow::Result<()> {
        self.nobody_else()?;
        let plan = iothread::plan(&mut self.monitor, &self.now, values)?;
        let applied = iothread::apply(&mut self.monitor, &plan);
        if applied.is_ok() {
            for change in &plan.changes {
                self.now.properties.insert(change.property.clone(), change.to);
            }
        }
        Ok(applied?)
    }

    /// Whether the thread still has the values that were set last.
    fn nobody_else(&mut self) -> anyhow::Result<()> {
        let there = iothread::find(&mut self.monitor, &self.now.id)?;
        for (name, value) in &self.now.properties {
            let found = there.properties.get(name);
            if found != Some(value) {
                bail!(
                    "{name} of `{}` was changed outside dwell to {}; it is left alone",
                    self.now.id,
                    found.map_or("nothing".to_owned(), ToString::to_string)
                );
            }
        }
        Ok(())
    }

    fn restore(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.restored, true) {
            return Ok(());
        }
        let values: Vec<(String, i64)> = self.before.properties.clone().into_iter().collect();
        let restored = self.set(&values);
        restored.with_context(|| {
            let was: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("cannot restore iothread `{}` ({})", self.before.id, was.join(" "))
        })
    }

    /// Requests served so far by all block devices.
    fn requests(&mut self) -> anyhow::Result<u64> {
        Ok(iothread::requests(&mut self.monitor, None)?)
    }

    fn read(&mut self) -> anyhow::Result<Reading> {
        let requests = self.requests()?;
        Reading::of(self.observed, requests)
    }

    fn turn(
        &mut self,
        trial: &Trial<'_, Setting>,
        settle: Duration,
        length: Duration,
    ) -> anyhow::Result<Block> {
        self.set(&values_of(trial.setting))?;
        std::thread::sleep(settle);
        let begin = self.read()?;
        std::thread::sleep(length);
        let end = self.read()?;
        let Turn { seconds, cpu_ns, sleeps, requests } = end.since(&begin);
        let block = Block::default()
            .figure(CPU_SHARE, cpu_ns / 1e9 / seconds)
            .figure(SLEEPS_PER_S, sleeps / seconds)
            .figure(REQUESTS_PER_S, requests / seconds);
        // Without requests this is not finite, which means not known.
        Ok(block.figure(CPU_PER_REQUEST, cpu_ns / requests).figure(SLEEPS_PER_REQUEST, sleeps / requests))
    }
}

/// Also where the program panics.
impl Drop for Live {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            crate::output::note(&format!("dwell: {error:#}"));
        }
    }
}

/// The error of a trial, as a campaign takes it.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
struct TurnError(anyhow::Error);

fn measure(
    args: &Args,
    live: &mut Live,
    settings: &[Setting],
    pid: u32,
    stop: &AtomicBool,
) -> anyhow::Result<(Results, Option<Waits>)> {
    let waits = if args.predict { Some(record_waits(live, stop)?) } else { None };
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
    let mut line = progress::Live::new();
    let mut show = |now: &Progress<'_>| {
        if line.due() {
            line.show(&progress::of_campaign("", now));
        }
    };
    let record =
        campaign.run(&mut load, stop, &mut show, |trial| live.turn(trial, settle, length).map_err(TurnError));
    line.clear();
    Ok((record?.results(), waits))
}

fn record_waits(live: &mut Live, stop: &AtomicBool) -> anyhow::Result<Waits> {
    live.set(&[("poll-max-ns".to_owned(), 0)])?;
    let thread = live.observed;
    Waits::record(thread, RECORD, stop, || live.requests())
        .context("cannot record the thread without polling")
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

fn report(
    args: &Args,
    qemu: &str,
    iothread: &str,
    thread_id: u32,
    settings: &[Setting],
    findings: &Results,
    waits: Option<&Waits>,
) -> anyhow::Result<()> {
    let predicted = waits.map(|waits| waits.predict(settings)).transpose()?;
    let arm = |(index, setting): (usize, &Setting)| Arm {
        name: name_of(setting, &settings[0]),
        values: values_of(setting),
        predicted: predicted.as_ref().and_then(|all| all.get(index).copied()),
    };
    let arms: Vec<Arm> = settings.iter().enumerate().map(arm).collect();
    let predicted_and_measured = Measured {
        source: "dwell iothread bench".into(),
        verdict: None,
        rows: arms.iter().filter_map(|arm| measured_row(iothread, arm, findings)).collect(),
    };
    let benched = Benched { qemu, iothread, thread_id, arms, findings, predicted_and_measured };
    match args.format.format {
        Format::Json => output::json(&benched)?,
        Format::Csv => output::csv(&table(&benched))?,
        Format::Table => {
            output::text(&format!(
                "QEMU {qemu}, iothread {iothread}, thread {thread_id}; {} rounds in {}; present: {}\n\n",
                findings.rounds,
                duration(findings.elapsed_s * 1e9),
                benched.arms.first().map_or_else(String::new, |arm| {
                    arm.values
                        .iter()
                        .map(|(name, value)| format!("{name}={value}"))
                        .collect::<Vec<_>>()
                        .join(" ")
                })
            ))?;
            output::text(&output::fitted(&table(&benched)))?;
            if let Some(waits) = waits {
                output::text(&format!(
                    "\npredicted from {} waits of {} requests, recorded without polling and replayed through each setting; \
                     CPU is the polling CPU\n",
                    dwell_report::count(waits.episodes().into()),
                    dwell_report::count(waits.requests().into())
                ))?;
            }
            output::text("the present values are in force again\n")?;
            for warning in &findings.warnings {
                output::text(&format!("warning: {warning}\n"))?;
            }
        }
    }
    Ok(())
}

fn table(benched: &Benched<'_>) -> Table {
    let predicts = benched.arms.iter().any(|arm| arm.predicted.is_some());
    let mut columns = vec![
        Column::text("figure", "figure"),
        Column::text("setting", "arm"),
        Column::number("measured", "value"),
        Column::text("95 % interval", "interval"),
        Column::text("change", "ratio"),
    ];
    if predicts {
        columns.push(Column::number("predicted", "predicted"));
    }
    let mut table = Table::new(columns);
    for row in &benched.findings.rows {
        let cell = |value: f64| match row.unit {
            Unit::Nanos => Cell::Nanos(value),
            Unit::Share => Cell::Share(value),
            Unit::Count => Cell::Ratio(value),
            Unit::PerSecond => Cell::Rounded(value),
        };
        let text = |value: f64| match row.unit {
            Unit::Nanos => duration(value),
            Unit::Share => percent(value),
            Unit::Count => dwell_report::ratio(value),
            Unit::PerSecond => format!("{value:.0}"),
        };
        // Too few rounds give a value without an interval.
        let limits = row.value.and_then(|value| value.limits());
        let interval = limits.map(|[low, high]| format!("{} to {}", text(low), text(high)));
        let change = |value: f64| format!("{:+.1} %", (value - 1.0) * 100.0);
        let ratio = row.ratio().map(|ratio| match ratio.limits() {
            Some([low, high]) => format!("{} [{}, {}]", change(ratio.value), change(low), change(high)),
            None => change(ratio.value),
        });
        let mut cells = vec![
            Cell::Text(row.figure.clone()),
            Cell::Text(row.arm.clone()),
            row.value.map_or(Cell::Missing, |interval| cell(interval.value)),
            interval.map_or(Cell::Missing, Cell::Text),
            ratio.map_or(Cell::Missing, Cell::Text),
        ];
        if predicts {
            let predicted = benched.arms.iter().find(|arm| arm.name == row.arm).and_then(|arm| arm.predicted);
            cells.push(match (row.figure.as_str(), predicted) {
                (SLEEPS_PER_REQUEST, Some(predicted)) => Cell::Ratio(predicted.sleeps),
                (CPU_PER_REQUEST, Some(predicted)) => {
                    Cell::Text(format!("+ {}", duration(predicted.polled_ns)))
                }
                _ => Cell::Missing,
            });
        }
        table.push(cells);
    }
    table
}
