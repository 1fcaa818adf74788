//! The time, for waits.

use crate::Nanos;

/// A clock that never goes back, in nanoseconds since any zero.
///
/// It is read twice in a wait that does not poll, and every 8 looks in one that does: 20 ns are well, a
/// system call is not.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Nanos;
}

impl<C: Clock + ?Sized> Clock for &C {
    #[inline]
    fn now(&self) -> Nanos {
        (**self).now()
    }
}

/// `CLOCK_MONOTONIC`, read without a system call.
#[cfg(feature = "std")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Monotonic;

#[cfg(feature = "std")]
impl Clock for Monotonic {
    #[inline]
    fn now(&self) -> Nanos {
        nanos(rustix::time::clock_gettime(rustix::time::ClockId::Monotonic))
    }
}

#[cfg(feature = "std")]
pub(crate) fn nanos(time: rustix::time::Timespec) -> Nanos {
    // Neither clock that is read here is ever negative, and 64 bits last for 584 years.
    Nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}
