//! The guard: what happens in a wait, and in which order.

use crate::row::{Record, Row, mask};
use crate::{Clock, Nanos, Policy};
use core::time::Duration;
use dwell_policy::Outcome;

/// Looks between two readings of the clock, at most: reading it takes as long as eight loads of a flag and one pause.
const STRIDE: u32 = 8;
/// If so many looks take less, there may be more of them between two readings.
const QUICK: u64 = 500;
/// If they take more, there should be fewer.
const SLOW: u64 = 2_000;

/// Decides for one thread how long to poll before it sleeps.
///
/// The third parameter takes a [`Row`] of each wait; `()` records nothing.
#[derive(Clone, Debug)]
pub struct Idler<P, C = DefaultClock, R = ()> {
    policy: P,
    clock: C,
    record: R,
    /// When the last episode ended; `None` before the first.
    woke: Option<Nanos>,
    /// Looks between two readings of the clock that proved right.
    stride: u32,
    totals: Totals,
}

/// The clock of an idler that is made without one.
#[cfg(feature = "std")]
pub type DefaultClock = crate::Monotonic;
/// The clock of an idler that is made without one: there is none without the feature `std`.
#[cfg(not(feature = "std"))]
pub type DefaultClock = core::convert::Infallible;

/// What an idler did since it was made, modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Waits that were finished.
    pub episodes: u64,
    /// Those in which the thread halted.
    pub halts: u64,
    /// Those in which it polled and did not halt.
    pub caught: u64,
    /// How often it was preempted while it polled.
    pub preempted: u64,
    /// For how long others had the CPU then.
    pub lost: Nanos,
}

#[cfg(feature = "std")]
impl<P: Policy> Idler<P> {
    /// An idler under this policy, by `CLOCK_MONOTONIC`.
    pub const fn new(policy: P) -> Idler<P> {
        Idler::with_clock(policy, crate::Monotonic)
    }
}

impl<P: Policy, C: Clock> Idler<P, C> {
    /// An idler under this policy, by a clock of the caller.
    pub const fn with_clock(policy: P, clock: C) -> Idler<P, C> {
        Idler {
            policy,
            clock,
            record: (),
            woke: None,
            stride: 1,
            totals: Totals { episodes: 0, halts: 0, caught: 0, preempted: 0, lost: Nanos::ZERO },
        }
    }
}

impl<P: Policy, C: Clock, R: Record> Idler<P, C, R> {
    /// The same idler, which records its waits in `record`.
    pub fn recording<S: Record>(self, record: S) -> Idler<P, C, S> {
        let Idler { policy, clock, record: _, woke, stride, totals } = self;
        Idler { policy, clock, record, woke, stride, totals }
    }

    /// There is nothing to do until an event comes or `timeout` is over (`None`: until an event comes).
    #[inline]
    pub fn idle(&mut self, timeout: Option<Duration>) -> Idle<'_, P, C, R> {
        let wait = self.begin(timeout);
        Idle { idler: self, wait }
    }

    #[inline]
    pub(crate) fn begin(&mut self, timeout: Option<Duration>) -> Wait {
        let start = self.clock.now();
        let wanted = match self.woke {
            Some(woke) => self.policy.window_after(start.saturating_sub(woke)),
            None => self.policy.window(),
        };
        let timeout = timeout.map(nanos);
        let window = timeout.map_or(wanted, |timeout| wanted.min(timeout));
        Wait {
            // Within a short window the next reading comes after one look.
            looks: if window.get() < QUICK { 1 } else { self.stride },
            start,
            wanted,
            window,
            timeout,
            elapsed: Nanos::ZERO,
            polled: false,
            halted: false,
            lost: Nanos::ZERO,
            alone: None,
        }
    }

    /// What it did so far.
    pub const fn totals(&self) -> Totals {
        self.totals
    }

    /// The policy.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// The clock.
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}

/// One wait, from "nothing to do" to the event.
#[derive(Debug)]
#[must_use = "a wait that is not finished with `wakes` teaches the policy nothing"]
pub struct Idle<'a, P, C, R = ()> {
    idler: &'a mut Idler<P, C, R>,
    wait: Wait,
}

