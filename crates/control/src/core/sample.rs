//! What is remembered of the episodes of an idler: a weighted sample over several periods.
//!
//! # The idea
//! A sample has to cover the period that it is of: the last lengths of a period say nothing about a load that
//! alternates within it. So of a period with more episodes than are kept, every second stretch of [`STRETCH`]
//! episodes is kept, every fourth, and so on: within a stretch the order of the episodes, which the rules
//! depend on, is that of the load. A period counts half as much as the next; only a decision makes a period
//! old, so that a quiet idler's few episodes are kept until they are enough.

use dwell_policy::Nanos;
use dwell_replay::IdleLoop;
use dwell_stats::whole::place;
use std::collections::VecDeque;

/// One episode: its length, and how long a poll in it may last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Episode {
    /// Its length \[ns\].
    pub idle_ns: u64,
    /// The time after which another task wants the core \[ns\]; `u64::MAX` where none does, or that is not known.
    pub alone_ns: u64,
    /// How long the idler was busy before it \[ns\]; 0 where that is not known.
    pub busy_ns: u64,
    /// The wakeup latency, if the idler halted: how long after the end of the episode it ran again \[ns\].
    /// `None` where it polled, or that is not known.
    pub latency_ns: Option<u64>,
    /// How long steps of a guest's idle loop take.
    pub idle_loop: IdleLoop,
}

impl Episode {
    /// An episode of this length \[ns\] which no other task cuts short.
    pub const fn of(idle_ns: u64) -> Episode {
        Episode { idle_ns, alone_ns: u64::MAX, busy_ns: 0, latency_ns: None, idle_loop: IdleLoop::UNKNOWN }
    }

    /// The wakeup latency, where one was recorded or assumed.
    pub(crate) fn late(self) -> Nanos {
        Nanos(self.latency_ns.unwrap_or(0))
    }

    /// The time alone as a recording has it; `None` if it is the whole episode.
    pub(crate) fn alone(self) -> Option<u64> {
        (self.alone_ns < self.idle_ns).then_some(self.alone_ns)
    }

    /// What the optimum pays for it \[ns\].
    pub(crate) fn least_cost_ns(self, halt_cost: u64) -> u64 {
        if self.alone().is_some() { halt_cost } else { self.idle_ns.min(halt_cost) }
    }
}

/// Episodes that stay together.
pub(crate) const STRETCH: usize = 32;

/// The periods that are remembered; the oldest has 1/128 of the weight of the latest.
const PERIODS: usize = 8;

/// Some episodes of a time, in stretches all over it.
#[derive(Clone, Debug)]
pub struct Stretches {
    kept: Vec<Episode>,
    most: usize,
    /// One stretch of so many is kept.
    stride: u64,
    all: u64,
}

impl Stretches {
    /// None yet; at most `most` are kept, and no fewer than four stretches.
    pub fn new(most: usize) -> Stretches {
        Stretches { kept: vec![], most: most.max(4 * STRETCH), stride: 1, all: 0 }
    }

    /// Takes in the next episode.
    pub fn push(&mut self, episode: Episode) {
        let stretch = self.all / STRETCH as u64;
        self.all += 1;
        if !stretch.is_multiple_of(self.stride) {
            return;
        }
        self.kept.push(episode);
        if self.kept.len() >= self.most {
            let every_second = self.kept.chunks(STRETCH).step_by(2).flatten().copied().collect();
            self.kept = every_second;
            self.stride *= 2;
        }
    }

    /// The episodes that are kept, in their order; begins anew.
    pub fn take(&mut self) -> Vec<Episode> {
        let kept = std::mem::take(&mut self.kept);
        *self = Stretches::new(self.most);
        kept
    }
}

/// A period of one idler.
#[derive(Clone, Debug)]
struct Period {
    /// How many episodes it had.
    episodes: u64,
    kept: Vec<Episode>,
    /// The decisions since.
    age: u32,
}

impl Period {
    fn weight(&self) -> f64 {
        self.episodes as f64 / f64::from(1u32 << self.age.min(31))
    }
}

/// What is remembered of one idler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    periods: VecDeque<Period>,
}

impl Sample {
    /// Takes in what was seen in a period: `kept` of `episodes`.
    pub(crate) fn push(&mut self, episodes: u64, kept: &[Episode]) {
        if episodes == 0 || kept.is_empty() {
            return;
        }
        match self.periods.back_mut() {
            Some(last) if last.age == 0 => {
                last.episodes += episodes;
                last.kept.extend_from_slice(kept);
            }
            _ => self.periods.push_back(Period { episodes, kept: kept.to_vec(), age: 0 }),
        }
    }

