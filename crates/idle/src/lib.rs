//! How long should a thread poll before it sleeps? A guard around any wait that decides it.
//!
//! # The idea
//! A thread that waits for events can sleep in the kernel or look for a while first. A sleep costs CPU time
//! on both sides and adds wakeup latency; a look that finds nothing costs CPU time. A constant (`if elapsed >
//! 50us`) is right for one load. An [`Idler`] asks a [policy] at the beginning of every wait and teaches it
//! at the end.
//!
//! ```
//! use dwell_idle::{Halt, Idler, Price};
//! use std::sync::mpsc::{Receiver, channel};
//! use std::time::Duration;
//!
//! # fn wait(idler: &mut Idler<impl dwell_idle::Policy>, events: &Receiver<u32>) -> Option<u32> {
//! let timeout = Some(Duration::from_secs(1));
//! let mut idle = idler.idle(timeout); // asks the policy
//! let mut event = None;
//! while event.is_none() && idle.polls() {
//!     event = events.try_recv().ok(); // a look
//! }
//! if event.is_none() {
//!     let left = idle.halts().unwrap_or(Duration::MAX); // what is left of the time-out
//!     event = events.recv_timeout(left).ok(); // sleeps
//! }
//! idle.wakes(&[]); // the policy learns
//! # event
//! # }
//! # let (send, events) = channel();
//! # send.send(7).unwrap();
//! let halt = Halt::measure()?; // what a sleep costs here, in about 0.2 s
//! let mut idler = Idler::new(halt.leader(Price::default()));
//! assert_eq!(wait(&mut idler, &events), Some(7));
//! # Ok::<(), dwell_idle::MeasureHaltError>(())
//! ```
//!
//! # Terms
//! An *idler* is a thread that waits; an *episode* is one wait, from "nothing to do" to the event. It polls for the
//! *window* that the policy chose, then *halts*: it sleeps in the kernel until it is woken. A *look* is the
//! caller's own test for events, by loads or by a system call that does not block. The *halt cost* is what
//! one sleep and wakeup cost: CPU time of both sides, and the wakeup latency at its [`Price`].
//!
//! # The steps of a wait
//! 1. [`Idler::idle`]: reads the clock, asks the policy for the window; bounds it by the time-out.
//! 2. [`Idle::polls`]: whether to look once more. The clock is read every 8 looks (more often where looks take long).
//! 3. [`Idle::halts`], where nothing was seen: what is left of the time-out, for the system call that sleeps.
//! 4. [`Idle::wakes`]: the policy learns how long the wait was and who was ready; a [`Row`] is recorded.
//!
//! A wait whose guard is dropped before 4, because the system call failed, teaches nothing. Where the loop is
//! a framework's, a [`Parker`](park::Parker) takes the place of the guard.
//!
//! # Policies
//! Any [`Policy`]: [`Halt::leader`], which learns and is the one to begin with; [`savings`](dwell_policy::savings);
//! [haltpoll's rule](dwell_policy::guest), [a fixed window](dwell_policy::reference::Fixed);
//! with the feature `iothread` the rules of every QEMU release, weighted polling among them (`dwell_policy::iothread`).
//! What a replay, a model and a controller run is the same code.
//!
//! # Wakeup latency
//! A thread that slept sees its event late by the wakeup latency. A learner that takes this for idle time
//! stops polling for good once the latency is near the halt cost, so [`Halt::leader`] takes the measured
//! latency out ([`Late`](dwell_policy::late::Late)), and polls trial bursts where a peer sleeps because this
//! thread does ([`Trial`](dwell_policy::trial::Trial)). QEMU's and haltpoll's rules learn from what they
//! measure, latency included, as they do where they come from.
//!
//! # Others on the CPU
//! A thread cannot see whether another one waits for its CPU. But where the clock jumps by more than the policy's
//! [longest gap](Policy::longest_gap) between two readings, it was preempted: it stops polling, and the policy
//! gets the time lost. Policies with an [account](dwell_policy::account#a-core-that-is-shared) give way then:
//! they do not poll for a thousand times as long. QEMU's and haltpoll's rules and a fixed window do not.
//!
//! # Features
//! `std` (default; Linux): [`Monotonic`], [`Halt::measure`], [`ring`](mod@ring). `record`: `recorder`, which
//! writes a recording. `iothread`: QEMU's rules. Without features the crate needs neither `std` nor an
//! allocator, and a [`Clock`] is the caller's.
//!
//! # Limits
//! * A preemption is a gap between two readings of the clock, which are up to 8 looks apart: looks that together take
//!   longer than four halts count as one, where those before them were quick.
//! * A recording has when others got the CPU (`alone_ns`), not for how long: a replay polls on where the
//!   thread gave way.
//! * The rest of the time-out is counted from the last reading of the clock, so a wait may last longer than
//!   its time-out by 8 looks.
//! * With `COOP_TASKRUN` or `DEFER_TASKRUN` but without `TASKRUN_FLAG`, io_uring posts completions only when
//!   the thread enters the kernel: a look at the completion queue then sees nothing.
#![warn(missing_docs, missing_debug_implementations, clippy::missing_errors_doc)]
#![no_std]
#![forbid(unsafe_code)]
#[cfg(feature = "std")]
extern crate std;

mod clock;
pub mod halt;
pub mod idler;
#[cfg(feature = "std")]
mod measure;
pub mod park;
#[cfg(feature = "record")]
pub mod recorder;
#[cfg(feature = "std")]
pub mod ring;
mod row;

pub use clock::Clock;
#[cfg(feature = "std")]
pub use clock::Monotonic;
pub use dwell_policy as policy;
pub use dwell_policy::{Nanos, Policy};
pub use halt::{Halt, Price};
pub use idler::{Idle, Idler, Totals};
#[cfg(feature = "std")]
pub use measure::MeasureHaltError;
#[cfg(feature = "record")]
pub use recorder::{RecordError, Recorder};
pub use row::{Record, Row};

// The examples of the README are compiled and run as tests.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
