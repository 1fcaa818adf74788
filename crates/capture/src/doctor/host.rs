//! KVM on this machine, and the VMs that run on it.

use super::kernel::Kernel;
use super::machine::{KvmDevice, Machine};
use super::param::{self, Value};
use super::process::Process;
use super::root::Root;
use dwell_policy::Layer;
use dwell_policy::host::{MaxSource, Revision};
use serde::Serialize;

/// What rules halt polling of vCPUs here.
#[derive(Clone, Debug, Serialize)]
pub struct Host {
    /// How KVM got into the kernel; `None` if it is not there.
    pub kvm: Option<Presence>,
    /// The vendor modules in the kernel: `kvm_intel`, `kvm_amd`, `kvm_pvm`.
    pub vendor: Vec<String>,
    /// What `/dev/kvm` answers.
    pub device: KvmDevice,
    /// Where the longest window comes from on this kernel; `None` if its rule is not known.
    pub max_source: Option<&'static str>,
    /// The module parameters.
    pub parameters: Vec<Value>,
    /// The running VMs that this user can see.
    pub vms: Vec<Vm>,
    /// Processes whose open files this user may not see; VMs may be among them.
    pub unseen_processes: usize,
    /// Whether a VM has an override of its own cannot be read from outside: `KVM_CAP_HALT_POLL` can be set, not asked.
    pub overrides_visible: bool,
}

/// How a part of the kernel got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// It was loaded as a module.
    Module,
    /// It is part of the kernel image.
    BuiltIn,
}

/// A process that holds a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its process.
    pub pid: u32,
    /// The name of that process.
    pub comm: String,
    /// The VM's name on its command line, if it has one.
    pub name: Option<String>,
    /// Number of VMs the process holds.
    pub count: usize,
    /// Its vCPUs: from the threads that are named after them, else from the open vCPU files.
    pub vcpus: Vec<Vcpu>,
    /// Whether the process keeps statistics files open, which can be read through it.
    pub stats_open: bool,
}

/// A vCPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vcpu {
    /// Its number.
    pub id: u32,
    /// The thread that runs it, where a thread is named after it.
    pub tid: Option<u32>,
}

impl Host {
    pub(super) fn examine(
        root: &Root,
        machine: &dyn Machine,
        kernel: &Kernel,
        processes: &[Process],
    ) -> Host {
        let revision = kernel.version.and_then(|version| Revision::of(version).ok());
        let modules = root.names("/sys/module").unwrap_or_default();
        Host {
            kvm: presence(root, "kvm"),
            vendor: modules.into_iter().filter(|name| name.starts_with("kvm_")).collect(),
            device: machine.kvm_device(),
            max_source: revision.map(|revision| max_source(revision.max_source())),
            parameters: param::values(root, Layer::Host, kernel.version),
            vms: processes.iter().filter_map(Vm::of).collect(),
            unseen_processes: processes.iter().filter(|process| process.files.is_none()).count(),
            overrides_visible: false,
        }
    }
}

fn presence(root: &Root, module: &str) -> Option<Presence> {
    let loaded = root.text("/proc/modules").unwrap_or_default();
    if loaded.lines().any(|line| line.split(' ').next() == Some(module)) {
        return Some(Presence::Module);
    }
    root.exists(&format!("/sys/module/{module}")).then_some(Presence::BuiltIn)
}

/// Where the longest window comes from, in words.
fn max_source(source: MaxSource) -> &'static str {
    match source {
        MaxSource::Live => "halt_poll_ns is read at every halt; a write reaches running VMs",
        MaxSource::CopiedAtCreation => {
            "halt_poll_ns is copied when a VM is created (or set by KVM_CAP_HALT_POLL); a write does not reach running VMs"
        }
        MaxSource::CapElseLive => {
            "halt_poll_ns is read at every halt, except for VMs whose VMM has set KVM_CAP_HALT_POLL"
        }
    }
}

impl Vm {
    fn of(process: &Process) -> Option<Vm> {
        let files = process.files.as_ref()?;
        let count = files.iter().filter(|file| *file == "anon_inode:kvm-vm").count();
        if count == 0 {
            return None;
        }
        Some(Vm {
            pid: process.pid,
            comm: process.comm.clone(),
            name: process.vm_name(),
            count,
            vcpus: vcpus(process, files),
            stats_open: files.iter().any(|file| file.starts_with("anon_inode:kvm-vcpu-stats")),
        })
    }
}

fn vcpus(process: &Process, files: &[String]) -> Vec<Vcpu> {
    let named = process
        .threads
        .iter()
        .filter_map(|thread| Some(Vcpu { id: vcpu_of_name(&thread.comm)?, tid: Some(thread.tid) }));
    let opened = files
        .iter()
        .filter_map(|file| file.strip_prefix("anon_inode:kvm-vcpu:")?.parse().ok())
        .map(|id| Vcpu { id, tid: None });
    let mut vcpus: Vec<Vcpu> = named.collect();
    if vcpus.is_empty() {
        vcpus = opened.collect();
    }
    vcpus.sort_by_key(|vcpu| (vcpu.id, vcpu.tid));
    vcpus.dedup();
    vcpus
}

/// The vCPU that a thread is named after: `CPU 3/KVM` (QEMU), `fc_vcpu 3` (Firecracker), `vcpu3` (Cloud Hypervisor),
/// `crosvm_vcpu3`.
fn vcpu_of_name(comm: &str) -> Option<u32> {
    let id = match comm.strip_prefix("CPU ") {
        Some(rest) => rest.strip_suffix("/KVM")?,
        None => ["fc_vcpu ", "crosvm_vcpu", "vcpu"].iter().find_map(|prefix| comm.strip_prefix(prefix))?,
    };
    id.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_named_after_vcpus() {
        assert_eq!(vcpu_of_name("CPU 3/KVM"), Some(3));
        assert_eq!(vcpu_of_name("CPU 3/TCG"), None);
        assert_eq!(vcpu_of_name("fc_vcpu 0"), Some(0));
        assert_eq!(vcpu_of_name("vcpu12"), Some(12));
        assert_eq!(vcpu_of_name("crosvm_vcpu1"), Some(1));
        assert_eq!(vcpu_of_name("vcpu_manager"), None);
    }
}
