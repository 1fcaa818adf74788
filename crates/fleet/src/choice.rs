//! The few settings that cost least when each unit, a VM or a class of them, gets the best of these for itself.
//!
//! This is the k-median problem. A first choice is made by adding settings one by one, each the one that
//! saves most, and by exchanging one that was chosen for one that was not, while that saves anything. Then it
//! is proven to be the best, or a better one is found, by branch and bound:
//!
//! * Each unit *i* is given a price *p*. Whatever settings are chosen, their total is at least the sum of the
//!   prices less, for each chosen setting, the sum over the units of what it is cheaper than their prices. So
//!   the sum of the prices less those of the `number` settings for which that is most is a lower bound of any
//!   choice (the Lagrangian relaxation). Prices are moved, by subgradient steps, so that the bound rises.
//! * A setting that would lift the bound above the best total known cannot be in a better choice, and is dropped.
//! * If the bound is still below, there are two cases: a setting is in the choice, or it is not. Both are
//!   bounded again.
//!
//! Prices are whole numbers, so that a bound holds exactly, whatever rounding their steps had. The work is
//! limited, by a number that does not depend on time or cores; where the limit is reached, [`Chosen::least`]
//! is the bound that was proven.

use dwell_stats::whole::whole;
use rayon::prelude::*;
use std::ops::AddAssign;

/// Costs of units under every setting.
#[derive(Clone, Debug, Default)]
pub struct Matrix {
    settings: usize,
    cells: Vec<u64>,
}

/// Units that one thread works through at a time.
const UNITS_PER_TASK: usize = 256;

impl Matrix {
    /// Without units, for so many settings.
    pub fn new(settings: usize) -> Matrix {
        Matrix { settings, cells: vec![] }
    }

    /// Adds a unit by its cost under each setting.
    ///
    /// # Panics
    /// Where there are not as many costs as settings.
    pub fn push(&mut self, costs: &[u64]) {
        assert_eq!(costs.len(), self.settings, "a cost for each setting");
        self.cells.extend_from_slice(costs);
    }

    /// The costs of each unit.
    pub fn units(&self) -> impl ExactSizeIterator<Item = &[u64]> {
        self.cells.chunks_exact(self.settings.max(1))
    }

    /// What all units cost in sum, each under the best of these settings; the first of all settings where
    /// none is given.
    pub fn total(&self, chosen: &[usize]) -> u128 {
        self.units().map(|costs| u128::from(costs[best(costs, chosen)])).sum()
    }

    /// Sums over all units, by what one unit, by its number and costs, adds to them; the units are spread over all cores.
    fn sum<N>(&self, width: usize, add: impl Fn(usize, &[u64], &mut [N]) + Sync) -> Vec<N>
    where
        N: Copy + Default + AddAssign + Send,
    {
        let zero = || vec![N::default(); width];
        let settings = self.settings.max(1);
        let tasks = self.cells.par_chunks(settings * UNITS_PER_TASK).enumerate();
        let sums = tasks.map(|(task, units)| {
            let mut sums = zero();
            let numbered = (task * UNITS_PER_TASK..).zip(units.chunks_exact(settings));
            numbered.for_each(|(unit, costs)| add(unit, costs, &mut sums));
            sums
        });
        sums.reduce(zero, |mut all, more| {
            all.iter_mut().zip(more).for_each(|(all, more)| *all += more);
            all
        })
    }
}

/// Of these settings the one that costs a unit least, the first of equals; 0 where none is given.
pub fn best(costs: &[u64], chosen: &[usize]) -> usize {
    chosen.iter().copied().min_by_key(|&setting| (costs[setting], setting)).unwrap_or(0)
}

/// A choice, and how good it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The settings, in ascending order.
    pub settings: Vec<usize>,
    /// What all units cost in sum.
    pub total: u128,
    /// No choice of as many settings costs less: the total, where it was proven to be the least.
    pub least: u128,
}

/// The costs that are looked at in a search, at most: about two seconds on one core.
const MOST_WORK: u64 = 1_000_000_000;

/// At most `number` settings of least total cost: fewer where more would save nothing.
pub fn choose(costs: &Matrix, number: usize) -> Chosen {
    choose_within(costs, number, MOST_WORK)
}

fn choose_within(costs: &Matrix, number: usize, work: u64) -> Chosen {
    let best = improved(costs, greedy(costs, number));
    // One setting was chosen among all, and where no addition saves anything each unit has its best.
    let is_best = best.len() < 2 || best.len() < number;
    let total = costs.total(&best);
    let mut search = Search { costs, number, best, total, work };
    let least = if is_best { total } else { search.prove() };
    search.best.sort_unstable();
    Chosen { settings: search.best, total: search.total, least }
}

