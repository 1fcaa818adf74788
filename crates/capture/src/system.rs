//! The one seam between this crate and the machine: files, the tracefs mount and `perf_event_open`.
//!
//! Everything that can be refused passes here, so that each refusal has a test without a machine that refuses.

use crate::perf::Attributes;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// What the machine is asked.
pub trait System: Send + Sync {
    /// The contents of a file.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The names in a folder, in no particular order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;

    /// Where a link leads, as text.
    ///
    /// # Errors
    /// What the system says.
    fn read_link(&self, path: &Path) -> io::Result<String>;

    /// A tracefs that nobody else sees and that disappears with the descriptor.
    ///
    /// # Errors
    /// `ENODEV` where the kernel has no tracefs, `EPERM` without `CAP_SYS_ADMIN`.
    fn mount_tracefs(&self) -> io::Result<OwnedFd>;

    /// A sampled event on one CPU, for all processes, not yet enabled.
    ///
    /// # Errors
    /// What `perf_event_open(2)` says.
    fn open_event(&self, attributes: &Attributes, cpu: u32) -> io::Result<OwnedFd>;
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine;

impl System for Machine {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        std::fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read_link(&self, path: &Path) -> io::Result<String> {
        Ok(std::fs::read_link(path)?.to_string_lossy().into_owned())
    }

    fn mount_tracefs(&self) -> io::Result<OwnedFd> {
        crate::tracefs::mount_detached()
    }

    fn open_event(&self, attributes: &Attributes, cpu: u32) -> io::Result<OwnedFd> {
        crate::perf::open(attributes, cpu)
    }
}

/// The text of a small file such as those of sysfs, without white space around it; `None` if it cannot be read.
pub fn text(system: &dyn System, path: impl AsRef<Path>) -> Option<String> {
    let bytes = system.read(path.as_ref()).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The CPUs in a list such as `0-3,8`; what cannot be read is left out.
pub fn cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>()) else {
            continue;
        };
        // The kernel has at most 8192 CPUs; a longer range is no list of CPUs.
        cpus.extend((first..=last).take(8192));
    }
    cpus
}

/// The CPUs that are running now.
pub fn online_cpus(system: &dyn System) -> Vec<u32> {
    let cpus = text(system, "/sys/devices/system/cpu/online").map(|list| cpu_list(&list)).unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// `uname -r`.
pub fn kernel_release(system: &dyn System) -> Option<String> {
    text(system, "/proc/sys/kernel/osrelease").filter(|release| !release.is_empty())
}

/// The CPU model as `/proc/cpuinfo` names it.
pub fn cpu_model(system: &dyn System) -> Option<String> {
    let info = text(system, "/proc/cpuinfo")?;
    let line = info.lines().find(|line| line.starts_with("model name") || line.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-1\n"), [0, 1]);
        assert_eq!(cpu_list("0,2-4,7"), [0, 2, 3, 4, 7]);
        assert_eq!(cpu_list(""), [0u32; 0]);
        assert_eq!(cpu_list("x,3-1,5"), [5]);
        assert_eq!(cpu_list("0-4294967295").len(), 8192);
    }
}
