//! Recordings out of what other tools write.
//!
//! Every importer has the same shape: `import(input, &options, &mut writer)` reads the text as a stream, pushes
//! episodes into the writer, fills in the metadata that the text tells, and returns an [`ImportSummary`]. None holds
//! more than a line and what is open at the moment, whatever the length of the text. Text may be compressed with
//! gzip; that is told by its first bytes, not by its name.
//!
//! | what | module |
//! |---|---|
//! | a table of episodes | [`csv`] |
//! | the text of `perf script` | [`perf`] |
//! | QEMU's trace of its event loops | [`qemu`] |

pub mod csv;
mod input;
pub mod perf;
pub mod qemu;

pub use input::{Input, InputError};

use dwell_recording::Losses;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What an importer made of its input. Every line is in one of the counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportSummary {
    /// Lines read, of any kind.
    pub lines: u64,
    /// Episodes written.
    pub episodes: u64,
    /// Events that were used, by name.
    pub used: BTreeMap<String, u64>,
    /// Events of a kind that is of no use here, by name.
    pub ignored: BTreeMap<String, u64>,
    /// Lines that are no events: header, comments, call chains, empty lines.
    pub other_lines: u64,
    /// Lines that name an event of use but could not be parsed. Only if the options allow them; else an error.
    pub unparsable: u64,
    /// Events that the recorder lost, as its output says.
    pub lost: Losses,
    /// Episodes left out because the text begins within them, or lacks their beginning.
    pub incomplete_at_start: u64,
    /// Episodes left out because the text ends within them, or lacks their end.
    pub incomplete_at_end: u64,
    /// Polls that ran out and were put together with the halt that followed.
    pub merged_polls: u64,
    /// Events that were older than one of the same idler before them. If they end an episode, it is left out if it
    /// would end before it began, and begins with the one before it if it would begin before that.
    pub out_of_order: u64,
    /// What the times of the text resolve \[ns\]: 1000 for `perf script` without `--ns`. 0: not known.
    pub resolution_ns: u64,
    /// How the decisions in the trace of a QEMU stand to the rule of its version; `None` where there is nothing to judge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decisions: Option<qemu::Decisions>,
}

impl ImportSummary {
    fn use_event(&mut self, name: &str) {
        count(&mut self.used, name);
    }

    fn ignore_event(&mut self, name: &str) {
        count(&mut self.ignored, name);
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}

/// At most 80 characters of a text that is not ours, for an error message.
pub(crate) fn excerpt(text: &[u8]) -> String {
    const LONGEST: usize = 80;
    let shown = text.get(..LONGEST).unwrap_or(text);
    let more = if shown.len() < text.len() { "…" } else { "" };
    format!("{}{more}", String::from_utf8_lossy(shown).escape_debug())
}
