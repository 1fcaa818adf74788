//! Episodes out of QEMU's own trace, as its log back end writes it (`-trace 'run_poll_handlers_*' -trace 'poll_*'`).
//!
//! | lines | an episode is |
//! |---|---|
//! | `run_poll_handlers_begin`, `…_end` with a time-out of 0 | an attempt that found work: from begin to end, not halted |
//! | `…_begin`, `…_end` with another time-out | an attempt in vain, and the sleep after it |
//! | none, but a sleep in [`Sleeps`] | a sleep without an attempt, window 0 |
//!
//! An idler is a context; QEMU names it by its address.
//!
//! # What the trace tells and what not
//!
//! * *When*: only with `-msg timestamp=on`, to the microsecond. Without it lengths are **bounds**: `idle_ns` is the least
//!   that the length can have been, 0 for an attempt that found work, starts are 0, and the metadata says so
//!   ([`LEAST_LENGTHS`]).
//! * *How long it slept*: not at all. The next line of the context is taken for the end of the sleep; from 10.0 on it may
//!   come only after the handlers have run. A sleep without an attempt before it leaves no trace of its beginning: those
//!   episodes are left out and counted in [`ImportSummary::incomplete_episodes`]. With the waits of the same threads, out of
//!   `dwell record thread` ([`QemuOptions::sleeps`]), both are known, and none is left out.
//! * *Which handlers became ready*: not at all. `ready` is null; the metadata lists the handlers that joined and left the
//!   poll list, by node and file descriptor.
//! * *Why*: an attempt with progress found a handler (io); anything else is unknown, but for the sleeps of a recording.
//! * *What was lost*: the log back end waits for the disk and drops nothing. What is missing shows in an attempt without an
//!   end, and in a change from a polling time that was not there; each counts as one lost event.
//!
//! # Decisions
//!
//! Where the version is known each `poll_grow` and `poll_shrink` is held against that version's rule: within what is known
//! of the block time, the rule must do it (*determined*), can do it, or cannot (*contradicted*). See [`Decisions`].

mod context;
mod judge;
mod line;
mod sleeps;

pub use judge::Decisions;
pub use sleeps::{REALTIME_OFFSET, Sleeps};

use super::{ImportSummary, Input, InputError, excerpt};
use context::{Context, Now, RESOLUTION_NS, Sink};
use dwell_policy::Layer;
use dwell_policy::iothread::{Params, Revision};
use dwell_recording::ReadError;
use dwell_recording::{Clock, IdleIncludes};
use dwell_recording::{WriteError, Writer};
use line::{Event, Line, Stamp};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;

/// Under this key the metadata says `true` if lengths are only the least that they can have been.
pub const LEAST_LENGTHS: &str = "lengths_are_least";

/// More contexts than any QEMU has: what names so many is no trace of one.
const MOST_CONTEXTS: usize = 1 << 16;

/// Why a log could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum QemuError {
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
        /// The writer's error.
        source: WriteError,
    },
    /// A line is one of the events of use, but not as QEMU writes it.
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
    /// Some lines have a time and others have none.
    #[error("{name}: line {line} has {}, unlike the lines before it; this is not the log of one QEMU", if *.has { "a time" } else { "no time" })]
    Mixed {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
        /// Whether this one has.
        has: bool,
    },
    /// The log cannot be laid beside the waits of threads.
    #[error(
        "{name}: line {line} has no time, so that it cannot be laid beside recorded waits; start QEMU with `-msg timestamp=on`"
    )]
    NoTimes {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
    },
    /// Which thread a context belongs to is not known.
    #[error(
        "{name}: line {line} does not tell its thread (QEMU 11 writes none); say which context the recorded thread has \
         with `--context 0x…`, and record one thread"
    )]
    NoThread {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
    },
    /// It names more contexts than there can be.
    #[error("{name}: line {line} names context number {MOST_CONTEXTS}; this is not the log of a QEMU")]
    TooManyContexts {
        /// The file.
        name: String,
        /// From 1.
        line: u64,
    },
    /// No episode is in it.
    #[error(
        "{name}: no episodes in {} lines; trace QEMU with \
         `-trace 'run_poll_handlers_*' -trace 'poll_*' -msg timestamp=on -D FILE`",
        summary.lines
    )]
    NoEpisodes {
        /// The file.
        name: String,
        /// What is in it.
        summary: Box<ImportSummary>,
    },
    /// The recording of waits is of something else.
    #[error("{name}: is a recording of layer {layer}; waits of threads come from `dwell record thread`")]
    NotOfThreads {
        /// The file.
        name: String,
        /// Its layer.
        layer: &'static str,
    },
    /// The recording of waits has another clock.
    #[error(
        "{name}: does not tell how its clock stands to the time of day; record it with this version's `dwell record thread`"
    )]
    NoOffset {
        /// The file.
        name: String,
    },
    /// The recording of waits cannot be read.
    #[error("{name}: cannot read the waits")]
    Sleeps {
        /// The file.
        name: String,
        /// The reader's error.
        source: ReadError,
    },
}

/// What the log does not tell.
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

