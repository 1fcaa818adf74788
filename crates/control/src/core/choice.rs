//! The choice of a setting: which candidate would have cost least over what is remembered of all idlers, if
//! it is worth a change.

use crate::core::candidates::candidates;
use crate::core::change::Cause;
use crate::core::idlers::Idlers;
use crate::core::pricing::{PerIdler, Prices};
use crate::core::sample::Episode;
use crate::core::tenant::Veto;
use crate::core::terms::Terms;
use dwell_policy::param::Setting;
use dwell_replay::RuleError;

/// The fewest episodes to decide on.
pub const FEWEST: usize = 64;

/// A change has to save this share of the present cost.
pub(crate) const WORTH: f64 = 1.0 / 16.0;
/// The most episodes that candidates are replayed over.
const MOST_EPISODES: f64 = 2048.0;

/// The sample of the idlers of one weight, in two halves.
struct Group {
    weight: f64,
    halves: [PerIdler; 2],
}

impl Group {
    fn all(&self) -> impl Iterator<Item = &Episode> {
        self.halves.iter().flatten().flatten()
    }

    fn episodes(&self) -> usize {
        self.all().count()
    }

    fn optimum_ns(&self, halt_cost: u64) -> f64 {
        self.all().map(|episode| episode.least_cost_ns(halt_cost)).sum::<u64>() as f64
    }
}

/// The sample of all idlers that count.
fn groups(idlers: &Idlers) -> Vec<Group> {
    let counted = || idlers.iter().map(|(_, idler)| idler).filter(|idler| idler.tenant.weight > 0.0);
    let all: f64 = counted().map(|idler| idler.sample.weight()).sum();
    let share = (MOST_EPISODES / all.max(1.0)).min(1.0);
    let mut groups: Vec<Group> = vec![];
    for idler in counted() {
        let weight = idler.tenant.weight;
        let at = groups.iter().position(|group| group.weight == weight).unwrap_or_else(|| {
            groups.push(Group { weight, halves: [vec![], vec![]] });
            groups.len() - 1
        });
        for (half, episodes) in groups[at].halves.iter_mut().zip(idler.sample.halves(share)) {
            half.push(episodes);
        }
    }
    groups
}

/// The candidates, and what they cost.
pub(crate) struct Choice {
    terms: Terms,
    /// The originals first.
    pub(crate) candidates: Vec<Setting>,
    prices: Prices,
    /// The vetoes without which the last choice would have been another one, the setting that costs least.
    pub(crate) vetoes: Vec<Veto>,
}

impl Choice {
    /// Of the settings to use in place of these.
    pub(crate) fn new(originals: Setting, terms: Terms) -> Result<Choice, RuleError> {
        let candidates = candidates(originals, terms.halt_cost, terms.longest_window, terms.reach);
        Ok(Choice { terms, prices: Prices::of(&candidates)?, candidates, vetoes: vec![] })
    }

    pub(crate) fn originals(&self) -> Setting {
        self.candidates[0]
    }

    /// The candidate that costs least over the sample, of those that no idler vetoes, if it is worth a change. `counted` is the
    /// cost of an episode in the last period, where that is known \[ns\]: a replay starts without a window, and a window that
    /// has grown stays where nothing shrinks it.
    pub(crate) fn choose(
        &mut self,
        idlers: &Idlers,
        present: Setting,
        counted: Option<f64>,
    ) -> Option<(Setting, Cause)> {
        let groups = groups(idlers);
        let episodes = groups.iter().map(Group::episodes).sum();
        // More are known, but too old.
        if episodes < FEWEST {
            return None;
        }
        if !self.prices.settings.contains(&present) {
            let settings = [&self.candidates[..], &[present]].concat();
            self.prices = Prices::of(&settings).ok()?;
        }
        let place = self.prices.settings.iter().position(|setting| *setting == present)?;
        let Terms { halt_cost, .. } = self.terms;
        let mut costs = vec![[0.0; 2]; self.prices.settings.len()];
        for Group { weight, halves } in &groups {
            let of_group = self.prices.costs(halves, halt_cost).ok()?;
            for (sum, cost) in costs.iter_mut().zip(of_group) {
                *sum = [0, 1].map(|half| sum[half] + weight * cost[half]);
            }
        }
        let weighted = [0, 1].map(|half| -> f64 {
            let of = |group: &Group| group.halves[half].iter().map(Vec::len).sum::<usize>() as f64;
            groups.iter().map(|group| group.weight * of(group)).sum()
        });
        // The originals are the first.
        let (originals, replayed) = (costs[0], costs[place]);
        let present = [0, 1].map(|half| replayed[half].max(counted.unwrap_or(0.0) * weighted[half]));
        let total = |[a, b]: [f64; 2]| a + b;
        // One in force that is no candidate is not taken again.
        let candidates = costs.iter().enumerate().take(self.candidates.len());
        let mut cheaper: Vec<(usize, [f64; 2])> = candidates
            .map(|(place, cost)| (place, *cost))
            .filter(|(place, cost)| {
                total(*cost) < total(present) * (1.0 - WORTH) && idlers.can_follow(&self.candidates[*place])
            })
            .collect();
        cheaper.sort_by(|a, b| total(a.1).total_cmp(&total(b.1)));
        let places: Vec<usize> = cheaper.iter().map(|(place, _)| *place).collect();
        let (chosen, cost) = cheaper[self.first_without_veto(idlers, &places)?];
        // By replay the setting in force costs least, whatever it was counted to cost.
        if chosen == place {
            return None;
        }
        let chosen = self.candidates[chosen];
        if !cost.iter().zip(&present).all(|(chosen, present)| chosen < present) {
            return None;
        }
        let halt_cost = halt_cost.get();
        let optimum: f64 = groups.iter().map(|group| group.weight * group.optimum_ns(halt_cost)).sum();
        let of_one = |cost: f64| cost / total(weighted).max(f64::MIN_POSITIVE);
        let cause = Cause::Gain {
            episodes,
            present_ns: of_one(total(present)),
            chosen_ns: of_one(total(cost)),
            originals_ns: of_one(total(originals)),
            optimum_ns: of_one(optimum),
        };
        Some((chosen, cause))
    }

