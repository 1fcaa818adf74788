//! Follow the leader: of eight windows the one that would have cost least in similar episodes.
//!
//! # The idea
//! With *K* for the halt cost, an episode of length *d* costs *d* under a window *w* ≥ *d*, else *w* + *K*. Once *d*
//! is known, so is the cost of *every* window, also of those that were not taken: learning needs no
//! experiment and costs nothing. So keep, for a few windows from none to 2*K*, what each would have cost
//! lately, and take the least: that follows the best fixed window of the load as it changes.
//!
//! Idle times come in patterns, and a fixed window is blind to them. The same sums are therefore kept apart for each
//! *class* of moments: how long the idler was busy before it idled (a request that took long is followed by
//! other idle times than an interrupt), how long the last episode was, and whether the one before it was
//! long. Each class has a row of sums of its own; a row for all times helps the classes that are rare or new.
//!
//! # The steps
//! 1. [`Leader::window_after`](Policy::window_after): the row of the class; of its sums, each with 1/16 of
//!    the common row's, the least; the window that goes with it, within what the [account](crate::account)
//!    allows. Of equals the shortest.
//! 2. [`Leader::observe`](Policy::observe): in that row and the common one, every sum loses 1/128 and gains
//!    what its window costs in this episode.
//!
//! Windows are 0, 1 ns (one look at the event before halting: for wakeups that are already there), and *K*
//! times 3, 6, 10, 16, 24 and 32 sixteenths. Costs are counted in units of *K*/128, rounded up, in 16 bits:
//! a step x − x/128 + c with c ≤ 384 (a failed poll of 2*K* and a halt) keeps x ≤ 128 · 384 + 127 < 2^16.
//! Lengths are brought to that unit with one multiplication; the one division is in [`Leader::new`].
//!
//! # The worst case
//! The account makes it what [its page](crate::account) proves: over any consecutive episodes the cost is at
//! most twice the optimum's plus 4*K*, and no policy without a coin can promise less than twice.
//! `tests/regret.rs` searches for streams that break it, with the policy's state in view.
//!
//! # What it needs
//! The length up to the wakeup event, without the wakeup latency ([`Late`](crate::late::Late) takes it out),
//! and the busy time since the last wakeup; without the latter ([`window`](Policy::window)) every moment
//! counts as after no work. At most 1 KB for each idler.
//!
//! # Where the numbers come from
//! Windows, classes and memory were searched for on every other recording of `recordings/` in the order of
//! their names, from the first, at halts of 5, 20 and 50 us together; the others had no part in it. `dwell-lab
//! study recordings` prints both halves. The result lies on a plateau: a memory of 64 or 256 episodes, a
//! share of the common row of 1/8 or 1/32, or a threshold moved to its neighbour each change the mean by less
//! than 0.006. What mattered: the busy time (0.03 at 20 us), the two last lengths (0.02 at 50 us), and the
//! look before halting (0.003 at 5 us).
//!
//! # Limits
//! It assumes that similar moments are followed by similar episodes. On Poisson-like loads there is nothing
//! to learn beyond the best fixed window, and it converges to that. Where a peer waits for this idler,
//! polling changes what follows; that is not modelled.

use crate::account::Account;
use crate::{Nanos, Outcome, Policy};

/// Windows that compete.
const WINDOWS: usize = 8;

/// The windows in sixteenths of the halt cost; that of the look is [`LOOK_NS`].
const SIXTEENTHS: [u64; WINDOWS] = [0, 0, 3, 6, 10, 16, 24, 32];
const LOOK: usize = 1;
const LOOK_NS: u64 = 1;

/// Cost units in one halt cost.
const HALT: u16 = 128;
/// The windows in cost units; the look is less than one.
const UNITS: [u16; WINDOWS] = [0, 0, 24, 48, 80, 128, 192, 256];

/// Each episode an old one counts 1/128 less.
const MEMORY: u32 = 7;
/// The common row counts for 1/16.
const COMMON: u32 = 4;

/// Classes of busy times: half octaves from a quarter of the halt cost to four, and one below and one above.
const BUSY: usize = 10;
/// The half octave below that of a quarter of the halt cost, 32 units.
const BELOW_QUARTER: u32 = 2 * 5 - 1;
/// Classes of the last length: up to half the halt cost, up to three, and above.
const LAST: usize = 3;
/// Classes of the length before the last: up to the halt cost, and above.
const BEFORE: usize = 2;
const ROWS: usize = BUSY * LAST * BEFORE;

