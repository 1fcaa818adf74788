//! `dwell import`

mod convert;
mod finish;
mod kinds;

use crate::failure::Outcome;
use crate::output::FormatArg;
use crate::overwrite::ForceArg;
use crate::settings;
use crate::suggest::{Named, one_of};
use anyhow::{bail, ensure};
use clap::ValueEnum;
pub(super) use convert::open;
use dwell_policy::Layer;
use dwell_policy::arch::Arch;
use dwell_recording::IdleIncludes;
use dwell_trace::guest::GuestSource;
use dwell_trace::import::{self, ImportSummary};
use serde::Serialize;
use std::path::PathBuf;

/// Convert the traces and tables of other tools to a recording
///
/// Recognises the text of `perf script`, `trace-cmd report` and ftrace, QEMU's trace of its event loops, and
/// tables of episodes (CSV), plain or compressed with gzip, xz or zstd, and prints what it took
/// the file for; --as overrides that. A perf.data, a trace.dat or a trace of Perfetto is converted by its
/// own tool (--convert).
///
/// Text of perf, trace-cmd and ftrace: the same trace gives the same recording as `dwell record`. Host: kvm:kvm_vcpu_wakeup and
/// kvm:kvm_halt_poll_ns. Guest: power:cpu_idle, or sched:sched_switch, or the context switches of `perf record
/// --switch-events`. With sched:sched_waking, irq_vectors:local_timer_entry, irq_vectors:reschedule_entry and
/// irq:irq_handler_entry, an idle time ends at the wakeup event; without them it includes the wakeup latency.
/// power:guest_halt_poll_ns has the windows. Threads: syscalls:sys_enter_* and sys_exit_* of the calls that wait. Other
/// events are counted and ignored. With `perf script --ns --header --show-task-events -F +pid`, times are exact, windows
/// follow the kernel's rule, and vCPUs are named after their process.
///
/// QEMU: reads run_poll_handlers_begin, run_poll_handlers_end, poll_grow, poll_shrink, poll_add and poll_remove of QEMU 7.0
/// to 11.1, from its log, the syslog, ftrace, qemu-trace-stap, simpletrace.py or babeltrace. The log has times only with `-msg
/// timestamp=on`; without them an idle time is a lower bound, and `tune` and `replay` refuse the recording. A sleep that no
/// polling precedes is not in the log: record the same threads with `dwell record thread` at the same time and give that
/// recording as --sleeps. With --qemu, every decision in the log is checked against the rule of that version.
///
/// CSV: the first line names the columns, in any order. Required: start_ns and idle_ns. Optional: idler, window_ns, halted,
/// wake (irq, ipi, timer, io, task, unknown), wake_latency_ns, ready (names of ready handlers, separated by commas) and
/// alone_ns (time until another task was runnable on the same CPU; KVM ends a poll then). An empty field is not
/// known. Times are whole nanoseconds. The rows of one idler are in order of start_ns. Needs --layer.
#[derive(clap::Args)]
#[command(
    after_help = "Example: trace-cmd record -e kvm:kvm_vcpu_wakeup -e kvm:kvm_halt_poll_ns sleep 10\n         \
                  dwell import trace.dat --convert -o host.parquet\n\
Example: perf record -a -k CLOCK_MONOTONIC -e kvm:kvm_vcpu_wakeup,kvm:kvm_halt_poll_ns -- sleep 10\n         \
                  perf script --ns --header --show-task-events -F +pid > host.txt\n         \
                  dwell import host.txt -o host.parquet\n\
Example: qemu-system-x86_64 … -trace 'run_poll_handlers_*' -trace 'poll_*' -msg timestamp=on -D qemu.log\n         \
                  dwell record thread --pid $(pidof qemu-system-x86_64) --duration 10s -o sleeps.parquet\n         \
                  dwell import qemu.log --qemu 7.2 --sleeps sleeps.parquet -o iothread.parquet\n\
Example: dwell import idle.csv.gz --layer guest -o idle.parquet"
)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// What the file is, where its first lines do not show it
    #[arg(id = "kind", long = "as", value_enum, value_name = "FORMAT")]
    kind: Option<Kind>,
    /// Layer of a table's episodes, or whose events to use if a trace has several: host, guest or iothread
    #[arg(long, value_parser = crate::suggest::idling_layers(layer))]
    layer: Option<Layer>,
    /// Have a perf.data or trace.dat converted to text by `perf script` or `trace-cmd report`
    #[arg(long)]
    convert: bool,
    /// Count lines that cannot be parsed, instead of stopping at the first one
    ///
    /// This concerns lines that name an event; other lines are always skipped. Not for tables.
    #[arg(long)]
    skip_unparsable: bool,
    /// Source of the idle periods of a guest, if the trace has both; only for perf
    #[arg(long, value_parser = one_of(&SOURCES))]
    source: Option<GuestSource>,
    /// Architecture of the traced machine, as `uname -m` prints it: x86_64, aarch64, riscv64, s390x, ppc64le
    /// or loongarch64; only for perf
    ///
    /// Decides which idle state polls, and the numbers of system calls. [default: that of the text's header or events,
    /// else of this machine]
    #[arg(long, value_name = "NAME", value_parser = settings::arch)]
    arch: Option<Arch>,
    /// Recording of the same threads by `dwell record thread`, which has their sleeps; only for qemu
    #[arg(long, value_name = "FILE")]
    sleeps: Option<PathBuf>,
    /// Only the AioContext with this address, as the log prints it after `ctx`; only for qemu
    #[arg(long, value_name = "0x…", value_parser = address)]
    context: Option<u64>,
    /// Write the recording even if its decisions contradict the rule; only for qemu
    ///
    /// Without this option, a log is refused of which more than one decision in twenty is not that of the rule with the
    /// parameters of --in-force, or without that option with QEMU's defaults: advice from it would be wrong.
    #[arg(long)]
    allow_contradictions: bool,
    /// Name of the idler, if the table has no column `idler`; only for csv
    ///
    /// [default: cpu0, vcpu0 or iothread0]
    #[arg(long, value_name = "NAME")]
    idler: Option<String>,
    /// What an idle time of a table includes; only for csv [default: unknown]
    #[arg(long, value_parser = one_of(&INCLUDES))]
    idle_includes: Option<IdleIncludes>,
}

