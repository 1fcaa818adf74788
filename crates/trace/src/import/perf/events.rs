//! The events in the lines of a text, in order of time.

use super::line::{Dialect, Line, TextEvent, ThreadVcpus};
use super::names::TaskNames;
use super::{ImportError, PerfOptions};
use crate::event::{Event, EventKind, TracepointKind};
use crate::import::number::digits;
use crate::import::qemu::is_event;
use crate::import::{EventSpan, ImportSummary, Input, Place, of_another, text};
use crate::merge::Merge;
use crate::pairing::ByNumber;
use dwell_policy::arch::Arch;
use dwell_policy::version::Version;
use dwell_recording::{Clock, Metadata};
use std::collections::BTreeSet;

/// How much later than others an event may come in the text \[ns\], as in live capture.
pub const SLACK_NS: u64 = 100_000_000;

/// So many events wait to be put in order at most; beyond, the oldest are used. A trace of 10 million events
/// a second would reach it.
const MOST_WAITING: usize = 1 << 20;

/// What rows are made of the events.
pub trait EventSink {
    /// Whether rows are made of this tracepoint.
    fn uses(
        &mut self,
        tracepoint: TracepointKind,
        _event: &TextEvent<'_>,
        _summary: &ImportSummary,
    ) -> Result<bool, ImportError> {
        Ok(self.wants(tracepoint))
    }

    /// Whether a line that cannot be read and names this tracepoint is missed.
    fn wants(&self, tracepoint: TracepointKind) -> bool;

    /// What the event reports: as [`parse`](super::parse()).
    fn parse(
        &mut self,
        tracepoint: TracepointKind,
        event: &TextEvent<'_>,
        arch: Option<Arch>,
    ) -> Option<Option<EventKind>>;

    /// Whether an event is of no use without its CPU.
    fn needs_cpu(&self, kind: &EventKind) -> bool;

    /// Whether an event is of no use without its thread.
    fn needs_thread(&self, kind: &EventKind) -> bool;

    /// Takes the events up to `until_ns`, losses too, and writes what they complete. `line` is the last one read.
    fn release(
        &mut self,
        events: &mut Merge,
        until_ns: u64,
        summary: &mut ImportSummary,
        line: u64,
    ) -> Result<(), ImportError>;
}

/// The reader of a text: names of tasks, header, losses, and the events of use in order of time.
#[derive(Default)]
pub struct EventReader {
    name: String,
    skip_unparsable: bool,
    names: TaskNames,
    header: Header,
    merge: Merge,
    /// The latest time so far.
    newest_ns: u64,
    order: Order,
    arch: Option<Arch>,
    /// Whether the line has no end, and whether it could not be parsed for that.
    is_part: bool,
    is_cut: bool,
    /// Which tools write lines like those of the events.
    dialects: BTreeSet<Dialect>,
    vcpus: ThreadVcpus,
    /// The traces that `trace-cmd report` put into the text.
    traces: u64,
    /// The first line of another text, and what it is.
    another: Option<(u64, &'static str)>,
    /// What was read so far.
    pub summary: ImportSummary,
}

/// How the times of the lines of each CPU follow each other; of a thread, where lines have no CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    /// From the least time to the latest.
    span: EventSpan,
    last_ns: ByNumber<i32, u64>,
    events: u64,
    /// What every time is a multiple of \[ns\], as long as that is [`TICK_NS`] or more.
    step_ns: u64,
    /// Events at the time of the one before.
    at_once: u64,
    backwards: u64,
    /// As differences do, and times since the first event.
    begins_with_zero: bool,
    /// The first line that goes back.
    first: Option<u64>,
    /// The first one that goes back by more than [`MOST_BACK_NS`], and by how much \[ns\].
    far: Option<(u64, u64)>,
    /// The first line that comes too late to be used.
    late: Option<u64>,
}

/// Events of one CPU that come later than others do so by much less than this \[ns\].
const MOST_BACK_NS: u64 = 1_000_000_000;

/// Clocks with longer steps count the ticks of the timer \[ns\].
const TICK_NS: u64 = 1_000_000;
/// So many times are not multiples of the same by chance.
const FEWEST_TIMES: u64 = 8;

