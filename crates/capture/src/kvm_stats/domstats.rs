//! The same counters as `virsh domstats` prints them, as monitoring has them: one reading of all VMs.
//!
//! `Domain: 'name'`, and below it `vcpu.0.halt_exits.sum=1173865` and so on for each vCPU. A text has no time of its
//! own.

use super::{Counters, Delta, VmId};
use std::collections::BTreeMap;

/// Counters by the name of the domain and the number of the vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domstats(BTreeMap<String, BTreeMap<u32, Counters>>);

/// What was counted between two readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    pub delta: Delta,
    /// The names of the domains.
    pub names: BTreeMap<VmId, String>,
    /// The vCPUs that are left out.
    pub notes: Vec<String>,
}

/// Why a text is no reading of these counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomstatsError {
    /// A line cannot be read; lines are numbered from 1.
    #[error("line {line}: `vcpu.N.COUNTER.sum=` is not followed by a number")]
    Number { line: usize },
    /// A counter of the same vCPU once more.
    #[error(
        "line {line} has a counter of vCPU {vcpu} for the second time: these are several domains without their names \
         (`Domain: 'NAME'`), or several readings; give each reading whole, in a file of its own"
    )]
    Twice { line: usize, vcpu: u32 },
    /// There are no counters of halts.
    #[error(
        "no domain with counters of halts (`vcpu.N.halt_exits.sum`); `virsh domstats --vcpu` prints them with Linux 5.14 \
         and libvirt 8.10 or later; files of QMP, debugfs and kvm_stat are not compared: on the host `dwell bound` reads \
         these counters itself"
    )]
    NoCounters,
    /// Counters of each domain, of which this is one, decrease from one text to the other.
    #[error(
        "the counters of {domain} decrease: are the files in this order, or was it started anew in between?"
    )]
    Decrease { domain: String },
    /// A text has fewer counters than the other one.
    #[error(
        "the {reading} reading lacks counters of vCPU {vcpu} of {domain} that the other has: is it cut off?"
    )]
    Lacks { reading: &'static str, domain: String, vcpu: u32 },
    /// More was counted than the time allows.
    #[error(
        "vCPU {vcpu} of {domain} polled for {polled_ns} ns of {span_ns} ns: the readings are further apart; give the time \
         between them with --between"
    )]
    TooShort { domain: String, vcpu: u32, polled_ns: u64, span_ns: u64 },
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
            // A mail, or a tool that writes the time, may have put something in front.
            if let Some((_, name)) = line.split_once("Domain:") {
                domain = name.trim().trim_matches('\'');
            }
            let counter = line.split_once("vcpu.").and_then(|(_, rest)| {
                let (vcpu, rest) = rest.split_once('.')?;
                let (name, value) = rest.split_once(".sum=")?;
                Some((vcpu.parse().ok()?, name, value))
            });
            let Some((vcpu, name, value)) = counter else { continue };
            let value = value.parse().map_err(|_| DomstatsError::Number { line: number + 1 })?;
            if vcpus.entry((domain, vcpu)).or_default().insert(name, value).is_some() {
                return Err(DomstatsError::Twice { line: number + 1, vcpu });
            }
        }
        let mut domains: BTreeMap<String, BTreeMap<u32, Counters>> = BTreeMap::new();
        for ((domain, vcpu), numbers) in vcpus {
            let counters = Counters::gather(|name| numbers.get(name).copied(), |_| None);
            if counters != Counters::default() {
                domains.entry(domain.to_owned()).or_default().insert(vcpu, counters);
            }
        }
        if domains.is_empty() { Err(DomstatsError::NoCounters) } else { Ok(Domstats(domains)) }
    }

    /// What was counted since `earlier`, `span_ns` before, of the domains in both. Those that were started anew are among
    /// the ended ones.
    ///
    /// # Errors
    /// [`DomstatsError::Decrease`] where that is so of all of them, [`DomstatsError::TooShort`] where a vCPU polled longer
    /// than `span_ns`.
    pub fn since(&self, earlier: &Domstats, span_ns: u64) -> Result<Counted, DomstatsError> {
        let both = self.0.iter().filter_map(|(name, now)| Some((name, now, earlier.0.get(name)?)));
        let is_anew = |now: &BTreeMap<u32, Counters>, before: &BTreeMap<u32, Counters>| {
            now.iter().any(|(vcpu, now)| before.get(vcpu).is_some_and(|before| now.is_less_than(before)))
        };
        let (anew, both): (Vec<_>, Vec<_>) = both.partition(|(_, now, before)| is_anew(now, before));
        if let (Some((domain, ..)), true) = (anew.first(), both.is_empty()) {
            return Err(DomstatsError::Decrease { domain: (*domain).clone() });
        }
        let (mut vms, mut names, mut notes) = (BTreeMap::new(), BTreeMap::new(), vec![]);
        for ((name, now, before), number) in both.into_iter().zip(1..) {
            if now == before {
                notes.push(format!(
                    "the counters of {name} are the same in both readings: was one reading given twice, or the domain paused?"
                ));
            }
            // A domain has no process here.
            let id = VmId { pid: 0, fd: number };
            let counted = of_domain(name, now, before, span_ns, &mut notes)?;
            vms.extend(Counters::sum(counted).map(|sum| (id, sum)));
            names.insert(id, name.clone());
        }
        let ended = earlier.0.keys().filter(|name| !self.0.contains_key(*name)).count() + anew.len();
        Ok(Counted { delta: Delta { span_ns, vms, ended }, names, notes })
    }
}

