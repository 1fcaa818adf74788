//! The properties of a QEMU `iothread` object that steer its polling.

use super::Revision;

/// Default of `poll-max-ns` (ns) on every system but Windows, where it is 0. QEMU, `iothread` object.
pub const DEFAULT_POLL_MAX_NS: i64 = 32_768;
/// Default of `poll-grow` (a factor) since 11.1, and what writing 0 means. Before 11.1 the default 0 is kept as 0
/// and acts as 2.
pub const DEFAULT_POLL_GROW: i64 = 2;
/// Default of `poll-shrink` (a divisor) since 11.1, and what writing 0 means. Before 11.1 the default 0 is kept
/// as 0 and drops the polling time to zero.
pub const DEFAULT_POLL_SHRINK: i64 = 2;
/// Default of `poll-weight` (a shift) since 11.1, and what writing 0 means: a new block time counts for 1/8.
pub const DEFAULT_POLL_WEIGHT: i64 = 3;

/// What steers the polling of one context.
///
/// Every combination of values is calculated with as QEMU would; those that QEMU lets a user set are the ranges
/// of [`Property`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// No polling time exceeds this (ns); 0 switches polling off. 0 to `i64::MAX`.
    pub poll_max_ns: i64,
    /// What the polling time is multiplied with when it grows. 0 to `i64::MAX`; 0 acts as 2.
    pub poll_grow: i64,
    /// What the polling time is divided by when it shrinks. 0 to `i64::MAX`; 0 acts as "to zero" in the classic
    /// revisions and as 2 in the weighted one.
    pub poll_shrink: i64,
    /// A new block time counts for 1/2^weight in a handler's smoothed one. 0 to 63; 0 acts as 3. Weighted revision
    /// only; the others do not look at it.
    pub poll_weight: i64,
}

impl Params {
    /// What a new `iothread` object of this revision has, on every system but Windows.
    pub const fn default_for(revision: Revision) -> Params {
        Params { poll_max_ns: DEFAULT_POLL_MAX_NS, poll_grow: 0, poll_shrink: 0, poll_weight: 0 }
            .stored(revision)
    }

    /// What QEMU keeps when it is given these values. The weighted revision has no 0 but in `poll_max_ns`: there it
    /// keeps the default. The others keep what they get. The same holds for the object's properties and for the
    /// context that they are handed on to.
    #[must_use]
    pub const fn stored(self, revision: Revision) -> Params {
        const fn unless_zero(value: i64, default: i64) -> i64 {
            if value == 0 { default } else { value }
        }
        match revision {
            Revision::Global | Revision::PerHandler => self,
            Revision::Weighted => Params {
                poll_max_ns: self.poll_max_ns,
                poll_grow: unless_zero(self.poll_grow, DEFAULT_POLL_GROW),
                poll_shrink: unless_zero(self.poll_shrink, DEFAULT_POLL_SHRINK),
                poll_weight: unless_zero(self.poll_weight, DEFAULT_POLL_WEIGHT),
            },
        }
    }

    /// The value of a property, as `qom-get` would show it.
    pub const fn get(&self, property: Property) -> i64 {
        match property {
            Property::PollMaxNs => self.poll_max_ns,
            Property::PollGrow => self.poll_grow,
            Property::PollShrink => self.poll_shrink,
            Property::PollWeight => self.poll_weight,
        }
    }
}

crate::named! {
    /// A property of the `iothread` object.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Property {
        /// `poll-max-ns`: [`Params::poll_max_ns`].
        PollMaxNs = "poll-max-ns",
        /// `poll-grow`: [`Params::poll_grow`].
        PollGrow = "poll-grow",
        /// `poll-shrink`: [`Params::poll_shrink`].
        PollShrink = "poll-shrink",
        /// `poll-weight`: [`Params::poll_weight`]; since 11.1.
        PollWeight = "poll-weight",
    }

    /// QEMU's name for it.
    pub fn name

    /// The property of this name, if it is one that steers polling.
    pub fn from_name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_what_query_iothreads_reports() {
        let values = |revision| Property::ALL.map(|p| Params::default_for(revision).get(p));
        assert_eq!(values(Revision::Global), [32_768, 0, 0, 0]);
        assert_eq!(values(Revision::PerHandler), [32_768, 0, 0, 0]);
        assert_eq!(values(Revision::Weighted), [32_768, 2, 2, 3]);
    }

    #[test]
    fn writing_zero_stores_the_default_in_the_weighted_revision_only() {
        for revision in Revision::ALL {
            let zeros =
                Params { poll_max_ns: 0, poll_grow: 0, poll_shrink: 0, poll_weight: 0 }.stored(revision);
            let expected = if revision == Revision::Weighted { [0, 2, 2, 3] } else { [0; 4] };
            assert_eq!(Property::ALL.map(|p| zeros.get(p)), expected, "{revision:?}");
        }
    }
}
