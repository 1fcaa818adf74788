//! Guest halt polling: what a guest CPU does when it has nothing to run.
//!
//! # The idea
//! Linux in a virtual machine can use the cpuidle governor *haltpoll* with a driver of the same name that has two
//! states: 0, poll in the guest, and 1, halt (HLT, which leaves the guest). While a CPU polls, a waker only
//! sets a flag and sends no interrupt, and no exit to the host takes place. The governor keeps one number of
//! nanoseconds per CPU, the *limit* (`poll_limit_ns`), and adjusts it after every halt.
//!
//! # The steps
//! 1. [`Cpu::select`]: with limit zero halt at once; otherwise poll first, and halt only right after a poll that ran
//!    out of its limit.
//! 2. Enter the state. [`Cpu::poll`] is state 0: it looks at the clock only once every 201 pauses.
//! 3. [`Cpu::reflect`]: after a halt, adjust the limit by the time spent *in that halt alone*. That is the
//!    opposite of the host's rule, which counts the whole period, poll included.
//!
//! A halt longer than the limit and at most `guest_halt_poll_ns` grows the limit; a longer one shrinks it, if
//! `guest_halt_poll_allow_shrink` is set; one within the limit changes nothing.
//!
//! [`Haltpoll`] is this rule as a [`Policy`] over continuous time. [`Revision`] has the differences between kernels.
//!
//! # Limits
//! The governor has other inputs: a zero CPU-latency QoS request makes it poll without end and leaves a limit
//! behind ([`Cpu::poll`]), and writing any cpuidle state attribute zeroes it ([`Cpu::reset`]).
//!
//! A rewrite of the polling loop (`tif_need_resched_relaxed_wait` in `poll_idle`) is queued after 7.3. It changes [`Cpu::poll`]
//! alone: the wait then reports whether a task is to run, so that a poll whose wakeup comes in its last pass has not
//! [expired](Cpu::expired). That is what [`Haltpoll`] has, whose polls end exactly; limits change as before.

use crate::version::{Rules, UnknownVersion, Version};
use crate::{Layer, Nanos, Outcome, Owner, Policy};

crate::named! {
    /// The kernel releases that share one behaviour.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Revision {
        /// 5.4: the time in a halt is known in whole microseconds only.
        V5_4 = "5.4",
        /// 5.5 to 5.10: in nanoseconds.
        V5_5 = "5.5",
        /// 5.11 to 5.19: the limit left by a zero-latency request is a sixteenth of a tick. The release is from memory of
        /// the specification's author; 5.10 and 6.1 are checked.
        V5_11 = "5.11",
        /// 6.0 to 6.8: has the tracepoint `power:guest_halt_poll_ns`.
        V6_0 = "6.0",
        /// 6.9 to 7.1: a limit that shrinks below `guest_halt_poll_grow_start` becomes zero.
        V6_9 = "6.9",
        /// 7.2 and later: the governor is not called when the driver has fewer than two states; no change in arithmetic.
        V7_2 = "7.2",
    }

    /// The first release of this revision.
    pub fn since_release
}

impl Revision {
    /// The revision of a kernel release; of those that it may have, the one that its version has.
    ///
    /// # Errors
    /// [`UnknownVersion`] before 5.4 and after 7.3, the newest that was read, and where there is no haltpoll.
    pub fn of(version: Version) -> Result<Revision, UnknownVersion> {
        Ok(Revision::rules(version)?.first)
    }

    /// The revisions that a kernel release may have, for all that is known of its distributor.
    ///
    /// # Errors
    /// As [`Revision::of`].
    pub fn rules(version: Version) -> Result<Rules<Revision>, UnknownVersion> {
        let elsewhere = "5.4 to 7.3 on x86-64; elsewhere Linux has no haltpoll";
        version.is_known_kernel(Owner::Layer(Layer::Guest), elsewhere)?;
        let base = Revision::of_version(version);
        let may_differ = version.build.is_some() && !base.shrinks_to_zero_below_grow_start();
        Ok(Rules { others: if may_differ { &[Revision::V6_9] } else { &[] }, ..Rules::certain(base) })
    }

    fn of_version(version: Version) -> Revision {
        match (version.major, version.minor) {
            (5, 4) => Revision::V5_4,
            (5, 5..=10) => Revision::V5_5,
            (5, _) => Revision::V5_11,
            (6, 0..=8) => Revision::V6_0,
            (6, _) | (7, 0..=1) => Revision::V6_9,
            _ => Revision::V7_2,
        }
    }