/// What was counted of each vCPU of a domain; notes of those that are left out.
fn of_domain(
    domain: &str,
    now: &BTreeMap<u32, Counters>,
    before: &BTreeMap<u32, Counters>,
    span_ns: u64,
    notes: &mut Vec<String>,
) -> Result<Vec<Counters>, DomstatsError> {
    let time =
        |counted: &[Option<u64>]| counted.iter().flatten().fold(0, |sum: u64, ns| sum.saturating_add(*ns));
    let mut all = vec![];
    for (&vcpu, now) in now {
        if let Some(before) = before.get(&vcpu) {
            for (reading, own, other) in [("second", now, before), ("first", before, now)] {
                if own.lacks_some_of(other) {
                    return Err(DomstatsError::Lacks { reading, domain: domain.to_owned(), vcpu });
                }
            }
        }
        let counted =
            before.get(&vcpu).map_or_else(|| now.clone(), |before| now.clone().since(before.clone()));
        let polled_ns = time(&[counted.halt_poll_success_ns, counted.halt_poll_fail_ns]);
        let polls = counted.halt_successful_poll.zip(counted.halt_attempted_poll);
        let is_older =
            !before.contains_key(&vcpu) && time(&[Some(polled_ns), counted.halt_wait_ns]) > span_ns;
        let why = if is_older {
            Some("is in the second reading only and has counted for longer than the time between them")
        } else {
            // The counters of one reading are not all read at one instant.
            let contradicts = polls.is_some_and(|(won, all)| won > all.saturating_add(1));
            contradicts.then_some("has more successful polls than polls")
        };
        if let Some(why) = why {
            notes.push(format!("vCPU {vcpu} of {domain} {why}: it is left out"));
            continue;
        }
        if polled_ns > span_ns {
            return Err(DomstatsError::TooShort { domain: domain.to_owned(), vcpu, polled_ns, span_ns });
        }
        all.push(counted);
    }
    notes.extend(before.keys().filter(|vcpu| !now.contains_key(vcpu)).map(|vcpu| {
        format!("vCPU {vcpu} of {domain} is in the first reading only (it was unplugged, or the second is cut off) and is left out")
    }));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::super::Bound;
    use super::*;
    use dwell_policy::Nanos;

    const T0: &str = include_str!("../../../trace/tests/it/import/field/11-domstats-t0.txt");
    const T60: &str = include_str!("../../../trace/tests/it/import/field/11-domstats-t60.txt");

    #[test]
    fn lines_of_several_domains_without_their_names_are_refused() {
        let without: String =
            T0.lines().filter(|line| line.contains("halt_")).map(|line| line.to_owned() + "\n").collect();
        assert_eq!(Domstats::parse(&without).unwrap().0.len(), 1);
        let two = Domstats::parse(&(without.clone() + &without)).unwrap_err();
        assert_eq!(two, DomstatsError::Twice { line: 1 + without.lines().count(), vcpu: 0 });
        let pasted: String = T0.lines().map(|line| format!("> {line}\n")).collect();
        assert_eq!(Domstats::parse(&pasted), Domstats::parse(T0));
    }

    #[test]
    fn two_readings_of_a_windows_guest() {
        let [first, second] = [T0, T60].map(|text| Domstats::parse(text).unwrap());
        let Counted { delta, names, notes } = second.since(&first, 60_000_000_000).unwrap();
        assert_eq!(notes, [""; 0]);
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
        let same = first.since(&first, 60_000_000_000).unwrap();
        assert!(same.notes[0].starts_with("the counters of win11 are the same in both"), "{:?}", same.notes);
        let cut = T60.split_once("vcpu.0.halt_poll_fail_ns").unwrap().0;
        let (cut, lacks) = (Domstats::parse(cut).unwrap(), |reading| DomstatsError::Lacks {
            reading,
            domain: "win11".to_owned(),
            vcpu: 0,
        });
        assert_eq!(cut.since(&first, 60_000_000_000), Err(lacks("second")));
        assert_eq!(second.since(&cut, 60_000_000_000), Err(lacks("first")));
        // A vCPU cannot poll for 2.25 s in 1 s.
        let error = second.since(&first, 1_000_000_000).unwrap_err();
        assert!(matches!(error, DomstatsError::TooShort { span_ns: 1_000_000_000, .. }), "{error}");
    }

    #[test]
    fn vcpus_that_come_and_go() {
        let text = |vcpus: &[(u32, u64)]| {
            let counters = |(vcpu, ns): &(u32, u64)| {
                format!(
                    "vcpu.{vcpu}.halt_exits.sum=9\nvcpu.{vcpu}.halt_poll_fail_ns.sum={ns}\nvcpu.{vcpu}.halt_wait_ns.sum={ns}\n"
                )
            };
            let counters: String = vcpus.iter().map(counters).collect();
            Domstats::parse(&format!("Domain: 'a'\n{counters}")).unwrap()
        };
        let polled = |counted: &Counted| counted.delta.vms.values().next().unwrap().halt_poll_fail_ns;
        let [one, both] = [text(&[(0, 500)]), text(&[(0, 510), (1, 400)])];
        // Counted since it was plugged in, or since the domain was started.
        let new = both.since(&one, 1_000).unwrap();
        assert_eq!((polled(&new), new.notes.len()), (Some(410), 0));
        let again = both.since(&one, 700).unwrap();
        assert_eq!(polled(&again), Some(10));
        assert!(again.notes[0].starts_with("vCPU 1 of a is in the second reading only"), "{:?}", again.notes);
        let unplugged = text(&[(0, 520)]).since(&both, 1_000).unwrap();
        assert_eq!(polled(&unplugged), Some(10));
        assert!(unplugged.notes[0].contains("it was unplugged"), "{:?}", unplugged.notes);
    }

    #[test]
    fn more_successful_polls_than_polls_are_not_counted() {
        let text = |won: u64| {
            let text = format!("vcpu.0.halt_attempted_poll.sum=10\nvcpu.0.halt_successful_poll.sum={won}\n");
            Domstats::parse(&format!("Domain: 'a'\n{text}")).unwrap()
        };
        // One may have been counted between the two readings of a text.
        assert_eq!(text(11).since(&text(10), 1_000).unwrap().notes, [""; 0]);
        let none = text(12).since(&text(10), 1_000).unwrap();
        assert_eq!(none.delta.vms.len(), 0);
        assert_eq!(none.notes, ["vCPU 0 of a has more successful polls than polls: it is left out"]);
    }

    #[test]
    fn a_domain_that_was_started_anew_has_ended() {
        let text = |a: u32, b: u32| {
            format!("Domain: 'a'\nvcpu.0.halt_exits.sum={a}\nDomain: 'b'\nvcpu.0.halt_exits.sum={b}\n")
        };
        let [first, second] = [text(10, 10), text(3, 15)].map(|text| Domstats::parse(&text).unwrap());
        let Counted { delta, names, .. } = second.since(&first, 1).unwrap();
        assert_eq!((delta.ended, names.into_values().collect::<Vec<_>>()), (1, vec!["b".to_owned()]));
    }

    #[test]
    fn what_is_no_reading_is_refused() {
        assert_eq!(Domstats::parse(""), Err(DomstatsError::NoCounters));
        let of_debugfs =
            Domstats::parse("/sys/kernel/debug/kvm/7-9/vcpu0/halt_attempted_poll:5\n").unwrap_err();
        assert!(of_debugfs.to_string().contains("on the host `dwell bound` reads these counters itself"));
        assert_eq!(Domstats::parse("Domain: 'a'\n  vcpu.0.time=5\n"), Err(DomstatsError::NoCounters));
        assert_eq!(Domstats::parse("vcpu.0.halt_exits.sum=x\n"), Err(DomstatsError::Number { line: 1 }));
    }
}
