//! Names of processes and threads, out of `/proc`.

use crate::system::{System, text};
use dwell_trace::pairing::Names;
use std::path::Path;
use std::sync::Arc;

/// Names as `/proc` has them now; what has ended has none.
#[derive(Clone)]
pub struct ProcNames {
    system: Arc<dyn System>,
}

impl ProcNames {
    /// Names on this machine.
    pub fn new(system: Arc<dyn System>) -> ProcNames {
        ProcNames { system }
    }
}

impl Names for ProcNames {
    fn process(&mut self, pid: i32) -> Option<String> {
        text(&*self.system, format!("/proc/{pid}/comm"))
    }

    fn thread(&mut self, pid: i32, tid: i32) -> Option<String> {
        text(&*self.system, format!("/proc/{pid}/task/{tid}/comm"))
    }

    fn vcpus(&mut self, pid: i32) -> Vec<u32> {
        let dir = format!("/proc/{pid}/fd");
        let fds = self.system.list(Path::new(&dir)).unwrap_or_default();
        let links = fds.iter().filter_map(|fd| self.system.read_link(Path::new(&format!("{dir}/{fd}"))).ok());
        links.filter_map(|link| link.strip_prefix("anon_inode:kvm-vcpu:")?.parse().ok()).collect()
    }
}

/// The threads of a process, or the thread itself if the number is not that of a process.
pub(crate) fn threads(system: &dyn System, pid: i32) -> Vec<i32> {
    let status = text(system, format!("/proc/{pid}/status")).unwrap_or_default();
    let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse::<i32>().ok());
    match leader {
        None => vec![],
        Some(leader) if leader != pid => vec![pid],
        Some(_) => {
            let tasks = system.list(Path::new(&format!("/proc/{pid}/task"))).unwrap_or_default();
            let mut tasks: Vec<i32> = tasks.iter().filter_map(|task| task.parse().ok()).collect();
            tasks.sort_unstable();
            tasks
        }
    }
}

/// The PID namespace of the whole machine has always this number (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Whether the numbers of processes here are those of the whole machine. In another PID namespace they are not, and
/// filters in the kernel, which know only the machine's, would let the wrong ones through.
pub(crate) fn pids_are_global(system: &dyn System) -> bool {
    system.read_link(Path::new("/proc/self/ns/pid")).is_ok_and(|link| link == INITIAL_PID_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_process_means_all_its_threads_and_a_thread_itself() {
        let fake = Fake::new()
            .file("/proc/7/status", "Name:\tx\nTgid:\t7\n")
            .file("/proc/9/status", "Name:\tx\nTgid:\t7\n")
            .file("/proc/7/task/7/comm", "x\n")
            .file("/proc/7/task/9/comm", "y\n");
        assert_eq!(threads(&fake, 7), [7, 9]);
        assert_eq!(threads(&fake, 9), [9]);
        assert_eq!(threads(&fake, 8), [0i32; 0]);
    }

    #[test]
    fn vcpus_are_seen_among_the_open_files() {
        let fake = Fake::new()
            .file("/proc/7/fd/3", "anon_inode:kvm-vm")
            .file("/proc/7/fd/4", "anon_inode:kvm-vcpu:5")
            .file("/proc/7/comm", "vmm\n");
        let mut names = ProcNames::new(Arc::new(fake));
        assert_eq!(names.vcpus(7), [5]);
        assert_eq!(names.process(7).as_deref(), Some("vmm"));
        assert_eq!(names.thread(7, 8), None);
    }

    #[test]
    fn a_pid_namespace_is_noticed() {
        assert!(pids_are_global(&Fake::new().file("/proc/self/ns/pid", INITIAL_PID_NAMESPACE)));
        assert!(!pids_are_global(&Fake::new().file("/proc/self/ns/pid", "pid:[4026532300]")));
    }
}
