//! A setting in the form that a lane takes: five numbers, equal for both rules and all revisions.
//!
//! # Both revisions of the host are one
//! Since 6.1 a window grows past the maximum and is cut when the next halt begins; before, it is cut when it grows.
//! Nothing looks at the window in between, so that cutting at growth gives the same windows in both.
//!
//! # Divisions
//! For a dividend *n* < 2^31 and a divisor 1 ≤ *S* < 2^31 let *l* = ceil(log2 *S*) and *m* = floor(2^(31+*l*)
//! / *S*) + 1. Then *m* *S* = 2^(31+*l*) + *e* with 0 < *e* ≤ *S* ≤ 2^*l*, hence *n* *m* / 2^(31+*l*) =
//! *n*/*S* + *n* *e* / (*S* 2^(31+*l*)), and the excess is below 1/*S*: the floor is that of *n*/*S*. Since
//! 2^(*l*-1) < *S*, *m* fits 32 bits. A divisor that is a power of two is a shift, and one above the maximum
//! gives zero, like the divisor 0 does.

use crate::idle_loop::IdleLoop;
use crate::rule::Rule;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, guest, host};

/// A maximum from here on (133 ms) is left to the scalar replay: below it the polled time of 32 episodes fits 32 bits,
/// also with the longest step between two looks at the clock in each, and so does a growth by any sensible factor.
pub(super) const MAX_END: u32 = (1 << 27) - (1 << 20);
const _: () = assert!(MAX_END as u64 + IdleLoop::LONGEST.get() <= 1 << 27);
// What is longest stays longer than any maximum, also without the poll and the entry into the halt before it.
const _: () = assert!(2 * MAX_END as u64 + 2 * IdleLoop::LONGEST.get() < LONGEST as u64);

/// Episodes are at most this long for a lane. All lanes compare them with twice the maximum at most, so that a longer
/// one makes no difference, and they poll the window and never the whole of it; the sums of lengths are made from the
/// lengths as they were.
pub(super) const LONGEST: i32 = i32::MAX;

/// Which rule a lane follows: the number of the kernels that are compiled for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    /// KVM halt polling: learns from the whole episode.
    Host,
    /// haltpoll: learns from the halt alone.
    Guest,
    /// haltpoll of 5.4: from its whole microseconds.
    GuestMicros,
}

/// How windows grow, in the order of what it costs; each includes those before it. Kernels are compiled for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Growth {
    /// By a shift, and never to less than before.
    Shift,
    /// By any factor, likewise.
    Raise,
    /// By zero, or by so much that the product leaves 32 bits, as it does in the kernel.
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    pub(super) kind: Kind,
    /// Longest window \[ns\], 1 to [`MAX_END`].
    pub(super) max: u32,
    pub(super) grow: u32,
    /// Least window that a growth gives \[ns\], at least 1; `max + 1` represents all above the maximum.
    pub(super) start: u32,
    /// Divisor; 0 drops to zero.
    pub(super) shrink: u32,
    /// A window that shrinks below this becomes zero \[ns\]; 0 where there is no such rule. Never above `start` or
    /// `max`, so that all other windows are zero or at least that long.
    pub(super) floor: u32,
}

impl Lane {
    /// The lane of a rule; `None` where the scalar replay takes it, as it does settings whose window is always zero.
    pub(super) fn of(rule: &Rule) -> Option<Lane> {
        let Rule::Layer(setting) = rule else { return None };
        let lane = match setting.layer() {
            Layer::Host => Lane::host(setting)?,
            Layer::Guest => Lane::guest(setting)?,
            Layer::Driver | Layer::Iothread => return None,
        };
        // Nothing grows to more than the maximum, and zero times the factor stays zero.
        if lane.max == 0 || lane.start == 0 || lane.max >= MAX_END {
            return None;
        }
        // Windows are at most `max`, and so the least of `start` and `max` is the same for every `start` above it.
        let start = lane.start.min(lane.max + 1);
        // No window is so long as to reach such a floor or divisor: all that shrinks becomes zero.
        let drops = lane.floor > lane.max || lane.shrink > lane.max;
        Some(if drops { Lane { start, floor: 0, shrink: 0, ..lane } } else { Lane { start, ..lane } })
    }

