//! Threads that wait for file descriptors: the system calls of event loops into episodes.
//!
//! An episode is one call that may wait, from its beginning to its end, of one thread; a call that only looks (a timeout of
//! zero) is none. What it returned tells the wake: something ready, or the timeout. Its length includes the wake-up
//! latency, and where something was ready at once it is the length of the call itself, about a microsecond.
//!
//! How many were ready and how patient the calls were is summed for each thread in the notes of the recording, since an
//! episode has no room for it.

use crate::event::{Call, Event, Patience, What};
use crate::pairing::{ByNumber, Found, Idlers, Names, Pairing};
use dwell_recording::WakeCause;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Makes episodes of threads.
pub struct ThreadPairing {
    names: Box<dyn Names>,
    only_pid: Option<i32>,
    idlers: Idlers,
    threads: Vec<Thread>,
    by_tid: ByNumber<i32, usize>,
    /// The thread of the last event, which is most often that of the next: its number and place.
    last: Option<(i32, usize)>,
    incomplete: u64,
}

#[derive(Debug)]
struct Thread {
    idler: u32,
    pid: i32,
    waiting: Option<Waiting>,
    /// A thread uses one or two kinds.
    calls: Vec<(Call, Tally)>,
}

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    call: Call,
    patience: Patience,
    start_ns: u64,
}

/// Sums over the calls of one kind.
#[derive(Debug, Default)]
struct Tally {
    waits: u64,
    looks: u64,
    timed_out: u64,
    failed: u64,
    ready: u64,
    /// Without the last run of equal ones.
    patience: BTreeMap<Patience, u64>,
    run: Option<(Patience, u64)>,
}

impl ThreadPairing {
    /// For the threads of process `only_pid`, for that thread, or for all.
    pub fn new(only_pid: Option<i32>, names: Box<dyn Names>) -> ThreadPairing {
        ThreadPairing {
            names,
            only_pid,
            idlers: Idlers::default(),
            threads: vec![],
            by_tid: ByNumber::default(),
            last: None,
            incomplete: 0,
        }
    }

    fn thread(&mut self, event: &Event) -> &mut Thread {
        let place = match self.last {
            Some((tid, place)) if tid == event.tid => place,
            _ => self.place(event),
        };
        // Places are given out below, and nothing leaves the list.
        &mut self.threads[place]
    }

    fn place(&mut self, event: &Event) -> usize {
        let ThreadPairing { names, idlers, threads, by_tid, .. } = self;
        let place = *by_tid.entry(event.tid).or_insert_with(|| {
            let name = names.thread(event.pid, event.tid).unwrap_or_else(|| "unknown".to_owned());
            let idler = idlers.number(format!("{name}/{}/{}", event.pid, event.tid));
            threads.push(Thread { idler, pid: event.pid, waiting: None, calls: vec![] });
            threads.len() - 1
        });
        self.last = Some((event.tid, place));
        place
    }

    fn enter(&mut self, event: &Event, call: Call, patience: Patience) {
        let start_ns = event.time_ns;
        let thread = self.thread(event);
        let unfinished = thread.waiting.replace(Waiting { call, patience, start_ns });
        self.incomplete += u64::from(unfinished.is_some());
    }

    fn leave(&mut self, event: &Event, call: Call, result: i64) -> Option<Found> {
        let thread = self.thread(event);
        let Some(waiting) = thread.waiting.take().filter(|waiting| waiting.call == call) else {
            self.incomplete += 1;
            return None;
        };
        let wake = wake(call, result);
        thread.tally(call).count(waiting.patience, wake, result);
        (waiting.patience != Patience::None).then(|| Found {
            idler: thread.idler,
            start_ns: waiting.start_ns,
            idle_ns: event.time_ns.saturating_sub(waiting.start_ns),
            window_ns: None,
            halted: None,
            wake: Some(wake),
            wake_latency_ns: None,
            alone_ns: None,
        })
    }
}

impl Thread {
    fn tally(&mut self, call: Call) -> &mut Tally {
        let place = self.calls.iter().position(|(known, _)| *known == call).unwrap_or_else(|| {
            self.calls.push((call, Tally::default()));
            self.calls.len() - 1
        });
        &mut self.calls[place].1
    }
}

