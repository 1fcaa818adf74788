//! Episodes out of QEMU's own trace, as its log back end writes it (`-trace 'run_poll_handlers_*' -trace 'poll_*'`).
//!
//! | lines | an episode is |
//! |---|---|
//! | `run_poll_handlers_begin`, `…_end` with a time-out of 0 | an attempt that found work: from begin to end, not halted |
//! | `…_begin`, `…_end` with another time-out | a failed poll, and the sleep after it |
//! | none, but a sleep in [`Sleeps`] | a sleep without an attempt, window 0 |
//!
//! An idler is a context; QEMU names it by its address.
//!
//! # What the trace has and what it lacks
//!
//! * *When*: only with `-msg timestamp=on`, to the microsecond. Without it lengths are **bounds**: `idle_ns`
//!   is the least that the length can have been, 0 for an attempt that found work, starts are 0, and the
//!   metadata says so ([`LEAST_LENGTHS`]).
//! * *How long it slept*: not at all. The next line of the context is taken for the end of the sleep; from
//!   10.0 on it may come only after the handlers have run. A sleep without an attempt before it leaves no
//!   trace of its beginning: those episodes are left out and counted in
//!   [`ImportSummary::incomplete_episodes`]. With the waits of the same threads, out of `dwell record thread`
//!   ([`QemuOptions::sleeps`]), both are known; left out is what neither polled nor slept, since something was ready.
//! * *Which handlers became ready*: not at all. `ready` is null; the metadata lists the handlers that joined
//!   and left the poll list, by node and file descriptor.
//! * *Why*: an attempt with progress found a handler (io); anything else is unknown, but for the sleeps of a recording.
//! * *What was lost*: the log back end waits for the disk and drops nothing. What is missing shows in an
//!   attempt without an end, and in a change from a polling time that was not there; each counts as one lost
//!   event.
//!
//! # Decisions
//!
//! Where the version is known each `poll_grow` and `poll_shrink` is held against that version's rule: within
//! what is known of the block time, the rule must do it (*determined*), can do it, or cannot
//! (*contradicted*). See [`DecisionCounts`].

mod line;
mod sleeps;

pub use crate::aio::DecisionCounts;
pub use sleeps::{Sleeps, ids};

use super::{EventSpan, ImportError, ImportSummary, Input, Place, of_another, text};
use crate::aio::Contexts;
use crate::event::{Aio, Event, EventKind};
use crate::import::perf::SLACK_NS;
use crate::pairing::{PairedEpisode, Pairing};
use crate::thread::ThreadPairing;
use crate::write::EpisodeWriter;
use dwell_policy::Layer;
use dwell_policy::iothread::{Params, Revision};
pub use dwell_recording::LEAST_LENGTHS;
use dwell_recording::{Clock, IdleIncludes};
use dwell_recording::{LEAST_LENGTHS_NOTE, Writer};
use line::{Line, LogEvent, Stamp};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Whether a line names an event that is read.
pub(super) fn names_event(line: &str) -> bool {
    matches!(Line::parse(line), Line::Event(_) | Line::Unparsable(_))
}

/// Whether a line is one that can be read.
pub(super) fn is_event(line: &str) -> bool {
    matches!(Line::parse(line), Line::Event(_))
}

/// The time of the first line where times are differences: later lines may be a little earlier \[ns\].
const FIRST_NS: u64 = 1_000_000_000;

/// More contexts than any QEMU has: what names so many is no trace of one.
const MOST_CONTEXTS: usize = 1 << 16;

/// So many contexts are named in an error at most.
const MOST_NAMED: usize = 16;

/// What the log does not have.
#[derive(Clone, Debug, Default)]
pub struct QemuOptions {
    /// The rule of the QEMU that wrote it, and the parameters in force; without them no decision is judged.
    pub rule: Option<(Revision, Params)>,
    /// When its threads slept.
    pub sleeps: Option<Sleeps>,
    /// Use only the context of this address.
    pub context: Option<u64>,
    /// Whether a line that should be an event but cannot be parsed is counted instead of being an error.
    pub skip_unparsable: bool,
}

