//! Recordings out of what other tools write.
//!
//! Every importer has the same shape: `import(input, &options, &mut writer)` reads the text as a stream, pushes
//! episodes into the writer, fills in the metadata that the text has, and returns an [`ImportSummary`]. None holds
//! more than a line and what is open at the moment, whatever the length of the text. Text may be
//! compressed; that is decided by its first bytes, not by its name.
//!
//! | what | module |
//! |---|---|
//! | a table of episodes | [`csv`] |
//! | the text of `perf script` | [`perf`] |
//! | QEMU's trace of its event loops | [`qemu`] |

pub mod csv;
mod input;
mod number;
pub mod perf;
pub mod qemu;

mod recognise;

pub use input::{Binary, Input, InputError, Place, STDIN, quoted};
pub(crate) use input::{remedy, text};
use recognise::of_another;
pub use recognise::{Foreign, Format, recognise};

use crate::write::{OVERLAPS, Overlaps};
use dwell_recording::{Losses, Metadata, ReadError, TimeRecorded, WriteError};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why a text could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The text could not be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// An episode could not be written.
    #[error("{what}")]
    Write { what: String, source: WriteError },
    /// The recorded waits, of this name, could not be read.
    #[error("{0}: cannot read the waits")]
    Waits(String, #[source] ReadError),
    /// No episode is in it.
    #[error("{0}")]
    NoEpisodes(String),
    /// It is not what it must be.
    #[error("{0}")]
    Refused(String),
}

/// What an importer made of its input. Every line is in one of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportSummary {
    /// Lines read, of any kind.
    pub lines: u64,
    pub episodes: u64,
    /// Events that were used, by name.
    pub used: BTreeMap<String, u64>,
    /// Events of a kind that is of no use here, by name.
    pub ignored: BTreeMap<String, u64>,
    /// Lines that are no events: header, comments, call chains, empty lines.
    pub other_lines: u64,
    /// Lines that name an event of use but could not be parsed. Only if the options allow them; else an error.
    pub unparsable: u64,
    /// Events that the recorder lost, as its output reports them.
    pub lost: Losses,
    /// Episodes left out because their beginning or end is not in the text.
    pub incomplete_episodes: u64,
    /// Events that were older than ones already used, by more than can be put in order; they were not used.
    pub out_of_order: u64,
    /// Episodes that overlap the one before them of the same idler; `None` where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlaps: Option<Overlaps>,
    /// What the times of the text resolve \[ns\]: 1000 for `perf script` without `--ns`. 0: not known.
    pub resolution_ns: u64,
    /// What the text was taken for.
    #[serde(default)]
    pub format: String,
    /// What the text lacks for figures to be right, or was assumed of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The decisions in the trace of a QEMU, compared with the rule of its version; `None` where no rule is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decisions: Option<qemu::DecisionCounts>,
}

/// The key of [`Metadata::other`] with what a text lacked, for every later command: a list of sentences.
pub const NOTES: &str = "dwell.notes";

impl ImportSummary {
    /// How many lines were read, and which events are in them.
    pub fn lines_in_words(&self) -> String {
        let list = |counts: &BTreeMap<String, u64>| {
            let all: Vec<_> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
            if all.is_empty() { "none".to_owned() } else { all.join(", ") }
        };
        let (used, ignored) = (list(&self.used), list(&self.ignored));
        format!("{} lines; events of use: {used}, others: {ignored}", self.lines)
    }

    /// Counts the last line, of which a part is missing.
    fn count_part<O>(&mut self, metadata: &mut Metadata<O>) {
        self.unparsable += 1;
        self.note(metadata, "the last line is cut off and is not used".to_owned());
    }

    /// Remembers what later commands have to say of the recording.
    pub fn note<O>(&mut self, metadata: &mut Metadata<O>, note: String) {
        let notes = metadata.other.entry(NOTES.to_owned()).or_insert_with(|| serde_json::json!([]));
        if let Some(notes) = notes.as_array_mut() {
            notes.push(note.clone().into());
        }
        self.notes.push(note);
    }