/// Times of a clock that counts since boot are less than this \[ns\]: 30 years.
const WALL_NS: u64 = 1_000_000_000_000_000_000;

/// One of so many events may come too late: perf's buffers hold back few, and lines that are not sorted many.
const LEAST_IN_ORDER: u64 = 100;

impl Order {
    pub(crate) fn add(&mut self, event: &TextEvent<'_>, line: u64) {
        self.span.add(event.time_ns, event.time_ns);
        let place = event.cpu.and_then(|cpu| i32::try_from(cpu).ok()).map_or(event.tid, |cpu| -2 - cpu);
        let last_ns = self.last_ns.insert(place, event.time_ns).unwrap_or(0);
        self.begins_with_zero |= self.events == 0 && event.time_ns == 0;
        self.at_once += u64::from(last_ns == event.time_ns);
        self.events += 1;
        if self.step_ns >= TICK_NS || self.step_ns == 0 {
            self.step_ns = common_divisor(self.step_ns, event.time_ns);
        }
        let back_ns = last_ns.saturating_sub(event.time_ns);
        if back_ns > 0 {
            self.backwards += 1;
            self.first.get_or_insert(line);
        }
        if back_ns > MOST_BACK_NS {
            self.far.get_or_insert((line, back_ns));
        }
    }

    /// That times go back, if they do.
    fn note(&self) -> Option<String> {
        let times = if self.backwards == 1 { "once".to_owned() } else { format!("{} times", self.backwards) };
        self.first.map(|line| {
            format!(
                "the times of one CPU go back {times}, first in line {line}: if these are several traces, import each by \
                 itself"
            )
        })
    }

    /// The times of one CPU never go back, but for a few that were lost and found.
    fn goes_back(&self) -> bool {
        let fewest = if self.begins_with_zero { 1 } else { 2 };
        self.events >= 4 * fewest && self.backwards >= fewest && self.backwards * 10 >= self.events
    }

    /// Why the times of the text called `name` are not those of its events, if they are not.
    pub(crate) fn no_times(&self, name: &str) -> Option<String> {
        let Order { events, step_ns, at_once, backwards, .. } = self;
        if let Some(all) = self.span.all.filter(|all| *events >= FEWEST_TIMES && all.ns() == 0) {
            return Some(format!(
                "{name}: all {events} events have the time {} s, so that no idle time has a length: the clock did not run, or \
                 another program has changed the times; make the text anew, or record with another clock, by `perf record -k \
                 CLOCK_MONOTONIC`, `trace-cmd record -C mono` or `echo mono > trace_clock`",
                all.start_ns as f64 / 1e9
            ));
        }
        // Of events at such times that somebody has written by hand hardly any are at once.
        if *events >= FEWEST_TIMES && *step_ns >= TICK_NS && at_once * 4 >= *events {
            return Some(format!(
                "{name}: every time is a multiple of {} ms, as of a clock that counts the ticks of the timer (trace_clock \
                 `uptime`): most idle times are shorter than that; record with another clock, by `trace-cmd record -C mono` or \
                 `echo mono > trace_clock`",
                *step_ns as f64 / 1e6
            ));
        }
        // Differences begin with 0.
        let differ = self.goes_back() && self.span.all.is_none_or(|span| span.start_ns < span.end_ns / 2);
        differ.then(|| {
            format!(
                "{name}: times go back in {backwards} of {events} events: these are no times but differences, as \
                 `perf script --deltatime` prints them; make the text without that option"
            )
        })
    }
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

impl EventReader {
    /// For a text that errors call by `name`.
    pub fn new(name: &str, options: &PerfOptions, arch: Option<Arch>) -> EventReader {
        let skip_unparsable = options.skip_unparsable;
        EventReader { name: name.to_owned(), skip_unparsable, arch, ..EventReader::default() }
    }

    /// The names of tasks as far as the text is read; shared.
    pub fn names(&self) -> TaskNames {
        self.names.clone()
    }

    /// The perf that made the text, if its header says.
    pub fn perf(&self) -> Option<&str> {
        self.header.perf.as_deref()
    }

