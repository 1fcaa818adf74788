//! The event loop around the adaptation: one iteration of it, over an environment that supplies everything outside.

extern crate std;

use super::super::context::{Aio, Block, Event};
use super::super::{Handler, Kind, Params, Revision};
use crate::version::Version;
use std::collections::VecDeque;
use std::vec::Vec;

/// After this long without an event a handler leaves the poll list (ns), if the monitor can see its file descriptor
/// from user space. QEMU, `util/aio-posix.c`, since 5.0.
pub(super) const IDLE_REMOVAL_NS: i64 = 7_000_000_000;

/// How a context waits for file descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Monitor {
    /// ppoll or epoll: file descriptors are seen by system call only, so one handler that cannot be polled
    /// forbids polling.
    Poll,
    /// io_uring: file descriptors are seen in the completion ring too, so nothing forbids polling, and handlers
    /// that are idle for long can be left to the ring. Iothreads use it since 10.2.
    Uring,
}

/// By which way work was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Via {
    /// The wait found the file descriptor ready: `io_read` and `io_write` are due.
    Fd,
    /// `io_poll` said so: `io_poll_ready` is due.
    Poll,
}

/// The world around a context: a clock, file descriptors, callbacks, other threads. Virtual in tests.
///
/// Handlers are named by their number in the context's table.
pub(super) trait Env {
    /// The time now, of a clock that does not go back (ns); QEMU takes `CLOCK_MONOTONIC`.
    fn now(&mut self) -> i64;

    /// How this context waits.
    fn monitor(&self) -> Monitor;

    /// Whether the ring has something to collect or submit. Asked only of [`Monitor::Uring`].
    fn ring_needs_service(&mut self) -> bool;

    /// How long the wait may last (ns): 0 where a bottom half is scheduled, the time to the next timer, -1 without
    /// end.
    fn timeout(&mut self) -> i64;

    /// `io_poll`: whether handler `h` has work. Of releases before 7.0 it also does the work.
    fn io_poll(&mut self, h: u32) -> bool;

    /// `io_poll_begin` of handler `h`, one that goes quiet: no notifications from here.
    fn io_poll_begin(&mut self, h: u32);

    /// `io_poll_end` of handler `h`: notifications again.
    fn io_poll_end(&mut self, h: u32);

    /// From now on other threads must write to the notifier's file descriptor to be heard (`notify_me`), in force
    /// when this returns. Returns whether one of them has left a notification before (`notified`).
    fn announce_wait(&mut self) -> bool;

    /// Takes back `announce_wait`.
    fn retract_wait(&mut self);

    /// Notifications up to here are taken note of (`notified` becomes false); their work is seen by what follows.
    fn accept_notifications(&mut self);

    /// Waits at most this long (ns) (-1: without end, 0: not at all) and passes to `ready` the handlers whose file
    /// descriptors are, in the order of the scan. The last one is dispatched first.
    fn wait(&mut self, timeout_ns: i64, ready: impl FnMut(u32));

    /// Runs the callbacks of completions on the ring; whether there were any. Asked of releases since 10.2.
    fn run_completions(&mut self) -> bool {
        false
    }

    /// Runs bottom halves; whether there were any.
    fn run_bottom_halves(&mut self) -> bool;

    /// Runs the callback of handler `h` for work found this way.
    fn dispatch(&mut self, h: u32, via: Via);

    /// Runs timers that have expired; whether there were any.
    fn run_timers(&mut self) -> bool;

    /// Takes note of a trace event.
    fn trace(&mut self, event: Traced) {
        let _ = event;
    }
}

/// QEMU's trace events of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traced {
    /// Of the adaptation.
    Aio(Event),
    /// `poll_remove`: this handler was idle for too long and is no longer polled.
    PollRemove(u32),
    /// `run_poll_handlers_begin`.
    PollBegin { max_ns: i64, timeout_ns: i64 },
    /// `run_poll_handlers_end`.
    PollEnd { progress: bool, timeout_ns: i64 },
}

