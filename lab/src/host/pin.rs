//! On which CPU a thread may run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::io;
use std::marker::PhantomData;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_pinned_while_the_guard_lives() {
        let before = allowed().unwrap();
        for &cpu in &before {
            let pinned = Pinned::to(cpu).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
            drop(pinned);
            assert_eq!(allowed().unwrap(), before);
        }
        assert_eq!(Pinned::to(Cpu(1023)).unwrap_err().to_string(), "cannot pin a thread to CPU 1023");
        assert!(Pinned::to(Cpu(u32::MAX)).is_err());
    }
}
