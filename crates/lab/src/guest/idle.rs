//! How a guest CPU idles: it polls for as long as a policy says, then halts.

use super::{halt, tsc};
use crate::host::TscHz;
use crate::vm::Shared;
use dwell_policy::{Any, Nanos, Outcome, Policy};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Where a vCPU idles: what it shows to those who wake it, its policy and its counters. Without a policy it never polls.
///
/// The protocol that lets a waker save the interrupt: the idler says that it polls, looks for the event, and takes the flag
/// back before it looks for the last time and halts. A waker posts the event first and then looks at the flag: if it is up,
/// the idler will see the event by itself. Both sides have a full fence between their store and their load, so at least one
/// of them sees the other's.
#[repr(C, align(128))]
pub struct Bed {
    /// 1 while the idler watches memory.
    polling: AtomicU32,
    /// Whether `policy` holds one.
    has_policy: AtomicU32,
    /// TSC cycles in 2^20 ns.
    cycles_per_mebi_ns: AtomicU64,
    policy: UnsafeCell<MaybeUninit<Any>>,
    counters: Counters,
}

/// Written by the guest alone, on lines of their own.
#[repr(align(128))]
struct Counters {
    halts: AtomicU64,
    polls: AtomicU64,
    polls_succeeded: AtomicU64,
    polled_cycles: AtomicU64,
}

// SAFETY: `policy` is only touched through `lie_down`, whose caller vouches for it; all the rest is atomic.
unsafe impl Sync for Bed {}
// SAFETY: zero is valid everywhere (`policy` then counts as absent), and a policy points nowhere.
unsafe impl Shared for Bed {}

/// What an idler counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Idling {
    /// Times that it halted.
    pub halts: u64,
    /// Times that it polled.
    pub polls: u64,
    /// Polls that saw the event.
    pub polls_succeeded: u64,
    /// Time polled \[TSC cycles\].
    pub polled_cycles: u64,
}

impl std::ops::Sub for Idling {
    type Output = Idling;

    fn sub(self, before: Idling) -> Idling {
        Idling {
            halts: self.halts - before.halts,
            polls: self.polls - before.polls,
            polls_succeeded: self.polls_succeeded - before.polls_succeeded,
            polled_cycles: self.polled_cycles - before.polled_cycles,
        }
    }
}

impl Bed {
    /// Gives the idler a policy, before its vCPU runs for the first time.
    ///
    /// # Panics
    /// If it has one already.
    pub fn make(&self, policy: Any, hz: TscHz) {
        assert_eq!(self.has_policy.load(Ordering::Acquire), 0, "a bed is made once");
        self.cycles_per_mebi_ns.store(hz.ticks(Nanos(1 << 20)).0, Ordering::Relaxed);
        // SAFETY: nobody reads it before `has_policy` says so, and nobody writes it after.
        unsafe { (*self.policy.get()).write(policy) };
        self.has_policy.store(1, Ordering::Release);
    }

    /// For a waker that has posted the event: whether the idler will see it by itself.
    #[inline]
    pub fn watches(&self) -> bool {
        fence(Ordering::SeqCst);
        self.polling.load(Ordering::Relaxed) != 0
    }

    /// What it has counted so far.
    pub fn idling(&self) -> Idling {
        let Counters { halts, polls, polls_succeeded, polled_cycles } = &self.counters;
        let [halts, polls, polls_succeeded, polled_cycles] =
            [halts, polls, polls_succeeded, polled_cycles].map(|counter| counter.load(Ordering::Relaxed));
        Idling { halts, polls, polls_succeeded, polled_cycles }
    }
}

/// A guest CPU that idles in a bed.
pub struct Idler<'b> {
    bed: &'b Bed,
    policy: Any,
    cycles_per_mebi_ns: u64,
}

/// Adds to a counter that has one writer: no locked instruction is needed.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl<'b> Idler<'b> {
    /// Lies down in the bed, with the policy that was put there; without one it never polls.
    #[inline]
    pub fn new(bed: &'b Bed) -> Idler<'b> {
        let policy = if bed.has_policy.load(Ordering::Acquire) == 0 {
            Any::default()
        } else {
            // SAFETY: it was written before `has_policy` and is not written again; policies have no destructor.
            unsafe { std::ptr::read((*bed.policy.get()).as_ptr()) }
        };
        Idler { bed, policy, cycles_per_mebi_ns: bed.cycles_per_mebi_ns.load(Ordering::Relaxed) }
    }

    /// Idles until there is an event: polls for the window of its policy, then halts.
    #[inline]
    pub fn idle(&mut self, event: impl Fn() -> bool) {
        let counters = &self.bed.counters;
        let start = tsc();
        let window = self.policy.window();
        if window > Nanos::ZERO {
            add(&counters.polls, 1);
            let limit = self.cycles(window);
            self.bed.polling.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let mut seen = event();
            while !seen && tsc() - start < limit {
                std::hint::spin_loop();
                seen = event();
            }
            self.bed.polling.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            add(&counters.polled_cycles, tsc() - start);
            add(&counters.polls_succeeded, u64::from(seen));
        }
        while !event() {
            add(&counters.halts, 1);
            halt();
        }
        self.policy.observe(Outcome::of(self.nanos(tsc() - start)));
    }

    /// Halts until the next interrupt, whatever has happened: how an event that always comes with its interrupt is
    /// waited for.
    #[inline]
    pub fn halt_once(&self) {
        add(&self.bed.counters.halts, 1);
        halt();
    }

    #[inline]
    fn cycles(&self, time: Nanos) -> u64 {
        let cycles = (u128::from(time.get()) * u128::from(self.cycles_per_mebi_ns)) >> 20;
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }

    #[inline]
    fn nanos(&self, cycles: u64) -> Nanos {
        Nanos((cycles << 20) / self.cycles_per_mebi_ns.max(1))
    }
}
