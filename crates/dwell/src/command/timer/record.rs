//! `dwell timer record`

use crate::command::record::{Common, command_line};
use crate::failure::Outcome;
use crate::output;
use crate::progress::{self, per_second};
use crate::{model, privileges, stop};
use dwell_capture::Until;
use dwell_recording::timer::{TimerContents, VcpuRows};
use dwell_report::{Column, Table, count, duration};
use dwell_timer::record::{TimerRecorder, TimerSummary};
use dwell_trace::import::quoted;
use serde::Serialize;
use std::time::Duration;

/// Record the timers of this host's vCPUs, and every VM exit
///
/// Uses KVM's tracepoints (kvm:kvm_exit, kvm:kvm_entry, kvm:kvm_msr and others) and those of hrtimers.
/// For each timer that a guest arms: what carries it, when and where it fires, where the vCPU is then, and when the
/// guest is entered after it. For each exit: its reason and duration. Every exit of every VM is traced, which costs
/// about a microsecond each. Flavours of KVM that do not emit kvm:kvm_exit and kvm:kvm_entry cannot be recorded.
#[derive(clap::Args)]
#[command(
    mut_arg("output", |arg| arg.help("Recording to write [default: dwell-timer.parquet]")),
    after_help = "Example: dwell timer record --duration 10s -o timer.parquet",
)]
pub(crate) struct Args {
    /// Record only the VM of this process
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    #[command(flatten)]
    common: Common,
}

/// The recording, as it is printed.
#[derive(Serialize)]
struct Recorded {
    output: String,
    layer: &'static str,
    elapsed_ns: u128,
    events: u64,
    lost_events: u64,
    /// Whether more may have been lost.
    lost_at_least: bool,
    timers: u64,
    exits: u64,
    incomplete: u64,
    vcpus: Vec<VcpuRows>,
}

pub(super) fn run(args: Args) -> Outcome {
    let Common { duration, output, force, format } = args.common;
    let output = output.unwrap_or_else(|| "dwell-timer.parquet".into());
    force.may_write(&output, [])?;
    let recorder = TimerRecorder::open(args.pid, Some(command_line()))?;
    privileges::keep_those_for_recording(&output);
    let stop = stop::on_ctrl_c()?;
    let until = Until { duration: duration.map(|d| Duration::from_nanos(d.get())), stop: &stop };
    let TimerSummary { status, contents, metadata } =
        recorder.to_file(&output, &until, &mut progress::Recording::of_timers(until.duration))?;
    let recorded = Recorded {
        output: output.display().to_string(),
        layer: metadata.layer.name(),
        elapsed_ns: status.elapsed.as_nanos(),
        events: status.events,
        lost_events: status.lost,
        lost_at_least: metadata.lost.at_least,
        timers: contents.timers(),
        exits: contents.exits(),
        incomplete: status.incomplete,
        vcpus: contents.vcpus.clone(),
    };
    output::result(format.format, &recorded, || table(&recorded), || words(&recorded, &contents))
}

fn words(recorded: &Recorded, contents: &TimerContents) -> String {
    let seconds = recorded.elapsed_ns as f64 / 1e9;
    let mut text = output::wrapped(&format!(
        "{}: {} in {}, {} timers per second; {} events, {}{} lost",
        recorded.output,
        model::timers_of(contents),
        duration(recorded.elapsed_ns as f64),
        per_second(recorded.timers, seconds),
        count(recorded.events.into()),
        if recorded.lost_at_least { "at least " } else { "" },
        count(recorded.lost_events.into()),
    ));
    if recorded.incomplete > 0 {
        let number = count(recorded.incomplete.into());
        text += &format!("  {number} timers and exits left out (beginning or end not recorded)\n");
    }
    text + &format!("next: dwell timer tune {0}, dwell timer exits {0}\n", quoted(&recorded.output))
}

/// One row per vCPU; figures of the whole recording are repeated in each.
fn table(recorded: &Recorded) -> Table {
    Table::of(&recorded.vcpus)
        .column(Column::text("output", "output"), |_| recorded.output.clone())
        .column(Column::text("vcpu", "vcpu"), |vcpu| vcpu.name.clone())
        .column(Column::number("timers", "timers"), |vcpu| vcpu.timers)
        .column(Column::number("exits", "exits"), |vcpu| vcpu.exits)
        .column(Column::number("elapsed_ns", "elapsed_ns"), |_| recorded.elapsed_ns)
        .column(Column::number("events", "events"), |_| recorded.events)
        .column(Column::number("lost_events", "lost_events"), |_| recorded.lost_events)
        .column(Column::number("incomplete", "incomplete"), |_| recorded.incomplete)
        .table()
}
