//! Events in order of time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What happens next. Of events of one time the order is that of the kinds, then of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The segment on this CPU wakes another task or ends.
    Step(u32),
    /// An interrupt or timer makes this segment runnable.
    Arrival(u32),
    /// A task has caused that this segment is woken, and has ended since.
    Wake(u32),
    /// This segment starts when it did in the recording.
    Start(u32),
}

/// A task has at most one event of its own, and a CPU one, beside what was caused and has not come yet: the queue is short
/// however long the recording is.
#[derive(Default)]
pub(super) struct Queue(BinaryHeap<Reverse<(u64, Event)>>);

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, at_ns: u64, event: Event) {
        self.0.push(Reverse((at_ns, event)));
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u64, Event)> {
        self.0.pop().map(|Reverse(event)| event)
    }
}