    const fn since(self, other: Revision) -> bool {
        self as u8 >= other as u8
    }

    /// Whether a limit that shrinks below `guest_halt_poll_grow_start` becomes zero.
    pub const fn shrinks_to_zero_below_grow_start(self) -> bool {
        self.since(Revision::V6_9)
    }

    /// The time in a halt as the governor sees it: on 5.4 in whole microseconds, at most `INT_MAX` of them.
    #[inline]
    pub const fn residency_ns(self, measured_ns: u64) -> u64 {
        if self.since(Revision::V5_5) {
            return measured_ns;
        }
        const INT_MAX: u64 = i32::MAX as u64;
        let us = measured_ns / 1_000;
        (if us < INT_MAX { us } else { INT_MAX }) * 1_000
    }

    /// The limit that polling without one leaves behind \[ns\]: the target residency of the halt state (1 us) up to
    /// 5.10, a sixteenth of a tick later.
    pub const fn default_poll_time_ns(self, tick_nsec: u64) -> u64 {
        if self.since(Revision::V5_11) { tick_nsec / 16 } else { HALT_TARGET_RESIDENCY_NS }
    }
}

/// Target residency of the haltpoll driver's halt state \[ns\] (`cpuidle-haltpoll.c`: 1 us).
const HALT_TARGET_RESIDENCY_NS: u64 = 1_000;

/// Pauses between two looks at the clock while polling are one more than this (`POLL_IDLE_RELAX_COUNT`).
const RELAX_COUNT: u32 = 200;

/// The module parameters, `/sys/module/haltpoll/parameters/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// Longest limit \[ns\]; 0 never grows one.
    pub guest_halt_poll_ns: u32,
    /// Divisor by which the limit shrinks; 0 drops it to zero.
    pub guest_halt_poll_shrink: u32,
    /// Factor by which the limit grows; 0 gives `guest_halt_poll_grow_start`.
    pub guest_halt_poll_grow: u32,
    /// Least limit that a growth gives \[ns\] (the comment in the source has microseconds, which is wrong).
    pub guest_halt_poll_grow_start: u32,
    /// Whether the limit may shrink at all.
    pub guest_halt_poll_allow_shrink: bool,
}

impl Default for Params {
    /// The defaults of every kernel read (`drivers/cpuidle/governors/haltpoll.c`).
    fn default() -> Params {
        Params {
            guest_halt_poll_ns: 200_000,
            guest_halt_poll_shrink: 2,
            guest_halt_poll_grow: 2,
            guest_halt_poll_grow_start: 50_000,
            guest_halt_poll_allow_shrink: true,
        }
    }
}

/// The idle states of the haltpoll driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// State 0: poll in the guest.
    Poll,
    /// State 1: halt.
    Halt,
}

/// What the governor chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The state to enter.
    pub state: State,
    /// Whether the periodic tick may be stopped.
    pub stop_tick: bool,
}

/// As the tracepoint `power:guest_halt_poll_ns` (6.0 and later) has it: of the limit before its low 32 bits.
pub use crate::host::Change;

/// What [`Cpu::poll`] needs from outside.
pub trait Environment {
    /// The local clock \[ns\].
    fn clock(&mut self) -> u64;
    /// A pause instruction.
    fn relax(&mut self);
    /// Whether a task is to run.
    fn need_resched(&mut self) -> bool;
}

/// The governor's state of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    revision: Revision,
    poll_limit_ns: u64,
    last: State,
    expired: bool,
}

impl Cpu {
    /// A CPU on which the governor was just enabled.
    pub const fn new(revision: Revision) -> Cpu {
        Cpu { revision, poll_limit_ns: 0, last: State::Poll, expired: false }
    }

    /// A CPU in the middle of its life: limit \[ns\] and the state that was left last.
    pub const fn with_state(revision: Revision, poll_limit_ns: u64, last: State) -> Cpu {
        Cpu { revision, poll_limit_ns, last, expired: false }
    }

    /// `poll_limit_ns` \[ns\].
    pub const fn poll_limit_ns(&self) -> u64 {
        self.poll_limit_ns
    }

    /// Whether the last poll ended because its limit ran out.
    pub const fn expired(&self) -> bool {
        self.expired
    }

    /// What a write to any cpuidle state attribute of this CPU does: the limit becomes zero.
    pub const fn reset(&mut self) {
        self.poll_limit_ns = 0;
    }