/// Settings added one by one, each the one that saves most.
fn greedy(costs: &Matrix, number: usize) -> Vec<usize> {
    let mut chosen = vec![];
    while chosen.len() < number {
        match addition(costs, &chosen) {
            Some(setting) => chosen.push(setting),
            None => break,
        }
    }
    chosen
}

/// Settings exchanged while that saves anything.
fn improved(costs: &Matrix, mut chosen: Vec<usize>) -> Vec<usize> {
    while let Some((out, setting)) = exchange(costs, &chosen) {
        chosen[out] = setting;
    }
    chosen
}

/// Steps by which the prices of a case are moved.
const STEPS: u32 = 60;
/// The same at the beginning, where all other cases begin.
const FIRST_STEPS: u32 = 300;
/// Steps without a better bound after which they become half as long.
const PATIENCE: u32 = 6;

/// The search for a better choice, or for the proof that there is none.
struct Search<'a> {
    costs: &'a Matrix,
    number: usize,
    best: Vec<usize>,
    total: u128,
    /// Costs that may still be looked at.
    work: u64,
}

/// A case: settings that are in the choice, those that may be, and the prices of the units.
struct Case {
    inside: Vec<usize>,
    open: Vec<usize>,
    prices: Vec<u64>,
    least: u128,
}

struct Bound {
    least: u128,
    /// Of each open setting what it is cheaper than the prices.
    gains: Vec<u128>,
    /// The places among the open settings of those that would be chosen.
    taken: Vec<usize>,
}

