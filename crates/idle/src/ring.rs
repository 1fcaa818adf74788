//! From the thread that waits to the one that writes: a ring of rows without locks.
//!
//! One thread pushes, one takes out. Neither waits for the other: if the ring is full the row is dropped and counted.
//!
//! The rows are words of atomics, so that no `unsafe` is needed: a row is read only after the counter that releases it.

use crate::Nanos;
use crate::row::{Record, Row};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::vec::Vec;

const WORDS: usize = 6;
const HALTED: u64 = 1;
const ALONE: u64 = 2;

/// What both ends share. The counters are on lines of their own, so that the two threads do not invalidate
/// each other's.
#[derive(Debug)]
struct Shared {
    rows: Vec<[AtomicU64; WORDS]>,
    /// Rows pushed.
    pushed: Line,
    /// Rows taken.
    taken: Line,
    /// Rows dropped because the ring was full.
    lost: Line,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// The end of the thread that waits.
#[derive(Debug)]
pub struct Sink {
    shared: Arc<Shared>,
    pushed: u64,
    /// What `taken` was when last looked at.
    taken: u64,
}

/// The other end.
#[derive(Debug)]
pub struct Tap {
    shared: Arc<Shared>,
    taken: u64,
}

/// A ring for at least so many rows, 48 bytes each.
///
/// # Panics
/// Where memory cannot have so many.
pub fn ring(rows: usize) -> (Sink, Tap) {
    let rows = rows.checked_next_power_of_two().expect("more rows than memory has places for");
    let shared = Arc::new(Shared {
        rows: (0..rows).map(|_| Default::default()).collect(),
        pushed: Line::default(),
        taken: Line::default(),
        lost: Line::default(),
    });
    (Sink { shared: Arc::clone(&shared), pushed: 0, taken: 0 }, Tap { shared, taken: 0 })
}

impl Shared {
    fn place(&self, number: u64) -> &[AtomicU64; WORDS] {
        // A power of two; the remainder is below it.
        #[allow(clippy::cast_possible_truncation)]
        let place = number as usize & (self.rows.len() - 1);
        &self.rows[place]
    }
}

impl Record for Sink {
    #[inline]
    fn row(&mut self, row: &Row) {
        let capacity = self.shared.rows.len() as u64;
        if self.pushed - self.taken == capacity {
            self.taken = self.shared.taken.0.load(Ordering::Acquire);
            if self.pushed - self.taken == capacity {
                self.shared.lost.0.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        let flags = if row.halted { HALTED } else { 0 } | if row.alone.is_some() { ALONE } else { 0 };
        let alone = row.alone.unwrap_or(Nanos::ZERO);
        let words = [row.start.get(), row.idle.get(), row.window.get(), alone.get(), row.ready, flags];
        for (slot, word) in self.shared.place(self.pushed).iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.pushed += 1;
        self.shared.pushed.0.store(self.pushed, Ordering::Release);
    }
}

impl Tap {
    /// Takes the next row out, if there is one.
    pub fn take(&mut self) -> Option<Row> {
        if self.taken == self.shared.pushed.0.load(Ordering::Acquire) {
            return None;
        }
        let word = |at: usize| self.shared.place(self.taken)[at].load(Ordering::Relaxed);
        let flags = word(5);
        let row = Row {
            start: Nanos(word(0)),
            idle: Nanos(word(1)),
            window: Nanos(word(2)),
            halted: flags & HALTED != 0,
            alone: (flags & ALONE != 0).then(|| Nanos(word(3))),
            ready: word(4),
        };
        self.taken += 1;
        self.shared.taken.0.store(self.taken, Ordering::Release);
        Some(row)
    }

    /// How many rows can be taken out now.
    pub fn rows(&self) -> u64 {
        self.shared.pushed.0.load(Ordering::Acquire) - self.taken
    }

    /// Whether nothing will come any more: the other end was dropped, and every row was taken out.
    pub fn is_over(&mut self) -> bool {
        // The order matters: rows that were pushed before the drop are visible once it is.
        Arc::get_mut(&mut self.shared).is_some() && self.rows() == 0
    }

    /// How many rows were dropped so far because the ring was full.
    pub fn lost(&self) -> u64 {
        self.shared.lost.0.load(Ordering::Relaxed)
    }
}

// What a thread that waits carries with it has to be able to move there.
const _: fn() = || {
    fn sent<T: Send>() {}
    sent::<Sink>();
    sent::<Tap>();
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn row(n: u64) -> Row {
        Row {
            start: Nanos(n),
            idle: Nanos(!n),
            window: Nanos(n << 32),
            halted: n.is_multiple_of(3),
            alone: n.is_multiple_of(5).then_some(Nanos(n)),
            ready: n.rotate_left(7),
        }
    }

    proptest! {
        #[test]
        fn ring_is_a_queue_that_drops_when_full(rows in 1usize..20, pushes in prop::collection::vec(any::<bool>(), 0..300)) {
            let (mut sink, mut tap) = ring(rows);
            let mut queue = VecDeque::new();
            let (mut n, mut lost) = (0, 0);
            for push in pushes {
                if push {
                    sink.row(&row(n));
                    if queue.len() < rows.next_power_of_two() { queue.push_back(row(n)) } else { lost += 1 }
                    n += 1;
                } else {
                    prop_assert_eq!(tap.take(), queue.pop_front());
                }
                prop_assert_eq!((tap.rows(), tap.lost()), (queue.len() as u64, lost));
            }
        }
    }

    /// Without checks of overflow it had no rows at all, and each was lost.
    #[test]
    #[should_panic(expected = "more rows than memory has places for")]
    fn more_rows_than_can_be_counted_are_refused() {
        ring(usize::MAX);
    }

    #[test]
    fn two_threads_lose_nothing_that_is_not_counted() {
        let (mut sink, mut tap) = ring(64);
        let rows = 200_000u64;
        let pusher = std::thread::spawn(move || (0..rows).for_each(|n| sink.row(&row(n))));
        let (mut got, mut last) = (0, None);
        loop {
            let over = pusher.is_finished();
            while let Some(taken) = tap.take() {
                assert_eq!(taken, row(taken.start.get()));
                assert!(last < Some(taken.start));
                last = Some(taken.start);
                got += 1;
            }
            if over {
                break;
            }
        }
        assert_eq!(got + tap.lost(), rows);
    }
}
