//! What a machine is asked with instructions and system calls, where no file tells.

use super::root::Absent;
use crate::kvm_stats::{SourceError, debugfs_readable};
use kvm_ioctls::Kvm;
use serde::Serialize;

/// `KVM_CAP_HALT_POLL`: a VM may have its own longest window.
const KVM_CAP_HALT_POLL: std::ffi::c_ulong = 182;
/// `KVM_CAP_X86_DISABLE_EXITS`: answers the mask of exits that may be disabled.
const KVM_CAP_X86_DISABLE_EXITS: std::ffi::c_ulong = 143;
/// `KVM_CAP_BINARY_STATS_FD`.
const KVM_CAP_BINARY_STATS_FD: std::ffi::c_ulong = 203;

/// The seam behind which instructions and system calls are faked in tests.
pub trait Machine {
    /// What the hypervisor below this machine says in CPUID; `None` on bare metal.
    fn hypervisor(&self) -> Option<Hypervisor>;
    /// What `/dev/kvm` answers.
    fn kvm_device(&self) -> KvmDevice;
    /// Whether this user may count and record events of every task on a CPU.
    fn perf(&self) -> Perf;
    /// Whether KVM's counters can be read from debugfs; `None` if that cannot be asked.
    fn kvm_statistics(&self) -> Option<Result<(), SourceError>>;
}

/// A hypervisor, from the CPUID leaves it offers to its guests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hypervisor {
    /// The 12 letters of its signature leaf, `KVMKVMKVM` for KVM.
    pub signature: String,
    /// KVM's feature bits, EAX of leaf base + 1; `None` for others.
    pub kvm_features: Option<u32>,
    /// KVM's hints, EDX of leaf base + 1; `None` for others.
    pub kvm_hints: Option<u32>,
}

impl Hypervisor {
    /// Whether it has KVM's signature, which haltpoll asks for.
    pub fn is_kvm(&self) -> bool {
        self.kvm_features.is_some()
    }

    /// `KVM_FEATURE_POLL_CONTROL`, bit 12: the guest may switch host polling off.
    pub fn poll_control(&self) -> bool {
        self.kvm_features.is_some_and(|bits| bits & (1 << 12) != 0)
    }

    /// `KVM_HINTS_REALTIME`, bit 0: vCPUs are never preempted for long; without it haltpoll needs `force`.
    pub fn realtime(&self) -> bool {
        self.kvm_hints.is_some_and(|bits| bits & 1 != 0)
    }
}

/// What `/dev/kvm` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum KvmDevice {
    /// It cannot be opened.
    Closed {
        /// Why.
        why: Absent,
    },
    /// It opens.
    Open {
        /// Whether `KVM_CAP_HALT_POLL` is there, with which a VMM overrides `halt_poll_ns` for its VM.
        halt_poll: bool,
        /// Exits that a VMM may disable: 1 MWAIT, 2 HLT, 4 PAUSE, 8 CSTATE.
        disable_exits: u32,
        /// Whether KVM has binary statistics.
        binary_stats: bool,
    },
    /// Another machine's files are read; its device cannot be asked.
    NotAsked,
}

/// Whether perf may watch every task on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Perf {
    /// It may.
    Allowed,
    /// The kernel refuses it to this user.
    Denied,
    /// The kernel has no perf, or a sandbox hides it.
    Missing,
    /// Another machine's files are read; its kernel cannot be asked.
    NotAsked,
}

/// The machine this program runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct ThisMachine;

impl Machine for ThisMachine {
    fn hypervisor(&self) -> Option<Hypervisor> {
        cpuid::hypervisor()
    }

    fn kvm_device(&self) -> KvmDevice {
        match Kvm::new() {
            Err(error) => KvmDevice::Closed { why: std::io::Error::from_raw_os_error(error.errno()).into() },
            Ok(kvm) => KvmDevice::Open {
                halt_poll: kvm.check_extension_raw(KVM_CAP_HALT_POLL) > 0,
                disable_exits: u32::try_from(kvm.check_extension_raw(KVM_CAP_X86_DISABLE_EXITS)).unwrap_or(0),
                binary_stats: kvm.check_extension_raw(KVM_CAP_BINARY_STATS_FD) > 0,
            },
        }
    }