    /// The architecture, if the header of the text says it.
    pub fn arch(&self) -> Option<Arch> {
        self.header.arch.flatten()
    }

    /// Reads the whole text.
    pub fn read(&mut self, input: &mut Input<'_>, sink: &mut impl EventSink) -> Result<(), ImportError> {
        loop {
            let number = input.line() + 1;
            let Some((bytes, is_part)) = input.next_line_or_part()? else { break };
            self.is_part = is_part;
            let line = text(bytes);
            match Line::parse(&line) {
                Line::Event(event) => self.event(&event, (number, &line), sink)?,
                Line::Lost { cpu, time_ns, events } => {
                    self.summary.lost.add(cpu, events);
                    let time_ns = time_ns.unwrap_or(self.newest_ns);
                    let kind = EventKind::Lost { cpu, count: events };
                    let lost = Event { time_ns, cpu: cpu.unwrap_or(0), pid: 0, tid: 0, kind };
                    self.push(lost, number, sink)?;
                }
                Line::TaskName { tid, comm, .. } => {
                    self.names.learn(tid, comm);
                    self.summary.other_lines += 1;
                }
                Line::Comment(comment) => {
                    self.header.read(comment);
                    let lost = std::mem::take(&mut self.header.overwritten);
                    if lost > 0 {
                        self.summary.lost.add(None, lost);
                    }
                    self.summary.other_lines += 1;
                    self.count_traces(comment.starts_with("captured on "), number)?;
                }
                Line::Other => match named_in(&line) {
                    Some(event) if sink.wants(event) => self.unparsable(event, (number, &line))?,
                    None if is_event(&line) => {
                        return Err(ImportError::Refused(format!(
                            "{} is of QEMU's own trace, and what is above is not: import each by itself",
                            self.place(number)
                        )));
                    }
                    named => {
                        self.summary.other_lines += 1;
                        self.count_traces(begins_trace(&line), number)?;
                        if self.another.is_none() && named.is_none() {
                            self.another = of_another(&line).map(|what| (number, what));
                        }
                    }
                },
            }
        }
        self.summary.lines = input.line();
        self.check_order()?;
        sink.release(&mut self.merge, u64::MAX, &mut self.summary, input.line())
    }

    fn count_traces(&mut self, begins: bool, line: u64) -> Result<(), ImportError> {
        self.traces += u64::from(begins);
        if self.traces < 2 {
            return Ok(());
        }
        Err(ImportError::Refused(format!(
            "{} begins a second trace, as `trace-cmd report` of several files and texts in one file do: CPUs of both have the \
             same numbers, and no idle time goes on from one to the other; import each by itself",
            self.place(line)
        )))
    }

    /// Refuses a text whose lines are in no order that can be restored.
    fn check_order(&self) -> Result<(), ImportError> {
        let Order { events, backwards, first, far, late, .. } = self.order;
        let refused = |what: String| Err(ImportError::Refused(what));
        if let Some(why) = self.order.no_times(&self.name) {
            return refused(why);
        }
        let unsorted = |line, late| {
            let place = self.place(line);
            refused(format!(
                "{place} is earlier than lines before it, as {late} of {events} events are, and times cannot be put in order \
                 again: sort the lines by time: awk '{{match($0, /[0-9]+[.][0-9]+: /); print substr($0, RSTART) \"\\t\" $0}}' \
                 FILE | sort -sn | cut -f2-"
            ))
        };
        if let Some(line) = first.filter(|_| self.order.goes_back()) {
            return unsorted(line, backwards);
        }
        if let Some((line, by_ns)) = far {
            let place = self.place(line);
            return refused(format!(
                "{place} is {by_ns} ns earlier than the line before it of the same CPU: these are several traces, or the \
                 clock was set back; import each trace by itself, or record with a clock that is not set (`perf record -k \
                 CLOCK_MONOTONIC`)"
            ));
        }
        match late.filter(|_| self.summary.out_of_order * LEAST_IN_ORDER > events) {
            Some(line) => unsorted(line, self.summary.out_of_order),
            None => Ok(()),
        }
    }