    /// A decision was made on it.
    pub(crate) fn grow_old(&mut self) {
        self.periods.iter_mut().for_each(|period| period.age += 1);
        while self.periods.len() > PERIODS {
            self.periods.pop_front();
        }
        self.periods.retain(|period| (period.age as usize) < PERIODS);
    }

    /// Only what was taken in since the last decision is kept.
    pub(crate) fn forget_old(&mut self) {
        self.periods.retain(|period| period.age == 0);
    }

    /// Its episodes by weight: a period's count as they are, half as much after a decision.
    pub(crate) fn weight(&self) -> f64 {
        self.periods.iter().map(Period::weight).sum()
    }

    /// The episodes that are known, whatever their weight.
    pub(crate) fn known(&self) -> usize {
        self.periods.iter().map(|period| period.kept.len()).sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.periods.is_empty()
    }

    /// Two halves of it, each with every second stretch: `per_weight` episodes for each of weight, as far as
    /// they were kept.
    pub(crate) fn halves(&self, per_weight: f64) -> [Vec<Episode>; 2] {
        let mut halves = [vec![], vec![]];
        let mut second = 0;
        for period in &self.periods {
            let wanted = place((period.weight() * per_weight).ceil()).min(period.kept.len());
            let stretches = period.kept.len().div_ceil(STRETCH).max(1);
            let mut left = wanted;
            // The same number from each stretch that is taken, and those all over the period.
            let taken = wanted.div_ceil(STRETCH).clamp(1, stretches);
            for number in 0..taken {
                let at = number * stretches / taken * STRETCH;
                let stretch = &period.kept[at..period.kept.len().min(at + STRETCH)];
                let stretch = &stretch[..stretch.len().min(left)];
                left -= stretch.len();
                halves[second].extend_from_slice(stretch);
                second ^= 1;
            }
        }
        halves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lengths(all: &[Episode]) -> Vec<u64> {
        all.iter().map(|episode| episode.idle_ns).collect()
    }

    #[test]
    fn a_long_period_is_covered_from_its_beginning_to_its_end() {
        let mut stretches = Stretches::new(256);
        (0..100_000).for_each(|n| stretches.push(Episode::of(n)));
        assert_eq!(stretches.all, 100_000);
        let kept = lengths(&stretches.take());
        assert!(kept.len() >= 128 && kept.len() <= 256, "{}", kept.len());
        assert!(kept[0] == 0 && kept[kept.len() - 1] > 85_000, "{:?}", kept.last());
        assert!(kept.chunks(STRETCH).all(|stretch| stretch.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        assert_eq!((stretches.all, stretches.take().len()), (0, 0));
    }

    #[test]
    fn a_period_counts_half_as_much_as_the_next() {
        let mut sample = Sample::default();
        for period in 0..12u64 {
            sample.push(1_000, &[Episode::of(period); 512]);
            let [a, b] = sample.halves(0.25);
            let of = |period: u64| {
                let both = a.iter().chain(&b);
                both.filter(|episode| episode.idle_ns == period).count()
            };
            assert_eq!(of(period), 250);
            if period > 0 {
                assert_eq!(of(period - 1), 125);
            }
            sample.grow_old();
        }
        assert!(sample.periods.len() <= PERIODS && sample.weight() < 1_000.0);
    }

    #[test]
    fn few_episodes_are_kept_until_a_decision() {
        let mut sample = Sample::default();
        (0..10).for_each(|_| sample.push(5, &[Episode::of(7); 5]));
        assert_eq!((sample.known(), sample.weight()), (50, 50.0));
    }

    proptest! {
        #[test]
        fn halves_have_no_more_than_was_kept(
            periods in prop::collection::vec((1u64..5_000, 1usize..600), 1..12), per_weight in 0.0f64..1.0,
        ) {
            let mut sample = Sample::default();
            for (episodes, kept) in periods {
                sample.push(episodes, &vec![Episode::of(1); kept.min(usize::try_from(episodes).unwrap())]);
                let [a, b] = sample.halves(per_weight);
                prop_assert!(a.len() + b.len() <= sample.known());
                prop_assert!(a.len().abs_diff(b.len()) <= 2 * STRETCH * PERIODS);
                sample.grow_old();
            }
        }
    }
}