impl<P: Policy, C: Clock, R: Record> Idle<'_, P, C, R> {
    /// Whether to look for events once more. Pauses for a moment, for the sake of the CPU's other thread.
    #[inline]
    pub fn polls(&mut self) -> bool {
        self.wait.polls(self.idler)
    }

    /// The wait goes on in the kernel: what is left of the time-out, `None` if it has none; zero where it is over,
    /// which is a look and no sleep. Called again, after a sleep that a signal interrupted, it reads the clock.
    #[inline]
    pub fn halts(&mut self) -> Option<Duration> {
        self.wait.halts(self.idler)
    }

    /// There is something to do: handlers `ready` have it. Empty where that is not known, or where the
    /// time-out is over.
    #[inline]
    pub fn wakes(self, ready: &[u32]) {
        self.wait.wakes(self.idler, ready);
    }
}

/// What is kept of a wait while it lasts.
#[derive(Debug)]
pub(crate) struct Wait {
    start: Nanos,
    /// The policy's window.
    wanted: Nanos,
    /// For how long it polls.
    window: Nanos,
    timeout: Option<Nanos>,
    /// From the start to the last reading of the clock.
    elapsed: Nanos,
    /// Looks until the next reading.
    looks: u32,
    polled: bool,
    halted: bool,
    /// For how long others had the CPU.
    lost: Nanos,
    /// When they got it, since the start.
    alone: Option<Nanos>,
}

impl Wait {
    #[inline]
    pub(crate) fn polls<P: Policy, C: Clock, R>(&mut self, idler: &mut Idler<P, C, R>) -> bool {
        if self.window == Nanos::ZERO || (self.looks == 0 && !self.goes_on(idler)) {
            return false;
        }
        self.looks -= 1;
        self.polled = true;
        core::hint::spin_loop();
        true
    }

    /// Reads the clock; whether there is a reason to go on.
    fn goes_on<P: Policy, C: Clock, R>(&mut self, idler: &mut Idler<P, C, R>) -> bool {
        let elapsed = idler.clock.now().saturating_sub(self.start);
        let passed = self.passes(idler, elapsed);
        if self.lost > Nanos::ZERO {
            self.window = Nanos::ZERO;
            return false;
        }
        let stride = &mut idler.stride;
        *stride = match passed.get() {
            ..QUICK => (2 * *stride).min(STRIDE),
            QUICK..=SLOW => *stride,
            _ => (*stride / 2).max(1),
        };
        self.looks = *stride;
        let goes_on = elapsed < self.window;
        if !goes_on {
            self.window = Nanos::ZERO;
        }
        goes_on
    }

    /// The clock was read while it polls: how much has passed since it was read last.
    fn passes<P: Policy, C, R>(&mut self, idler: &Idler<P, C, R>, elapsed: Nanos) -> Nanos {
        let passed = elapsed.saturating_sub(self.elapsed);
        if passed > idler.policy.longest_gap() {
            self.lost = passed;
            self.alone = Some(self.elapsed);
        }
        self.elapsed = elapsed;
        passed
    }

    #[inline]
    pub(crate) fn halts<P, C: Clock, R>(&mut self, idler: &Idler<P, C, R>) -> Option<Duration> {
        if self.halted && self.timeout.is_some() {
            self.elapsed = idler.clock.now().saturating_sub(self.start);
        }
        let left = self.timeout.map(|timeout| timeout.saturating_sub(self.elapsed));
        self.halted |= left != Some(Nanos::ZERO);
        left.map(|left| Duration::from_nanos(left.get()))
    }

    #[inline]
    pub(crate) fn wakes<P: Policy, C: Clock, R: Record>(mut self, idler: &mut Idler<P, C, R>, ready: &[u32]) {
        let now = idler.clock.now();
        let idle = now.saturating_sub(self.start);
        if self.polled && !self.halted {
            // The look that saw the event may have come after a gap too.
            self.passes(idler, idle);
        }
        let Wait { start, wanted, polled, halted, lost, alone, .. } = self;
        idler.woke = Some(now);
        idler.policy.observe(Outcome::with_ready(idle, ready).losing(lost));
        let totals = &mut idler.totals;
        totals.episodes = totals.episodes.wrapping_add(1);
        totals.halts = totals.halts.wrapping_add(u64::from(halted));
        totals.caught = totals.caught.wrapping_add(u64::from(polled && !halted));
        totals.preempted = totals.preempted.wrapping_add(u64::from(lost > Nanos::ZERO));
        totals.lost = Nanos(totals.lost.get().wrapping_add(lost.get()));
        if R::WANTED {
            idler.record.row(&Row { start, idle, window: wanted, halted, alone, ready: mask(ready) });
        }
    }
}

/// Saturates after 584 years.
fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
