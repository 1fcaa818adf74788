//! The episodes of a run, cut into segments for the kernels.
//!
//! A segment holds episodes that have a length, so that a kernel need not test for zero; those of no length are between
//! segments. They change no window: each is a poll, and one that succeeds, unless the window is zero.

use super::lane::{Kind, LONGEST};
use crate::idle_loop::IdleLoop;
use crate::source::Run;

/// Episodes of a segment at most: 16 KiB, half a first-level cache.
pub(super) const SEGMENT: usize = 4_096;

/// Episodes of a block: what is skipped at once where all windows cover its longest episode.
pub(super) const BLOCK: usize = 32;

/// Consecutive episodes of one idler, ready for the kernels.
#[derive(Default)]
pub(super) struct Segments {
    pub(super) idler: usize,
    /// Lengths, those above [`LONGEST`] as this \[ns\]; none is zero.
    lengths: Vec<i32>,
    /// The longest of each block; blocks begin anew with each segment.
    block_max: Vec<i32>,
    /// The sum of each block's lengths, modulo 2^32.
    block_sum: Vec<u32>,
    /// For each length what the rule learns from where it halts \[ns\], the latency included; empty if none is known.
    learned: Vec<i32>,
    /// For each length the time alone \[ns\], or [`TO_THE_END`]; empty if no episode of the run was cut short.
    alone: Vec<i32>,
    idle_loop: IdleLoop,
    cuts: Vec<Cut>,
}

/// In place of a time alone: no other task wanted the core before the end of the episode.
pub(super) const TO_THE_END: i32 = -1;

#[derive(Clone, Copy)]
struct Cut {
    /// Episodes without length before the segment.
    instant: u64,
    from: usize,
    to: usize,
    block: usize,
    /// Whether another task wanted the core in any of the episodes.
    contended: bool,
}

/// Some of the episodes of [`Segments`].
#[derive(Clone, Copy)]
pub(super) struct Segment<'a> {
    /// Episodes without length that came before.
    pub(super) instant: u64,
    pub(super) lengths: &'a [i32],
    /// For each length what a rule learns from that halts in it; empty if that is the length.
    pub(super) learned: &'a [i32],
    pub(super) block_max: &'a [i32],
    pub(super) block_sum: &'a [u32],
    /// For each length the time after which another task wanted the core \[ns\], or [`TO_THE_END`]; empty if
    /// none did in any episode of the segment.
    pub(super) alone: &'a [i32],
    pub(super) idle_loop: IdleLoop,
}

impl Segments {
    /// Replaces what was there.
    pub(super) fn fill(&mut self, run: &Run) {
        self.idler = run.idler;
        self.idle_loop = run.idle_loop();
        self.alone.clear();
        self.learned.clear();
        self.lengths.clear();
        self.block_max.clear();
        self.block_sum.clear();
        self.cuts.clear();
        let (mut from, mut instant) = (0, 0);
        let (alone_ns, latency_ns) = (run.alone_ns(), run.latency_ns());
        for (episode, &idle) in run.idle_ns.iter().enumerate() {
            if idle == 0 {
                if self.lengths.len() > from {
                    self.cut(instant, from);
                    (from, instant) = (self.lengths.len(), 0);
                }
                instant += 1;
                continue;
            }
            self.lengths.push(i32::try_from(idle).unwrap_or(LONGEST));
            if let Some(latency_ns) = latency_ns {
                let learned = idle.saturating_add(latency_ns[episode]);
                self.learned.push(i32::try_from(learned).unwrap_or(LONGEST));
            }
            if let Some(alone_ns) = alone_ns {
                let alone = alone_ns[episode];
                // A window is shorter than the longest length: a time alone above that cuts no poll short.
                let short = if alone < idle { i32::try_from(alone).unwrap_or(LONGEST) } else { TO_THE_END };
                self.alone.push(short);
            }
            if self.lengths.len() == from + SEGMENT {
                self.cut(instant, from);
                (from, instant) = (self.lengths.len(), 0);
            }
        }
        if instant > 0 || self.lengths.len() > from {
            self.cut(instant, from);
        }
    }

    fn cut(&mut self, instant: u64, from: usize) {
        let (to, block) = (self.lengths.len(), self.block_max.len());
        for lengths in self.lengths[from..to].chunks(BLOCK) {
            self.block_max.push(lengths.iter().copied().max().unwrap_or(0));
            self.block_sum
                .push(lengths.iter().fold(0, |sum: u32, &length| sum.wrapping_add(length.cast_unsigned())));
        }
        let contended = self.alone.get(from..to).is_some_and(|alone| alone.iter().any(|&a| a != TO_THE_END));
        self.cuts.push(Cut { instant, from, to, block, contended });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Segment<'_>> {
        self.cuts.iter().map(|cut| {
            let blocks = cut.block..cut.block + (cut.to - cut.from).div_ceil(BLOCK);
            Segment {
                instant: cut.instant,
                lengths: &self.lengths[cut.from..cut.to],
                learned: self.learned.get(cut.from..cut.to).unwrap_or(&[]),
                block_max: &self.block_max[blocks.clone()],
                block_sum: &self.block_sum[blocks],
                alone: if cut.contended { &self.alone[cut.from..cut.to] } else { &[] },
                idle_loop: self.idle_loop,
            }
        })
    }
}

/// What a kernel looks at beside the lengths: the number of those that are compiled for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Nothing.
    Plain,
    /// What a rule learns from where it halts.
    Late,
    /// That, which may be the lengths, and where polls end other than with their windows: for the host where another task
    /// cut them short, for a guest at a look at the clock, or where it takes time to enter a halt.
    /// A guest cannot see the other tasks of its host's core.
    Ended,
}

impl<'a> Segment<'a> {
    pub(super) fn way(&self, kind: Kind) -> Way {
        let is_ended = match kind {
            Kind::Host => !self.alone.is_empty(),
            _ => self.idle_loop != IdleLoop::UNKNOWN,
        };
        match () {
            () if is_ended => Way::Ended,
            () if !self.learned.is_empty() => Way::Late,
            () => Way::Plain,
        }
    }

    /// The segment in parts of `length`, a multiple of [`BLOCK`].
    pub(super) fn parts(self, length: usize) -> impl Iterator<Item = Segment<'a>> {
        debug_assert!(length.is_multiple_of(BLOCK));
        let blocks = length / BLOCK;
        let sums = self.block_sum.chunks(blocks);
        let of_part = move |column: &'a [i32], part| column.chunks(length).nth(part).unwrap_or(&[]);
        self.lengths.chunks(length).zip(self.block_max.chunks(blocks)).zip(sums).enumerate().map(
            move |(part, ((lengths, block_max), block_sum))| Segment {
                instant: 0,
                lengths,
                learned: of_part(self.learned, part),
                block_max,
                block_sum,
                alone: of_part(self.alone, part),
                idle_loop: self.idle_loop,
            },
        )
    }
}