/// `io_uring_enter` returns how many requests it took, the others how many are ready.
fn wake(call: Call, result: i64) -> WakeCause {
    const ETIME: i64 = libc::ETIME as i64;
    match (call, result) {
        (Call::IoUringEnter, 0..) | (_, 1..) => WakeCause::Io,
        (_, 0) => WakeCause::Timer,
        (Call::IoUringEnter, result) if result == -ETIME => WakeCause::Timer,
        _ => WakeCause::Unknown,
    }
}

impl Tally {
    fn count(&mut self, patience: Patience, wake: WakeCause, result: i64) {
        match patience {
            Patience::None => self.looks += 1,
            _ => self.waits += 1,
        }
        match &mut self.run {
            Some((same, count)) if *same == patience => *count += 1,
            run => {
                if let Some((other, count)) = run.replace((patience, 1)) {
                    *self.patience.entry(other).or_default() += count;
                }
            }
        }
        self.timed_out += u64::from(wake == WakeCause::Timer && patience != Patience::None);
        self.failed += u64::from(wake == WakeCause::Unknown);
        self.ready += u64::try_from(result).unwrap_or(0);
    }

    fn describe(&self) -> Value {
        let name = |patience: &Patience| match patience {
            Patience::None => "zero".to_owned(),
            Patience::Millis(ms) => format!("{ms} ms"),
            Patience::Limited => "limited".to_owned(),
            Patience::Unlimited => "unlimited".to_owned(),
        };
        // A loop that computes each timeout anew has very many; the ten most frequent tell what it does.
        let mut patience = self.patience.clone();
        if let Some((last, count)) = self.run {
            *patience.entry(last).or_default() += count;
        }
        let mut timeouts: Vec<(Patience, u64)> = patience.into_iter().collect();
        timeouts.sort_by_key(|&(patience, count)| (std::cmp::Reverse(count), patience));
        let timeouts: BTreeMap<String, u64> =
            timeouts.iter().take(10).map(|(patience, count)| (name(patience), *count)).collect();
        json!({
            "waits": self.waits, "looks": self.looks, "timed_out": self.timed_out, "failed": self.failed,
            "ready": self.ready, "timeouts": timeouts,
        })
    }
}

impl Pairing for ThreadPairing {
    fn observe(&mut self, event: &Event, found: &mut Vec<Found>) {
        if self.only_pid.is_some_and(|pid| pid != event.pid && pid != event.tid) {
            return;
        }
        match event.what {
            What::Enter { call, patience } => self.enter(event, call, patience),
            What::Leave { call, result } => found.extend(self.leave(event, call, result)),
            _ => {}
        }
    }

    fn idlers(&self) -> &[String] {
        self.idlers.names()
    }

    fn incomplete(&self) -> u64 {
        self.incomplete
    }

