//! KVM on this machine, and the VMs that run on it.

use crate::kernel::Kernel;
use crate::kvm::KvmDevice;
use crate::parameter::{self, Parameter};
use crate::process::{self, Process};
use crate::seam::Machine;
use dwell_policy::Layer;
use dwell_policy::host::{MaxSource, Revision};
use dwell_policy::version::Version;
use serde::Serialize;
use std::io;

/// What determines halt polling of vCPUs here.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// How KVM got into the kernel; `None` if it is not there.
    pub kvm: Option<Loading>,
    /// What is known of KVM if it is not there.
    #[serde(skip)]
    pub kvm_absence: Absence,
    /// The vendor modules in the kernel: `kvm_intel`, `kvm_amd`, `kvm_pvm`.
    pub vendor: Vec<String>,
    /// The state of `/dev/kvm`.
    pub device: KvmDevice,
    /// Where the longest window comes from on this kernel; `None` if that is not known.
    #[serde(serialize_with = "in_words")]
    pub max_source: Option<MaxSource>,
    pub parameters: Vec<Parameter>,
    /// The running VMs that this user can see.
    pub vms: Vec<Vm>,
    /// Processes whose open files this user may not see; VMs may be among them.
    pub unseen_processes: usize,
    /// Whether a VM has an override of its own cannot be read from outside: `KVM_CAP_HALT_POLL` can be set, not read.
    pub overrides_visible: bool,
}

/// How a module got into the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Loading {
    #[serde(rename = "module")]
    Loaded,
    /// It is part of the kernel image.
    BuiltIn,
}

impl Loading {
    /// How the module of this name got into the kernel; `None` if it is not there.
    pub fn read(machine: &dyn Machine, name: &str) -> Option<Loading> {
        let folder = format!("/sys/module/{name}");
        // Only modules that were loaded have a state.
        if listed(machine).iter().any(|module| module == name)
            || machine.exists(&format!("{folder}/initstate"))
        {
            return Some(Loading::Loaded);
        }
        machine.exists(&folder).then_some(Loading::BuiltIn)
    }
}

/// The modules that `/proc/modules` lists.
fn listed(machine: &dyn Machine) -> Vec<String> {
    let text = machine.text("/proc/modules").unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// What is known of a module that is not in the running kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    NotLoaded,
    /// This kernel was built without it.
    NotBuilt,
    NotKnown,
}

impl Absence {
    /// Of KVM, where [`Loading::read`] does not find it.
    fn of_kvm(machine: &dyn Machine, kernel: &Kernel) -> Absence {
        if machine.names("/sys/module").is_err() {
            return Absence::NotKnown;
        }
        let release = kernel.release.as_deref().unwrap_or_default();
        match machine.contains(&format!("/lib/modules/{release}/modules.dep"), b"/kvm.ko") {
            Ok(false) => Absence::NotBuilt,
            Ok(true) | Err(_) => Absence::NotLoaded,
        }
    }
}

/// A process that holds a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Vm {
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
    /// How it has run on average since it began, if /proc has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub average: Option<Average>,
}

/// How a VM has run on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Average {
    /// CPU time of its process \[ns a second\].
    pub cpu_ns_per_s: u64,
    /// How often its vCPUs have slept, a second.
    pub sleeps_per_s: u64,
    /// CPU time of its vCPUs \[ns a second\].
    pub vcpus_ns_per_s: u64,
    /// How long its vCPUs have waited for a CPU that others had \[ns a second\].
    pub vcpus_waited_ns_per_s: u64,
}

