//! Threads that wait for file descriptors: the system calls of event loops into episodes.
//!
//! An episode is one call that may wait, from its beginning to its end, of one thread; a call with a timeout of zero is
//! none. Its result decides the wake cause: something ready, or the timeout. Its length includes the wakeup
//! latency, and where something was ready at once it is the length of the call itself, about a microsecond.
//!
//! How many were ready and the timeouts of the calls are summed for each thread in the notes of the recording, since an
//! episode has no column for it. A thread id that shows another process than before is a new thread: the kernel reuses
//! numbers.
//!
//! Of the event loops of a QEMU whose own trace is there too ([`Contexts`]), the episodes are those of its
//! contexts, and the waits are parts of them.
//!
//! A loss ends every wait that is open, of every thread, and such waits are counted: the thread may have left
//! the call and entered another one meanwhile, on the CPU of the loss. The kernel reports a loss when there
//! is room again, so that a thread that was on that CPU for a moment could have left one call and entered
//! another one unseen, between two events of other CPUs. A recorder sees that a buffer was full and sends
//! [`EventKind::Gap`]; no wait that touches a gap is an episode. The text of `perf script` has no gaps: there
//! such a wait can be joined from two.

use crate::aio::Contexts;
use crate::event::{Aio, Event, EventKind, SystemCall, Timeout};
use crate::pairing::{ByNumber, Idlers, Names, PairedEpisode, Pairing};
use crate::thread_causes::cause;
use crate::waking::Waking;
use dwell_recording::{IdleIncludes, Segments, WakeCause};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Makes episodes of threads.
#[derive(Default)]
pub struct ThreadPairing {
    names: Box<dyn Names>,
    only_pid: Option<i32>,
    idlers: Idlers,
    threads: Vec<Thread>,
    /// By process and thread.
    places: ByNumber<(i32, i32), usize>,
    /// The thread of the last event, which is most often that of the next, and its place.
    last: Option<((i32, i32), usize)>,
    incomplete: u64,
    /// Until when events of some CPU may be missing \[ns\].
    gap_until_ns: u64,
    contexts: Option<Contexts>,
    /// What the threads run between the waits.
    segments: Option<Waking>,
}

#[derive(Debug)]
struct Thread {
    idler: u32,
    pid: i32,
    waiting: Option<Waiting>,
    /// A thread uses one or two kinds.
    calls: Vec<(SystemCall, Tally)>,
}

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    call: SystemCall,
    timeout: Timeout,
    start_ns: u64,
}

/// Sums over the calls of one kind.
#[derive(Debug, Default)]
struct Tally {
    waits: u64,
    zero_timeout: u64,
    timed_out: u64,
    failed: u64,
    ready: u64,
    /// Without the last run of equal ones.
    timeout: BTreeMap<Timeout, u64>,
    run: Option<(Timeout, u64)>,
}

impl ThreadPairing {
    /// For the threads of process `only_pid`, for that thread, or for all.
    pub fn new(only_pid: Option<i32>, names: Box<dyn Names>) -> ThreadPairing {
        ThreadPairing { names, only_pid, ..ThreadPairing::default() }
    }

    /// The same for a QEMU whose own trace is there too: the idlers are its contexts.
    #[must_use]
    pub fn with_contexts(self, contexts: Contexts) -> ThreadPairing {
        ThreadPairing { contexts: Some(contexts), ..self }
    }

    /// The same, with the segments of threads between the waits.
    #[must_use]
    pub fn with_segments(self) -> ThreadPairing {
        ThreadPairing { segments: Some(Waking::default()), ..self }
    }

    /// The contexts, where the idlers are these.
    pub fn contexts(&self) -> Option<&Contexts> {
        self.contexts.as_ref()
    }

    fn thread(&mut self, event: &Event) -> &mut Thread {
        let ids = (event.pid, event.tid);
        let place = match self.last {
            Some((last, place)) if last == ids => place,
            _ => self.place(ids),
        };
        // Places are given out below, and nothing leaves the list.
        &mut self.threads[place]
    }