impl Search<'_> {
    /// Searches all cases; returns what no choice can go below.
    fn prove(&mut self) -> u128 {
        let prices = self.costs.units().map(|costs| costs[best(costs, &self.best)]).collect();
        let open = (0..self.costs.settings).collect();
        let mut cases = vec![Case { inside: vec![], open, prices, least: 0 }];
        let mut steps = FIRST_STEPS;
        let mut unproven: Option<u128> = None;
        // The case that was added last comes first: its prices are near.
        while let Some(case) = cases.pop() {
            if case.least >= self.total {
                continue;
            }
            if self.work == 0 {
                unproven = Some(unproven.map_or(case.least, |least| least.min(case.least)));
                continue;
            }
            cases.extend(self.branch(case, steps));
            steps = STEPS;
        }
        unproven.unwrap_or(self.total).min(self.total)
    }

    /// Bounds a case, and divides it in two where that does not exclude it.
    fn branch(&mut self, mut case: Case, steps: u32) -> Vec<Case> {
        let free = self.number - case.inside.len();
        if free == 0 || case.open.len() <= free {
            let all = [&case.inside[..], &case.open[..case.open.len().min(free)]].concat();
            self.try_choice(all);
            return vec![];
        }
        let Some(bound) = self.raise(&mut case, steps) else { return vec![] };
        // What cannot be in a choice that is better: without the last of those taken, and with it.
        let last = bound.taken.last().map_or(0, |&place| bound.gains[place]);
        let could = |gain: u128| bound.least + last.saturating_sub(gain) < self.total;
        let Some(setting) = bound.taken.first().map(|&place| case.open[place]) else { return vec![] };
        let open = case.open.iter().zip(&bound.gains).filter(|(_, gain)| could(**gain));
        let rest: Vec<usize> = open.map(|(open, _)| *open).filter(|&open| open != setting).collect();
        let with = [&case.inside[..], &[setting]].concat();
        let (prices, least) = (case.prices, case.least);
        vec![
            Case { inside: case.inside, open: rest.clone(), prices: prices.clone(), least },
            Case { inside: with, open: rest, prices, least },
        ]
    }

    /// Moves the prices of a case so that its bound rises, and tries the choices met on the way. `None` where
    /// no choice in it is better than the best known.
    fn raise(&mut self, case: &mut Case, steps: u32) -> Option<Bound> {
        let mut prices = case.prices.clone();
        let mut raised: Option<Bound> = None;
        let (mut length, mut since) = (1.0, 0);
        for _ in 0..steps {
            let bound = self.bound(case, &prices);
            if bound.least >= self.total {
                return None;
            }
            let taken = bound.taken.iter().map(|&place| case.open[place]);
            let chosen: Vec<usize> = case.inside.iter().copied().chain(taken).collect();
            self.try_choice(chosen.clone());
            if bound.least >= self.total {
                return None;
            }
            let next = self.moved(&prices, &chosen, bound.least, length);
            since += 1;
            if raised.as_ref().is_none_or(|raised| bound.least > raised.least) {
                case.prices.clone_from(&prices);
                case.least = case.least.max(bound.least);
                raised = Some(bound);
                since = 0;
            } else if since >= PATIENCE {
                (length, since) = (length / 2.0, 0);
            }
            match next {
                Some(next) if self.work > 0 && length > 0.001 => prices = next,
                // Each unit is served once: the bound is the cost of this choice.
                _ => break,
            }
        }
        raised
    }

    fn bound(&mut self, case: &Case, prices: &[u64]) -> Bound {
        let settings = [&case.inside[..], &case.open[..]].concat();
        let looked = (self.costs.units().len() * settings.len()) as u64;
        self.work = self.work.saturating_sub(looked);
        let mut inside = self.costs.sum(settings.len(), |unit, costs, gains: &mut [u128]| {
            for (gain, &setting) in gains.iter_mut().zip(&settings) {
                *gain += u128::from(prices[unit].saturating_sub(costs[setting]));
            }
        });
        let gains = inside.split_off(case.inside.len());
        let mut taken: Vec<usize> = (0..gains.len()).collect();
        taken.sort_unstable_by_key(|&place| (std::cmp::Reverse(gains[place]), case.open[place]));
        taken.truncate(self.number - case.inside.len());
        let all: u128 = prices.iter().copied().map(u128::from).sum();
        let gained: u128 =
            inside.iter().sum::<u128>() + taken.iter().map(|&place| gains[place]).sum::<u128>();
        Bound { least: all.saturating_sub(gained), gains, taken }
    }

    /// Prices after a step: higher for units that none of the chosen settings serves below its price, lower
    /// for those that several serve. `None` where each is served once.
    fn moved(&self, prices: &[u64], chosen: &[usize], least: u128, length: f64) -> Option<Vec<u64>> {
        let served = |costs: &[u64], price: u64| {
            let below = chosen.iter().filter(|&&setting| costs[setting] < price).count();
            1 - i64::try_from(below).unwrap_or(i64::MAX)
        };
        let slopes: Vec<i64> =
            self.costs.units().zip(prices).map(|(costs, &price)| served(costs, price)).collect();
        let squares: u64 = slopes.iter().map(|slope| slope.unsigned_abs().pow(2)).sum();
        if squares == 0 {
            return None;
        }
        let step = length * (self.total - least) as f64 / squares as f64;
        // Any whole number is a price.
        let moved = |(&price, &slope): (&u64, &i64)| {
            let by = whole((step * slope.unsigned_abs() as f64).round());
            if slope > 0 { price.saturating_add(by) } else { price.saturating_sub(by) }
        };
        Some(prices.iter().zip(&slopes).map(moved).collect())
    }

    fn try_choice(&mut self, chosen: Vec<usize>) {
        self.work = self.work.saturating_sub((self.costs.units().len() * chosen.len()) as u64);
        let total = self.costs.total(&chosen);
        if total < self.total {
            self.best = improved(self.costs, chosen);
            self.total = self.costs.total(&self.best);
        }
    }
}

/// The setting whose addition saves most, the first of equals; `None` if none saves anything.
fn addition(costs: &Matrix, chosen: &[usize]) -> Option<usize> {
    let saved = costs.sum(costs.settings, |_, costs, saved: &mut [i128]| {
        // Of the first setting the least sum is wanted: every cost counts.
        let now = if chosen.is_empty() { u64::MAX } else { costs[best(costs, chosen)] };
        for (saved, &cost) in saved.iter_mut().zip(costs) {
            *saved += i128::from(now) - i128::from(now.min(cost));
        }
    });
    let most = (0..costs.settings).max_by_key(|&setting| (saved[setting], std::cmp::Reverse(setting)))?;
    (saved[most] > 0).then_some(most)
}

