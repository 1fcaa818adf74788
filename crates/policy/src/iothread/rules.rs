//! The arithmetic of adaptation, without state.
//!
//! All values are `i64` nanoseconds and wrap around, since QEMU is compiled that way; division truncates toward
//! zero and `>>` keeps the sign. What is passed as `params` is what the context has [stored](Params::stored).

use super::Params;

/// The polling time after the first growth from zero in the classic revisions (ns). QEMU, `util/aio-posix.c`.
pub const FIRST_GROWTH_NS: i64 = 4_000;

/// Whether a polling time grew or shrank: which of QEMU's trace events it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Trace event `poll_grow`.
    Grow,
    /// Trace event `poll_shrink`.
    Shrink,
}

/// An adaptation of a polling time that QEMU traces. The value may be the same before and after: a classic shrink
/// of zero is traced, and so is growth by a factor of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    /// Which trace event.
    pub kind: ChangeKind,
    /// The polling time before (ns).
    pub old: i64,
    /// The polling time after (ns).
    pub new: i64,
}

impl Change {
    const fn grow(old: i64, new: i64) -> Change {
        Change { kind: ChangeKind::Grow, old, new }
    }

    const fn shrink(old: i64, new: i64) -> Change {
        Change { kind: ChangeKind::Shrink, old, new }
    }
}

/// The classic rule: what becomes of the polling time `ns` when an `aio_poll` took `block_ns` in all.
///
/// * No more than `ns`: polling covers it, nothing changes.
/// * More than the maximum: polling would have failed, the time shrinks.
/// * Between: a longer time would have covered it, the time grows, from zero to [`FIRST_GROWTH_NS`].
/// * Exactly the maximum: nothing changes.
///
/// Applied only while `poll_max_ns` is not 0.
#[inline]
pub const fn classic(ns: i64, block_ns: i64, params: &Params) -> Option<Change> {
    let max = params.poll_max_ns;
    if block_ns <= ns {
        None
    } else if block_ns > max {
        Some(Change::shrink(ns, shrunk(ns, params.poll_shrink)))
    } else if block_ns < max {
        let factor = if params.poll_grow == 0 { 2 } else { params.poll_grow };
        let grown = if ns == 0 { FIRST_GROWTH_NS } else { ns.wrapping_mul(factor) };
        Some(Change::grow(ns, if grown < max { grown } else { max }))
    } else {
        None
    }
}

/// The weighted rule for one handler on the poll list: its smoothed block time after an `aio_poll` that took
/// `block_ns` and in which the handler was dispatched (`active`) or not.
///
/// An active handler takes the first block time as it is and later ones with weight 1/2^`poll_weight`; an inactive
/// one has waited for `block_ns` longer. Either is forgotten (0) once it exceeds the maximum.
#[inline]
pub fn weighted(ns: i64, block_ns: i64, active: bool, params: &Params) -> i64 {
    let next = match (active, ns) {
        (true, 0) => block_ns,
        (true, ns) => {
            // `poll_weight` is 0..=63; the mask only makes every i64 harmless, and fits in any integer.
            let weight = u32::try_from(params.poll_weight & 63).unwrap_or(0);
            ns.wrapping_sub(ns >> weight).wrapping_add(block_ns >> weight)
        }
        (false, 0) => 0,
        (false, ns) => ns.wrapping_add(block_ns),
    };
    if next > params.poll_max_ns { 0 } else { next }
}

/// The weighted rule for the context: what becomes of its polling time when `best` is the largest smoothed block
/// time among the active handlers.
///
/// Below `best` it grows, by the factor and at least to `best`; a time that could shrink and still cover `best`
/// does; between lies a dead zone in which nothing changes.
#[inline]
pub fn adjust(poll_ns: i64, best: i64, params: &Params) -> Option<Change> {
    if best > poll_ns {
        let grown = best.max(poll_ns.wrapping_mul(params.poll_grow));
        return Some(Change::grow(poll_ns, grown.min(params.poll_max_ns)));
    }
    let shrunk = shrunk(poll_ns, params.poll_shrink);
    (best < shrunk).then_some(Change::shrink(poll_ns, shrunk))
}

