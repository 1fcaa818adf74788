//! What KVM itself counts of a vCPU.

use super::{LabError, os};
use dwell_capture::kvm_stats::StatsFile;
use std::collections::BTreeMap;
use std::ops::Sub;

/// KVM's numbers of a vCPU that only grow, by KVM's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    pub(super) fn read(stats: &StatsFile) -> Result<Tally, LabError> {
        let sums = stats.sums().map_err(os("KVM statistics"))?;
        Ok(Tally(sums.map(|(name, value)| (name.to_owned(), value)).collect()))
    }

    /// One of them; `None`: this kernel does not have it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Those that are not zero, by name.
    fn counted(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().filter(|(_, value)| **value > 0).map(|(name, value)| (name.as_str(), *value))
    }

    /// Adds another's.
    fn add(&mut self, other: &Tally) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_default() += value;
        }
    }
}

impl Sub<&Tally> for Tally {
    type Output = Tally;

    fn sub(self, before: &Tally) -> Tally {
        let since = |(name, value): (String, u64)| {
            let value = value.saturating_sub(before.get(&name).unwrap_or(0));
            (name, value)
        };
        Tally(self.0.into_iter().map(since).collect())
    }
}

/// KVM's numbers of each arm, over all its blocks.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    arms: Vec<(Tally, u64)>,
}

impl Tallies {
    /// The numbers of an arm that are not zero, by name, for each round, by the arm's place among the arms.
    pub fn per_round(&self, arm: usize) -> BTreeMap<&str, f64> {
        let per = |(tally, rounds)| {
            let counted = Tally::counted(tally);
            counted.map(move |(name, n)| (name, n as f64 / f64::max(rounds as f64, 1.0))).collect()
        };
        self.arms.get(arm).map(|(tally, rounds)| per((tally, *rounds))).unwrap_or_default()
    }

    /// Adds the numbers of a block of so many rounds.
    pub fn add(&mut self, arm: usize, tally: &Tally, rounds: usize) {
        if self.arms.len() <= arm {
            self.arms.resize(arm + 1, Default::default());
        }
        self.arms[arm].0.add(tally);
        self.arms[arm].1 += rounds as u64;
    }
}
