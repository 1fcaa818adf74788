//! CPU time of other programs while an experiment measures.
//!
//! *Others* are all but this process and those that belong to the experiment; kernel threads count as others,
//! also where they work for it. The CPU time of all is taken from the best source that there is:
//!
//! 1. `cpuacct.usage` of the root of cgroup v1: exact to the ns;
//! 2. `usage_usec` in `cpu.stat` of the root of cgroup v2: the kernel's own sum of what it samples at ticks,
//!    whatever the unit says;
//! 3. `/proc/stat`: the same, in hundredths of a second.
//!
//! Of the last two a block of half a second is known to some per cent of a CPU. A root that is only a
//! container's is not taken, for it does not see the others. CPU time that a hypervisor below gave to others,
//! *steal*, is from `/proc/stat`.
//!
//! An experiment that keeps to some cores asks for these only, of which the first is `cpuacct.usage_percpu`:
//! on a host with many cores some process is always busy. Cgroup v2 has no such file.

use crate::process::stat_field;
use crate::seam::Machine;
use crate::threads::{Cpu, process_cpu_time};
use dwell_policy::Nanos;
use dwell_stats::{Environment, ForeignLoad};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much a source that samples at ticks may be off: one tick of the slowest clock that Linux is built with
/// (100 Hz), on each of the two CPUs of an experiment.
const TICKS_ERROR: Nanos = Nanos(20_000_000);
/// The share of the time that a CPU was wanted, from which on its core counts as shared. Interrupts of a host take less of
/// cores that are a guest's own; a neighbour that always computes takes half. It is chosen, not measured.
pub const SHARED_CORE: f64 = 0.02;

/// How much steal may be off, counted in hundredths of a second.
const STEAL_ERROR: Nanos = Nanos(10_000_000);

/// Where the CPU time of all is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// Its `cpuacct.usage`, or `cpuacct.usage_percpu`, whose sum it is.
    CgroupV1(PathBuf),
    /// Its `cpu.stat`.
    CgroupV2(PathBuf),
    /// `/proc/stat`.
    Stat(PathBuf),
}

/// Why the load of other programs is not known.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A file is not of the form that is known.
    #[error("cannot read {path}: it has no {what}")]
    Form { path: PathBuf, what: &'static str },
    /// A process of the experiment is gone.
    #[error("cannot read the CPU time of process {pid}")]
    Process {
        pid: u32,
        /// The error of the system.
        source: io::Error,
    },
}

/// The CPU time of other programs, block by block: the [`Environment`] of a campaign on a real machine.
#[derive(Debug)]
pub struct Load {
    source: Source,
    stat: PathBuf,
    /// The CPUs that matter, in ascending order; none: all.
    cpus: Vec<Cpu>,
    hundredths_per_second: u64,
    own: Vec<u32>,
    /// Whether those that this process has started, and that they have, belong to the experiment.
    with_descendants: bool,
    start: Instant,
    begun: Option<Reading>,
}

/// All counters at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    at: Instant,
    all: Nanos,
    own: Nanos,
    steal: Nanos,
}

impl Load {
    /// The load of the whole machine, from the best source.
    ///
    /// # Errors
    /// If not even `/proc/stat` can be read.
    pub fn open() -> Result<Load, LoadError> {
        Load::under(Path::new("/"), vec![])
    }

    /// The load of the CPUs of an experiment. All its threads must be on these.
    ///
    /// # Errors
    /// As [`open`](Load::open).
    pub fn on(cpus: impl IntoIterator<Item = Cpu>) -> Result<Load, LoadError> {
        let mut cpus: Vec<Cpu> = cpus.into_iter().collect();
        cpus.sort_unstable();
        cpus.dedup();
        Load::under(Path::new("/"), cpus)
    }

    /// The same, where all processes that this one starts belong to the experiment too, and those that they
    /// start. Such that have ended are known to some hundredths of a second.
    #[must_use]
    pub fn with_descendants(self) -> Load {
        Load { with_descendants: true, ..self }
    }