    /// The first of the candidates at these places that no idler with a limit vetoes. Vetoes of the very
    /// first are remembered.
    fn first_without_veto(&mut self, idlers: &Idlers, places: &[usize]) -> Option<usize> {
        let best = *places.first()?;
        let with_limit = || idlers.iter().filter(|(_, idler)| idler.tenant.most_loss.is_some());
        let number = with_limit().count();
        let mut vetoed = vec![false; places.len()];
        for (name, idler) in with_limit() {
            let share = (MOST_EPISODES / number as f64 / idler.sample.weight().max(1.0)).min(1.0);
            let halves = idler.sample.halves(share).map(|half| vec![half]);
            let episodes: usize = halves.iter().flatten().map(Vec::len).sum();
            let costs = self.prices.costs(&halves, self.terms.halt_cost).ok()?;
            let cost = |place: usize| costs[place].iter().sum::<f64>();
            for (place, vetoed) in places.iter().zip(&mut vetoed) {
                *vetoed |= idler.tenant.vetoes(cost(*place), cost(0));
            }
            if idler.tenant.vetoes(cost(best), cost(0)) {
                let [cost_ns, originals_ns] = [best, 0].map(|place| cost(place) / episodes.max(1) as f64);
                let setting = self.candidates[best];
                self.vetoes.push(Veto { idler: name, setting, cost_ns, originals_ns });
            }
        }
        vetoed.iter().position(|vetoed| !vetoed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::idlers::Idler;
    use crate::core::observed::Observed;
    use crate::core::pricing::{fresh, one_by_one};
    use crate::core::tenant::Tenant;
    use dwell_policy::version::Version;
    use dwell_policy::{Layer, Nanos};
    use proptest::prelude::*;

    const K: Nanos = Nanos(20_000);
    const TERMS: Terms = Terms::at(K);

    fn choice() -> Choice {
        Choice::new(Setting::defaults(Layer::Host, Version::new(6, 18)), TERMS).unwrap()
    }

    /// The idlers of a first period under `present`.
    fn idlers_of(choice: &Choice, present: Setting, observed: &[Observed]) -> Idlers {
        let mut idlers = Idlers::new(&choice.originals());
        idlers.take_in(10_000_000, 10_000_000, observed, &TERMS, [choice.originals(), present]);
        idlers
    }

    /// The choice, slowly: every setting played over every idler's sample, one episode after the other.
    fn slow_choice(choice: &Choice, idlers: &Idlers, present: Setting) -> Option<Setting> {
        let halves = |setting: &Setting, idler: &Idler| {
            idler.sample.halves(1.0).map(|half| one_by_one(setting, &vec![half]).unwrap().cost_ns(K) as f64)
        };
        let sum = |[a, b]: [f64; 2]| a + b;
        let cost = |setting: &Setting| {
            let all =
                idlers.iter().map(|(_, idler)| halves(setting, idler).map(|half| idler.tenant.weight * half));
            all.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])
        };
        let originals = choice.originals();
        let vetoed = |setting: &Setting| {
            idlers.iter().any(|(_, idler)| {
                let own = |setting| sum(halves(setting, idler));
                let limit = idler.tenant.most_loss.map(|share| (1.0 + share) * own(&originals));
                limit.is_some_and(|limit| own(setting) > limit)
            })
        };
        let at_present = cost(&present);
        let mut best = (present, at_present);
        for setting in &choice.candidates {
            let cost = cost(setting);
            if sum(cost) < sum(best.1) && sum(cost) < sum(at_present) * (1.0 - WORTH) && !vetoed(setting) {
                best = (*setting, cost);
            }
        }
        let gains = best.1.iter().zip(&at_present).all(|(chosen, present)| chosen < present);
        gains.then_some(best.0)
    }