    fn place(&mut self, ids: (i32, i32)) -> usize {
        let ThreadPairing { names, idlers, threads, places, .. } = self;
        let place = *places.entry(ids).or_insert_with(|| {
            let (pid, tid) = ids;
            let name = names.thread(pid, tid).unwrap_or_else(|| "unknown".to_owned());
            let idler = idlers.add(numbered(&name, ids));
            threads.push(Thread { idler, pid, waiting: None, calls: vec![] });
            threads.len() - 1
        });
        self.last = Some((ids, place));
        place
    }

    fn enter(&mut self, event: &Event, call: SystemCall, timeout: Timeout) {
        let start_ns = event.time_ns;
        if start_ns < self.gap_until_ns {
            self.incomplete += 1;
            return;
        }
        let thread = self.thread(event);
        let unfinished = thread.waiting.replace(Waiting { call, timeout, start_ns });
        self.incomplete += u64::from(unfinished.is_some());
    }

    fn aio(&mut self, event: &Event, ctx: u64, what: Aio, found: &mut Vec<PairedEpisode>) {
        let ThreadPairing { names, idlers, contexts, .. } = self;
        let ids @ (pid, tid) = (event.pid, event.tid);
        let thread = || names.thread(pid, tid).map(|name| numbered(&name, ids));
        if let Some(contexts) = contexts {
            contexts.observe(event, (ctx, what), thread, idlers, found);
        }
    }

    /// Whatever waits may have ended unseen.
    fn forget(&mut self) {
        let open = self.threads.iter_mut().filter_map(|thread| thread.waiting.take()).count();
        self.incomplete += open as u64;
    }

    fn leave(&mut self, event: &Event, call: SystemCall, result: i64) -> Option<PairedEpisode> {
        let thread = self.thread(event);
        let Some(waiting) = thread.waiting.take().filter(|waiting| waiting.call == call) else {
            self.incomplete += 1;
            return None;
        };
        let wake = wake(call, result);
        thread.tally(call).count(waiting.timeout, wake, result);
        let idle_ns = event.time_ns.saturating_sub(waiting.start_ns);
        let episode = PairedEpisode::new(thread.idler, waiting.start_ns, idle_ns);
        (waiting.timeout != Timeout::Zero).then_some(PairedEpisode { wake: Some(wake), ..episode })
    }

    /// Takes the next event, and appends the episodes that it ends.
    fn pair(&mut self, event: &Event, found: &mut Vec<PairedEpisode>) {
        if !event.is_of(self.only_pid) {
            return;
        }
        let ids = (event.pid, event.tid);
        match event.kind {
            EventKind::Enter { call, timeout } => {
                self.contexts.iter_mut().for_each(|contexts| contexts.trace_waits(ids));
                self.enter(event, call, timeout);
            }
            EventKind::Leave { call, result } => {
                let wait = self.leave(event, call, result);
                match &mut self.contexts {
                    Some(contexts) => wait.into_iter().for_each(|wait| contexts.wait(ids, wait)),
                    None => found.extend(wait),
                }
            }
            EventKind::Aio { ctx, what } => self.aio(event, ctx, what, found),
            EventKind::Untraced => {
                let cut = self.thread(event).waiting.take();
                self.incomplete += u64::from(cut.is_some());
                self.contexts.iter_mut().for_each(|contexts| contexts.end_waits(ids));
            }
            EventKind::Gap { until_ns, .. } => {
                self.forget();
                self.gap_until_ns = self.gap_until_ns.max(until_ns);
            }
            // What comes next of a thread need not belong to what came before.
            EventKind::Lost { .. } => {
                self.forget();
                self.contexts.iter_mut().for_each(Contexts::forget);
            }
            _ => {}
        }
    }
}

/// The name of a thread with its numbers.
fn numbered(name: &str, (pid, tid): (i32, i32)) -> String {
    match pid {
        Event::UNKNOWN_ID => format!("{name}/{tid}"),
        _ => format!("{name}/{pid}/{tid}"),
    }
}

