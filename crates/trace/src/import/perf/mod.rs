//! Episodes out of the text of `perf script`.
//!
//! | events in the text | layer | an episode is | `idle_ns` |
//! |---|---|---|---|
//! | `kvm:kvm_vcpu_wakeup`, and `kvm:kvm_halt_poll_ns` for windows | host | one wakeup of a vCPU thread | to the wake |
//! | `sched:sched_switch` and `sched:sched_waking` | guest | from the idle task to the waking of the next | to the event |
//! | `sched:sched_switch` alone | guest | from the idle task to the next | to the wake |
//! | `power:cpu_idle`, without the two of them | guest | from entering an idle state to leaving it | to the wake |
//!
//! `power:guest_halt_poll_ns` adds windows to the guest's. Which of these it is, is decided by the first megabytes of
//! the text. If host and guest events are both there (they are in a trace of a host whose own idling was recorded
//! too), the caller must say which is meant.
//!
//! Lines may come with or without CPU, with `tid` or `pid/tid`, with microseconds or (`perf script --ns`) nanoseconds,
//! among comments, call chains and reports of lost events. After a loss, what was open on that CPU is dropped and
//! counted: it may have ended unseen. Everything else that is not used is counted by kind.
//!
//! perf puts the events of all CPUs in order of time, as far as its buffers reach. Events that come late all the same
//! are used and counted in [`ImportSummary::out_of_order`]; none makes a negative length.

mod fields;
mod host;
mod idle;
mod line;
mod sched;
mod stream;

pub(crate) use fields::{NAMES, Point};
pub(crate) use line::{Event, Line, text};

use super::{ImportSummary, Input, InputError, excerpt};
use dwell_policy::Layer;
use dwell_recording::{Clock, IdleIncludes, Metadata};
use dwell_recording::{WriteError, Writer};
use host::Host;
use idle::Idle;
use sched::Sched;
use std::collections::BTreeSet;
use std::io::Write;
use stream::Sink;

/// How much of the text decides what it is: 30,000 lines or more.
const LOOK_AHEAD: u64 = 4 << 20;

/// Why the text could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The text could not be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The episodes could not be written.
    #[error("{name}: cannot write the episode that ends in line {line}")]
    Write {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
        /// What the writer said.
        source: WriteError,
    },
    /// Both a host's and a guest's events are there.
    #[error(
        "{name}: has events of a host ({host}) and of a guest ({guest}); say which is meant: `--layer host|guest`"
    )]
    Ambiguous {
        /// The file.
        name: String,
        /// An event of a host.
        host: &'static str,
        /// An event of a guest.
        guest: &'static str,
    },
    /// perf's text is of hosts and guests.
    #[error("{name}: a perf trace tells of layer host or guest, not of {}", layer.name())]
    Layer {
        /// The file.
        name: String,
        /// What was asked for.
        layer: Layer,
    },
    /// A line is one of the events of use, but not as perf writes it.
    #[error("{name}: line {line} names `{event}` but cannot be parsed: `{text}`")]
    Unparsable {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
        /// The event.
        event: &'static str,
        /// The line, or its beginning.
        text: String,
    },
    /// A line lacks its CPU.
    #[error("{name}: line {line} does not tell the CPU of `{event}`; use `perf script -F +cpu`")]
    NoCpu {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
        /// The event.
        event: &'static str,
    },
    /// No episode is in it.
    #[error(
        "{name}: no episodes in {} lines; events of use: {}, others: {}; record a host with \
         `perf record -a -e kvm:kvm_vcpu_wakeup,kvm:kvm_halt_poll_ns`, a guest with \
         `perf record -a -e sched:sched_switch,sched:sched_waking`",
        summary.lines, list(&summary.used), list(&summary.ignored)
    )]
    NoEpisodes {
        /// The file.
        name: String,
        /// What is in it.
        summary: Box<ImportSummary>,
    },
}

fn list(counts: &std::collections::BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return "none".to_owned();
    }
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// What the text does not tell.
#[derive(Clone, Copy, Debug)]
pub struct PerfOptions {
    /// Whose events to use; `None`: whoever's are there.
    pub layer: Option<Layer>,
    /// Whether a poll that ran out and the halt that follows are one episode, which is what they are to a policy.
    pub merge_polls: bool,
    /// Whether a line that should be an event but cannot be parsed is counted instead of being an error.
    pub skip_unparsable: bool,
}

impl Default for PerfOptions {
    fn default() -> PerfOptions {
        PerfOptions { layer: None, merge_polls: true, skip_unparsable: false }
    }
}

