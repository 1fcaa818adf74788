//! The loops in virtual time once more, through `dwell-eventloop`: its sources, timers and way to wait are
//! those of the case.

use crate::aio::{EPOCH, Loop, LoopState, Traced, World, expect, table};
use dwell_eventloop::{Idler, Nanos, Seen, Source, SourceId, Wait};
use dwell_idle::Clock;
use dwell_policy::iothread::{Aio, Env, Handler, Kind, Monitor, Params, Release, Via};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Duration;

type Shared = Rc<RefCell<World>>;

struct Time(Shared);

impl Clock for Time {
    fn now(&self) -> Nanos {
        Nanos(self.0.borrow_mut().now().try_into().unwrap())
    }
    fn now_for_timers(&self) -> Nanos {
        Nanos(self.0.borrow().now.try_into().unwrap())
    }
}

/// A handler of the case. The notifier is loud where a wait was announced.
struct Watched {
    world: Shared,
    number: u32,
    via: Rc<Cell<Via>>,
    /// The next look is the one that announcing a wait ends with, which takes no time in the case.
    announced: bool,
}

impl Watched {
    fn is_notifier(&self) -> bool {
        self.number == self.world.borrow().notifier()
    }
}

impl Source for Watched {
    fn look(&mut self) -> bool {
        let mut world = self.world.borrow_mut();
        if std::mem::take(&mut self.announced) { world.notified } else { world.io_poll(self.number) }
    }
    fn quiet(&mut self) {
        let notifier = self.is_notifier();
        let mut world = self.world.borrow_mut();
        if notifier { world.retract_wait() } else { world.io_poll_begin(self.number) }
    }
    fn loud(&mut self) {
        let notifier = self.is_notifier();
        let mut world = self.world.borrow_mut();
        if notifier {
            world.announce_wait();
            self.announced = true;
        } else {
            world.io_poll_end(self.number);
        }
    }
    fn run(&mut self, _: u32) -> bool {
        let notifier = self.is_notifier();
        let mut world = self.world.borrow_mut();
        if notifier {
            world.accept_notifications()
        } else {
            world.dispatch(self.number, self.via.get())
        }
        false
    }
}

struct Waits(Shared);

impl Wait for Waits {
    fn wait(&mut self, timeout: Option<Duration>, mut ready: impl FnMut(SourceId)) -> io::Result<()> {
        let timeout = timeout.map_or(-1, |time| i64::try_from(time.as_nanos()).unwrap());
        self.0.borrow_mut().wait(timeout, |h| ready(SourceId::of(h)));
        Ok(())
    }
    fn ring(&mut self) -> Option<bool> {
        let mut world = self.0.borrow_mut();
        (world.monitor() == Monitor::Uring).then(|| world.ring_needs_service())
    }
}

impl Loop {
    /// As `check`, through the loop.
    pub(super) fn check_looped(
        &self,
        release: Release,
        params: Params,
        kinds: &[Kind],
    ) -> Result<usize, String> {
        let world = Rc::new(RefCell::new(World::new(self, kinds)));
        // Timers are the loop's own.
        let timers = std::mem::take(&mut world.borrow_mut().timers);
        let via = Rc::new(Cell::new(Via::Fd));
        let mut handlers = table(kinds);
        handlers.push(Handler::new(Kind::Notifier));
        let idler = Idler::with_clock(Aio::new(release, params, handlers), Time(world.clone()));
        let mut looped = dwell_eventloop::Loop::over(idler, Waits(world.clone()));
        for at in timers {
            let _ = looped.after(Duration::from_nanos((at - EPOCH).try_into().unwrap()), || None);
        }
        let notifier = world.borrow().notifier();
        for number in 0..=notifier {
            let source = Watched { world: world.clone(), number, via: via.clone(), announced: false };
            if kinds.get(number as usize) == Some(&Kind::FdOnly) {
                looped.push_blind(source);
            } else {
                looped.push(source);
            }
        }
        for (index, expected) in self.expect.iter().enumerate() {
            let t = world.borrow().now;
            {
                let world = &mut *world.borrow_mut();
                (world.waited, world.dispatched, world.trace) = (None, Vec::new(), Vec::new());
            }
            looped
                .aio_poll(true, |seen| match seen {
                    Seen::Traced(event) => {
                        let traced = Traced::new(event, |h| world.borrow().name(h));
                        world.borrow_mut().trace.push(traced);
                    }
                    Seen::Dispatched(id, way) if id.number() == notifier => {
                        world.borrow_mut().dispatch(notifier, way);
                    }
                    Seen::Dispatched(_, way) => via.set(way),
                })
                .map_err(|error| error.to_string())?;
            let got = LoopState::after(t, looped.idler().policy(), &mut world.borrow_mut())?;
            expect(&format!("iteration {index} through the loop"), &got, expected)?;
        }
        Ok(self.expect.len())
    }
}
