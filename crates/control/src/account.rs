//! What control cost, against what the originals would have cost.

/// What control may cost of the originals' cost before it counts as a loss.
pub(crate) const TOLERANCE: f64 = 1.02;
/// A loss of so many seconds' worth of the originals' cost ends control for a while.
const MOST_OWED_S: f64 = 0.25;
/// A gain is remembered up to so many seconds' worth: later losses are set against it.
const MOST_SAVED_S: f64 = 0.5;
/// How long the originals are in force after a loss \[ns\]: twice as long after each, until a gain of [`MOST_SAVED_S`].
const SHORTEST_NS: u64 = 1_000_000_000;
const LONGEST_NS: u64 = 64_000_000_000;
/// The weight of a period in the mean rate of the originals' cost.
const WEIGHT: f64 = 0.25;

/// The running account.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    owed_ns: f64,
    /// The originals' cost \[ns/s\], a moving mean; `None` before the first period.
    rate: Option<f64>,
    rest_ns: u64,
    resting_until_ns: u64,
}

/// A loss that ends control for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Loss {
    /// By how much \[ns\].
    pub(crate) owed_ns: f64,
    /// The originals' cost \[ns/s\].
    pub(crate) rate: f64,
    /// How long the originals are in force \[ns\].
    pub(crate) rest_ns: u64,
}

impl Account {
    pub(crate) fn new() -> Account {
        Account { owed_ns: 0.0, rate: None, rest_ns: SHORTEST_NS, resting_until_ns: 0 }
    }

    /// Books a period of `span_ns` that cost `counted_ns` and would have cost `originals_ns`; `controlled` is whether another
    /// setting than the originals was in force. A loss that is too great is returned, and the account begins anew.
    pub(crate) fn book(
        &mut self,
        now_ns: u64,
        span_ns: u64,
        counted_ns: f64,
        originals_ns: f64,
        controlled: bool,
    ) -> Option<Loss> {
        let here = originals_ns * 1e9 / span_ns.max(1) as f64;
        let rate = self.rate.map_or(here, |rate| rate + WEIGHT * (here - rate));
        self.rate = Some(rate);
        if !controlled {
            return None;
        }
        self.owed_ns = (self.owed_ns + counted_ns - TOLERANCE * originals_ns).max(-MOST_SAVED_S * rate);
        if self.owed_ns <= -MOST_SAVED_S * rate {
            self.rest_ns = SHORTEST_NS;
        }
        if self.owed_ns <= MOST_OWED_S * rate {
            return None;
        }
        let loss = Loss { owed_ns: self.owed_ns, rate, rest_ns: self.rest_ns };
        self.owed_ns = 0.0;
        self.resting_until_ns = now_ns.saturating_add(self.rest_ns);
        self.rest_ns = (self.rest_ns * 2).min(LONGEST_NS);
        Some(loss)
    }

    /// The originals have to stay in force for so long.
    pub(crate) fn rest(&mut self, now_ns: u64, rest_ns: u64) {
        self.resting_until_ns = self.resting_until_ns.max(now_ns.saturating_add(rest_ns));
    }

    /// Whether the originals have to stay in force.
    pub(crate) fn rests(&self, now_ns: u64) -> bool {
        now_ns < self.resting_until_ns
    }

    /// What is owed \[ns\]; negative is saved.
    pub(crate) fn owed_ns(&self) -> f64 {
        self.owed_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100_000_000;

    #[test]
    fn each_loss_makes_a_longer_rest_and_a_gain_a_short_one_again() {
        let mut account = Account::new();
        let (mut now, mut rests) = (0, vec![]);
        let mut book = |account: &mut Account, counted: f64, controlled: bool| {
            now += PERIOD;
            let loss = account.book(now, PERIOD, counted, 1e6, controlled);
            loss.map(|loss| loss.rest_ns / 1_000_000_000)
        };
        for _ in 0..400 {
            rests.extend(book(&mut account, 2e6, true));
        }
        assert_eq!(rests[..8], [1, 2, 4, 8, 16, 32, 64, 64]);
        // 0.25 s at 10 ms of cost a second are owed after three periods that cost 0.98 ms too much.
        assert_eq!(rests.len(), 400 / 3);
        for _ in 0..10 {
            assert_eq!(book(&mut account, 0.2e6, true), None);
        }
        rests = (0..20).filter_map(|_| book(&mut account, 2e6, true)).collect();
        assert_eq!(rests[0], 1);
    }

    #[test]
    fn the_originals_owe_themselves_nothing() {
        let mut account = Account::new();
        assert!((0..100).all(|n| account.book(n, PERIOD, 9e6, 1e6, false).is_none()));
        assert_eq!(account.owed_ns(), 0.0);
    }
}
