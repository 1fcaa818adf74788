//! The other end of the examples: a client in a thread of its own that sends a request and sleeps until it
//! has the answer.

#[cfg(test)]
use dwell_idle::{Nanos, Totals, policy::reference::Fixed};
use std::io::{Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// Runs the server, and a client that makes so many requests, each after thinking for a while.
pub(crate) fn with<T>(
    requests: u32,
    think: Duration,
    serve: impl FnOnce(UnixStream) -> Result<T>,
) -> Result<T> {
    let (mut client, server) = UnixStream::pair()?;
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    thread::scope(|scope| {
        let calls = scope.spawn(move || {
            let begin = Instant::now();
            for request in 0..requests {
                let until = Instant::now() + think;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                let sent = request.to_ne_bytes();
                let mut answer = [0; 4];
                client.write_all(&sent)?;
                client.read_exact(&mut answer)?;
                if sent != answer {
                    return Err(Error::other("the answer is not the request"));
                }
            }
            Ok(f64::from(requests) / begin.elapsed().as_secs_f64())
        });
        let served = serve(server)?;
        let rate = calls.join().map_err(|_| Error::other("the client has panicked"))??;
        println!("{rate:.0} requests/s");
        Ok(served)
    })
}

/// The think time from the command line \[us\].
#[allow(dead_code)]
pub(crate) fn think() -> std::result::Result<Duration, std::num::ParseIntError> {
    Ok(Duration::from_micros(std::env::args().nth(1).map_or(Ok(0), |us| us.parse())?))
}

/// The test of an example: without a window it polls in no wait, and with a long one it catches events.
/// `halts` is whether it halts in every wait then, also where the event is already there.
#[cfg(test)]
#[allow(dead_code)]
pub(crate) fn every_wait_ends(halts: bool, run: impl Fn(Fixed) -> Result<Totals>) {
    let never = run(Fixed(Nanos(0))).unwrap();
    assert!(never.caught == 0 && never.halts > 0, "{never:?}");
    assert!(!halts || never.halts == never.episodes, "{never:?}");
    let polls = run(Fixed(Nanos(50_000_000))).unwrap();
    assert!(polls.caught > 0, "{polls:?}");
}