/// Writes the episodes of a log. Sets layer, source, clock, losses, what `idle_ns` includes and the time
/// recorded (from the first line with a time to the last, of any context) in the metadata.
///
/// # Errors
/// Where the log is not what it should be, with the line.
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    options: QemuOptions,
    writer: &mut Writer<W>,
) -> Result<ImportSummary, ImportError> {
    let name = input.name().to_owned();
    let mut log = Log {
        name: &name,
        alone: options.sleeps.as_ref().and_then(Sleeps::only),
        pairing: None,
        others: BTreeSet::new(),
        polling: BTreeMap::new(),
        stamped: None,
        now_ns: FIRST_NS,
        ended_ns: 0,
        newest_ns: 0,
        whole_seconds: false,
        is_part: false,
        is_cut: false,
        resolution_ns: 1,
        span: EventSpan::default(),
        first_contradicted_line: None,
        set_back: None,
        another: None,
        found: vec![],
        episodes: EpisodeWriter::default(),
        summary: ImportSummary::default(),
        options,
        writer,
    };
    loop {
        let number = input.line() + 1;
        let Some((bytes, is_part)) = input.next_line_or_part()? else { break };
        log.is_part = is_part;
        log.line(&text(bytes), number)?;
    }
    log.finish(input.line())
}

const DAY_NS: u64 = 86_400 * 1_000_000_000;
/// Of a leap year, as which dates without a year are read.
const YEAR_NS: u64 = 366 * DAY_NS;

/// A log on its way to episodes.
struct Log<'a, W: Write + Send> {
    name: &'a str,
    options: QemuOptions,
    /// The only thread whose waits are known.
    alone: Option<i32>,
    /// Made at the first event, which shows whether the log has times.
    pairing: Option<ThreadPairing>,
    /// Contexts that were not asked for.
    others: BTreeSet<u64>,
    /// By which threads or processes contexts are polled now, where lines have them.
    polling: BTreeMap<u64, i32>,
    stamped: Option<bool>,
    /// The sum of the times that are since the line before \[ns\].
    now_ns: u64,
    /// The days and years that have ended, of times without them, and the newest of these times \[ns\].
    ended_ns: u64,
    newest_ns: u64,
    /// Times of whole seconds were left out.
    whole_seconds: bool,
    /// Whether the line has no end, and whether it could not be parsed for that.
    is_part: bool,
    is_cut: bool,
    /// What the times resolve \[ns\]; the largest so far.
    resolution_ns: u64,
    span: EventSpan,
    first_contradicted_line: Option<u64>,
    /// The first line that is earlier than lines before it by more than threads overtake each other, and by how much \[ns\].
    set_back: Option<(u64, u64)>,
    /// The first line of another text, and what it is.
    another: Option<(u64, &'static str)>,
    found: Vec<PairedEpisode>,
    episodes: EpisodeWriter,
    summary: ImportSummary,
    writer: &'a mut Writer<W>,
}

