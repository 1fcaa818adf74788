//! `dwell record`

mod show;

use crate::failure::Outcome;
use crate::output::{self, FormatArg};
use crate::overwrite::ForceArg;
use crate::progress;
use crate::settings::VersionArgs;
use crate::suggest::{Named, one_of};
use crate::{model, privileges, quantity, stop};
use anyhow::{Context, ensure};
use clap::Subcommand;
use dwell_capture::{GuestSource, Recorder, Summary, Target, Until};
use dwell_policy::Nanos;
use dwell_recording::Reader;
use serde::Serialize;
use show::{nothing, table, words};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Record how CPUs, vCPUs or I/O threads idle
///
/// Reads tracepoints through perf ring buffers or BPF programs and changes nothing on the machine. Needs root, or
/// CAP_PERFMON and a readable tracefs, and CAP_BPF for BPF. Ctrl-C ends the recording and keeps it. Lost events are
/// counted and reported.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  dwell record host --duration 10s\n  \
                        dwell record guest --duration 60s -o redis.parquet\n  \
                        dwell record thread --comm redis-server --duration 10s")]
pub(crate) struct Args {
    #[command(subcommand)]
    whom: Whom,
}

#[derive(Subcommand)]
enum Whom {
    /// Record the vCPUs of this host (kvm:kvm_vcpu_wakeup and kvm:kvm_halt_poll_ns)
    Host(Host),
    /// Record the CPUs of this machine, which may be a guest
    ///
    /// Uses power:cpu_idle, or context switches to and from the idle task where power:cpu_idle cannot be had from
    /// every CPU. On some kernels perf receives nothing from the idle task of some CPUs; BPF programs on the same
    /// tracepoints receive every CPU's events (Linux 5.8 or later, CAP_BPF). With sched:sched_waking and the interrupt
    /// tracepoints, an idle time ends at the wakeup event, and the wakeup latency is recorded separately.
    Guest(Guest),
    /// Record threads that wait for file descriptors, such as event loops
    ///
    /// A wait is a call of poll, ppoll, epoll_wait, epoll_pwait, epoll_pwait2, select, pselect or io_uring_enter.
    Thread(Thread),
}

#[derive(clap::Args)]
pub(super) struct Common {
    /// How long to record [default: until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = quantity::recording_time)]
    pub(super) duration: Option<Nanos>,
    /// Recording to write [default: dwell-LAYER.parquet]
    ///
    /// There is no file where nothing was recorded, which is an error.
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) force: ForceArg,
    #[command(flatten)]
    pub(super) format: FormatArg,
}

#[derive(clap::Args)]
struct Wanted {
    /// Write a sketch in place of the episodes
    ///
    /// A sketch takes kilobytes and has what every setting of a grid costs, for `dwell fleet`; see `dwell
    /// sketch --help`. While it is recorded, the episodes are in a file beside it, which is removed at the
    /// end.
    #[arg(long)]
    sketch: bool,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Host {
    /// Record only the VM of this process
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Also record kvm:kvm_exit for HLT, which identifies the vCPUs reliably
    ///
    /// Adds a small cost to every VM exit.
    #[arg(long)]
    exits: bool,
    /// Do not record the scheduler's tracepoints
    ///
    /// By default sched_switch, sched_wakeup, sched_wakeup_new and sched_migrate_task are recorded on the CPUs that
    /// the vCPUs may run on, filtered in the kernel. They show for how long no other task was runnable on the CPU of
    /// a vCPU; KVM ends a poll when there is one. On CPUs with many context switches they cost more than the
    /// tracepoints of KVM. Without them, predictions for vCPUs that share CPUs with other tasks are wrong.
    #[arg(long)]
    without_contention: bool,
    /// Do not record what vCPUs run between their halts and what woke them
    ///
    /// By default kvm_apic_accept_irq, sched_waking, local_timer_entry and irq_handler_entry are recorded too. They
    /// show which vCPU woke which, and when. From that `dwell tune` predicts how much work is done under another
    /// setting.
    #[arg(long)]
    without_causes: bool,
    #[command(flatten)]
    result: Wanted,
}

#[derive(clap::Args)]
struct Guest {
    /// Source of idle periods
    #[arg(long, value_parser = one_of(&SOURCES), default_value = "auto")]
    source: GuestSource,
    /// Do not record the segments of tasks and what woke them
    ///
    /// By default sched_switch is recorded too, where power:cpu_idle is. It shows what runs between two idle times
    /// and what woke it: another task, a timer or an interrupt. From that `dwell tune` predicts how much work is done
    /// under another setting.
    #[arg(long)]
    without_causes: bool,
    #[command(flatten)]
    result: Wanted,
}

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true).args(["pid", "comm"])))]
struct Thread {
    /// Process ID (all threads of the process) or thread ID (that thread only)
    #[arg(long, value_name = "PID")]
    pid: Option<i32>,
    /// Threads with this name, including those that start later; may be given more than once
    ///
    /// The kernel keeps 15 characters of a thread's name; longer names are compared up to that length.
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Do not record what the threads run between their waits and what woke them
    ///
    /// By default sched_waking of these threads and the interrupt tracepoints are recorded too. They show which
    /// thread woke which, and when. From that `dwell tune` predicts how much work would be done if the threads
    /// polled. Record threads that wait for each other together, such as a server and its client by two --comm.
    #[arg(long)]
    without_causes: bool,
    #[command(flatten)]
    result: Wanted,
}

