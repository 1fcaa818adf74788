//! The windows of a recording, and those of its replay.

use dwell_recording::{Chunk, Columns, Reader};
use dwell_replay::{Player, RecordingSource, Rule, Source};
use std::sync::Arc;

/// The windows that an event loop recorded, and those of a replay through this rule \[ns\].
///
/// # Panics
/// If the recording cannot be read or replayed, or has an episode without a window.
pub fn recorded_and_replayed(reader: &Arc<Reader>, rule: &Rule) -> (Vec<u64>, Vec<u64>) {
    let source = RecordingSource::new(Arc::clone(reader), true);
    let mut replayed = vec![];
    let mut player: Player = rule.start_late(source.handlers()).expect("the rule fits the layer");
    source
        .visit(0..source.episodes(), &mut |batch| {
            for run in batch.runs() {
                player.follow(run, |seen| replayed.push(seen.window.get()));
            }
        })
        .expect("the recording can be replayed");
    let (mut recorded, mut chunk) = (vec![], Chunk::default());
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::WINDOW_NS, &mut chunk).expect("the recording can be read");
        recorded.extend(chunk.window_ns.iter().map(|window| window.expect("a window")));
    }
    (recorded, replayed)
}
