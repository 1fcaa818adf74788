//! What is done again and again in a guest that drives itself: for each round a length is given, and a length measured.

use super::report;
use crate::vm::Shared;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most rounds of a block.
pub const MOST_ROUNDS: usize = 1 << 14;

/// The rounds of a block. Each is given a length \[TSC cycles\], which the guest overwrites with the one that
/// it measured.
#[repr(C)]
pub struct Rounds {
    warm_up: AtomicU64,
    count: AtomicU64,
    cycles: [AtomicU64; MOST_ROUNDS],
}

// SAFETY: atomics.
unsafe impl Shared for Rounds {}

impl Rounds {
    /// Before it starts: what each round is given \[TSC cycles\], and how many of them, from the first, warm
    /// up. At most [`MOST_ROUNDS`] are taken.
    pub fn lay(&self, warm_up: usize, cycles: impl ExactSizeIterator<Item = u64>) {
        let count = cycles.len().min(MOST_ROUNDS);
        self.warm_up.store(warm_up.min(count) as u64, Ordering::Relaxed);
        self.count.store(count as u64, Ordering::Release);
        for (cell, cycles) in self.cycles.iter().zip(cycles) {
            cell.store(cycles, Ordering::Relaxed);
        }
    }

    /// After it ended: what was measured in each round that was no warm-up \[TSC cycles\].
    pub fn measured(&self) -> impl Iterator<Item = u64> {
        let [warm_up, count] = [&self.warm_up, &self.count].map(|n| n.load(Ordering::Acquire));
        let range = usize::try_from(warm_up).unwrap_or(0)..usize::try_from(count).unwrap_or(0);
        self.cycles[range].iter().map(|cell| cell.load(Ordering::Relaxed))
    }

    /// In the guest: calls `round` with the number of each, from 1. Reports after the warm-up and, for ever,
    /// at the end.
    #[inline]
    pub(super) fn each(&self, mut round: impl FnMut(u64)) -> ! {
        let warm_up = self.warm_up.load(Ordering::Relaxed);
        for number in 1..=self.count.load(Ordering::Acquire) {
            round(number);
            if number == warm_up {
                report();
            }
        }
        loop {
            report();
        }
    }

    /// As [`each`](Rounds::each): `round` is also given its length, and returns what it measured.
    #[inline]
    pub(super) fn measure(&self, mut round: impl FnMut(u64, u64) -> u64) -> ! {
        let mut cells = self.cycles.iter();
        self.each(|number| {
            if let Some(cell) = cells.next() {
                cell.store(round(number, cell.load(Ordering::Relaxed)), Ordering::Relaxed);
            }
        })
    }
}
