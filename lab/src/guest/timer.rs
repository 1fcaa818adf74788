//! A guest that sets a timer, halts until it fires, and sets the next.

use super::{PollControl, Rounds, apic_write, entry, halt, out, tsc, write_msr};
use crate::vm::Shared;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// `IA32_TSC_DEADLINE` (Intel SDM vol. 3, 12.5.4.1).
const IA32_TSC_DEADLINE: u32 = 0x6e0;
/// The local APIC's LVT timer register (xAPIC offset), and the bit that selects TSC-deadline mode.
const LVT_TIMER: u64 = 0x320;
const TSC_DEADLINE_MODE: u32 = 1 << 18;
/// The port of the doorbell that hands a deadline over.
pub const DOORBELL: u16 = 0xd8;

/// What keeps the guest's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    Apic,
    /// A thread that watches memory.
    Watcher,
    /// A thread that sleeps until the doorbell rings.
    Sleeper,
}

/// What the guest shares with its host. Every deadline comes with one interrupt, by whichever way.
#[repr(C)]
pub struct TimerChannel {
    /// Whether the host may poll.
    pub poll_control: PollControl,
    kept_by: AtomicU32,
    request: Request,
    woken: Woken,
    /// The timers: how far ahead each is set, and then how late the guest ran.
    pub rounds: Rounds,
}

/// Written by the guest for whoever keeps its timer.
#[repr(align(128))]
struct Request {
    number: AtomicU64,
    deadline: AtomicU64,
}

/// Written by the guest.
#[repr(align(128))]
struct Woken {
    early: AtomicU64,
    passed: AtomicU64,
}

// SAFETY: atomics, and what consists of them.
unsafe impl Shared for TimerChannel {}

/// What the guest counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerCounts {
    /// Wakeups before the deadline, for which it then polled.
    pub early: u64,
    /// Deadlines that had passed when the timer was set.
    pub passed: u64,
}

impl TimerChannel {
    /// Before the guest runs: who keeps its timer.
    pub fn keep(&self, by: KeptBy) {
        self.kept_by.store(by as u32, Ordering::Release);
    }

    /// For who keeps the timer: the number of the last request, from 1, and its deadline \[TSC\].
    #[inline]
    pub fn request(&self) -> (u64, u64) {
        let number = self.request.number.load(Ordering::Acquire);
        (number, self.request.deadline.load(Ordering::Relaxed))
    }

    /// What it has counted so far.
    pub fn woke(&self) -> TimerCounts {
        let [early, passed] = [&self.woken.early, &self.woken.passed].map(|n| n.load(Ordering::Relaxed));
        TimerCounts { early, passed }
    }

    #[inline]
    fn set(&self, number: u64, deadline: u64, kept_by: u32) {
        if kept_by == KeptBy::Apic as u32 {
            write_msr(IA32_TSC_DEADLINE, deadline);
            return;
        }
        self.request.deadline.store(deadline, Ordering::Relaxed);
        self.request.number.store(number, Ordering::Release);
        if kept_by == KeptBy::Sleeper as u32 {
            out(DOORBELL);
        }
    }
}

pub extern "sysv64" fn timer(channel: &TimerChannel) -> ! {
    channel.poll_control.say();
    let kept_by = channel.kept_by.load(Ordering::Acquire);
    if kept_by == KeptBy::Apic as u32 {
        apic_write(LVT_TIMER, TSC_DEADLINE_MODE | u32::from(entry::TIMER));
        // The register is memory and the deadline an MSR: the first has to arrive before the second.
        fence(Ordering::SeqCst);
    }
    let (mut early, mut passed) = (0, 0);
    channel.rounds.measure(|number, ahead| {
        let deadline = tsc() + ahead;
        channel.set(number, deadline, kept_by);
        if tsc() >= deadline {
            passed += 1;
            channel.woken.passed.store(passed, Ordering::Relaxed);
        }
        halt();
        let mut now = tsc();
        if now < deadline {
            early += 1;
            channel.woken.early.store(early, Ordering::Relaxed);
            while now < deadline {
                std::hint::spin_loop();
                now = tsc();
            }
        }
        now - deadline
    })
}