impl Thread {
    fn tally(&mut self, call: SystemCall) -> &mut Tally {
        let place = self.calls.iter().position(|(known, _)| *known == call).unwrap_or_else(|| {
            self.calls.push((call, Tally::default()));
            self.calls.len() - 1
        });
        &mut self.calls[place].1
    }
}

/// `io_uring_enter` returns how many requests it took, the others how many are ready.
fn wake(call: SystemCall, result: i64) -> WakeCause {
    const ETIME: i64 = libc::ETIME as i64;
    match (call, result) {
        (SystemCall::IoUringEnter, 0..) | (_, 1..) => WakeCause::Io,
        (_, 0) => WakeCause::Timer,
        (SystemCall::IoUringEnter, result) if result == -ETIME => WakeCause::Timer,
        _ => WakeCause::Unknown,
    }
}

impl Tally {
    fn count(&mut self, timeout: Timeout, wake: WakeCause, result: i64) {
        match timeout {
            Timeout::Zero => self.zero_timeout += 1,
            _ => self.waits += 1,
        }
        match &mut self.run {
            Some((same, count)) if *same == timeout => *count += 1,
            run => {
                if let Some((other, count)) = run.replace((timeout, 1)) {
                    *self.timeout.entry(other).or_default() += count;
                }
            }
        }
        self.timed_out += u64::from(wake == WakeCause::Timer && timeout != Timeout::Zero);
        self.failed += u64::from(wake == WakeCause::Unknown);
        // A text may have any number there.
        self.ready = self.ready.saturating_add(u64::try_from(result).unwrap_or(0));
    }

    fn describe(&self) -> Value {
        let name = |timeout: &Timeout| match timeout {
            Timeout::Zero => "zero".to_owned(),
            Timeout::Millis(ms) => format!("{ms} ms"),
            Timeout::Limited => "limited".to_owned(),
            Timeout::Unlimited => "unlimited".to_owned(),
        };
        // A loop that computes each timeout anew has very many; the ten most frequent ones describe it.
        let mut timeout = self.timeout.clone();
        if let Some((last, count)) = self.run {
            *timeout.entry(last).or_default() += count;
        }
        let mut timeouts: Vec<(Timeout, u64)> = timeout.into_iter().collect();
        timeouts.sort_by_key(|&(timeout, count)| (std::cmp::Reverse(count), timeout));
        let timeouts: BTreeMap<String, u64> =
            timeouts.iter().take(10).map(|(timeout, count)| (name(timeout), *count)).collect();
        json!({
            "waits": self.waits, "zero_timeout": self.zero_timeout, "timed_out": self.timed_out, "failed": self.failed,
            "ready": self.ready, "timeouts": timeouts,
        })
    }
}

impl Pairing for ThreadPairing {
    fn observe(&mut self, event: &Event, found: &mut Vec<PairedEpisode>) {
        let before = found.len();
        self.pair(event, found);
        if let Some(segments) = &mut self.segments {
            match found.get(before) {
                Some(wait) => _ = segments.idled(event, wait, |wakeups| cause(wakeups, wait)),
                None => segments.observe(event),
            }
        }
    }

    fn finish(&mut self, _: &mut Vec<PairedEpisode>) {
        self.forget();
        self.contexts.iter_mut().for_each(Contexts::finish);
    }

    fn idle_includes(&self) -> IdleIncludes {
        IdleIncludes::Wake
    }

    fn idlers(&self) -> &[String] {
        self.idlers.names()
    }

    /// Of a QEMU with its own trace, of its contexts: a wait that was not seen whole makes their episodes incomplete.
    fn incomplete(&self) -> u64 {
        self.contexts.as_ref().map_or(self.incomplete, Contexts::incomplete)
    }

