//! QEMU's own iteration of an event loop, over the sources of a [`Loop`].

use crate::source::SourceId;
use crate::timers::Timers;
use crate::wait::Wait;
use crate::world::{BUDGET, Loop, Sources};
use dwell_idle::policy::iothread::{Aio, Env, Event, Handler, Kind, Monitor, Via};
use dwell_idle::{Clock, Record};
use std::io;
use std::time::Duration;

/// What happens in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// What QEMU traces.
    Traced(Event),
    /// A source is run next, because it was seen in this way.
    Dispatched(SourceId, Via),
}

impl<H, C, R, W> Loop<'_, Aio<H>, C, R, W>
where
    H: AsRef<[Handler]> + AsMut<[Handler]>,
    C: Clock,
    R: Record,
    W: Wait,
{
    /// One iteration exactly as QEMU's `aio_poll` of this release does it, instead of a [`step`](Loop::step):
    /// with its order of polling, waiting, dispatching and learning, its last-in-first-out order of dispatch,
    /// and no bound on how long a source waits for its turn. Returns whether there was anything to do but for
    /// the notifier.
    ///
    /// The handlers of the policy are the sources of the same numbers. A source whose handler is
    /// [`Kind::Notifier`] is QEMU's notifier: it is run in each iteration, after the wait. Waits are not
    /// recorded. A loop that has begun in this way has to go on in it.
    ///
    /// # Errors
    /// Those of the system calls that wait.
    pub fn aio_poll(&mut self, blocking: bool, see: impl FnMut(Seen)) -> io::Result<bool> {
        let (aio, clock) = self.idler.parts_mut();
        let notifier = aio.handlers().iter().position(|handler| handler.kind() == Kind::Notifier);
        let notifier = notifier.and_then(|place| u32::try_from(place).ok());
        if !std::mem::replace(&mut self.exact, true) {
            self.sources
                .each(|number, source| if Some(number) == notifier { source.quiet() } else { source.loud() });
        }
        let ring = self.wait.ring().is_some();
        let (sources, timers, wait) = (&mut self.sources, &mut self.timers, &mut self.wait);
        let mut world = World { clock, sources, timers, wait, ring, notifier, see, failed: None };
        let progress = aio.aio_poll(&mut world, blocking);
        world.failed.map_or(Ok(progress), Err)
    }
}

/// The environment of a context: the parts of a loop.
struct World<'l, 'a, C, W, S> {
    clock: &'l C,
    sources: &'l mut Sources<'a>,
    timers: &'l mut Timers<'a>,
    wait: &'l mut W,
    ring: bool,
    notifier: Option<u32>,
    see: S,
    failed: Option<io::Error>,
}

impl<C: Clock, W: Wait, S: FnMut(Seen)> World<'_, '_, C, W, S> {
    fn wait_for(&mut self, timeout: Option<Duration>, mut ready: impl FnMut(u32)) {
        if let Err(error) = self.wait.wait(timeout, |id| ready(id.number())) {
            self.failed = Some(error);
        }
    }
}

impl<C: Clock, W: Wait, S: FnMut(Seen)> Env for World<'_, '_, C, W, S> {
    fn now(&mut self) -> i64 {
        self.clock.now().get().cast_signed()
    }

    fn monitor(&self) -> Monitor {
        if self.ring { Monitor::Uring } else { Monitor::Poll }
    }

    fn ring_needs_service(&mut self) -> bool {
        self.wait.ring() == Some(true)
    }

    fn timeout(&mut self) -> i64 {
        let Some(at) = self.timers.first() else { return -1 };
        i64::try_from(at.saturating_sub(self.clock.now_for_timers()).get()).unwrap_or(i64::MAX)
    }

    fn io_poll(&mut self, h: u32) -> bool {
        self.sources.one(h).is_some_and(|source| source.look())
    }

    fn io_poll_begin(&mut self, h: u32) {
        if let Some(source) = self.sources.one(h) {
            source.quiet();
        }
    }

    fn io_poll_end(&mut self, h: u32) {
        if let Some(source) = self.sources.one(h) {
            source.loud();
        }
    }

    fn announce_wait(&mut self) -> bool {
        let notifier = self.notifier.and_then(|h| self.sources.one(h));
        notifier.is_some_and(|source| {
            source.loud();
            source.look()
        })
    }

    fn retract_wait(&mut self) {
        if let Some(source) = self.notifier.and_then(|h| self.sources.one(h)) {
            source.quiet();
        }
    }

    fn accept_notifications(&mut self) {
        if let Some(source) = self.notifier.and_then(|h| self.sources.one(h)) {
            source.run(BUDGET);
        }
    }

    fn wait(&mut self, timeout_ns: i64, ready: impl FnMut(u32)) {
        let timeout = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        self.wait_for(timeout, ready);
    }

    fn run_bottom_halves(&mut self) -> bool {
        false
    }

    fn dispatch(&mut self, h: u32, via: Via) {
        (self.see)(Seen::Dispatched(SourceId(h), via));
        // The notifier was run when its notifications were accepted.
        if Some(h) != self.notifier
            && let Some(source) = self.sources.one(h)
        {
            source.run(BUDGET);
        }
    }

    fn run_timers(&mut self) -> bool {
        let now = self.clock.now_for_timers();
        self.timers.run(|| now)
    }

    fn trace(&mut self, event: Event) {
        (self.see)(Seen::Traced(event));
    }
}