impl<W: Write + Send> Log<'_, W> {
    fn line(&mut self, text: &str, line: u64) -> Result<(), ImportError> {
        let mut event = match Line::parse(text) {
            Line::Event(event) => event,
            Line::Passed { ns, dropped } => {
                self.now_ns = self.now_ns.saturating_add_signed(ns.cast_signed());
                self.summary.other_lines += 1;
                return if dropped > 0 { self.dropped(dropped, line) } else { Ok(()) };
            }
            Line::Unparsable(_) if self.is_part => {
                self.is_cut = true;
                return Ok(());
            }
            Line::Unparsable(event) if !self.options.skip_unparsable => {
                return Err(self.place(line).unparsable(&event, text));
            }
            Line::Unparsable(_) => {
                if let Some(Line::Passed { ns, .. }) = line::passed(text) {
                    self.now_ns = self.now_ns.saturating_add_signed(ns.cast_signed());
                }
                self.summary.unparsable += 1;
                return Ok(());
            }
            Line::Other => {
                self.summary.other_lines += 1;
                if self.another.is_none() {
                    self.another = of_another(text).map(|what| (line, what));
                }
                return Ok(());
            }
        };
        self.whole_seconds |= event.whole_seconds;
        if let Some(stamp) = event.stamp.as_mut().filter(|stamp| stamp.clock == line::Clock::Before) {
            self.now_ns = self.now_ns.saturating_add_signed(stamp.ns.cast_signed());
            stamp.ns = self.now_ns;
        }
        if let Some(stamp) = event.stamp.as_mut().filter(|stamp| stamp.clock == line::Clock::Other) {
            stamp.ns = self.since_first_day(stamp.ns);
        }
        if let Some(Stamp { ns, resolution_ns, .. }) = event.stamp {
            self.resolution_ns = self.resolution_ns.max(resolution_ns);
            let back_ns = self.newest_ns.saturating_sub(ns);
            self.newest_ns = self.newest_ns.max(ns);
            if back_ns > SLACK_NS {
                self.set_back.get_or_insert((line, back_ns));
            }
            let ns = self.options.sleeps.as_ref().map_or(ns, |sleeps| sleeps.monotonic(ns));
            self.span.add(ns, ns);
        }
        if self.options.context.is_some_and(|context| context != event.ctx) {
            if self.others.len() < MOST_NAMED {
                self.others.insert(event.ctx);
            }
            self.summary.ignore_event(event.name);
            return Ok(());
        }
        self.summary.use_event(event.name);
        self.event(&event, line)
    }

    /// A time without a date or a year, plus the days and years that have ended: where it falls by half a day to a day,
    /// midnight has passed, and where it falls by half a year, new year.
    fn since_first_day(&mut self, ns: u64) -> u64 {
        let ns = ns.saturating_add(self.ended_ns);
        let back_ns = self.newest_ns.saturating_sub(ns);
        let ended_ns = match () {
            () if back_ns > YEAR_NS / 2 => YEAR_NS,
            () if (DAY_NS / 2..=DAY_NS).contains(&back_ns) => DAY_NS,
            () => 0,
        };
        self.ended_ns = self.ended_ns.saturating_add(ended_ns);
        let ns = ns.saturating_add(ended_ns);
        self.newest_ns = self.newest_ns.max(ns);
        ns
    }

    /// QEMU's buffer was full: what is open may have ended unseen.
    fn dropped(&mut self, count: u64, line: u64) -> Result<(), ImportError> {
        self.summary.lost.add(None, count);
        self.polling.clear();
        let Some(pairing) = &mut self.pairing else { return Ok(()) };
        let kind = EventKind::Lost { cpu: None, count };
        pairing.observe(&Event { time_ns: self.now_ns, cpu: 0, pid: 0, tid: 0, kind }, &mut self.found);
        self.write(line)
    }

    fn event(&mut self, event: &LogEvent, line: u64) -> Result<(), ImportError> {
        let has = event.stamp.is_some();
        if *self.stamped.get_or_insert(has) != has {
            return Err(ImportError::Refused(format!(
                "{} has {}, unlike the lines before it; this is not the log of one QEMU",
                self.place(line),
                if has { "a time" } else { "no time" }
            )));
        }
        let tid = match (event.stamp, &self.options.sleeps) {
            (stamp, Some(_)) if stamp.is_none_or(|stamp| stamp.clock != line::Clock::Day) => {
                return Err(ImportError::Refused(format!(
                    "{} has no time of day, so that it cannot be compared with recorded waits; start QEMU with \
                     `-msg timestamp=on` and import its log",
                    self.place(line)
                )));
            }
            (Some(Stamp { tid: None, .. }), Some(_)) => {
                match self.alone.filter(|_| self.options.context.is_some()) {
                    None => {
                        return Err(ImportError::Refused(format!(
                            "{} has no thread (QEMU 11 writes none); give the context of the recorded thread with \
                             `--context 0x…`, and record one thread only",
                            self.place(line)
                        )));
                    }
                    only => only,
                }
            }
            (stamp, _) => stamp.and_then(|stamp| stamp.tid),
        };
        let pairing = self.pairing.get_or_insert_with(|| {
            let resolution_ns = event.stamp.map(|stamp| stamp.resolution_ns);
            let contexts = Contexts::new(self.options.rule, resolution_ns);
            let names = self.options.sleeps.as_ref().map(Sleeps::names).unwrap_or_default();
            ThreadPairing::new(None, Box::new(names)).with_contexts(contexts)
        });
        if pairing.contexts().is_some_and(|known| known.is_full(MOST_CONTEXTS, event.ctx)) {
            let place = self.place(line);
            return Err(ImportError::Refused(format!(
                "{place} names context number {MOST_CONTEXTS}; this is not the log of a QEMU"
            )));
        }
        let of = event.stamp.and_then(|stamp| stamp.pid).or(tid);
        let other = match (event.what, of) {
            (Aio::PollBegin { .. }, Some(of)) => self.polling.insert(event.ctx, of),
            (Aio::PollEnd { .. }, _) => self.polling.remove(&event.ctx),
            _ => None,
        };
        if let Some(other) = other.filter(|&other| of.is_some_and(|of| of != other)) {
            return Err(ImportError::Refused(format!(
                "{} has context {:#x} while {other} polls it: two QEMUs have a context of this address; import the lines of each \
                 by itself",
                self.place(line),
                event.ctx
            )));
        }
        let mut time_ns = event.stamp.map_or(0, |stamp| stamp.ns);
        let mut pid = Event::UNKNOWN_ID;
        if let (Some(sleeps), Some(tid)) = (&mut self.options.sleeps, tid) {
            time_ns = sleeps.monotonic(time_ns);
            pid = sleeps.pid(tid);
            sleeps.until(tid, time_ns, |wait| pairing.observe(&wait, &mut self.found));
        }
        let kind = EventKind::Aio { ctx: event.ctx, what: event.what };
        let event = Event { time_ns, cpu: 0, pid, tid: tid.unwrap_or(Event::UNKNOWN_ID), kind };
        pairing.observe(&event, &mut self.found);
        if pairing.contexts().and_then(Contexts::decisions).is_some_and(|known| known.contradicted > 0) {
            self.first_contradicted_line.get_or_insert(line);
        }
        self.write(line)
    }

    fn write(&mut self, line: u64) -> Result<(), ImportError> {
        let Some(pairing) = &self.pairing else { return Ok(()) };
        // Without times all starts are 0, and overlaps mean nothing.
        self.episodes.resolve(if self.stamped == Some(true) { self.resolution_ns } else { u64::MAX });
        self.summary.episodes += self.found.len() as u64;
        let written = self.episodes.push_all(self.writer, pairing.idlers(), &mut self.found);
        written.map_err(|source| self.place(line).not_written(source))
    }

    fn place(&self, line: u64) -> Place {
        Place { name: self.name.to_owned(), line }
    }

    fn finish(mut self, lines: u64) -> Result<ImportSummary, ImportError> {
        if let Some(pairing) = &mut self.pairing {
            pairing.finish(&mut self.found);
        }
        self.write(lines)?;
        let Log {
            name,
            pairing,
            others,
            stamped,
            resolution_ns,
            span,
            options,
            episodes,
            mut summary,
            writer,
            ..
        } = self;
        summary.lines = lines;
        let stamped = stamped == Some(true);
        summary.resolution_ns = if stamped { resolution_ns } else { 0 };
        let contexts = pairing.as_ref().and_then(ThreadPairing::contexts);
        summary.incomplete_episodes = pairing.as_ref().map_or(0, Pairing::incomplete);
        summary.decisions = contexts.and_then(Contexts::decisions).map(|decisions| DecisionCounts {
            first_contradicted_line: self.first_contradicted_line,
            ..decisions
        });
        if let Some(lost) = contexts.map(Contexts::lost).filter(|&lost| lost > 0) {
            summary.lost.add(None, lost);
        }
        if let (None, Some(context), false) = (&pairing, options.context, others.is_empty()) {
            let others: Vec<String> = others.iter().map(|other| format!("{other:#x}")).collect();
            return Err(ImportError::NoEpisodes(format!(
                "{name}: no event of the context {context:#x}; events are of {}",
                others.join(", ")
            )));
        }
        let Some(pairing) = pairing.filter(|_| summary.episodes > 0) else {
            let cut = match self.is_part {
                true => ", the last of which is cut off: the log may lack the rest",
                false => "",
            };
            return Err(ImportError::NoEpisodes(format!(
                "{name}: no episodes in {lines} lines{cut}; trace QEMU with \
                 `-trace 'run_poll_handlers_*' -trace 'poll_*' -msg timestamp=on -D FILE`"
            )));
        };
        let metadata = writer.metadata_mut();
        summary.set_overlaps(episodes.overlaps(), metadata);
        summary.fill("qemu -trace".to_owned(), span, metadata);
        if self.is_cut {
            summary.count_part(metadata);
        }
        if let Some((line, back_ns)) = self.set_back {
            let note = format!(
                "line {line} is {} ms earlier than lines before it: the clock was set back, or these are several logs; lengths of \
                 waits across it are wrong",
                back_ns / 1_000_000
            );
            summary.note(metadata, note);
        }
        summary.note_another(self.another, metadata);
        if self.whole_seconds {
            let note = "times of whole seconds were not used, so that lengths are lower bounds; print the journal with \
                        `journalctl -o short-precise`";
            summary.note(metadata, note.to_owned());
        }
        summary.format = "QEMU's trace".to_owned();
        metadata.layer = Layer::Iothread;
        metadata.idle_includes = if stamped { pairing.idle_includes() } else { IdleIncludes::Unknown };
        metadata.clock = if options.sleeps.is_some() { Clock::Monotonic } else { Clock::Unknown };
        metadata.resolution_ns = stamped.then_some(resolution_ns);
        metadata.other.extend(pairing.notes());
        if !stamped {
            // Later commands have it by the key.
            summary.notes.push(LEAST_LENGTHS_NOTE.to_owned());
            metadata.other.insert(LEAST_LENGTHS.to_owned(), true.into());
        }
        Ok(summary)
    }
}
