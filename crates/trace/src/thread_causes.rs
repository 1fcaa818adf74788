//! What threads run between their waits, and what woke them.
//!
//! A segment of a thread lasts from the end of one wait to the beginning of the next. A wait ends because the thread was woken
//! (`sched:sched_waking`, in the context of the [waker](crate::waking)), or because something was ready when it began: then no
//! wakeup is seen, the wait is over within a few microseconds, and the thread goes on as if it had not waited.
//!
//! Who woke a thread is known where the waker is a recorded thread between two waits of its own; wakers that are not recorded
//! are taken for interrupts, which come at times of their own or a fixed time after a request. A thread that polls in
//! user space does not wait meanwhile: its polls are part of its segments.

use crate::pairing::PairedEpisode;
use crate::waking::Wakeup;
use dwell_recording::{Cause, WakeCause};
use std::collections::VecDeque;

/// A wait without a wakeup that is no longer than this found something ready \[ns\]: the call itself takes about 1 us.
const READY_NS: u64 = 5_000;

/// What ended a wait, and whether the thread slept in it.
pub(crate) fn cause(wakeups: &VecDeque<Wakeup>, wait: &PairedEpisode) -> (Cause, Option<bool>) {
    let woken = wakeups.iter().find(|wakeup| wakeup.at_ns >= wait.start_ns);
    match woken {
        Some(wakeup) => (wakeup.cause, Some(true)),
        None if wait.idle_ns <= READY_NS => (Cause::Preempted, Some(false)),
        // Its wakeup was not seen, as those in interrupts of a CPU whose idle task has no events.
        None if wait.wake == Some(WakeCause::Timer) => {
            (Cause::Timer { woken_ns: wait.start_ns.saturating_add(wait.idle_ns) }, Some(true))
        }
        None => (Cause::Unknown, Some(true)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, Interrupt, SystemCall, Timeout};
    use crate::pairing::{Names, Pairing};
    use crate::thread::ThreadPairing;
    use crate::waking::tests::are_in_order;
    use dwell_recording::Segments;
    use proptest::prelude::*;

    const CALL: SystemCall = SystemCall::EpollWait;

    struct Loops;

    impl Names for Loops {
        fn process(&mut self, _: i32) -> Option<String> {
            None
        }
        fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
            Some(format!("loop{tid}"))
        }
    }

    fn event(time_ns: u64, tid: i32, kind: EventKind) -> Event {
        Event { time_ns, cpu: u32::try_from(tid).unwrap(), pid: 1, tid, kind }
    }

    fn enter(time_ns: u64, tid: i32) -> Event {
        event(time_ns, tid, EventKind::Enter { call: CALL, timeout: Timeout::Unlimited })
    }

    fn leave(time_ns: u64, tid: i32, result: i64) -> Event {
        event(time_ns, tid, EventKind::Leave { call: CALL, result })
    }

    fn waking(time_ns: u64, tid: i32, woken: i32) -> Event {
        event(time_ns, tid, EventKind::Waking { woken, target: 0 })
    }

    fn segments(events: &[Event]) -> Segments {
        let mut pairing = ThreadPairing::new(Some(1), Box::new(Loops)).with_segments();
        let mut found = vec![];
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        pairing.take_segments().unwrap()
    }

    fn causes(events: &[Event]) -> Vec<(u32, u64, u64, Cause, Option<bool>)> {
        let of = |row: &dwell_recording::Segment| (row.task, row.start_ns, row.run_ns, row.cause, row.halted);
        segments(events).rows.iter().map(of).collect()
    }

    /// Threads 5 and 6 are recorded. 7 is a worker that waits in no recorded call, and 9 is of another process.
    #[test]
    fn a_loop_that_wakes_another_is_its_waker() {
        let found = causes(&[
            enter(1_000, 5),
            enter(1_100, 6),
            leave(2_000, 5, 1),
            leave(2_100, 6, 1),
            enter(3_000, 5),
            enter(3_100, 6),
            Event { pid: 3, ..waking(9_000, 9, 5) },
            leave(10_000, 5, 1),
            waking(12_000, 5, 6),
            leave(15_000, 6, 1),
            enter(16_000, 5),
            // By a worker that loop 6 has woken.
            waking(17_000, 6, 7),
            enter(20_000, 6),
            waking(22_000, 7, 5),
            leave(30_000, 5, 1),
            enter(40_000, 5),
            // Ready at once.
            leave(41_000, 5, 1),
            enter(45_000, 5),
            // A time-out, of which no wakeup was seen; and one of which it was.
            leave(99_000, 5, 0),
            enter(100_000, 5),
            event(150_000, 5, EventKind::Interrupt(Interrupt::Timer)),
            event(151_000, 5, EventKind::Waking { woken: 5, target: 0 }),
            leave(155_000, 5, 0),
            enter(160_000, 5),
            leave(180_000, 5, 1),
            // A segment is known when the wait after it is over.
            enter(190_000, 5),
            leave(191_000, 6, 1),
            leave(192_000, 5, 1),
        ]);
        assert_eq!(
            found[2..],
            [
                (0, 10_000, 6_000, Cause::Interrupt { woken_ns: 9_000 }, Some(true)),
                (1, 15_000, 5_000, Cause::Task { waker: 2, offset_ns: 2_000 }, Some(true)),
                (0, 30_000, 10_000, Cause::Task { waker: 3, offset_ns: 7_000 }, Some(true)),
                (0, 41_000, 4_000, Cause::Preempted, Some(false)),
                (0, 99_000, 1_000, Cause::Timer { woken_ns: 99_000 }, Some(true)),
                (0, 155_000, 5_000, Cause::Timer { woken_ns: 151_000 }, Some(true)),
                (0, 180_000, 10_000, Cause::Unknown, Some(true)),
            ]
        );
    }

    /// A thread can be woken while it still runs.
    #[test]
    fn a_wakeup_before_the_wait_does_not_end_it() {
        let found = causes(&[
            enter(1_000, 5),
            leave(10_000, 5, 1),
            enter(1_000, 6),
            leave(11_000, 6, 1),
            waking(12_000, 6, 5),
            enter(20_000, 5),
            leave(60_000, 5, 1),
            enter(61_000, 5),
            leave(62_000, 5, 1),
        ]);
        let last = found.last().unwrap();
        assert_eq!((last.1, last.3), (60_000, Cause::Unknown));
    }

    proptest! {
        /// Whatever comes in whatever order.
        #[test]
        fn any_events_give_segments_in_order(
            steps in prop::collection::vec((0u64..30_000, 1i32..5, 1i32..5, 0u8..8), 0..300),
        ) {
            let mut time_ns = 1_000_000;
            let mut events = vec![];
            for (ns, tid, other, kind) in steps {
                time_ns += ns;
                events.push(match kind {
                    0 | 1 => enter(time_ns, tid),
                    2 | 3 => leave(time_ns, tid, i64::from(other) - 2),
                    4 | 5 => waking(time_ns, tid, other),
                    6 => event(time_ns, tid, EventKind::Interrupt(Interrupt::Timer)),
                    _ => event(time_ns, tid, EventKind::Lost { cpu: None, count: 1 }),
                });
            }
            are_in_order(&segments(&events))?;
        }
    }
}