    fn event(
        &mut self,
        event: &TextEvent<'_>,
        line: (u64, &str),
        sink: &mut impl EventSink,
    ) -> Result<(), ImportError> {
        // `-F +machine_pid,+vcpu`: `VM:12345 VCPU:001  swapper`.
        if event
            .comm
            .strip_prefix("VM:")
            .is_some_and(|id| id.trim_start().starts_with(|c: char| c.is_ascii_digit()))
        {
            return Err(ImportError::Refused(format!(
                "{} is of a guest, which `perf inject` has put on CPUs of its host; make a text of the guest's own perf.data",
                self.place(line.0)
            )));
        }
        self.names.learn(event.tid, event.comm);
        self.order.add(event, line.0);
        let Some(tracepoint) = event.tracepoint() else {
            self.summary.ignore_event(event.name);
            return Ok(());
        };
        if !sink.uses(tracepoint, event, &self.summary)? {
            self.summary.ignore_event(event.name);
            return Ok(());
        }
        let kind = match sink.parse(tracepoint, event, self.arch) {
            Some(Some(kind)) => kind,
            Some(None) => {
                self.summary.ignore_event(event.name);
                return Ok(());
            }
            None => return self.unparsable(tracepoint, line),
        };
        let lacks = |what, fields| {
            let place = self.place(line.0);
            let wrapped = if self.summary.other_lines > 0 {
                ", or make the text anew if its lines were wrapped"
            } else {
                ""
            };
            let how = format!("use `perf script -F {fields}`{wrapped}");
            Err(ImportError::Refused(format!("{place} has no {what}, which `{tracepoint}` needs; {how}")))
        };
        if event.cpu.is_none() && sink.needs_cpu(&kind) {
            return lacks("CPU", "+cpu");
        }
        if event.lacks_thread() && sink.needs_thread(&kind) {
            return lacks("thread", "+comm,+tid");
        }
        if let EventKind::Exit { .. } | EventKind::HaltPoll { .. } | EventKind::VcpuWakeup { .. } = kind
            && let Err(what) = self.vcpus.check(event)
        {
            return Err(ImportError::Refused(format!("{} {what}", self.place(line.0))));
        }
        self.dialects.insert(event.dialect);
        self.summary.use_event(event.name);
        self.summary.resolution_ns = self.summary.resolution_ns.max(event.resolution_ns);
        let event = Event {
            time_ns: event.time_ns,
            cpu: event.cpu.unwrap_or(0),
            pid: event.pid.unwrap_or(Event::UNKNOWN_ID),
            tid: event.tid,
            kind,
        };
        self.push(event, line.0, sink)
    }

    /// A line that should be this event is counted, or an error; the last one may have been cut off.
    fn unparsable(&mut self, event: TracepointKind, (line, text): (u64, &str)) -> Result<(), ImportError> {
        if self.is_part {
            self.is_cut = true;
            return Ok(());
        }
        if self.skip_unparsable {
            self.summary.unparsable += 1;
            return Ok(());
        }
        Err(self.place(line).unparsable(&event, text))
    }

    fn place(&self, line: u64) -> Place {
        Place { name: self.name.clone(), line }
    }

    fn push(&mut self, event: Event, line: u64, sink: &mut impl EventSink) -> Result<(), ImportError> {
        self.newest_ns = self.newest_ns.max(event.time_ns);
        if !self.merge.push(event) {
            // Losses were counted where they were read.
            if !event.is_loss() {
                self.order.late.get_or_insert(line);
                self.summary.out_of_order += 1;
                self.summary.lost.add(Some(event.cpu), 1);
            }
            self.merge.push_loss(&event);
        }
        let until_ns = match self.merge.pending() {
            MOST_WAITING.. => self.newest_ns,
            // Sorting and pairing a few events at a time would cost more than it is worth.
            waiting if waiting % 1024 == 0 => self.newest_ns.saturating_sub(SLACK_NS),
            _ => return Ok(()),
        };
        sink.release(&mut self.merge, until_ns, &mut self.summary, line)
    }