    fn perf(&self) -> Perf {
        perf::all_tasks_of_a_cpu()
    }

    fn kvm_statistics(&self) -> Option<Result<(), SourceError>> {
        Some(debugfs_readable())
    }
}

/// A machine of which only files are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnlyFiles;

impl Machine for OnlyFiles {
    fn hypervisor(&self) -> Option<Hypervisor> {
        None
    }

    fn kvm_device(&self) -> KvmDevice {
        KvmDevice::NotAsked
    }

    fn perf(&self) -> Perf {
        Perf::NotAsked
    }

    fn kvm_statistics(&self) -> Option<Result<(), SourceError>> {
        None
    }
}

/// The hypervisor leaves of CPUID.
#[cfg(target_arch = "x86_64")]
mod cpuid {
    use super::Hypervisor;
    use core::arch::x86_64::__cpuid;

    /// Leaf 1, ECX: software below says that it is there.
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    /// Where the first hypervisor's leaves begin; a second one, shown beside it, begins a multiple of 0x100 higher.
    const FIRST: u32 = 0x4000_0000;
    const LAST: u32 = 0x4001_0000;
    const STEP: usize = 0x100;

    pub(super) fn hypervisor() -> Option<Hypervisor> {
        if __cpuid(1).ecx & HYPERVISOR_PRESENT == 0 {
            return None;
        }
        // A KVM that also poses as Hyper-V shows its own leaves higher up; Linux looks for them in the same way.
        (FIRST..LAST)
            .step_by(STEP)
            .find_map(kvm_at)
            .or_else(|| Some(Hypervisor { signature: signature(FIRST), kvm_features: None, kvm_hints: None }))
    }

    fn kvm_at(base: u32) -> Option<Hypervisor> {
        let signature = signature(base);
        (signature == "KVMKVMKVM").then(|| {
            let features = __cpuid(base + 1);
            Hypervisor { signature, kvm_features: Some(features.eax), kvm_hints: Some(features.edx) }
        })
    }

    fn signature(base: u32) -> String {
        let leaf = __cpuid(base);
        let letters: Vec<u8> =
            [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = String::from_utf8_lossy(&letters);
        text.trim_end_matches('\0').chars().filter(|c| !c.is_control()).collect()
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod cpuid {
    pub(super) fn hypervisor() -> Option<super::Hypervisor> {
        None
    }
}

/// The one question to perf.
mod perf {
    #![allow(unsafe_code)] // perf_event_open has no safe wrapper among our dependencies.

    use super::Perf;
    use perf_event_open_sys::bindings::{PERF_COUNT_SW_DUMMY, PERF_TYPE_SOFTWARE, perf_event_attr};
    use std::io;
    use std::os::fd::{FromRawFd, OwnedFd};

    /// Opens, and closes again, an event that counts nothing, of all tasks on one CPU and in the kernel: the right that
    /// recording tracepoints needs.
    pub(super) fn all_tasks_of_a_cpu() -> Perf {
        let size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
        let mut attr = perf_event_attr { type_: PERF_TYPE_SOFTWARE, size, ..Default::default() };
        attr.config = u64::from(PERF_COUNT_SW_DUMMY);
        // SAFETY: `attr` outlives the call; the kernel reads `attr.size` bytes of it, which is its size, and writes
        // nothing but that field. No pointer is kept. The answer is checked below.
        let fd = unsafe { perf_event_open_sys::perf_event_open(&raw mut attr, -1, 0, -1, 0) };
        if fd >= 0 {
            // SAFETY: a descriptor that is not negative was opened for us just now and is owned by nobody else.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            return Perf::Allowed;
        }
        match io::Error::last_os_error().kind() {
            io::ErrorKind::PermissionDenied => Perf::Denied,
            _ => Perf::Missing,
        }
    }
}
