//! `dwell import`

use crate::failure::{Answer, Outcome};
use crate::output::{self, Format, FormatArg};
use crate::overwrite::ForceArg;
use crate::{progress, settings};
use anyhow::{Context, anyhow, bail};
use clap::{Subcommand, ValueEnum};
use dwell_policy::arch::Arch;
use dwell_policy::iothread::{Params, Release};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Owner};
use dwell_recording::{
    Contents, IdleIncludes, Metadata, Reader, SettingValue, SettingsChange, Writer, regular,
};
use dwell_replay::Versions;
use dwell_report::{Cell, Column, Table, count, duration, percent};
use dwell_trace::guest::GuestSource;
use dwell_trace::import::csv::CsvOptions;
use dwell_trace::import::perf::PerfOptions;
use dwell_trace::import::qemu::{DecisionCounts, QemuOptions, Sleeps};
use dwell_trace::import::{self, Binary, ImportSummary, Input};
use dwell_trace::write::Overlaps;
use serde::Serialize;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

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

/// Imports a file by what its first lines are.
fn any(files: Files, mut args: Events) -> Outcome {
    args.common.files.clone_from(&files);
    let mut input = open(&files.file, args.convert)?;
    let name = input.name().to_owned();
    match import::recognise(&mut input)? {
        import::Format::Events => args.import(input),
        import::Format::Qemu => Qemu {
            files,
            common: args.common,
            sleeps: None,
            context: None,
            skip_unparsable: args.skip_unparsable,
            allow_contradictions: false,
        }
        .import(input),
        import::Format::Csv => {
            let layer = args.layer.with_context(|| {
                format!("{name}: is a table of episodes, which does not say whose; give --layer guest, host or iothread")
            })?;
            let metadata = args.common.metadata(layer)?;
            let options = CsvOptions::for_layer(layer);
            args.common
                .import(input, metadata, |input, writer| Ok(import::csv::import(input, &options, writer)?))
        }
        import::Format::Foreign(foreign) => bail!("{name}: {}", foreign.words()),
    }
}

/// The text, made by another program where that is needed and asked for.
pub(super) fn open(path: &Path, convert: bool) -> anyhow::Result<Input<'static>> {
    let mut start = [0; 16];
    let is_file = convert && path != Path::new("-");
    let read =
        if is_file { regular::open(path).and_then(|mut file| file.read(&mut start)).unwrap_or(0) } else { 0 };
    match Binary::of(&start[..read]) {
        Some(kind) => Ok(Input::new(&path.display().to_string(), Converted::start(kind, path)?)?),
        None => progress::text(path),
    }
}

impl Events {
    fn import(self, input: Input<'_>) -> Outcome {
        let options = PerfOptions {
            layer: self.layer,
            source: self.source.into(),
            arch: self.arch,
            skip_unparsable: self.skip_unparsable,
        };
        let metadata = self.common.metadata(self.layer.unwrap_or(Layer::Host))?;
        self.common
            .import(input, metadata, |input, writer| Ok(import::perf::import(input, &options, writer)?))
    }
}

/// What a program prints of a file; an error at the end if it fails.
struct Converted {
    command: String,
    child: Child,
    text: ChildStdout,
}

impl Converted {
    fn start(kind: Binary, path: &Path) -> anyhow::Result<Converted> {
        let name = path.to_str().context("the name of the file is not UTF-8")?;
        let command = kind.command(name);
        let [program, arguments @ ..] = command.as_slice() else { bail!("no command") };
        let mut child = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn().with_context(|| {
            format!("{name}: cannot convert {}: cannot run {program}; install it, or convert the file elsewhere", kind.words())
        })?;
        let text = child.stdout.take().context("no output")?;
        Ok(Converted { command: command.join(" "), child, text })
    }
}

impl Read for Converted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.text.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            let status = self.child.wait()?;
            if !status.success() {
                return Err(io::Error::other(format!("`{}` failed: {status}", self.command)));
            }
        }
        Ok(read)
    }
}

impl Drop for Converted {
    /// A program whose text is not wanted ends when it cannot write on.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Qemu {
    fn import(self, input: Input<'_>) -> Outcome {
        let metadata = self.common.metadata(Layer::Iothread)?;
        let options = self.options(&metadata)?;
        self.common.import(input, metadata, |input, writer| {
            let summary = import::qemu::import(input, options, writer)?;
            self.refuse_contradictions(&summary)?;
            Ok(summary)
        })
    }

