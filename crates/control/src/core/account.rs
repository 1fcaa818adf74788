//! What control cost in the last 10 s, against what the originals would have cost.
//!
//! # The idea
//! A loss is seen when the period is over in which it was made. So what 10 s may cost is held like this:
//! every stretch of whole periods that ends now, of 10 s at most, is to cost no more than [`BOOKED`] times
//! what the originals would have cost in it and [`ALLOWED`] of what they cost in the last 10 s. If they go on
//! costing as much, both together are 1.02 times their cost. The stretch that is furthest above is the
//! *excess*: gains after a loss are set against it, gains before it are not, as 10 s that begin with the loss
//! do not have them.
//!
//! Where a period ends with more, the originals are in force for 100 ms, then 1, 2, 4 … 64 s after further
//! losses. After such a rest the next setting is on *probation* while the excess is too great: periods are as
//! short as the first, and one that loses ends it. So of 10 s one usual period, and no more than
//! [`MOST_TRIALS`] short ones, lose more than is allowed. What exceeds it is of the load before, where the load
//! has changed: then one trial of polling comes all the same, whose first parts, short periods too, may lose.
//!
//! Under a setting that was found in turns to do more than the originals in a closed loop, their cost is booked as so many
//! times as much: with the square of the ratio of episodes a second, as turns compare.

use crate::core::window::{LONGEST_REST_NS, Paid, Rest, Window};

/// What control may cost of the originals' cost.
pub const TOLERANCE: f64 = 1.02;
/// What is booked against it: the rest of [`TOLERANCE`] is for [`ALLOWED`].
const BOOKED: f64 = 1.01;
/// The excess that is allowed, as a share of the originals' cost of the last 10 s.
pub(crate) const ALLOWED: f64 = 0.01;
/// How long the originals are in force after the first loss and after the second \[ns\]; from the second on
/// twice as long after each, until there is no excess.
const FIRST_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The short periods that can lose within 10 s after a usual one has: those after 0.1, 1, 2 and 4 s (the next
/// comes after 8 s more), and those of a free trial.
#[cfg(test)]
pub(crate) const MOST_TRIALS: usize = 4 + crate::core::turns::FREE_PARTS as usize;

/// What a period cost more than [`BOOKED`] times the originals \[ns\].
fn over_ns(period: &Paid) -> f64 {
    period.paid_ns - BOOKED * period.originals_ns
}

#[derive(Clone, Debug)]
pub(crate) struct Account {
    window: Window,
    excess_ns: f64,
    allowed_ns: f64,
    rest: Rest,
    resting_until_ns: u64,
}

/// A loss that ends control for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loss {
    /// The excess \[ns\].
    pub(crate) excess_ns: f64,
    /// What the originals cost in the last 10 s \[ns\].
    pub(crate) originals_ns: f64,
    /// How long the originals are in force \[ns\].
    pub(crate) rest_ns: u64,
}

impl Account {
    pub(crate) fn new() -> Account {
        Account {
            window: Window::default(),
            excess_ns: 0.0,
            allowed_ns: 0.0,
            rest: Rest::new(FIRST_NS, LONGEST_REST_NS).with_second(SECOND_NS),
            resting_until_ns: 0,
        }
    }

    /// Books the period until now, which cost `paid_ns` and would have cost `originals_ns`; `controlled` is
    /// whether another setting than the originals was in force. A loss that is too great is returned, unless
    /// it is `free`.
    pub(crate) fn book(
        &mut self,
        now_ns: u64,
        paid_ns: f64,
        originals_ns: f64,
        controlled: bool,
        free: bool,
    ) -> Option<Loss> {
        let period = self.window.book(now_ns, paid_ns, originals_ns, controlled);
        (self.excess_ns, _) = self.window.latest_first().fold((0.0f64, 0.0), |(most, sum), period| {
            let sum = sum + over_ns(period);
            (most.max(sum), sum)
        });
        let all_ns = self.window.sum(|period| period.originals_ns);
        self.allowed_ns = ALLOWED * all_ns;
        if self.excess_ns <= 0.0 {
            self.rest.begin_anew();
        }
        if !controlled || free || over_ns(&period) <= 0.0 || !self.is_exceeded() {
            return None;
        }
        let rest_ns = self.rest.take_ns();
        self.resting_until_ns = now_ns.saturating_add(rest_ns);
        Some(Loss { excess_ns: self.excess_ns, originals_ns: all_ns, rest_ns })
    }

