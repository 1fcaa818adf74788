//! Two event loops that wait for each other: threads, each of which rings an eventfd of the other, and polls for its own as
//! QEMU's event loops do before they sleep.

use super::coupled::Did;
use super::run::both;
use super::{LabError, Rig};
use crate::host::Tsc;
use dwell_idle::Idler;
use dwell_machine::threads::{Thread, Usage};
use dwell_policy::{Any, Nanos};
use dwell_replay::Rule;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, read, retry_on_intr, write};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// The names of the threads.
pub(super) const NAMES: [&str; 2] = ["dwell-ping", "dwell-pong"];
/// How often a sleeping thread looks whether it shall stop.
const STOP_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Where a thread is rung.
struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Bell> {
        Ok(Bell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    fn ring(&self) -> io::Result<()> {
        write(&self.0, &1u64.to_ne_bytes())?;
        Ok(())
    }

    /// Whether it has been rung since the last time.
    fn is_rung(&self) -> io::Result<bool> {
        match read(&self.0, &mut [0; 8]) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn wait(&self, idler: &mut Idler<Any>, stop: &[&AtomicBool]) -> io::Result<()> {
        let mut idle = idler.idle(None);
        let mut rung = false;
        while !rung && idle.polls() {
            rung = self.is_rung()?;
        }
        while !rung && !stop.iter().any(|stop| stop.load(Ordering::Relaxed)) {
            idle.halts();
            retry_on_intr(|| poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&STOP_LOOK)))?;
            rung = self.is_rung()?;
        }
        idle.wakes(&[]);
        Ok(())
    }
}

/// Exchanges a message after each of the thinking times, under `rule`, of which the first `warm_up` do not count.
pub(super) fn exchanges(
    rig: &Rig,
    think: &[Nanos],
    warm_up: usize,
    rule: &Rule,
    stop: &AtomicBool,
) -> Result<Did, LabError> {
    let [mut server, mut other] = [Idler::new(rule.policy()?), Idler::new(rule.policy()?)];
    let bells = [Bell::new().map_err(LabError::Bell)?, Bell::new().map_err(LabError::Bell)?];
    let [to_server, to_other] = &bells;
    let failed = AtomicBool::new(false);
    let stops = [stop, &failed];
    let used = || Usage::of(Thread::current()).map_err(LabError::Usage);
    let replies = || -> Result<Nanos, LabError> {
        let _place = rig.fair_thread(1)?;
        let mut before = used()?;
        for number in 0..think.len() {
            if number == warm_up {
                before = used()?;
            }
            to_other.wait(&mut other, &stops).map_err(LabError::Bell)?;
            to_server.ring().map_err(LabError::Bell)?;
        }
        Ok((used()? - before).cpu)
    };
    let serves = || -> Result<(Nanos, Nanos), LabError> {
        let _place = rig.fair_thread(0)?;
        let mut before = (Tsc::now(), used()?);
        for (number, think) in think.iter().enumerate() {
            if number == warm_up {
                before = (Tsc::now(), used()?);
            }
            rig.spin(*think);
            to_other.ring().map_err(LabError::Bell)?;
            to_server.wait(&mut server, &stops).map_err(LabError::Bell)?;
        }
        Ok((rig.since(before.0), (used()? - before.1).cpu))
    };
    let ((took, server), other) = both(NAMES, &failed, serves, replies)?;
    if stop.load(Ordering::Relaxed) {
        return Err(LabError::Stopped);
    }
    let exchanges = think.len().saturating_sub(warm_up) as f64;
    Ok(Did {
        per_s: exchanges * 1e9 / took.get().max(1) as f64,
        cpu_ns: (server.get() + other.get()) as f64 / exchanges,
    })
}