/// Writes the episodes of the text. Sets layer, source, clock, losses and what `idle_ns` includes in the metadata,
/// and kernel, CPU model and command line where the text has a header (`perf script --header`).
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    options: &PerfOptions,
    writer: &mut Writer<W>,
) -> Result<ImportSummary, PerfError> {
    let name = input.name().to_owned();
    let mut machine = Machine::choose(&input.look_ahead(LOOK_AHEAD)?, &name, options)?;
    let mut summary = ImportSummary::default();
    let mut header = Header::default();
    loop {
        let number = input.line() + 1;
        let Some(bytes) = input.next_line()? else { break };
        let line = text(bytes);
        let mut push = |episode: &dwell_recording::Episode<'_>| writer.push(episode);
        let mut sink = Sink { push: &mut push, summary: &mut summary };
        let at = At { name: &name, line: number, text: &line };
        match Line::parse(&line) {
            Line::Event(event) => machine.event(&event, options, &at, &mut sink)?,
            Line::Lost { cpu, events } => {
                sink.summary.lost.add(cpu, events);
                machine.lost(cpu, &mut sink).map_err(|source| at.write(source))?;
            }
            Line::Comment(comment) => {
                header.read(comment);
                summary.other_lines += 1;
            }
            Line::Other => match Point::named_in(&line) {
                Some(event) if !options.skip_unparsable => return Err(at.unparsable(event)),
                Some(_) => summary.unparsable += 1,
                None => summary.other_lines += 1,
            },
        }
    }
    summary.lines = input.line();
    let mut push = |episode: &dwell_recording::Episode<'_>| writer.push(episode);
    let mut sink = Sink { push: &mut push, summary: &mut summary };
    let at = At { name: &name, line: input.line(), text: "" };
    machine.finish(&mut sink).map_err(|source| at.write(source))?;
    summary.lost.incomplete_episodes = summary.incomplete_at_start + summary.incomplete_at_end;
    if summary.episodes == 0 {
        return Err(PerfError::NoEpisodes { name, summary: Box::new(summary) });
    }
    let metadata = writer.metadata_mut();
    header.fill(metadata);
    machine.fill(metadata, &summary);
    Ok(summary)
}

/// Where in the text something is.
struct At<'a> {
    name: &'a str,
    line: u64,
    text: &'a str,
}

impl At<'_> {
    fn unparsable(&self, event: &'static str) -> PerfError {
        let text = excerpt(self.text.trim().as_bytes());
        PerfError::Unparsable { name: self.name.to_owned(), line: self.line, event, text }
    }

    fn write(&self, source: WriteError) -> PerfError {
        PerfError::Write { name: self.name.to_owned(), line: self.line, source }
    }
}

/// What turns events into episodes.
enum Machine {
    Undecided,
    Host(Host),
    Idle(Idle),
    Sched(Sched),
}

const WAKEUP: &str = "kvm:kvm_vcpu_wakeup";
const HOST: [&str; 2] = [WAKEUP, "kvm:kvm_halt_poll_ns"];
const SWITCH: &str = "sched:sched_switch";
const WAKING: &str = "sched:sched_waking";
const CPU_IDLE: &str = "power:cpu_idle";
const GUEST: [&str; 4] = [SWITCH, WAKING, CPU_IDLE, "power:guest_halt_poll_ns"];

impl Machine {
    fn choose(start: &[u8], name: &str, options: &PerfOptions) -> Result<Machine, PerfError> {
        let mut there = BTreeSet::new();
        for line in start.split(|&byte| byte == b'\n') {
            if let Line::Event(event) = Line::parse(&text(line)) {
                there.extend(NAMES.into_iter().find(|name| *name == event.name));
            }
        }
        Machine::for_events(&there, name, options)
    }

    fn for_events(
        there: &BTreeSet<&'static str>,
        name: &str,
        options: &PerfOptions,
    ) -> Result<Machine, PerfError> {
        let host = HOST.into_iter().find(|event| there.contains(event));
        let guest = GUEST.into_iter().find(|event| there.contains(event));
        let layer = match (options.layer, host, guest) {
            (None, Some(host), Some(guest)) => {
                return Err(PerfError::Ambiguous { name: name.to_owned(), host, guest });
            }
            (Some(layer @ (Layer::Timer | Layer::Iothread)), ..) => {
                return Err(PerfError::Layer { name: name.to_owned(), layer });
            }
            (Some(Layer::Host), ..) | (None, Some(_), None) => Layer::Host,
            (_, _, Some(_)) => Layer::Guest,
            _ => return Ok(Machine::Undecided),
        };
        let has = |event| there.contains(event);
        Ok(match layer {
            Layer::Host => Machine::Host(Host::default()),
            _ if has(CPU_IDLE) && !(has(SWITCH) && has(WAKING)) => {
                Machine::Idle(Idle::new(options.merge_polls))
            }
            _ if has(SWITCH) => Machine::Sched(Sched::default()),
            _ => Machine::Undecided,
        })
    }

