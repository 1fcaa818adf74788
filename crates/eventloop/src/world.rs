//! The loop, over a way to wait.

use crate::sleep::looks_once_more;
use crate::source::{Source, SourceId};
use crate::timers::{TimerId, Timers};
use crate::wait::{Epoll, Wait, Watch};
use dwell_idle::{Clock, Idler, Monotonic, Nanos, Policy, Record};
use rustix::fd::{AsFd, BorrowedFd};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::time::Duration;

/// Units of work for one run of a source.
pub const BUDGET: u32 = 64;
/// Steps between two looks at file descriptors, at most: `epoll_wait(0)` takes about 160 ns.
pub const FD_STEPS: u32 = 32;
/// Rounds of looks while polling between two looks at file descriptors.
pub const FD_ROUNDS: u32 = 32;

/// What happened in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// How many sources were run.
    pub ran: usize,
    /// Whether timers were.
    pub timers: bool,
    /// Whether the loop slept.
    pub slept: bool,
}

/// A file descriptor that cannot be looked at.
struct Blind<F, R> {
    fd: F,
    run: R,
}

impl<F: AsFd, R: FnMut(u32) -> bool> Source for Blind<F, R> {
    fn look(&mut self) -> bool {
        false
    }

    fn run(&mut self, budget: u32) -> bool {
        (self.run)(budget)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// The sources, and those that have something to do.
#[derive(Default)]
struct Sources<'a> {
    /// By their numbers; `None` where one was removed.
    all: Vec<Option<Slot<'a>>>,
    /// In the order in which they were seen.
    ready: VecDeque<u32>,
}

struct Slot<'a> {
    source: Box<dyn Source + 'a>,
    /// Whether it can be looked at.
    looks: bool,
    /// Whether it is in the queue.
    ready: bool,
}

impl<'a> Sources<'a> {
    fn is_ready(&mut self, id: SourceId) {
        let Some(Some(slot)) = self.all.get_mut(id.0 as usize) else { return };
        if !slot.ready {
            slot.ready = true;
            self.ready.push_back(id.0);
        }
    }

    /// Looks at every source; whether any has something to do.
    fn look(&mut self) -> bool {
        for (id, slot) in (0u32..).zip(&mut self.all) {
            if let Some(slot) = slot
                && slot.looks
                && !slot.ready
                && slot.source.look()
            {
                slot.ready = true;
                self.ready.push_back(id);
            }
        }
        !self.ready.is_empty()
    }

    /// Runs each that is ready once; how many.
    fn run(&mut self) -> usize {
        let turn = self.ready.len();
        for _ in 0..turn {
            let Some(id) = self.ready.pop_front() else { break };
            let Some(slot) = &mut self.all[id as usize] else { continue };
            // Before it is run: one that panics is looked at again.
            slot.ready = false;
            if slot.source.run(BUDGET) {
                slot.ready = true;
                self.ready.push_back(id);
            }
        }
        turn
    }

    fn all(&mut self, call: impl Fn(&mut dyn Source)) {
        self.all.iter_mut().flatten().for_each(|slot| call(slot.source.as_mut()));
    }

    /// The lowest number that no source has.
    fn free(&self) -> usize {
        self.all.iter().position(Option::is_none).unwrap_or(self.all.len())
    }
}

/// An event loop.
pub struct Loop<'a, P, C = Monotonic, R = (), W = Epoll> {
    idler: Idler<P, C, R>,
    wait: W,
    sources: Sources<'a>,
    timers: Timers<'a>,
    /// Whether there are file descriptors that cannot be looked at.
    blind: bool,
    /// Steps since the last look at file descriptors.
    steps: u32,
    /// The numbers of the sources that a wait made ready.
    woke: Vec<u32>,
}

impl<P: fmt::Debug, C: fmt::Debug, R: fmt::Debug, W: fmt::Debug> fmt::Debug for Loop<'_, P, C, R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loop").field("idler", &self.idler).field("wait", &self.wait).finish_non_exhaustive()
    }
}

impl<'a, P: Policy, C: Clock, R: Record> Loop<'a, P, C, R> {
    /// A loop without sources, which waits by epoll.
    ///
    /// # Errors
    /// No epoll instance could be made.
    pub fn new(idler: Idler<P, C, R>) -> io::Result<Loop<'a, P, C, R>> {
        Ok(Loop::over(idler, Epoll::new()?))
    }
}

impl<'a, P: Policy, C: Clock, R: Record, W: Watch> Loop<'a, P, C, R, W> {
    /// Adds a source; it is quiet from here.
    ///
    /// # Errors
    /// Its file descriptor cannot be watched.
    pub fn add(&mut self, source: impl Source + 'a) -> io::Result<SourceId> {
        let id = self.next();
        if let Some(fd) = source.fd() {
            self.wait.watch(id, fd, true)?;
        }
        Ok(self.push(source))
    }

    /// Removes a source and no longer watches its file descriptor. Its number goes to the next source that is added.
    ///
    /// # Errors
    /// There is no source of this number, or its file descriptor was closed while the loop had it.
    pub fn remove(&mut self, id: SourceId) -> io::Result<()> {
        let source = self.take(id).ok_or(io::ErrorKind::NotFound)?;
        match source.fd() {
            Some(fd) => self.wait.forget(id, fd),
            None => Ok(()),
        }
    }

    /// Adds a file descriptor that cannot be looked at without a system call: a socket, a listener, a
    /// timerfd. `run` is called while it is readable, as [`Source::run`] is. It must not be closed elsewhere
    /// while the loop has it.
    ///
    /// # Errors
    /// It cannot be watched.
    pub fn add_fd(&mut self, fd: impl AsFd + 'a, run: impl FnMut(u32) -> bool + 'a) -> io::Result<SourceId> {
        let id = self.next();
        self.wait.watch(id, fd.as_fd(), false)?;
        Ok(self.push_blind(Blind { fd, run }))
    }
}

