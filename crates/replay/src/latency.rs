//! The wakeup latencies of a recording: how much later than the wakeup event an idler runs, where it halts.
//!
//! # Why a replay needs them
//! Every kernel's rule learns from what it measures, and after a halt that ends when the idler runs again: the haltpoll
//! governor compares the residency of the halt with its maximum, KVM its block time, QEMU its `block_ns`. Idle times
//! end with the wakeup event, so that the latency of a halt has to be added where the *replayed* rule halts.
//! With a maximum below idle time and latency together a window never grows, however short the idle time.
//!
//! # Where a latency is taken from
//! 1. One that was given for all halts.
//! 2. That of the episode, where the idler halted and it was recorded.
//! 3. The idler's recorded halts, where it polled through: one of [`QUANTILES`] quantiles of their latencies, which take
//!    turns by the row of the episode. A rule compares each length with a limit, so that the number of lengths
//!    beyond it is right only if latencies are as spread as they are: a mean would be moved by a few wakeups of
//!    milliseconds, and with a median of 14 us no idle time of 2 us would stay within 15 us, though one latency in a
//!    hundred is that short. An idler with fewer than [`FEWEST`] halts has the latencies of all.
//! 4. A value that was measured elsewhere, as by `dwell-lab calibrate`.
//! 5. None: then the rule gets the idle time, and the other end to try is [`UPPER`], or as much of it as there is in
//!    lengths that include it ([`RecordingSource::upper_latency`](crate::RecordingSource::upper_latency)).
//!
//! # Lengths that include it
//! Where a recording's idle times run until the idler runs again ([`IdleIncludes::Wake`]), so does each that is not known
//! to have been polled through: the latency is taken out of it, and the rule gets the recorded length back if it
//! halts. `record guest` has such an episode where it saw no wakeup event.
//!
//! [`IdleIncludes::Wake`]: dwell_recording::IdleIncludes::Wake

use crate::priced::Sample;
use dwell_policy::Nanos;
use dwell_recording::{Chunk, Columns, ReadError, Reader};

/// An idler has so many halts before their latencies are taken for its other episodes.
pub const FEWEST: u64 = 16;

/// Latencies of episodes that were polled through are one of so many quantiles.
pub const QUANTILES: usize = 64;

/// A latency that wakeups from a halt hardly exceed on average: more than the 31 us of a nested guest, the longest that
/// we measured. The other end to try where nothing is known.
pub const UPPER: Nanos = Nanos::from_micros(50);

/// So many latencies of an idler are kept.
const KEPT: usize = 1 << 12;

/// The latencies of recorded halts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    /// Of each idler, in the order of the recording.
    idlers: Vec<Option<[u64; QUANTILES]>>,
    all: Option<[u64; QUANTILES]>,
}

impl Latencies {
    pub(crate) const COLUMNS: Columns = Columns::HALTED.union(Columns::WAKE_LATENCY_NS);

    /// Reads those of a recording, once.
    pub(crate) fn of(reader: &Reader) -> Result<Latencies, ReadError> {
        let (mut chunk, mut all) = (Chunk::default(), Sample::new(KEPT));
        let mut idlers: Vec<Sample> = reader.contents().idlers.iter().map(|_| Sample::new(KEPT)).collect();
        for row_group in 0..reader.row_groups() {
            reader.read(row_group, Columns::IDLER | Latencies::COLUMNS, &mut chunk)?;
            for row in 0..chunk.rows {
                if let Some(latency_ns) = recorded(&chunk, row) {
                    idlers[chunk.idler[row] as usize].add(latency_ns);
                    all.add(latency_ns);
                }
            }
        }
        let of_idler =
            |sample: Sample| if sample.seen() < FEWEST { None } else { quantiles(&sample.sorted()) };
        Ok(Latencies { idlers: idlers.into_iter().map(of_idler).collect(), all: quantiles(&all.sorted()) })
    }

    /// Whether any was recorded.
    pub(crate) fn any(&self) -> bool {
        self.all.is_some()
    }

    /// That of an episode that was polled through, by its row.
    pub(crate) fn drawn(&self, idler: usize, row: u64) -> Option<u64> {
        // Multiples of the golden ratio are spread evenly, those of every second or third row too.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let quantiles = self.idlers.get(idler).and_then(Option::as_ref).or(self.all.as_ref())?;
        let turn = row.wrapping_mul(GOLDEN) >> (u64::BITS - QUANTILES.ilog2());
        quantiles.get(usize::try_from(turn).unwrap_or(0)).copied()
    }
}

/// The latency of a row in which the idler halted.
pub(crate) fn recorded(chunk: &Chunk, row: usize) -> Option<u64> {
    let polled_through = chunk.halted.get(row).copied().flatten() == Some(false);
    chunk.wake_latency_ns.get(row).copied().flatten().filter(|_| !polled_through)
}

