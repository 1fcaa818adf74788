//! What settings would have cost over a sample.

use crate::core::sample::Episode;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Bank, Batch, Counts, IdleLoop, Player, Rule, RuleError};

/// Episodes that are played before those that count, so that windows are not those of a fresh start.
const WARM_UP: usize = 64;

/// The episodes of each idler.
pub(crate) type PerIdler = Vec<Vec<Episode>>;

/// Settings that are priced over one sample after the other.
pub(crate) struct Prices {
    pub(crate) settings: Vec<Setting>,
    bank: Bank,
    batch: Batch,
}

/// The cost of each setting on each of the two halves \[ns\].
pub(crate) type Costs = Vec<[f64; 2]>;

impl Prices {
    pub(crate) fn of(settings: &[Setting]) -> Result<Prices, RuleError> {
        let rules: Vec<Rule> = settings.iter().copied().map(Rule::Layer).collect();
        Ok(Prices { settings: settings.to_vec(), bank: Bank::new(&rules, 1)?, batch: Batch::default() })
    }

    /// What they cost, each halt with its wakeup latency.
    pub(crate) fn costs(&mut self, halves: &[PerIdler; 2], halt_cost: Nanos) -> Result<Costs, RuleError> {
        let cost = |counts: &Counts| counts.cost_ns(halt_cost) as f64;
        // What dwell_idle does depends on the busy time before an episode, which the engine does not have; it
        // has few settings.
        if self.settings.first().is_some_and(|setting| setting.layer() == Layer::Driver) {
            let of = |setting: &Setting| {
                let [first, second] = halves.each_ref().map(|half| one_by_one(setting, half));
                Ok([cost(&first?), cost(&second?)])
            };
            return self.settings.iter().map(of).collect();
        }
        let [first, second] = halves.each_ref().map(|half| self.play(half));
        Ok(first.iter().zip(&second).map(|(first, second)| [cost(first), cost(second)]).collect())
    }

    /// What each of them does.
    fn play(&mut self, idlers: &PerIdler) -> Vec<Counts> {
        self.bank.restart();
        let mut feed = |most: usize| {
            self.batch.clear();
            // All are of one machine.
            let first = idlers.iter().flatten().next();
            self.batch.set_idle_loop(first.map_or(IdleLoop::UNKNOWN, |episode| episode.idle_loop));
            for (idler, all) in idlers.iter().enumerate() {
                let episodes = all.iter().take(most);
                episodes.for_each(|episode| {
                    self.batch.push_late(idler, episode.idle_ns, episode.latency_ns, episode.alone());
                });
            }
            self.bank.feed(&self.batch);
            self.bank.take()
        };
        feed(WARM_UP);
        feed(usize::MAX)
    }
}

/// The rule of a setting at its beginning.
pub(crate) fn fresh(setting: Setting) -> Result<Player, RuleError> {
    Rule::Layer(setting).start_late(1)
}

/// What one setting does.
pub(crate) fn one_by_one(setting: &Setting, idlers: &PerIdler) -> Result<Counts, RuleError> {
    let mut counts = Counts::default();
    for episodes in idlers {
        let mut player = fresh(*setting)?;
        play_all(&mut player, &episodes[..episodes.len().min(WARM_UP)]);
        counts += play_all(&mut player, episodes);
    }
    Ok(counts)
}

/// Plays one episode after the other, each with its wakeup latency.
pub(crate) fn play_all(player: &mut Player, episodes: &[Episode]) -> Counts {
    episodes.iter().map(|episode| play(player, *episode)).sum()
}

pub(crate) fn play(player: &mut Player, episode: Episode) -> Counts {
    let Episode { busy_ns, idle_ns, alone_ns, idle_loop, .. } = episode;
    player.set_idle_loop(idle_loop);
    player.play_one(Some(busy_ns), idle_ns, episode.late().get(), alone_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::candidates::{Reach, candidates};
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    const K: Nanos = Nanos(20_000);

    fn episodes() -> impl Strategy<Value = Vec<Episode>> {
        let length = prop_oneof![1u64..30_000, 1u64..400_000];
        let alone = prop_oneof![4 => Just(u64::MAX), 1 => 0u64..30_000];
        let latency = prop::option::of(0u64..60_000);
        let episode = (length, alone, latency).prop_map(|(idle_ns, alone_ns, latency_ns)| Episode {
            alone_ns,
            latency_ns,
            ..Episode::of(idle_ns)
        });
        prop::collection::vec(episode, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// The engine's costs are those of the settings played one episode after the other.
        #[test]
        fn costs_are_those_of_the_rules(halves in [prop::collection::vec(episodes(), 1..3), prop::collection::vec(episodes(), 1..3)]) {
            for layer in [Layer::Host, Layer::Guest] {
                let settings = candidates(Setting::defaults(layer, Version::new(6, 18)), K, Nanos(400_000), Reach::All);
                let costs = Prices::of(&settings).unwrap().costs(&halves, K).unwrap();
                for (setting, cost) in settings.iter().zip(costs) {
                    let slow = [&halves[0], &halves[1]].map(|half| one_by_one(setting, half).unwrap());
                    prop_assert_eq!(cost, slow.map(|counts| counts.cost_ns(K) as f64));
                }
            }
        }
    }

    /// A window of 20 us never grows where the rule sees 24 us and more; one of 30 us does.
    #[test]
    fn a_rule_learns_from_the_latency() {
        let of = |max_ns: i64| {
            let mut setting = Setting::defaults(Layer::Host, Version::new(6, 18));
            for (name, value) in
                [("halt_poll_ns", max_ns), ("halt_poll_ns_grow_start", max_ns), ("halt_poll_ns_shrink", 1)]
            {
                setting.set(name, value).unwrap();
            }
            let late =
                |idle_ns| vec![vec![Episode { latency_ns: Some(12_000), ..Episode::of(idle_ns) }; 100]];
            Prices::of(&[setting]).unwrap().costs(&[late(12_000), late(14_000)], K).unwrap()[0]
        };
        assert_eq!(of(20_000), [2e6, 2e6]);
        assert_eq!(of(30_000), [1.2e6, 1.4e6]);
    }
}