/// `ns` divided; a divisor of zero means "to zero".
const fn shrunk(ns: i64, divisor: i64) -> i64 {
    if divisor == 0 { 0 } else { ns.wrapping_div(divisor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn params(poll_max_ns: i64, poll_grow: i64, poll_shrink: i64, poll_weight: i64) -> Params {
        Params { poll_max_ns, poll_grow, poll_shrink, poll_weight }
    }

    const CLASSIC: Params = params(32_768, 0, 0, 0);
    const WEIGHTED: Params = params(32_768, 2, 2, 3);

    #[test]
    fn classic_leaves_a_block_time_alone_that_polling_covers() {
        assert_eq!(classic(4_000, 4_000, &CLASSIC), None);
        assert_eq!(classic(0, 0, &CLASSIC), None);
    }

    #[test]
    fn classic_never_changes_by_a_block_time_of_exactly_the_maximum() {
        assert_eq!(classic(0, 32_768, &CLASSIC), None);
        assert_eq!(classic(32_768, 32_768, &CLASSIC), None);
    }

    #[test]
    fn classic_shrinks_to_zero_by_default_and_traces_even_zero() {
        assert_eq!(classic(8_000, 32_769, &CLASSIC), Some(Change::shrink(8_000, 0)));
        assert_eq!(classic(0, 32_769, &CLASSIC), Some(Change::shrink(0, 0)));
        assert_eq!(classic(8_000, 32_769, &params(32_768, 0, 3, 0)), Some(Change::shrink(8_000, 2_666)));
    }

    #[test]
    fn classic_factors_of_one_are_traced_and_change_nothing() {
        let p = params(32_768, 1, 1, 0);
        assert_eq!(classic(4_000, 5_000, &p), Some(Change::grow(4_000, 4_000)));
        assert_eq!(classic(4_000, 50_000, &p), Some(Change::shrink(4_000, 4_000)));
    }

    #[test]
    fn classic_grows_from_zero_to_4000_or_to_a_lower_maximum() {
        assert_eq!(classic(0, 1, &CLASSIC), Some(Change::grow(0, 4_000)));
        assert_eq!(classic(0, 1, &params(1_000, 0, 0, 0)), Some(Change::grow(0, 1_000)));
        assert_eq!(classic(20_000, 30_000, &CLASSIC), Some(Change::grow(20_000, 32_768)));
    }

    #[test]
    fn classic_products_wrap() {
        let p = params(i64::MAX, 1 << 62, 0, 0);
        assert_eq!(classic(4_000, 5_000, &p), Some(Change::grow(4_000, 0)));
        assert_eq!(classic(4_001, 5_000, &p), Some(Change::grow(4_001, 1 << 62)));
        assert_eq!(classic(4_003, 5_000, &p), Some(Change::grow(4_003, -(1 << 62))));
    }

    #[test]
    fn divisions_of_the_smallest_number_do_not_panic() {
        let p = params(0, 0, -1, 0);
        assert_eq!(classic(i64::MIN, 1, &p), Some(Change::shrink(i64::MIN, i64::MIN)));
        adjust(i64::MIN, 0, &p);
    }

    #[test]
    fn weighted_takes_the_first_block_time_whole_and_later_ones_by_an_eighth() {
        assert_eq!(weighted(0, 8_000, true, &WEIGHTED), 8_000);
        assert_eq!(weighted(8_000, 16_000, true, &WEIGHTED), 9_000);
    }

    #[test]
    fn weighted_keeps_the_maximum_and_forgets_what_exceeds_it() {
        assert_eq!(weighted(0, 32_768, true, &WEIGHTED), 32_768);
        assert_eq!(weighted(0, 32_769, true, &WEIGHTED), 0);
        assert_eq!(weighted(30_000, 2_768, false, &WEIGHTED), 32_768);
        assert_eq!(weighted(30_000, 2_769, false, &WEIGHTED), 0);
    }

    #[test]
    fn weighted_lets_the_inactive_wait_longer_unless_they_are_forgotten() {
        assert_eq!(weighted(1_000, 500, false, &WEIGHTED), 1_500);
        assert_eq!(weighted(0, 500, false, &WEIGHTED), 0);
    }

    #[test]
    fn weighted_is_fixed_where_both_halves_truncate_alike() {
        assert_eq!(weighted(7, 0, true, &WEIGHTED), 7); // below 2^weight nothing decays
        assert_eq!(weighted(8_000, 8_007, true, &WEIGHTED), 8_000);
        assert_eq!(weighted(8_000, 1, true, &params(32_768, 2, 2, 63)), 8_000);
    }

    #[test]
    fn adjust_grows_by_the_factor_or_at_least_to_the_best_and_at_most_to_the_maximum() {
        assert_eq!(adjust(0, 1, &WEIGHTED), Some(Change::grow(0, 1)));
        assert_eq!(adjust(1_000, 1_500, &WEIGHTED), Some(Change::grow(1_000, 2_000)));
        assert_eq!(adjust(1_000, 9_000, &WEIGHTED), Some(Change::grow(1_000, 9_000)));
        assert_eq!(adjust(20_000, 20_001, &WEIGHTED), Some(Change::grow(20_000, 32_768)));
    }

    #[test]
    fn adjust_leaves_the_dead_zone_alone() {
        assert_eq!(adjust(1_000, 1_000, &WEIGHTED), None);
        assert_eq!(adjust(1_000, 500, &WEIGHTED), None);
        assert_eq!(adjust(1_000, 499, &WEIGHTED), Some(Change::shrink(1_000, 500)));
    }

    #[test]
    fn adjust_ends_above_zero() {
        for (shrink, floor) in [(1, 32_768), (2, 1), (3, 1), (4, 2), (1_000, 32)] {
            let mut poll_ns = 32_768;
            for _ in 0..64 {
                poll_ns = adjust(poll_ns, 0, &params(32_768, 2, shrink, 3)).map_or(poll_ns, |c| c.new);
            }
            assert_eq!(poll_ns, floor, "poll_shrink {shrink}");
        }
    }
}
