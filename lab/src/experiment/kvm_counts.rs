//! KVM's counters of a vCPU.

use super::{LabError, os};
use dwell_capture::kvm_stats::{Stat, StatsFile};
use std::collections::BTreeMap;
use std::ops::Sub;

/// The part of the flags that is the type, and the type of a number that only grows.
const TYPE_MASK: u32 = 0xf;
const TYPE_CUMULATIVE: u32 = 0;

/// KVM's monotonic counters of a vCPU, by KVM's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvmCounts(BTreeMap<String, u64>);

impl KvmCounts {
    pub(super) fn read(stats: &StatsFile) -> Result<KvmCounts, LabError> {
        let read = stats.read().map_err(os("KVM statistics"))?;
        let grows = |stat: &Stat| stat.flags & TYPE_MASK == TYPE_CUMULATIVE && stat.size == 1;
        let sums = stats.stats().iter().zip(read).filter(|(stat, _)| grows(stat));
        Ok(KvmCounts(
            sums.filter_map(|(stat, numbers)| Some((stat.name.clone(), *numbers.first()?))).collect(),
        ))
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

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::kvm_stats::file;
    use std::io::Write;

    #[test]
    fn counts_are_the_single_numbers_that_only_grow() {
        let bytes = file(&[
            ("halt_exits", 0, 0, &[7]),
            ("halt_wait_ns", 0x20, -9, &[123_456]),
            ("halt_wait_hist", 0x24, -9, &[0, 1, 2]),
            ("novelty", 0x9ff, 3, &[1]),
        ]);
        let mut stats = tempfile::tempfile().unwrap();
        stats.write_all(&bytes).unwrap();
        let counts = KvmCounts::read(&StatsFile::new(stats.into()).unwrap()).unwrap();
        let counted: Vec<_> = counts.counted().collect();
        assert_eq!(counted, [("halt_exits", 7), ("halt_wait_ns", 123_456)]);
    }
}