    /// With all files below `root`, of `cpus` or of all.
    fn under(root: &Path, cpus: Vec<Cpu>) -> Result<Load, LoadError> {
        let stat = root.join("proc/stat");
        let mounts = fs::read_to_string(root.join("proc/self/mounts")).unwrap_or_default();
        let mut sources = cgroup_roots(&mounts, root, !cpus.is_empty()).into_iter();
        let source = sources.find(|source| source.read(&cpus, 100).is_ok());
        let load = Load {
            source: source.unwrap_or_else(|| Source::Stat(stat.clone())),
            stat,
            cpus,
            hundredths_per_second: rustix::param::clock_ticks_per_second().max(1),
            own: vec![std::process::id()],
            with_descendants: false,
            start: Instant::now(),
            begun: None,
        };
        load.read()?;
        Ok(load)
    }

    /// The process `pid` belongs to the experiment too.
    pub fn add_own(&mut self, pid: u32) {
        if !self.own.contains(&pid) {
            self.own.push(pid);
        }
    }

    /// CPU time of other programs during the next `span`.
    ///
    /// # Errors
    /// If a counter can no longer be read.
    pub fn over(&self, span: Duration) -> Result<ForeignLoad, LoadError> {
        let begin = self.read()?;
        std::thread::sleep(span);
        Ok(self.between(&begin, &self.read()?))
    }

    fn read(&self) -> Result<Reading, LoadError> {
        let own =
            |pid: &u32| process_cpu_time(*pid).map_err(|source| LoadError::Process { pid: *pid, source });
        let mut own: Vec<Nanos> = self.own.iter().map(own).collect::<Result<_, _>>()?;
        if self.with_descendants {
            own.extend(descendants(Path::new("/proc"), self.hundredths_per_second));
        }
        Ok(Reading {
            at: Instant::now(),
            all: self.source.read(&self.cpus, self.hundredths_per_second)?,
            own: own.into_iter().fold(Nanos::ZERO, add),
            steal: read_stat(&self.stat, &self.cpus, self.hundredths_per_second)?.steal,
        })
    }

    fn between(&self, begin: &Reading, end: &Reading) -> ForeignLoad {
        let elapsed_ns = end.at.saturating_duration_since(begin.at).as_nanos().max(1) as f64;
        let share = |time: Nanos| time.get() as f64 / elapsed_ns;
        let own = end.own.saturating_sub(begin.own);
        ForeignLoad {
            foreign: share(end.all.saturating_sub(begin.all).saturating_sub(own)),
            foreign_error: share(self.source.error()),
            steal: share(end.steal.saturating_sub(begin.steal)),
            steal_error: share(STEAL_ERROR),
        }
    }

    /// How long to look at the machine to see whether it is quiet: long enough for the source to resolve 2 %.
    fn window(&self) -> Duration {
        Duration::from_millis(if self.source.error() == Nanos::ZERO { 100 } else { 500 })
    }
}

impl Environment for Load {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn begin(&mut self) {
        self.begun = self.read().ok();
    }

    fn end(&mut self) -> Option<ForeignLoad> {
        let begun = self.begun.take()?;
        Some(self.between(&begun, &self.read().ok()?))
    }

    fn wait_quiet(&mut self, limit: f64, most: Duration) -> bool {
        let begin = Instant::now();
        loop {
            let quiet = self.over(self.window()).is_ok_and(|found| !found.exceeds(limit));
            if quiet || begin.elapsed() >= most {
                return quiet;
            }
        }
    }

    fn source(&self) -> String {
        self.source.to_string()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::CgroupV1(path) => write!(f, "{}, exact", path.display()),
            Source::CgroupV2(path) | Source::Stat(path) => write!(f, "{}, sampled at ticks", path.display()),
        }
    }
}

impl Source {
    fn error(&self) -> Nanos {
        match self {
            Source::CgroupV1(_) => Nanos::ZERO,
            Source::CgroupV2(_) | Source::Stat(_) => TICKS_ERROR,
        }
    }

    /// CPU time of all since boot, on `cpus` or on all.
    fn read(&self, cpus: &[Cpu], per_second: u64) -> Result<Nanos, LoadError> {
        let form = |path: &Path, what| LoadError::Form { path: path.to_owned(), what };
        match self {
            Source::CgroupV1(path) => sum_of(&read(path)?, cpus)
                .ok_or_else(|| form(path, "number of nanoseconds of each CPU that is used")),
            Source::CgroupV2(path) => {
                let text = read(path)?;
                let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
                let us = usage.and_then(|us| us.trim().parse().ok());
                us.map(Nanos::from_micros).ok_or_else(|| form(path, "usage_usec"))
            }
            Source::Stat(path) => Ok(read_stat(path, cpus, per_second)?.busy),
        }
    }
}

