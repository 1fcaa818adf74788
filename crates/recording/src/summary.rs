//! What a recording holds, in numbers: one pass, one row group in memory at a time.

use crate::accounting::{lost_in_poll_ns, poll_went_on};
use crate::chunk::Chunk;
use crate::columns::Columns;
use crate::contents::Contents;
use crate::metadata::{Metadata, TimeRecorded};
use crate::overlap::Ends;
use crate::reader::{ReadError, Reader};
use crate::segment::CauseShares;
use crate::sparse::Quantiles;
use serde::{Deserialize, Serialize};

/// The quantiles that are given.
pub const QUANTILES: [f64; 9] = [0.01, 0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999];

/// What a recording holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// What it says of itself: settings, losses, source.
    pub metadata: Metadata,
    /// The time recorded, else from the first start to the last end \[ns\].
    pub span_ns: u64,
    /// All episodes.
    pub all: Stats,
    /// The episodes of each idler, in the recording's order of idlers.
    pub idlers: Vec<IdlerSummary>,
    /// Episodes that start before the one before them of the same idler. A recording of dwell's has none.
    pub out_of_order: u64,
    /// Episodes that start before the one before them of the same idler has ended, by more than the times
    /// resolve. An idler idles once at a time, so a recording that has any was damaged, or is of something
    /// else than it claims.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub overlapping: u64,
    /// Polls of a guest that went on after the event at which their episode ends.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub polls_that_went_on: u64,
    /// Polls of a guest during which others had its CPU.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub preempted_polls: u64,
    /// For how long they had it \[ns\].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost_in_polls_ns: u64,
    /// Where what the file says of its contents is not what its rows are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradictions: Vec<String>,
    /// What woke the tasks that ran between the episodes, where the recording has that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub causes: Option<CauseShares>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The episodes of one idler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdlerSummary {
    /// Its name.
    pub name: String,
    /// The time recorded, else from its first start to its last end \[ns\].
    pub span_ns: u64,
    /// Its episodes.
    #[serde(flatten)]
    pub stats: Stats,
}

impl IdlerSummary {
    /// The share of its span that it idled; `None` if there is no span, or if its episodes overlap and add up to more.
    pub fn idle_share(&self) -> Option<f64> {
        let share = self.stats.total_idle_ns as f64 / self.span_ns as f64;
        (self.span_ns > 0 && self.stats.total_idle_ns <= self.span_ns).then_some(share)
    }
}

/// Statistics over episodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// How many.
    pub episodes: u64,
    /// Sum of `idle_ns` \[ns\], at most `u64::MAX`.
    pub total_idle_ns: u64,
    /// Shortest \[ns\]; 0 if there is none.
    pub min_ns: u64,
    /// Longest \[ns\]; 0 if there is none.
    pub max_ns: u64,
    /// Mean \[ns\]; 0 if there is none.
    pub mean_ns: f64,
    /// [`QUANTILES`] of `idle_ns`, right within 0.1 %.
    pub quantiles: Vec<Quantile>,
    /// Episodes by bit length of `idle_ns`: 0, 1, 2-3, 4-7, … up to 64 bits. KVM's own histograms have the first 32 of
    /// these 65, the last of which takes the rest.
    pub log2_histogram: Vec<u64>,
    /// Episodes that halted.
    pub halted: u64,
    /// Episodes that ended while polling; of the rest it is not known.
    pub polled: u64,
    /// Episodes whose wakeup latency is known.
    pub latencies: u64,
    /// Sum of these latencies \[ns\], at most `u64::MAX`.
    pub total_latency_ns: u64,
}

/// A quantile of `idle_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantile {
    /// From 0 to 1.
    pub quantile: f64,
    /// \[ns\]
    pub idle_ns: u64,
}