/// How the loops of releases differ, but for the rule.
#[derive(Clone, Copy, Debug)]
struct Differences {
    /// Before 5.0 the handlers are polled for one round even where polling is off.
    forces_one_round: bool,
    /// Since 5.0 a handler without events for seven seconds leaves the poll list.
    removes_idle: bool,
    /// Since 7.0 `io_poll` only looks and `io_poll_ready` does the work; before, `io_poll` did both.
    splits_io_poll: bool,
    /// Since 8.0 poll mode lasts until right before a real wait; before, it ended with each fruitless attempt.
    keeps_poll_mode: bool,
    /// Since 8.1 a handler is off the poll list while its `io_poll_ready` runs, and returns to the list's head.
    relinks: bool,
    /// Since 10.2 a wait that only collects (time-out 0) leaves poll mode on, an attempt that ends because the
    /// monitor has something to collect does not sleep, and completions of the ring are called back.
    completes_on_ring: bool,
}

impl Differences {
    fn of(version: Version) -> Differences {
        Differences {
            forces_one_round: !version.at_least(5, 0),
            removes_idle: version.at_least(5, 0),
            splits_io_poll: version.at_least(7, 0),
            keeps_poll_mode: version.at_least(8, 0),
            relinks: version.at_least(8, 1),
            completes_on_ring: version.at_least(10, 2),
        }
    }
}

/// What the loop keeps of a handler, beside what adapts.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// Before the weighted revision: when it will have been idle for too long, 0 if that has not begun.
    idle_at: i64,
    /// The wait found its file descriptor ready.
    fd_ready: bool,
    /// A poll found work.
    poll_ready: bool,
}

/// A context that runs its loop.
pub(super) struct Context {
    pub(super) aio: Aio<Vec<Handler>>,
    release: Differences,
    /// Whether it is in poll mode: notifications are off.
    pub(super) started: bool,
    /// The newest first.
    poll_list: Vec<u32>,
    ready_list: VecDeque<u32>,
    marks: Vec<Mark>,
}

impl Aio<Vec<Handler>> {
    /// Sets the parameters and forgets what was learnt, as any write to a property of a running `iothread` does.
    /// Handlers stay on the poll list.
    pub(super) fn set_params(&mut self, params: Params) {
        self.params = params.stored(self.revision);
        self.poll_ns = 0;
        for handler in &mut self.handlers {
            handler.ns = 0;
        }
    }

    /// Registers a handler of this kind as number `h`, in place of what was there; [`Kind::Vacant`] deletes.
    pub(super) fn register(&mut self, h: u32, kind: Kind) {
        if let Some(handler) = self.handler(h) {
            *handler = Handler::new(kind);
        }
    }

    /// Registers handler `h` anew: it loses what was learnt of it and is not polled until its file descriptor
    /// becomes ready.
    pub(super) fn reregister(&mut self, h: u32) {
        if let Some(handler) = self.handler(h) {
            *handler = Handler::new(handler.kind);
        }
    }
}

/// One iteration of the loop, in the order of QEMU's function of that name. What it calls is below it, in order.
impl Context {
    pub(super) fn new(version: Version, params: Params, handlers: Vec<Handler>) -> Context {
        let marks = std::vec![Mark::default(); handlers.len()];
        let aio = Aio::new(Revision::of(version).unwrap(), params, handlers);
        let (release, poll_list, ready_list) = (Differences::of(version), Vec::new(), VecDeque::new());
        Context { aio, release, started: false, poll_list, ready_list, marks }
    }

    pub(super) fn register(&mut self, h: u32, kind: Kind) {
        self.poll_list.retain(|other| *other != h);
        self.ready_list.retain(|other| *other != h);
        self.aio.register(h, kind);
        self.marks[h as usize] = Mark::default();
    }

    fn revision(&self) -> Revision {
        self.aio.revision
    }

    /// To the head of the poll list.
    fn link(&mut self, h: u32) {
        self.poll_list.retain(|other| *other != h);
        self.poll_list.insert(0, h);
        self.aio.handler(h).unwrap().in_poll = true;
    }

    /// To the head of the ready list, if there is such a handler.
    fn is_ready(&mut self, h: u32, set: impl FnOnce(&mut Mark)) {
        if let Some(mark) = self.marks.get_mut(h as usize) {
            set(mark);
            self.ready_list.retain(|other| *other != h);
            self.ready_list.push_front(h);
        }
    }

    fn kind(&self, h: u32) -> Kind {
        self.aio.handlers[h as usize].kind
    }