    /// Whether there is more excess than is allowed: a setting other than the originals is on probation then.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.excess_ns > self.allowed_ns
    }

    /// The originals have to stay in force for so long.
    pub(crate) fn rest(&mut self, now_ns: u64, rest_ns: u64) {
        self.resting_until_ns = self.resting_until_ns.max(now_ns.saturating_add(rest_ns));
    }

    /// Whether the originals have to stay in force.
    pub(crate) fn rests(&self, now_ns: u64) -> bool {
        now_ns < self.resting_until_ns
    }

    /// What the last 10 s cost more than [`BOOKED`] times the originals \[ns\]; negative is saved.
    pub(crate) fn owed_ns(&self) -> f64 {
        self.window.sum(over_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100_000_000;

    /// Books periods of 100 ms, in which the originals would have cost 1 ms.
    struct Booked {
        account: Account,
        now_ns: u64,
    }

    impl Booked {
        fn new() -> Booked {
            Booked { account: Account::new(), now_ns: 0 }
        }

        /// The length of the rest after so many of them \[s\], if there is one.
        fn cost(&mut self, number: u64, paid_ns: f64, controlled: bool) -> Vec<f64> {
            let mut one = || {
                self.now_ns += PERIOD;
                self.account.book(self.now_ns, paid_ns, 1e6, controlled, false)
            };
            (0..number).filter_map(|_| one()).map(|loss| loss.rest_ns as f64 / 1e9).collect()
        }
    }

    #[test]
    fn a_hundredth_of_ten_seconds_may_be_lost() {
        let mut one = Booked::new();
        assert!(one.cost(100, 1e6, false).is_empty());
        // 1 % of 100 periods are 1 ms; a period that costs 1.5 ms loses 0.49 ms.
        assert!(one.cost(2, 1.5e6, true).is_empty());
        assert!(!one.account.is_exceeded());
        assert_eq!(one.cost(1, 1.5e6, true), [0.1]);
        assert!(one.account.is_exceeded() && one.account.rests(one.now_ns + 99_999_999));
        assert!(!one.account.rests(one.now_ns + 100_000_000));
    }

    #[test]
    fn each_loss_makes_a_longer_rest_until_it_is_made_good() {
        let mut one = Booked::new();
        one.cost(100, 1e6, false);
        let rests: Vec<f64> = (0..9).flat_map(|_| one.cost(1, 9e6, true)).collect();
        assert_eq!(rests, [0.1, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0]);
        // What was lost is 9 times 7.99 ms; a gain makes 0.91 ms of it good in a period.
        assert!(one.cost(80, 0.1e6, true).is_empty());
        assert!(!one.account.is_exceeded());
        assert_eq!(one.cost(1, 9e6, true), [0.1]);
    }

    #[test]
    fn a_gain_before_a_loss_does_not_count_and_a_loss_is_forgotten_after_ten_seconds() {
        let mut one = Booked::new();
        assert!(one.cost(100, 0.1e6, true).is_empty());
        assert_eq!(one.cost(1, 9e6, true), [0.1]);
        // The originals themselves cost 1 % less than is booked.
        assert!(one.cost(99, 1e6, false).is_empty());
        assert!(one.account.is_exceeded());
        one.cost(1, 1e6, false);
        assert!(!one.account.is_exceeded());
    }

    #[test]
    fn the_originals_lose_nothing() {
        let mut one = Booked::new();
        assert!(one.cost(100, 9e6, false).is_empty());
        assert!(one.account.owed_ns() < 0.0 && !one.account.is_exceeded());
    }
}