    fn host(setting: &Setting) -> Option<Lane> {
        let revision = host::Revision::of(setting.version()).ok()?;
        let params = host::Params::from(setting);
        let floors = revision.shrinks_to_zero_below_grow_start();
        // With a factor of zero nothing grows from zero.
        (params.halt_poll_ns_grow > 0).then_some(Lane {
            kind: Kind::Host,
            max: params.halt_poll_ns,
            grow: params.halt_poll_ns_grow,
            start: params.halt_poll_ns_grow_start,
            shrink: params.halt_poll_ns_shrink,
            floor: if floors { params.halt_poll_ns_grow_start } else { 0 },
        })
    }

    fn guest(setting: &Setting) -> Option<Lane> {
        let revision = guest::Revision::of(setting.version()).ok()?;
        let params = guest::Params::from(setting);
        let shrinks = params.guest_halt_poll_allow_shrink;
        let floors = shrinks && revision.shrinks_to_zero_below_grow_start();
        Some(Lane {
            kind: if revision == guest::Revision::V5_4 { Kind::GuestMicros } else { Kind::Guest },
            max: params.guest_halt_poll_ns,
            grow: params.guest_halt_poll_grow,
            start: params.guest_halt_poll_grow_start,
            shrink: if shrinks { params.guest_halt_poll_shrink } else { 1 },
            floor: if floors { params.guest_halt_poll_grow_start } else { 0 },
        })
    }

    /// Whether lanes of like maxima can run together, with windows that are cut to theirs only where they could be
    /// seen: they must not leave the signed numbers until then, nor twice a window of the guest.
    pub(super) fn can_run_together(&self) -> bool {
        self.kind != Kind::GuestMicros
            && self.grow > 0
            && u64::from(self.max) * u64::from(self.grow) < 1 << 30
    }

    /// Of lanes that can run together: whether a growth from a window above zero never ends below `start`, so
    /// that only a window of zero has to be lifted to it. With the floor, windows are zero or at least
    /// `start` (or the maximum, if that is less); without, that is so for divisors that leave the window as
    /// it is or drop it to zero.
    pub(super) fn grows_past_start(&self) -> bool {
        self.floor == self.start || self.shrink <= 1
    }

    pub(super) fn growth(&self) -> Growth {
        if self.grow == 0 || u64::from(self.max) * u64::from(self.grow) >= 1 << 32 {
            Growth::Any
        } else if self.grow.is_power_of_two() {
            Growth::Shift
        } else {
            Growth::Raise
        }
    }

    /// Bits that a growth shifts by, if it is a shift.
    pub(super) fn grow_shift(&self) -> u32 {
        self.grow.checked_ilog2().unwrap_or(0)
    }

    /// Whether a division is a shift.
    pub(super) fn shifts(&self) -> bool {
        self.shrink == 0 || self.shrink.is_power_of_two()
    }

    /// Bits to shift by; 32 gives zero.
    pub(super) fn shift(&self) -> u32 {
        if self.shrink == 0 { 32 } else { self.shrink.trailing_zeros() }
    }

    /// Factor and shift of a division, see the module.
    pub(super) fn reciprocal(&self) -> (u32, u32) {
        reciprocal(self.shrink)
    }
}

/// Factor and shift that divide any number below 2^31 by `divisor` < 2^31; by 0 the result is 0.
pub(super) const fn reciprocal(divisor: u32) -> (u32, u32) {
    if divisor == 0 {
        return (0, 31);
    }
    let bits = 31 + u32::BITS - (divisor - 1).leading_zeros();
    let factor = (1u64 << bits) / divisor as u64 + 1;
    debug_assert!(factor <= u32::MAX as u64);
    ((factor & 0xffff_ffff) as u32, bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn divided(n: u32, divisor: u32) -> u64 {
        let (factor, bits) = reciprocal(divisor);
        (u64::from(n) * u64::from(factor)) >> bits
    }

    #[test]
    fn divides_exactly_around_every_multiple_of_small_divisors() {
        for divisor in 1u32..600 {
            for multiple in 0..600 {
                let n = divisor * multiple;
                for n in [n.saturating_sub(1), n, n + 1] {
                    assert_eq!(divided(n, divisor), u64::from(n / divisor), "{n} / {divisor}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn divides_exactly(n in 0u32..1 << 31, divisor in prop_oneof![1u32..5_000, 1u32..1 << 31]) {
            for n in [n, n / divisor * divisor, (n / divisor * divisor).saturating_sub(1), (1 << 31) - 1] {
                prop_assert_eq!(divided(n, divisor), u64::from(n / divisor));
            }
        }
    }
}
