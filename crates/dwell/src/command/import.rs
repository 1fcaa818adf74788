//! `dwell import`

mod any;
mod finish;

use crate::failure::Outcome;
use crate::output::FormatArg;
use crate::overwrite::ForceArg;
use crate::{progress, settings};
use any::any;
pub(super) use any::open;
use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use dwell_policy::Layer;
use dwell_policy::arch::Arch;
use dwell_recording::IdleIncludes;
use dwell_trace::guest::GuestSource;
use dwell_trace::import::csv::CsvOptions;
use dwell_trace::import::{self, ImportSummary};
use serde::Serialize;
use std::path::PathBuf;

/// Convert the traces and tables of other tools to a recording
///
/// Recognises the text of `perf script`, `trace-cmd report` and ftrace, traces of Perfetto, pages of systrace, QEMU's trace
/// of its event loops, and tables of episodes (CSV), plain or compressed with gzip, xz or zstd, and prints what it took
/// the file for. A perf.data or trace.dat is converted by its own tool (--convert). The subcommands import one format,
/// with its own options.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Example: trace-cmd record -e kvm:kvm_vcpu_wakeup -e kvm:kvm_halt_poll_ns sleep 10\n         \
                  dwell import trace.dat --convert -o host.parquet\n\n\
                  What perf is to record and to print: dwell import perf --help; QEMU: dwell import qemu --help"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    from: Option<From>,
    #[command(flatten)]
    files: Option<Files>,
    #[command(flatten)]
    events: Events,
}

#[derive(Subcommand)]
enum From {
    /// Import a table of episodes (CSV)
    ///
    /// The first line names the columns, in any order. Required: start_ns and idle_ns. Optional: idler, window_ns,
    /// halted, wake (irq, ipi, timer, io, task, unknown), wake_latency_ns, ready (names of ready handlers, separated
    /// by commas) and alone_ns (time until another task was runnable on the same CPU; KVM ends a poll then). An empty
    /// field is not known. Times are whole nanoseconds. The rows of one idler are in order of start_ns.
    #[command(after_help = "Example: dwell import csv idle.csv.gz --layer guest -o idle.parquet")]
    Csv(Csv),
    /// Import text of `perf script`, `trace-cmd report` or ftrace
    ///
    /// The same trace gives the same recording as `dwell record`.
    ///
    /// Host: kvm:kvm_vcpu_wakeup and kvm:kvm_halt_poll_ns.
    ///
    /// Guest: power:cpu_idle, or sched:sched_switch, or the context switches of `perf record --switch-events`. With
    /// sched:sched_waking, irq_vectors:local_timer_entry, irq_vectors:reschedule_entry and irq:irq_handler_entry, an
    /// idle time ends at the wakeup event; without them it includes the wakeup latency. power:guest_halt_poll_ns has
    /// the windows.
    ///
    /// Threads: syscalls:sys_enter_* and sys_exit_* of the calls that wait.
    ///
    /// Other events are counted and ignored. With `perf script --ns --header --show-task-events -F +pid`, times are
    /// exact, windows follow the kernel's rule, and vCPUs are named after their process.
    #[command(
        after_help = "Example: perf record -a -k CLOCK_MONOTONIC -e kvm:kvm_vcpu_wakeup,kvm:kvm_halt_poll_ns -- sleep 10\n         \
                            perf script --ns --header --show-task-events -F +pid > host.txt\n         \
                            dwell import perf host.txt -o host.parquet"
    )]
    Perf(Perf),
    /// Import QEMU's trace log of its event loops
    ///
    /// Reads run_poll_handlers_begin, run_poll_handlers_end, poll_grow, poll_shrink, poll_add and poll_remove of QEMU
    /// 7.0 to 11.1, from its log, the syslog, qemu-trace-stap, simpletrace.py or babeltrace. The log has times only with
    /// `-msg timestamp=on`; without them an idle time is a lower bound, and `dwell tune` refuses the recording. A sleep that no polling precedes is not in the log: record the same
    /// threads with `dwell record thread` at the same time and give that recording as --sleeps. With --qemu, every
    /// decision in the log is checked against the rule of that version.
    #[command(
        after_help = "Example: qemu-system-x86_64 … -trace 'run_poll_handlers_*' -trace 'poll_*' -msg timestamp=on -D qemu.log\n         \
                            dwell record thread --pid $(pidof qemu-system-x86_64) --duration 10s -o sleeps.parquet\n         \
                            dwell import qemu qemu.log --qemu 7.2 --sleeps sleeps.parquet -o iothread.parquet"
    )]
    Qemu(Qemu),
}

/// Apart from the other options, since clap only sees whether a group is given that has no other within.
#[derive(clap::Args, Clone, Default)]
pub(super) struct Files {
    /// Input file; - reads stdin
    pub(super) file: PathBuf,
    /// Recording to write
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
}

#[derive(clap::Args)]
pub(super) struct Common {
    #[arg(skip)]
    pub(super) files: Files,
    #[command(flatten)]
    pub(super) force: ForceArg,
    /// Kernel release of the machine that idled, as `uname -r` prints it
    #[arg(long, value_name = "VERSION")]
    kernel: Option<String>,
    /// QEMU release, as `qemu-system-x86_64 --version` prints it
    #[arg(long, value_name = "VERSION")]
    qemu: Option<String>,
    /// Setting in force while recording, such as halt_poll_ns=200us
    ///
    /// Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    in_force: Vec<String>,
    /// Free text to store in the recording: load, machine, purpose
    #[arg(long, value_name = "TEXT")]
    provenance: Option<String>,
    #[command(flatten)]
    pub(super) format: FormatArg,
}