    fn goes_quiet(&self, h: u32) -> bool {
        self.kind(h) == Kind::PolledQuietly
    }

    /// Polls, waits, dispatches and adapts, once. `blocking` false: neither polls nor sleeps. Returns whether there
    /// was anything to do but for the notifier.
    pub(super) fn aio_poll<E: Env>(&mut self, env: &mut E, blocking: bool) -> bool {
        let start = if self.aio.polling() { env.now() } else { 0 };
        let mut timeout = if blocking { env.timeout() } else { 0 };
        let mut progress = self.attempt(env, &mut timeout);

        let announced = timeout != 0;
        if announced && env.announce_wait() {
            timeout = 0;
        }
        if timeout != 0 || self.need_wait(env) {
            progress |= self.wait(env, timeout);
        }
        if announced {
            env.retract_wait();
        }
        env.accept_notifications();

        let mut block = Block { ns: 0, stamp: 0 };
        if self.aio.polling() {
            let end = env.now();
            block = Block { ns: end.wrapping_sub(start), stamp: end };
        }
        self.aio.adapt_after_wait(block, &mut |event| env.trace(Traced::Aio(event)));
        if self.release.completes_on_ring {
            progress |= env.run_completions();
        }
        progress |= env.run_bottom_halves();
        while let Some(h) = self.ready_list.pop_front() {
            progress |= self.dispatch(env, h, block);
        }
        self.aio.adapt_at_end(block, &mut |event| env.trace(Traced::Aio(event)));
        progress | env.run_timers()
    }

    /// Polls, if there is anything to poll and time to do so; where polling is off there is no time. Whether it
    /// found work, for then `timeout` is 0.
    fn attempt<E: Env>(&mut self, env: &mut E, timeout: &mut i64) -> bool {
        if self.poll_list.is_empty() {
            return false;
        }
        let max = soonest(*timeout, self.aio.effective());
        let polls = max != 0 && !self.need_wait(env);
        if polls {
            self.set_started(env, true);
            if self.run(env, max, timeout) {
                return true;
            }
        }
        if !self.release.keeps_poll_mode && self.set_started(env, false) {
            *timeout = 0;
            return true;
        }
        !polls && self.release.forces_one_round && self.round(env, 0, timeout)
    }

    /// Polls for at most `max` ns and at least one round.
    fn run<E: Env>(&mut self, env: &mut E, mut max: i64, timeout: &mut i64) -> bool {
        env.trace(Traced::PollBegin { max_ns: max, timeout_ns: *timeout });
        let start = env.now();
        let (mut progress, elapsed) = loop {
            let progress = self.round(env, start, timeout);
            let elapsed = env.now().wrapping_sub(start);
            max = soonest(*timeout, max);
            if self.leaves(env, elapsed >= max, timeout) {
                break (progress, elapsed);
            }
        };
        if self.remove_idle(env, start.wrapping_add(elapsed)) {
            *timeout = 0;
            progress = true;
        }
        if *timeout != -1 {
            *timeout = timeout.wrapping_sub(elapsed.min(*timeout));
        }
        env.trace(Traced::PollEnd { progress, timeout_ns: *timeout });
        progress
    }

    /// Polls every handler on the list once, in an attempt that began at `start`. Any work ends the wait before it
    /// begins; whether there was progress, which the notifier never is.
    fn round<E: Env>(&mut self, env: &mut E, start: i64, timeout: &mut i64) -> bool {
        let mut progress = false;
        for h in self.poll_list.clone() {
            if self.finds_work(env, h) {
                *timeout = 0;
                self.marks[h as usize].idle_at = start.wrapping_add(IDLE_REMOVAL_NS);
                progress |= self.kind(h) != Kind::Notifier;
            }
        }
        progress
    }

    /// Whether polling ends with this round, the time for it being `over` or not.
    fn leaves<E: Env>(&mut self, env: &mut E, over: bool, timeout: &mut i64) -> bool {
        let need_wait = self.need_wait(env);
        if need_wait && self.release.completes_on_ring && env.monitor() == Monitor::Uring {
            *timeout = 0;
        }
        over || need_wait
    }

