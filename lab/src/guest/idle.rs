//! How a guest CPU idles: it polls for as long as a policy says, then halts.

use super::{halt, tsc};
use crate::host::TscHz;
use crate::vm::Shared;
use dwell_policy::{Any, Nanos, Outcome, Policy};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Where a vCPU idles: what it shows to those who wake it, its policy and its counters. Without a policy it
/// never polls.
///
/// The protocol that lets a waker save the interrupt: the idler says that it polls, looks for the event, and
/// takes the flag back before it looks for the last time and halts. A waker posts the event first and then
/// looks at the flag: if it is up, the idler will see the event by itself. Both sides have a full fence
/// between their store and their load, so at least one of them sees the other's.
#[repr(C, align(128))]
pub struct IdleState {
    /// 1 while the idler polls memory.
    polling: AtomicU32,
    /// [`EMPTY`], [`STORING`], [`STORED`] or [`TAKEN`].
    state: AtomicU32,
    /// TSC cycles in 2^20 ns.
    cycles_per_mebi_ns: AtomicU64,
    policy: UnsafeCell<MaybeUninit<Any>>,
    counters: IdleCounters,
    /// 1 if preemptions are not reported to the policy.
    unreported: AtomicU32,
}

/// Who has the policy of an [`IdleState`]: none yet, being stored, stored, taken by the idler.
const EMPTY: u32 = 0;
const STORING: u32 = 1;
const STORED: u32 = 2;
const TAKEN: u32 = 3;

// SAFETY: `policy` is written once, by who took the state from empty, and then belongs to who took it from
// made; all the rest is atomic.
unsafe impl Sync for IdleState {}
// SAFETY: zero is valid everywhere (no policy is stored then), and a policy
// that is kept by value, as `make` asserts, points nowhere.
unsafe impl Shared for IdleState {}

/// Counters of an idler, written by it alone, on lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct IdleCounters {
    halts: AtomicU64,
    polls: AtomicU64,
    polls_succeeded: AtomicU64,
    polled_cycles: AtomicU64,
    idled_cycles: AtomicU64,
    preemptions: AtomicU64,
    lost_cycles: AtomicU64,
}

impl IdleCounters {
    /// It polled for so long, and saw the event or not.
    #[inline]
    pub(crate) fn polled(&self, cycles: u64, seen: bool) {
        add(&self.polls, 1);
        add(&self.polls_succeeded, u64::from(seen));
        add(&self.polled_cycles, cycles);
    }

    /// Others had its CPU during a poll for so long.
    #[inline]
    pub(crate) fn lost(&self, cycles: u64) {
        add(&self.preemptions, 1);
        add(&self.lost_cycles, cycles);
    }

    /// Adds an idle time, as the policy observed it.
    #[inline]
    pub(crate) fn idled(&self, cycles: u64) {
        add(&self.idled_cycles, cycles);
    }

    #[inline]
    pub(crate) fn halted(&self) {
        add(&self.halts, 1);
    }

    /// What it has counted so far.
    pub(crate) fn read(&self) -> IdleCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IdleCounts {
            halts: of(&self.halts),
            polls: of(&self.polls),
            polls_succeeded: of(&self.polls_succeeded),
            polled_cycles: of(&self.polled_cycles),
            idled_cycles: of(&self.idled_cycles),
            preemptions: of(&self.preemptions),
            lost_cycles: of(&self.lost_cycles),
        }
    }
}

/// Adds to a counter that has one writer: no locked instruction is needed.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// What an idler counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleCounts {
    /// Times that it halted.
    pub halts: u64,
    /// Times that it polled.
    pub polls: u64,
    /// Polls that saw the event.
    pub polls_succeeded: u64,
    /// Time polled \[TSC cycles\].
    pub polled_cycles: u64,
    /// Time idled, from the beginning of each episode until the idler knew of its end \[TSC cycles\].
    pub idled_cycles: u64,
    /// Polls during which others had its CPU.
    pub preemptions: u64,
    /// For how long, in all \[TSC cycles\].
    pub lost_cycles: u64,
}

impl std::ops::Sub for IdleCounts {
    type Output = IdleCounts;

    fn sub(self, before: IdleCounts) -> IdleCounts {
        IdleCounts {
            halts: self.halts - before.halts,
            polls: self.polls - before.polls,
            polls_succeeded: self.polls_succeeded - before.polls_succeeded,
            polled_cycles: self.polled_cycles - before.polled_cycles,
            idled_cycles: self.idled_cycles - before.idled_cycles,
            preemptions: self.preemptions - before.preemptions,
            lost_cycles: self.lost_cycles - before.lost_cycles,
        }
    }
}

