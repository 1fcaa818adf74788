//! The guard around io_uring: a look is two loads of the completion queue, without a system call.
//!
//! The ring has `TASKRUN_FLAG`: with `COOP_TASKRUN` alone, completions are posted only when the thread enters
//! the kernel, and a look would not see them.

use dwell_idle::{Halt, Idler, Policy, Price, Totals};
use io_uring::{IoUring, opcode, types};
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

mod client;

/// Waits for a completion for five seconds.
fn wait(ring: &mut IoUring, idler: &mut Idler<impl Policy>) -> Result<i32> {
    let mut idle = idler.idle(Some(Duration::from_secs(5)));
    let seen = |ring: &mut IoUring| !ring.completion().is_empty() || ring.submission().taskrun();
    while !seen(ring) && idle.polls() {}
    if !seen(ring) {
        let left = idle.halts().map(types::Timespec::from).unwrap_or_default();
        ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&left)).ok();
    } else if ring.completion().is_empty() {
        ring.submit_and_wait(1)?; // What is due is posted on entry.
    }
    idle.wakes(&[]);
    ring.completion().next().map(|done| done.result()).ok_or(ErrorKind::TimedOut.into())
}

/// Submits one operation and waits for it.
fn complete(
    ring: &mut IoUring,
    idler: &mut Idler<impl Policy>,
    operation: io_uring::squeue::Entry,
) -> Result<usize> {
    // SAFETY: the buffer of every operation here is never freed, and only one operation at a time uses it.
    #[allow(unsafe_code)]
    unsafe {
        ring.submission().push(&operation).map_err(Error::other)?;
    }
    ring.submit()?;
    let done = wait(ring, idler)?;
    usize::try_from(done).map_err(|_| Error::from_raw_os_error(-done))
}

fn serve(stream: &UnixStream, mut idler: Idler<impl Policy>) -> Result<Totals> {
    let mut ring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(8)?;
    let socket = types::Fd(stream.as_raw_fd());
    // Never freed: an operation whose completion did not come in time may still write to it.
    let buffer = Box::leak(Box::new([0u8; 64]));
    loop {
        let place = buffer.as_mut_ptr();
        match complete(&mut ring, &mut idler, opcode::Recv::new(socket, place, 64).build())? {
            0 => return Ok(idler.totals()),
            n => {
                let n = u32::try_from(n).map_err(Error::other)?;
                complete(&mut ring, &mut idler, opcode::Send::new(socket, place, n).build())?;
            }
        }
    }
}

fn run(requests: u32, think: Duration, idler: Idler<impl Policy + Send>) -> Result<Totals> {
    client::with(requests, think, |stream| serve(&stream, idler))
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let halt = Halt::measure()?;
    println!("{:?}", run(100_000, client::think()?, Idler::new(halt.leader(Price::default())))?);
    Ok(())
}

#[test]
fn every_wait_ends_with_its_request() {
    // ENOSYS, EPERM and EINVAL: no io_uring, forbidden here, or older than 5.19.
    let run = |policy| run(200, Duration::ZERO, Idler::new(policy));
    match run(dwell_idle::policy::reference::Fixed(dwell_idle::Nanos(0))) {
        Err(error) if matches!(error.raw_os_error(), Some(1 | 22 | 38)) => {
            dwell_testing::skip!("machine", "every_wait_ends_with_its_request", "no io_uring: {error}");
        }
        _ => client::every_wait_ends(false, run),
    }
}