    fn notes(&self) -> BTreeMap<String, Value> {
        let about = |thread: &Thread| {
            let calls: BTreeMap<&str, Value> =
                thread.calls.iter().map(|(call, tally)| (call.name(), tally.describe())).collect();
            json!({ "pid": thread.pid, "calls": calls })
        };
        let threads: BTreeMap<&str, Value> =
            self.threads.iter().map(|thread| (self.idlers.name(thread.idler), about(thread))).collect();
        BTreeMap::from([("dwell.threads".to_owned(), json!(threads))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Nobody;

    impl Names for Nobody {
        fn process(&mut self, _: i32) -> Option<String> {
            None
        }
        fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
            Some(format!("t{tid}"))
        }
        fn vcpus(&mut self, _: i32) -> Vec<u32> {
            vec![]
        }
    }

    fn event(time_ns: u64, tid: i32, what: What) -> Event {
        Event { time_ns, cpu: 0, pid: 1, tid, what }
    }

    fn enter(call: Call, patience: Patience) -> What {
        What::Enter { call, patience }
    }

    fn run(events: &[Event]) -> (ThreadPairing, Vec<Found>) {
        let mut pairing = ThreadPairing::new(None, Box::new(Nobody));
        let mut found = vec![];
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        (pairing, found)
    }

    #[test]
    fn a_wait_is_an_episode_and_a_look_is_none() {
        let (pairing, found) = run(&[
            event(10, 5, enter(Call::EpollWait, Patience::Millis(100))),
            event(30, 5, What::Leave { call: Call::EpollWait, result: 3 }),
            event(31, 5, enter(Call::EpollWait, Patience::None)),
            event(32, 5, What::Leave { call: Call::EpollWait, result: 0 }),
            event(40, 5, enter(Call::Ppoll, Patience::Limited)),
            event(90, 5, What::Leave { call: Call::Ppoll, result: 0 }),
        ]);
        let seen: Vec<_> = found.iter().map(|f| (f.start_ns, f.idle_ns, f.wake)).collect();
        assert_eq!(seen, [(10, 20, Some(WakeCause::Io)), (40, 50, Some(WakeCause::Timer))]);
        assert_eq!(pairing.idlers(), ["t5/1/5"]);
        let notes = pairing.notes();
        let calls = &notes["dwell.threads"]["t5/1/5"]["calls"];
        assert_eq!(calls["epoll_wait"]["ready"], 3);
        assert_eq!(calls["epoll_wait"]["looks"], 1);
        assert_eq!(calls["ppoll"]["timed_out"], 1);
        assert_eq!(calls["epoll_wait"]["timeouts"]["100 ms"], 1);
    }

    #[test]
    fn io_uring_says_how_many_it_took_not_how_many_are_ready() {
        assert_eq!(wake(Call::IoUringEnter, 0), WakeCause::Io);
        assert_eq!(wake(Call::IoUringEnter, -62), WakeCause::Timer);
        assert_eq!(wake(Call::Poll, -4), WakeCause::Unknown);
    }

    #[test]
    fn what_lacks_an_end_is_counted() {
        let (pairing, found) = run(&[
            event(5, 5, What::Leave { call: Call::Poll, result: 1 }),
            event(10, 5, enter(Call::Poll, Patience::Unlimited)),
            event(20, 5, enter(Call::Poll, Patience::Unlimited)),
            event(30, 5, What::Leave { call: Call::Poll, result: 1 }),
        ]);
        assert_eq!((found.len(), pairing.incomplete()), (1, 2));
        assert_eq!(found[0].start_ns, 20);
    }

    /// For every end the nearest beginning before it, if nothing of that thread lies between.
    fn oracle(events: &[Event]) -> Vec<(i32, u64, u64)> {
        let mut pairs = vec![];
        for (at, end) in events.iter().enumerate() {
            let What::Leave { call, .. } = end.what else { continue };
            let before = events[..at].iter().rev().find(|event| event.tid == end.tid);
            if let Some(Event { what: What::Enter { call: begun, patience }, time_ns, .. }) = before
                && *begun == call
                && *patience != Patience::None
            {
                pairs.push((end.tid, *time_ns, end.time_ns - time_ns));
            }
        }
        pairs
    }

    proptest! {
        #[test]
        fn pairs_as_the_oracle_does(
            steps in prop::collection::vec((0u64..100, 1i32..4, any::<bool>(), 0usize..2, 0u32..3), 0..200),
        ) {
            let mut time = 0;
            let events: Vec<Event> = steps.into_iter().map(|(gap, tid, begins, call, patience)| {
                time += gap;
                let call = Call::ALL[call];
                let patience = [Patience::None, Patience::Millis(7), Patience::Unlimited][patience as usize];
                event(time, tid, if begins { enter(call, patience) } else { What::Leave { call, result: 1 } })
            }).collect();
            let (pairing, found) = run(&events);
            let pairs: Vec<_> = found.iter().map(|f| {
                let tid = pairing.idlers()[f.idler as usize].rsplit('/').next().unwrap().parse().unwrap();
                (tid, f.start_ns, f.idle_ns)
            }).collect();
            prop_assert_eq!(pairs, oracle(&events));
        }
    }
}