    /// Takes handlers that were idle for too long, now at time `t`, off the poll list; whether one of them proved
    /// to have work after all.
    fn remove_idle<E: Env>(&mut self, env: &mut E, t: i64) -> bool {
        if !self.release.removes_idle || env.monitor() == Monitor::Poll {
            return false;
        }
        let mut progress = false;
        for h in self.poll_list.clone() {
            if !self.idles_too_long(h, t) {
                continue;
            }
            self.marks[h as usize].idle_at = 0;
            let handler = &mut self.aio.handlers[h as usize];
            (handler.timestamp, handler.in_poll) = (0, false);
            env.trace(Traced::PollRemove(h));
            self.poll_list.retain(|other| *other != h);
            if self.started && self.goes_quiet(h) {
                env.io_poll_end(h);
                progress |= self.finds_work(env, h);
            }
        }
        progress
    }

    /// Enters or leaves poll mode: the polled handlers go quiet or loud. Whether work was found on leaving, which
    /// would have come unnoticed while a handler was quiet.
    fn set_started<E: Env>(&mut self, env: &mut E, on: bool) -> bool {
        if self.started == on {
            return false;
        }
        self.started = on;
        let mut progress = false;
        for h in self.poll_list.clone() {
            match (self.goes_quiet(h), on) {
                (true, true) => env.io_poll_begin(h),
                (true, false) => env.io_poll_end(h),
                (false, _) => {}
            }
            progress |= !on && self.finds_work(env, h);
        }
        progress
    }

    /// Polls one handler; work is queued for dispatch unless `io_poll` has done it.
    fn finds_work<E: Env>(&mut self, env: &mut E, h: u32) -> bool {
        let found = env.io_poll(h);
        if found && self.release.splits_io_poll {
            self.is_ready(h, |mark| mark.poll_ready = true);
        }
        found
    }

    /// Whether something can only be learnt by a system call.
    fn need_wait<E: Env>(&mut self, env: &mut E) -> bool {
        match env.monitor() {
            Monitor::Poll => self.aio.handlers.iter().any(|handler| handler.kind == Kind::FdOnly),
            Monitor::Uring => env.ring_needs_service(),
        }
    }

    /// Asks the kernel, after leaving poll mode where the release does so here; whether that found work.
    fn wait<E: Env>(&mut self, env: &mut E, mut timeout: i64) -> bool {
        let leaves = self.release.keeps_poll_mode && (timeout != 0 || !self.release.completes_on_ring);
        let progress = leaves && self.set_started(env, false);
        if progress {
            timeout = 0;
        }
        env.wait(timeout, |h| self.is_ready(h, |mark| mark.fd_ready = true));
        progress
    }

    /// Lets a handler do its work and learns from it; whether that is progress.
    fn dispatch<E: Env>(&mut self, env: &mut E, h: u32, block: Block) -> bool {
        let kind = self.kind(h);
        if kind == Kind::Vacant {
            return false;
        }
        let mark = &mut self.marks[h as usize];
        let via = if mark.fd_ready { Via::Fd } else { Via::Poll };
        (mark.fd_ready, mark.poll_ready) = (false, false);
        if self.aio.joining(h).is_some() {
            env.trace(Traced::Aio(Event::PollAdd(h)));
            if self.started && self.goes_quiet(h) {
                env.io_poll_begin(h);
            }
            self.link(h);
        }
        env.dispatch(h, via);
        if self.release.relinks && via == Via::Poll {
            self.link(h);
        }
        self.aio.adapt_after_dispatch(h, block, &mut |event| env.trace(Traced::Aio(event)));
        kind != Kind::Notifier
    }

    /// Whether a handler has been without events for too long at time `t`. Before the weighted revision the time
    /// begins to run at the first test, or with each success of polling.
    fn idles_too_long(&mut self, h: u32, t: i64) -> bool {
        let later = |time: i64| time.wrapping_add(IDLE_REMOVAL_NS);
        let (revision, last) = (self.revision(), self.aio.handlers[h as usize].timestamp);
        let mark = &mut self.marks[h as usize];
        match revision {
            Revision::Weighted => !mark.poll_ready && t >= later(last),
            Revision::Global | Revision::PerHandler if mark.idle_at == 0 => {
                mark.idle_at = later(t);
                false
            }
            Revision::Global | Revision::PerHandler => t >= mark.idle_at,
        }
    }
}

