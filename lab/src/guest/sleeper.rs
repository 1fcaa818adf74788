//! A guest that sleeps until something happens, notes when it saw it, and sleeps again.

use super::{IdleState, Idler, PollControl, report, tsc};
use crate::vm::Shared;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What the sleeper shares with its host.
#[repr(C)]
pub struct Sleeper {
    pub idle_state: IdleState,
    /// Whether the host may poll.
    pub poll_control: PollControl,
    event: Event,
    seen: Seen,
}

/// Written by the host.
#[repr(align(128))]
struct Event {
    number: AtomicU64,
    stop: AtomicU32,
    /// Whether every event comes with an interrupt, so that none has to be looked for.
    always_interrupts: AtomicU32,
}

/// Written by the guest.
#[repr(align(128))]
struct Seen {
    number: AtomicU64,
    at: AtomicU64,
}

// SAFETY: atomics, and an IdleState, which is Shared.
unsafe impl Shared for Sleeper {}

impl Sleeper {
    /// Before it runs: every event will come with an interrupt.
    pub fn always_interrupts(&self) {
        self.event.always_interrupts.store(1, Ordering::Release);
    }

    /// Posts the event of this number, larger than that of the last.
    #[inline]
    pub fn post(&self, number: u64) {
        self.event.number.store(number, Ordering::Release);
    }

    /// The number of the last event that was posted.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.event.number.load(Ordering::Acquire)
    }

    /// The event posted next will be the last.
    pub fn stop(&self) {
        self.event.stop.store(1, Ordering::Release);
    }

    /// The last event that it saw, and the time-stamp counter then.
    #[inline]
    pub fn seen(&self) -> (u64, u64) {
        let number = self.seen.number.load(Ordering::Acquire);
        (number, self.seen.at.load(Ordering::Relaxed))
    }
}

pub extern "sysv64" fn sleeper(shared: &Sleeper) -> ! {
    shared.poll_control.say();
    let always_interrupts = shared.event.always_interrupts.load(Ordering::Acquire) != 0;
    let mut idler = Idler::new(&shared.idle_state);
    let mut last = 0;
    loop {
        if always_interrupts {
            idler.halt_once();
        } else {
            idler.idle(|| shared.posted() != last);
        }
        let at = tsc();
        let posted = shared.posted();
        if posted == last {
            continue;
        }
        last = posted;
        shared.seen.at.store(at, Ordering::Relaxed);
        let stop = shared.event.stop.load(Ordering::Acquire) != 0;
        shared.seen.number.store(last, Ordering::Release);
        if stop {
            report();
        }
    }
}
