//! The guard around rust-vmm's event-manager: `run_with_timeout(0)` is a look, which dispatches what it finds.

use dwell_idle::{Halt, Idler, Policy, Price, Totals};
use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};
use std::cell::Cell;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

mod client;

struct Echo {
    stream: UnixStream,
    over: Rc<Cell<bool>>,
}

impl MutEventSubscriber for Echo {
    fn process(&mut self, _: Events, ops: &mut EventOps) {
        let mut buffer = [0; 64];
        let served = match self.stream.read(&mut buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.stream.write_all(&buffer[..n]),
            Err(error) => Err(error),
        };
        if served.is_err() {
            self.over.set(true);
            let _ = ops.remove(Events::empty(&self.stream));
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        self.over.set(ops.add(Events::new(&self.stream, EventSet::IN)).is_err());
    }
}

fn serve(stream: UnixStream, mut idler: Idler<impl Policy>) -> Result<Totals> {
    let other = |error: event_manager::Error| Error::other(format!("{error:?}"));
    let over = Rc::new(Cell::new(false));
    let mut manager = EventManager::new().map_err(other)?;
    manager.add_subscriber(Echo { stream, over: Rc::clone(&over) });
    while !over.get() {
        let (mut idle, mut events) = (idler.idle(Some(Duration::from_secs(5))), 0);
        while events == 0 && idle.polls() {
            events = manager.run_with_timeout(0).map_err(other)?;
        }
        if events == 0 {
            // Milliseconds, rounded up; -1 is without end.
            let ms = idle.halts().map_or(-1, |left| i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX));
            events = manager.run_with_timeout(ms).map_err(other)?;
        }
        idle.wakes(&[]);
        if events == 0 {
            return Err(ErrorKind::TimedOut.into());
        }
    }
    Ok(idler.totals())
}

fn run(requests: u32, think: Duration, idler: Idler<impl Policy + Send>) -> Result<Totals> {
    client::with(requests, think, |stream| serve(stream, idler))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    println!("{:?}", run(100_000, client::think()?, Idler::new(halt.leader(Price::default())))?);
    Ok(())
}

#[test]
fn every_wait_ends_with_its_request() {
    client::every_wait_ends(true, |policy| run(200, Duration::ZERO, Idler::new(policy)));
}
