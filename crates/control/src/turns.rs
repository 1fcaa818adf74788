//! The originals and another setting in turns on the machine itself: the only look at a closed loop, whose load is another one
//! because the setting is.
//!
//! [`ROUNDS`] times originals, setting, setting, originals, for [`TURN_NS`] each, so that a load that grows or falls meanwhile costs both
//! alike. What was counted right after a switch is left out, as windows have not reached their length. The cost of a second under the
//! setting less that under the originals, of each pair of neighbours, gives a 95 % interval by the bootstrap of `dwell verify`.

use dwell_policy::param::Setting;
use dwell_stats::{Bootstrap, Interval, MIN_ROUNDS};

/// How long each is in force \[ns\].
const TURN_NS: u64 = 100_000_000;
/// The part of that which is left out \[ns\].
const SETTLE_NS: u64 = 20_000_000;
/// Rounds of four turns: pairs enough for an interval.
const ROUNDS: usize = MIN_ROUNDS.div_ceil(2);
/// The turns of all rounds.
const ALL: usize = 4 * ROUNDS;
/// Switches from one to the other in them, and the one after them.
pub(crate) const SWITCHES: usize = 2 * ROUNDS + 1;

/// Turns that are under way. The first is of the originals, and so is the last.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    pub(crate) to: Setting,
    settled: bool,
    /// What each turn cost \[ns/s\].
    costs: Vec<f64>,
}

/// What is next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Next {
    /// The same setting for so long \[ns\].
    Wait(u64),
    /// The other one: the setting, or else the originals.
    Switch { to_setting: bool },
    /// The turns are over: the cost of a second under the originals and under the setting, and the interval of the difference
    /// \[ns/s\].
    Over([f64; 2], Option<Interval>),
}

/// Whether a turn is of the setting.
fn is_of_setting(turn: usize) -> bool {
    matches!(turn % 4, 1 | 2)
}

impl Turns {
    pub(crate) fn of(to: Setting) -> Turns {
        Turns { to, settled: false, costs: vec![] }
    }

    /// How long the part is that comes after a switch \[ns\].
    pub(crate) const fn settle_ns() -> u64 {
        SETTLE_NS
    }

    /// A part of a turn is over, in which a second cost so much \[ns\].
    pub(crate) fn next(&mut self, cost_ns_per_s: f64) -> Next {
        if !self.settled {
            self.settled = true;
            return Next::Wait(TURN_NS - SETTLE_NS);
        }
        self.settled = false;
        self.costs.push(cost_ns_per_s);
        let turn = self.costs.len();
        if turn == ALL {
            return self.over();
        }
        match is_of_setting(turn) == is_of_setting(turn - 1) {
            true => Next::Wait(SETTLE_NS),
            false => Next::Switch { to_setting: is_of_setting(turn) },
        }
    }

    fn over(&self) -> Next {
        // The originals are first in every second pair.
        let pairs = self.costs.chunks_exact(2).zip([false, true].into_iter().cycle());
        let pairs: Vec<[f64; 2]> = pairs
            .map(|(pair, turned)| if turned { [pair[1], pair[0]] } else { [pair[0], pair[1]] })
            .collect();
        let differences: Vec<f64> = pairs.iter().map(|[originals, setting]| setting - originals).collect();
        let mean =
            |place: usize| pairs.iter().map(|pair| pair[place]).sum::<f64>() / pairs.len().max(1) as f64;
        Next::Over([mean(0), mean(1)], Bootstrap::RECORDING.mean(&differences))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;

    /// Turns to their end, under which a second costs this.
    fn turns(cost: impl Fn(usize, bool) -> f64) -> ([f64; 2], Option<Interval>, usize) {
        let mut turns = Turns::of(Setting::defaults(Layer::Host, Version::new(6, 18)));
        let (mut setting, mut switches, mut parts) = (false, 0, 0);
        loop {
            match turns.next(cost(parts / 2, setting)) {
                Next::Wait(ns) => assert!(ns == SETTLE_NS || ns == TURN_NS - SETTLE_NS),
                Next::Switch { to_setting } => {
                    assert_ne!(to_setting, setting);
                    (setting, switches) = (to_setting, switches + 1);
                }
                Next::Over(costs, interval) => {
                    assert!(!setting, "the originals are last");
                    return (costs, interval, switches);
                }
            }
            parts += 1;
        }
    }

    #[test]
    fn a_load_that_grows_costs_both_alike() {
        let (costs, interval, switches) =
            turns(|turn, setting| if setting { 60.0 } else { 50.0 } + turn as f64);
        assert_eq!((costs[1] - costs[0], switches + 1), (10.0, SWITCHES));
        let interval = interval.unwrap();
        assert!(interval.low > 0.0 && interval.contains(10.0), "{interval:?}");
    }

    #[test]
    fn a_gain_that_is_less_than_the_noise_is_none() {
        let noise = [3.0, -40.0, 12.0, 55.0, -8.0, 31.0, -50.0, 2.0, 44.0, -21.0, 9.0, -30.0];
        let (_, interval, _) = turns(|turn, setting| 1_000.0 + noise[turn] - if setting { 5.0 } else { 0.0 });
        assert!(interval.is_none_or(|interval| interval.high > 0.0), "{interval:?}");
    }
}
