//! How often CPUs polled and halted, and for how long they polled, as the kernel counts it.

use super::observe::CPUS;
use dwell_capture::now_ns;
use dwell_machine::{CpuidleCounters, IdleCounts, Kept, Writable};
use dwell_policy::Layer;
use dwell_replay::Counts;
use std::collections::BTreeMap;

/// A line for each CPU, after one with the names.
pub(super) const DWELL_IDLE: &str = "/sys/kernel/debug/dwell_idle/cpus";

/// The counters of each CPU.
pub(super) type Cpus = BTreeMap<u32, Read>;

/// The counters of a CPU, and when they were read by the clock of events: to read those of all CPUs takes time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) cpu: IdleCounts,
    pub(super) at_ns: u64,
}

/// As counts of so many episodes.
pub(super) fn counts(cpu: IdleCounts, episodes: u64) -> Counts {
    Counts {
        episodes,
        polls: cpu.polls,
        polls_succeeded: episodes.saturating_sub(cpu.halts),
        polled_ns: cpu.polled_ns.into(),
        halts: cpu.halts,
        exits: cpu.halts,
        ..Counts::default()
    }
}

/// What was counted of a CPU from one time to another \[ns\].
#[derive(Clone, Copy, Debug)]
pub(super) struct Between {
    pub(super) cpu: IdleCounts,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

impl Between {
    pub(super) fn ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns).max(1)
    }
}

/// What was counted of each CPU since, without CPUs that were counted to idle more often than there were nanoseconds: their
/// counters have been set, or torn.
pub(super) fn since(now: &Cpus, before: &Cpus) -> BTreeMap<u32, Between> {
    let of = |(cpu, now): (&u32, &Read)| {
        let before = before.get(cpu)?;
        let counted = now.cpu.since(before.cpu);
        let between = Between { cpu: counted, from_ns: before.at_ns, to_ns: now.at_ns };
        let can_be = counted.polls.saturating_add(counted.halts) <= between.ns();
        can_be.then_some((*cpu, between))
    };
    now.iter().filter_map(of).collect()
}

/// The counters that show what the idling of CPUs did.
pub(super) enum IdleCounters {
    /// Those of the states of cpuidle, under haltpoll's driver.
    Cpuidle(CpuidleCounters),
    /// Those of dwell_idle, whose one state polls and halts.
    DwellIdle(Kept),
}

impl IdleCounters {
    /// Those of the rule of a layer, of all CPUs of a machine.
    pub(super) fn of(machine: &dyn Writable, layer: Layer) -> IdleCounters {
        if layer == Layer::Driver {
            return IdleCounters::DwellIdle(Kept::open(machine.path(DWELL_IDLE)));
        }
        let cpus = machine.numbered(CPUS, "cpu");
        IdleCounters::Cpuidle(CpuidleCounters::open(cpus, |path| machine.path(path)))
    }

    pub(super) fn read(&self) -> Cpus {
        let cpus = match self {
            IdleCounters::DwellIdle(file) => return dwell_idle(&file.read().unwrap_or_default(), now_ns()),
            IdleCounters::Cpuidle(cpus) => cpus,
        };
        cpus.read().map(|(cpu, counts)| (cpu, Read { cpu: counts, at_ns: now_ns() })).collect()
    }
}

fn dwell_idle(text: &str, at_ns: u64) -> Cpus {
    let mut lines = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let names = lines.next().unwrap_or_default();
    let of = |line: Vec<&str>| {
        let number = |name: &str| line.get(names.iter().position(|one| *one == name)?)?.parse::<u64>().ok();
        let sum = |a: &str, b: &str| number(a)?.checked_add(number(b)?);
        let cpu = IdleCounts {
            polls: sum("polls_successful", "polls_failed")?,
            polled_ns: sum("poll_success_ns", "poll_fail_ns")?,
            halts: number("halts")?,
        };
        Some((u32::try_from(number("cpu")?).ok()?, Read { cpu, at_ns }))
    };
    lines.filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_machine::Sysroot;

    #[test]
    fn counters_of_cpuidle_are_those_of_each_cpu() {
        let root = tempfile::tempdir().unwrap();
        let write = |cpu: u32, state: u32, usage: u64, time: u64| {
            let state = root.path().join(format!("sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state}"));
            std::fs::create_dir_all(&state).unwrap();
            std::fs::write(state.join("usage"), format!("{usage}\n")).unwrap();
            std::fs::write(state.join("time"), format!("{time}\n")).unwrap();
        };
        (0..2).for_each(|cpu| (0..2).for_each(|state| write(cpu, state, 10, 100)));
        let counters = IdleCounters::of(&Sysroot::at(root.path()), Layer::Guest);
        let before = counters.read();
        assert_eq!(before.keys().collect::<Vec<_>>(), [&0, &1]);
        let each = IdleCounts { polls: 10, polled_ns: 100_000, halts: 10 };
        assert!(before.values().all(|read| read.cpu == each), "{before:?}");
        write(1, 0, 15, 190);
        write(1, 1, 13, 5_000);
        let since = since(&counters.read(), &before);
        assert_eq!(since[&0].cpu, IdleCounts::default());
        let counts = counts(since[&1].cpu, 6);
        assert_eq!((counts.polls, counts.polls_succeeded, counts.halts, counts.polled_ns), (5, 3, 3, 90_000));
    }

    #[test]
    fn counters_of_dwell_idle_are_those_of_each_cpu() {
        let head =
            "cpu window_ns episodes polls_successful polls_failed halts poll_success_ns poll_fail_ns\n";
        let all = dwell_idle(&format!("{head}0 5 30 10 2 20 4000 50\n1 0 0 0 0 0 0 0\n2 torn"), 7);
        assert_eq!((all.len(), all[&1].at_ns), (2, 7));
        assert_eq!(all[&0].cpu, IdleCounts { polls: 12, polled_ns: 4_050, halts: 20 });
        assert!(dwell_idle("", 7).is_empty() && dwell_idle("0 5 30 10 2 20 4000 50\n", 7).is_empty());
        // Longer than what is read at first.
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(DWELL_IDLE.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let lines: String = (0..100).map(|cpu| format!("{cpu} 5 30 10 2 20 4000 50\n")).collect();
        std::fs::write(path, format!("{head}{lines}")).unwrap();
        assert_eq!(IdleCounters::of(&Sysroot::at(root.path()), Layer::Driver).read().len(), 100);
    }

    #[test]
    fn counters_that_cannot_be_are_left_out() {
        let read = |halts: u64, at_ns: u64| Read { cpu: IdleCounts { polls: 1, polled_ns: 0, halts }, at_ns };
        let cpus =
            |halts: [u64; 3], at_ns: u64| -> Cpus { (0..).zip(halts.map(|h| read(h, at_ns))).collect() };
        let found = since(&cpus([50, u64::MAX, u64::MAX], 1_100), &cpus([7, 0, u64::MAX], 100));
        assert_eq!(found.keys().collect::<Vec<_>>(), [&0, &2]);
        assert_eq!((found[&0].cpu.halts, found[&0].ns()), (43, 1_000));
        // What is left can be summed.
        let sum: Counts = found.values().map(|between| counts(between.cpu, 0)).sum();
        assert_eq!(sum.halts, 43);
    }
}