impl Summary {
    /// Reads all of a recording.
    ///
    /// # Errors
    /// [`ReadError`] where the file is damaged.
    pub fn of(reader: &Reader) -> Result<Summary, ReadError> {
        let mut all = Counter::default();
        let mut idlers: Vec<Counter> = Vec::new();
        idlers.resize_with(reader.contents().idlers.len(), Counter::default);
        let (mut out_of_order, mut overlapping, mut polls_that_went_on) = (0, 0, 0);
        let (mut ends, tolerance_ns) = (Ends::default(), reader.metadata().overlap_tolerance_ns());
        let (mut preempted_polls, mut lost_in_polls_ns) = (0, 0u64);
        let layer = reader.metadata().layer;
        let mut chunk = Chunk::default();
        for row_group in 0..reader.row_groups() {
            reader.read(row_group, Columns::COURSE, &mut chunk)?;
            for row in 0..chunk.rows {
                let start_ns = chunk.start_ns[row];
                if let Some(lost_ns) = lost_in_poll_ns(&chunk, row, layer) {
                    preempted_polls += 1;
                    lost_in_polls_ns = lost_in_polls_ns.saturating_add(lost_ns);
                }
                let went_on = poll_went_on(layer, chunk.halted[row], chunk.wake_latency_ns[row]);
                polls_that_went_on += u64::from(went_on);
                all.add(&chunk, row);
                let number = chunk.idler[row] as usize;
                if let Some(idler) = idlers.get_mut(number) {
                    out_of_order += u64::from(idler.last_start_ns > start_ns);
                    let overlaps = ends.overlaps(number, start_ns, chunk.idle_ns[row], tolerance_ns);
                    overlapping += u64::from(overlaps);
                    idler.add(&chunk, row);
                }
            }
        }
        let mut contradictions = contradictions(reader, &all, &idlers);
        let causes = reader.cause_shares().unwrap_or_else(|error| {
            contradictions.push(error.to_string());
            None
        });
        let recorded = reader.time_recorded().map(TimeRecorded::ns);
        let names = reader.contents().idlers.iter().map(|idler| idler.name.clone());
        let idlers = names.zip(idlers).map(|(name, idler)| IdlerSummary {
            name,
            span_ns: recorded.unwrap_or_else(|| idler.counted.span_ns()),
            stats: idler.finish(),
        });
        Ok(Summary {
            metadata: reader.metadata().clone(),
            span_ns: recorded.unwrap_or_else(|| all.counted.span_ns()),
            idlers: idlers.collect(),
            all: all.finish(),
            out_of_order,
            overlapping,
            polls_that_went_on,
            preempted_polls,
            lost_in_polls_ns,
            contradictions,
            causes,
        })
    }
}

/// Where the contents that a file claims are not those of its rows.
fn contradictions(reader: &Reader, all: &Counter, idlers: &[Counter]) -> Vec<String> {
    let contents = reader.contents();
    let mut found = vec![];
    let mut compare = |what: &str, claimed: Option<u64>, counted: Option<u64>| {
        if let Some((claimed, counted)) = claimed.zip(counted).filter(|(claimed, counted)| claimed != counted)
        {
            found.push(format!("{what} is {counted}, and the file claims {claimed}"));
        }
    };
    compare("the first start_ns", contents.first_start_ns, all.counted.first_start_ns);
    compare("the last end (start_ns + idle_ns)", contents.last_end_ns, all.counted.last_end_ns);
    for (idler, counter) in contents.idlers.iter().zip(idlers) {
        let what = format!("the number of episodes of `{}`", idler.name);
        compare(&what, Some(idler.episodes), Some(counter.counted.episodes));
    }
    // One more would tell nothing new.
    found.truncate(MOST_CONTRADICTIONS);
    found
}

/// The contradictions that are named.
const MOST_CONTRADICTIONS: usize = 10;

/// Bit lengths of a 64-bit number, 0 to 64.
const BIT_LENGTHS: usize = 65;

/// Statistics in the making.
#[derive(Default)]
struct Counter {
    stats: Stats,
    total_idle_ns: u128,
    /// First start, last end and number of the episodes.
    counted: Contents,
    last_start_ns: u64,
    quantiles: Quantiles,
}

impl Counter {
    /// Takes in a row of a chunk that was read with [`Columns::COURSE`].
    fn add(&mut self, chunk: &Chunk, row: usize) {
        let (start_ns, idle_ns, halted) = (chunk.start_ns[row], chunk.idle_ns[row], chunk.halted[row]);
        let stats = &mut self.stats;
        stats.min_ns = if stats.episodes == 0 { idle_ns } else { stats.min_ns.min(idle_ns) };
        stats.max_ns = stats.max_ns.max(idle_ns);
        stats.episodes += 1;
        stats.halted += u64::from(halted == Some(true));
        stats.polled += u64::from(halted == Some(false));
        if let Some(latency_ns) = chunk.wake_latency_ns[row] {
            stats.latencies += 1;
            stats.total_latency_ns = stats.total_latency_ns.saturating_add(latency_ns);
        }
        self.total_idle_ns += u128::from(idle_ns);
        stats.log2_histogram.resize(BIT_LENGTHS, 0);
        stats.log2_histogram[(u64::BITS - idle_ns.leading_zeros()) as usize] += 1;
        self.counted.count(start_ns, idle_ns);
        self.last_start_ns = start_ns;
        self.quantiles.add(idle_ns);
    }

    fn finish(self) -> Stats {
        let mut stats = self.stats;
        stats.total_idle_ns = u64::try_from(self.total_idle_ns).unwrap_or(u64::MAX);
        if stats.episodes > 0 {
            stats.mean_ns = self.total_idle_ns as f64 / stats.episodes as f64;
        }
        stats.log2_histogram.resize(BIT_LENGTHS, 0);
        if let Some(values) = self.quantiles.at(QUANTILES) {
            let at = |(quantile, value): (f64, u64)| Quantile {
                quantile,
                idle_ns: value.clamp(stats.min_ns, stats.max_ns),
            };
            stats.quantiles = QUANTILES.into_iter().zip(values).map(at).collect();
        }
        stats
    }
}
