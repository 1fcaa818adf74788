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

use crate::seam::Machine;
use crate::threads::process_cpu_time;
use dwell_policy::Nanos;
use dwell_stats::{Environment, ForeignLoad};
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How much a source that samples at ticks may be off: one tick of the slowest clock that Linux is built with
/// (100 Hz), on each of the two CPUs of an experiment.
pub const TICKS_ERROR: Nanos = Nanos(20_000_000);
/// The share of the time that a CPU was wanted, from which on its core counts as shared. Interrupts of a host take less of
/// cores that are a guest's own; a neighbour that always computes takes half. It is chosen, not measured.
pub const SHARED_CORE: f64 = 0.02;

/// How much steal may be off, counted in hundredths of a second.
const STEAL_ERROR: Nanos = Nanos(10_000_000);

/// Where the CPU time of all is read.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// Its `cpuacct.usage`.
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
pub struct Load<C = MachineCounters> {
    counters: C,
    start: Instant,
    begun: Option<Reading>,
}

/// Where a [`Load`] is read.
pub trait Counters {
    /// All counters now.
    ///
    /// # Errors
    /// If a counter can no longer be read.
    fn read(&self) -> Result<Reading, LoadError>;

    /// How much the CPU time of all may be off.
    fn error(&self) -> Nanos;

    /// Where they are, for people.
    fn source(&self) -> String;
}

/// Those of the whole machine.
#[derive(Debug)]
pub struct MachineCounters {
    source: Source,
    stat: PathBuf,
    hundredths_per_second: u64,
    own: Vec<u32>,
}

/// All counters at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    pub at: Instant,
    /// CPU time of all since boot.
    pub all: Nanos,
    /// Of these, that of the experiment.
    pub own: Nanos,
    pub steal: Nanos,
}

impl Reading {
    /// CPU time of other programs since `begin`, where `all` may be off by `error`.
    pub fn since(&self, begin: &Reading, error: Nanos) -> ForeignLoad {
        let elapsed_ns = self.at.saturating_duration_since(begin.at).as_nanos().max(1) as f64;
        let share = |time: Nanos| time.get() as f64 / elapsed_ns;
        let own = self.own.saturating_sub(begin.own);
        ForeignLoad {
            foreign: share(self.all.saturating_sub(begin.all).saturating_sub(own)),
            foreign_error: share(error),
            steal: share(self.steal.saturating_sub(begin.steal)),
            steal_error: share(STEAL_ERROR),
        }
    }
}

impl Load {
    /// The load of the whole machine, from the best source.
    ///
    /// # Errors
    /// If not even `/proc/stat` can be read.
    pub fn open() -> Result<Load, LoadError> {
        Ok(Load::of(MachineCounters::open()?))
    }

    /// The process `pid` belongs to the experiment too.
    pub fn add_own(&mut self, pid: u32) {
        if !self.counters.own.contains(&pid) {
            self.counters.own.push(pid);
        }
    }
}

impl<C: Counters> Load<C> {
    /// The load by other counters than those of the whole machine.
    pub fn of(counters: C) -> Load<C> {
        Load { counters, start: Instant::now(), begun: None }
    }

    /// CPU time of other programs during the next `span`.
    fn over(&self, span: Duration) -> Result<ForeignLoad, LoadError> {
        let begin = self.counters.read()?;
        std::thread::sleep(span);
        self.since(&begin)
    }

    fn since(&self, begin: &Reading) -> Result<ForeignLoad, LoadError> {
        Ok(self.counters.read()?.since(begin, self.counters.error()))
    }

    /// How long to look at the machine to see whether it is quiet: long enough for the source to resolve 2 %.
    fn window(&self) -> Duration {
        Duration::from_millis(if self.counters.error() == Nanos::ZERO { 100 } else { 500 })
    }
}

impl MachineCounters {
    /// Those of the whole machine, from the best source.
    ///
    /// # Errors
    /// If not even `/proc/stat` can be read.
    pub fn open() -> Result<MachineCounters, LoadError> {
        MachineCounters::under(Path::new("/"))
    }