    fn refuse_contradictions(&self, summary: &ImportSummary) -> anyhow::Result<()> {
        let Some(decisions) = &summary.decisions else { return Ok(()) };
        let contradicted = decisions.contradicted as f64 > decisions.traced as f64 * MOST_CONTRADICTED;
        if self.allow_contradictions || !contradicted {
            return Ok(());
        }
        let assumed = match self.common.in_force.is_empty() {
            true => "QEMU's defaults, which are assumed: give the values in force with --in-force NAME=VALUE",
            false => "the values of --in-force: were they changed meanwhile?",
        };
        bail!(
            "cannot write {}: {} of {} decisions in {} contradict {assumed}; `dwell import qemu --allow-contradictions` \
             writes it anyway",
            self.files.output.display(),
            count(decisions.contradicted.into()),
            count(decisions.traced.into()),
            self.files.file.display(),
        )
    }

    fn options(&self, metadata: &Metadata) -> anyhow::Result<QemuOptions> {
        let rule = match &self.common.qemu {
            None => None,
            Some(text) => {
                let version = settings::qemu(text).map_err(|why| anyhow!("--qemu {text}: {why}"))?;
                let setting = settings::recorded(Layer::Iothread, version, metadata)
                    .unwrap_or_else(|| Setting::defaults(Layer::Iothread, version));
                Some((Release::new(version)?.revision(), Params::from(&setting)))
            }
        };
        let sleeps = match &self.sleeps {
            None => None,
            Some(path) => Some(Sleeps::read(&path.display().to_string(), &Reader::open(path)?)?),
        };
        Ok(QemuOptions { rule, sleeps, context: self.context, skip_unparsable: self.skip_unparsable })
    }
}

impl Common {
    pub(super) fn metadata<O: Copy + Into<Owner>>(&self, layer: O) -> anyhow::Result<Metadata<O>> {
        let mut metadata = Metadata::new(layer);
        metadata.kernel.clone_from(&self.kernel);
        metadata.qemu.clone_from(&self.qemu);
        metadata.provenance.clone_from(&self.provenance);
        if !self.in_force.is_empty() {
            metadata.settings.push(in_force(&self.in_force, layer.into(), &metadata)?);
        }
        Ok(metadata)
    }

    fn import<'a>(
        &self,
        input: Input<'a>,
        metadata: Metadata,
        read: impl FnOnce(Input<'a>, &mut Writer<dwell_recording::NewFile>) -> anyhow::Result<ImportSummary>,
    ) -> Outcome {
        self.force.may_write(&self.files.output)?;
        let mut writer = Writer::create(&self.files.output, metadata)?;
        let summary = read(input, &mut writer)?;
        let contents = writer.finish()?;
        self.report(&summary, &contents)
    }

    pub(super) fn report(&self, summary: &ImportSummary, contents: &Contents) -> Outcome {
        match self.format.format {
            Format::Json => output::json(&Imported {
                file: self.files.file.display().to_string(),
                output: self.files.output.display().to_string(),
                summary,
                idlers: contents.idlers.len(),
                span_ns: contents.span_ns(),
            })?,
            Format::Table => {
                let what = crate::model::episodes_of(contents.episodes, contents.idlers.len());
                output::text(&self.words(&what, summary, contents))?;
            }
            Format::Csv => output::csv(&self.table(summary, contents))?,
        }
        Ok(Answer::Yes)
    }

    fn table(&self, summary: &ImportSummary, contents: &Contents) -> Table {
        let numbers = [
            ("lines", summary.lines),
            ("episodes", summary.episodes),
            ("idlers", contents.idlers.len() as u64),
            ("span_ns", contents.span_ns()),
            ("incomplete_episodes", summary.incomplete_episodes),
            ("unparsable", summary.unparsable),
            ("out_of_order", summary.out_of_order),
            ("overlapping_episodes", summary.overlaps.as_ref().map_or(0, |overlaps| overlaps.episodes)),
        ];
        let columns = [Column::text("file", "file"), Column::text("output", "output")];
        let lost = Column::number("lost_events", "lost_events");
        let mut table = Table::new(
            columns.into_iter().chain(numbers.map(|(name, _)| Column::number(name, name))).chain([lost]),
        );
        let texts = [&self.files.file, &self.files.output].map(|path| Cell::Text(path.display().to_string()));
        let lost = summary.lost.events.map_or(Cell::Missing, |events| Cell::Count(events.into()));
        let numbers = numbers.map(|(_, number)| Cell::Count(number.into()));
        table.push(texts.into_iter().chain(numbers).chain([lost]));
        table
    }

