//! How long should something with nothing to do poll before it halts?
//!
//! This crate holds the rules that Linux and QEMU apply today, exact to the arithmetic and by version,
//! beside two policies of our own that learn from every episode, and the
//! reference policies all are measured against. It knows of nothing else: no files, no clock,
//! no allocation, no floating point. What is replayed, what an event loop runs and what a controller uses
//! is this code.
//!
//! | layer | rule | module |
//! |---|---|---|
//! | guest | Linux cpuidle haltpoll governor | [`guest`] |
//! | host | KVM halt polling | [`host`] |
//! | timer | KVM local APIC timer delivery | [`timer`] |
//! | iothread | QEMU adaptive polling | [`iothread`] |
//! | any | savings: whether polling has been worth it, one integer | [`savings`] |
//! | any | leader: the window that would have cost least in times like this, 1 KB | [`leader`] |
//! | any | never, always, fixed window, ski rental, optimum | [`reference`](mod@reference) |
//!
//! The policies of our own never cost more than twice the optimum and four halts, whatever comes ([`account`] says why),
//! and need lengths without the wake-up latency in them ([`late`] takes it out).
//!
//! Terms: an *idler* idles in *episodes*, each from "nothing to do" to the wake event. It polls for a
//! *window*, then halts. A *revision* of a rule is the range of versions
//! that share one exact behaviour.
#![no_std]
#![forbid(unsafe_code)]

pub mod account;
pub mod guest;
pub mod host;
pub mod iothread;
pub mod late;
pub mod leader;
pub mod param;
pub mod reference;
pub mod savings;
pub mod timer;
pub mod version;

mod any;
mod nanos;

pub use any::Any;
pub use nanos::{Nanos, ParseNanosError};

/// Where in the virtualization stack the choice between polling and halting is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer {
    /// A guest CPU: the cpuidle haltpoll governor.
    Guest,
    /// A vCPU seen from its host: KVM halt polling.
    Host,
    /// KVM's local APIC timer.
    Timer,
    /// An event loop: QEMU's adaptive polling, or any thread that waits for file descriptors.
    Iothread,
}

impl Layer {
    /// Every layer, in the order in which they are listed to a user.
    pub const ALL: [Layer; 4] = [Layer::Guest, Layer::Host, Layer::Timer, Layer::Iothread];

    /// The name used on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Layer::Guest => "guest",
            Layer::Host => "host",
            Layer::Timer => "timer",
            Layer::Iothread => "iothread",
        }
    }

    /// The layer of this name, if there is one.
    pub fn from_name(name: &str) -> Option<Layer> {
        Layer::ALL.into_iter().find(|layer| layer.name() == name)
    }
}

/// What a policy is told when an episode is over.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// From "nothing to do" to the wake event.
    pub idle: Nanos,
    /// Which handlers of an event loop became ready; empty for CPUs, and where it is not known.
    pub ready: &'a [u32],
}

impl Outcome<'_> {
    /// The outcome of an episode of a CPU, which has no handlers.
    pub const fn of(idle: Nanos) -> Outcome<'static> {
        Outcome { idle, ready: &[] }
    }
}

/// A rule that decides how long to poll and learns from how the episode ended.
///
/// `window` or `window_after` is asked once at the start of an episode and `observe` told once at its end, in turn.
pub trait Policy {
    /// How long to poll before halting in the episode that begins now. Zero: halt at once.
    fn window(&mut self) -> Nanos;
    /// As [`window`](Policy::window), of an idler that has been busy for so long since its last wake. For policies that
    /// make no use of it the two are the same.
    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        let _ = busy;
        self.window()
    }
    /// Learns from the episode for which the window was asked last.
    fn observe(&mut self, outcome: Outcome<'_>);
}