/// The exchange that saves most: the place of the one that goes, and the setting that comes. `None` if none
/// saves anything.
fn exchange(costs: &Matrix, chosen: &[usize]) -> Option<(usize, usize)> {
    let places = chosen.len();
    if places == 0 {
        return None;
    }
    // For each setting what it adds whichever goes, and then what it adds beyond that if that one goes.
    let width = places + 1;
    let added = costs.sum(costs.settings * width, |_, costs, added: &mut [i128]| {
        let mut order: Vec<usize> = (0..places).collect();
        order.sort_unstable_by_key(|&place| (costs[chosen[place]], chosen[place]));
        let nearest = order[0];
        let now = costs[chosen[nearest]];
        let next = order.get(1).map_or(u64::MAX, |&place| costs[chosen[place]]);
        for (added, &cost) in added.chunks_exact_mut(width).zip(costs) {
            if cost < now {
                added[0] -= i128::from(now - cost);
            } else {
                added[1 + nearest] += i128::from(next.min(cost) - now);
            }
        }
    });
    let exchanges = added.chunks_exact(width).enumerate().flat_map(|(setting, added)| {
        added[1..].iter().enumerate().map(move |(place, more)| (added[0] + more, setting, place))
    });
    let (change, setting, place) = exchanges.min()?;
    (change < 0).then_some((place, setting))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_stats::SplitMix64;
    use proptest::prelude::*;

    fn matrix(rows: &[Vec<u64>]) -> Matrix {
        let mut matrix = Matrix::new(rows.first().map_or(0, Vec::len));
        rows.iter().for_each(|row| matrix.push(row));
        matrix
    }

    /// The least total of any `number` settings, by trying all.
    fn oracle(costs: &Matrix, number: usize) -> u128 {
        fn subsets(
            from: usize,
            settings: usize,
            left: usize,
            with: &mut Vec<usize>,
            see: &mut dyn FnMut(&[usize]),
        ) {
            see(with);
            for setting in from..settings {
                if left > 0 {
                    with.push(setting);
                    subsets(setting + 1, settings, left - 1, with, see);
                    with.pop();
                }
            }
        }
        let mut least = u128::MAX;
        subsets(0, costs.settings, number, &mut vec![], &mut |chosen| {
            if !chosen.is_empty() {
                least = least.min(costs.total(chosen));
            }
        });
        least
    }

    #[test]
    fn the_best_of_all_subsets_is_found_and_proven() {
        let mut random = SplitMix64::new(7);
        let (mut cases, mut not_first) = (0, 0);
        for _ in 0..400 {
            let (units, settings) = (1 + random.below(12), 1 + random.below(9));
            let rows: Vec<Vec<u64>> =
                (0..units).map(|_| (0..settings).map(|_| 1 + random.below(1_000)).collect()).collect();
            let costs = matrix(&rows);
            for number in 1..=5 {
                let chosen = choose(&costs, number);
                let settings = &chosen.settings;
                assert!(settings.len() <= number && settings.is_sorted_by(|a, b| a < b), "{chosen:?}");
                let least = oracle(&costs, number);
                assert_eq!((chosen.total, chosen.least), (least, least), "{rows:?} {number}");
                assert_eq!(chosen.total, costs.total(settings));
                cases += 1;
                not_first += usize::from(costs.total(&improved(&costs, greedy(&costs, number))) > least);
            }
        }
        assert!(cases == 2_000 && not_first > 10, "{not_first} of {cases} needed the search");
    }

    #[test]
    fn without_work_the_bound_holds_all_the_same() {
        let mut random = SplitMix64::new(11);
        for work in [0, 1, 100, 1_000, 10_000] {
            let rows: Vec<Vec<u64>> =
                (0..30).map(|_| (0..12).map(|_| 1 + random.below(1_000)).collect()).collect();
            let costs = matrix(&rows);
            let chosen = choose_within(&costs, 3, work);
            let least = oracle(&costs, 3);
            assert!(chosen.least <= least && least <= chosen.total, "{work}: {chosen:?} {least}");
        }
    }

    #[test]
    fn two_kinds_of_units_get_a_setting_each() {
        let costs = matrix(&[vec![1, 9, 5], vec![1, 9, 5], vec![9, 1, 5], vec![9, 1, 5]]);
        assert_eq!(choose(&costs, 1).settings, [0]);
        assert_eq!(choose(&costs, 2).settings, [0, 1]);
        // A third saves nothing.
        assert_eq!(choose(&costs, 3).settings, [0, 1]);
        assert_eq!(choose(&Matrix::new(0), 2).settings, [0usize; 0]);
        assert_eq!(choose(&Matrix::new(3), 2).settings, [0usize; 0]);
    }

    #[test]
    fn sums_beyond_64_bits_are_exact() {
        let costs = matrix(&vec![vec![u64::MAX, u64::MAX - 1]; 1_000]);
        assert_eq!(choose(&costs, 1).settings, [1]);
        assert_eq!(costs.total(&[1]), u128::from(u64::MAX - 1) * 1_000);
    }

    proptest! {
        #[test]
        fn the_order_of_the_units_does_not_matter(
            rows in prop::collection::vec(prop::collection::vec(0u64..50, 6), 1..40),
            number in 1usize..4,
        ) {
            let mut turned = rows.clone();
            turned.reverse();
            prop_assert_eq!(choose(&matrix(&rows), number), choose(&matrix(&turned), number));
        }
    }
}
