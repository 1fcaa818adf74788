//! The I/O thread: how it waits for requests, written as text, and done.

use super::super::arm::{ParseArmError, Parts};
use super::super::service::Service;
use super::super::{LabError, Rig, os};
use crate::guest::doorbell::RequestChannel;
use crate::host::Tsc;
use crate::idle::{Halts, Idle, ParseIdleError};
use dwell_policy::{Any, Nanos, Outcome, Policy};
use dwell_replay::Rule;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use vmm_sys_util::eventfd::EventFd;

/// How an I/O thread waits for the next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loop {
    /// It sleeps until the doorbell rings.
    Blocking,
    /// It polls memory all the time.
    Busy,
    /// It polls memory for the window of a policy, then sleeps until the doorbell rings.
    Adaptive(Rule),
}

/// A way to serve a guest, and how the guest waits.
///
/// Written as `blocking`, `busy` or `adaptive:POLICY`, then, with `+` between them, `suppress` (the guest
/// saves the doorbell while the I/O thread watches) and how the guest idles, as [`Idle`] is written
/// (`guest:POLICY`, `host:NS`, `no-poll-control`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoThreadSetting {
    /// The I/O thread's loop.
    pub by: Loop,
    /// Whether the guest saves the doorbell while the I/O thread watches.
    pub suppress: bool,
    /// How the guest waits for the answer.
    pub idle: Idle,
}

const FORMS: &str =
    "blocking, busy or adaptive:POLICY, then +suppress, +guest:POLICY, +host:200us or +no-poll-control";

impl FromStr for IoThreadSetting {
    type Err = ParseArmError;

    fn from_str(text: &str) -> Result<IoThreadSetting, ParseArmError> {
        let parts = Parts::of(text, &["suppress"])?;
        let by = match parts.first {
            ("blocking", None) => Loop::Blocking,
            ("busy", None) => Loop::Busy,
            ("adaptive", Some(policy)) => Loop::Adaptive(policy.parse().map_err(ParseIdleError::from)?),
            _ => return Err(ParseArmError::Unknown { text: text.to_owned(), forms: FORMS }),
        };
        let suppress = parts.has("suppress");
        if suppress && by == Loop::Blocking {
            return Err(ParseArmError::Conflict("a blocking I/O thread needs its doorbell: no suppress"));
        }
        if matches!(parts.idle.halts, Halts::InUserSpace(_)) {
            return Err(ParseArmError::Conflict("this guest's halts are handled in the kernel (host:)"));
        }
        Ok(IoThreadSetting { by, suppress, idle: parts.idle })
    }
}

impl fmt::Display for IoThreadSetting {
    /// As it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Loop::Blocking => f.write_str("blocking")?,
            Loop::Busy => f.write_str("busy")?,
            Loop::Adaptive(rule) => write!(f, "adaptive:{rule}")?,
        }
        if self.suppress {
            f.write_str("+suppress")?;
        }
        if self.idle == Idle::host(0) { Ok(()) } else { write!(f, "+{}", self.idle) }
    }
}

/// What the I/O thread counts, for another thread to read.
#[derive(Debug, Default)]
pub(super) struct Counts {
    polls: AtomicU64,
    succeeded: AtomicU64,
    sleeps: AtomicU64,
    interrupts: AtomicU64,
}

/// What it has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Times that it watched memory.
    pub(super) polls: u64,
    /// Of those, the ones that saw a request.
    pub(super) succeeded: u64,
    /// Times that it slept, as the doorbell had not been rung. The kernel's count of switches leaves out
    /// sleeps that end before it has switched to another task: on some hosts most.
    pub(super) sleeps: u64,
    pub(super) interrupts: u64,
}

impl Counts {
    pub(super) fn read(&self) -> Counted {
        let [polls, succeeded, sleeps, interrupts] =
            [&self.polls, &self.succeeded, &self.sleeps, &self.interrupts].map(|n| n.load(Ordering::Relaxed));
        Counted { polls, succeeded, sleeps, interrupts }
    }
}

/// The I/O thread of one block.
pub(super) struct Server<'s> {
    pub(super) rig: &'s Rig,
    pub(super) channel: &'s RequestChannel,
    pub(super) irqfd: EventFd,
    pub(super) service: Nanos,
    /// Whether the guest waits for an interrupt whatever happens.
    pub(super) always_interrupts: bool,
    /// Whether the guest looks whether this thread watches.
    pub(super) suppress: bool,
    pub(super) counts: &'s Counts,
}

impl Server<'_> {
    /// Serves until it is over.
    pub(super) fn serve(&self, by: &Loop, service: &Service<'_>) -> Result<(), LabError> {
        let mut policy = match by {
            Loop::Blocking => Any::default(),
            Loop::Busy => Rule::ALWAYS.policy()?,
            Loop::Adaptive(rule) => rule.policy()?,
        };
        let mut done = 0;
        while !service.over() {
            let seen = self.wait(&mut policy, done, service)?;
            let number = self.channel.requested();
            if number != done {
                self.rig.spin(self.service);
                self.answer(number)?;
                done = number;
            }
            if seen && !self.suppress {
                // A guest that does not look whether it is watched has rung all the same.
                service.clear();
            }
        }
        Ok(())
    }

    /// One turn of the loop, as QEMU's `aio_poll`: polls for the policy's window, then sleeps until the doorbell rings,
    /// which may be for a request that a poll has seen before; and reports the length to the policy. Returns whether a
    /// poll has seen a request.
    fn wait(&self, policy: &mut Any, done: u64, service: &Service<'_>) -> Result<bool, LabError> {
        let requested = || self.channel.requested() != done;
        let start = Tsc::now();
        let window = policy.window();
        let seen = window > Nanos::ZERO && {
            let came = || requested() || service.over();
            self.channel.watch(true);
            let mut seen = came();
            while !seen && self.rig.since(start) < window {
                std::hint::spin_loop();
                seen = came();
            }
            self.counts.polls.fetch_add(1, Ordering::Relaxed);
            self.counts.succeeded.fetch_add(u64::from(seen), Ordering::Relaxed);
            seen
        };
        if !seen {
            self.channel.watch(false);
            if !(self.suppress && requested()) {
                if !service.has_rung()? {
                    self.counts.sleeps.fetch_add(1, Ordering::Relaxed);
                    service.sleep(None)?;
                }
                service.clear();
            }
        }
        policy.observe(Outcome::of(self.rig.since(start)));
        Ok(seen)
    }

    fn answer(&self, number: u64) -> Result<(), LabError> {
        self.channel.answer(number);
        if self.always_interrupts || !self.channel.idle_state.watches() {
            self.irqfd.write(1).map_err(os("writing to an irqfd"))?;
            self.counts.interrupts.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
