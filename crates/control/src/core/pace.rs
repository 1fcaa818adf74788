//! When to decide, and how often to write.

use dwell_stats::whole::whole;
use std::collections::VecDeque;

/// The most writes of parameters in a minute.
pub const MOST_WRITES: usize = 240;
/// A minute \[ns\].
pub const MINUTE_NS: u64 = 60_000_000_000;

/// The first period \[ns\].
pub(crate) const FIRST_NS: u64 = 10_000_000;
/// The period while there is next to nothing to gain \[ns\] …
const QUIET_NS: u64 = 200_000_000;
/// … unless that takes more than [`QUIET`] of the limit; then it is longer, but no longer than this.
const LONGEST_QUIET_NS: u64 = 2_000_000_000;
/// The longest period \[ns\].
const LONGEST_NS: u64 = 10_000_000_000;
/// The share of the limit that decisions and looks may use; the rest is left for searches for idlers.
const BUDGET: f64 = 0.9;
/// The share of the limit while there is next to nothing to gain.
const QUIET: f64 = 0.1;
/// What so many seconds give is kept for decisions that are due at once; others wait until there is more.
const KEPT_S: f64 = 2.0;
/// So many decisions after a glance that showed another load come whatever they cost …
const HASTY: u32 = 3;
/// … if that is of the next so many seconds: turns alone can take half of it.
const DEBT_S: f64 = 20.0;

/// When to decide next, within a budget of CPU time.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    period_ns: u64,
    /// What may be used of a CPU, searches for idlers included.
    limit: f64,
    step_ns: u64,
    pub(crate) next_ns: u64,
    /// Whether there was next to nothing to gain.
    quiet: bool,
    /// Whether the next decision is due whatever it costs.
    fixed: bool,
    /// CPU time that may be used \[ns\] at the time `counted_ns`; negative: more was used than may be, by those that
    /// were due at once.
    left_ns: f64,
    counted_ns: u64,
    /// Decisions that come on the account of later ones.
    hasty: u32,
}

impl Pace {
    /// Nothing is decided until [`Pace::start`]; `period_ns` is the usual period, and `limit` of a CPU may be used.
    pub(crate) fn new(period_ns: u64, limit: f64) -> Pace {
        let period_ns = period_ns.clamp(1, LONGEST_NS);
        Pace {
            period_ns,
            limit,
            step_ns: FIRST_NS.min(period_ns),
            next_ns: 0,
            quiet: false,
            fixed: false,
            left_ns: limit * BUDGET * (KEPT_S + 1.0) * 1e9,
            counted_ns: 0,
            hasty: 0,
        }
    }

    fn budget(&self) -> f64 {
        BUDGET * self.limit
    }

    /// Short periods again, as after a change.
    pub(crate) fn start(&mut self, now_ns: u64) {
        self.step_ns = FIRST_NS.min(self.period_ns);
        self.wait(now_ns, self.step_ns, false);
    }

    /// The load is another one: a decision is due, and the next ones soon.
    pub(crate) fn hasten(&mut self, now_ns: u64) {
        self.hasty = HASTY;
        self.start(now_ns);
        self.next_ns = now_ns.max(self.out_of_budget_until_ns());
    }

    /// The next decision is so much later, whatever it costs.
    pub(crate) fn at(&mut self, now_ns: u64, wait_ns: u64) {
        self.fixed = true;
        self.next_ns = now_ns.saturating_add(wait_ns);
    }

    /// Until when nothing is affordable \[ns\].
    pub(crate) fn out_of_budget_until_ns(&self) -> u64 {
        let least_ns = if self.hasty > 0 { -DEBT_S } else { KEPT_S } * self.budget() * 1e9;
        if self.left_ns >= least_ns {
            0
        } else {
            later(self.counted_ns, (least_ns - self.left_ns) / self.budget(), LONGEST_NS)
        }
    }

    /// A decision was made; `quiet`: there is next to nothing to gain. On probation periods stay as short as the first.
    pub(crate) fn decided(&mut self, now_ns: u64, quiet: bool, on_probation: bool) {
        self.hasty = self.hasty.saturating_sub(1);
        let longer = if on_probation { FIRST_NS } else { self.step_ns * 2 };
        // A load that begins soon after the start is not missed for long.
        self.step_ns = longer.min(if quiet { QUIET_NS.max(self.period_ns) } else { self.period_ns });
        self.wait(now_ns, self.step_ns, quiet);
    }