    /// Puts what the text shows about itself into the metadata; what the caller has set goes before its header.
    pub fn fill<O>(self, layer: O, metadata: &mut Metadata<O>) -> ImportSummary {
        let EventReader { header, mut summary, dialects, order, is_cut, another, .. } = self;
        let span = order.span;
        header.fill(metadata);
        // That a time is of the day, as of ftrace's clock tai, shows in nothing else.
        if metadata.clock == Clock::Perf && span.all.is_some_and(|span| span.start_ns > WALL_NS) {
            metadata.clock = Clock::Unknown;
        }
        metadata.layer = layer;
        metadata.resolution_ns = Some(summary.resolution_ns);
        summary.format = dialects.into_iter().map(Dialect::name).collect::<Vec<_>>().join(", ");
        summary.fill(summary.format.clone(), span, metadata);
        if is_cut {
            summary.count_part(metadata);
        }
        if let Some(note) = order.note() {
            summary.note(metadata, note);
        }
        summary.note_another(another, metadata);
        summary
    }
}

/// The tracepoint that a line names that is no event.
pub(crate) fn named_in(line: &str) -> Option<TracepointKind> {
    let named =
        |word: &str| TracepointKind::from_name(word.strip_suffix(':').filter(|name| name.contains(':'))?);
    line.split_whitespace().find_map(named)
}

/// `cpus=8`, which `trace-cmd report` writes once for each file, behind its name where there are several.
fn begins_trace(line: &str) -> bool {
    let last = line.rsplit(' ').next().and_then(|word| word.strip_prefix("cpus="));
    last.is_some_and(|cpus| digits::<u32>(cpus).is_some())
}

/// What `perf script --header` writes about the machine.
#[derive(Default)]
pub(super) struct Header {
    pub(super) kernel: Option<String>,
    /// `Some(None)`: one of which nothing is known.
    pub(super) arch: Option<Option<Arch>>,
    /// An x86 that has no 64 bits, or a kernel that does not use them.
    pub(super) has_32_bits: bool,
    pub(super) perf: Option<String>,
    /// What ftrace's buffer had written and no longer has, until the reader takes it.
    overwritten: u64,
    cpu_model: Option<String>,
    command: Option<String>,
    /// As `perf record -k` was asked for.
    clock: Option<Clock>,
}

impl Header {
    pub(super) fn read(&mut self, comment: &str) {
        if let Some(clock) = comment.strip_prefix("clockid: ") {
            let is_monotonic = clock.starts_with("monotonic ");
            self.clock = Some(if is_monotonic { Clock::Monotonic } else { Clock::Unknown });
        }
        if let Some(entries) = comment.strip_prefix("entries-in-buffer/entries-written: ") {
            let numbers = entries.split_whitespace().next().and_then(|numbers| numbers.split_once('/'));
            let numbers =
                numbers.and_then(|(there, written)| Some((there.parse().ok()?, written.parse().ok()?)));
            self.overwritten =
                numbers.map_or(0, |(there, written): (u64, u64)| written.saturating_sub(there));
        }
        let Some((key, value)) = comment.split_once(" : ") else { return };
        // Red Hat's releases end with the architecture.
        if key.trim() == "os release" && self.arch.is_none() {
            self.arch = Version::split_arch(value.trim()).1.map(Some);
        }
        let place = match key.trim() {
            "arch" => {
                // x86 idles alike with 32 bits.
                let name = value.trim();
                self.has_32_bits = ["i386", "i486", "i586", "i686"].contains(&name);
                self.arch = Some(if self.has_32_bits { Some(Arch::X86_64) } else { Arch::from_name(name) });
                return;
            }
            "perf version" => &mut self.perf,
            "os release" => &mut self.kernel,
            "cpudesc" => &mut self.cpu_model,
            "cmdline" => &mut self.command,
            _ => return,
        };
        *place = Some(value.trim().to_owned());
    }

    fn fill<O>(self, metadata: &mut Metadata<O>) {
        metadata.clock = self.clock.unwrap_or(Clock::Perf);
        metadata.kernel = metadata.kernel.take().or(self.kernel);
        metadata.cpu_model = metadata.cpu_model.take().or(self.cpu_model);
        metadata.source.command = metadata.source.command.take().or(self.command);
    }
}
