//! Glances at counters between two decisions, which tell soon that the load is another one.
//!
//! A burst of a recorder costs as much as a second allows, so that of a busy load decisions are seconds apart. Counters of
//! how often a CPU polled and halted, and for how long, cost microseconds. They do not tell which setting is better, but that
//! what the present one costs has changed: then the next decision is due at once, and on the account of later ones.

use crate::core::checks::BUSY_PER_S;
use dwell_policy::Nanos;
use dwell_replay::Counts;

/// The time between two glances \[ns\] …
const EVERY_NS: u64 = 100_000_000;
/// … for so many CPUs; of more, glances are rarer. Three open files of a CPU are read in about 25 us.
const CPUS: u64 = 4;
/// After one that differs the next comes sooner \[ns\]: one alone may be a task that ran for once.
const AGAIN_NS: u64 = 20_000_000;
/// Glances in a row that differ from what is usual.
const TWICE: u32 = 2;
/// What is so many times as much, or as little, differs: a busy load that another one follows may cost as much as that.
const DIFFERS: f64 = 4.0 / 3.0;
/// Costs below this share of a CPU are alike.
const LEAST_CPU: f64 = 0.02;

/// What a glance shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Glance {
    /// What is usual, as far as that is known.
    Usual,
    /// Something else, for once.
    Differs,
    /// Another load.
    Another,
}

/// What is usual under the setting in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Glances {
    /// The logarithms of the halts a second, and of the cost a second; `None` until there was a whole glance.
    usual: Option<[f64; 2]>,
    /// Whether one has begun under the setting.
    begun: bool,
    apart: u32,
    next_ns: u64,
}

impl Glances {
    pub(crate) const fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Another setting is in force, or another load has begun.
    pub(crate) fn begin_anew(&mut self) {
        *self = Glances { next_ns: self.next_ns, ..Glances::default() };
    }

    /// What was counted of so many CPUs in the time before `now_ns`, of all together.
    pub(crate) fn glance(
        &mut self,
        now_ns: u64,
        ns: u64,
        cpus: usize,
        counted: &Counts,
        halt_cost: Nanos,
    ) -> Glance {
        let every_ns = EVERY_NS * (cpus as u64).div_ceil(CPUS).max(1);
        self.next_ns = now_ns.saturating_add(every_ns);
        let seconds = ns.max(1) as f64 / 1e9;
        let cost = counted.cost_ns(halt_cost) as f64 / 1e9 / seconds;
        let rates =
            [(counted.halts as f64 / seconds).max(2.0 * BUSY_PER_S), cost.max(LEAST_CPU)].map(f64::log2);
        // Nothing was counted yet, or some of it before.
        if ns == 0 || !std::mem::replace(&mut self.begun, true) {
            return Glance::Usual;
        }
        let usual = self.usual.get_or_insert(rates);
        if usual.iter().zip(rates).all(|(usual, now)| (now - usual).abs() <= DIFFERS.log2()) {
            usual.iter_mut().zip(rates).for_each(|(usual, now)| *usual += (now - *usual) / 4.0);
            self.apart = 0;
            return Glance::Usual;
        }
        self.apart += 1;
        if self.apart < TWICE {
            self.next_ns = now_ns.saturating_add(every_ns.min(AGAIN_NS));
            return Glance::Differs;
        }
        self.begin_anew();
        Glance::Another
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What glances show of so many polls of 10 us, and halts, a second.
    fn glances(all: &[(u64, u64)]) -> Vec<Glance> {
        let mut glances = Glances::default();
        let of = |(polls, halts): &(u64, u64)| {
            let now_ns = glances.next_ns();
            let counted =
                Counts { polled_ns: (polls / 10 * 10_000).into(), halts: halts / 10, ..Counts::default() };
            glances.glance(now_ns, EVERY_NS, 2, &counted, Nanos(20_000))
        };
        all.iter().map(of).collect()
    }

    #[test]
    fn two_glances_that_differ_show_another_load() {
        use Glance::{Another, Differs, Usual};
        let (busy, paced) = ((40_000, 100), (0, 9_000));
        assert_eq!(
            glances(&[busy, busy, busy, paced, busy, busy]),
            [Usual, Usual, Usual, Differs, Usual, Usual]
        );
        let shown = glances(&[paced, busy, busy, paced, paced, paced, paced]);
        assert_eq!(shown, [Usual, Usual, Usual, Differs, Another, Usual, Usual]);
        // A quarter more is within what is usual, and so is anything of a CPU that is idle.
        assert!(glances(&[busy, busy, (50_000, 100)]).iter().all(|glance| *glance == Usual));
        assert!(glances(&[(0, 20), (0, 20), (0, 600), (0, 900)]).iter().all(|glance| *glance == Usual));
    }

    #[test]
    fn the_next_comes_sooner_after_one_that_differs_and_later_with_many_cpus() {
        let mut glances = Glances::default();
        let counted = |halts| Counts { halts, ..Counts::default() };
        for (at_ns, halts, next_ns) in
            [(0, 500, 100), (100_000_000, 500, 200), (200_000_000, 5_000, 220), (220_000_000, 500, 320)]
        {
            glances.glance(at_ns, EVERY_NS, 2, &counted(halts), Nanos(20_000));
            assert_eq!(glances.next_ns() / 1_000_000, next_ns);
        }
        glances.glance(0, EVERY_NS, 64, &counted(500), Nanos(20_000));
        assert_eq!(glances.next_ns(), 16 * EVERY_NS);
    }
}