    fn wait(&mut self, now_ns: u64, wait_ns: u64, quiet: bool) {
        (self.quiet, self.fixed) = (quiet, false);
        self.next_ns = now_ns.saturating_add(wait_ns).max(self.out_of_budget_until_ns());
    }

    /// So much CPU time was used since the last call.
    pub(crate) fn spent(&mut self, now_ns: u64, cpu_ns: u64) {
        let since_ns = now_ns.saturating_sub(self.counted_ns) as f64;
        self.counted_ns = self.counted_ns.max(now_ns);
        // What another second gives is kept for short periods after a change.
        let most_ns = self.budget() * (KEPT_S + 1.0) * 1e9;
        self.left_ns = (self.left_ns + self.budget() * since_ns).min(most_ns) - cpu_ns as f64;
        if self.fixed {
            return;
        }
        self.next_ns = self.next_ns.max(self.out_of_budget_until_ns());
        if self.quiet {
            let least_ns = later(now_ns, cpu_ns as f64 / (QUIET * self.limit), LONGEST_QUIET_NS);
            self.next_ns = self.next_ns.max(least_ns);
        }
    }
}

/// So much later, and no more than `most_ns`.
fn later(now_ns: u64, wait_ns: f64, most_ns: u64) -> u64 {
    now_ns.saturating_add(whole(wait_ns).min(most_ns))
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
        let mut pace = Pace::new(100_000_000, 0.005);
        pace.start(0);
        let mut times = vec![];
        for _ in 0..7 {
            let now = pace.next_ns;
            times.push(now / 1_000_000);
            pace.decided(now, false, false);
        }
        assert_eq!(times, [10, 30, 70, 150, 250, 350, 450]);
        let mut wait = |quiet| {
            let now = pace.next_ns;
            pace.decided(now, quiet, false);
            (pace.next_ns - now) / 1_000_000
        };
        assert_eq!([true, true, false, true].map(&mut wait), [200, 200, 100, 200]);
    }

    /// Decisions for so long, each of which takes what `cost` gives; how many there were, and the CPU time used \[ns\].
    fn decided(seconds: u64, quiet: bool, mut cost: impl FnMut() -> u64) -> (u64, u64) {
        let mut pace = Pace::new(100_000_000, 0.005);
        pace.start(0);
        let (mut number, mut used) = (0, 0);
        while pace.next_ns < seconds * 1_000_000_000 {
            let now = pace.next_ns;
            let cpu = cost();
            pace.decided(now, quiet, false);
            pace.spent(now + cpu, cpu);
            (number, used) = (number + 1, used + cpu);
        }
        (number, used)
    }

    #[test]
    fn costly_decisions_come_seldom() {
        assert_eq!(decided(60, false, || 400_000).0, 602);
        for cpu in [1_000_000, 2_000_000, 7_000_000, 40_000_000] {
            let (_, used) = decided(60, false, || cpu);
            let share = used as f64 / 60e9;
            assert!((0.0040..=0.0046 + cpu as f64 / 60e9).contains(&share), "{cpu}: {share}");
        }
        let mut random = dwell_stats::SplitMix64::new(1);
        let (_, used) = decided(600, false, || random.below(5_000_000));
        assert!((0.0044..0.0046).contains(&(used as f64 / 600e9)), "{used}");
        // Nothing to gain: a tenth of that, but no less than a look every 2 s.
        assert_eq!(decided(60, true, || 50_000).0, 302);
        let (_, used) = decided(60, true, || 500_000);
        assert!((0.00045..=0.0005).contains(&(used as f64 / 60e9)), "{used}");
        assert_eq!(decided(60, true, || 3_000_000).0, 30);
    }

    #[test]
    fn turns_are_as_long_as_they_are_whatever_they_cost() {
        let mut pace = Pace::new(100_000_000, 0.005);
        pace.start(0);
        pace.decided(10_000_000, false, false);
        pace.at(10_000_000, 20_000_000);
        pace.spent(12_000_000, 9_000_000);
        assert_eq!(pace.next_ns, 30_000_000);
        pace.decided(30_000_000, false, false);
        assert!(pace.next_ns > 900_000_000, "{}", pace.next_ns);
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
