//! What settings would have cost over a sample.
//!
//! Without a wakeup latency all settings go through the vector engine. With one, what a rule learns from is longer than the episode
//! where the idler halts, which the engine does not have: it then chooses the [`FINALISTS`] without the latency, and these are played with
//! it, one episode after the other.

use crate::sample::Episode;
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::{Bank, Counts, Memory, Player, Rule, RuleError, Source};

/// Episodes that are played before those that count, so that windows are not those of a fresh start.
const WARM_UP: usize = 64;

/// Settings that are played with the latency.
const FINALISTS: usize = 24;

/// The episodes of each idler.
pub(crate) type Idlers = Vec<Vec<Episode>>;

/// The cost of each setting on each of the two halves \[ns\]; `None`: it is not among the finalists. The `first` settings
/// always are.
pub(crate) fn costs(
    settings: &[Setting],
    first: usize,
    halves: &[Idlers; 2],
    halt_cost: Nanos,
    late: Nanos,
) -> Result<Vec<Option<[f64; 2]>>, RuleError> {
    let by_engine = [with_engine(settings, &halves[0])?, with_engine(settings, &halves[1])?];
    let cost = |counts: &Counts| counts.cost_ns(halt_cost) as f64;
    let of = |place: usize| [cost(&by_engine[0][place]), cost(&by_engine[1][place])];
    let mut all: Vec<Option<[f64; 2]>> = (0..settings.len()).map(|place| Some(of(place))).collect();
    if late == Nanos::ZERO {
        return Ok(all);
    }
    let mut order: Vec<usize> = (first.min(settings.len())..settings.len()).collect();
    let total = |place: usize| all[place].map_or(f64::INFINITY, |[a, b]| a + b);
    order.sort_by(|a, b| total(*a).total_cmp(&total(*b)));
    for place in order.iter().skip(FINALISTS) {
        all[*place] = None;
    }
    for place in (0..first.min(settings.len())).chain(order.into_iter().take(FINALISTS)) {
        let counts = |half: &Idlers| Ok::<f64, RuleError>(cost(&one_by_one(&settings[place], half, late)?));
        all[place] = Some([counts(&halves[0])?, counts(&halves[1])?]);
    }
    Ok(all)
}

fn with_engine(settings: &[Setting], idlers: &Idlers) -> Result<Vec<Counts>, RuleError> {
    let rules: Vec<Rule> = settings.iter().copied().map(Rule::Layer).collect();
    let mut bank = Bank::new(&rules, 1)?;
    let mut feed = |most: usize| {
        let episodes = idlers.iter().enumerate().flat_map(|(idler, all)| {
            all.iter().take(most).map(move |episode| (idler, episode.idle_ns, episode.alone()))
        });
        // Reading from memory cannot fail.
        let _ = Memory::contended(episodes).visit(0..u64::MAX, &mut |batch| bank.feed(batch));
        bank.take()
    };
    feed(WARM_UP);
    Ok(feed(usize::MAX))
}

/// What one setting does, where a halt adds `late` to what its rule sees.
fn one_by_one(setting: &Setting, idlers: &Idlers, late: Nanos) -> Result<Counts, RuleError> {
    let mut counts = Counts::default();
    for episodes in idlers {
        let mut player = Rule::Layer(*setting).start_late(1)?;
        episodes.iter().take(WARM_UP).for_each(|episode| {
            play(&mut player, *episode, late);
        });
        episodes.iter().for_each(|episode| counts += play(&mut player, *episode, late));
    }
    Ok(counts)
}

/// Plays one episode.
pub(crate) fn play(player: &mut Player, episode: Episode, late: Nanos) -> Counts {
    player.play_late_alone(Nanos(episode.idle_ns), late, Nanos(episode.alone_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidates::{Reach, candidates};
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    const K: Nanos = Nanos(20_000);

    fn episodes() -> impl Strategy<Value = Vec<Episode>> {
        let length = prop_oneof![1u64..30_000, 1u64..400_000];
        let alone = prop_oneof![4 => Just(u64::MAX), 1 => 0u64..30_000];
        let episode = (length, alone).prop_map(|(idle_ns, alone_ns)| Episode { idle_ns, alone_ns });
        prop::collection::vec(episode, 0..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        /// The engine's costs are those of the settings played one episode after the other.
        #[test]
        fn costs_are_those_of_the_rules(halves in [prop::collection::vec(episodes(), 1..3), prop::collection::vec(episodes(), 1..3)]) {
            for layer in [Layer::Host, Layer::Guest] {
                let settings = candidates(Setting::defaults(layer, Version::new(6, 18)), K, Nanos(400_000), Reach::All);
                let costs = costs(&settings, 1, &halves, K, Nanos::ZERO).unwrap();
                for (setting, cost) in settings.iter().zip(costs) {
                    let slow = [&halves[0], &halves[1]].map(|half| one_by_one(setting, half, Nanos::ZERO).unwrap());
                    prop_assert_eq!(cost, Some(slow.map(|counts| counts.cost_ns(K) as f64)));
                }
            }
        }
    }

    #[test]
    fn with_a_latency_the_first_and_the_finalists_are_played() {
        let settings =
            candidates(Setting::defaults(Layer::Host, Version::new(6, 18)), K, Nanos(400_000), Reach::All);
        let halves = [vec![vec![Episode::of(12_000); 100]], vec![vec![Episode::of(14_000); 100]]];
        let late = costs(&settings, 2, &halves, K, Nanos(12_000)).unwrap();
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
            halves.each_ref().map(|half| one_by_one(setting, half, Nanos(12_000)).unwrap().halts)
        };
        assert_eq!(of(20_000, 1), [100, 100]);
        assert_eq!(of(30_000, 1), [0, 0]);
    }
}
