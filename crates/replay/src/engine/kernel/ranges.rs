//! Ranges of small episodes and of others in a segment.

use super::super::lanes::Lanes;

/// Runs of small episodes and of others in one segment, for settings whose maxima lie in one range.
///
/// Small episodes shrink no window, and big ones grow none and outlast all.
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

/// Finds the runs of small episodes and of others.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(in super::super) unsafe fn find_ranges<L: Lanes>(
    lengths: &[i32],
    small: i32,
    between: i32,
    ranges: &mut Ranges,
) {
    ranges.ends.clear();
    let (mut before, mut not_small, mut big) = (0u64, 0u32, 0u32);
    for (word, lengths) in (0..).zip(lengths.chunks(64)) {
        let mut bits = 0u64;
        if lengths.len() == 64 {
            for (vector, lengths) in lengths.chunks_exact(L::WIDTH).enumerate() {
                // SAFETY: the caller vouches for the CPU; the load reads `WIDTH` numbers of a slice of so many.
                let (above_small, above_between) = unsafe {
                    let x = L::load(lengths.as_ptr());
                    (x.gt(L::splat(small)), x.gt(L::splat(between)))
                };
                bits |= L::bits(above_small) << (vector * L::WIDTH);
                big += L::bits(above_between).count_ones();
            }
            not_small += bits.count_ones();
        } else {
            for (i, &length) in lengths.iter().enumerate() {
                bits |= u64::from(length > small) << i;
                big += u32::from(length > between);
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
