//! CPU time of other programs, as [`dwell_machine::load`] reads it, for experiments that keep to some cores, or that start
//! programs.
//!
//! An experiment that keeps to some cores asks for these only: on a host with many cores some process is always
//! busy. They are in `cpuacct.usage_percpu` of cgroup v1, and in `/proc/stat`; cgroup v2 has no such file.

use super::pin::Cpu;
use dwell_machine::load::{Counters, Load, LoadError, MachineCounters, Reading, Stat, TICKS_ERROR};
use dwell_machine::process::stat_field;
use dwell_machine::threads::process_cpu_time;
use dwell_policy::Nanos;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fs;
use std::path::{Path, PathBuf};

/// CPU time of other programs, block by block: the environment of an experiment's campaign.
pub type ExperimentLoad = Load<ExperimentCounters>;

/// What an experiment's load is read from.
#[derive(Debug)]
pub struct ExperimentCounters {
    machine: MachineCounters,
    cores: Option<CoresTime>,
    /// Whether those that this process has started, and that they have, belong to the experiment.
    with_descendants: bool,
}

/// The load of the CPUs of an experiment. All its threads must be on these.
///
/// # Errors
/// If not even `/proc/stat` can be read.
pub fn load_on(cpus: impl IntoIterator<Item = Cpu>) -> Result<ExperimentLoad, LoadError> {
    let machine = MachineCounters::open()?;
    let cores = CoresTime::open(Path::new("/"), machine.cpuacct(), cpus.into_iter().collect());
    let counters = ExperimentCounters { machine, cores: Some(cores), with_descendants: false };
    counters.read()?;
    Ok(Load::of(counters))
}

/// The load of the whole machine, where all processes that this one starts belong to the experiment, and
/// those that they start. Such that have ended are known to some hundredths of a second.
///
/// # Errors
/// As [`load_on`].
pub fn load_of_programs() -> Result<ExperimentLoad, LoadError> {
    Ok(Load::of(with_descendants()?))
}

fn with_descendants() -> Result<ExperimentCounters, LoadError> {
    Ok(ExperimentCounters { machine: MachineCounters::open()?, cores: None, with_descendants: true })
}

impl Counters for ExperimentCounters {
    fn read(&self) -> Result<Reading, LoadError> {
        let mut reading = self.machine.read()?;
        if self.with_descendants {
            let per_second = rustix::param::clock_ticks_per_second();
            reading.own = descendants(Path::new("/proc"), per_second).into_iter().fold(reading.own, add);
        }
        if let Some(cores) = &self.cores {
            (reading.all, reading.steal) = cores.all_and_steal()?;
        }
        Ok(reading)
    }

    fn error(&self) -> Nanos {
        self.cores.as_ref().map_or_else(|| self.machine.error(), CoresTime::error)
    }

    fn source(&self) -> String {
        self.cores.as_ref().map_or_else(|| self.machine.source(), CoresTime::source)
    }
}

/// CPU time of all programs on some CPUs.
#[derive(Debug)]
struct CoresTime {
    /// `cpuacct.usage_percpu` of the root of cgroup v1; none: `/proc/stat`.
    exact: Option<PathBuf>,
    stat: PathBuf,
    cpus: Vec<Cpu>,
    hundredths_per_second: u64,
}

impl CoresTime {
    fn open(root: &Path, cpuacct: Option<&Path>, mut cpus: Vec<Cpu>) -> CoresTime {
        cpus.sort_unstable();
        cpus.dedup();
        let exact = cpuacct.map(|usage| usage.with_file_name("cpuacct.usage_percpu"));
        let is_readable =
            |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| sum_of(&text, &cpus).is_some());
        CoresTime {
            exact: exact.filter(is_readable),
            stat: root.join("proc/stat"),
            cpus,
            hundredths_per_second: rustix::param::clock_ticks_per_second(),
        }
    }

    fn error(&self) -> Nanos {
        if self.exact.is_some() { Nanos::ZERO } else { TICKS_ERROR }
    }

    fn source(&self) -> String {
        match &self.exact {
            Some(path) => format!("{}, exact", path.display()),
            None => format!("{}, sampled at ticks", self.stat.display()),
        }
    }

    /// CPU time of all since boot, and steal.
    fn all_and_steal(&self) -> Result<(Nanos, Nanos), LoadError> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
        };
        let form = |path: &Path, what| LoadError::Form { path: path.to_owned(), what };
        let text = read(&self.stat)?;
        let (busy, steal) = busy_and_steal(&text, &self.cpus, self.hundredths_per_second)
            .ok_or_else(|| form(&self.stat, "line of each CPU that is used"))?;
        let Some(path) = &self.exact else { return Ok((busy, steal)) };
        let all = sum_of(&read(path)?, &self.cpus)
            .ok_or_else(|| form(path, "number of nanoseconds of each CPU that is used"))?;
        Ok((all, steal))
    }
}

