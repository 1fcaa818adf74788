//! Threads of this machine: what they have used.

use crate::process;
use dwell_policy::Nanos;
use nix::sys::time::TimeSpec;
use nix::time::ClockId;
use nix::unistd::Pid;
use std::io;
use std::ops::Sub;

/// A thread of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Thread {
    pid: u32,
    tid: u32,
}

/// How often a thread was switched away from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// Because it waited for something.
    pub voluntary: u64,
    /// Because something else was to run.
    pub involuntary: u64,
}

impl Thread {
    pub fn current() -> Thread {
        Thread {
            pid: std::process::id(),
            tid: rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
        }
    }

    /// Thread `tid` of process `pid`.
    pub const fn of(pid: u32, tid: u32) -> Thread {
        Thread { pid, tid }
    }

    /// The kernel's number of the thread.
    pub const fn tid(self) -> u32 {
        self.tid
    }

    /// CPU time it has used, in the kernel and outside. Of a thread of another process, what it used since its last
    /// switch or tick may not be in yet.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn cpu_time(self) -> io::Result<Nanos> {
        if self.pid == std::process::id() {
            return clock(thread_clock(self.tid)?);
        }
        let text = std::fs::read_to_string(self.file("schedstat"))?;
        let first = text.split_ascii_whitespace().next().and_then(|field| field.parse().ok());
        first
            .map(Nanos)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat begins with no number"))
    }

    /// How often it was switched away from.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn switches(self) -> io::Result<Switches> {
        let status = std::fs::read_to_string(self.file("status"))?;
        parse_switches(&status)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "status has no context switches"))
    }

    fn file(self, name: &str) -> String {
        format!("/proc/{}/task/{}/{name}", self.pid, self.tid)
    }
}

fn parse_switches(status: &str) -> Option<Switches> {
    let field = |name: &str| process::field(status, name)?.parse().ok();
    Some(Switches {
        voluntary: field("voluntary_ctxt_switches")?,
        involuntary: field("nonvoluntary_ctxt_switches")?,
    })
}

/// CPU time and context switches of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu: Nanos,
    /// How often it was switched away from.
    pub switches: Switches,
}

impl Usage {
    /// What it has used so far.
    ///
    /// # Errors
    /// If there is no such thread.
    pub fn of(thread: Thread) -> io::Result<Usage> {
        Ok(Usage { cpu: thread.cpu_time()?, switches: thread.switches()? })
    }
}

impl Sub for Usage {
    type Output = Usage;

    fn sub(self, before: Usage) -> Usage {
        let Switches { voluntary, involuntary } = before.switches;
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            switches: Switches {
                voluntary: self.switches.voluntary.saturating_sub(voluntary),
                involuntary: self.switches.involuntary.saturating_sub(involuntary),
            },
        }
    }
}

/// CPU time that the calling thread has used.
pub fn own_cpu_time() -> Nanos {
    clock(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap_or(Nanos::ZERO)
}

/// CPU time that all threads of process `pid` have used, also those that have ended.
///
/// # Errors
/// If there is no such process.
pub fn process_cpu_time(pid: u32) -> io::Result<Nanos> {
    if pid == std::process::id() {
        return clock(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    }
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    clock(ClockId::pid_cpu_clock_id(Pid::from_raw(pid))?)
}

/// The clock of a thread of this process. The kernel's ABI: the number inverted above three bits that say "of
/// one thread, as the scheduler counts" (`CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`), as
/// `pthread_getcpuclockid` makes it of a pthread, which there is none of where only the number is known.
fn thread_clock(tid: u32) -> io::Result<ClockId> {
    const PER_THREAD: i32 = 4;
    const SCHED: i32 = 2;
    let tid = i32::try_from(tid).ok().filter(|tid| (1..1 << 28).contains(tid));
    let tid = tid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(ClockId::from_raw((!tid << 3) | PER_THREAD | SCHED))
}

fn clock(id: ClockId) -> io::Result<Nanos> {
    Ok(nanos(id.now()?))
}

/// A time that is not negative; beyond 584 years it saturates.
fn nanos(time: TimeSpec) -> Nanos {
    let (seconds, rest) = (time.tv_sec().max(0).unsigned_abs(), time.tv_nsec().max(0).unsigned_abs());
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// The context switches of all CPUs since boot, from the text of `/proc/stat`.
pub fn context_switches(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("ctxt ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests;
