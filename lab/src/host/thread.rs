//! Threads of an experiment: on which core, and how urgent.

use super::pin::{Cpu, Pinned, allowed};
use dwell_machine::{Machine, Sysroot, cpu};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Makes a guard stay in its thread.
type InThisThread = PhantomData<*const ()>;

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
        let siblings = |cpu: Cpu| {
            let list = format!("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu.0);
            let list = machine.text(&list).unwrap_or_default();
            cpu::parse_list(&list).into_iter().map(Cpu).collect()
        };
        pick(&allowed()?, siblings, vcpus)
    }

    pub fn all(&self) -> impl Iterator<Item = Cpu> {
        self.vcpus.iter().copied().chain([self.stimulus])
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
    before: Option<(libc::c_int, libc::c_int)>,
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
        if let Some((policy, priority)) = self.before {
            // Going back to where it was is always allowed.
            let _ = set_scheduler(policy, priority);
        }
    }
}

/// Returns what was before.
fn raise(priority: u8) -> io::Result<(libc::c_int, libc::c_int)> {
    let before = scheduler()?;
    set_scheduler(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority.into())?;
    Ok(before)
}

// By system call: musl refuses its functions for these. The kernel's `sched_param` is one number, the priority.

#[allow(unsafe_code)]
fn scheduler() -> io::Result<(libc::c_int, libc::c_int)> {
    // SAFETY: takes a number and returns one; 0 is the calling thread. The result is checked below.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    let policy = libc::c_int::try_from(policy).map_err(io::Error::other)?;
    if policy < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut priority: libc::c_int = 0;
    // SAFETY: `priority` outlives the call, and the kernel writes one number into it.
    if unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut priority) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((policy, priority))
}

#[allow(unsafe_code)]
fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: `priority` outlives the call and is only read; 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) } {
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
