//! Glances at counters between two decisions, which tell soon that the load is another one.
//!
//! A burst of a recorder costs as much as a second allows, so that of a busy load decisions are seconds apart. Counters of
//! how often a CPU polled and halted, and for how long, cost microseconds. They do not tell which setting is better, but that
//! what the present one costs has changed: then the next decision is due at once, and on the account of later ones. What is
//! seen for it shows whether the load has changed, or only its cost: haltpoll's windows grow, and a disk is slower for a
//! while.

use crate::core::checks::BUSY_PER_S;
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::Counts;
use std::collections::HashMap;

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

/// What is usual of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Glances {
    /// The logarithms of the halts a second, and of the cost a second, under each setting of which there was a whole glance: a
    /// load that begins while another setting is in force is seen when that of before is in force again.
    usual: HashMap<Setting, [f64; 2]>,
    /// Whether one has begun under the setting in force.
    begun: bool,
    apart: u32,
    /// When to glance next.
    pub(crate) next_ns: u64,
}

impl Glances {
    /// Another setting is in force.
    pub(crate) const fn begin_anew(&mut self) {
        (self.begun, self.apart) = (false, 0);
    }

    /// The load is another one.
    pub(crate) fn forget(&mut self) {
        *self = Glances { next_ns: self.next_ns, ..Glances::default() };
    }

    /// What was counted of so many CPUs in the time before `now_ns`, of all together, under this setting. Whether it is
    /// something else than usual for the second time: it may be another load.
    pub(crate) fn glance(
        &mut self,
        now_ns: u64,
        ns: u64,
        cpus: usize,
        present: &Setting,
        counted: &Counts,
        halt_cost: Nanos,
    ) -> bool {
        let every_ns = EVERY_NS * (cpus as u64).div_ceil(CPUS).max(1);
        self.next_ns = now_ns.saturating_add(every_ns);
        let seconds = ns.max(1) as f64 / 1e9;
        let cost = counted.cost_ns(halt_cost) as f64 / 1e9 / seconds;
        let rates =
            [(counted.halts as f64 / seconds).max(2.0 * BUSY_PER_S), cost.max(LEAST_CPU)].map(f64::log2);
        // Nothing was counted yet, or some of it before.
        if ns == 0 || !std::mem::replace(&mut self.begun, true) {
            return false;
        }
        let usual = self.usual.entry(*present).or_insert(rates);
        if usual.iter().zip(rates).all(|(usual, now)| (now - usual).abs() <= DIFFERS.log2()) {
            usual.iter_mut().zip(rates).for_each(|(usual, now)| *usual += (now - *usual) / 4.0);
            self.apart = 0;
            return false;
        }
        self.apart += 1;
        if self.apart < TWICE {
            self.next_ns = now_ns.saturating_add(every_ns.min(AGAIN_NS));
            return false;
        }
        self.begin_anew();
        self.usual.remove(present);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Glance {
        Usual,
        /// Something else, for once.
        Differs,
        Another,
    }

    fn setting(maximum: i64) -> Setting {
        let mut setting = Setting::defaults(Layer::Guest, Version::new(6, 18));
        setting.set("guest_halt_poll_ns", maximum).unwrap();
        setting
    }

    /// What a glance shows of so many polls of 10 us, and halts, a second.
    fn glance(glances: &mut Glances, present: &Setting, (polls, halts): (u64, u64)) -> Glance {
        let now_ns = glances.next_ns;
        let counted =
            Counts { polled_ns: (polls / 10 * 10_000).into(), halts: halts / 10, ..Counts::default() };
        match (glances.glance(now_ns, EVERY_NS, 2, present, &counted, Nanos(20_000)), glances.apart) {
            (true, _) => Glance::Another,
            (false, 0) => Glance::Usual,
            (false, _) => Glance::Differs,
        }
    }

    fn glances(all: &[(u64, u64)]) -> Vec<Glance> {
        let mut glances = Glances::default();
        all.iter().map(|counted| glance(&mut glances, &setting(200_000), *counted)).collect()
    }

    #[test]
    fn a_load_that_begins_under_another_setting_is_seen_under_the_one_before() {
        use Glance::{Another, Differs, Usual};
        let (polling, never) = (setting(200_000), setting(0));
        let (mut all, mut seen) = (Glances::default(), vec![]);
        for (setting, counted) in
            [(never, (0, 9_000)), (polling, (40_000, 100)), (never, (0, 30_000)), (polling, (90_000, 100))]
        {
            all.begin_anew();
            seen.extend((0..3).map(|_| glance(&mut all, &setting, counted)));
        }
        assert_eq!(seen[..6], [Usual; 6]);
        assert_eq!(seen[6..], [Usual, Differs, Another, Usual, Differs, Another]);
        all.forget();
        assert_eq!([0; 3].map(|_| glance(&mut all, &never, (0, 50_000))), [Usual; 3]);
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
            glances.glance(at_ns, EVERY_NS, 2, &setting(200_000), &counted(halts), Nanos(20_000));
            assert_eq!(glances.next_ns / 1_000_000, next_ns);
        }
        glances.glance(0, EVERY_NS, 64, &setting(200_000), &counted(500), Nanos(20_000));
        assert_eq!(glances.next_ns, 16 * EVERY_NS);
    }
}
