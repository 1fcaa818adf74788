//! The guard around mio's poll, as an echo server that a client calls:
//! `cargo run --release -p dwell-idle --example with_mio -- [THINK_US [RECORDING]]`

use dwell_idle::{Halt, Idler, Monotonic, Policy, Price, Record, Recorder, Totals};
use mio::net::UnixStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

mod client;

/// Whatever it decides by, and whether it is recorded or not.
type Any<P, R> = Idler<P, Monotonic, R>;

fn serve<P: Policy, R: Record>(mut stream: UnixStream, mut idler: Any<P, R>) -> std::io::Result<Totals> {
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(16));
    poll.registry().register(&mut stream, Token(0), Interest::READABLE)?;
    let timeout = Some(Duration::from_secs(5));
    loop {
        // ANCHOR: guard
        let mut idle = idler.idle(timeout); // asks the policy how long to poll
        events.clear();
        while events.is_empty() && idle.polls() {
            poll.poll(&mut events, Some(Duration::ZERO))?; // a look
        }
        if events.is_empty() {
            poll.poll(&mut events, idle.halts())?; // sleeps for what is left of the time-out
        }
        idle.wakes(&[]); // the policy learns
        // ANCHOR_END: guard
        if events.is_empty() {
            return Err(ErrorKind::TimedOut.into());
        }
        let mut buffer = [0; 64];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(idler.totals()),
                Ok(n) => stream.write_all(&buffer[..n])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
    }
}

fn run<P: Policy, R: Record>(requests: u32, think: Duration, idler: Any<P, R>) -> std::io::Result<Totals> {
    client::with(requests, think, |stream| {
        stream.set_nonblocking(true)?;
        serve(UnixStream::from_std(stream), idler)
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    let idler = Idler::new(halt.leader(Price::default()));
    let (requests, think) = (100_000, client::think()?);
    let Some(path) = std::env::args_os().nth(2) else {
        println!("{:?}", run(requests, think, idler)?);
        return Ok(());
    };
    let recorder = Recorder::create(path.as_ref())?;
    println!("{:?}", run(requests, think, idler.recording(recorder.sink("echo")))?);
    println!("{} waits recorded", recorder.finish()?.episodes);
    Ok(())
}

#[test]
fn every_wait_ends_with_its_request() {
    client::every_wait_ends(true, |policy| run(200, Duration::ZERO, Idler::new(policy)));
}
