//! Timers and exits of vCPUs out of the text of `perf script`.

use super::fields::{self, exit_reason, vcpu_of};
use super::{At, Header, Line, MOST_WAITING, PerfError, PerfOptions, SLACK_NS, TaskNames, TextEvent};
use super::{named_in, text};
use crate::event::{Event, EventKind, TracepointKind};
use crate::import::{EventSpan, ImportSummary, Input};
use crate::merge::Merge;
use crate::timer::{ReasonNames, TimerPairing, TimerRowWriter};
use dwell_recording::Layer;
use dwell_recording::timer::{TimerRows, TimerWriter};
use std::io::Write;

/// Writes the timers and exits in the text; [`TimerPairing`] says of which events they are made. Sets the same metadata as
/// [`import`](super::import()).
///
/// # Errors
/// Where the text is not what it should be, with the line.
pub fn import_timers<W: Write + Send>(
    mut input: Input<'_>,
    options: &PerfOptions,
    writer: &mut TimerWriter<W>,
) -> Result<ImportSummary, PerfError> {
    let name = input.name().to_owned();
    let (names, reasons) = (TaskNames::default(), ReasonNames::default());
    let mut reader = TimerTextReader {
        pairing: TimerPairing::new(None, Box::new(names.clone()), reasons.clone()),
        names,
        reasons,
        options,
        name: &name,
        merge: Merge::new(),
        newest_ns: 0,
        span: EventSpan::default(),
        found: TimerRows::default(),
        rows: TimerRowWriter::default(),
        summary: ImportSummary::default(),
        writer,
    };
    let mut header = Header::default();
    loop {
        let number = input.line() + 1;
        let Some(bytes) = input.next_line()? else { break };
        let line = text(bytes);
        let at = At { name: &name, line: number, text: &line };
        match Line::parse(&line) {
            Line::Event(event) => reader.event(&event, &at)?,
            Line::Lost { cpu, time_ns, events } => {
                reader.summary.lost.add(cpu, events);
                let time_ns = time_ns.unwrap_or(reader.newest_ns);
                let kind = EventKind::Lost { cpu, count: events };
                reader.push(Event { time_ns, cpu: cpu.unwrap_or(0), pid: 0, tid: 0, kind }, number)?;
            }
            Line::TaskName { tid, comm, .. } => {
                reader.names.learn(tid, comm);
                reader.summary.other_lines += 1;
            }
            Line::Comment(comment) => {
                header.read(comment);
                reader.summary.other_lines += 1;
            }
            Line::Other => match named_in(&line) {
                Some(event) if !options.skip_unparsable => return Err(at.unparsable(event)),
                Some(_) => reader.summary.unparsable += 1,
                None => reader.summary.other_lines += 1,
            },
        }
    }
    reader.finish(input.line(), header)
}

/// Whether timers and exits are made of these events.
const fn is_used(tracepoint: TracepointKind) -> bool {
    matches!(
        tracepoint,
        TracepointKind::Exit
            | TracepointKind::Entry
            | TracepointKind::Msr
            | TracepointKind::Apic
            | TracepointKind::ApicAccept
            | TracepointKind::HvTimerState
            | TracepointKind::LapicWait
            | TracepointKind::HrtimerStart
            | TracepointKind::HrtimerExpire
            | TracepointKind::VcpuWakeup
            | TracepointKind::Migrate
            | TracepointKind::TimerInterrupt
            | TracepointKind::RescheduleInterrupt
            | TracepointKind::CallInterrupt
            | TracepointKind::DeviceInterrupt
    )
}

struct TimerTextReader<'a, W: Write + Send> {
    pairing: TimerPairing,
    names: TaskNames,
    reasons: ReasonNames,
    options: &'a PerfOptions,
    name: &'a str,
    merge: Merge,
    newest_ns: u64,
    span: EventSpan,
    found: TimerRows,
    rows: TimerRowWriter,
    summary: ImportSummary,
    writer: &'a mut TimerWriter<W>,
}

