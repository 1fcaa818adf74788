//! What really happened, where the recorder saw it: windows, halts, wake events.

use super::blocks::{Block, BlocksMaker};
use super::polls::{Polls, PollsMaker};
use super::timeline::TimelineMaker;
use dwell_recording::accounting::{Account, Outcome};
use dwell_recording::{Chunk, Columns, ReadError, Reader, WakeCause};
use serde::Serialize;
use std::collections::BTreeMap;

/// What was seen of the episodes beside their lengths.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Recorded {
    /// Episodes of which it is known whether the idler halted.
    pub known: u64,
    /// Of those, the ones in which it did.
    pub halts: u64,
    /// Episodes of which window and end are both known.
    pub windows_known: u64,
    /// Of those, the ones that began with a poll.
    pub polls: u64,
    /// Of those, the ones in which the wake came.
    pub polls_succeeded: u64,
    /// CPU time polled in them \[ns\].
    pub polled_ns: u128,
    /// Where these polls ended.
    #[serde(flatten)]
    pub ends: Polls,
    /// Wake events by kind.
    pub wakes: Wakes,
}

/// Wake events by kind, where they were recorded.
pub type Wakes = BTreeMap<&'static str, u64>;

/// Reads the columns that may be there; what was seen over time goes into the timeline of these idlers.
pub(super) fn read(
    reader: &Reader,
    shown: &[usize],
    timeline: &mut TimelineMaker,
    progress: &dyn Fn(u64),
) -> Result<(Recorded, Vec<Block>), ReadError> {
    let columns = Columns::ALL.without(Columns::READY);
    let mut recorded = Recorded::default();
    let mut ends = PollsMaker::default();
    let mut blocks = BlocksMaker::new(reader);
    let mut chunk = Chunk::default();
    for row_group in 0..reader.row_groups() {
        reader.read(row_group, columns, &mut chunk)?;
        for row in 0..chunk.rows {
            let outcome = Outcome::of_row(&chunk, row);
            recorded.take(&chunk, row, outcome, &mut ends);
            blocks.take(&chunk, row);
            let idler = chunk.idler[row];
            if let Some(place) = shown.iter().position(|&shown| u32::try_from(shown) == Ok(idler)) {
                timeline.take_recorded(place, chunk.start_ns[row], chunk.window_ns[row], outcome.halted);
            }
        }
        progress(chunk.rows as u64);
    }
    recorded.ends = ends.finish();
    Ok((recorded, blocks.blocks))
}

impl Recorded {
    fn take(&mut self, chunk: &Chunk, row: usize, outcome: Outcome, ends: &mut PollsMaker) {
        if let Some(wake) = chunk.wake[row].filter(|&wake| wake != WakeCause::Unknown) {
            *self.wakes.entry(wake.name()).or_default() += 1;
        }
        let mut account = Account::default();
        account.add(outcome);
        self.known += account.ends_known;
        self.halts += account.halts;
        // Of a poll without a known window neither graph can show anything.
        let (Some(window_ns), Some(polled_ns), Some(halted)) =
            (chunk.window_ns[row], outcome.polled_ns, outcome.halted)
        else {
            return;
        };
        self.windows_known += 1;
        self.polls += account.polls;
        self.polls_succeeded += account.polls_succeeded;
        self.polled_ns += account.polled_ns;
        ends.add(window_ns, polled_ns, halted);
    }
}
