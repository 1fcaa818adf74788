//! Any policy, chosen at run time.

use crate::guest::Haltpoll;
use crate::host::HaltPoll;
use crate::iothread::{Aio, Handler};
use crate::late::Late;
use crate::leader::Leader;
use crate::reference::{Always, Fixed, Never, SkiRental};
use crate::savings::Savings;
use crate::{Nanos, Outcome, Policy};

/// One of the policies of this crate, by value: it needs no allocation, so it also runs where there is no allocator.
// The largest takes 1 KB, and there is no allocator to put it elsewhere.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Any {
    /// Halts at once.
    Never(Never),
    /// Polls until the wake.
    Always(Always),
    /// One window for all time.
    Fixed(Fixed),
    /// Polls for as long as a halt is worth.
    SkiRental(SkiRental),
    /// KVM halt polling.
    Kvm(HaltPoll),
    /// The haltpoll governor.
    Haltpoll(Haltpoll),
    /// QEMU's adaptive polling with one handler.
    Aio(Aio<[Handler; 1]>),
    /// Polls as long as that has saved something.
    Savings(Late<Savings>),
    /// Follows the window that would have cost least.
    Leader(Late<Leader>),
}

impl Policy for Any {
    #[inline]
    fn window(&mut self) -> Nanos {
        match self {
            Any::Never(policy) => policy.window(),
            Any::Always(policy) => policy.window(),
            Any::Fixed(policy) => policy.window(),
            Any::SkiRental(policy) => policy.window(),
            Any::Kvm(policy) => policy.window(),
            Any::Haltpoll(policy) => policy.window(),
            Any::Aio(policy) => policy.window(),
            Any::Savings(policy) => policy.window(),
            Any::Leader(policy) => policy.window(),
        }
    }

    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        match self {
            // The only one that makes use of it.
            Any::Leader(policy) => policy.window_after(busy),
            other => other.window(),
        }
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        match self {
            Any::Never(policy) => policy.observe(outcome),
            Any::Always(policy) => policy.observe(outcome),
            Any::Fixed(policy) => policy.observe(outcome),
            Any::SkiRental(policy) => policy.observe(outcome),
            Any::Kvm(policy) => policy.observe(outcome),
            Any::Haltpoll(policy) => policy.observe(outcome),
            Any::Aio(policy) => policy.observe(outcome),
            Any::Savings(policy) => policy.observe(outcome),
            Any::Leader(policy) => policy.observe(outcome),
        }
    }
}

impl Default for Any {
    /// Halts at once.
    fn default() -> Any {
        Any::Never(Never)
    }
}
