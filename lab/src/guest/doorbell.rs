//! A guest that asks for something by a doorbell and waits for the answer, as a driver of a virtual device does.

use super::{IdleState, Idler, PollControl, Rounds, out, spin, tsc};
use crate::vm::Shared;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The port of the doorbell.
pub const DOORBELL: u16 = 0xd8;

/// What the guest and the thread that serves it share.
#[repr(C)]
pub struct RequestChannel {
    /// Where the guest waits for answers.
    pub idle_state: IdleState,
    /// Whether the host may poll.
    pub poll_control: PollControl,
    /// Whether every answer comes with an interrupt, so that none has to be looked for.
    always_interrupts: AtomicU32,
    /// Whether the guest saves the doorbell while the server watches.
    suppresses: AtomicU32,
    request: Request,
    answer: Answer,
    /// The requests: how long the guest thinks before each, and then how long it took.
    pub rounds: Rounds,
}

/// Written by the guest.
#[repr(align(128))]
struct Request {
    number: AtomicU64,
    rung: AtomicU64,
    suppressed: AtomicU64,
}

/// Written by the server.
#[repr(align(128))]
struct Answer {
    number: AtomicU64,
    /// 1 while the server watches for requests.
    watching: AtomicU32,
}

// SAFETY: atomics, and what consists of them and of an IdleState.
unsafe impl Shared for RequestChannel {}

/// What the guest counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorbellCounts {
    pub rung: u64,
    /// Doorbells that it saved.
    pub suppressed: u64,
}

impl RequestChannel {
    /// Before the guest runs: every answer will come with an interrupt.
    pub fn always_interrupts(&self) {
        self.always_interrupts.store(1, Ordering::Release);
    }

    /// Before the guest runs: it saves the doorbell while the server watches.
    pub fn suppress(&self) {
        self.suppresses.store(1, Ordering::Release);
    }

    /// The number of the last request, from 1.
    #[inline]
    pub fn requested(&self) -> u64 {
        self.request.number.load(Ordering::Acquire)
    }

    /// The server begins to watch for requests, or ends it. It has to look once more after that before it sleeps; as in
    /// [`IdleState`], each side has a full fence between its store and its load.
    #[inline]
    pub fn watch(&self, watching: bool) {
        self.answer.watching.store(watching.into(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Posts the answer to the request of this number.
    #[inline]
    pub fn answer(&self, number: u64) {
        self.answer.number.store(number, Ordering::Release);
    }

    /// What the guest has counted so far.
    pub fn rung(&self) -> DoorbellCounts {
        let [rung, suppressed] =
            [&self.request.rung, &self.request.suppressed].map(|n| n.load(Ordering::Relaxed));
        DoorbellCounts { rung, suppressed }
    }

    #[inline]
    fn ask(&self, number: u64, suppresses: bool, counted: &mut DoorbellCounts) {
        self.request.number.store(number, Ordering::Release);
        fence(Ordering::SeqCst);
        if suppresses && self.answer.watching.load(Ordering::Relaxed) != 0 {
            counted.suppressed += 1;
            self.request.suppressed.store(counted.suppressed, Ordering::Relaxed);
        } else {
            counted.rung += 1;
            self.request.rung.store(counted.rung, Ordering::Relaxed);
            out(DOORBELL);
        }
    }
}

pub extern "sysv64" fn doorbell(channel: &RequestChannel) -> ! {
    channel.poll_control.say();
    let always_interrupts = channel.always_interrupts.load(Ordering::Acquire) != 0;
    let suppresses = channel.suppresses.load(Ordering::Acquire) != 0;
    let mut idler = Idler::new(&channel.idle_state);
    let mut counted = DoorbellCounts::default();
    channel.rounds.measure(|number, think| {
        spin(think);
        let asked = tsc();
        channel.ask(number, suppresses, &mut counted);
        let answered = || channel.answer.number.load(Ordering::Acquire) == number;
        if always_interrupts {
            idler.halt_once();
            while !answered() {
                idler.halt_once();
            }
        } else {
            idler.idle(answered);
        }
        tsc() - asked
    })
}