    /// The events that this machine reads.
    fn uses(&self, event: &str) -> bool {
        match self {
            Machine::Undecided => false,
            Machine::Host(_) => HOST.contains(&event),
            Machine::Idle(_) => GUEST.contains(&event) && event != SWITCH && event != WAKING,
            Machine::Sched(_) => GUEST.contains(&event),
        }
    }

    fn event(
        &mut self,
        event: &Event<'_>,
        options: &PerfOptions,
        at: &At<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), PerfError> {
        let known = NAMES.into_iter().find(|name| *name == event.name);
        if let Some(known) = known {
            self.check_layer(known, options, at)?;
        }
        let Some(known) = known.filter(|name| self.uses(name)) else {
            sink.summary.ignore_event(event.name);
            return Ok(());
        };
        let Some(point) = Point::parse(event).flatten() else {
            if options.skip_unparsable {
                sink.summary.unparsable += 1;
                return Ok(());
            }
            return Err(at.unparsable(known));
        };
        if event.cpu.is_none() && matches!(point, Point::Switch { .. } | Point::GuestWindow { .. }) {
            return Err(PerfError::NoCpu { name: at.name.to_owned(), line: at.line, event: known });
        }
        sink.summary.use_event(known);
        sink.summary.resolution_ns = sink.summary.resolution_ns.max(event.resolution_ns);
        let result = match self {
            Machine::Undecided => Ok(()),
            Machine::Host(host) => host.event(event, point, sink),
            Machine::Idle(idle) => idle.event(event, point, sink),
            Machine::Sched(sched) => sched.event(event, point, sink),
        };
        result.map_err(|source| at.write(source))
    }

    /// An event that the beginning of the text did not have decides, or contradicts.
    fn check_layer(
        &mut self,
        event: &'static str,
        options: &PerfOptions,
        at: &At<'_>,
    ) -> Result<(), PerfError> {
        match self {
            Machine::Undecided => {
                *self = Machine::for_events(&BTreeSet::from([event]), at.name, options)?;
                Ok(())
            }
            Machine::Host(_) if options.layer.is_none() && GUEST.contains(&event) => {
                Err(PerfError::Ambiguous { name: at.name.to_owned(), host: WAKEUP, guest: event })
            }
            Machine::Idle(_) | Machine::Sched(_) if options.layer.is_none() && HOST.contains(&event) => {
                Err(PerfError::Ambiguous { name: at.name.to_owned(), host: event, guest: "power or sched" })
            }
            _ => Ok(()),
        }
    }

    fn lost(&mut self, cpu: Option<u32>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        match self {
            Machine::Undecided => Ok(()),
            Machine::Host(host) => host.lost(sink),
            Machine::Idle(idle) => idle.lost(cpu, sink),
            Machine::Sched(sched) => sched.lost(cpu, sink),
        }
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        match self {
            Machine::Undecided => Ok(()),
            Machine::Host(host) => host.finish(sink),
            Machine::Idle(idle) => idle.finish(sink),
            Machine::Sched(sched) => sched.finish(sink),
        }
    }

    fn fill(&self, metadata: &mut Metadata, summary: &ImportSummary) {
        metadata.layer = if matches!(self, Machine::Host(_)) { Layer::Host } else { Layer::Guest };
        metadata.source.tool = "perf script".to_owned();
        metadata.source.events = summary.used.keys().cloned().collect();
        metadata.resolution_ns = Some(summary.resolution_ns);
        metadata.lost = summary.lost.clone();
        metadata.idle_includes = match self {
            Machine::Sched(_) if summary.used.contains_key(WAKING) => IdleIncludes::Event,
            _ => IdleIncludes::Wake,
        };
        if let Machine::Host(host) = self
            && !host.vcpus().is_empty()
        {
            metadata.other.insert("vcpus".to_owned(), serde_json::json!(host.vcpus()));
        }
    }
}

/// What `perf script --header` says of the machine.
#[derive(Default)]
struct Header {
    kernel: Option<String>,
    cpu_model: Option<String>,
    command: Option<String>,
    monotonic: bool,
}

impl Header {
    fn read(&mut self, comment: &str) {
        self.monotonic |= comment.starts_with("clockid: monotonic ");
        let Some((key, value)) = comment.split_once(" : ") else { return };
        let place = match key.trim() {
            "os release" => &mut self.kernel,
            "cpudesc" => &mut self.cpu_model,
            "cmdline" => &mut self.command,
            _ => return,
        };
        *place = Some(value.trim().to_owned());
    }

    /// What the caller said goes before what the header says.
    fn fill(self, metadata: &mut Metadata) {
        metadata.clock = if self.monotonic { Clock::Monotonic } else { Clock::Perf };
        metadata.kernel = metadata.kernel.take().or(self.kernel);
        metadata.cpu_model = metadata.cpu_model.take().or(self.cpu_model);
        metadata.source.command = metadata.source.command.take().or(self.command);
    }
}