/// The earlier of two time-outs, where -1 is none: the smaller as unsigned numbers.
fn soonest(a: i64, b: i64) -> i64 {
    if a as u64 <= b as u64 { a } else { b }
}

/// A call of a context to its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Poll(u32),
    Quiet(u32),
    Loud(u32),
    Wait(i64),
    Dispatch(u32, Via),
}
use Call::*;

/// An environment of two handlers in which a test sets what is ready. Each look at the clock takes a nanosecond.
struct Script {
    now: i64,
    monitor: Monitor,
    timeout: i64,
    /// What `io_poll` returns, by handler.
    has_work: [bool; 2],
    /// Work that appears when a handler's notifications are switched on again.
    races: [bool; 2],
    fd_ready: Vec<u32>,
    calls: Vec<Call>,
    events: Vec<Traced>,
}

impl Script {
    fn new(monitor: Monitor) -> Script {
        Script {
            now: 1_000_000,
            monitor,
            timeout: -1,
            has_work: [false; 2],
            races: [false; 2],
            fd_ready: Vec::new(),
            calls: Vec::new(),
            events: Vec::new(),
        }
    }

    fn take_calls(&mut self) -> Vec<Call> {
        core::mem::take(&mut self.calls)
    }
}

impl Env for Script {
    fn now(&mut self) -> i64 {
        self.now += 1;
        self.now
    }
    fn monitor(&self) -> Monitor {
        self.monitor
    }
    fn ring_needs_service(&mut self) -> bool {
        !self.fd_ready.is_empty()
    }
    fn timeout(&mut self) -> i64 {
        self.timeout
    }
    fn io_poll(&mut self, h: u32) -> bool {
        self.calls.push(Poll(h));
        self.has_work[h as usize]
    }
    fn io_poll_begin(&mut self, h: u32) {
        self.calls.push(Quiet(h));
    }
    fn io_poll_end(&mut self, h: u32) {
        self.calls.push(Loud(h));
        self.has_work[h as usize] |= core::mem::take(&mut self.races[h as usize]);
    }
    fn announce_wait(&mut self) -> bool {
        false
    }
    fn retract_wait(&mut self) {}
    fn accept_notifications(&mut self) {}
    fn wait(&mut self, timeout_ns: i64, ready: impl FnMut(u32)) {
        self.calls.push(Wait(timeout_ns));
        self.now += 5_000;
        self.fd_ready.drain(..).for_each(ready);
    }
    fn run_bottom_halves(&mut self) -> bool {
        false
    }
    fn dispatch(&mut self, h: u32, via: Via) {
        self.calls.push(Dispatch(h, via));
        self.has_work[h as usize] = false;
    }
    fn run_timers(&mut self) -> bool {
        false
    }
    fn trace(&mut self, event: Traced) {
        self.events.push(event);
    }
}

/// A context of this release whose handlers have been dispatched once, so that it polls them; the second is at
/// the head of the list.
fn polling(version: (u16, u16), kinds: [Kind; 2], env: &mut Script) -> Context {
    let params = Params { poll_max_ns: 100_000, poll_grow: 2, poll_shrink: 2, poll_weight: 3 };
    let version = Version::new(version.0, version.1);
    let mut aio = Context::new(version, params, kinds.map(Handler::new).into());
    env.fd_ready = std::vec![1, 0];
    aio.aio_poll(env, true);
    assert!(aio.aio.handlers().iter().all(Handler::in_poll));
    assert!(aio.aio.effective() > 0);
    env.take_calls();
    env.events.clear();
    aio
}

const VIRTIO: [Kind; 2] = [Kind::PolledQuietly; 2];

#[test]
fn poll_mode_outlasts_a_success_and_ends_before_the_wait() {
    for version in [(7, 2), (8, 0), (8, 1), (10, 2), (11, 1)] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, VIRTIO, &mut env);
        env.has_work[1] = true;
        assert!(aio.aio_poll(&mut env, true));
        assert_eq!(env.take_calls(), [Quiet(1), Quiet(0), Poll(1), Poll(0), Dispatch(1, Via::Poll)]);
        assert!(aio.started);
        assert!(!aio.aio_poll(&mut env, true));
        let calls = env.take_calls();
        assert_eq!(calls[calls.len() - 5..], [Loud(1), Poll(1), Loud(0), Poll(0), Wait(-1)], "{version:?}");
        assert!(!aio.started);
    }
}

