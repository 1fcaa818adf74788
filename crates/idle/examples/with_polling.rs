//! The guard around the wait of the crate `polling`, which smol and async-io stand on.

use dwell_idle::{Halt, Idler, Policy, Price, Totals};
use polling::{Event, Events, Poller};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

mod client;

fn serve(poller: &Poller, mut stream: &UnixStream, mut idler: Idler<impl Policy>) -> std::io::Result<Totals> {
    let mut events = Events::new();
    loop {
        let mut idle = idler.idle(Some(Duration::from_secs(5)));
        events.clear();
        while events.is_empty() && idle.polls() {
            poller.wait(&mut events, Some(Duration::ZERO))?;
        }
        if events.is_empty() {
            poller.wait(&mut events, idle.halts())?;
        }
        idle.wakes(&[]);
        if events.is_empty() {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut buffer = [0; 64];
        match stream.read(&mut buffer)? {
            0 => return Ok(idler.totals()),
            n => stream.write_all(&buffer[..n])?,
        }
        poller.modify(stream, Event::readable(0))?;
    }
}

fn run(requests: u32, think: Duration, idler: Idler<impl Policy + Send>) -> std::io::Result<Totals> {
    client::with(requests, think, |stream| {
        let poller = Poller::new()?;
        // SAFETY: the stream is deleted from the poller below, before it is closed.
        #[allow(unsafe_code)]
        unsafe {
            poller.add(&stream, Event::readable(0))?;
        }
        let served = serve(&poller, &stream, idler);
        poller.delete(&stream)?;
        served
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    println!("{:?}", run(100_000, client::think()?, Idler::new(halt.leader(Price::default())))?);
    Ok(())
}

#[test]
fn every_wait_ends_with_its_request() {
    client::every_wait_ends(true, |policy| run(200, Duration::ZERO, Idler::new(policy)));
}
