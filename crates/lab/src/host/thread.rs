//! Threads: on which core, how urgent, and what they used.

use dwell_machine::{Machine, Sysroot, cpu, process};
use dwell_policy::Nanos;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, Timespec};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// A CPU of this machine, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpu(pub u32);

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CPU {}", self.0)
    }
}

/// Makes a guard stay in its thread.
type InThisThread = PhantomData<*const ()>;

/// The calling thread is pinned to one CPU until this is dropped.
#[derive(Debug)]
#[must_use = "the thread is pinned only while this lives"]
pub struct Pinned {
    before: CpuSet,
    stays: InThisThread,
}

/// A thread could not be pinned.
#[derive(Debug, thiserror::Error)]
#[error("cannot pin a thread to {cpu}")]
pub struct PinError {
    cpu: Cpu,
    source: io::Error,
}

impl Pinned {
    /// Pins the calling thread to `cpu`.
    ///
    /// # Errors
    /// If the process may not run there.
    pub fn to(cpu: Cpu) -> Result<Pinned, PinError> {
        let failed = |source: io::Error| PinError { cpu, source };
        let place = cpu.0 as usize;
        if place >= CpuSet::MAX_CPU {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        let before = sched_getaffinity(None).map_err(|e| failed(e.into()))?;
        let mut only = CpuSet::new();
        only.set(place);
        sched_setaffinity(None, &only).map_err(|e| failed(e.into()))?;
        Ok(Pinned { before, stays: PhantomData })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // If the CPUs of before have meanwhile been taken from the process, the kernel has moved it itself.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// The CPUs on which the calling thread may run.
///
/// # Errors
/// If the kernel has more than 1024 CPUs.
pub fn allowed() -> io::Result<Vec<Cpu>> {
    let set = sched_getaffinity(None)?;
    let cpus = (0u32..).take(CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu as usize));
    Ok(cpus.map(Cpu).collect())
}

/// Which core is for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// One for each vCPU.
    pub vcpus: Vec<Cpu>,
    /// For the thread that wakes the vCPUs and measures.
    pub stimulus: Cpu,
    /// Whether the stimulus has to share its CPU with the last vCPU.
    pub shared: bool,
    /// Whether two of these CPUs are hyperthreads of one core: one that polls then slows the other.
    pub siblings: bool,
}

/// There are not enough CPUs.
#[derive(Debug, thiserror::Error)]
pub enum CoresError {
    /// The affinity of the process leaves too few.
    #[error("needs {wanted} CPUs (one per vCPU, at least two), but may use only {allowed}")]
    TooFew {
        /// How many are needed.
        wanted: usize,
        /// How many the process may use.
        allowed: usize,
    },
    /// The kernel does not list them.
    #[error("cannot find out which CPUs may be used")]
    Unknown(#[from] io::Error),
}

impl Cores {
    /// Chooses a CPU for each of `vcpus` vCPUs and one for the stimulus: CPUs of different cores first, in order of
    /// their numbers. If there is none left for the stimulus, it shares that of the last vCPU.
    ///
    /// # Errors
    /// If there are fewer CPUs than vCPUs, or fewer than two.
    pub fn choose(vcpus: usize) -> Result<Cores, CoresError> {
        let machine = Sysroot::of_this_machine();
        let siblings = |cpu: Cpu| cpu::siblings(&machine, cpu.0).into_iter().map(Cpu).collect();
        pick(&allowed()?, siblings, vcpus)
    }

    /// The first two that the process may use, as dwell-idle's measurement of a halt uses them.
    ///
    /// # Errors
    /// If there is only one.
    pub fn first_two() -> Result<Cores, CoresError> {
        match allowed()?.as_slice() {
            [one, other, ..] => {
                Ok(Cores { vcpus: vec![*one], stimulus: *other, shared: false, siblings: false })
            }
            few => Err(CoresError::TooFew { wanted: 2, allowed: few.len() }),
        }
    }
}

fn pick(allowed: &[Cpu], siblings: impl Fn(Cpu) -> Vec<Cpu>, vcpus: usize) -> Result<Cores, CoresError> {
    let wanted = vcpus.max(2);
    if allowed.len() < wanted {
        return Err(CoresError::TooFew { wanted, allowed: allowed.len() });
    }
    let (mut order, mut second): (Vec<Cpu>, Vec<Cpu>) = (vec![], vec![]);
    for &cpu in allowed {
        let of_core = siblings(cpu);
        let taken = order.iter().any(|other| of_core.contains(other));
        if taken { second.push(cpu) } else { order.push(cpu) }
    }
    let cores = order.len();
    order.append(&mut second);
    let used = order.len().min(vcpus + 1);
    Ok(Cores {
        vcpus: order[..vcpus].to_vec(),
        stimulus: order[used - 1],
        shared: used == vcpus,
        siblings: used > cores,
    })
}

/// The calling thread runs under SCHED_FIFO until this is dropped, if that is allowed.
///
/// It may then run for at most [`longest_fifo_stretch`] at a time before the kernel pauses it: keep blocks shorter.
/// Threads that it starts do not inherit the priority.
#[derive(Debug)]
#[must_use = "the priority is held only while this lives"]
pub struct Realtime {
    before: Option<(libc::c_int, libc::sched_param)>,
    refused: Option<RealtimeError>,
    stays: InThisThread,
}

/// SCHED_FIFO was not allowed.
#[derive(Debug, thiserror::Error)]
#[error(
    "runs without SCHED_FIFO priority {priority}, latencies will vary more: {source}; needs CAP_SYS_NICE or `ulimit -r \
     {priority}`, and a cgroup with a share of real time"
)]
pub struct RealtimeError {
    priority: u8,
    source: io::Error,
}

