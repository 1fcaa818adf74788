//! KVM's counters of a vCPU.

use super::{LabError, os};
use dwell_capture::kvm_stats::StatsFile;
use std::collections::BTreeMap;
use std::ops::Sub;

/// KVM's monotonic counters of a vCPU, by KVM's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvmCounts(BTreeMap<String, u64>);

impl KvmCounts {
    pub(super) fn read(stats: &StatsFile) -> Result<KvmCounts, LabError> {
        let sums = stats.sums().map_err(os("KVM statistics"))?;
        Ok(KvmCounts(sums.map(|(name, value)| (name.to_owned(), value)).collect()))
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
    fn add(&mut self, other: &KvmCounts) {
        for (name, value) in &other.0 {
            *self.0.entry(name.clone()).or_default() += value;
        }
    }
}

impl Sub<&KvmCounts> for KvmCounts {
    type Output = KvmCounts;

    fn sub(self, before: &KvmCounts) -> KvmCounts {
        let since = |(name, value): (String, u64)| {
            let value = value.saturating_sub(before.get(&name).unwrap_or(0));
            (name, value)
        };
        KvmCounts(self.0.into_iter().map(since).collect())
    }
}

/// KVM's numbers of each arm, over all its blocks.
#[derive(Clone, Debug, Default)]
pub struct KvmCountsByArm {
    arms: Vec<(KvmCounts, u64)>,
}

impl KvmCountsByArm {
    /// The numbers of an arm that are not zero, by name, for each round, by the arm's place among the arms.
    pub fn per_round(&self, arm: usize) -> BTreeMap<&str, f64> {
        let per = |(kvm_counts, rounds)| {
            let counted = KvmCounts::counted(kvm_counts);
            counted.map(move |(name, n)| (name, n as f64 / f64::max(rounds as f64, 1.0))).collect()
        };
        self.arms.get(arm).map(|(kvm_counts, rounds)| per((kvm_counts, *rounds))).unwrap_or_default()
    }

    /// Adds the numbers of a block of so many rounds.
    pub fn add(&mut self, arm: usize, kvm_counts: &KvmCounts, rounds: usize) {
        if self.arms.len() <= arm {
            self.arms.resize(arm + 1, Default::default());
        }
        self.arms[arm].0.add(kvm_counts);
        self.arms[arm].1 += rounds as u64;
    }
}
