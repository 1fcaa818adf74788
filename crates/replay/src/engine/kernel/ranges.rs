//! Ranges of small episodes and of others in a segment.

use super::super::lanes::Lanes;
use super::super::segment::{Segment, Way};

/// Runs of small episodes and of others in one segment, for settings whose maxima lie in one range.
///
/// Small episodes shrink no window, and big ones grow none and outlast all, with whatever latency they have.
#[derive(Default)]
pub(in super::super) struct Ranges {
    /// Ends of runs, in turn of small episodes (the first may be empty) and of others.
    pub(in super::super) ends: Vec<u32>,
    /// Episodes that are neither small nor big.
    pub(in super::super) between: u32,
}

/// The longest small episode, and the longest that is not big, for maxima of `lowest` to `highest`.
///
/// Those between are, for the host, as long as some maximum, and for the guest up to twice as long: a big one outlasts
/// any window by more than the maximum.
pub(in super::super) const fn limits(lowest: i32, highest: i32, guest: bool) -> (i32, i32) {
    if guest { (lowest, 2 * highest) } else { (lowest - 1, highest) }
}

/// Finds the runs of small episodes and of others. With [`Way::Late`] a halted episode is `learned` for one that is longer
/// than its length; a small one has to be so with the latency too, and a big one outlasts all windows without it.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(in super::super) unsafe fn find_ranges<L: Lanes, const WAY: u8>(
    segment: Segment<'_>,
    (lowest, highest): (i32, i32),
    guest: bool,
    ranges: &mut Ranges,
) {
    let (small, between) = limits(lowest, highest, guest);
    let lengths = segment.lengths;
    let late = WAY == Way::Late as u8;
    let learned = if late { segment.learned } else { lengths };
    assert!(learned.len() == lengths.len());
    ranges.ends.clear();
    let (mut before, mut not_small, mut big) = (0u64, 0u32, 0u32);
    for (word, (lengths, learned)) in (0..).zip(lengths.chunks(64).zip(learned.chunks(64))) {
        let mut bits = 0u64;
        if lengths.len() == 64 {
            let vectors = lengths.chunks_exact(L::WIDTH).zip(learned.chunks_exact(L::WIDTH));
            for (vector, (lengths, learned)) in vectors.enumerate() {
                // SAFETY: the caller vouches for the CPU; each load reads `WIDTH` numbers of a slice of so many.
                let (above_small, above_between) = unsafe {
                    let y = L::load(learned.as_ptr());
                    let mut above = y.gt(L::splat(between));
                    if late {
                        above = L::both(above, L::load(lengths.as_ptr()).gt(L::splat(highest)));
                    }
                    (y.gt(L::splat(small)), above)
                };
                bits |= L::bits(above_small) << (vector * L::WIDTH);
                big += L::bits(above_between).count_ones();
            }
            not_small += bits.count_ones();
        } else {
            for (i, (&length, &learned)) in lengths.iter().zip(learned).enumerate() {
                bits |= u64::from(learned > small) << i;
                big += u32::from(learned > between && length > highest);
            }
            not_small += bits.count_ones();
            // What is beyond the end is as the last one: no turn.
            if bits >> (lengths.len() - 1) & 1 == 1 {
                bits |= u64::MAX << (lengths.len() - 1);
            }
        }
        let mut turning = bits ^ (bits << 1 | before);
        while turning != 0 {
            ranges.ends.push(64 * word + turning.trailing_zeros());
            turning &= turning - 1;
        }
        before = bits >> 63;
    }
    // A segment is far shorter than 2^32.
    ranges.ends.push(u32::try_from(lengths.len()).unwrap_or(u32::MAX));
    ranges.between = not_small - big;
}