/// The sum of the numbers of some CPUs, of which there is one after another; without CPUs that of all.
fn sum_of(text: &str, cpus: &[Cpu]) -> Option<Nanos> {
    let of_each: Vec<u64> = text.split_ascii_whitespace().map(|ns| ns.parse().ok()).collect::<Option<_>>()?;
    let used = |number: usize| cpus.is_empty() || cpus.iter().any(|cpu| cpu.0 as usize == number);
    let last = cpus.last().map_or(0, |cpu| cpu.0 as usize);
    let sum =
        (0..).zip(&of_each).filter(|(at, _)| used(*at)).fold(0u64, |sum, (_, ns)| sum.saturating_add(*ns));
    (last < of_each.len()).then_some(Nanos(sum))
}

/// The roots of the cgroup hierarchies that count CPU time, v1 before v2; or those that count that of each
/// CPU. `release_agent` exists in the true root of v1 only; `cgroup.events` everywhere but in the true root
/// of v2.
fn cgroup_roots(mounts: &str, root: &Path, of_each_cpu: bool) -> Vec<Source> {
    let usage = if of_each_cpu { "cpuacct.usage_percpu" } else { "cpuacct.usage" };
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let mut roots: Vec<Source> = fields
        .filter_map(|(place, kind, options)| {
            let place = root.join(place.trim_start_matches('/'));
            match kind {
                "cgroup" if options.split(',').any(|option| option == "cpuacct") => {
                    place.join("release_agent").exists().then(|| Source::CgroupV1(place.join(usage)))
                }
                "cgroup2" if !of_each_cpu && !place.join("cgroup.events").exists() => {
                    Some(Source::CgroupV2(place.join("cpu.stat")))
                }
                _ => None,
            }
        })
        .collect();
    roots.sort_by_key(|source| !matches!(source, Source::CgroupV1(_)));
    roots
}

/// Lines of `/proc/stat`: that of all CPUs, or the sum of those of some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Of tasks and interrupts, as sampled at ticks.
    pub busy: Nanos,
    /// Idle, input and output awaited or not.
    pub idle: Nanos,
    pub steal: Nanos,
}

impl Stat {
    /// Of all CPUs together; `None` if it cannot be read.
    pub fn of_all(machine: &dyn Machine) -> Option<Stat> {
        let text = machine.text("/proc/stat")?;
        parse_stat(&text, &[], rustix::param::clock_ticks_per_second().max(1))
    }
}

fn read_stat(path: &Path, cpus: &[Cpu], per_second: u64) -> Result<Stat, LoadError> {
    let what = if cpus.is_empty() { "line of all CPUs" } else { "line of each CPU that is used" };
    parse_stat(&read(path)?, cpus, per_second).ok_or_else(|| LoadError::Form { path: path.to_owned(), what })
}

fn add(a: Nanos, b: Nanos) -> Nanos {
    Nanos(a.get().saturating_add(b.get()))
}

/// Without CPUs the first line, of all.
fn parse_stat(text: &str, cpus: &[Cpu], per_second: u64) -> Option<Stat> {
    if cpus.is_empty() {
        return stat_line(text, "cpu ", per_second);
    }
    cpus.iter().try_fold(Stat::default(), |sum, cpu| {
        let line = stat_line(text, &format!("cpu{} ", cpu.0), per_second)?;
        let idle = add(sum.idle, line.idle);
        Some(Stat { busy: add(sum.busy, line.busy), idle, steal: add(sum.steal, line.steal) })
    })
}

/// One line: user, nice, system, idle, iowait, irq, softirq, steal, and times of guests, which are in user
/// and nice already.
fn stat_line(text: &str, begin: &str, per_second: u64) -> Option<Stat> {
    let line = text.lines().find_map(|line| line.strip_prefix(begin))?;
    let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
    let [user, nice, system, idle, iowait, irq, softirq, steal, ..] = *fields.as_slice() else {
        return None;
    };
    let time = |parts: &[u64]| {
        let sum = parts.iter().fold(0u64, |sum, part| sum.saturating_add(*part));
        Nanos(sum.saturating_mul(1_000_000_000 / per_second.max(1)))
    };
    let busy = time(&[user, nice, system, irq, softirq]);
    Some(Stat { busy, idle: time(&[idle, iowait]), steal: time(&[steal]) })
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

fn read(path: &Path) -> Result<String, LoadError> {
    fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
