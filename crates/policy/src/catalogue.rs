//! Every policy by its name: one line each.
//!
//! The line of a policy is in [`POLICIES`]: its name, what is written after the name, how it is started, and one
//! sentence on what it does. The command line, the replay, the lab and the manual read it. The
//! same lines make [`Any`], a policy chosen at run time and kept by value. A policy of your own needs no line
//! here: make an [`Entry`] of it, whose start gives [`Any::other`].

extern crate alloc;

use crate::driver::Driver;
use crate::guest::Haltpoll;
use crate::host::HaltPoll;
use crate::iothread::{Aio, Handler, Kind, Revision};
use crate::late::Late;
use crate::leader::Leader;
use crate::param::Setting;
use crate::reference::{Always, Fixed, Never, SkiRental};
use crate::savings::Savings;
use crate::version::UnknownVersion;
use crate::{Layer, Nanos, Outcome, Policy, driver, guest, host, iothread};
use alloc::boxed::Box;
use core::fmt;

/// What a policy that learns needs to be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// CPU time that one halt and wakeup costs.
    pub halt_cost: Nanos,
    /// Wakeup latency: how much longer than to its event an episode is measured where the idler halted; zero where the
    /// event itself has a time stamp.
    ///
    /// A replay has the lengths of episodes whatever a policy does in them, and takes this as zero.
    pub wake_latency: Nanos,
}

impl Terms {
    /// At this halt cost, where events have time stamps.
    pub const fn at(halt_cost: Nanos) -> Terms {
        Terms { halt_cost, wake_latency: Nanos::ZERO }
    }

    /// A policy at this halt cost that learns from lengths without the wakeup latency.
    pub fn start<P>(self, policy: impl FnOnce(Nanos) -> P) -> Late<P> {
        Late::new(policy(self.halt_cost), self.wake_latency)
    }
}

/// How a policy is started, and with that what is written after its name.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Start {
    /// `never`: nothing.
    Alone(fn() -> Any),
    /// `fixed=20us`: a time, which is its window in every episode.
    Window(fn(Nanos) -> Any),
    /// `leader@20us,late=12us`: the halt cost, and where it is not zero the wakeup latency.
    Learner(fn(Terms) -> Any),
    /// `kvm@6.18,halt_poll_ns=50us`: the rule of a layer, its release and what differs from that release's defaults.
    Rule(Layer, fn(&Setting) -> Result<Any, UnknownVersion>),
}

/// A policy in the catalogue.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name on the command line, in tables and in files: lower case, without `,`, `=`, `@` and `+`.
    pub name: &'static str,
    /// How it is started.
    pub start: Start,
    /// What it does, in one sentence that goes on from its name.
    pub about: &'static str,
}

impl Entry {
    /// How it is written: `leader@TIME[,late=TIME]`.
    pub fn grammar(&self) -> impl fmt::Display {
        let after = match self.start {
            Start::Alone(_) => "",
            Start::Window(_) => "=TIME",
            Start::Learner(_) => "@TIME[,late=TIME]",
            Start::Rule(..) => "[@VERSION][,NAME=VALUE]...",
        };
        alloc::format!("{}{after}", self.name)
    }
}

impl PartialEq for Entry {
    /// A name belongs to one policy.
    fn eq(&self, other: &Entry) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&self.name).finish()
    }
}

/// A policy that can be kept in [`Any`] without a line in the catalogue.
pub trait Other: Policy + fmt::Debug + Send + Sync {
    /// A copy of it with its state.
    fn boxed(&self) -> Box<dyn Other>;
}

impl<P: Policy + Clone + fmt::Debug + Send + Sync + 'static> Other for P {
    fn boxed(&self) -> Box<dyn Other> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Other> {
    fn clone(&self) -> Box<dyn Other> {
        (**self).boxed()
    }
}

/// Something to do with a policy of whatever type: see [`Any::with`].
pub trait Use {
    /// What comes of it.
    type Output;
    /// Does it.
    fn with<P: Policy + ?Sized>(self, policy: &mut P) -> Self::Output;
}

