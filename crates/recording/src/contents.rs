//! What is in a recording, counted while it was written.

use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Counts over all episodes of a recording.
///
/// Kept as JSON under the key `dwell.contents` of the Parquet file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contents {
    /// Number of episodes, of all idlers.
    pub episodes: u64,
    /// Earliest `start_ns`; `None` if there is no episode.
    pub first_start_ns: Option<u64>,
    /// Latest `start_ns + idle_ns`, at most `u64::MAX`; `None` if there is no episode.
    pub last_end_ns: Option<u64>,
    /// The idlers, in the order of their first episode. An idler's index in this list is its number in a
    /// [`Chunk`](crate::Chunk).
    pub idlers: Vec<Idler>,
}

/// A recording that claims a longer time is damaged, and is refused by what would go through all of it \[ns\]: a year.
pub const LONGEST_TIME_NS: u64 = 366 * 86_400 * 1_000_000_000;

impl Contents {
    /// From the first start to the last end \[ns\]; 0 if there is no episode.
    pub fn span_ns(&self) -> u64 {
        self.first_start_ns.zip(self.last_end_ns).map_or(0, |(first, last)| last.saturating_sub(first))
    }

    pub(crate) fn count(&mut self, start_ns: u64, idle_ns: u64) {
        let end_ns = start_ns.saturating_add(idle_ns);
        self.episodes += 1;
        self.first_start_ns = Some(self.first_start_ns.map_or(start_ns, |first| first.min(start_ns)));
        self.last_end_ns = Some(self.last_end_ns.map_or(end_ns, |last| last.max(end_ns)));
    }
}

/// One thing that idled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idler {
    /// Its name, unique in the recording.
    pub name: String,
    /// Number of its episodes.
    pub episodes: u64,
    /// Handlers of an event loop, in the order in which they first became ready. A handler's index in this list is
    /// its number in [`Chunk::ready`](crate::Chunk::ready).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handlers: Vec<String>,
}

/// The first name that was there before.
pub(crate) fn twice<'a>(names: impl IntoIterator<Item = &'a String>) -> Option<&'a String> {
    let mut known = HashSet::new();
    names.into_iter().find(|name| !known.insert(*name))
}