    /// Chooses a state, given the CPU-latency QoS in force \[ns\], of which only zero matters.
    #[inline]
    pub const fn select(&self, latency_req_ns: i64) -> Selection {
        if latency_req_ns == 0 {
            return Selection { state: State::Poll, stop_tick: false };
        }
        let ran_out = matches!(self.last, State::Poll) && self.expired;
        if self.poll_limit_ns == 0 || ran_out {
            Selection { state: State::Halt, stop_tick: true }
        } else {
            Selection { state: State::Poll, stop_tick: false }
        }
    }

    /// Learns from a state that was entered and left again; `measured_ns` is the time in that state \[ns\]. Not to be
    /// called where the entry was refused because a task had to run.
    #[inline]
    pub fn reflect(&mut self, params: &Params, state: State, measured_ns: u64) -> Option<Change> {
        self.last = state;
        match state {
            State::Poll => None,
            State::Halt => self.adjust(params, self.revision.residency_ns(measured_ns)),
        }
    }

    #[inline]
    fn adjust(&mut self, params: &Params, halt_ns: u64) -> Option<Change> {
        let max = u64::from(params.guest_halt_poll_ns);
        let old = low32(self.poll_limit_ns);
        if halt_ns > self.poll_limit_ns && halt_ns <= max {
            let grown = low32(self.poll_limit_ns.wrapping_mul(u64::from(params.guest_halt_poll_grow)));
            let new = grown.max(params.guest_halt_poll_grow_start).min(params.guest_halt_poll_ns);
            self.poll_limit_ns = u64::from(new);
            Some(Change { grow: true, new, old })
        } else if halt_ns > max && params.guest_halt_poll_allow_shrink {
            let new = self.shrunk(params, old);
            self.poll_limit_ns = u64::from(new);
            Some(Change { grow: false, new, old })
        } else {
            None
        }
    }

    #[inline]
    fn shrunk(&self, params: &Params, old: u32) -> u32 {
        let new = old.checked_div(params.guest_halt_poll_shrink).unwrap_or(0);
        let dropped =
            self.revision.shrinks_to_zero_below_grow_start() && new < params.guest_halt_poll_grow_start;
        if dropped { 0 } else { new }
    }

    /// State 0 in time: polls until a task is to run or the limit has run out. `tick_nsec` is the length of a tick
    /// \[ns\], from which the limit is made where there is none (only a zero-latency request leads there).
    pub fn poll<E: Environment>(&mut self, env: &mut E, tick_nsec: u64) {
        let start = env.clock();
        self.expired = false;
        if env.need_resched() {
            return;
        }
        let budget = self.poll_time(tick_nsec);
        let mut count = 0;
        while !env.need_resched() {
            env.relax();
            if count < RELAX_COUNT {
                count += 1;
                continue;
            }
            count = 0;
            if env.clock().wrapping_sub(start) > budget {
                self.expired = true;
                return;
            }
        }
    }

    fn poll_time(&mut self, tick_nsec: u64) -> u64 {
        if self.poll_limit_ns == 0 {
            self.poll_limit_ns = self.revision.default_poll_time_ns(tick_nsec);
        }
        self.poll_limit_ns
    }
}

/// How long [`Cpu::poll`] polls under a limit if no task becomes runnable, where it takes `step_ns` from one look at the
/// clock to the next \[ns\]: up to the first look after the limit. A step of 0 is the poll of continuous time, which
/// ends with the limit; under a limit of 0 nothing is polled ([`Cpu::select`] halts).
#[inline]
pub const fn poll_end_ns(limit_ns: u64, step_ns: u64) -> u64 {
    match (limit_ns, step_ns) {
        (0, _) | (_, 0) => limit_ns,
        _ => (limit_ns - limit_ns % step_ns).saturating_add(step_ns),
    }
}

#[inline]
const fn low32(value: u64) -> u32 {
    (value & 0xffff_ffff) as u32
}

/// Guest halt polling as a [`Policy`] over continuous time: a poll ends exactly at the limit or at the wakeup, no
/// interrupt without a task to run comes between, and there is no latency request.
#[derive(Clone, Copy, Debug)]
pub struct Haltpoll {
    cpu: Cpu,
    params: Params,
    window_ns: u64,
}

/// No latency requirement: any value but zero.
const NO_LATENCY_REQ: i64 = i64::MAX;

impl Haltpoll {
    /// A CPU on which the governor was just enabled.
    pub const fn new(revision: Revision, params: Params) -> Haltpoll {
        Haltpoll { cpu: Cpu::new(revision), params, window_ns: 0 }
    }

