//! Timers and exits of vCPUs out of the text of `perf script`.

use super::events::{EventReader, EventSink};
use super::fields::{self, exit_reason, vcpu_of};
use super::{PerfError, PerfOptions, TextEvent};
use crate::event::{EventKind, TracepointKind};
use crate::import::{ImportSummary, Input};
use crate::merge::Merge;
use crate::timer::{ReasonNames, TimerPairing, TimerRowWriter};
use dwell_recording::Owner;
use dwell_recording::timer::{TimerRows, TimerWriter};
use std::io::Write;

/// Writes the timers and exits in the text; [`TimerPairing`] says of which events they are made. Sets the
/// same metadata as [`import`](super::import()).
///
/// # Errors
/// Where the text is not what it should be, with the line.
pub fn import_timers<W: Write + Send>(
    mut input: Input<'_>,
    options: &PerfOptions,
    writer: &mut TimerWriter<W>,
) -> Result<ImportSummary, PerfError> {
    let mut reader = EventReader::new(input.name(), options);
    let reasons = ReasonNames::default();
    let mut timers = Timers {
        pairing: TimerPairing::new(None, Box::new(reader.names()), reasons.clone()),
        reasons,
        name: input.name().to_owned(),
        found: TimerRows::default(),
        rows: TimerRowWriter::default(),
        writer,
    };
    reader.read(&mut input, &mut timers)?;
    timers.finish(reader)
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

/// The events of a text on their way to timers and exits.
struct Timers<'a, W: Write + Send> {
    pairing: TimerPairing,
    reasons: ReasonNames,
    name: String,
    found: TimerRows,
    rows: TimerRowWriter,
    writer: &'a mut TimerWriter<W>,
}

impl<W: Write + Send> Timers<'_, W> {
    fn write(&mut self, line: u64) -> Result<(), PerfError> {
        let Timers { pairing, found, rows, writer, name, .. } = self;
        let failed = |source| PerfError::Write { name: name.clone(), line, source };
        rows.push([pairing.vcpus(), pairing.reasons()], found, writer).map_err(failed)
    }

    fn finish(mut self, mut reader: EventReader<'_>) -> Result<ImportSummary, PerfError> {
        self.pairing.finish(&mut self.found);
        self.write(reader.summary.lines)?;
        reader.summary.incomplete_episodes = self.pairing.incomplete();
        if self.writer.contents().exits() == 0 {
            return Err(PerfError::NoExits { name: self.name, summary: Box::new(reader.summary) });
        }
        Ok(reader.fill(Owner::Timer, self.writer.metadata_mut()))
    }
}

impl<W: Write + Send> EventSink for Timers<'_, W> {
    fn uses(
        &mut self,
        tracepoint: TracepointKind,
        _: &TextEvent<'_>,
        _: &ImportSummary,
    ) -> Result<bool, PerfError> {
        Ok(is_used(tracepoint))
    }

    /// An exit by any reason is of use here.
    fn parse(&mut self, tracepoint: TracepointKind, event: &TextEvent<'_>) -> Option<Option<EventKind>> {
        if tracepoint != TracepointKind::Exit {
            return fields::parse(tracepoint, event);
        }
        let reason = self.reasons.number(exit_reason(event.text)?);
        Some(Some(EventKind::Exit { vcpu: vcpu_of(event.text), reason }))
    }

    fn needs_cpu(&self, _: &EventKind) -> bool {
        true
    }

    fn release(
        &mut self,
        events: &mut Merge,
        until_ns: u64,
        _: &mut ImportSummary,
        line: u64,
    ) -> Result<(), PerfError> {
        let Timers { pairing, found, .. } = self;
        events.release(until_ns, |event| pairing.observe(event, found));
        self.write(line)
    }
}