impl Realtime {
    /// Asks for SCHED_FIFO with `priority` (1 to 99) for the calling thread, and goes on without where that is refused:
    /// [`refused`](Realtime::refused) has the reason.
    pub fn ask(priority: u8) -> Realtime {
        match raise(priority) {
            Ok(before) => Realtime { before: Some(before), refused: None, stays: PhantomData },
            Err(source) => {
                let refused = Some(RealtimeError { priority, source });
                Realtime { before: None, refused, stays: PhantomData }
            }
        }
    }

    /// Why the thread runs at its usual priority, if it does.
    pub fn refused(&self) -> Option<&RealtimeError> {
        self.refused.as_ref()
    }
}

impl Drop for Realtime {
    fn drop(&mut self) {
        if let Some((policy, parameters)) = self.before {
            // Going back to where it was is always allowed.
            let _ = set_scheduler(policy, parameters);
        }
    }
}

/// Returns what was before.
fn raise(priority: u8) -> io::Result<(libc::c_int, libc::sched_param)> {
    let before = scheduler()?;
    let parameters = libc::sched_param { sched_priority: priority.into() };
    set_scheduler(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, parameters)?;
    Ok(before)
}

#[allow(unsafe_code)]
fn scheduler() -> io::Result<(libc::c_int, libc::sched_param)> {
    // SAFETY: takes a number and returns one; 0 is the calling thread. The result is checked below.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: `parameters` outlives the call, and the kernel writes one `sched_param` into it.
    if unsafe { libc::sched_getparam(0, &raw mut parameters) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((policy, parameters))
}

#[allow(unsafe_code)]
fn set_scheduler(policy: libc::c_int, parameters: libc::sched_param) -> io::Result<()> {
    // SAFETY: `parameters` outlives the call and is only read; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How long threads under SCHED_FIFO may keep a CPU before the kernel pauses them (`kernel.sched_rt_runtime_us`);
/// `None`: for ever, or not known.
pub fn longest_fifo_stretch() -> Option<Duration> {
    let us = Sysroot::of_this_machine().number("/proc/sys/kernel/sched_rt_runtime_us")?;
    u64::try_from(us).ok().map(Duration::from_micros)
}

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
    /// The calling thread.
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

/// CPU time that the calling thread has used.
pub fn own_cpu_time() -> Nanos {
    nanos(rustix::time::clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time that all threads of process `pid` have used, also those that have ended.
///
/// # Errors
/// If there is no such process.
#[allow(unsafe_code)]
pub fn process_cpu_time(pid: u32) -> io::Result<Nanos> {
    if pid == std::process::id() {
        return Ok(nanos(rustix::time::clock_gettime(ClockId::ProcessCPUTime)));
    }
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut id: libc::clockid_t = 0;
    // SAFETY: `id` outlives the call, which writes one clock id into it; `pid` is only a number.
    match unsafe { libc::clock_getcpuclockid(pid, &raw mut id) } {
        0 => clock(id),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The clock of a thread of this process. The kernel's ABI: the number inverted above three bits that say "of
/// one thread, as the scheduler counts" (`CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`), as
/// `pthread_getcpuclockid` makes it of a pthread, which there is none of where only the number is known.
fn thread_clock(tid: u32) -> io::Result<libc::clockid_t> {
    const PER_THREAD: libc::clockid_t = 4;
    const SCHED: libc::clockid_t = 2;
    let tid = libc::clockid_t::try_from(tid).ok().filter(|tid| (1..1 << 28).contains(tid));
    let tid = tid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok((!tid << 3) | PER_THREAD | SCHED)
}

#[allow(unsafe_code)]
fn clock(id: libc::clockid_t) -> io::Result<Nanos> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call, which writes one `timespec` into it; a clock that is none is refused.
    match unsafe { libc::clock_gettime(id, &raw mut time) } {
        0 => Ok(nanos(Timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec })),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A time that is not negative; beyond 584 years it saturates.
pub(super) fn nanos(time: Timespec) -> Nanos {
    let (seconds, rest) = (time.tv_sec.max(0).unsigned_abs(), time.tv_nsec.max(0).unsigned_abs());
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// Threads that always want a core, until they are dropped.
#[derive(Debug)]
pub struct Contenders {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Contenders {
    /// So many on `cpu`, with the priority of the calling thread. Without a CPU, or without any, there are none.
    ///
    /// # Errors
    /// If a thread cannot be made, or the core may not be used.
    pub fn on(cpu: Option<Cpu>, threads: usize) -> io::Result<Contenders> {
        let mut contenders = Contenders { stop: Arc::new(AtomicBool::new(false)), threads: vec![] };
        let (placed, ready) = channel();
        for _ in 0..cpu.map_or(0, |_| threads) {
            let (stop, placed) = (Arc::clone(&contenders.stop), placed.clone());
            let thread = std::thread::Builder::new().name("contender".to_owned()).spawn(move || {
                let pinned = cpu.map(Pinned::to).transpose();
                // The receiver waits until every sender is gone, so that this one must not last as long as the thread.
                let _ = placed.send(pinned.as_ref().map(|_| ()).map_err(ToString::to_string));
                drop(placed);
                while pinned.is_ok() && !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })?;
            contenders.threads.push(thread);
        }
        drop(placed);
        match ready.into_iter().find_map(Result::err) {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(contenders),
        }
    }
}

impl Drop for Contenders {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It only spins.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