/// Writes the episodes of a log. Sets layer, source, clock, losses and what `idle_ns` includes in the metadata.
///
/// # Errors
/// Where the log is not what it should be, with the line.
pub fn import<W: Write + Send>(
    mut input: Input<'_>,
    mut options: QemuOptions,
    writer: &mut Writer<W>,
) -> Result<ImportSummary, QemuError> {
    let name = input.name().to_owned();
    let mut log = Log {
        contexts: BTreeMap::new(),
        stamped: None,
        alone: options.sleeps.as_ref().and_then(Sleeps::only),
    };
    let mut summary = ImportSummary { resolution_ns: 0, ..ImportSummary::default() };
    loop {
        let number = input.line() + 1;
        let Some(bytes) = input.next_line()? else { break };
        let text = String::from_utf8_lossy(bytes);
        let event = match Line::parse(&text) {
            Line::Event(event) => event,
            Line::Unparsable(event) if !options.skip_unparsable => {
                return Err(QemuError::Unparsable {
                    name,
                    line: number,
                    event,
                    text: excerpt(text.trim().as_bytes()),
                });
            }
            Line::Unparsable(_) => {
                summary.unparsable += 1;
                continue;
            }
            Line::Other => {
                summary.other_lines += 1;
                continue;
            }
        };
        if options.context.is_some_and(|context| context != event.ctx) {
            summary.ignore_event(event.name);
            continue;
        }
        summary.use_event(event.name);
        let place = Place { name: &name, line: number };
        log.event(&event, &mut options, &place, &mut summary, &mut |episode| writer.push(episode))?;
    }
    summary.lines = input.line();
    let mut nowhere = |_: &dwell_recording::Episode<'_>| Ok(());
    let mut sink = Sink { push: &mut nowhere, summary: &mut summary, rule: options.rule, line: input.line() };
    log.contexts.values_mut().for_each(|context| context.finish(&mut sink));
    summary.lost.incomplete_episodes = summary.incomplete_episodes;
    let stamped = log.stamped == Some(true);
    summary.resolution_ns = if stamped { RESOLUTION_NS } else { 0 };
    if summary.episodes == 0 {
        return Err(QemuError::NoEpisodes { name, summary: Box::new(summary) });
    }
    let metadata = writer.metadata_mut();
    metadata.layer = Layer::Iothread;
    metadata.source.tool = "qemu -trace".to_owned();
    metadata.source.events = summary.used.keys().cloned().collect();
    metadata.idle_includes = if stamped { IdleIncludes::Wake } else { IdleIncludes::Unknown };
    metadata.clock = if options.sleeps.is_some() { Clock::Monotonic } else { Clock::Unknown };
    metadata.resolution_ns = stamped.then_some(RESOLUTION_NS);
    metadata.lost = summary.lost.clone();
    let contexts = log.contexts.values().map(Context::describe).collect::<serde_json::Map<_, _>>();
    metadata.other.insert("contexts".to_owned(), contexts.into());
    if !stamped {
        metadata.other.insert(LEAST_LENGTHS.to_owned(), true.into());
    }
    Ok(summary)
}

/// Where in the text something is.
struct Place<'a> {
    name: &'a str,
    line: u64,
}

/// What is known of the log so far.
struct Log {
    contexts: BTreeMap<u64, Context>,
    /// Whether its lines have times.
    stamped: Option<bool>,
    /// The only thread whose waits are known.
    alone: Option<u32>,
}

impl Log {
    fn event(
        &mut self,
        event: &Event,
        options: &mut QemuOptions,
        place: &Place<'_>,
        summary: &mut ImportSummary,
        push: &mut dyn FnMut(&dwell_recording::Episode<'_>) -> Result<(), WriteError>,
    ) -> Result<(), QemuError> {
        let (name, line) = (|| place.name.to_owned(), place.line);
        let has = event.stamp.is_some();
        if *self.stamped.get_or_insert(has) != has {
            return Err(QemuError::Mixed { name: name(), line, has });
        }
        let tid = match (event.stamp, &options.sleeps) {
            (None, Some(_)) => return Err(QemuError::NoTimes { name: name(), line }),
            (Some(Stamp { tid: None, .. }), Some(_)) => {
                match self.alone.filter(|_| options.context.is_some()) {
                    None => return Err(QemuError::NoThread { name: name(), line }),
                    only => only,
                }
            }
            (stamp, _) => stamp.and_then(|stamp| stamp.tid),
        };
        let full = self.contexts.len() >= MOST_CONTEXTS;
        let context = match self.contexts.entry(event.ctx) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if full => return Err(QemuError::TooManyContexts { name: name(), line }),
            Entry::Vacant(entry) => {
                let thread = options.sleeps.as_ref().zip(tid).and_then(|(sleeps, tid)| sleeps.name(tid));
                entry.insert(Context::new(event.ctx, tid, thread))
            }
        };
        let mut at_ns = event.stamp.map(|stamp| stamp.ns);
        let mut taken = None;
        if let (Some(sleeps), Some(ns), Some(tid)) = (options.sleeps.as_mut(), at_ns, tid) {
            let monotonic_ns = sleeps.monotonic(ns);
            at_ns = Some(monotonic_ns);
            if sleeps.covers(tid, monotonic_ns) && !context.is_polling_until(event.what) {
                taken = Some(sleeps.take(tid, monotonic_ns));
            }
        }
        let now = Now { at_ns, sleeps: taken };
        let mut sink = Sink { push, summary, rule: options.rule, line };
        context.line(event, &now, &mut sink).map_err(|source| QemuError::Write { name: name(), line, source })
    }
}
