//! The episodes of a run, cut into strips for the kernels.
//!
//! A strip holds episodes of some length, so that a kernel need not ask; those of no length stand between strips. They
//! change no window: each is a poll, and one that succeeds, unless the window is zero.

use super::lane::LONGEST;

/// Episodes of a strip at most: 16 KiB, half a first-level cache.
pub(super) const STRIP: usize = 4_096;

/// Episodes of a block: what is skipped at once where all windows cover its longest episode.
pub(super) const BLOCK: usize = 32;

/// Consecutive episodes of one idler, ready for the kernels.
#[derive(Default)]
pub(super) struct Strips {
    pub(super) idler: usize,
    /// Lengths, those above [`LONGEST`] as this \[ns\]; none is zero.
    lengths: Vec<i32>,
    /// The longest of each block; blocks begin anew with each strip.
    block_max: Vec<i32>,
    /// The sum of each block's lengths, modulo 2^32.
    block_sum: Vec<u32>,
    cuts: Vec<Cut>,
}

#[derive(Clone, Copy)]
struct Cut {
    /// Episodes without length before the strip.
    instant: u64,
    from: usize,
    to: usize,
    block: usize,
}

/// Some of the episodes of [`Strips`].
#[derive(Clone, Copy)]
pub(super) struct Strip<'a> {
    /// Episodes without length that came before.
    pub(super) instant: u64,
    pub(super) lengths: &'a [i32],
    pub(super) block_max: &'a [i32],
    pub(super) block_sum: &'a [u32],
}

impl Strips {
    /// Replaces what was there.
    pub(super) fn fill(&mut self, idler: usize, idle_ns: &[u64]) {
        self.idler = idler;
        self.lengths.clear();
        self.block_max.clear();
        self.block_sum.clear();
        self.cuts.clear();
        let (mut from, mut instant) = (0, 0);
        for &idle in idle_ns {
            if idle == 0 {
                if self.lengths.len() > from {
                    self.cut(instant, from);
                    (from, instant) = (self.lengths.len(), 0);
                }
                instant += 1;
                continue;
            }
            self.lengths.push(i32::try_from(idle).unwrap_or(LONGEST));
            if self.lengths.len() == from + STRIP {
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
        self.cuts.push(Cut { instant, from, to, block });
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Strip<'_>> {
        self.cuts.iter().map(|cut| {
            let blocks = cut.block..cut.block + (cut.to - cut.from).div_ceil(BLOCK);
            Strip {
                instant: cut.instant,
                lengths: &self.lengths[cut.from..cut.to],
                block_max: &self.block_max[blocks.clone()],
                block_sum: &self.block_sum[blocks],
            }
        })
    }
}

impl<'a> Strip<'a> {
    /// The strip in parts of `length`, a multiple of [`BLOCK`].
    pub(super) fn parts(self, length: usize) -> impl Iterator<Item = Strip<'a>> {
        debug_assert!(length.is_multiple_of(BLOCK));
        let blocks = length / BLOCK;
        let sums = self.block_sum.chunks(blocks);
        self.lengths
            .chunks(length)
            .zip(self.block_max.chunks(blocks))
            .zip(sums)
            .map(|((lengths, block_max), block_sum)| Strip { instant: 0, lengths, block_max, block_sum })
    }
}