    prop_compose! {
        fn idlers()(idlers in prop::collection::vec((
            prop::collection::vec(prop_oneof![500u64..30_000, 20_000u64..400_000], 1..400),
            prop::sample::select(vec![0.0, 0.5, 1.0, 3.0]),
            prop::sample::select(vec![None, Some(0.0), Some(0.05), Some(0.5)]),
        ), 1..5)) -> Vec<(Vec<u64>, Tenant)> {
            let of = |(lengths, weight, most_loss)| (lengths, Tenant { weight, most_loss });
            idlers.into_iter().map(of).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// The choice is the slow one; no idler is given what its limit excludes, and each veto is a true one.
        #[test]
        fn the_cheapest_setting_without_a_veto_is_chosen(idlers in idlers(), present in any::<prop::sample::Index>()) {
            let mut choice = choice();
            let originals = choice.originals();
            let present = *present.get(&choice.candidates);
            let mut one = fresh(present).unwrap();
            let observed: Vec<Observed> = (0..).zip(&idlers).map(|(idler, (lengths, tenant))| {
                let episodes = lengths.iter().copied().map(Episode::of).collect();
                Observed { idler, tenant: *tenant, ..Observed::played(&mut one, episodes) }
            }).collect();
            let known = idlers_of(&choice, present, &observed);
            let slow = slow_choice(&choice, &known, present);
            let chosen = choice.choose(&known, present, None).map(|(to, _)| to);
            let enough = groups(&known).iter().map(Group::episodes).sum::<usize>() >= FEWEST;
            prop_assert_eq!(chosen, slow.filter(|_| enough));
            for veto in &choice.vetoes {
                let limit = idlers[usize::try_from(veto.idler).unwrap()].1.most_loss.unwrap();
                prop_assert!(veto.cost_ns > (1.0 + limit) * veto.originals_ns);
                prop_assert!(Some(veto.setting) != chosen && veto.setting != originals);
            }
        }
    }

    #[test]
    fn a_window_that_stays_is_not_replayed_and_is_counted() {
        let mut choice = choice();
        // Its divisor is 1: no halt of this length shrinks a window or starts one.
        let stays = choice
            .candidates
            .iter()
            .copied()
            .find(|setting| setting.iter().map(|(_, value)| value).eq([17_500, 2, 17_500, 1]));
        let stays = stays.unwrap();
        let observed = Observed {
            idler: 0,
            ..Observed::played(&mut fresh(stays).unwrap(), vec![Episode::of(150_000); 400])
        };
        let known = idlers_of(&choice, stays, &[observed]);
        assert_eq!(choice.choose(&known, stays, None), None);
        assert_eq!(choice.choose(&known, stays, Some(20_500.0)), None);
        let (to, cause) = choice.choose(&known, stays, Some(37_500.0)).unwrap();
        assert_eq!(to.get("halt_poll_ns"), Some(0));
        assert!(matches!(cause, Cause::Gain { present_ns: 37_500.0, chosen_ns: 20_000.0, .. }), "{cause:?}");
    }

    #[test]
    fn a_weight_is_as_many_idlers() {
        let mixed = |short: usize| {
            (0..320).map(move |n| if n % 4 < short { 4_000 } else { 150_000 }).map(Episode::of)
        };
        let chosen = |tenants: &[(f64, usize)]| {
            let mut choice = choice();
            let present = choice.originals();
            let observed = (0..).zip(tenants).map(|(idler, (weight, short))| {
                let tenant = Tenant { weight: *weight, ..Tenant::default() };
                let mut player = fresh(present).unwrap();
                Observed { idler, tenant, ..Observed::played(&mut player, mixed(*short).collect()) }
            });
            let observed: Vec<Observed> = observed.collect();
            let known = idlers_of(&choice, present, &observed);
            let (to, cause) = choice.choose(&known, present, None).unwrap();
            let Cause::Gain { present_ns, chosen_ns, originals_ns, .. } = cause else { panic!("{cause:?}") };
            (to, [present_ns, chosen_ns, originals_ns].map(f64::round))
        };
        assert_eq!(chosen(&[(1.0, 3), (1.0, 3), (1.0, 3), (1.0, 0)]), chosen(&[(3.0, 3), (1.0, 0)]));
        assert_eq!(chosen(&[(0.5, 3), (0.5, 0)]), chosen(&[(40.0, 3), (40.0, 0)]));
        assert_eq!(chosen(&[(0.0, 3), (1.0, 0)]), chosen(&[(7.0, 0)]));
        assert_ne!(chosen(&[(0.0, 3), (1.0, 0)]).0, chosen(&[(1.0, 3), (0.0, 0)]).0);
    }
}