    /// Much is incomplete, more than what a trace cuts off at its ends.
    fn note_incomplete<O>(&mut self, metadata: &mut Metadata<O>) {
        if self.incomplete_episodes > self.episodes / 4 {
            let note = format!(
                "{} episodes are incomplete and {} are not: the trace lacks events, is of several machines, its \
                 times are wrong, or it has the process in place of the thread (`perf script -F +tid`)",
                self.incomplete_episodes, self.episodes
            );
            self.note(metadata, note);
        }
    }

    /// Puts what the text was and had into the metadata.
    fn fill<O>(&mut self, tool: String, span: EventSpan, metadata: &mut Metadata<O>) {
        self.lost.incomplete_episodes = self.incomplete_episodes;
        metadata.source.tool = tool;
        metadata.source.events = self.used.keys().cloned().collect();
        metadata.recorded = span.all;
        self.note_gap(span, metadata);
        metadata.lost = self.lost.clone();
        self.note_incomplete(metadata);
    }

    /// Notes a gap that is most of the time, and longer than any machine idles.
    fn note_gap<O>(&mut self, EventSpan { all, gap }: EventSpan, metadata: &mut Metadata<O>) {
        const LONG_NS: u64 = 60_000_000_000;
        if let Some((all, gap)) = all.zip(gap).filter(|(all, gap)| gap.ns() >= LONG_NS.max(all.ns() / 2)) {
            let [gap_s, all_s, from_s] = [gap.ns(), all.ns(), gap.start_ns].map(|ns| ns as f64 / 1e9);
            let note = format!(
                "nothing is in the text for {gap_s:.0} of {all_s:.0} s, from {from_s} s on: a clock that was set, a machine that \
                 was suspended, or two traces; rates and shares are of all of this time"
            );
            self.note(metadata, note);
        }
    }

    /// Notes the line, of this number, where another text begins in the same file.
    fn note_another<O>(&mut self, another: Option<(u64, &str)>, metadata: &mut Metadata<O>) {
        if let Some((line, what)) = another {
            let note = format!("line {line} is not used, nor are others like it: it {what}");
            self.note(metadata, note);
        }
    }

    fn use_event(&mut self, name: &str) {
        count(&mut self.used, name);
    }

    /// Keeps what was found, here and in the recording.
    fn set_overlaps(&mut self, overlaps: Option<&Overlaps>, metadata: &mut Metadata) {
        self.overlaps = overlaps.cloned();
        if let Some(overlaps) = overlaps {
            metadata.other.insert(OVERLAPS.to_owned(), serde_json::json!(overlaps));
        }
    }

    fn ignore_event(&mut self, name: &str) {
        count(&mut self.ignored, name);
    }
}

/// From the first event of a text to the last, of any kind: for so long at least the recorder watched; and the longest time
/// in it without any.
#[derive(Clone, Copy, Debug, Default)]
struct EventSpan {
    all: Option<TimeRecorded>,
    gap: Option<TimeRecorded>,
}

impl EventSpan {
    /// Takes the next event, or an idle time.
    fn add(&mut self, start_ns: u64, end_ns: u64) {
        let all = self.all.get_or_insert(TimeRecorded { start_ns, end_ns });
        let gap = TimeRecorded { start_ns: all.end_ns, end_ns: start_ns };
        // An event that comes late may be in the gap.
        self.gap = self.gap.filter(|gap| end_ns <= gap.start_ns || start_ns >= gap.end_ns);
        if gap.ns() > self.gap.map_or(0, TimeRecorded::ns) {
            self.gap = Some(gap);
        }
        *all = all.with(Some(start_ns), Some(end_ns));
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    if let Some(count) = counts.get_mut(name) {
        *count += 1;
    } else {
        counts.insert(name.to_owned(), 1);
    }
}

/// At most 80 characters of a text that is not ours, for an error message.
pub(crate) fn excerpt(text: &[u8]) -> String {
    const LONGEST: usize = 80;
    let shown = text.get(..LONGEST).unwrap_or(text);
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{more}", String::from_utf8_lossy(shown).escape_debug())
}
