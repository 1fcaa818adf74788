//! What keeps the timer: its text form and its thread.

use super::super::arm::{ParseArmError, Parts};
use super::super::service::Service;
use super::super::{LabError, Rig, os};
use crate::guest::timer::{KeptBy, TimerChannel};
use crate::guest::tsc;
use crate::host::monotonic;
use crate::idle::{Halts, Idle, duration};
use crate::vm::{Machine, Vector};
use dwell_policy::Nanos;
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use std::fmt;
use std::os::fd::OwnedFd;
use std::str::FromStr;
use vmm_sys_util::eventfd::EventFd;

/// What keeps a guest's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// KVM's local APIC: the guest writes `IA32_TSC_DEADLINE`.
    InKernel,
    /// A thread that spins until the deadline.
    Spin {
        /// How long before it the thread injects; the guest, awake in time, polls for the rest.
        early: Nanos,
    },
    /// A thread that sleeps on an absolute timerfd; the guest hands the deadline over by a doorbell.
    Timerfd,
}

/// How a thread interrupts the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inject {
    /// By a write to an irqfd.
    Irqfd,
    /// By `KVM_SIGNAL_MSI`.
    Msi,
}

/// A timer to be tried.
///
/// Written as `in-kernel`, `spin`, `spin-early=TIME` or `timerfd`, then, with `+` between them, `msi` (inject by
/// `KVM_SIGNAL_MSI`; `irqfd` is the default), `host:NS` (the kernel polls halts for up to NS) and `no-poll-control`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    pub keeper: Keeper,
    /// How it is injected, if a thread keeps it.
    pub inject: Inject,
    /// How the guest's halts are handled.
    pub idle: Idle,
}

const FORMS: &str =
    "in-kernel, spin, spin-early=15us or timerfd, then +msi, +irqfd, +host:200us or +no-poll-control";

impl FromStr for Timer {
    type Err = ParseArmError;

    fn from_str(text: &str) -> Result<Timer, ParseArmError> {
        let parts = Parts::of(text, &["irqfd", "msi"])?;
        let keeper = match parts.first {
            ("in-kernel", None) => Keeper::InKernel,
            ("spin", None) => Keeper::Spin { early: Nanos::ZERO },
            ("spin-early", Some(early)) => Keeper::Spin { early: duration(early)? },
            ("timerfd", None) => Keeper::Timerfd,
            _ => return Err(ParseArmError::Unknown { text: text.to_owned(), forms: FORMS }),
        };
        if parts.options.len() > 1 {
            return Err(ParseArmError::Conflict("a timer is injected by irqfd or by msi, said once"));
        }
        if keeper == Keeper::InKernel && !parts.options.is_empty() {
            return Err(ParseArmError::Conflict("irqfd and msi say how a thread injects, not the kernel"));
        }
        let inject = if parts.has("msi") { Inject::Msi } else { Inject::Irqfd };
        let idle = parts.idle;
        if idle.guest.is_some() || !matches!(idle.halts, Halts::InKernel(_)) {
            return Err(ParseArmError::Conflict(
                "a guest that waits for its timer halts in the kernel (host:), and polls only in spin-early",
            ));
        }
        Ok(Timer { keeper, inject, idle })
    }
}

impl fmt::Display for Timer {
    /// As it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.keeper {
            Keeper::InKernel => f.write_str("in-kernel")?,
            Keeper::Spin { early: Nanos::ZERO } => f.write_str("spin")?,
            Keeper::Spin { early } => write!(f, "spin-early={early:#}")?,
            Keeper::Timerfd => f.write_str("timerfd")?,
        }
        if self.inject == Inject::Msi {
            f.write_str("+msi")?;
        }
        if self.idle == Idle::host(0) { Ok(()) } else { write!(f, "+{}", self.idle) }
    }
}

/// An open way to interrupt the guest.
pub(super) enum Injector<'m> {
    Irqfd(EventFd),
    Msi(&'m Machine),
}

impl Inject {
    pub(super) fn open(self, machine: &Machine) -> Result<Injector<'_>, LabError> {
        Ok(match self {
            Inject::Irqfd => Injector::Irqfd(machine.irqfd(0)?),
            Inject::Msi => Injector::Msi(machine),
        })
    }
}

impl Injector<'_> {
    #[inline]
    fn fire(&self) -> Result<(), LabError> {
        match self {
            Injector::Irqfd(irqfd) => irqfd.write(1).map_err(os("writing to an irqfd"))?,
            Injector::Msi(machine) => machine.signal_msi(0, Vector::Timer)?,
        }
        Ok(())
    }
}

impl Keeper {
    pub(super) fn kept_by(self) -> KeptBy {
        match self {
            Keeper::InKernel => KeptBy::Apic,
            Keeper::Spin { .. } => KeptBy::Watcher,
            Keeper::Timerfd => KeptBy::Sleeper,
        }
    }

    /// The work of the housekeeping thread.
    pub(super) fn keep(
        self,
        rig: &Rig,
        channel: &TimerChannel,
        injector: &Injector<'_>,
        service: &Service<'_>,
    ) -> Result<(), LabError> {
        match self {
            // The bell rings only at the end.
            Keeper::InKernel => service.sleep(None).map(drop),
            Keeper::Spin { early } => spin(rig.cycles(early), channel, injector, service),
            Keeper::Timerfd => sleep(rig, channel, injector, service),
        }
    }
}

fn spin(
    early: u64,
    channel: &TimerChannel,
    injector: &Injector<'_>,
    service: &Service<'_>,
) -> Result<(), LabError> {
    let mut kept = 0;
    while !service.over() {
        let (number, deadline) = channel.request();
        if number != kept && tsc() >= deadline.saturating_sub(early) {
            injector.fire()?;
            kept = number;
        }
        std::hint::spin_loop();
    }
    Ok(())
}

fn sleep(
    rig: &Rig,
    channel: &TimerChannel,
    injector: &Injector<'_>,
    service: &Service<'_>,
) -> Result<(), LabError> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
        .map_err(os("timerfd_create"))?;
    loop {
        let [rung, fired] = service.sleep(Some(&timer))?;
        if service.over() {
            return Ok(());
        }
        if fired {
            // Reading clears the expiry; its value is not used.
            rustix::io::read(&timer, &mut [0; 8]).map_err(os("reading a timerfd"))?;
            injector.fire()?;
        }
        if rung {
            service.clear();
            let (_, deadline) = channel.request();
            arm(&timer, monotonic().get() + rig.nanos(deadline.saturating_sub(tsc())))?;
        }
    }
}

/// Lets it expire at a time of CLOCK_MONOTONIC \[ns\], which is not 0; at once if that has passed.
fn arm(timer: &OwnedFd, at_ns: u64) -> Result<(), LabError> {
    let it_value = Timespec {
        tv_sec: i64::try_from(at_ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at_ns % 1_000_000_000).unwrap_or(0),
    };
    let once = Itimerspec { it_interval: Timespec::default(), it_value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once).map(drop).map_err(os("timerfd_settime"))
}
