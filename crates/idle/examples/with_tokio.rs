//! The guard in tokio's current-thread runtime: `on_thread_park` wakes a task while the policy wants to poll,
//! and the runtime then polls its driver without blocking. Public API only, tokio 1.51.4 or later; a task
//! that has done work tells so.

use dwell_idle::{Halt, Idler, Policy, Price, Totals, park};
use std::io::Result;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod client;

// ANCHOR: park
fn serve(stream: UnixStream, idler: Idler<impl Policy + 'static>) -> Result<Option<Totals>> {
    park::install(idler);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().on_thread_park(park::on_thread_park).build()?;
    stream.set_nonblocking(true)?;
    runtime.block_on(async {
        tokio::spawn(park::spinner());
        let mut stream = tokio::net::UnixStream::from_std(stream)?;
        let echo = tokio::spawn(async move {
            let mut buffer = [0; 4];
            while stream.read_exact(&mut buffer).await.is_ok() {
                park::worked();
                stream.write_all(&buffer).await?;
            }
            Result::Ok(())
        });
        echo.await?
    })?;
    Ok(park::remove())
}
// ANCHOR_END: park

fn run(requests: u32, think: Duration, idler: Idler<impl Policy + Send + 'static>) -> Result<Option<Totals>> {
    client::with(requests, think, |stream| serve(stream, idler))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    println!("{:?}", run(100_000, client::think()?, Idler::new(halt.leader(Price::default())))?);
    Ok(())
}

#[test]
fn every_wait_ends_with_its_request() {
    // A request that has come before the server is back is no wait.
    let totals = |policy| run(200, Duration::ZERO, Idler::new(policy)).map(|totals| totals.unwrap());
    client::every_wait_ends(true, totals);
}
