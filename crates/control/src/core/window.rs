//! What the periods of the last 10 s have cost, and how long rests after losses are.

use std::collections::VecDeque;

/// What is remembered \[ns\].
pub(crate) const WINDOW_NS: u64 = 10_000_000_000;
/// The longest time for which the originals are in force after a loss \[ns\].
pub(crate) const LONGEST_REST_NS: u64 = 64_000_000_000;

/// A period that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paid {
    end_ns: u64,
    /// What was paid \[ns\].
    pub(crate) paid_ns: f64,
    /// What the originals would have cost \[ns\].
    pub(crate) originals_ns: f64,
}

/// The periods of the last 10 s.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    periods: VecDeque<Paid>,
}

impl Window {
    /// Books the period until now, which cost `paid_ns` and would have cost `originals_ns`; `controlled` is
    /// whether another setting than the originals was in force.
    pub(crate) fn book(&mut self, now_ns: u64, paid_ns: f64, originals_ns: f64, controlled: bool) -> Paid {
        // What the originals cost is known where they are in force, and need not be predicted.
        let originals_ns = if controlled { originals_ns } else { paid_ns };
        let period = Paid { end_ns: now_ns, paid_ns, originals_ns };
        self.periods.push_back(period);
        // One that began before the 10 s and ended in them counts as well.
        while self.periods.front().is_some_and(|period| now_ns.saturating_sub(period.end_ns) >= WINDOW_NS) {
            self.periods.pop_front();
        }
        period
    }

    /// The periods, from the latest on.
    pub(crate) fn latest_first(&self) -> impl Iterator<Item = &Paid> {
        self.periods.iter().rev()
    }

    /// The sum over all of them.
    pub(crate) fn sum(&self, of: impl Fn(&Paid) -> f64) -> f64 {
        self.periods.iter().map(of).sum()
    }
}

/// How long something else is in force after a loss: twice as long after each, until it begins anew.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    first_ns: u64,
    second_ns: u64,
    longest_ns: u64,
    next_ns: u64,
}

impl Rest {
    /// After the first loss, and at most \[ns\].
    pub(crate) const fn new(first_ns: u64, longest_ns: u64) -> Rest {
        Rest { first_ns, second_ns: first_ns, longest_ns, next_ns: first_ns }
    }

    /// The same, where each but the first is at least so long \[ns\].
    pub(crate) const fn with_second(self, second_ns: u64) -> Rest {
        Rest { second_ns, ..self }
    }

    /// How long it is after the loss that was just made \[ns\]; after the next one it is longer.
    pub(crate) fn take_ns(&mut self) -> u64 {
        let longer_ns = self.next_ns.saturating_mul(2).max(self.second_ns).min(self.longest_ns);
        std::mem::replace(&mut self.next_ns, longer_ns)
    }

    /// After the next loss it is as long as after the first.
    pub(crate) fn begin_anew(&mut self) {
        self.next_ns = self.first_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_forgotten_ten_seconds_after_its_end() {
        let mut window = Window::default();
        window.book(1, 5.0, 3.0, true);
        window.book(WINDOW_NS, 7.0, 3.0, false);
        let sums = |window: &Window| [window.sum(|one| one.paid_ns), window.sum(|one| one.originals_ns)];
        assert_eq!(sums(&window), [12.0, 10.0]);
        window.book(WINDOW_NS + 1, 1.0, 2.0, true);
        assert_eq!(sums(&window), [8.0, 9.0]);
        assert_eq!(window.latest_first().map(|one| one.paid_ns).collect::<Vec<_>>(), [1.0, 7.0]);
    }

    #[test]
    fn rests_are_longer_and_longer_until_they_begin_anew() {
        let mut rest = Rest::new(3, 20);
        let mut plain = [0; 5].map(|_| rest.take_ns());
        assert_eq!(plain, [3, 6, 12, 20, 20]);
        rest.begin_anew();
        plain = [0; 5].map(|_| rest.take_ns());
        assert_eq!(plain, [3, 6, 12, 20, 20]);
        let mut rest = Rest::new(1, 60).with_second(10);
        assert_eq!([0; 5].map(|_| rest.take_ns()), [1, 10, 20, 40, 60]);
    }
}