impl<'a, P: Policy, C: Clock, R: Record, W: Wait> Loop<'a, P, C, R, W> {
    /// A loop without sources over another way to wait: [`Uring`](crate::Uring), or a simulated one.
    pub fn over(idler: Idler<P, C, R>, wait: W) -> Loop<'a, P, C, R, W> {
        let (sources, timers) = (Sources::default(), Timers::default());
        Loop { idler, wait, sources, timers, blind: false, steps: 0, woke: Vec::new() }
    }

    /// The number of the next source.
    fn next(&self) -> SourceId {
        SourceId(u32::try_from(self.sources.free()).unwrap_or(u32::MAX))
    }

    fn put(&mut self, slot: Slot<'a>) -> SourceId {
        let id = self.next();
        match self.sources.all.get_mut(id.0 as usize) {
            Some(place) => *place = Some(slot),
            None => self.sources.all.push(Some(slot)),
        }
        id
    }

    /// Adds a source that the way to wait already knows by the number that it gets: the lowest that is free, from 0.
    pub fn push(&mut self, mut source: impl Source + 'a) -> SourceId {
        source.quiet();
        self.put(Slot { source: Box::new(source), looks: true, ready: false })
    }

    /// As [`push`](Loop::push), of a source that is never looked at: only the way to wait reports it.
    pub fn push_blind(&mut self, source: impl Source + 'a) -> SourceId {
        self.blind = true;
        self.put(Slot { source: Box::new(source), looks: false, ready: false })
    }

    /// Takes a source out of the loop; the way to wait must no longer report its number. Its notifications
    /// are as the loop left them: off.
    pub fn take(&mut self, id: SourceId) -> Option<Box<dyn Source + 'a>> {
        let slot = self.sources.all.get_mut(id.0 as usize)?.take()?;
        self.sources.ready.retain(|ready| *ready != id.0);
        self.blind = self.sources.all.iter().flatten().any(|slot| !slot.looks);
        Some(slot.source)
    }

    /// Calls back after a while, and again after what the callback returns.
    pub fn after(&mut self, time: Duration, callback: impl FnMut() -> Option<Duration> + 'a) -> TimerId {
        let after = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let at = self.idler.clock().now().get().saturating_add(after);
        self.timers.add(Nanos(at), Box::new(callback))
    }

    /// Takes a timer back; whether it was still there. Takes as long as there are timers.
    pub fn cancel(&mut self, timer: TimerId) -> bool {
        self.timers.remove(timer)
    }

    /// The idler: what it did, and its policy.
    pub const fn idler(&self) -> &Idler<P, C, R> {
        &self.idler
    }

    /// Steps until `over`, which is asked before each step.
    ///
    /// # Errors
    /// Those of [`step`](Loop::step).
    pub fn run_until(&mut self, mut over: impl FnMut() -> bool) -> io::Result<()> {
        while !over() {
            self.step()?;
        }
        Ok(())
    }

    /// One step: looks, waits if there is nothing to do, and runs what has.
    ///
    /// # Errors
    /// Those of the system calls that wait.
    pub fn step(&mut self) -> io::Result<Step> {
        let timers = self.timers.run(|| self.idler.clock().now());
        self.sources.look();
        self.steps = self.steps.saturating_add(1);
        if self.blind && (self.steps >= FD_STEPS || self.wait.ring() == Some(true)) {
            self.look_at_fds()?;
        }
        let slept = if self.sources.ready.is_empty() && !timers { self.idle()? } else { false };
        Ok(Step { ran: self.sources.run(), timers, slept })
    }

    fn look_at_fds(&mut self) -> io::Result<()> {
        self.steps = 0;
        self.wait.wait(Some(Duration::ZERO), |id| self.sources.is_ready(id))
    }

    /// There is nothing to do. Whether the loop slept.
    fn idle(&mut self) -> io::Result<bool> {
        let Loop { idler, wait, sources, timers, blind, steps, woke, .. } = self;
        let until = |at: Nanos| Duration::from_nanos(at.saturating_sub(idler.clock().now()).get());
        let timeout = timers.first().map(until);
        let (mut idle, mut rounds, mut slept) = (idler.idle(timeout), 0u32, false);
        while idle.polls() && !sources.look() {
            rounds = rounds % FD_ROUNDS + 1;
            if *blind && wait.ring().unwrap_or(rounds == FD_ROUNDS) {
                wait.wait(Some(Duration::ZERO), |id| sources.is_ready(id))?;
                if !sources.ready.is_empty() {
                    break;
                }
            }
        }
        if sources.ready.is_empty() {
            let loud = |sources: &mut Sources<'_>| sources.all(|source| source.loud());
            let waited = if looks_once_more(sources, loud, Sources::look) {
                Ok(())
            } else {
                let left = idle.halts();
                slept = left != Some(Duration::ZERO);
                *steps = 0;
                wait.wait(left, |id| sources.is_ready(id))
            };
            sources.all(|source| source.quiet());
            waited?;
        }
        woke.clear();
        woke.extend(&sources.ready);
        idle.wakes(woke);
        Ok(slept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_idle::policy::reference::Never;

    /// They were counted until the next look at file descriptors, of which there may be none: after 2^32 the count
    /// overflowed.
    #[test]
    fn number_of_steps_has_no_limit() {
        let mut looped = Loop::new(Idler::new(Never)).unwrap();
        looped.after(Duration::ZERO, || Some(Duration::ZERO));
        looped.steps = u32::MAX;
        looped.step().unwrap();
    }
}
