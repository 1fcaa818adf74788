//! What removes the lines of the bill of this machine's own CPUs.

use super::live_cpus::CpusBill;
use super::removal::{Removal, per_s, share, sum, worth};
use super::slices::Sliced;
use super::{Bill, Cause, Line};
use dwell_machine::Machine;
use dwell_machine::process::Naming;
use dwell_policy::Nanos;
use std::collections::BTreeSet;

/// The tick, by its function before and since Linux 6.10.
const TICK: [&str; 2] = ["tick_sched_timer", "tick_nohz_handler"];
/// Ticks a second of CPUs that idle from which the tick is worth a look.
const TICKS_PER_S: u64 = 20;

/// Timers and works of the kernel that a setting removes: function, setting, what that costs.
const KNOWN: [(&str, &str, &str); 7] = [
    (
        "clocksource_watchdog",
        "tsc=reliable on the kernel's command line",
        "an unstable TSC is not noticed; for machines whose TSC is known to be good",
    ),
    ("watchdog_timer_fn", "sysctl kernel.watchdog=0", "lockups of CPUs are not reported"),
    ("vmstat_update", "sysctl vm.stat_interval=60", "counters of memory are up to a minute old"),
    ("vmstat_shepherd", "sysctl vm.stat_interval=60", "counters of memory are up to a minute old"),
    ("psi_avgs_work", "psi=0 on the kernel's command line", "no /proc/pressure"),
    (
        "wb_workfn",
        "sysctl vm.dirty_writeback_centisecs=6000",
        "a crash loses up to a minute more of what was written",
    ),
    (
        "mce_timer_fn",
        "mce=ignore_ce on the kernel's command line",
        "corrected errors of memory are not polled for",
    ),
];

/// What removes CPU time of this machine, and of its host if it is a guest: there a wakeup costs `halt_cost`.
pub fn removals_of_cpus(bill: &CpusBill, machine: &dyn Machine, halt_cost: Option<Nanos>) -> Vec<Removal> {
    let lines = &bill.bill.lines;
    let wakeups = |bill: &Bill, is: &dyn Fn(&Line) -> bool| -> u64 {
        bill.lines.iter().filter(|line| is(line)).map(|line| line.wakeups).sum()
    };
    let sliced = Sliced { whole: &bill.bill, slices: &bill.slices, of_cpu: false, beside: None };
    let removal = |what: String, how: String, costs: String, is: &dyn Fn(&Line) -> bool, moved: bool| {
        let saves_ns = |bill: &Bill| {
            let idle_ns = sum(bill, |line| line.cause == Cause::IdleTask).0;
            let own_ns = if moved { 0 } else { sum(bill, is).0 };
            own_ns + share(idle_ns, wakeups(bill, is), wakeups(bill, &|_| true))
        };
        let host = halt_cost.map(|cost| cost.get().saturating_mul(wakeups(&bill.bill, is)));
        Removal { what, how, saves_on_host_ns: host, costs, ..sliced.saves(saves_ns) }
    };
    let names: BTreeSet<&str> = lines.iter().filter_map(of_own_timer).collect();
    let is_of_kernel = |name: &str| {
        let line = bill.tasks.get(name).map(|tid| machine.read(&format!("/proc/{tid}/cmdline")));
        line.is_some_and(|line| line.is_ok_and(|line| line.is_empty()))
    };
    let of_task = |name: &str| {
        let is = |line: &Line| of_own_timer(line) == Some(name);
        let (_, runs) = sum(&bill.bill, |line| matches!(line.cause, Cause::Task { .. }) && is(line));
        let unit = bill.tasks.get(name).and_then(|tid| unit(machine, *tid));
        let whose = unit.as_ref().map_or_else(String::new, |unit| format!(" of {unit}"));
        removal(
            format!("timers of task {name}{whose}: {} runs a second", per_s(runs, bill.seen.span_ns)),
            match unit {
                Some(unit) => format!("longer periods in its settings, or systemctl stop {unit}"),
                None if is_of_kernel(name) => "it is a thread of the kernel: what it serves".to_owned(),
                None => "longer periods in its settings, or end it".to_owned(),
            },
            "what it does comes later, or not at all".to_owned(),
            &is,
            false,
        )
    };
    let of_function = |(function, how, costs): (&str, &str, &str)| {
        let is = |line: &Line| match &line.cause {
            Cause::Timer { function: of, wakes: None } | Cause::Work { function: of } => of == function,
            _ => false,
        };
        removal(format!("{function}, of the kernel"), how.to_owned(), costs.to_owned(), &is, false)
    };
    let tick = || {
        let is = |line: &Line| matches!(&line.cause, Cause::Timer { function, .. } if TICK.contains(&function.as_str()));
        let ticks = wakeups(&bill.bill, &is);
        let kernel = machine.text("/proc/cmdline").unwrap_or_default();
        let off = kernel.split_ascii_whitespace().find(|word| ["nohz=off", "highres=off"].contains(word))?;
        let per_s = per_s(ticks, bill.seen.span_ns);
        (per_s >= TICKS_PER_S).then(|| {
            removal(
                format!("tick of CPUs that idle: {per_s} wakeups a second"),
                format!("take {off} off the kernel's command line"),
                "a restart of this machine".to_owned(),
                &is,
                false,
            )
        })
    };
    let of_line = |line: &Line| match &line.cause {
        Cause::Interrupt { name } => {
            let number: u32 = name.strip_prefix("interrupt ")?.split(' ').next()?.parse().ok()?;
            let is = |one: &Line| one.cause == line.cause;
            Some(removal(
                format!("wakeups of idle CPUs by {name}"),
                format!(
                    "a CPU that is busy anyway in /proc/irq/{number}/smp_affinity_list, or fewer interrupts by its driver (ethtool -C)"
                ),
                "that CPU is interrupted instead".to_owned(),
                &is,
                true,
            ))
        }
        _ => None,
    };
    let polls = || {
        let is = |line: &Line| line.cause == Cause::FailedPoll;
        let what =
            "failed polls of idle CPUs, which /proc/stat counts as idle and the host as busy".to_owned();
        let how =
            "a plan for this load: dwell record guest, then dwell tune; or guest_halt_poll_ns=0 of haltpoll";
        let removal = removal(
            what,
            how.to_owned(),
            "wakeups that polls now wait for come later".to_owned(),
            &is,
            false,
        );
        let failed = removal.saves_ns;
        Removal { saves_on_host_ns: halt_cost.map(|_| failed), ..removal }
    };
    let mut all: Vec<Removal> = names.into_iter().map(of_task).collect();
    all.extend(KNOWN.map(of_function));
    all.extend(lines.iter().filter_map(of_line));
    all.extend(tick());
    all.push(polls());
    worth(all, bill.seen.span_ns)
}

/// The task that this is of, if a timer of its own is what for; not this program.
fn of_own_timer(line: &Line) -> Option<&str> {
    let name = match &line.cause {
        Cause::Timer { wakes: Some(name), .. } => Some(name),
        Cause::Task { woken_by: Some(by) } if by.starts_with("timer ") => line.thread.as_ref(),
        _ => None,
    };
    name.map(String::as_str).filter(|name| *name != "dwell")
}

/// The unit of systemd that a task is in.
fn unit(machine: &dyn Machine, tid: i32) -> Option<String> {
    let groups = Naming::of(machine, u32::try_from(tid).ok()?).cgroups;
    let units = groups.iter().flat_map(|path| path.rsplit('/'));
    units.into_iter().find(|part| part.ends_with(".service")).map(str::to_owned)
}