    /// Other module parameters from the next halt on, as after a write to sysfs; the limit stays.
    pub const fn set_params(&mut self, params: Params) {
        self.params = params;
    }
}

impl Policy for Haltpoll {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.window_ns = match self.cpu.select(NO_LATENCY_REQ).state {
            State::Poll => self.cpu.poll_limit_ns,
            State::Halt => 0,
        };
        Nanos(self.window_ns)
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        let idle = outcome.idle.get();
        if self.window_ns != 0 {
            self.cpu.expired = idle > self.window_ns;
            self.cpu.reflect(&self.params, State::Poll, idle.min(self.window_ns));
            if !self.cpu.expired {
                return;
            }
        }
        self.cpu.reflect(&self.params, State::Halt, idle - self.window_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limit_after(revision: Revision, params: Params, limit: u64, halt_ns: u64) -> u64 {
        let mut cpu = Cpu::with_state(revision, limit, State::Halt);
        cpu.reflect(&params, State::Halt, halt_ns);
        cpu.poll_limit_ns()
    }

    #[test]
    fn version_chooses_the_revision() {
        for (text, expected) in [
            ("5.4.286", Revision::V5_4),
            ("5.10.223", Revision::V5_5),
            ("5.15", Revision::V5_11),
            ("6.1", Revision::V6_0),
            ("6.8", Revision::V6_0),
            ("6.9", Revision::V6_9),
            ("6.18", Revision::V6_9),
            ("7.1", Revision::V6_9),
            ("7.3.4", Revision::V7_2),
        ] {
            assert_eq!(Revision::of(Version::parse(text).unwrap()), Ok(expected), "{text}");
        }
        assert!(Revision::of(Version::new(5, 3)).is_err());
        assert!(Revision::of(Version::new(7, 4)).is_err());
    }

    #[test]
    fn halt_of_exactly_the_maximum_grows_and_one_more_shrinks() {
        let p = Params::default();
        assert_eq!(limit_after(Revision::V6_9, p, 100_000, 100_000), 100_000);
        assert_eq!(limit_after(Revision::V6_9, p, 100_000, 200_000), 200_000);
        assert_eq!(limit_after(Revision::V6_9, p, 100_000, 200_001), 50_000);
        assert_eq!(limit_after(Revision::V6_9, p, 50_000, 200_001), 0);
        assert_eq!(limit_after(Revision::V6_0, p, 50_000, 200_001), 25_000);
    }

    #[test]
    fn whole_microseconds_of_5_4_make_a_longer_halt_grow() {
        let p = Params::default();
        assert_eq!(limit_after(Revision::V5_4, p, 50_000, 200_999), 100_000);
        assert_eq!(limit_after(Revision::V5_5, p, 50_000, 200_999), 25_000);
    }

    #[test]
    fn window_once_grown_never_comes_down_without_allow_shrink() {
        let p = Params { guest_halt_poll_allow_shrink: false, ..Params::default() };
        assert_eq!(limit_after(Revision::V6_9, p, 200_000, 1_000_000_000), 200_000);
    }

    #[test]
    fn growth_overflow_truncates_to_32_bits() {
        let p = Params { guest_halt_poll_ns: u32::MAX, ..Params::default() };
        assert_eq!(limit_after(Revision::V6_9, p, 3_000_000_000, 3_000_000_001), 1_705_032_704);
        assert_eq!(limit_after(Revision::V6_9, p, 0x8000_0000, 0x8000_0001), 50_000);
    }

    #[test]
    fn grow_start_zero_wedges_the_window_at_zero() {
        let p = Params { guest_halt_poll_grow_start: 0, ..Params::default() };
        assert_eq!(limit_after(Revision::V6_9, p, 0, 100), 0);
    }

    proptest! {
        /// In continuous time the governor polls its limit first in every period, whatever came before.
        #[test]
        fn window_is_the_limit(durations in prop::collection::vec(0u64..1_000_000, 0..200), max in 0u32..400_000) {
            let params = Params { guest_halt_poll_ns: max, ..Params::default() };
            let mut policy = Haltpoll::new(Revision::V6_9, params);
            for idle in durations {
                let limit = policy.cpu.poll_limit_ns();
                prop_assert_eq!(policy.window(), Nanos(limit));
                policy.observe(Outcome::of(Nanos(idle)));
            }
        }
    }
}