    /// With all files below `root`.
    fn under(root: &Path) -> Result<MachineCounters, LoadError> {
        let stat = root.join("proc/stat");
        let mounts = fs::read_to_string(root.join("proc/self/mounts")).unwrap_or_default();
        let mut sources = cgroup_roots(&mounts, root).into_iter();
        let source = sources.find(|source| source.read(100).is_ok());
        let counters = MachineCounters {
            source: source.unwrap_or_else(|| Source::Stat(stat.clone())),
            stat,
            hundredths_per_second: rustix::param::clock_ticks_per_second().max(1),
            own: vec![std::process::id()],
        };
        counters.read()?;
        Ok(counters)
    }

    /// `cpuacct.usage` of the root of cgroup v1, where that is the source.
    pub fn cpuacct(&self) -> Option<&Path> {
        match &self.source {
            Source::CgroupV1(path) => Some(path),
            Source::CgroupV2(_) | Source::Stat(_) => None,
        }
    }
}

impl Counters for MachineCounters {
    fn read(&self) -> Result<Reading, LoadError> {
        let own =
            |pid: &u32| process_cpu_time(*pid).map_err(|source| LoadError::Process { pid: *pid, source });
        let own: Vec<Nanos> = self.own.iter().map(own).collect::<Result<_, _>>()?;
        Ok(Reading {
            at: Instant::now(),
            all: self.source.read(self.hundredths_per_second)?,
            own: own.into_iter().fold(Nanos::ZERO, add),
            steal: read_stat(&self.stat, self.hundredths_per_second)?.steal,
        })
    }

    fn error(&self) -> Nanos {
        self.source.error()
    }

    fn source(&self) -> String {
        self.source.to_string()
    }
}

impl<C: Counters> Environment for Load<C> {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn begin(&mut self) {
        self.begun = self.counters.read().ok();
    }

    fn end(&mut self) -> Option<ForeignLoad> {
        let begun = self.begun.take()?;
        self.since(&begun).ok()
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
        self.counters.source()
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

    /// CPU time of all since boot.
    fn read(&self, per_second: u64) -> Result<Nanos, LoadError> {
        let form = |path: &Path, what| LoadError::Form { path: path.to_owned(), what };
        match self {
            Source::CgroupV1(path) => {
                let ns = read(path)?.trim().parse().ok();
                ns.map(Nanos).ok_or_else(|| form(path, "number of nanoseconds"))
            }
            Source::CgroupV2(path) => {
                let text = read(path)?;
                let usage = text.lines().find_map(|line| line.strip_prefix("usage_usec "));
                let us = usage.and_then(|us| us.trim().parse().ok());
                us.map(Nanos::from_micros).ok_or_else(|| form(path, "usage_usec"))
            }
            Source::Stat(path) => Ok(read_stat(path, per_second)?.busy),
        }
    }
}

/// The roots of the cgroup hierarchies that count CPU time, v1 before v2. `release_agent` exists in the true root
/// of v1 only; `cgroup.events` everywhere but in the true root of v2.
fn cgroup_roots(mounts: &str, root: &Path) -> Vec<Source> {
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let mut roots: Vec<Source> = fields
        .filter_map(|(place, kind, options)| {
            let place = root.join(place.trim_start_matches('/'));
            match kind {
                "cgroup" if options.split(',').any(|option| option == "cpuacct") => place
                    .join("release_agent")
                    .exists()
                    .then(|| Source::CgroupV1(place.join("cpuacct.usage"))),
                "cgroup2" if !place.join("cgroup.events").exists() => {
                    Some(Source::CgroupV2(place.join("cpu.stat")))
                }
                _ => None,
            }
        })
        .collect();
    roots.sort_by_key(|source| !matches!(source, Source::CgroupV1(_)));
    roots
}

/// A line of `/proc/stat`.
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
        Stat::of(&machine.text("/proc/stat")?, "cpu", rustix::param::clock_ticks_per_second())
    }

    /// The line `name`: user, nice, system, idle, iowait, irq, softirq, steal, and times of guests, which are in
    /// user and nice already.
    pub fn of(text: &str, name: &str, per_second: u64) -> Option<Stat> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
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
}

fn read_stat(path: &Path, per_second: u64) -> Result<Stat, LoadError> {
    let form = || LoadError::Form { path: path.to_owned(), what: "line of all CPUs" };
    Stat::of(&read(path)?, "cpu", per_second).ok_or_else(form)
}

fn add(a: Nanos, b: Nanos) -> Nanos {
    Nanos(a.get().saturating_add(b.get()))
}

fn read(path: &Path) -> Result<String, LoadError> {
    fs::read_to_string(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