dwell_policy::named! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    enum Kind {
        /// Table of episodes
        Csv = "a table of episodes (csv)",
        /// Text of `perf script`, `trace-cmd report` or ftrace
        Perf = "a trace of events (perf)",
        /// QEMU's trace of its event loops
        Qemu = "QEMU's trace of its event loops (qemu)",
    }

    fn words
}

#[derive(clap::Args)]
pub(super) struct Common {
    /// Input file; - reads stdin
    pub(super) file: PathBuf,
    /// Recording to write
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
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

fn address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").ok_or("an address starts with 0x")?;
    u64::from_str_radix(digits, 16).map_err(|_| "an address is 0x and up to 16 hexadecimal digits".to_owned())
}

/// What an idle time includes.
const INCLUDES: [Named<IdleIncludes>; 3] = [
    ("event", "Ends at the wakeup event; the wakeup latency is not included", IdleIncludes::Event),
    ("wake", "Ends when the idler runs again; the wakeup latency is included", IdleIncludes::Wake),
    ("unknown", "Not known", IdleIncludes::Unknown),
];

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
const SOURCES: [Named<GuestSource>; 3] = [
    ("auto", "cpu_idle if every CPU emits it, else switch", GuestSource::Auto),
    ("cpu_idle", "power:cpu_idle", GuestSource::CpuIdle),
    ("switch", "Context switches to and from the idle task, as perf records them", GuestSource::Switch),
];

/// What the text is; an error of one that no importer reads.
pub(in crate::command) fn recognise(input: &mut import::Input<'_>) -> anyhow::Result<import::Format> {
    match import::recognise(input)? {
        import::Format::Foreign(foreign) => bail!("{}: {}", input.name(), foreign.words()),
        format => Ok(format),
    }
}

pub(crate) fn run(args: Args) -> Outcome {
    let mut input = open(&args.common.file, args.convert, false)?;
    let kind = match args.kind {
        Some(kind) => kind,
        None => match recognise(&mut input)? {
            import::Format::Events | import::Format::Foreign(_) => Kind::Perf,
            import::Format::Qemu => Kind::Qemu,
            import::Format::Csv => Kind::Csv,
        },
    };
    args.are_for(kind, input.name())?;
    match kind {
        Kind::Csv => args.table(input),
        Kind::Perf => args.events(input),
        Kind::Qemu => args.of_qemu(input),
    }
}

impl Args {
    /// Refuses options that would do nothing.
    fn are_for(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        for (option, is_given, of) in [
            ("--source", self.source.is_some(), Kind::Perf),
            ("--arch", self.arch.is_some(), Kind::Perf),
            ("--sleeps", self.sleeps.is_some(), Kind::Qemu),
            ("--context", self.context.is_some(), Kind::Qemu),
            ("--allow-contradictions", self.allow_contradictions, Kind::Qemu),
            ("--idler", self.idler.is_some(), Kind::Csv),
            ("--idle-includes", self.idle_includes.is_some(), Kind::Csv),
        ] {
            ensure!(
                !is_given || kind == of,
                "{option} is for {}, and {name} is {}; --as overrides what it was taken for",
                of.words(),
                kind.words()
            );
        }
        ensure!(
            kind != Kind::Qemu || self.layer.is_none_or(|layer| layer == Layer::Iothread),
            "--layer: {name} is {}, which is of the layer iothread",
            kind.words()
        );
        ensure!(
            kind != Kind::Csv || !self.skip_unparsable,
            "--skip-unparsable is for traces, and {name} is {}; correct its rows",
            kind.words()
        );
        Ok(())
    }
}