type Row = [u16; WINDOWS];

/// Takes the window that would have cost least in similar episodes.
#[derive(Clone, Debug)]
pub struct Leader {
    rows: [Row; ROWS],
    common: Row,
    account: Account,
    /// The window of the present episode.
    window: Nanos,
    /// Cost units in a nanosecond, times 2^32.
    units_per_ns: u64,
    /// The row in which the present episode will be counted.
    row: u8,
    /// Class of the last length.
    last: u8,
    /// 1 if the last episode was longer than the halt cost, else 0.
    last_is_long: u8,
    /// The same of the one before.
    before_is_long: u8,
}

const _: () = assert!(size_of::<Leader>() <= 1024);
const _: () = assert!(ROWS <= 1 << u8::BITS);

impl Leader {
    /// At this halt cost, at most [`account::MOST`](crate::account::MOST). Before the first episode it halts at once.
    pub const fn new(halt_cost: Nanos) -> Leader {
        let account = Account::new(halt_cost);
        let Some(units_per_ns) = ((HALT as u64) << 32).checked_div(account.halt_cost().0) else {
            return Leader::with_units(account, 0);
        };
        Leader::with_units(account, units_per_ns)
    }

    const fn with_units(account: Account, units_per_ns: u64) -> Leader {
        Leader {
            rows: [[0; WINDOWS]; ROWS],
            common: [0; WINDOWS],
            account,
            window: Nanos::ZERO,
            units_per_ns,
            row: 0,
            last: 0,
            last_is_long: 0,
            before_is_long: 0,
        }
    }

    /// What it may still lose; see [`account`](crate::account).
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// Shortens the window of the present episode to the longest that its caller takes: what it costs is then settled.
    #[inline]
    pub(crate) fn cut(&mut self, longest: Nanos) -> Nanos {
        self.window = self.window.min(longest);
        self.window
    }

    /// A time in cost units, rounded up, at most 8 halt costs.
    #[inline]
    fn units(&self, time: Nanos) -> u16 {
        // 8 halt costs times 2^39 / halt cost is 2^42 at the most, which in whole units is 2^10.
        let time = time.0.min(self.account.halt_cost().0 << 3);
        #[allow(clippy::cast_possible_truncation)]
        let units = ((time * self.units_per_ns + u64::from(u32::MAX)) >> 32) as u16;
        units
    }

    #[inline]
    fn choose(&mut self, busy: Nanos) -> Nanos {
        let class = (busy_class(self.units(busy)) * LAST + usize::from(self.last)) * BEFORE;
        let row = class + usize::from(self.before_is_long);
        // Below ROWS.
        #[allow(clippy::cast_possible_truncation)]
        let number = row as u8;
        self.row = number;
        let wanted = match leader(&self.rows[row], &self.common) {
            LOOK => LOOK_NS,
            place => (self.account.halt_cost().0 * SIXTEENTHS[place]) >> 4,
        };
        self.window = self.account.allow(busy, Nanos(wanted));
        self.window
    }

    #[inline]
    fn remember(&mut self, units: u16) {
        self.before_is_long = self.last_is_long;
        self.last_is_long = u8::from(units > HALT);
        self.last = u8::from(units > HALT / 2) + u8::from(units > 3 * HALT);
    }
}

/// The place of the least cost; the first of equals.
#[inline]
fn leader(row: &Row, common: &Row) -> usize {
    // The place is in the low three bits: the least number is the first of the least.
    let costs = row.iter().zip(common).map(|(own, all)| u32::from(*own) + u32::from(*all >> COMMON));
    let placed = (0u32..).zip(costs).map(|(place, cost)| cost << 3 | place);
    placed.fold(u32::MAX, u32::min) as usize & (WINDOWS - 1)
}

/// The class of a busy time in cost units.
#[inline]
fn busy_class(units: u16) -> usize {
    let units = u32::from(units | 1);
    let octave = units.ilog2();
    // The bit below the highest is the half of the octave.
    let half_octave = 2 * octave + (((units << 1) >> octave) & 1);
    (half_octave.saturating_sub(BELOW_QUARTER) as usize).min(BUSY - 1)
}