#[derive(clap::Args)]
struct Csv {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    common: Common,
    /// Layer of the episodes: guest, host or iothread
    #[arg(long, value_parser = crate::suggest::idling_layers(layer))]
    layer: Layer,
    /// Name of the idler, if the table has no column `idler`
    ///
    /// [default: cpu0, vcpu0 or iothread0]
    #[arg(long, value_name = "NAME")]
    idler: Option<String>,
    /// What an idle time includes
    #[arg(long, value_enum, default_value_t = Includes::Unknown)]
    idle_includes: Includes,
}

#[derive(clap::Args)]
struct Perf {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    events: Events,
}

#[derive(clap::Args)]
struct Events {
    #[command(flatten)]
    common: Common,
    /// Layer whose events to use, if the trace has several: host, guest or iothread
    #[arg(long, value_parser = crate::suggest::idling_layers(layer))]
    layer: Option<Layer>,
    /// Source of the idle periods of a guest, if the trace has both
    #[arg(long, value_enum, default_value_t = Source::Auto)]
    source: Source,
    /// Architecture of the traced machine, as `uname -m` prints it: x86_64, aarch64, riscv64, s390x, ppc64le
    /// or loongarch64
    ///
    /// Decides which idle state polls, and the numbers of system calls. [default: that of the text's header or events,
    /// else of this machine]
    #[arg(long, value_name = "NAME", value_parser = settings::arch)]
    arch: Option<Arch>,
    /// Have a perf.data or trace.dat converted to text by `perf script` or `trace-cmd report`
    #[arg(long)]
    convert: bool,
    /// Count lines that cannot be parsed, instead of stopping at the first one
    ///
    /// This concerns lines that name an event; other lines are always skipped.
    #[arg(long)]
    skip_unparsable: bool,
}

#[derive(clap::Args)]
struct Qemu {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    common: Common,
    /// Recording of the same threads by `dwell record thread`, which has their sleeps
    #[arg(long, value_name = "FILE")]
    sleeps: Option<PathBuf>,
    /// Only the AioContext with this address, as the log prints it after `ctx`
    #[arg(long, value_name = "0x…", value_parser = address)]
    context: Option<u64>,
    /// Count lines that cannot be parsed, instead of stopping at the first one
    #[arg(long)]
    skip_unparsable: bool,
    /// Write the recording even if its decisions contradict the rule
    ///
    /// Without this option, a log is refused of which more than one decision in twenty is not that of the rule with the
    /// parameters of --in-force, or without that option with QEMU's defaults: advice from it would be wrong.
    #[arg(long)]
    allow_contradictions: bool,
}

/// A log of which more decisions contradict the rule was made under other parameters.
const MOST_CONTRADICTED: f64 = 0.05;

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").ok_or("an address starts with 0x")?;
    u64::from_str_radix(digits, 16).map_err(|_| "an address is 0x and up to 16 hexadecimal digits".to_owned())
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Includes {
    /// Ends at the wakeup event; the wakeup latency is not included
    Event,
    /// Ends when the idler runs again; the wakeup latency is included
    Wake,
    /// Not known
    Unknown,
}

fn layer(text: &str) -> Result<Layer, String> {
    match Layer::from_name(text) {
        Some(layer) if layer != Layer::Driver => Ok(layer),
        _ => Err("layers are guest, host and iothread; timers: `dwell timer import`".to_owned()),
    }
}

#[derive(Serialize)]
struct Imported<'a> {
    file: String,
    output: String,
    #[serde(flatten)]
    summary: &'a ImportSummary,
    idlers: usize,
    span_ns: u64,
}

/// What shows in a text that a CPU idles.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Source {
    /// cpu_idle if every CPU emits it, else switch
    Auto,
    /// power:cpu_idle
    CpuIdle,
    /// Context switches to and from the idle task, as perf records them
    Switch,
}

impl std::convert::From<Source> for GuestSource {
    fn from(source: Source) -> GuestSource {
        match source {
            Source::Auto => GuestSource::Auto,
            Source::CpuIdle => GuestSource::CpuIdle,
            Source::Switch => GuestSource::Switch,
        }
    }
}

pub(crate) fn run(args: Args) -> Outcome {
    match args.from {
        None => any(args.files.context("no file to import is given")?, args.events),
        Some(From::Csv(mut csv)) => {
            csv.common.files.clone_from(&csv.files);
            let mut metadata = csv.common.metadata(csv.layer)?;
            metadata.idle_includes = match csv.idle_includes {
                Includes::Event => IdleIncludes::Event,
                Includes::Wake => IdleIncludes::Wake,
                Includes::Unknown => IdleIncludes::Unknown,
            };
            let options =
                csv.idler.map_or_else(|| CsvOptions::for_layer(csv.layer), |idler| CsvOptions { idler });
            let input = progress::text(&csv.common.files.file)?;
            csv.common
                .import(input, metadata, |input, writer| Ok(import::csv::import(input, &options, writer)?))
        }
        Some(From::Perf(Perf { files, mut events })) => {
            events.common.files = files;
            let input = open(&events.common.files.file, events.convert)?;
            events.import(input)
        }
        Some(From::Qemu(mut qemu)) => {
            qemu.common.files.clone_from(&qemu.files);
            let input = progress::text(&qemu.common.files.file)?;
            qemu.import(input)
        }
    }
}
