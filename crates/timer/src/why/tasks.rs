//! The threads that a VM's CPU time is of.

use dwell_machine::{Machine, Vmm, VmmKind};
use dwell_trace::host::vcpu_of_name;
use serde::{Deserialize, Serialize};

dwell_policy::named! {
    /// What a thread is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Class {
        Vcpu = "vCPUs",
        MainLoop = "main loop",
        IoThread = "I/O thread",
        /// A thread of the kernel that serves the VM's network or disks.
        Vhost = "vhost",
        /// Another thread of the kernel on behalf of the VM.
        Kernel = "kernel",
        /// This machine's own CPUs.
        Cpu = "CPUs",
        Other = "other threads",
    }

    /// As tables have it.
    pub fn name
}

/// QEMU's own I/O thread for its monitors, which does not poll.
pub(super) const MONITOR: &str = "IO mon_iothread";

/// Whether this is a thread of QEMU's that encodes what a display shows, for those that have it open.
pub(super) fn encodes(name: &str) -> bool {
    name.starts_with("vnc_worker") || name.starts_with("SPICE Worker")
}

/// A thread whose CPU time is looked into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub tid: i32,
    pub name: String,
    pub class: Class,
    /// The vCPU that it is named after.
    pub vcpu: Option<u32>,
    /// Whether it is a thread of the process, which /proc counts with it.
    pub own: bool,
}

impl Task {
    fn of(tid: u32, name: &str, process: u32, vmm: Option<&Vmm>) -> Option<Task> {
        let io_thread = |vmm: &Vmm| vmm.io_threads.iter().any(|thread| thread.tid == Some(tid));
        let vcpu = vcpu_of_name(name);
        let class = match vmm {
            _ if vcpu.is_some() => Class::Vcpu,
            _ if name.starts_with("vhost-") => Class::Vhost,
            _ if name.starts_with("kvm-") => Class::Kernel,
            Some(vmm) if io_thread(vmm) && (tid != process || vmm.kind != VmmKind::Qemu) => Class::IoThread,
            Some(_) if tid == process => Class::MainLoop,
            _ => Class::Other,
        };
        Some(Task { tid: i32::try_from(tid).ok()?, name: name.to_owned(), class, vcpu, own: true })
    }

    /// Whether it polls by QEMU's adaptive rule.
    pub(super) fn may_poll(&self) -> bool {
        self.class == Class::IoThread && self.name != MONITOR
    }

    /// The name of its line; vCPUs share theirs.
    pub(super) fn label(&self) -> Option<String> {
        (!matches!(self.class, Class::Vcpu | Class::MainLoop)).then(|| self.name.clone())
    }

    /// The threads of a process, and those of the kernel that are named after it.
    pub fn all(machine: &dyn Machine, process: u32, vmm: Option<&Vmm>) -> Vec<Task> {
        let own = machine.numbers(&format!("/proc/{process}/task"));
        let own = own.into_iter().filter_map(|tid| {
            let name = machine.text(&format!("/proc/{process}/task/{tid}/comm"))?;
            Task::of(tid, &name, process, vmm)
        });
        let kernel = machine.numbers("/proc").into_iter().filter_map(|pid| {
            let name = machine.text(&format!("/proc/{pid}/comm"))?;
            let (what, whose) =
                name.split_once('/').or_else(|| name.split_once("vhost-").map(|(_, of)| ("vhost-", of)))?;
            let is_its = (what.starts_with("kvm") || what == "vhost-") && whose.parse() == Ok(process);
            let task = if is_its { Task::of(pid, &name, process, vmm) } else { None };
            task.map(|task| Task { own: false, ..task })
        });
        let mut all: Vec<Task> = own.collect();
        all.extend(kernel);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_machine::Facts;
    use dwell_testing::machine::Fake;

    #[test]
    fn threads_are_classed_as_their_names_say() {
        let machine = Fake::quiet("6.18.44");
        machine.vm(100, &["qemu-system-x86_64", "-object", "iothread,id=io0"]);
        for (tid, name) in [(100, "qemu-system-x86"), (101, "IO io0"), (102, "CPU 0/KVM"), (103, "worker")] {
            machine.set(&format!("/proc/100/task/{tid}/comm"), name);
        }
        machine.set("/proc/110/comm", "kvm-pit/100\n");
        machine.set("/proc/111/comm", "vhost-100\n");
        machine.set("/proc/112/comm", "kvm-pit/10\n");
        machine.set("/proc/113/comm", "kworker/100\n");
        let facts = Facts::read(&machine);
        let tasks = Task::all(&machine, 100, facts.vmms.first());
        let classes: Vec<(i32, Class)> = tasks.iter().map(|task| (task.tid, task.class)).collect();
        for expected in [
            (100, Class::MainLoop),
            (101, Class::IoThread),
            (102, Class::Vcpu),
            (103, Class::Other),
            (110, Class::Kernel),
            (111, Class::Vhost),
        ] {
            assert!(classes.contains(&expected), "{expected:?}: {classes:?}");
        }
        assert!(!classes.iter().any(|(tid, _)| [112, 113].contains(tid)), "{classes:?}");
        assert_eq!(tasks.iter().find(|task| task.tid == 102).unwrap().vcpu, Some(0));
    }
}
