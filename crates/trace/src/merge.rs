//! Events of all CPUs in order of time.
//!
//! Each CPU's events come nearly in order (an interrupt may put its event before one whose time was taken
//! earlier); those of different CPUs come in pieces. They are kept back for a bounded time, then sorted and
//! released. An event that comes later than that is not put in at the wrong place: it is refused, and the
//! caller counts it as lost.

use crate::event::{Event, EventKind};
use std::collections::VecDeque;

/// Sorts events by time, within a bounded delay.
#[derive(Debug, Default)]
pub struct Merge {
    /// A queue, since what is released leaves at one end and half of all stays: that is not to be moved each time.
    pending: VecDeque<Event>,
    /// The time of the last of `pending`.
    last_ns: u64,
    /// Whether one came before its turn, as those of several CPUs do.
    unordered: bool,
    released_ns: u64,
}

impl Merge {
    /// Takes an event; returns `false`, and does not keep it, if later ones have been released.
    #[inline]
    #[must_use = "a late event is lost and must be counted"]
    pub fn push(&mut self, event: Event) -> bool {
        let in_time = event.time_ns >= self.released_ns;
        if in_time {
            self.unordered |= event.time_ns < self.last_ns;
            self.last_ns = event.time_ns;
            self.pending.push_back(event);
        }
        in_time
    }

    /// Takes a loss in place of an event that was refused: what is released next need not belong to what was
    /// released before. Its time is that of the last release, the earliest that is still in order.
    pub fn push_loss(&mut self, refused: &Event) {
        let lost = |count| EventKind::Lost { cpu: Some(refused.cpu), count };
        let kind = match refused.kind {
            EventKind::Lost { count, .. } => lost(count),
            gap @ EventKind::Gap { .. } => gap,
            _ => lost(1),
        };
        let loss = Event { time_ns: self.released_ns, cpu: refused.cpu, pid: 0, tid: 0, kind };
        let in_time = self.push(loss);
        debug_assert!(in_time, "no earlier than what was released");
    }

    /// Releases everything up to `until_ns` \[ns, CLOCK_MONOTONIC\], in order of time; of equal times, what
    /// was pushed first comes first.
    pub fn release(&mut self, until_ns: u64, mut each: impl FnMut(&Event)) {
        if self.unordered {
            // The runs of which this consists are found by the standard library's stable sort, which then merges them.
            self.pending.make_contiguous().sort_by_key(|event| event.time_ns);
            self.unordered = false;
            self.last_ns = self.pending.back().map_or(0, |event| event.time_ns);
        }
        let count = self.pending.partition_point(|event| event.time_ns <= until_ns);
        self.pending.range(..count).for_each(&mut each);
        self.pending.drain(..count);
        self.released_ns = self.released_ns.max(until_ns);
    }

    /// How many events are kept back.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SystemCall;
    use proptest::prelude::*;

    fn event(time_ns: u64, cpu: u32, count: u64) -> Event {
        Event { time_ns, cpu, pid: 1, tid: 1, kind: EventKind::Lost { cpu: Some(cpu), count } }
    }

    #[test]
    fn a_late_event_is_refused() {
        let mut merge = Merge::default();
        assert!(merge.push(event(10, 0, 0)));
        merge.release(20, |_| {});
        assert!(!merge.push(event(19, 1, 0)));
        assert!(merge.push(event(20, 1, 0)));
        assert_eq!(merge.pending(), 1);
        // In its place a loss comes before all that is released later.
        merge.push_loss(&event(19, 1, 7));
        let kind = EventKind::Leave { call: SystemCall::Poll, result: 1 };
        merge.push_loss(&Event { kind, ..event(18, 2, 0) });
        let mut released = vec![];
        merge.release(30, |event| released.push((event.time_ns, event.kind)));
        let loss = |cpu, count| (20, EventKind::Lost { cpu: Some(cpu), count });
        assert_eq!(released, [loss(1, 0), loss(1, 7), loss(2, 1)]);
    }

    proptest! {
        /// Against sorting everything at once: the same events in the same order, less those refused.
        #[test]
        fn released_in_order_and_all_of_them(
            steps in prop::collection::vec((0u64..1000, 0u32..4, prop::option::weighted(0.1, 0u64..1000)), 0..200),
        ) {
            let (mut merge, mut kept, mut out) = (Merge::default(), vec![], vec![]);
            for (number, (time, cpu, release)) in (0u64..).zip(steps) {
                let event = event(time, cpu, number);
                if merge.push(event) {
                    kept.push(event);
                }
                if let Some(until) = release {
                    merge.release(until, |event| out.push(*event));
                }
            }
            merge.release(u64::MAX, |event| out.push(*event));
            prop_assert!(out.is_sorted_by_key(|event| event.time_ns));
            kept.sort_by_key(|event| event.time_ns);
            let by_number = |events: &[Event]| {
                let mut events = events.to_vec();
                events.sort_by_key(|event| match event.kind { EventKind::Lost { count, .. } => count, _ => 0 });
                events
            };
            prop_assert_eq!(by_number(&out), by_number(&kept));
        }
    }
}