/// The middles of equal parts of the distribution of values in ascending order; `None` of no values.
pub(crate) fn quantiles(sorted: &[u64]) -> Option<[u64; QUANTILES]> {
    let at = |part: usize| sorted[(2 * part + 1) * sorted.len() / (2 * QUANTILES)];
    (!sorted.is_empty()).then(|| std::array::from_fn(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{RecordingSource, Source};
    use dwell_policy::Layer;
    use dwell_recording::{Episode, IdleIncludes, Metadata, Packing, Writer};
    use std::sync::Arc;

    /// Idler, idle time, whether it halted, and the latency \[ns\].
    type Row = (&'static str, u64, Option<bool>, Option<u64>);

    fn recording(includes: IdleIncludes, rows: &[Row]) -> Arc<Reader> {
        let metadata = Metadata { idle_includes: includes, ..Metadata::new(Layer::Guest) };
        let packing = Packing { rows_per_group: 7, zstd_level: 1 };
        let mut writer = Writer::new(Vec::new(), metadata, packing).unwrap();
        for (row, &(idler, idle_ns, halted, wake_latency_ns)) in (0..).zip(rows) {
            let episode = Episode::new(idler, row * 1_000_000, idle_ns);
            writer.push(&Episode { halted, wake_latency_ns, ..episode }).unwrap();
        }
        Arc::new(Reader::from_bytes("memory", writer.close().unwrap().1).unwrap())
    }

    /// Lengths and latencies of each idler's episodes.
    fn seen(source: &RecordingSource) -> Vec<(Vec<u64>, Option<Vec<u64>>)> {
        let mut all = vec![(vec![], None); source.idlers()];
        source
            .visit(0..u64::MAX, &mut |batch| {
                for run in batch.runs() {
                    let (idle, latency) = &mut all[run.idler];
                    idle.extend(&run.idle_ns);
                    if let Some(of_run) = run.latency_ns() {
                        latency.get_or_insert_with(Vec::new).extend(of_run);
                    }
                }
            })
            .unwrap();
        all
    }

    #[test]
    fn what_was_recorded_comes_first_and_the_idlers_halts_for_the_rest() {
        // Halts of a: 1,000 to 32,000 ns; b polled through all its episodes but one.
        let halts = (1..=32).map(|n| ("a", 50_000, Some(true), Some(n * 1_000)));
        let polls = (0..640).map(|n| (if n % 2 == 0 { "a" } else { "b" }, 9_000, Some(false), Some(300)));
        let rows: Vec<Row> = halts.chain(polls).chain([("b", 70_000, Some(true), Some(77))]).collect();
        let reader = recording(IdleIncludes::Event, &rows);
        let source = RecordingSource::new(Arc::clone(&reader), false);
        let [(idle, latency), (_, of_b)] = seen(&source).try_into().unwrap();
        assert_eq!(idle, rows.iter().filter(|row| row.0 == "a").map(|row| row.1).collect::<Vec<_>>());
        let (latency, of_b) = (latency.unwrap(), of_b.unwrap());
        assert_eq!(latency[..32], (1..=32).map(|n| n * 1_000).collect::<Vec<_>>());
        // The time from a poll's event to its end is no latency of a halt.
        assert!(latency[32..].iter().chain(&of_b[..320]).all(|&ns| ns >= 77 && ns != 300));
        // As spread as the halts: each of 32 comes about as often as the others.
        for n in 1..=32 {
            let times = latency[32..].iter().filter(|&&ns| ns == n * 1_000).count();
            assert!((8..=12).contains(&times), "{n} us: {times} of 320");
        }
        // One halt of b is too few to speak for it, and counts where it was.
        assert!(of_b[..320].contains(&32_000));
        assert_eq!(of_b[320], 77);
        // The same, read in parts.
        let mut parts: Vec<u64> = vec![];
        let cuts = [0, 5, 40, 41, 700];
        let mut see = |_: usize, batch: &crate::Batch| {
            batch.runs().filter(|run| run.idler == 0).for_each(|run| parts.extend(run.latency_ns().unwrap()));
        };
        source.visit_parts(&cuts, &mut see).unwrap();
        assert_eq!(parts, latency);
        // A value that is given is that of all.
        let given = seen(&RecordingSource::new(reader, false).with_latency(Some(Nanos(5)), Some(Nanos(6))));
        assert!(given.iter().all(|(_, latency)| latency.as_ref().unwrap().iter().all(|&ns| ns == 5)));
    }

    #[test]
    fn without_recorded_latencies_it_is_the_one_measured_elsewhere_or_none() {
        let rows: [Row; 2] = [("a", 50_000, Some(true), None), ("a", 9_000, Some(false), Some(300))];
        let reader = recording(IdleIncludes::Event, &rows);
        let source = || RecordingSource::new(Arc::clone(&reader), false);
        assert_eq!(seen(&source()), [(vec![50_000, 9_000], None)]);
        assert_eq!(source().upper_latency().unwrap(), UPPER);
        assert_eq!(seen(&source().with_latency(None, None)), [(vec![50_000, 9_000], None)]);
        let measured = source().with_latency(None, Some(Nanos(7)));
        assert_eq!(seen(&measured), [(vec![50_000, 9_000], Some(vec![7, 7]))]);
    }

    #[test]
    fn a_latency_that_is_in_the_length_is_not_counted_twice() {
        let rows: [Row; 4] = [
            ("a", 50_000, Some(true), None),
            ("a", 9_000, Some(false), None),
            ("a", 3_000, None, None),
            ("a", 60_000, Some(true), Some(20_000)),
        ];
        let reader = recording(IdleIncludes::Wake, &rows);
        let late = RecordingSource::new(Arc::clone(&reader), false).with_latency(Some(Nanos(5_000)), None);
        let [(idle, latency)] = seen(&late).try_into().unwrap();
        // Each that may have halted is 5 us shorter, or nothing; with the latency it is as long as recorded.
        assert_eq!(idle, [45_000, 9_000, 0, 55_000]);
        assert_eq!(latency.unwrap(), [5_000, 5_000, 3_000, 5_000]);
        // What may have halted was 3 us or longer, so that the latency can have been no longer.
        assert_eq!(late.upper_latency().unwrap(), Nanos(3_000));
        let [(idle, latency)] = seen(&RecordingSource::new(reader, false)).try_into().unwrap();
        assert_eq!(
            (idle, latency.unwrap()),
            (vec![30_000, 9_000, 0, 40_000], vec![20_000, 20_000, 3_000, 20_000])
        );
    }
}