/// What every window costs in an episode of so many cost units.
#[inline]
fn costs(units: u16, seen_by_look: bool) -> Row {
    let mut costs = UNITS.map(|window| if units <= window { units } else { window + HALT });
    costs[LOOK] = if seen_by_look { 0 } else { HALT };
    costs
}

/// Every sum loses a part and gains what its window costs; it stays below 2^16, since no window costs more
/// than 3 * 128.
#[inline]
fn add(row: &mut Row, costs: &Row) {
    for (sum, cost) in row.iter_mut().zip(costs) {
        *sum = *sum - (*sum >> MEMORY) + cost;
    }
}

impl Policy for Leader {
    /// As after no work at all.
    #[inline]
    fn window(&mut self) -> Nanos {
        self.choose(Nanos::ZERO)
    }

    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        self.choose(busy)
    }

    #[inline]
    fn longest_gap(&self) -> Nanos {
        self.account.longest_gap()
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        if !self.account.settle(self.window, &outcome) {
            return;
        }
        let units = self.units(outcome.idle);
        let costs = costs(units, outcome.idle.0 <= LOOK_NS);
        add(&mut self.rows[usize::from(self.row) % ROWS], &costs);
        add(&mut self.common, &costs);
        self.remember(units);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const K: Nanos = Nanos(20_000);

    fn cost_of(policy: &mut Leader, episodes: impl IntoIterator<Item = (u64, u64)>) -> u64 {
        let mut cost = 0;
        for (busy, idle) in episodes {
            let window = policy.window_after(Nanos(busy)).get();
            cost += if idle <= window { idle } else { window + K.get() };
            policy.observe(Outcome::of(Nanos(idle)));
        }
        cost
    }

    #[test]
    fn windows_in_units_are_the_windows() {
        for (sixteenths, units) in SIXTEENTHS.into_iter().zip(UNITS) {
            assert_eq!(sixteenths * u64::from(HALT), 16 * u64::from(units));
        }
    }

    #[test]
    fn busy_classes_are_half_octaves_around_the_halt_cost() {
        let policy = Leader::new(Nanos(6_400));
        let class = |quarters: u64| busy_class(policy.units(Nanos(quarters * 1_600)));
        assert_eq!([0, 1, 2, 3, 4, 6, 8, 12, 16, 100].map(class), [0, 1, 3, 4, 5, 6, 7, 8, 9, 9]);
        assert_eq!(busy_class(policy.units(Nanos(1_599 - 50))), 0);
        assert_eq!(busy_class(policy.units(Nanos::MAX)), BUSY - 1);
    }

    #[test]
    fn takes_the_window_that_covers_what_comes() {
        let mut policy = Leader::new(K);
        assert_eq!(policy.window(), Nanos::ZERO);
        cost_of(&mut policy, [(0, 7_000); 200]);
        assert_eq!(policy.window(), Nanos(7_500));
        cost_of(&mut policy, [(0, 100_000); 400]);
        assert_eq!(policy.window(), Nanos::ZERO);
    }

    #[test]
    fn looks_once_for_wakeups_that_are_already_there() {
        let mut policy = Leader::new(K);
        cost_of(&mut policy, [(0, 1), (0, 100_000)].repeat(100));
        cost_of(&mut policy, [(0, 100_000)]);
        assert_eq!(policy.window(), Nanos(1));
    }

    #[test]
    fn busy_time_predicts_the_length() {
        // Short episodes after short work, long ones after long work: half of each, in an order that does not
        // follow from lengths.
        let mut state = 1u64;
        let mut coin = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 63 == 1
        };
        let episodes: Vec<(u64, u64)> =
            (0..4_000).map(|_| if coin() { (3_000, 10_000) } else { (30_000, 300_000) }).collect();
        let optimum: u64 = episodes.iter().map(|(_, idle)| (*idle).min(K.get())).sum();
        let cost = cost_of(&mut Leader::new(K), episodes.iter().copied());
        assert!(cost as f64 <= 1.05 * optimum as f64, "{cost} {optimum}");
        let mut blind = Leader::new(K);
        let cost = cost_of(&mut blind, episodes.iter().map(|(_, idle)| (0, *idle)));
        assert!(cost as f64 >= 1.2 * optimum as f64, "{cost} {optimum}");
    }

    #[test]
    fn free_halts_are_never_put_off() {
        let mut policy = Leader::new(Nanos::ZERO);
        for idle in [0, 1, 5, u64::MAX, 0] {
            assert_eq!(policy.window_after(Nanos(idle)), Nanos::ZERO);
            policy.observe(Outcome::of(Nanos(idle)));
        }
    }

    /// The same rule without limits of size: sums without end in exact fractions of nanoseconds.
    struct Obvious {
        k: f64,
        rows: std::collections::BTreeMap<[u8; 3], [f64; WINDOWS]>,
        common: [f64; WINDOWS],
        class: [u8; 3],
        lengths: [f64; 2],
    }

    impl Obvious {
        fn windows(&self) -> [f64; WINDOWS] {
            [0.0, 1.0, 3.0, 6.0, 10.0, 16.0, 24.0, 32.0].map(|n| if n == 1.0 { n } else { n * self.k / 16.0 })
        }

        fn costs(&self, idle: f64) -> [f64; WINDOWS] {
            self.windows().map(|window| if idle <= window { idle } else { window + self.k })
        }

        /// What each window has cost in times like this.
        fn sums(&mut self, busy: f64) -> [f64; WINDOWS] {
            let above =
                |value: f64, limits: &[f64]| limits.iter().filter(|limit| value > **limit * self.k).count();
            let steps = [0.25, 0.375, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0];
            let classes =
                [above(busy, &steps), above(self.lengths[1], &[0.5, 3.0]), above(self.lengths[0], &[1.0])];
            self.class = classes.map(|class| u8::try_from(class).unwrap());
            let row = self.rows.entry(self.class).or_default();
            std::array::from_fn(|place| row[place] + self.common[place] / 16.0)
        }

        fn observe(&mut self, idle: f64) {
            let costs = self.costs(idle);
            for row in [self.rows.entry(self.class).or_default(), &mut self.common] {
                row.iter_mut().zip(costs).for_each(|(sum, cost)| *sum += cost - *sum / 128.0);
            }
            self.lengths = [self.lengths[1], idle];
        }
    }

    proptest! {
        #[test]
        fn sums_never_overflow_and_units_err_by_one(
            k in 0u64..1 << 34, episodes in prop::collection::vec((any::<u64>(), any::<u64>(), 0u32..64), 0..600),
        ) {
            let mut policy = Leader::new(Nanos(k));
            let halt_cost = policy.account().halt_cost().get();
            for (busy, idle, shift) in episodes {
                policy.window_after(Nanos(busy >> shift));
                policy.observe(Outcome::of(Nanos(idle >> shift)));
                let units = f64::from(policy.units(Nanos(idle >> shift)));
                let exact = ((idle >> shift) as f64 / halt_cost.max(1) as f64).min(8.0) * f64::from(HALT);
                prop_assert!(halt_cost < 1_000 || (units - exact).abs() <= 1.0 + exact * halt_cost as f64 / 2f64.powi(38), "{units} {exact}");
            }
        }

        /// In 16 bits it does what it would do with exact sums, or something that costs as much.
        #[test]
        fn agrees_with_exact_sums(
            k in 2_000u64..200_000,
            episodes in prop::collection::vec((0u64..250, 0u64..150, prop::bool::ANY), 1..400),
        ) {
            let mut policy = Leader::new(Nanos(k));
            let mut obvious = Obvious {
                k: k as f64, rows: Default::default(), common: [0.0; WINDOWS], class: [0; 3], lengths: [0.0; 2],
            };
            for (busy, idle, long) in episodes {
                // Not within a unit of the limit of a class, where rounding decides.
                let time = |fiftieths: u64| (20 * fiftieths + 2) * k / 1_000;
                let (busy, idle) = (time(busy), time(if long { 10 * idle } else { idle }));
                let window = policy.window_after(Nanos(busy)).get() as f64;
                let sums = obvious.sums(busy as f64);
                if policy.account().balance().get() >= 2 * k {
                    let taken = obvious.windows().into_iter().position(|w| (w - window).abs() <= 1.0).unwrap();
                    let least = sums.into_iter().fold(f64::INFINITY, f64::min);
                    // A unit for each of the 128 episodes that count, in both rows.
                    let rounding = k as f64 / 128.0 * 128.0 * (1.0 + 1.0 / 16.0);
                    prop_assert!(sums[taken] <= least + rounding, "{taken} of {sums:?}");
                }
                policy.observe(Outcome::of(Nanos(idle)));
                obvious.observe(idle as f64);
            }
        }
    }
}
