//! When to decide, and how often to write.

use std::collections::VecDeque;

/// The most writes of parameters in a minute.
pub const MOST_WRITES: usize = 60;
/// A minute \[ns\].
pub const MINUTE_NS: u64 = 60_000_000_000;

/// The first period \[ns\].
pub(crate) const FIRST_NS: u64 = 10_000_000;
/// The period while there is next to nothing to gain \[ns\].
const QUIET_NS: u64 = 400_000_000;
/// The longest period \[ns\].
const LONGEST_NS: u64 = 10_000_000_000;
/// What a decision may cost of the time to the next.
const BUDGET: f64 = 0.005;
/// The weight of a decision in their mean CPU time.
const WEIGHT: f64 = 0.2;

/// When to decide next.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    period_ns: u64,
    step_ns: u64,
    next_ns: u64,
    /// CPU time of a decision, a moving mean \[ns\].
    spent_ns: f64,
}

impl Pace {
    /// Nothing is decided until [`Pace::start`]; `period_ns` is the usual period.
    pub(crate) fn new(period_ns: u64) -> Pace {
        let period_ns = period_ns.clamp(1, LONGEST_NS);
        Pace { period_ns, step_ns: FIRST_NS.min(period_ns), next_ns: 0, spent_ns: 0.0 }
    }

    /// Short periods again, as after a change.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.step_ns = FIRST_NS.min(self.period_ns);
        self.next_ns = now_ns.saturating_add(self.affordable(self.step_ns));
    }

    /// The next decision is so much later, whatever it costs.
    pub(crate) fn at(&mut self, now_ns: u64, wait_ns: u64) {
        self.next_ns = now_ns.saturating_add(wait_ns);
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// A decision was made; `quiet`: there is next to nothing to gain. On probation periods stay as short as the first.
    pub(crate) fn decided(&mut self, now_ns: u64, quiet: bool, on_probation: bool) {
        let longer = if on_probation { FIRST_NS } else { self.step_ns * 2 };
        self.step_ns = longer.min(self.period_ns);
        let wait = if quiet { QUIET_NS.max(self.period_ns) } else { self.step_ns };
        self.next_ns = now_ns.saturating_add(self.affordable(wait));
    }

    /// A decision took so much CPU time.
    pub(crate) fn spent(&mut self, cpu_ns: u64) {
        self.spent_ns += WEIGHT * (cpu_ns as f64 - self.spent_ns);
    }

    fn affordable(&self, wait_ns: u64) -> u64 {
        // Saturates.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let least = (self.spent_ns / BUDGET) as u64;
        wait_ns.max(least).min(LONGEST_NS)
    }
}

/// The writes of the last minute.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes {
    latest: VecDeque<(u64, usize)>,
}

impl Writes {
    /// The writes in the minute before `now_ns`.
    pub(crate) fn in_last_minute(&mut self, now_ns: u64) -> usize {
        while self.latest.front().is_some_and(|(at, _)| now_ns.saturating_sub(*at) >= MINUTE_NS) {
            self.latest.pop_front();
        }
        self.latest.iter().map(|(_, number)| number).sum()
    }

    pub(crate) fn wrote(&mut self, now_ns: u64, number: usize) {
        if number > 0 {
            self.latest.push_back((now_ns, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_decisions_come_early_and_quiet_ones_late() {
        let mut pace = Pace::new(100_000_000);
        pace.start(0);
        let mut times = vec![];
        for _ in 0..7 {
            let now = pace.next_ns();
            times.push(now / 1_000_000);
            pace.decided(now, false, false);
        }
        assert_eq!(times, [10, 30, 70, 150, 250, 350, 450]);
        let now = pace.next_ns();
        pace.decided(now, true, false);
        assert_eq!(pace.next_ns() - now, QUIET_NS);
    }

    #[test]
    fn costly_decisions_come_seldom() {
        let mut pace = Pace::new(100_000_000);
        (0..100).for_each(|_| pace.spent(2_000_000));
        pace.decided(0, false, false);
        // 2 ms are 0.5 % of 400 ms.
        assert!((399_000_000..=400_000_000).contains(&pace.next_ns()), "{}", pace.next_ns());
    }

    #[test]
    fn writes_are_forgotten_after_a_minute() {
        let mut writes = Writes::default();
        writes.wrote(0, 4);
        writes.wrote(MINUTE_NS - 1, 3);
        assert_eq!(writes.in_last_minute(MINUTE_NS - 1), 7);
        assert_eq!(writes.in_last_minute(MINUTE_NS), 3);
    }
}
