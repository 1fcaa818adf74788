//! An event loop that decides by a [policy](dwell_idle::policy) how long to poll before it sleeps. Linux,
//! epoll or io_uring.
//!
//! # The idea
//! Many event loops look for events for a constant time, or never, or always. This one asks a policy in each wait
//! ([`Idler`]). It takes *sources* that can be looked at without a system call (a virtqueue, a completion queue, a word
//! in shared memory), and file descriptors that cannot; neither forbids the other.
//!
//! # A step
//! 1. *Look* at every source, at file descriptors every [`FD_STEPS`] steps, and at the timers.
//! 2. *Run* each source that has something to do, in the order in which it was seen, with a budget. One that
//!    has more to do is run again in the next step.
//! 3. If there was nothing: *poll*, rounds of looks, for as long as the policy says; file descriptors are looked at by
//!    `epoll_wait(0)` every [`FD_ROUNDS`] rounds, or in every round over [`Uring`], where that takes no system call.
//! 4. If there is still nothing: every source becomes *loud*, is looked at once more, and the loop *sleeps*
//!    in `epoll_wait` or `io_uring_enter` until a file descriptor or a timer wakes it. Then every source
//!    becomes *quiet*.
//!
//! # It does not sleep over an event
//! A source is quiet, its notifications off, as long as the loop is awake. Before the loop sleeps all become
//! loud, *and only then* is each looked at once more. An event came either before that look, which sees it,
//! or after its source was loud, and then it is notified: its file descriptor is readable or will be, and
//! `epoll_wait` returns. So that this is true the stores of [`Source::loud`] have to be visible to whoever
//! notifies before [`Source::look`] loads what they write: the loop has a full fence between the two, and
//! whoever notifies needs one between the event and the test whether to notify, as a virtqueue's driver has.
//! Sources are registered edge-triggered: a notification that was written before the wait began is still an
//! edge.
//!
//! # Fairness
//! A source that has an event is run within the step that looks next: it waits for at most one run of each
//! other source, each with at most [`BUDGET`] units. A file descriptor is run within [`FD_STEPS`] steps,
//! whatever the sources do. A timer is run in the first step after its time.
//!
//! # Limits
//! * The budget is a promise of the source. Looks are as many as sources; hundreds of them make a round slow, and the
//!   policy learns that polling costs as much.
//! * A timer is never run before its time. Where the loop sleeps until then it is run later by the wakeup
//!   latency, and over [`Epoll`] by the kernel's slack: that of the thread (`PR_SET_TIMERSLACK`, 50 us unless
//!   set) or a thousandth of the time-out, whichever is longer, but at most 0.1 s. [`Uring`] has none.
//! * A source or a timer that panics ends the step. Where the panic is caught the loop can go on: the source
//!   is looked at again, the timer is gone, and no other one is lost.
//! * A loop stays in the thread that made it, as its sources need not be `Send`: send what it is made of, and build it
//!   there.
//! * A callback cannot reach the loop that runs it. One that accepts connections puts them where whoever calls
//!   [`Loop::step`] finds them, and adds them between two steps.
#![warn(missing_docs, missing_debug_implementations, clippy::missing_errors_doc)]

mod doorbell;
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering, fence};
}
mod bell;
mod sleep;
mod source;
mod timers;
mod uring;
mod wait;
mod world;

pub use bell::{Bell, Doorbell};
pub use dwell_idle::{Idler, Nanos, Policy, Record};
pub use source::{Source, SourceId};
pub use timers::TimerId;
pub use uring::Uring;
pub use wait::{Epoll, Wait, Watch};
pub use world::{BUDGET, FD_ROUNDS, FD_STEPS, Loop, Step};

// The examples of the README are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
