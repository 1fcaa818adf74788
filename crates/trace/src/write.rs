//! Paired episodes into a recording.

use crate::pairing::PairedEpisode;
use dwell_recording::{Ends, IdlerId, WriteError, Writer};
use serde::{Deserialize, Serialize};
use std::io::Write;

/// The key of a recording's metadata under which its [`Overlaps`] are.
pub const OVERLAPS: &str = "dwell.overlaps";

/// Episodes that begin before the one before them of the same idler has ended. Two traces in one text, idlers
/// that share a name, or a clock that was set make them. They are in the recording, but its idler did not
/// idle for as long as their lengths add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlaps {
    pub episodes: u64,
    /// The idler of the first one.
    pub idler: String,
    /// When that begins \[ns, the clock of the recording\].
    pub start_ns: u64,
    /// Its line in the text, from 1; `None` for a trace, where several lines make an episode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct OverlapCheck {
    ends: Ends,
    overlaps: Option<Overlaps>,
}

impl OverlapCheck {
    /// Takes the next episode of an idler. It may begin before the end of the one before by up to
    /// `tolerance_ns`, which is what the times of the source resolve.
    pub(crate) fn check(
        &mut self,
        (idler, name): (IdlerId, &str),
        (start_ns, idle_ns): (u64, u64),
        tolerance_ns: u64,
        line: Option<u64>,
    ) {
        if self.ends.overlaps(idler.index(), start_ns, idle_ns, tolerance_ns) {
            let first = || Overlaps { episodes: 0, idler: name.to_owned(), start_ns, line };
            self.overlaps.get_or_insert_with(first).episodes += 1;
        }
    }

    /// What was found; `None` if nothing.
    pub(crate) fn overlaps(&self) -> Option<&Overlaps> {
        self.overlaps.as_ref()
    }
}

/// Writes the episodes of one pairing into a recording.
#[derive(Debug, Default)]
pub struct EpisodeWriter {
    /// What the times of the source resolve \[ns\].
    resolution_ns: u64,
    /// By number of the pairing's idler: its number in the recording, once it has an episode, and its last
    /// start \[ns\].
    idlers: Vec<Option<(IdlerId, u64)>>,
    overlaps: OverlapCheck,
}

impl EpisodeWriter {
    /// The times of the source resolve this \[ns\], where it is more than until now.
    pub fn resolve(&mut self, resolution_ns: u64) {
        self.resolution_ns = self.resolution_ns.max(resolution_ns);
    }

    /// Appends the episodes of the idlers with these names, and leaves none. An idler becomes part of the recording with
    /// its first episode.
    ///
    /// The starts of one idler do not go back in a recording. They can in a source, because a start may be an
    /// end less a length: by less than the times resolve, or where episodes overlap. The start is then moved
    /// to the one before.
    ///
    /// # Errors
    /// The writer's.
    pub fn push_all<W: Write + Send>(
        &mut self,
        writer: &mut Writer<W>,
        names: &[String],
        rows: &mut Vec<PairedEpisode>,
    ) -> Result<(), WriteError> {
        for row in rows.drain(..) {
            let place = row.idler as usize;
            let name = names.get(place).map_or("", String::as_str);
            if self.idlers.len() <= place {
                self.idlers.resize(place + 1, None);
            }
            let (idler, last_ns) = match self.idlers[place] {
                Some(known) => known,
                None => (writer.idler(name)?, 0),
            };
            self.overlaps.check((idler, name), (row.start_ns, row.idle_ns), self.resolution_ns, None);
            let start_ns = row.start_ns.max(last_ns);
            self.idlers[place] = Some((idler, start_ns));
            writer.push_numbered(idler, &PairedEpisode { start_ns, ..row })?;
        }
        Ok(())
    }

    /// Episodes that overlapped; `None` if there were none.
    pub fn overlaps(&self) -> Option<&Overlaps> {
        self.overlaps.overlaps()
    }
}