/// From one line for each policy, [`Any`] and [`POLICIES`].
macro_rules! policies {
    ($($name:literal $variant:ident($policy:ty) = $start:expr, $about:literal;)*) => {
        /// A policy chosen at run time, by value: none of the catalogue points anywhere, and the largest has 1 KB.
        // There may be no allocator to put the largest elsewhere.
        #[allow(clippy::large_enum_variant)]
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        pub enum Any {
            $(#[doc = concat!("`", $name, "`: ", $about, ".")] $variant($policy),)*
            /// A policy that is not in the catalogue.
            Other(Box<dyn Other>),
        }

        impl Any {
            /// Does something with the policy that it is, compiled for each of them.
            #[inline]
            pub fn with<U: Use>(&mut self, what: U) -> U::Output {
                match self {
                    $(Any::$variant(policy) => what.with(policy),)*
                    Any::Other(policy) => what.with(policy.as_mut()),
                }
            }
        }

        impl Policy for Any {
            #[inline]
            fn window(&mut self) -> Nanos {
                match self {
                    $(Any::$variant(policy) => policy.window(),)*
                    Any::Other(policy) => policy.window(),
                }
            }

            #[inline]
            fn window_after(&mut self, busy: Nanos) -> Nanos {
                match self {
                    $(Any::$variant(policy) => policy.window_after(busy),)*
                    Any::Other(policy) => policy.window_after(busy),
                }
            }

            #[inline]
            fn longest_gap(&self) -> Nanos {
                match self {
                    $(Any::$variant(policy) => policy.longest_gap(),)*
                    Any::Other(policy) => policy.longest_gap(),
                }
            }

            #[inline]
            fn observe(&mut self, outcome: Outcome<'_>) {
                match self {
                    $(Any::$variant(policy) => policy.observe(outcome),)*
                    Any::Other(policy) => policy.observe(outcome),
                }
            }
        }

        $(impl From<$policy> for Any {
            fn from(policy: $policy) -> Any {
                Any::$variant(policy)
            }
        })*

        /// Every policy, in the order in which they are listed.
        pub const POLICIES: &[Entry] = &[$(Entry { name: $name, start: $start, about: $about },)*];
    };
}

policies! {
    "never" Never(Never) = Start::Alone(|| Never.into()), "halts at once";
    "always" Always(Always) = Start::Alone(|| Always.into()), "polls until the wakeup";
    "fixed" Fixed(Fixed) = Start::Window(|window| Fixed(window).into()), "polls for the same window in every episode";
    "ski-rental" SkiRental(SkiRental) = Start::Window(|halt_cost| SkiRental { halt_cost }.into()), "polls for as long as a halt costs: at most twice the optimum";
    "savings" Savings(Late<Savings>) = Start::Learner(|terms| terms.start(Savings::new).into()), "polls while polling has saved more than it cost";
    "leader" Leader(Late<Leader>) = Start::Learner(|terms| terms.start(Leader::new).into()), "polls for the window that would have cost least in similar episodes";
    "kvm" Kvm(HaltPoll) = Start::Rule(Layer::Host, kvm), "KVM halt polling, the rule of the layer host";
    "haltpoll" Haltpoll(Haltpoll) = Start::Rule(Layer::Guest, haltpoll), "the cpuidle haltpoll governor, the rule of the layer guest";
    "dwell-idle" Driver(Driver) = Start::Rule(Layer::Driver, dwell_idle), "the idle driver dwell_idle, the rule of the layer driver";
    "aio" Aio(Aio<[Handler; 1]>) = Start::Rule(Layer::Iothread, aio), "QEMU adaptive polling, the rule of the layer iothread";
}

fn kvm(setting: &Setting) -> Result<Any, UnknownVersion> {
    Ok(HaltPoll::new(host::Revision::of(setting.version())?, host::Params::from(setting)).into())
}

fn haltpoll(setting: &Setting) -> Result<Any, UnknownVersion> {
    Ok(Haltpoll::new(guest::Revision::of(setting.version())?, guest::Params::from(setting)).into())
}

fn dwell_idle(setting: &Setting) -> Result<Any, UnknownVersion> {
    // The driver is the same on every kernel that is known.
    guest::Revision::of(setting.version())?;
    Ok(Driver::new(driver::Params::from(setting)).into())
}

fn aio(setting: &Setting) -> Result<Any, UnknownVersion> {
    let revision = Revision::of(setting.version())?;
    Ok(Aio::new(revision, iothread::Params::from(setting), [Handler::new(Kind::Polled)]).into())
}

/// [`Leader`](crate::leader).
pub const LEADER: &Entry = &POLICIES[5];
/// [`Savings`](crate::savings).
pub const SAVINGS: &Entry = &POLICIES[4];

/// The policy that is the rule of a layer.
pub fn of_layer(layer: Layer) -> Option<&'static Entry> {
    POLICIES.iter().find(|entry| matches!(entry.start, Start::Rule(of, _) if of == layer))
}

