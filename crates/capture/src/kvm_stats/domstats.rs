//! The same counters as `virsh domstats` prints them, as monitoring has them: one reading of all VMs.
//!
//! `Domain: 'name'`, and below it `vcpu.0.halt_exits.sum=1173865` and so on for each vCPU. A text has no time of its
//! own.

use super::{Counters, Delta, VmId};
use std::collections::BTreeMap;

/// Counters by the name of the domain, over its vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domstats(BTreeMap<String, Counters>);

/// Why a text is no reading of these counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomstatsError {
    /// A line cannot be read.
    #[error("line {line}: `vcpu.N.COUNTER.sum=` is not followed by a number")]
    Number {
        /// From 1.
        line: usize,
    },
    /// There are no counters of halts.
    #[error(
        "no domain with counters of halts (`vcpu.N.halt_exits.sum`); `virsh domstats --vcpu` prints them with Linux 5.14 \
         and libvirt 8.10 or later"
    )]
    NoCounters,
    /// Counters of each domain decrease from one text to the other.
    #[error(
        "the counters of {domain} decrease: are the files in this order, or was it started anew in between?"
    )]
    Decrease {
        /// One of them.
        domain: String,
    },
}

impl Domstats {
    /// Reads a text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Domstats, DomstatsError> {
        let mut vcpus: BTreeMap<(&str, u32), BTreeMap<&str, u64>> = BTreeMap::new();
        let mut domain = "";
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("Domain:") {
                domain = name.trim().trim_matches('\'');
            }
            let counter = line.strip_prefix("vcpu.").and_then(|rest| {
                let (vcpu, rest) = rest.split_once('.')?;
                let (name, value) = rest.split_once(".sum=")?;
                Some((vcpu.parse().ok()?, name, value))
            });
            let Some((vcpu, name, value)) = counter else { continue };
            let value = value.parse().map_err(|_| DomstatsError::Number { line: number + 1 })?;
            vcpus.entry((domain, vcpu)).or_default().insert(name, value);
        }
        let mut domains: BTreeMap<String, Counters> = BTreeMap::new();
        for ((domain, _), numbers) in vcpus {
            let counters = Counters::gather(|name| numbers.get(name).copied(), |_| None);
            if counters == Counters::default() {
                continue;
            }
            let sum = match domains.remove(domain) {
                Some(sum) => sum.plus(counters),
                None => counters,
            };
            domains.insert(domain.to_owned(), sum);
        }
        if domains.is_empty() { Err(DomstatsError::NoCounters) } else { Ok(Domstats(domains)) }
    }

    /// What was counted since `earlier`, `span_ns` before, of the domains in both; and their names. Those that were started anew
    /// are among the ended ones.
    ///
    /// # Errors
    /// [`DomstatsError::Decrease`] where that is so of all of them.
    pub fn since(
        &self,
        earlier: &Domstats,
        span_ns: u64,
    ) -> Result<(Delta, BTreeMap<VmId, String>), DomstatsError> {
        let both = self.0.iter().filter_map(|(name, now)| Some((name, now, earlier.0.get(name)?)));
        let (anew, both): (Vec<_>, Vec<_>) = both.partition(|(_, now, before)| now.is_less_than(before));
        if let (Some((domain, ..)), true) = (anew.first(), both.is_empty()) {
            return Err(DomstatsError::Decrease { domain: (*domain).clone() });
        }
        let (mut vms, mut names) = (BTreeMap::new(), BTreeMap::new());
        for ((name, now, before), number) in both.into_iter().zip(1..) {
            // A domain has no process here.
            let id = VmId { pid: 0, fd: number };
            vms.insert(id, now.clone().since(before.clone()));
            names.insert(id, name.clone());
        }
        let ended = earlier.0.keys().filter(|name| !self.0.contains_key(*name)).count() + anew.len();
        Ok((Delta { span_ns, vms, ended }, names))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bound;
    use super::*;
    use dwell_policy::Nanos;

    const T0: &str = include_str!("../../../trace/tests/it/import/field/11-domstats-t0.txt");
    const T60: &str = include_str!("../../../trace/tests/it/import/field/11-domstats-t60.txt");

    #[test]
    fn two_readings_of_a_windows_guest() {
        let [first, second] = [T0, T60].map(|text| Domstats::parse(text).unwrap());
        let (delta, names) = second.since(&first, 60_000_000_000).unwrap();
        let id = VmId { pid: 0, fd: 1 };
        assert_eq!((delta.ended, names[&id].as_str()), (0, "win11"));
        let bound = Bound::of(&delta.vms[&id], Nanos(20_000)).unwrap();
        assert_eq!((bound.polls, bound.polls_succeeded, bound.halts), (50_000, 20_000, 30_000));
        assert_eq!((bound.polled_ns, bound.wasted_ns), (4_500_000_000, 3_000_000_000));
        // 7.50 % polled and 1.00 % for halts, of 60 s of a CPU.
        assert_eq!(bound.cost_ns, 5_100_000_000);
        assert_eq!(
            first.since(&second, 60_000_000_000),
            Err(DomstatsError::Decrease { domain: "win11".to_owned() })
        );
    }

    #[test]
    fn a_domain_that_was_started_anew_has_ended() {
        let text = |a: u32, b: u32| {
            format!("Domain: 'a'\nvcpu.0.halt_exits.sum={a}\nDomain: 'b'\nvcpu.0.halt_exits.sum={b}\n")
        };
        let [first, second] = [text(10, 10), text(3, 15)].map(|text| Domstats::parse(&text).unwrap());
        let (delta, names) = second.since(&first, 1).unwrap();
        assert_eq!((delta.ended, names.into_values().collect::<Vec<_>>()), (1, vec!["b".to_owned()]));
    }

    #[test]
    fn what_is_no_reading_is_refused() {
        assert_eq!(Domstats::parse(""), Err(DomstatsError::NoCounters));
        assert_eq!(Domstats::parse("Domain: 'a'\n  vcpu.0.time=5\n"), Err(DomstatsError::NoCounters));
        assert_eq!(Domstats::parse("vcpu.0.halt_exits.sum=x\n"), Err(DomstatsError::Number { line: 1 }));
    }
}