#[test]
fn poll_mode_ends_without_a_wait_before_8_0_only() {
    for (version, lasts) in [((7, 2), false), ((8, 0), true), ((11, 1), true)] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, VIRTIO, &mut env);
        env.has_work[0] = true;
        aio.aio_poll(&mut env, true);
        env.timeout = 0; // a bottom half: neither polling nor waiting
        aio.aio_poll(&mut env, true);
        assert_eq!(aio.started, lasts, "{version:?}");
    }
}

#[test]
fn work_that_races_with_leaving_poll_mode_is_found_at_once() {
    for (version, waits) in [((7, 2), None), ((9, 2), Some(Wait(0))), ((11, 1), Some(Wait(0)))] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, VIRTIO, &mut env);
        env.races[0] = true;
        assert!(aio.aio_poll(&mut env, true));
        let calls = env.take_calls();
        assert_eq!(calls.last(), Some(&Dispatch(0, Via::Poll)));
        let wait = calls.iter().copied().find(|call| matches!(call, Wait(_)));
        assert_eq!(wait, waits, "{version:?}");
    }
}

#[test]
fn a_polled_handler_moves_to_the_head_since_8_1() {
    for (version, first) in [((8, 0), Poll(1)), ((8, 1), Poll(0))] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, [Kind::Polled; 2], &mut env);
        env.has_work[0] = true;
        aio.aio_poll(&mut env, true);
        env.take_calls();
        aio.aio_poll(&mut env, true);
        assert_eq!(env.take_calls()[0], first, "{version:?}");
    }
}

#[test]
fn collecting_from_the_ring_keeps_poll_mode_since_10_2() {
    for (version, lasts) in [((10, 1), false), ((10, 2), true), ((11, 1), true)] {
        let mut env = Script::new(Monitor::Uring);
        let mut aio = polling(version, VIRTIO, &mut env);
        env.has_work[0] = true;
        aio.aio_poll(&mut env, true);
        assert!(aio.started);
        (env.fd_ready, env.timeout) = (std::vec![1], 0);
        assert!(aio.aio_poll(&mut env, true));
        assert_eq!(aio.started, lasts, "{version:?}");
    }
}

#[test]
fn one_handler_that_cannot_be_polled_forbids_polling_unless_the_monitor_is_a_ring() {
    for (monitor, polls) in [(Monitor::Poll, false), (Monitor::Uring, true)] {
        let mut env = Script::new(monitor);
        let mut aio = polling((11, 0), VIRTIO, &mut env);
        aio.register(0, Kind::FdOnly);
        aio.aio_poll(&mut env, true);
        assert_eq!(env.take_calls().contains(&Poll(1)), polls, "{monitor:?}");
        aio.register(0, Kind::Vacant);
        aio.aio_poll(&mut env, true);
        assert!(env.take_calls().contains(&Poll(1)));
    }
}

#[test]
fn an_idle_handler_is_removed_after_seven_seconds_if_the_monitor_is_a_ring() {
    for version in [(9, 2), (10, 2), (11, 1)] {
        for (monitor, removed) in [(Monitor::Poll, false), (Monitor::Uring, true)] {
            let mut env = Script::new(monitor);
            let mut aio = polling(version, VIRTIO, &mut env);
            env.timeout = 20_000;
            aio.aio_poll(&mut env, true); // before the weighted revision, the time begins to run here
            assert!(aio.aio.handlers().iter().all(Handler::in_poll));
            env.now += IDLE_REMOVAL_NS;
            env.has_work[0] = true;
            aio.aio_poll(&mut env, true);
            let in_poll = [0, 1].map(|h: usize| aio.aio.handlers()[h].in_poll());
            assert_eq!(in_poll, [true, !removed], "{version:?} {monitor:?}");
            assert_eq!(env.events.contains(&Traced::PollRemove(1)), removed);
            assert!(!env.events.contains(&Traced::PollRemove(0)));
            assert!(env.take_calls().contains(&Loud(1)));
        }
    }
}