fn add(a: Nanos, b: Nanos) -> Nanos {
    Nanos(a.get().saturating_add(b.get()))
}

/// The sum of the lines of some CPUs in `/proc/stat`.
fn busy_and_steal(text: &str, cpus: &[Cpu], per_second: u64) -> Option<(Nanos, Nanos)> {
    cpus.iter().try_fold((Nanos::ZERO, Nanos::ZERO), |(busy, steal), cpu| {
        let line = Stat::of(text, &format!("cpu{}", cpu.0), per_second)?;
        Some((add(busy, line.busy), add(steal, line.steal)))
    })
}

/// The sum of the numbers of some CPUs, of which there is one after another.
fn sum_of(text: &str, cpus: &[Cpu]) -> Option<Nanos> {
    let of_each: Vec<u64> = text.split_ascii_whitespace().map(|ns| ns.parse().ok()).collect::<Option<_>>()?;
    cpus.iter().try_fold(Nanos::ZERO, |sum, cpu| Some(add(sum, Nanos(*of_each.get(cpu.0 as usize)?))))
}

/// A process, as its `stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    parent: u32,
    /// CPU time of it, and of those of its children that have ended, and of theirs.
    of_itself: Nanos,
    of_ended: Nanos,
}

/// The parent is field 4 of its `stat`. User and system time are fields 14 and 15, those of children that have ended
/// 16 and 17.
fn process(stat: &str, per_second: u64) -> Option<Process> {
    let pid = stat.split_once(' ')?.0.parse().ok()?;
    let parent = u32::try_from(stat_field(stat, 4)?).ok()?;
    let time = |user: usize| {
        let ticks = stat_field(stat, user)?.saturating_add(stat_field(stat, user + 1)?);
        Some(Nanos(ticks.saturating_mul(1_000_000_000 / per_second.max(1))))
    };
    Some(Process { pid, parent, of_itself: time(14)?, of_ended: time(16)? })
}

/// How often processes are listed again, if meanwhile one has begun or ended, before the last list is taken.
const LISTS: usize = 8;

/// CPU time of all that this process has started, and of those that they have started, also of such that have
/// ended and were waited for. One that ends while they are listed would be missed, or counted twice.
fn descendants(proc: &Path, per_second: u64) -> Vec<Nanos> {
    let mut found = listed(proc, per_second);
    for _ in 1..LISTS {
        let before = std::mem::replace(&mut found, listed(proc, per_second));
        if before.0 == found.0 {
            break;
        }
    }
    found.1
}

/// Who has descended from this process, and what CPU time they and those that have ended have used.
fn listed(proc: &Path, per_second: u64) -> (Vec<u32>, Vec<Nanos>) {
    let files = fs::read_dir(proc).into_iter().flatten().flatten().map(|entry| entry.path().join("stat"));
    let processes: Vec<Process> =
        files.filter_map(|file| process(&fs::read_to_string(file).ok()?, per_second)).collect();
    let (mut pids, mut times) = (vec![std::process::id()], vec![ended_children()]);
    let mut next = 0;
    while let Some(&parent) = pids.get(next) {
        for child in processes.iter().filter(|one| one.parent == parent) {
            times.push(process_cpu_time(child.pid).unwrap_or(child.of_itself));
            times.push(child.of_ended);
            pids.push(child.pid);
        }
        next += 1;
    }
    (pids, times)
}

/// Of this process's own children; not from its `stat`, which has hundredths of a second, and under qemu-user
/// zeros.
fn ended_children() -> Nanos {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return Nanos::ZERO };
    let us =
        [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds().max(0).unsigned_abs());
    Nanos::from_micros(us[0].saturating_add(us[1]))
}

#[cfg(test)]
mod tests;
