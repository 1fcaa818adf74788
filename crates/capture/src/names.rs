//! Names of processes and threads, out of `/proc`.

use dwell_machine::{Machine, holds_vm, process};
use dwell_trace::event::Event;
use dwell_trace::pairing::Names;
use std::sync::Arc;

/// Names as `/proc` has them now; what has ended has none.
#[derive(Clone)]
pub struct ProcNames {
    machine: Arc<dyn Machine>,
}

impl ProcNames {
    /// Names on this machine.
    pub fn new(machine: Arc<dyn Machine>) -> ProcNames {
        ProcNames { machine }
    }
}

impl Names for ProcNames {
    fn process(&mut self, pid: i32) -> Option<String> {
        self.machine.text(&format!("/proc/{pid}/comm"))
    }

    fn thread(&mut self, pid: i32, tid: i32) -> Option<String> {
        match pid {
            // Whatever the process, `/proc` has its threads by their number too.
            Event::UNKNOWN_ID => self.machine.text(&format!("/proc/{tid}/comm")),
            _ => self.machine.text(&format!("/proc/{pid}/task/{tid}/comm")),
        }
    }
}

/// The threads of a process, or the thread itself if the number is not that of a process.
pub(crate) fn threads(machine: &dyn Machine, pid: i32) -> Vec<i32> {
    let Ok(number) = u32::try_from(pid) else { return vec![] };
    match process::of_thread(machine, number) {
        None => vec![],
        Some(leader) if leader != number => vec![pid],
        Some(_) => {
            let tasks = machine.numbers(&format!("/proc/{pid}/task"));
            tasks.into_iter().filter_map(|task| i32::try_from(task).ok()).collect()
        }
    }
}

/// The PID namespace of the whole machine has always this number (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Whether the numbers of processes here are those of the whole machine. In another PID namespace they are not, and
/// filters in the kernel, which know only the machine's, would let the wrong ones through.
pub fn pids_are_global(machine: &dyn Machine) -> bool {
    machine.target("/proc/self/ns/pid").is_ok_and(|link| link == INITIAL_PID_NAMESPACE)
}

/// Processes that have a VM open.
pub(crate) fn processes_with_vm(machine: &dyn Machine) -> Vec<i32> {
    let pids = machine.numbers("/proc").into_iter().filter(|pid| holds_vm(machine, *pid).unwrap_or(false));
    pids.filter_map(|pid| i32::try_from(pid).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

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
    fn what_has_ended_has_no_name() {
        let mut names = ProcNames::new(Arc::new(Fake::new().file("/proc/7/comm", "vmm\n")));
        assert_eq!(names.process(7).as_deref(), Some("vmm"));
        assert_eq!(names.thread(7, 8), None);
    }

    #[test]
    fn a_pid_namespace_is_noticed() {
        assert!(pids_are_global(&Fake::new().with_link("/proc/self/ns/pid", INITIAL_PID_NAMESPACE)));
        assert!(!pids_are_global(&Fake::new().with_link("/proc/self/ns/pid", "pid:[4026532300]")));
    }
}
