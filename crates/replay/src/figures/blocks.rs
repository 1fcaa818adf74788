//! Two recordings side by side, with intervals: each is cut into stretches of time, and the stretches are
//! drawn again and again with replacement.

use super::timeline::Cut;
use dwell_recording::accounting::Outcome;
use dwell_recording::{Chunk, Reader};
use dwell_stats::{BLOCKS, Bootstrap, Draw, Interval};
use serde::Serialize;

/// A stretch of a recording, of as many as `dwell tune` cuts its half into: the sums over the episodes that begin in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Block {
    /// How long it is \[ns\].
    pub span_ns: u64,
    pub episodes: u64,
    /// Their lengths \[ns\].
    pub idle_ns: u128,
    /// Episodes of which it is known whether the idler halted.
    pub known: u64,
    /// Of those, the ones in which it did.
    pub halts: u64,
    /// Episodes of which it is known for how long the idler polled.
    pub polls_known: u64,
    /// Time polled in those \[ns\].
    pub polled_ns: u128,
    /// Episodes whose wakeup latency is known.
    pub latencies: u64,
    /// Sum of these latencies \[ns\].
    pub latency_ns: u128,
}

pub(super) struct BlocksMaker {
    cut: Cut,
    pub(super) blocks: Vec<Block>,
}

impl BlocksMaker {
    /// The time recorded is cut, also where nothing idled at its begin or end.
    pub(super) fn new(reader: &Reader) -> BlocksMaker {
        let start_ns = reader.time_recorded().map(|time| time.start_ns).or(reader.contents().first_start_ns);
        let cut = Cut::new(start_ns.unwrap_or(0), reader.span_ns(), BLOCKS as u64);
        BlocksMaker { blocks: vec![Block { span_ns: cut.slice_ns, ..Block::default() }; BLOCKS], cut }
    }

    pub(super) fn take(&mut self, chunk: &Chunk, row: usize) {
        let block = &mut self.blocks[self.cut.slice(chunk.start_ns[row])];
        block.episodes += 1;
        block.idle_ns += u128::from(chunk.idle_ns[row]);
        let outcome = Outcome::of_row(chunk, row);
        if let Some(halted) = outcome.halted {
            block.known += 1;
            block.halts += u64::from(halted);
        }
        if let Some(polled_ns) = outcome.polled_ns {
            block.polls_known += 1;
            block.polled_ns += u128::from(polled_ns);
        }
        if let Some(latency_ns) = chunk.wake_latency_ns[row] {
            block.latencies += 1;
            block.latency_ns += u128::from(latency_ns);
        }
    }
}

/// A figure before and after.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// What it is, with its unit in the name.
    pub figure: &'static str,
    /// Before; `None` where it was not recorded.
    pub before: Option<f64>,
    pub after: Option<f64>,
    /// After by before, with its 95 % interval.
    pub ratio: Option<Interval>,
}

/// A sum over another.
struct Figure {
    name: &'static str,
    over: fn(&Block) -> (f64, f64),
}

const FIGURES: [Figure; 5] = [
    Figure { name: "episodes_per_s", over: |b| (b.episodes as f64, b.span_ns as f64 / 1e9) },
    Figure { name: "mean_idle_ns", over: |b| (b.idle_ns as f64, b.episodes as f64) },
    Figure { name: "halts_per_s", over: |b| (b.halts as f64, when(b, b.known, b.span_ns as f64 / 1e9)) },
    Figure {
        name: "polling_ns_per_s",
        over: |b| (b.polled_ns as f64, when(b, b.polls_known, b.span_ns as f64 / 1e9)),
    },
    Figure { name: "mean_wake_latency_ns", over: |b| (b.latency_ns as f64, b.latencies as f64) },
];

/// A stretch of which a figure is not known adds nothing to it. Where nothing idled it is known to be 0.
fn when(block: &Block, known: u64, value: f64) -> f64 {
    if known > 0 || block.episodes == 0 { value } else { 0.0 }
}

/// Every figure of two recordings.
pub fn compare(before: &[Block], after: &[Block]) -> Vec<Compared> {
    FIGURES.iter().map(|figure| compared(figure, before, after)).collect()
}

fn compared(figure: &Figure, before: &[Block], after: &[Block]) -> Compared {
    let parts = |blocks: &[Block]| {
        // Of a recording that has it of no episode, it is not known.
        let is_known = blocks.iter().any(|block| block.episodes > 0 && (figure.over)(block).1 > 0.0);
        blocks
            .iter()
            .map(|block| if is_known { (figure.over)(block) } else { (0.0, 0.0) })
            .collect::<Vec<_>>()
    };
    let (a, b) = (parts(before), parts(after));
    let quotient = |parts: &mut dyn Iterator<Item = (f64, f64)>| {
        let (sum, over) = parts.fold((0.0, 0.0), |x, y| (x.0 + y.0, x.1 + y.1));
        (over > 0.0).then(|| sum / over)
    };
    let drawn = |parts: &[(f64, f64)], draw: &Draw| quotient(&mut draw.picks.iter().map(|&pick| parts[pick]));
    let ratio = Bootstrap::RECORDING.two_samples([a.len(), b.len()], |of_a, of_b| {
        let (before, after) = (drawn(&a, of_a), drawn(&b, of_b));
        Some(after? / before.filter(|&value| value > 0.0)?)
    });
    // Each is at least 0.
    let ratio = ratio.map(|ratio| Interval { low: ratio.low.max(0.0), ..ratio });
    let all = |parts: &[(f64, f64)]| quotient(&mut parts.iter().copied());
    Compared { figure: figure.name, before: all(&a), after: all(&b), ratio }
}