const SOURCES: [Named<GuestSource>; 5] = [
    ("auto", "cpu_idle if every CPU emits it, else bpf where it can be had, else switch", GuestSource::Auto),
    ("bpf", "power:cpu_idle and the other tracepoints, read by BPF programs", GuestSource::Bpf),
    ("perf", "cpu_idle if every CPU emits it, else switch", GuestSource::Perf),
    ("cpu_idle", "power:cpu_idle, as perf records it", GuestSource::CpuIdle),
    ("switch", "Context switches to and from the idle task, as perf records them", GuestSource::Switch),
];

#[derive(Serialize)]
struct Recorded {
    output: String,
    layer: &'static str,
    #[serde(skip)]
    is_sketch: bool,
    elapsed_ns: u128,
    events: u64,
    lost_events: u64,
    /// Whether more may have been lost: kernels before 6.0 do not count what is lost after the last event of a CPU.
    lost_at_least: bool,
    lost_by_cpu: Vec<dwell_recording::CpuLoss>,
    episodes: u64,
    incomplete_episodes: u64,
    span_ns: u64,
    idlers: Vec<Idler>,
}

#[derive(Serialize)]
struct Idler {
    name: String,
    episodes: u64,
}

pub(crate) fn run(args: Args) -> Outcome {
    // A sketch has no place for causes.
    let causes = |without_causes: bool, wanted: &Wanted| !without_causes && !wanted.sketch;
    let (target, Wanted { sketch, common }) = match args.whom {
        Whom::Host(Host { pid, exits, without_contention, without_causes, result }) => {
            let causes = causes(without_causes, &result);
            (Target::Host { pid, exits, contention: !without_contention, causes }, result)
        }
        Whom::Guest(Guest { source, without_causes, result }) => {
            (Target::Guest { source, causes: causes(without_causes, &result) }, result)
        }
        Whom::Thread(Thread { pid, comm, without_causes, result }) => {
            (Target::Thread { pid, comm, causes: causes(without_causes, &result) }, result)
        }
    };
    let layer = target.layer().name();
    let output = common.output.unwrap_or_else(|| format!("dwell-{layer}.parquet").into());
    common.force.may_write(&output, [])?;
    let mut recorder = Recorder::open(target, Some(command_line()))?;
    recorder.count_switches();
    model::left_out(recorder.metadata()).iter().for_each(|note| output::note(note));
    // Before any other thread is started: capabilities are those of a thread, and inherited.
    privileges::keep_those_for_recording(&output);
    let stop = stop::on_ctrl_c()?;
    let until = Until { duration: common.duration.map(|d| Duration::from_nanos(d.get())), stop: &stop };
    let record = |file: &Path| recorder.to_file(file, &until, &mut progress::Recording::new(until.duration));
    let summary = if sketch {
        let beside = Beside::of(&output);
        sketch_of(&beside.0, &output, record(&beside.0)?)?
    } else {
        record(&output)?
    };
    let is_there = summary.contents.episodes > 0;
    ensure!(is_there, "cannot write {}: nothing was recorded; {}", output.display(), nothing(layer));
    let recorded = describe(output.display().to_string(), layer, sketch, &summary);
    output::result(common.format.format, &recorded, || table(&recorded), || words(&recorded))
}

/// The command line, to store in the recording.
pub(crate) fn command_line() -> String {
    dwell_cli::command_line("dwell")
}

/// The file that has the episodes until they are sketched; it is removed with this.
struct Beside(PathBuf);

impl Beside {
    fn of(output: &Path) -> Beside {
        let mut name = output.as_os_str().to_owned();
        name.push(".episodes");
        Beside(name.into())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // There is none where nothing was recorded.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes the sketch of a recording, if it has episodes.
fn sketch_of(episodes: &Path, output: &Path, summary: Summary) -> anyhow::Result<Summary> {
    if summary.contents.episodes > 0 {
        let sketch = super::sketch::of(Reader::open(episodes)?, &VersionArgs::default(), None);
        super::sketch::write(&sketch.context("cannot make a sketch of what was recorded")?, output)?;
    }
    Ok(summary)
}

fn describe(output: String, layer: &'static str, is_sketch: bool, summary: &Summary) -> Recorded {
    let idler = |idler: &dwell_recording::Idler| Idler { name: idler.name.clone(), episodes: idler.episodes };
    Recorded {
        output,
        layer,
        is_sketch,
        elapsed_ns: summary.status.elapsed.as_nanos(),
        events: summary.status.events,
        lost_events: summary.status.lost,
        lost_at_least: summary.metadata.lost.at_least,
        lost_by_cpu: summary.metadata.lost.by_cpu.clone(),
        episodes: summary.contents.episodes,
        incomplete_episodes: summary.status.incomplete,
        span_ns: summary.contents.span_ns(),
        idlers: summary.contents.idlers.iter().map(idler).collect(),
    }
}
