//! The hypervisor below this machine, from the CPUID leaves that it offers to its guests.

use serde::Serialize;

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
    /// KVM, with these feature bits and hints.
    pub fn kvm(features: u32, hints: u32) -> Hypervisor {
        Hypervisor { signature: KVM.to_owned(), kvm_features: Some(features), kvm_hints: Some(hints) }
    }

    /// Whether it has KVM's signature, without which haltpoll does not load.
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

const KVM: &str = "KVMKVMKVM";

#[cfg(target_arch = "x86_64")]
pub(crate) use cpuid::hypervisor as below_this_cpu;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn below_this_cpu() -> Option<Hypervisor> {
    None
}

/// The hypervisor leaves of CPUID.
#[cfg(target_arch = "x86_64")]
mod cpuid {
    use super::{Hypervisor, KVM};
    use raw_cpuid::cpuid;

    /// Leaf 1, ECX: a hypervisor is present.
    const HYPERVISOR_PRESENT: u32 = 1 << 31;
    /// Where the first hypervisor's leaves begin; a second one, shown beside it, begins a multiple of 0x100 higher.
    const FIRST: u32 = 0x4000_0000;
    const LAST: u32 = 0x4001_0000;
    const STEP: usize = 0x100;

    pub(crate) fn hypervisor() -> Option<Hypervisor> {
        if cpuid!(1).ecx & HYPERVISOR_PRESENT == 0 {
            return None;
        }
        // A KVM that also poses as Hyper-V shows its own leaves higher up; Linux looks for them in the same way.
        (FIRST..LAST)
            .step_by(STEP)
            .find_map(kvm_at)
            .or_else(|| Some(Hypervisor { signature: signature(FIRST), kvm_features: None, kvm_hints: None }))
    }

    fn kvm_at(base: u32) -> Option<Hypervisor> {
        (signature(base) == KVM).then(|| {
            let features = cpuid!(base + 1);
            Hypervisor::kvm(features.eax, features.edx)
        })
    }

    fn signature(base: u32) -> String {
        let leaf = cpuid!(base);
        let letters: Vec<u8> =
            [leaf.ebx, leaf.ecx, leaf.edx].iter().flat_map(|word| word.to_le_bytes()).collect();
        let text = String::from_utf8_lossy(&letters);
        text.trim_end_matches('\0').chars().filter(|c| !c.is_control()).collect()
    }
}
