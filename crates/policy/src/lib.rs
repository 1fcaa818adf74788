//! How long should an idle CPU, vCPU or event loop poll before it halts?
//!
//! This crate has the rules of Linux and QEMU, exact to the arithmetic and by version, two policies of its
//! own that learn from every episode, and the reference policies that all of them are compared with. It has
//! no dependencies, no files, no clock, no floating point, and by default no allocation. What is replayed,
//! what an event loop runs and what a controller uses is this code.
//!
//! | layer | policy | module | feature |
//! |---|---|---|---|
//! | guest | Linux cpuidle haltpoll governor | [`guest`] | |
//! | host | KVM halt polling | [`host`] | |
//! | any | savings: polls while polling has saved more than it cost; 24 bytes | [`savings`] | |
//! | any | leader: the window that would have cost least in similar episodes; 1 KB | [`leader`] | |
//! | any | trial: a learner that is made to poll now and then, for loads in which a peer waits for the idler | [`trial`] | |
//! | any | never, always, fixed window, ski rental, optimum | [`reference`](mod@reference) | |
//! | iothread | QEMU adaptive polling | `iothread` | `iothread` |
//! | timer | KVM local APIC timer delivery | `timer` | `timer` |
//! | | table of every parameter; settings and times from text | `param` | `params` |
//! | | every policy by its name; `Any`, a policy chosen at run time (allocates) | `catalogue` | `catalogue` |
//!
//! Savings, leader and their trials never cost more than twice the optimum plus four halts, whatever the
//! episodes ([`account`] has the proof), and give way where others want the CPU. They need lengths without the
//! wakeup latency ([`late`] takes it out).
//!
//! # Terms
//! An *idler* (a CPU, vCPU or event-loop thread that idles) idles in *episodes*, each from "nothing to do" to
//! the wakeup event. It polls for a *window*, then halts. A *revision* of a rule is the range of releases
//! that share one exact behaviour.
//!
//! # Provenance
//! Linux and QEMU are licensed under the GPL; this crate is not derived from their code. Each model was written from a
//! description of the behaviour in plain words and formulas: what is compared with what, which integer
//! widths, what wraps, in which order, since which release. No code or comment was copied. The descriptions
//! were checked by test vectors, the inputs and outputs of the compiled functions of the releases named in
//! each module; the conformance test replays every vector through the public API. Names of parameters,
//! tracepoints and constants are those of the kernel and of QEMU, so that a reader can find them there.
#![warn(missing_docs, missing_debug_implementations, clippy::missing_errors_doc)]
#![no_std]
#![forbid(unsafe_code)]

pub mod account;
pub mod arch;
#[cfg(feature = "catalogue")]
pub mod catalogue;
pub mod driver;
pub mod guest;
pub mod host;
#[cfg(feature = "iothread")]
pub mod iothread;
pub mod late;
pub mod leader;
#[cfg(feature = "params")]
pub mod param;
pub mod reference;
pub mod savings;
#[cfg(feature = "timer")]
pub mod timer;
pub mod trial;
pub mod version;

mod layer;
mod named;
mod nanos;

#[cfg(feature = "catalogue")]
pub use catalogue::Any;
pub use layer::{Layer, NotALayer, Owner};
pub use nanos::Nanos;
#[cfg(feature = "params")]
pub use nanos::ParseNanosError;

/// How an episode ended: what a policy learns from.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Outcome<'a> {
    /// From "nothing to do" to the wakeup event.
    pub idle: Nanos,
    /// How long after the event the idler ran: the wakeup latency, where that was taken out of `idle`, else zero.
    pub late: Nanos,
    /// How long others had the CPU during the poll, which ended for that reason: the jump of the clock between two readings,
    /// where it was more than [`Policy::longest_gap`]; else zero.
    pub lost: Nanos,
    /// Which handlers of an event loop became ready; empty for CPUs, and where it is not known.
    pub ready: &'a [u32],
}

impl<'a> Outcome<'a> {
    /// The outcome of an episode of a CPU, which has no handlers.
    pub const fn of(idle: Nanos) -> Outcome<'static> {
        Outcome::with_ready(idle, &[])
    }

    /// The outcome of an episode of an event loop whose handlers `ready` became ready.
    pub const fn with_ready(idle: Nanos, ready: &'a [u32]) -> Outcome<'a> {
        Outcome { idle, late: Nanos::ZERO, lost: Nanos::ZERO, ready }
    }

    /// The same, of an episode whose poll was preempted for so long.
    #[must_use]
    pub const fn losing(mut self, lost: Nanos) -> Self {
        self.lost = lost;
        self
    }
}

/// Decides how long to poll, and learns from how the episode ended.
///
/// Call [`window`](Policy::window) or [`window_after`](Policy::window_after) once at the start of an episode and
/// [`observe`](Policy::observe) once at its end.
pub trait Policy {
    /// How long to poll before halting in the episode that begins now. Zero: halt at once; [`Nanos::MAX`]: poll until
    /// the wakeup.
    fn window(&mut self) -> Nanos;
    /// As [`window`](Policy::window), for an idler that was busy for `busy` since its last wakeup. The two
    /// are the same for policies that do not use it.
    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        let _ = busy;
        self.window()
    }
    /// The longest gap between two readings of the clock that is no preemption: where the clock jumps by more in a poll, the
    /// poll ends and [`observe`](Policy::observe) gets the [time lost](Outcome::lost). A policy that does not
    /// give way to others has no such limit, as the rules of Linux and QEMU.
    #[inline]
    fn longest_gap(&self) -> Nanos {
        Nanos::MAX
    }
    /// Learns from the episode that the last window was for.
    fn observe(&mut self, outcome: Outcome<'_>);
}

/// A policy to which no [time lost](Outcome::lost) is reported, so that it does not give way: for a CPU that is
/// not shared, and to compare with.
#[derive(Clone, Copy, Debug)]
pub struct Unreported<P>(pub P);

impl<P: Policy> Policy for Unreported<P> {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.0.window()
    }

    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        self.0.window_after(busy)
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        self.0.observe(Outcome { lost: Nanos::ZERO, ..outcome });
    }
}

// The examples of the README are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