impl Average {
    fn of(machine: &dyn Machine, pid: u32, vcpus: &[Vcpu]) -> Option<Average> {
        let folder = format!("/proc/{pid}");
        let begun = process::stat_field(&machine.text(&format!("{folder}/stat"))?, 22)?;
        let uptime = machine.text("/proc/uptime")?;
        let seconds: u64 = uptime.split('.').next()?.parse().ok()?;
        let seconds = seconds.checked_sub(begun / rustix::param::clock_ticks_per_second().max(1))?;
        // CPU time and time that it waited for a CPU.
        let times = |tid: u32| -> Option<[u64; 2]> {
            let text = machine.text(&format!("{folder}/task/{tid}/schedstat"))?;
            let mut fields = text.split_whitespace().map(|field| field.parse().ok());
            Some([fields.next()??, fields.next()??])
        };
        let sleeps = |tid: u32| -> Option<u64> {
            let status = machine.text(&format!("{folder}/task/{tid}/status"))?;
            process::field(&status, "voluntary_ctxt_switches")?.parse().ok()
        };
        let tasks = machine.numbers(&format!("{folder}/task")).into_iter();
        let cpu_ns: u64 = tasks.filter_map(|tid| Some(times(tid)?[0])).sum();
        let [ran_ns, waited_ns] =
            [0, 1].map(|field| vcpus.iter().filter_map(|vcpu| Some(times(vcpu.tid?)?[field])).sum::<u64>());
        let slept: u64 = vcpus.iter().filter_map(|vcpu| sleeps(vcpu.tid?)).sum();
        Some(Average {
            cpu_ns_per_s: cpu_ns.checked_div(seconds)?,
            sleeps_per_s: slept.checked_div(seconds)?,
            vcpus_ns_per_s: ran_ns.checked_div(seconds)?,
            vcpus_waited_ns_per_s: waited_ns.checked_div(seconds)?,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vcpu {
    pub id: u32,
    /// The thread that runs it, where a thread is named after it.
    pub tid: Option<u32>,
}

impl Host {
    pub(crate) fn read(machine: &dyn Machine, kernel: &Kernel, processes: &[Process]) -> Host {
        let mut vendor = machine.names("/sys/module").unwrap_or_default();
        vendor.extend(listed(machine));
        vendor.retain(|name| name.starts_with("kvm_"));
        vendor.sort();
        vendor.dedup();
        Host {
            kvm: Loading::read(machine, "kvm"),
            kvm_absence: Absence::of_kvm(machine, kernel),
            vendor,
            device: machine.kvm_device(),
            max_source: max_source(machine, kernel.version),
            parameters: parameter::read(machine, Layer::Host, kernel.version),
            vms: processes.iter().filter_map(|process| Vm::of(machine, process)).collect(),
            unseen_processes: processes.iter().filter(|process| process.files.is_none()).count(),
            overrides_visible: false,
        }
    }

    /// The number of running VMs that this user can see.
    pub fn running_vms(&self) -> usize {
        self.vms.iter().map(|vm| vm.count).sum()
    }

    /// Where the longest window comes from, in words.
    pub fn max_source_words(&self) -> Option<&'static str> {
        self.max_source.map(words)
    }
}

/// Where the longest window comes from: as the kernel's own list of types shows it, else by its version.
pub fn max_source(machine: &dyn Machine, version: Option<Version>) -> Option<MaxSource> {
    let rules = Revision::rules(version?).ok()?;
    of_types(machine).or_else(|| rules.agreed(Revision::max_source))
}

/// Where the members of `struct kvm` show the longest window to come from; `None` if the kernel does not show its types.
fn of_types(machine: &dyn Machine) -> Option<MaxSource> {
    let types = ["/sys/kernel/btf/kvm", "/sys/kernel/btf/vmlinux"];
    let has = |name: &[u8]| types.iter().any(|path| machine.contains(path, name).unwrap_or(false));
    // Of the vCPU, and in every version.
    if !has(b"\0halt_poll_ns\0") {
        return None;
    }
    // The second came with the live reading (9eb8ca049c23).
    Some(match (has(b"\0max_halt_poll_ns\0"), has(b"\0override_halt_poll_ns\0")) {
        (false, _) => MaxSource::Live,
        (true, false) => MaxSource::CopiedAtCreation,
        (true, true) => MaxSource::CapElseLive,
    })
}

const fn words(source: MaxSource) -> &'static str {
    match source {
        MaxSource::Live => "halt_poll_ns is read at every halt; a write is in force for running VMs",
        MaxSource::CopiedAtCreation => {
            "halt_poll_ns is copied when a VM is created (or set by KVM_CAP_HALT_POLL); running VMs keep what they have"
        }
        MaxSource::CapElseLive => {
            "halt_poll_ns is read at every halt, except for VMs whose VMM has set KVM_CAP_HALT_POLL"
        }
    }
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
fn in_words<S: serde::Serializer>(source: &Option<MaxSource>, out: S) -> Result<S::Ok, S::Error> {
    source.map(words).serialize(out)
}

/// Whether a process holds a VM.
///
/// # Errors
/// The system's error where this user may not see the process's open files, or the process has ended.
pub fn holds_vm(machine: &dyn Machine, pid: u32) -> io::Result<bool> {
    let folder = format!("/proc/{pid}/fd");
    let holds = |fd: &String| machine.target(&format!("{folder}/{fd}")).is_ok_and(|link| link == VM);
    Ok(machine.names(&folder)?.iter().any(holds))
}

/// Where the descriptor of a VM leads.
const VM: &str = "anon_inode:kvm-vm";

impl Vm {
    fn of(machine: &dyn Machine, process: &Process) -> Option<Vm> {
        let files = process.files.as_ref()?;
        let count = files.iter().filter(|file| *file == VM).count();
        if count == 0 {
            return None;
        }
        let vcpus = vcpus(process, files);
        Some(Vm {
            pid: process.pid,
            comm: process.comm.clone(),
            name: process.vm_name(),
            count,
            average: Average::of(machine, process.pid, &vcpus),
            vcpus,
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
/// `crosvm_vcpu3`, `kvm-vcpu-3` (kvmtool).
fn vcpu_of_name(comm: &str) -> Option<u32> {
    let id = match comm.strip_prefix("CPU ") {
        Some(rest) => rest.strip_suffix("/KVM")?,
        None => ["fc_vcpu ", "crosvm_vcpu", "kvm-vcpu-", "vcpu"]
            .iter()
            .find_map(|prefix| comm.strip_prefix(prefix))?,
    };
    id.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn what_the_kernel_shows_of_its_types_outranks_its_version() {
        let source = |release: &str, types: &str| {
            let machine = Fake::new().file("/sys/kernel/btf/vmlinux", types);
            max_source(&machine, Version::parse(release))
        };
        let (copied, live) = (
            "\0halt_poll_ns\0max_halt_poll_ns\0",
            "\0max_halt_poll_ns\0halt_poll_ns\0override_halt_poll_ns\0",
        );
        for release in ["5.14.0-503.11.1.el9_5", "5.15.39", "6.18.44", "5.4.286"] {
            assert_eq!(source(release, copied), Some(MaxSource::CopiedAtCreation), "{release}");
            assert_eq!(source(release, live), Some(MaxSource::CapElseLive), "{release}");
            assert_eq!(source(release, "\0halt_poll_ns\0"), Some(MaxSource::Live), "{release}");
        }
        // KVM is not in these types.
        assert_eq!(source("5.15.39", "\0task_struct\0"), Some(MaxSource::CopiedAtCreation));
        assert_eq!(source("5.14.0-503.11.1.el9_5", "\0task_struct\0"), None);
        assert_eq!(source("6.18.44-ppc64le", live), None);
    }

    #[test]
    fn threads_named_after_vcpus() {
        assert_eq!(vcpu_of_name("CPU 3/KVM"), Some(3));
        assert_eq!(vcpu_of_name("CPU 3/TCG"), None);
        assert_eq!(vcpu_of_name("fc_vcpu 0"), Some(0));
        assert_eq!(vcpu_of_name("vcpu12"), Some(12));
        assert_eq!(vcpu_of_name("kvm-vcpu-2"), Some(2));
        assert_eq!(vcpu_of_name("crosvm_vcpu1"), Some(1));
        assert_eq!(vcpu_of_name("vcpu_manager"), None);
    }

    #[test]
    fn what_is_known_of_a_kvm_that_is_not_there() {
        let absence = |machine: Fake| {
            let machine = machine.file("/proc/sys/kernel/osrelease", "6.8.0");
            Absence::of_kvm(&machine, &Kernel::read(&machine))
        };
        assert_eq!(absence(Fake::new()), Absence::NotKnown);
        let shows = || Fake::new().file("/sys/module/nfs/initstate", "live");
        assert_eq!(absence(shows()), Absence::NotLoaded);
        let of = |list| absence(shows().file("/lib/modules/6.8.0/modules.dep", list));
        assert_eq!(of("kernel/arch/x86/kvm/kvm.ko.zst:\n"), Absence::NotLoaded);
        assert_eq!(of("kernel/fs/nfs/nfs.ko:\n"), Absence::NotBuilt);
    }

    #[test]
    fn modules_that_were_loaded_and_modules_that_are_built_in() {
        let machine = Fake::new()
            .file("/sys/module/kvm/initstate", "live\n")
            .file("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "0\n");
        assert_eq!(Loading::read(&machine, "kvm"), Some(Loading::Loaded));
        assert_eq!(Loading::read(&machine, "haltpoll"), Some(Loading::BuiltIn));
        assert_eq!(Loading::read(&machine, "kvm_amd"), None);
        let listed = Fake::new().file("/proc/modules", "kvm 1 0 - Live 0x0\nkvm_intel 1 0 - Live 0x0\n");
        assert_eq!(crate::Facts::read(&listed).host.vendor, ["kvm_intel"]);
        assert_eq!(Loading::read(&listed, "kvm"), Some(Loading::Loaded));
    }
}
