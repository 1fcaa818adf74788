//! The inner loops: a segment of episodes through the lanes of a group.
//!
//! With *x* the length of an episode and *q* the window, all kernels count, per lane, *x* > *q* (halts), min(*x*, *q*)
//! (time polled) and *q* = 0 (episodes that began without a poll), in 32 bits; the caller keeps segments so short that
//! the sum cannot leave them. The last of the three is counted where windows change, for the episode that follows:
//! see [`Tallies`].
//!
//! Then the window changes. The host shrinks it if *x* > max, and grows it if *q* < *x* < max. The guest counts only
//! *t* = *x* - *q*, and shrinks if *t* > max, and grows if *q* < *t* ≤ max. With a wakeup latency the window changes,
//! where *x* > *q*, by *y* = *x* + latency in place of *x*.

// `v` numbers vectors in registers and in memory alike.
#![allow(clippy::needless_range_loop)]

mod apart;
mod ranges;
mod settings;
mod together;

pub(super) use apart::apart;
pub(super) use ranges::{Ranges, find_ranges};
pub(super) use together::together;

use super::group::{Column, LaneGroup};
use super::lanes::Lanes;

/// `V` vectors of a column, from lane `at`.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn vectors<L: Lanes, const V: usize>(column: &Column, at: usize) -> [L; V] {
    assert!(column.capacity() >= at + V * L::WIDTH);
    // SAFETY: the caller vouches for the CPU; the column is long enough, as asserted.
    unsafe {
        // No closure: it would not be compiled for the CPU of the function that calls this.
        let mut vectors = [L::splat(0); V];
        for (v, vector) in vectors.iter_mut().enumerate() {
            *vector = L::load(column.as_ptr().add(at + v * L::WIDTH));
        }
        vectors
    }
}

/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn store<L: Lanes, const V: usize>(column: &mut Column, at: usize, vectors: [L; V]) {
    assert!(column.capacity() >= at + V * L::WIDTH);
    let to = column.as_mut_ptr();
    for (v, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the column is long enough, as asserted.
        unsafe { vector.store(to.add(at + v * L::WIDTH)) };
    }
}

/// What `V` vectors of lanes did in a part of a segment.
struct Tallies<L, const V: usize> {
    polled: [L; V],
    halts: [L; V],
    /// Windows above zero after an episode that `common_unpolled` counts, less those that were not before the first, and so
    /// more by one than it should be for those that are not after the last: no episode follows.
    kept: [L; V],
    /// Episodes that end while the CPU enters a halt: neither a poll nor a halt.
    neither: [L; V],
    /// What all lanes did alike \[ns\].
    common_polled: u64,
    common_halts: u64,
    /// Episodes after which a window may be zero.
    common_unpolled: u64,
}

impl<L: Lanes, const V: usize> Tallies<L, V> {
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn new(windows: &[L; V]) -> Self {
        // SAFETY: the caller vouches for the CPU.
        let (zero, one) = unsafe { (L::splat(0), L::splat(1)) };
        let mut kept = [zero; V];
        for v in 0..V {
            kept[v] = zero.uncount(one.gt(windows[v]));
        }
        Tallies {
            polled: [zero; V],
            halts: [zero; V],
            kept,
            neither: [zero; V],
            common_polled: 0,
            common_halts: 0,
            common_unpolled: 0,
        }
    }

    /// Adds all to the counts of a group from lane `at`. The last episode left these `windows`.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn add_to(self, group: &mut LaneGroup, at: usize, windows: &[L; V]) {
        add_up(&mut group.polled_ns[at..], self.polled, |polled| self.common_polled + u64::from(polled));
        add_up(&mut group.halts[at..], self.halts, |halts| self.common_halts + u64::from(halts));
        let mut kept = self.kept;
        for v in 0..V {
            // SAFETY: the caller vouches for the CPU.
            kept[v] = kept[v].count(unsafe { L::splat(1) }.gt(windows[v]));
        }
        let unpolled = |kept: u32| self.common_unpolled.wrapping_add_signed(-i64::from(kept.cast_signed()));
        add_up(&mut group.unpolled[at..], kept, unpolled);
        add_up(&mut group.neither[at..], self.neither, u64::from);
    }
}

/// Adds what `of` makes of `V` vectors, read as unsigned numbers, to what was counted.
#[inline(always)]
fn add_up<L: Lanes, const V: usize>(counts: &mut [u64], vectors: [L; V], of: impl Fn(u32) -> u64) {
    for (counts, vector) in counts.chunks_exact_mut(L::WIDTH).zip(vectors) {
        let mut numbers = [0u32; 16];
        const { assert!(L::WIDTH <= 16) }
        // SAFETY: there is room for sixteen.
        unsafe { vector.store(numbers.as_mut_ptr().cast()) };
        for (count, number) in counts.iter_mut().zip(numbers) {
            *count += of(number);
        }
    }
}
