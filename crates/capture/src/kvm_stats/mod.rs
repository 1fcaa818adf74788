//! KVM's own counters of halts and polls: what polling costs now, without tracing anything.
//!
//! # Idea
//! KVM counts every poll, its success and its nanoseconds, for each vCPU, always. The difference of two [`Snapshot`]s
//! is what happened in between; [`Bound`] has its cost and the most that any setting could have gained.
//!
//! # Where the counters are
//! * **debugfs**, `/sys/kernel/debug/kvm/TID-FD/`: sums over the vCPUs of a VM. Of a histogram debugfs shows only the
//!   first bucket, so there are none from here. A locked-down kernel refuses these files, since they can be written.
//! * **statistics files** (Linux 5.14): binary, one for each vCPU, with histograms. Only the process that owns the VM
//!   can make one, but one that it keeps open (QEMU since 8.1 does, for each vCPU) can be copied out of it by root.
//!
//! A VM whose VMM keeps a statistics file open for every vCPU is read from those, any other from debugfs.
//!
//! # Limits
//! Counters are read one after the other while they run, so a snapshot may be torn by the halts of a few microseconds;
//! a halt that is under way at its start or end is counted whole at its end.

mod binary;
mod bound;
mod domstats;
mod source;

pub use binary::{LayoutError, Stat, StatsFile};
pub use bound::{Bound, NotCounted};
pub use domstats::{Counted, Domstats, DomstatsError};
pub use source::{Source, SourceError, StatsReader, VmId, debugfs_readable};

use serde::Serialize;
use std::collections::BTreeMap;

/// The counters of halts and polls of a vCPU, of a VM or of several, as KVM names them. `None`: this kernel, or this
/// place, does not have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// HLT exits, also those that no halt followed because an event was there.
    pub halt_exits: Option<u64>,
    /// Halts that polled.
    pub halt_attempted_poll: Option<u64>,
    /// Of those, the ones that did not sleep.
    pub halt_successful_poll: Option<u64>,
    /// Of those, the ones whose wake was invalid (never on x86).
    pub halt_poll_invalid: Option<u64>,
    /// Time polled in halts that did not sleep \[ns\]; since 5.8.
    pub halt_poll_success_ns: Option<u64>,
    /// Time polled in halts that slept \[ns\]; since 5.8.
    pub halt_poll_fail_ns: Option<u64>,
    /// Time slept \[ns\]; since 5.15.
    pub halt_wait_ns: Option<u64>,
    /// Lengths of successful polls; bucket 0 counts zeros, *k* those from 2^(*k*-1) to 2^*k* - 1 ns, the last all the
    /// rest; since 5.15, from statistics files only.
    pub halt_poll_success_hist: Option<Vec<u64>>,
    /// Lengths of failed polls, in the same buckets.
    pub halt_poll_fail_hist: Option<Vec<u64>>,
    /// Lengths of sleeps, in the same buckets.
    pub halt_wait_hist: Option<Vec<u64>>,
}

impl Counters {
    /// Takes what is known by these names from a place that has numbers and, maybe, histograms.
    pub(crate) fn gather(
        mut number: impl FnMut(&str) -> Option<u64>,
        mut histogram: impl FnMut(&str) -> Option<Vec<u64>>,
    ) -> Counters {
        let mut counters = Counters::default();
        for (name, field) in counters.numbers_mut() {
            *field = number(name);
        }
        for (name, field) in counters.histograms_mut() {
            *field = histogram(name);
        }
        counters
    }

