//! What settings would have cost over a sample.
//!
//! Without wakeup latencies all settings go through the vector engine. With them, what a rule learns from is
//! longer than the episode where the idler halts, which the engine does not have: it then chooses the
//! [`FINALISTS`] without latencies, and these are played with them, one episode after the other.

use crate::core::sample::Episode;
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Bank, Batch, Counts, Player, Rule, RuleError};

/// Episodes that are played before those that count, so that windows are not those of a fresh start.
const WARM_UP: usize = 64;

/// Settings that are played with the latency.
const FINALISTS: usize = 24;

/// The episodes of each idler.
pub(crate) type PerIdler = Vec<Vec<Episode>>;

/// Settings that are priced over one sample after the other.
pub(crate) struct Prices {
    settings: Vec<Setting>,
    bank: Bank,
    batch: Batch,
}

/// The cost of each setting on each of the two halves \[ns\]; `None`: it is not among the finalists.
pub(crate) type Costs = Vec<Option<[f64; 2]>>;

impl Prices {
    /// Of these settings.
    pub(crate) fn of(settings: &[Setting]) -> Result<Prices, RuleError> {
        let rules: Vec<Rule> = settings.iter().copied().map(Rule::Layer).collect();
        Ok(Prices { settings: settings.to_vec(), bank: Bank::new(&rules, 1)?, batch: Batch::default() })
    }

    pub(crate) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// What they cost. Those at the places `always` are always among the finalists.
    pub(crate) fn costs(
        &mut self,
        always: &[usize],
        halves: &[PerIdler; 2],
        halt_cost: Nanos,
    ) -> Result<Costs, RuleError> {
        let cost = |counts: &Counts| counts.cost_ns(halt_cost) as f64;
        // What dwell_idle does depends on the busy time before an episode, which the engine does not have; it
        // has few settings.
        if self.settings.first().is_some_and(|setting| setting.layer() == Layer::Driver) {
            let of = |setting: &Setting| {
                let [first, second] = halves.each_ref().map(|half| one_by_one(setting, half));
                Ok(Some([cost(&first?), cost(&second?)]))
            };
            return self.settings.iter().map(of).collect();
        }
        let [first, second] = halves.each_ref().map(|half| self.play(half));
        let mut all: Costs =
            first.iter().zip(&second).map(|(first, second)| Some([cost(first), cost(second)])).collect();
        if halves.iter().flatten().flatten().all(|episode| episode.late() == Nanos::ZERO) {
            return Ok(all);
        }
        let total = |place: &usize| all[*place].map_or(f64::INFINITY, |[a, b]| a + b);
        let mut order: Vec<usize> = (0..all.len()).filter(|place| !always.contains(place)).collect();
        order.sort_by(|a, b| total(a).total_cmp(&total(b)));
        order.truncate(FINALISTS);
        all.fill(None);
        for place in order.iter().chain(always) {
            let setting = &self.settings[*place];
            let [first, second] = halves.each_ref().map(|half| one_by_one(setting, half));
            all[*place] = Some([cost(&first?), cost(&second?)]);
        }
        Ok(all)
    }

    /// What each of them does.
    fn play(&mut self, idlers: &PerIdler) -> Vec<Counts> {
        self.bank.restart();
        let mut feed = |most: usize| {
            self.batch.clear();
            for (idler, all) in idlers.iter().enumerate() {
                let episodes = all.iter().take(most);
                episodes.for_each(|episode| self.batch.push(idler, episode.idle_ns, episode.alone()));
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

/// Plays one episode.
pub(crate) fn play(player: &mut Player, episode: Episode) -> Counts {
    let Episode { busy_ns, idle_ns, alone_ns, .. } = episode;
    player.play_all_late(std::iter::once((busy_ns, idle_ns, alone_ns)), episode.late())
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
        let episode =
            (length, alone).prop_map(|(idle_ns, alone_ns)| Episode { alone_ns, ..Episode::of(idle_ns) });
        prop::collection::vec(episode, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// The engine's costs are those of the settings played one episode after the other.
        #[test]
        fn costs_are_those_of_the_rules(halves in [prop::collection::vec(episodes(), 1..3), prop::collection::vec(episodes(), 1..3)]) {
            for layer in [Layer::Host, Layer::Guest] {
                let settings = candidates(Setting::defaults(layer, Version::new(6, 18)), K, Nanos(400_000), Reach::All);
                let costs = Prices::of(&settings).unwrap().costs(&[0], &halves, K).unwrap();
                for (setting, cost) in settings.iter().zip(costs) {
                    let slow = [&halves[0], &halves[1]].map(|half| one_by_one(setting, half).unwrap());
                    prop_assert_eq!(cost, Some(slow.map(|counts| counts.cost_ns(K) as f64)));
                }
            }
        }
    }

    #[test]
    fn with_a_latency_the_first_and_the_finalists_are_played() {
        let settings =
            candidates(Setting::defaults(Layer::Host, Version::new(6, 18)), K, Nanos(400_000), Reach::All);
        let late = |idle_ns| Episode { latency_ns: Some(12_000), ..Episode::of(idle_ns) };
        let halves = [vec![vec![late(12_000); 100]], vec![vec![late(14_000); 100]]];
        let late = Prices::of(&settings).unwrap().costs(&[0, 1], &halves, K).unwrap();
        assert!(late[0].is_some() && late[1].is_some());
        assert_eq!(late.iter().flatten().count(), FINALISTS + 2);
        // A window of 20 us never grows where the rule sees 24 us and more; one of 30 us does.
        let of = |max: i64, shrink: i64| {
            let is = |setting: &Setting| {
                let value = |name| setting.get(name);
                value("halt_poll_ns") == Some(max)
                    && value("halt_poll_ns_grow_start") == Some(max)
                    && value("halt_poll_ns_shrink") == Some(shrink)
            };
            let setting = settings.iter().find(|setting| is(setting)).unwrap();
            halves.each_ref().map(|half| one_by_one(setting, half).unwrap().halts)
        };
        assert_eq!(of(20_000, 1), [100, 100]);
        assert_eq!(of(30_000, 1), [0, 0]);
    }
}
