//! The bill of this machine's own CPUs.

use super::live::Round;
use super::{Bill, Cpus, NameOf, Numbers, Report};
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
    /// The bill of each slice of the time, for intervals.
    pub slices: Vec<Bill>,
    /// What /proc/stat counts as not idle, steal included \[ns of CPU\]; `None`: it cannot be read.
    pub busy_ns: Option<u64>,
    /// Of that, what the host gave to others.
    pub steal_ns: u64,
    /// What was watched, without the bills.
    pub seen: Report,
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
    let polling = machine.text("/sys/devices/system/cpu/cpu0/cpuidle/state0/name");
    let polling = polling.is_some_and(|name| name.trim() == "POLL").then_some(0);
    let mut names = ProcNames::new(system.clone());
    let name_of: NameOf = Box::new(move |tid| names.thread(Event::UNKNOWN_ID, tid));
    let mut round = Round::begin(opened, until.duration);
    let mut cpus = Cpus::new(polling, round.start_ns, name_of);
    // Where there are events they have the polls.
    let polling = polling.filter(|_| round.seen.untraced.is_some()).map(|_| cpu::online(machine));
    let counters = CpuidleCounters::open(polling.unwrap_or_default(), |path| path.into());
    let polled_ns = || counters.read().map(|(_, counts)| counts.polled_ns).sum::<u64>();
    let before = (Stat::of_all(machine), polled_ns());
    let mut each = |event: Option<&Event>| match event {
        Some(event) => cpus.observe(event),
        None => cpus.cut(),
    };
    round.read(until, &mut each);
    let (end, after) = (now_ns(), (Stat::of_all(machine), polled_ns()));
    round.end(end, &mut each);
    let wall_ns = round.seen.span_ns.saturating_mul(u64::try_from(cpu::online(machine).len()).unwrap_or(1));
    let both = before.0.zip(after.0);
    let since = |of: fn(&Stat) -> u64| both.map(|(before, after)| of(&after).saturating_sub(of(&before)));
    let busy_ns = since(|stat| stat.idle.get()).map(|idle| wall_ns.saturating_sub(idle));
    let numbers = Numbers { functions: functions(cpus.functions().collect()), lines: lines(machine) };
    let tasks = cpus.tasks().map(|(tid, name)| (name.to_owned(), tid)).collect();
    CpusBill {
        slices: cpus.slices(&numbers),
        bill: cpus.finish(end, busy_ns, after.1.saturating_sub(before.1), &numbers),
        busy_ns,
        steal_ns: since(|stat| stat.steal.get()).unwrap_or(0),
        seen: round.seen,
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

/// The names of functions, as /proc/kallsyms has them. The kernel puts every line together anew for who reads it, so that it
/// is read up to the last function that is wanted.
fn functions(mut wanted: BTreeSet<u64>) -> BTreeMap<u64, String> {
    let mut found = BTreeMap::new();
    if wanted.is_empty() {
        return found;
    }
    let Ok(file) = std::fs::File::open("/proc/kallsyms") else { return found };
    let (mut lines, mut line) = (BufReader::with_capacity(1 << 16, file), vec![]);
    while !wanted.is_empty() && lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
        if address(&line).is_some_and(|address| wanted.remove(&address)) {
            found.extend(symbol(&line));
        }
        line.clear();
    }
    found
}

/// Digits of an address, which a line begins with.
fn address(line: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(u64::from);
    line.get(..16)?.iter().try_fold(0, |address, byte| Some(address << 4 | digit(byte)?))
}

/// `ffffffff81000000 T name [module]`
fn symbol(line: &[u8]) -> Option<(u64, String)> {
    let name = std::str::from_utf8(line).ok()?.split_ascii_whitespace().nth(2)?;
    Some((address(line)?, name.to_owned()))
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