    /// The numbers, with the kernel's names.
    fn numbers_mut(&mut self) -> [(&'static str, &mut Option<u64>); 7] {
        [
            ("halt_exits", &mut self.halt_exits),
            ("halt_attempted_poll", &mut self.halt_attempted_poll),
            ("halt_successful_poll", &mut self.halt_successful_poll),
            ("halt_poll_invalid", &mut self.halt_poll_invalid),
            ("halt_poll_success_ns", &mut self.halt_poll_success_ns),
            ("halt_poll_fail_ns", &mut self.halt_poll_fail_ns),
            ("halt_wait_ns", &mut self.halt_wait_ns),
        ]
    }

    /// The histograms, with the kernel's names.
    fn histograms_mut(&mut self) -> [(&'static str, &mut Option<Vec<u64>>); 3] {
        [
            ("halt_poll_success_hist", &mut self.halt_poll_success_hist),
            ("halt_poll_fail_hist", &mut self.halt_poll_fail_hist),
            ("halt_wait_hist", &mut self.halt_wait_hist),
        ]
    }

    /// Counter by counter; what one of the two does not know, the result does not know.
    fn merged(mut self, mut other: Counters, merge: impl Fn(u64, u64) -> u64) -> Counters {
        for ((_, a), (_, b)) in self.numbers_mut().into_iter().zip(other.numbers_mut()) {
            *a = a.zip(*b).map(|(a, b)| merge(a, b));
        }
        for ((_, a), (_, b)) in self.histograms_mut().into_iter().zip(other.histograms_mut()) {
            *a = match (a.take(), b.take()) {
                (Some(a), Some(b)) if a.len() == b.len() => {
                    Some(a.into_iter().zip(b).map(|(a, b)| merge(a, b)).collect())
                }
                _ => None,
            };
        }
        self
    }

    /// The counters of both together.
    #[must_use]
    pub fn plus(self, other: Counters) -> Counters {
        self.merged(other, u64::saturating_add)
    }

    /// What was counted since `earlier`. A counter that decreased (it was cleared) counts as 0.
    #[must_use]
    pub fn since(self, earlier: Counters) -> Counters {
        self.merged(earlier, u64::saturating_sub)
    }

    /// Whether a number is smaller than it was `before`.
    pub(crate) fn is_less_than(&self, before: &Counters) -> bool {
        let (mut now, mut before) = (self.clone(), before.clone());
        let numbers = now.numbers_mut().into_iter().zip(before.numbers_mut());
        numbers.into_iter().any(
            |((_, now), (_, before))| matches!((now, before), (Some(now), Some(before)) if *now < *before),
        )
    }

    /// Whether a number is not known that is known in `other`.
    pub(crate) fn lacks_some_of(&self, other: &Counters) -> bool {
        let (mut own, mut other) = (self.clone(), other.clone());
        let mut numbers = own.numbers_mut().into_iter().zip(other.numbers_mut());
        numbers.any(|((_, own), (_, other))| own.is_none() && other.is_some())
    }

    /// The counters of all together; `None` without any.
    pub fn sum(all: impl IntoIterator<Item = Counters>) -> Option<Counters> {
        all.into_iter().reduce(Counters::plus)
    }
}

/// The counters of every VM at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// When \[ns, `CLOCK_MONOTONIC`\].
    pub at_ns: u64,
    pub vms: BTreeMap<VmId, Counters>,
}

/// What was counted between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Delta {
    /// From the first to the second \[ns\].
    pub span_ns: u64,
    /// The VMs that were there at the end; one that was not there at the beginning counts from zero.
    pub vms: BTreeMap<VmId, Counters>,
    /// VMs that ended in between; what they counted is lost.
    pub ended: usize,
}

impl Snapshot {
    /// What was counted since an earlier snapshot.
    pub fn since(&self, earlier: &Snapshot) -> Delta {
        let counted = |(id, now): (&VmId, &Counters)| {
            let before = earlier.vms.get(id).cloned();
            (*id, before.map_or_else(|| now.clone(), |before| now.clone().since(before)))
        };
        Delta {
            span_ns: self.at_ns.saturating_sub(earlier.at_ns),
            vms: self.vms.iter().map(counted).collect(),
            ended: earlier.vms.keys().filter(|id| !self.vms.contains_key(id)).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(exits: u64, wait: &[u64]) -> Counters {
        Counters { halt_exits: Some(exits), halt_wait_hist: Some(wait.to_vec()), ..Counters::default() }
    }

    fn snapshot(at_ns: u64, vms: &[(u32, Counters)]) -> Snapshot {
        let id = |pid: u32| VmId { pid, fd: 9 };
        Snapshot { at_ns, vms: vms.iter().map(|(pid, c)| (id(*pid), c.clone())).collect() }
    }

    #[test]
    fn vms_that_come_count_from_zero_and_those_that_go_are_counted() {
        let before = snapshot(1_000, &[(1, counters(10, &[1, 2])), (2, counters(5, &[0, 0]))]);
        let after = snapshot(4_000, &[(1, counters(15, &[1, 5])), (3, counters(7, &[7, 0]))]);
        let delta = after.since(&before);
        assert_eq!((delta.span_ns, delta.ended), (3_000, 1));
        assert_eq!(Counters::sum(delta.vms.values().cloned()), Some(counters(12, &[7, 3])));
    }

    #[test]
    fn what_one_does_not_know_the_sum_does_not_know() {
        let sum = counters(1, &[1]).plus(Counters { halt_wait_hist: None, ..counters(2, &[]) });
        assert_eq!((sum.halt_exits, sum.halt_wait_hist), (Some(3), None));
    }

    #[test]
    fn cleared_counters_count_as_nothing() {
        assert_eq!(counters(3, &[2]).since(counters(10, &[1])), counters(0, &[1]));
    }
}