    fn notes(&self) -> BTreeMap<String, Value> {
        if let Some(contexts) = &self.contexts {
            return BTreeMap::from([("contexts".to_owned(), contexts.notes(&self.idlers))]);
        }
        let about = |thread: &Thread| {
            let calls: BTreeMap<&str, Value> =
                thread.calls.iter().map(|(call, tally)| (call.name(), tally.describe())).collect();
            json!({ "pid": thread.pid, "calls": calls })
        };
        let threads: BTreeMap<&str, Value> =
            self.threads.iter().map(|thread| (self.idlers.name(thread.idler), about(thread))).collect();
        let mut notes = BTreeMap::from([("dwell.threads".to_owned(), json!(threads))]);
        self.segments.iter().for_each(|segments| segments.rows.note(&mut notes));
        notes
    }

    fn take_segments(&mut self) -> Option<Segments> {
        Some(self.segments.as_mut()?.finish(self.idlers.names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct ByNumberOnly;

    impl Names for ByNumberOnly {
        fn process(&mut self, _: i32) -> Option<String> {
            None
        }
        fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
            Some(format!("t{tid}"))
        }
    }

    fn event(time_ns: u64, tid: i32, kind: EventKind) -> Event {
        Event { time_ns, cpu: 0, pid: 1, tid, kind }
    }

    fn enter(call: SystemCall, timeout: Timeout) -> EventKind {
        EventKind::Enter { call, timeout }
    }

    fn run(events: &[Event]) -> (ThreadPairing, Vec<PairedEpisode>) {
        let mut pairing = ThreadPairing::new(None, Box::new(ByNumberOnly));
        let mut found = vec![];
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        (pairing, found)
    }

    #[test]
    fn a_wait_is_an_episode_and_a_call_that_cannot_wait_is_none() {
        let (pairing, found) = run(&[
            event(10, 5, enter(SystemCall::EpollWait, Timeout::Millis(100))),
            event(30, 5, EventKind::Leave { call: SystemCall::EpollWait, result: 3 }),
            event(31, 5, enter(SystemCall::EpollWait, Timeout::Zero)),
            event(32, 5, EventKind::Leave { call: SystemCall::EpollWait, result: 0 }),
            event(40, 5, enter(SystemCall::Ppoll, Timeout::Limited)),
            event(90, 5, EventKind::Leave { call: SystemCall::Ppoll, result: 0 }),
        ]);
        let seen: Vec<_> = found.iter().map(|f| (f.start_ns, f.idle_ns, f.wake)).collect();
        assert_eq!(seen, [(10, 20, Some(WakeCause::Io)), (40, 50, Some(WakeCause::Timer))]);
        assert_eq!(pairing.idlers(), ["t5/1/5"]);
        let notes = pairing.notes();
        let calls = &notes["dwell.threads"]["t5/1/5"]["calls"];
        assert_eq!(calls["epoll_wait"]["ready"], 3);
        assert_eq!(calls["epoll_wait"]["zero_timeout"], 1);
        assert_eq!(calls["ppoll"]["timed_out"], 1);
        assert_eq!(calls["epoll_wait"]["timeouts"]["100 ms"], 1);
    }

    #[test]
    fn io_uring_returns_how_many_it_took_not_how_many_are_ready() {
        assert_eq!(wake(SystemCall::IoUringEnter, 0), WakeCause::Io);
        assert_eq!(wake(SystemCall::IoUringEnter, -62), WakeCause::Timer);
        assert_eq!(wake(SystemCall::Poll, -4), WakeCause::Unknown);
    }

    #[test]
    fn what_lacks_an_end_is_counted() {
        let (pairing, found) = run(&[
            event(5, 5, EventKind::Leave { call: SystemCall::Poll, result: 1 }),
            event(10, 5, enter(SystemCall::Poll, Timeout::Unlimited)),
            event(20, 5, enter(SystemCall::Poll, Timeout::Unlimited)),
            event(30, 5, EventKind::Leave { call: SystemCall::Poll, result: 1 }),
        ]);
        assert_eq!((found.len(), pairing.incomplete()), (1, 2));
        assert_eq!(found[0].start_ns, 20);
    }

    #[test]
    fn a_reused_thread_id_is_a_new_thread() {
        let mut other = event(30, 5, EventKind::Leave { call: SystemCall::Poll, result: 1 });
        other.pid = 2;
        let (mut pairing, found) = run(&[event(10, 5, enter(SystemCall::Poll, Timeout::Unlimited)), other]);
        pairing.finish(&mut vec![]);
        assert_eq!((found.len(), pairing.incomplete()), (0, 2));
        assert_eq!(pairing.idlers(), ["t5/1/5", "t5/2/5"]);
    }

    #[test]
    fn a_wait_that_a_loss_or_the_end_cuts_is_counted() {
        let (mut pairing, found) = run(&[
            event(10, 5, enter(SystemCall::Poll, Timeout::Unlimited)),
            event(20, 0, EventKind::Lost { cpu: None, count: 1 }),
            event(30, 5, EventKind::Leave { call: SystemCall::Poll, result: 1 }),
            event(40, 5, enter(SystemCall::Poll, Timeout::Unlimited)),
        ]);
        pairing.finish(&mut vec![]);
        assert_eq!((found.len(), pairing.incomplete()), (0, 3));
    }

    /// For every end the nearest beginning before it, if nothing of that thread and no loss is between.
    fn oracle(events: &[Event]) -> Vec<(i32, u64, u64)> {
        let mut pairs = vec![];
        for (at, end) in events.iter().enumerate() {
            let EventKind::Leave { call, .. } = end.kind else { continue };
            let is_loss = |event: &Event| matches!(event.kind, EventKind::Lost { .. });
            let before = events[..at].iter().rev().find(|event| event.tid == end.tid || is_loss(event));
            if let Some(Event { kind: EventKind::Enter { call: begun, timeout }, time_ns, .. }) = before
                && *begun == call
                && *timeout != Timeout::Zero
            {
                pairs.push((end.tid, *time_ns, end.time_ns - time_ns));
            }
        }
        pairs
    }

    proptest! {
        /// One event in eight is a loss, of a CPU or of no known one.
        #[test]
        fn pairs_as_the_oracle_does(
            steps in prop::collection::vec((0u64..100, 1i32..4, 0u32..8, 0usize..2, 0u32..3), 0..200),
        ) {
            let mut time = 0;
            let events: Vec<Event> = steps.into_iter().map(|(gap, tid, what, call, choice)| {
                time += gap;
                let call = SystemCall::ALL[call];
                let timeout = [Timeout::Zero, Timeout::Millis(7), Timeout::Unlimited][choice as usize];
                match what {
                    0 => event(time, 0, EventKind::Lost { cpu: choice.checked_sub(1), count: 3 }),
                    1..4 => event(time, tid, enter(call, timeout)),
                    _ => event(time, tid, EventKind::Leave { call, result: 1 }),
                }
            }).collect();
            let (mut pairing, found) = run(&events);
            let pairs: Vec<_> = found.iter().map(|f| {
                let tid = pairing.idlers()[f.idler as usize].rsplit('/').next().unwrap().parse().unwrap();
                (tid, f.start_ns, f.idle_ns)
            }).collect();
            let expected = oracle(&events);
            prop_assert_eq!(&pairs, &expected);
            // Every beginning and every end that is in no wait is counted; calls that cannot wait are no episodes.
            pairing.finish(&mut vec![]);
            let tallied: u64 = pairing.threads.iter().flat_map(|thread| &thread.calls)
                .map(|(_, tally)| tally.waits + tally.zero_timeout).sum();
            let (begun, ended) = events.iter().fold((0, 0), |(begun, ended), event| match event.kind {
                EventKind::Enter { .. } => (begun + 1, ended),
                EventKind::Leave { .. } => (begun, ended + 1),
                _ => (begun, ended),
            });
            // An end of another call than the one begun is one incomplete wait with two sides.
            let incomplete = pairing.incomplete();
            prop_assert!(incomplete <= begun + ended - 2 * tallied);
            prop_assert!(2 * incomplete >= begun + ended - 2 * tallied);
        }
    }
}