/// The policies that learn.
pub fn learners() -> impl Iterator<Item = &'static Entry> {
    POLICIES.iter().filter(|entry| matches!(entry.start, Start::Learner(_)))
}

impl Any {
    /// A policy that is not in the catalogue.
    pub fn other(policy: impl Other + 'static) -> Any {
        Any::Other(Box::new(policy))
    }
}

impl Default for Any {
    /// Halts at once.
    fn default() -> Any {
        Any::Never(Never)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::version::Version;
    use std::collections::BTreeSet;
    use std::string::ToString;

    #[test]
    fn every_name_is_written_once_and_with_letters_only() {
        let names: BTreeSet<&str> = POLICIES.iter().map(|entry| entry.name).collect();
        assert_eq!(names.len(), POLICIES.len());
        for entry in POLICIES {
            assert!(entry.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{entry:?}");
            assert!(!entry.about.ends_with('.') && !entry.about.is_empty(), "{entry:?}");
        }
        assert_eq!(LEADER.grammar().to_string(), "leader@TIME[,late=TIME]");
    }

    #[test]
    fn constants_are_what_they_are_called() {
        assert_eq!((LEADER.name, SAVINGS.name), ("leader", "savings"));
        assert!([SAVINGS, LEADER].iter().all(|of| learners().any(|entry| entry == *of)));
    }

    #[test]
    fn every_policy_is_started_as_itself() {
        let version =
            |layer| if layer == Layer::Iothread { Version::new(11, 1) } else { Version::new(6, 18) };
        for entry in POLICIES {
            let mut any = match entry.start {
                Start::Alone(start) => start(),
                Start::Window(start) => start(Nanos(7)),
                Start::Learner(start) => start(Terms::at(Nanos(7))),
                Start::Rule(layer, start) => {
                    assert_eq!(of_layer(layer), Some(entry));
                    assert!(start(&Setting::defaults(layer, Version::new(1, 0))).is_err());
                    start(&Setting::defaults(layer, version(layer))).unwrap()
                }
            };
            assert!(!matches!(any, Any::Other(_)));
            let window = any.window();
            any.observe(Outcome::of(Nanos(5)));
            assert!(window == Nanos::MAX || window <= Nanos(200_000), "{entry:?}");
        }
        assert!(Layer::ALL.into_iter().all(|layer| of_layer(layer).is_some()));
    }

    #[test]
    fn other_policies_keep_their_state_in_a_copy() {
        #[derive(Clone, Debug)]
        struct Last(Nanos);
        impl Policy for Last {
            fn window(&mut self) -> Nanos {
                self.0
            }
            fn observe(&mut self, outcome: Outcome<'_>) {
                self.0 = outcome.idle;
            }
        }
        let mut any = Any::other(Last(Nanos::ZERO));
        any.observe(Outcome::of(Nanos(9)));
        let mut copy = any.clone();
        any.observe(Outcome::of(Nanos(1)));
        assert_eq!((copy.window(), any.window_after(Nanos(5))), (Nanos(9), Nanos(1)));
        assert!(matches!(any, Any::Other(_)));
    }
}
