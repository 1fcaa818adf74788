//! The bill of this machine's own CPUs.

use super::live::{Round, enable};
use super::{Bill, Cpus, NameOf, Numbers};
use dwell_capture::names::{ProcNames, pids_are_global};
use dwell_capture::probe::{Probe, Trace};
use dwell_capture::system::System;
use dwell_capture::tracefs::Tracefs;
use dwell_capture::{Until, now_ns};
use dwell_machine::load::Stat;
use dwell_machine::{CpuidleCounters, Machine, cpu};
use dwell_trace::event::{Event, TracepointKind};
use dwell_trace::pairing::Names;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::sync::Arc;

/// What the CPUs of this machine did.
#[derive(Debug)]
pub struct CpusBill {
    pub bill: Bill,
    /// What /proc/stat counts as not idle, steal included \[ns of CPU\]; `None`: it cannot be read.
    pub busy_ns: Option<u64>,
    /// Of that, what the host gave to others.
    pub steal_ns: u64,
    pub span_ns: u64,
    pub events: u64,
    pub lost: u64,
    /// Why nothing was traced, if it was not.
    pub untraced: Option<String>,
    /// Of each task, one number.
    pub tasks: BTreeMap<String, i32>,
}

const WANTED: [TracepointKind; 16] = [
    TracepointKind::CpuIdle,
    TracepointKind::Switch,
    TracepointKind::Waking,
    TracepointKind::TimerInterrupt,
    TracepointKind::RescheduleInterrupt,
    TracepointKind::CallInterrupt,
    TracepointKind::DeviceInterrupt,
    TracepointKind::TimerInterruptEnd,
    TracepointKind::RescheduleInterruptEnd,
    TracepointKind::CallInterruptEnd,
    TracepointKind::DeviceInterruptEnd,
    TracepointKind::Softirq,
    TracepointKind::SoftirqEnd,
    TracepointKind::HrtimerExpire,
    TracepointKind::TimerExpire,
    TracepointKind::WorkStart,
];

/// Watches the CPUs of this machine; `on_open` as of [`watch`](super::live::watch).
pub fn watch_cpus(system: &Arc<dyn System>, until: &Until<'_>, on_open: fn()) -> CpusBill {
    let machine: &dyn Machine = &**system;
    let opened = open(&**system);
    on_open();
    let untraced = opened.as_ref().err().cloned();
    let mut trace = opened.ok();
    let polling = machine.text("/sys/devices/system/cpu/cpu0/cpuidle/state0/name");
    let polling = polling.is_some_and(|name| name.trim() == "POLL").then_some(0);
    let mut names = ProcNames::new(system.clone());
    let name_of: NameOf = Box::new(move |tid| names.thread(Event::UNKNOWN_ID, tid));
    let untraced = enable(&mut trace).or(untraced);
    let start = now_ns();
    let mut cpus = Cpus::new(polling, start, name_of);
    // Where there are events they have the polls.
    let polling = polling.filter(|_| untraced.is_some()).map(|_| cpu::online(machine));
    let counters = CpuidleCounters::open(polling.unwrap_or_default(), |path| path.into());
    let polled_ns = || counters.read().map(|(_, counts)| counts.polled_ns).sum::<u64>();
    let before = (Stat::of_all(machine), polled_ns());
    let mut round = Round::new(start);
    round.read(&mut trace, until.duration, until, &mut |event| cpus.observe(event));
    let (end, after) = (now_ns(), (Stat::of_all(machine), polled_ns()));
    round.end(&mut trace, end, &mut |event| cpus.observe(event));
    let span_ns = end - start;
    let wall_ns = span_ns.saturating_mul(u64::try_from(cpu::online(machine).len()).unwrap_or(1));
    let both = before.0.zip(after.0);
    let since = |of: fn(&Stat) -> u64| both.map(|(before, after)| of(&after).saturating_sub(of(&before)));
    let busy_ns = since(|stat| stat.idle.get()).map(|idle| wall_ns.saturating_sub(idle));
    let numbers = Numbers { functions: functions(cpus.functions().collect()), lines: lines(machine) };
    let tasks = cpus.tasks().map(|(tid, name)| (name.to_owned(), tid)).collect();
    CpusBill {
        bill: cpus.finish(end, busy_ns, after.1.saturating_sub(before.1), &numbers),
        busy_ns,
        steal_ns: since(|stat| stat.steal.get()).unwrap_or(0),
        span_ns,
        events: round.events,
        lost: round.lost,
        untraced,
        tasks,
    }
}

/// Through BPF, which sees what interrupts idle tasks where perf does not; else through perf.
fn open(system: &dyn System) -> Result<Trace, String> {
    if !pids_are_global(system) {
        return Err("in a PID namespace the kernel does not know the tasks by their numbers here".to_owned());
    }
    let optional = |kind: &TracepointKind| Probe {
        required: matches!(kind, TracepointKind::CpuIdle | TracepointKind::Switch),
        ..Probe::of(*kind)
    };
    let probes: Vec<Probe> = WANTED.iter().map(optional).collect();
    Trace::open_bpf(system, &probes).or_else(|by_bpf| {
        let by_perf = |error: &dyn std::fmt::Display| format!("{error}; and through BPF: {by_bpf}");
        let tracefs = Tracefs::open(system).map_err(|error| by_perf(&error))?;
        Trace::open(system, &tracefs, &probes, None).map_err(|error| by_perf(&error))
    })
}

/// The names of functions, as /proc/kallsyms has them: the symbols of the kernel are in order of their addresses.
fn functions(mut wanted: BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    let Ok(file) = std::fs::File::open("/proc/kallsyms") else { return found };
    let mut lines = BufReader::with_capacity(1 << 16, file);
    let mut line = String::new();
    while !wanted.is_empty() && lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
        let mut words = line.split_ascii_whitespace();
        let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
        if let (Some(address), Some(name)) = (address.filter(|at| wanted.remove(at)), words.nth(1)) {
            found.insert(address, name.to_owned());
        }
        line.clear();
    }
    found
}

/// The names of interrupts: what is behind the controller and the number there.
fn lines(machine: &dyn Machine) -> BTreeMap<u32, String> {
    let text = machine.text("/proc/interrupts").unwrap_or_default();
    let of = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        let name = rest.split_ascii_whitespace().next_back()?;
        Some((number.trim().parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(of).collect()
}
