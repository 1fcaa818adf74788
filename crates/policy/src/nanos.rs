use core::fmt;

/// A span of time in nanoseconds: the unit in which kernel counters and trace fields arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);
    /// Longer than anything: the window of a policy that always polls.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// A span of whole microseconds; saturates at [`Nanos::MAX`].
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us.saturating_mul(1_000))
    }

    /// `self - other`, or zero where `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}