impl<W: Write + Send> TimerTextReader<'_, W> {
    fn event(&mut self, event: &TextEvent<'_>, at: &At<'_>) -> Result<(), PerfError> {
        self.names.learn(event.tid, event.comm);
        self.span.add(event.time_ns);
        let Some(tracepoint) = TracepointKind::from_name(event.name).filter(|&kind| is_used(kind)) else {
            self.summary.ignore_event(event.name);
            return Ok(());
        };
        let kind = match tracepoint {
            TracepointKind::Exit => exit_reason(event.text).map(|reason| {
                let reason = self.reasons.number(reason);
                Some(EventKind::Exit { vcpu: vcpu_of(event.text), reason })
            }),
            _ => fields::parse(tracepoint, event),
        };
        let kind = match kind {
            Some(Some(kind)) => kind,
            Some(None) => {
                self.summary.ignore_event(event.name);
                return Ok(());
            }
            None if self.options.skip_unparsable => {
                self.summary.unparsable += 1;
                return Ok(());
            }
            None => return Err(at.unparsable(tracepoint)),
        };
        let Some(cpu) = event.cpu else {
            let (name, event) = (at.name.to_owned(), tracepoint.to_string());
            return Err(PerfError::NoCpu { name, line: at.line, event });
        };
        self.summary.use_event(event.name);
        self.summary.resolution_ns = self.summary.resolution_ns.max(event.resolution_ns);
        let pid = event.pid.unwrap_or(Event::UNKNOWN_ID);
        self.push(Event { time_ns: event.time_ns, cpu, pid, tid: event.tid, kind }, at.line)
    }

    fn push(&mut self, event: Event, line: u64) -> Result<(), PerfError> {
        self.newest_ns = self.newest_ns.max(event.time_ns);
        if !self.merge.push(event) {
            self.summary.out_of_order += 1;
            self.summary.lost.add(Some(event.cpu), 1);
        }
        let until_ns = match self.merge.pending() {
            MOST_WAITING.. => self.newest_ns,
            waiting if waiting % 1024 == 0 => self.newest_ns.saturating_sub(SLACK_NS),
            _ => return Ok(()),
        };
        self.release(until_ns, line)
    }

    fn release(&mut self, until_ns: u64, line: u64) -> Result<(), PerfError> {
        let TimerTextReader { pairing, merge, found, .. } = self;
        merge.release(until_ns, |event| pairing.observe(event, found));
        self.write(line)
    }

    fn write(&mut self, line: u64) -> Result<(), PerfError> {
        let TimerTextReader { pairing, found, rows, writer, name, .. } = self;
        let failed = |source| PerfError::Write { name: (*name).to_owned(), line, source };
        rows.push([pairing.vcpus(), pairing.reasons()], found, writer).map_err(failed)
    }

    fn finish(mut self, lines: u64, header: Header) -> Result<ImportSummary, PerfError> {
        self.release(u64::MAX, lines)?;
        self.pairing.finish(&mut self.found);
        self.write(lines)?;
        let TimerTextReader { pairing, mut summary, writer, name, span, .. } = self;
        summary.lines = lines;
        summary.incomplete_episodes = pairing.incomplete();
        summary.lost.incomplete_episodes = summary.incomplete_episodes;
        if writer.contents().exits() == 0 {
            return Err(PerfError::NoExits { name: name.to_owned(), summary: Box::new(summary) });
        }
        let metadata = writer.metadata_mut();
        header.fill(metadata);
        metadata.layer = Layer::Timer;
        metadata.source.tool = "perf script".to_owned();
        metadata.source.events = summary.used.keys().cloned().collect();
        metadata.resolution_ns = Some(summary.resolution_ns);
        metadata.recorded = span.0;
        metadata.lost = summary.lost.clone();
        Ok(summary)
    }
}
