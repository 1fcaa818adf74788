//! The guard in tokio's current-thread runtime: `on_thread_park` wakes a task while the policy wants to poll, and the runtime then
//! polls its driver without blocking. Public API only, tokio 1.51.4 or later; a task that has done work tells so.

use dwell_idle::policy::Outcome;
use dwell_idle::{Clock, Halt, Monotonic, Nanos, Policy, Price};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::Result;
use std::os::unix::net::UnixStream;
use std::task::{Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod client;

/// What the hook keeps. The runtime parks several times in one wait, so the wait is not a guard here: it begins at the first
/// park after work, and ends with the next work.
struct Park {
    policy: Box<dyn Policy>,
    start: Option<Nanos>,
    woke: Nanos,
    window: Nanos,
    halts: u64,
    waits: u64,
}

thread_local! {
    static PARK: RefCell<Option<Park>> = const { RefCell::new(None) };
    static SPINNER: RefCell<Option<Waker>> = const { RefCell::new(None) };
    static WORKED: Cell<bool> = const { Cell::new(false) };
}

/// The runtime is about to block.
fn park() {
    PARK.with_borrow_mut(|park| {
        let Some(park) = park else { return };
        let now = Monotonic.now();
        if WORKED.take() || park.start.is_none() {
            if let Some(start) = park.start.replace(now) {
                park.policy.observe(Outcome::of(park.woke.saturating_sub(start)));
            }
            park.window = park.policy.window_after(now.saturating_sub(park.woke));
            park.waits += 1;
        }
        if now.saturating_sub(park.start.unwrap_or(now)) < park.window {
            SPINNER.with_borrow(|spinner| spinner.as_ref().map(Waker::wake_by_ref));
        } else {
            park.halts += 1;
        }
    });
}

/// A task has something to do: the wait is over.
fn worked() {
    if !WORKED.replace(true) {
        PARK.with_borrow_mut(|park| park.as_mut().map(|park| park.woke = Monotonic.now()));
    }
}

fn serve(stream: UnixStream, policy: Box<dyn Policy>) -> Result<(u64, u64)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().on_thread_park(park).build()?;
    let woke = Monotonic.now();
    PARK.set(Some(Park { policy, start: None, woke, window: Nanos::ZERO, halts: 0, waits: 0 }));
    stream.set_nonblocking(true)?;
    runtime.block_on(async {
        tokio::spawn(poll_fn(|context| {
            SPINNER.set(Some(context.waker().clone()));
            Poll::<()>::Pending
        }));
        let mut stream = tokio::net::UnixStream::from_std(stream)?;
        let echo = tokio::spawn(async move {
            let mut buffer = [0; 4];
            while stream.read_exact(&mut buffer).await.is_ok() {
                worked();
                stream.write_all(&buffer).await?;
            }
            Result::Ok(())
        });
        echo.await?
    })?;
    SPINNER.take();
    Ok(PARK.take().map_or((0, 0), |park| (park.halts, park.waits)))
}

fn run(requests: u32, think: Duration, policy: impl Policy + Send + 'static) -> Result<(u64, u64)> {
    client::with(requests, think, |stream| serve(stream, Box::new(policy)))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    let (halts, waits) = run(100_000, client::think()?, halt.leader(Price::default()))?;
    println!("{halts} halts in {waits} waits");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_idle::policy::reference::{Fixed, Never};

    #[test]
    fn every_wait_ends_with_its_request() {
        let (halts, waits) = run(200, Duration::ZERO, Never).unwrap();
        // A request that has come before the server is back is no wait.
        assert!(halts >= waits && waits > 0, "{halts} {waits}");
        let (halts, waits) = run(200, Duration::ZERO, Fixed(Nanos(50_000_000))).unwrap();
        assert!(halts < waits, "{halts} {waits}");
    }
}
