//! One word by which other threads call a loop.
//!
//! # The states
//! `AWAKE`: the loop is looking, or will look before it sleeps. `RUNG`: it was rung and the loop has not
//! answered. `ASLEEP`: the loop sleeps, or is about to, and who rings has to wake it by a system call.
//!
//! # No ring is lost
//! Every change is one atomic read-modify-write of one word, so all of them are in one order. A ring puts
//! `RUNG` in place of what was there. If that was `ASLEEP`, it calls the waker; so the loop, which sleeps or
//! is about to, returns from its wait. If it was `AWAKE`, the loop has still to get from there to `ASLEEP`,
//! and that change fails where it finds `RUNG` ([`Word::sleeps`]); so it looks before it sleeps. If it was
//! `RUNG`, an earlier ring is unanswered and the answer serves both: it is a read-modify-write as well, and
//! takes in what every thread that rang had written before.
//!
//! A second flag ("asleep" beside "rung") would need a full fence on both sides, which is easily left
//! out.

use super::sync::{AtomicU32, Ordering};

const AWAKE: u32 = 0;
const RUNG: u32 = 1;
const ASLEEP: u32 = 2;

/// The word.
#[derive(Debug)]
pub(crate) struct Word(AtomicU32);

impl Word {
    pub(crate) fn new() -> Word {
        Word(AtomicU32::new(AWAKE))
    }

    /// Rings; whether the loop has to be woken by a system call.
    #[must_use]
    pub(crate) fn ring(&self) -> bool {
        self.0.swap(RUNG, Ordering::AcqRel) == ASLEEP
    }

    /// Whether it was rung: a load.
    pub(crate) fn look(&self) -> bool {
        self.0.load(Ordering::Relaxed) == RUNG
    }

    /// Answers; whether it had been rung. What they wrote before is visible from here.
    pub(crate) fn answer(&self) -> bool {
        self.0.swap(AWAKE, Ordering::AcqRel) == RUNG
    }

    /// The loop is about to sleep. `false`: it was rung, and the loop must not sleep.
    #[must_use]
    pub(crate) fn sleeps(&self) -> bool {
        self.0.compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire) != Err(RUNG)
    }

    /// The loop is awake; a ring that came while it slept stays.
    pub(crate) fn wakes(&self) {
        // Fails where it was rung, which is intended.
        let _ = self.0.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Acquire);
    }
}