#[test]
fn a_handler_that_proves_busy_on_removal_is_progress_and_polled_again() {
    for version in [(10, 2), (11, 1)] {
        let mut env = Script::new(Monitor::Uring);
        let mut aio = polling(version, VIRTIO, &mut env);
        aio.aio_poll(&mut env, true);
        env.take_calls();
        env.events.clear();
        env.now += IDLE_REMOVAL_NS;
        env.races[1] = true;
        assert!(aio.aio_poll(&mut env, true));
        assert!(env.events.contains(&Traced::PollRemove(1)));
        assert!(env.events.contains(&Traced::PollEnd { progress: true, timeout_ns: 0 }));
        assert!(env.events.contains(&Traced::Aio(Event::PollAdd(1))));
        let calls = env.take_calls();
        assert_eq!(calls[calls.len() - 2..], [Quiet(1), Dispatch(1, Via::Poll)], "{version:?}");
        assert!(aio.aio.handlers()[1].in_poll());
    }
}

#[test]
fn before_7_0_polling_does_the_work_and_nothing_is_dispatched() {
    let mut env = Script::new(Monitor::Poll);
    let mut aio = polling((6, 2), [Kind::Polled; 2], &mut env);
    env.has_work[1] = true;
    assert!(aio.aio_poll(&mut env, true));
    assert_eq!(env.take_calls(), [Poll(1), Poll(0)]);
}

#[test]
fn before_5_0_one_round_is_polled_even_without_time() {
    for (version, calls) in [((4, 2), &[Poll(1), Poll(0)][..]), ((5, 0), &[])] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, [Kind::Polled; 2], &mut env);
        env.timeout = 0;
        assert!(!aio.aio_poll(&mut env, true));
        assert_eq!(env.take_calls(), calls, "{version:?}");
    }
}

#[test]
fn a_call_that_may_not_block_neither_polls_nor_waits() {
    for version in [(7, 2), (10, 2), (11, 1)] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, VIRTIO, &mut env);
        assert!(!aio.aio_poll(&mut env, false));
        assert_eq!(env.take_calls(), [], "{version:?}");
    }
}

#[test]
fn a_timer_caps_the_polling_time() {
    let mut env = Script::new(Monitor::Poll);
    let mut aio = polling((11, 1), [Kind::Polled; 2], &mut env);
    env.timeout = 1;
    aio.aio_poll(&mut env, true);
    assert_eq!(env.events[0], Traced::PollBegin { max_ns: 1, timeout_ns: 1 });
    assert_eq!(env.take_calls(), [Poll(1), Poll(0)]); // one round, and the timer is due
}

#[test]
fn the_notifier_ends_polling_but_is_no_progress() {
    for version in [(7, 2), (10, 2), (11, 1)] {
        let mut env = Script::new(Monitor::Poll);
        let mut aio = polling(version, [Kind::Notifier, Kind::Polled], &mut env);
        env.has_work[0] = true;
        aio.aio_poll(&mut env, true);
        assert!(env.events.contains(&Traced::PollEnd { progress: false, timeout_ns: 0 }), "{version:?}");
        assert!(env.take_calls().contains(&Dispatch(0, Via::Poll)));
    }
}

#[test]
fn with_polling_off_handlers_join_the_list_before_11_1_only() {
    for (version, joins) in [((9, 2), true), ((11, 0), true), ((11, 1), false)] {
        let at = Version::new(version.0, version.1);
        let params = Params { poll_max_ns: 0, ..Params::default_for(Revision::of(at).unwrap()) };
        let mut aio = Context::new(at, params, VIRTIO.map(Handler::new).into());
        let mut env = Script::new(Monitor::Poll);
        env.fd_ready = std::vec![0];
        assert!(aio.aio_poll(&mut env, true));
        assert_eq!(aio.aio.handlers()[0].in_poll(), joins, "{version:?}");
        assert_eq!(env.now, 1_005_000, "{version:?} read the clock");
    }
}

#[test]
fn vacant_places_and_numbers_beyond_the_table_are_not_dispatched() {
    let mut env = Script::new(Monitor::Poll);
    let mut aio = polling((11, 1), VIRTIO, &mut env);
    aio.register(0, Kind::Vacant);
    env.fd_ready = std::vec![0, 7, u32::MAX];
    assert!(!aio.aio_poll(&mut env, true));
    assert!(!env.take_calls().iter().any(|call| matches!(call, Dispatch(..))));
}