impl IdleState {
    /// Gives the idler a policy, before its vCPU runs for the first time.
    ///
    /// # Panics
    /// If it has one already, and for a policy outside the catalogue, which the guest cannot reach.
    pub fn make(&self, policy: Any, hz: TscHz) {
        assert!(!matches!(policy, Any::Other(_)), "a guest runs policies of the catalogue only");
        let taken = self.state.compare_exchange(EMPTY, STORING, Ordering::Relaxed, Ordering::Relaxed);
        assert_eq!(taken, Ok(EMPTY), "a bed is made once");
        self.cycles_per_mebi_ns.store(hz.ticks(Nanos(1 << 20)).0, Ordering::Relaxed);
        // SAFETY: the exchange lets one caller come here, once, and no one reads it before the state says
        // that it is made.
        unsafe { (*self.policy.get()).write(policy) };
        self.state.store(STORED, Ordering::Release);
    }

    /// Before its vCPU runs: preemptions are not reported to its policy.
    pub fn report_no_preemptions(&self) {
        self.unreported.store(1, Ordering::Relaxed);
    }

    /// For a waker that has posted the event: whether the idler will see it by itself.
    #[inline]
    pub fn watches(&self) -> bool {
        fence(Ordering::SeqCst);
        self.polling.load(Ordering::Relaxed) != 0
    }

    /// What it has counted so far.
    pub fn idling(&self) -> IdleCounts {
        self.counters.read()
    }
}

/// The looks of a poll, by the time-stamp counter: where two are too far apart, others had the CPU.
pub(crate) struct Looks {
    last: u64,
    longest_gap: u64,
    lost: u64,
}

impl Looks {
    #[inline]
    pub(crate) fn new(start: u64, longest_gap: u64) -> Looks {
        Looks { last: start, longest_gap, lost: 0 }
    }

    /// A look, now; returns when it is.
    #[inline]
    pub(crate) fn at(&mut self, now: u64) -> u64 {
        let gap = now.saturating_sub(self.last);
        if gap > self.longest_gap {
            self.lost += gap;
        }
        self.last = now;
        now
    }

    /// When the last look was.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The poll ends now: for how long others had the CPU.
    #[inline]
    pub(crate) fn end(&mut self, now: u64, counters: &IdleCounters) -> u64 {
        self.at(now);
        if self.lost > 0 {
            counters.lost(self.lost);
        }
        self.lost
    }
}

/// A guest CPU that idles.
pub struct Idler<'b> {
    idle_state: &'b IdleState,
    /// A reference: a guest has no libc that could copy it.
    policy: Option<&'b mut Any>,
    cycles_per_mebi_ns: u64,
    /// When it idled last, by the time-stamp counter: it has been busy since.
    ended: u64,
}

impl<'b> Idler<'b> {
    /// Takes the policy that was stored; without one, or if another idler has it, it never polls.
    #[inline]
    pub fn new(idle_state: &'b IdleState) -> Idler<'b> {
        let taken = idle_state.state.compare_exchange(STORED, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        let policy = taken.is_ok().then(|| {
            // SAFETY: it was written before the state said so; the exchange succeeds once, and no other
            // caller comes here after.
            unsafe { (*idle_state.policy.get()).assume_init_mut() }
        });
        let cycles_per_mebi_ns = idle_state.cycles_per_mebi_ns.load(Ordering::Relaxed);
        Idler { idle_state, policy, cycles_per_mebi_ns, ended: tsc() }
    }

    /// Idles until there is an event: polls for the window of its policy, then halts.
    #[inline]
    pub fn idle(&mut self, event: impl Fn() -> bool) {
        let counters = &self.idle_state.counters;
        let start = tsc();
        let busy = self.nanos(start - self.ended);
        let window = self.policy.as_mut().map_or(Nanos::ZERO, |policy| policy.window_after(busy));
        let mut lost = 0;
        if window > Nanos::ZERO {
            let limit = self.cycles(window);
            let reported =
                self.policy.as_ref().filter(|_| self.idle_state.unreported.load(Ordering::Relaxed) == 0);
            let longest_gap = reported.map_or(Nanos::MAX, |policy| policy.longest_gap());
            let mut looks = Looks::new(start, self.cycles(longest_gap));
            self.idle_state.polling.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let mut seen = event();
            while !seen && looks.at(tsc()) - start < limit {
                std::hint::spin_loop();
                seen = event();
            }
            self.idle_state.polling.store(0, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            lost = looks.end(tsc(), counters);
            counters.polled(looks.last() - start - lost, seen);
        }
        while !event() {
            counters.halted();
            halt();
        }
        self.ended = tsc();
        counters.idled(self.ended - start);
        let (idle, lost) = (self.nanos(self.ended - start), self.nanos(lost));
        if let Some(policy) = &mut self.policy {
            policy.observe(Outcome::of(idle).losing(lost));
        }
    }

    /// Halts until the next interrupt, whatever has happened: how an event that always comes with its interrupt is
    /// waited for.
    #[inline]
    pub fn halt_once(&self) {
        self.idle_state.counters.halted();
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