    pub(super) fn words(&self, what: &str, summary: &ImportSummary, contents: &Contents) -> String {
        let mut text = output::wrapped(&format!(
            "{}: {what} over {}, from {} lines of {} ({})",
            self.files.output.display(),
            duration(contents.span_ns() as f64),
            count(summary.lines.into()),
            self.files.file.display(),
            summary.format
        ));
        let mut note = |number: u64, what: &str| {
            if number > 0 {
                text.push_str(&format!("  {} {what}\n", count(number.into())));
            }
        };
        for (event, number) in &summary.used {
            note(*number, &format!("{event} used"));
        }
        for (event, number) in &summary.ignored {
            note(*number, &format!("{event} ignored"));
        }
        note(summary.lost.events.unwrap_or(0), "events lost by the recorder");
        note(summary.incomplete_episodes, "incomplete episodes left out (start or end not in the text)");
        note(summary.unparsable, "lines with events that could not be parsed");
        note(summary.out_of_order, "events too far out of order, not used");
        summary.notes.iter().for_each(|note| text += &output::hanging("  note: ", "    ", note));
        if let Some(overlaps) = &summary.overlaps {
            text.push_str(&overlapping(overlaps));
        }
        if let Some(decisions) = &summary.decisions {
            text.push_str(&judged(decisions));
        }
        text
    }
}

/// A warning that episodes of one idler overlap.
fn overlapping(overlaps: &Overlaps) -> String {
    let place = overlaps.line.map_or_else(
        || format!("at {} ns", overlaps.start_ns),
        |line| format!("in line {}", count(line.into())),
    );
    format!(
        "  {} episodes start before the previous one of the same idler has ended, the first of {} {place}; times \
         and rates cannot be trusted: is this one trace, and do the idlers have different names?\n",
        count(overlaps.episodes.into()),
        overlaps.idler.escape_debug(),
    )
}

/// Compares the decisions in a trace with the rule.
fn judged(decisions: &DecisionCounts) -> String {
    let share =
        if decisions.traced > 0 { decisions.determined as f64 / decisions.traced as f64 } else { 0.0 };
    let line = |text: &str| output::hanging("  ", "    ", text);
    let mut text = line(&format!(
        "{} decisions checked against the rule: {} contradict it; for {} ({}) the known times allow only this decision",
        count(decisions.traced.into()),
        count(decisions.contradicted.into()),
        count(decisions.determined.into()),
        percent(share),
    ));
    if let Some(number) = decisions.first_contradicted_line {
        text += &line(&format!(
            "the first contradiction is in line {number}; were other parameters in force (--in-force), or changed meanwhile?"
        ));
    }
    text
}

fn in_force<O>(asked: &[String], owner: Owner, metadata: &Metadata<O>) -> anyhow::Result<SettingsChange> {
    let version = Versions::of_recording(metadata).of(owner);
    let base = Setting::defaults(owner, version);
    let groups = settings::groups(asked, &[base]).context("--in-force")?;
    let [group] = groups.as_slice() else {
        return Err(anyhow!("--in-force: a parameter is given twice"));
    };
    let named: Vec<&str> =
        asked.iter().flat_map(|a| a.split(',')).filter_map(|a| Some(a.split_once('=')?.0)).collect();
    let was_named = |name: &str| named.iter().any(|n| n.trim().replace('-', "_") == name.replace('-', "_"));
    let values = group[0].iter().filter(|(param, _)| was_named(param.name)).map(|(param, value)| {
        let value = u64::try_from(value).map_or(SettingValue::Negative(value), SettingValue::Number);
        (param.name.to_owned(), value)
    });
    Ok(SettingsChange { at_ns: None, owner, values: values.collect() })
}
