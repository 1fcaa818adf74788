//! Processor architectures, as far as rules and defaults depend on them.

use crate::{Layer, Owner};

/// A processor architecture that Linux runs VMs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// x86-64, on which every rule was read.
    #[default]
    X86_64,
    /// 64-bit Arm.
    Arm64,
    /// IBM Z.
    S390x,
    /// POWER, 64 bits.
    Power,
    /// RISC-V, 64 bits.
    RiscV,
    /// LoongArch, 64 bits.
    LoongArch,
}

/// Every architecture: its name in texts, and those that kernels and distributors use, `uname -m` first.
const NAMES: [(Arch, &str, &[&str]); 6] = [
    (Arch::X86_64, "x86-64", &["x86_64", "amd64", "x86-64"]),
    (Arch::Arm64, "arm64", &["aarch64", "arm64"]),
    (Arch::S390x, "s390x", &["s390x"]),
    (Arch::Power, "POWER", &["ppc64le", "ppc64", "powerpc64le", "ppc64el", "power"]),
    (Arch::RiscV, "RISC-V", &["riscv64", "riscv", "risc-v"]),
    (Arch::LoongArch, "LoongArch", &["loongarch64", "loongarch", "loong64"]),
];

impl Arch {
    /// Every architecture.
    pub const ALL: [Arch; 6] =
        [Arch::X86_64, Arch::Arm64, Arch::S390x, Arch::Power, Arch::RiscV, Arch::LoongArch];

    /// That of this program; `None` if it is none of these.
    pub const HERE: Option<Arch> = if cfg!(target_arch = "x86_64") {
        Some(Arch::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Arch::Arm64)
    } else if cfg!(target_arch = "s390x") {
        Some(Arch::S390x)
    } else if cfg!(target_arch = "powerpc64") {
        Some(Arch::Power)
    } else if cfg!(target_arch = "riscv64") {
        Some(Arch::RiscV)
    } else if cfg!(target_arch = "loongarch64") {
        Some(Arch::LoongArch)
    } else {
        None
    };

    /// Its name in texts.
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// Its name in `uname -m`.
    pub const fn machine(self) -> &'static str {
        NAMES[self as usize].2[0]
    }

    /// The architecture of a name that `uname -m` or a distributor gives it.
    pub fn from_name(name: &str) -> Option<Arch> {
        let has = |(_, _, names): &&(Arch, &str, &[&str])| names.iter().any(|n| n.eq_ignore_ascii_case(name));
        NAMES.iter().find(has).map(|(arch, ..)| *arch)
    }

    /// `KVM_HALT_POLL_NS_DEFAULT` of `arch/*/include/asm/kvm_host.h` \[ns\].
    pub const fn halt_poll_ns(self) -> i64 {
        match self {
            Arch::X86_64 => 200_000,
            Arch::Arm64 | Arch::RiscV | Arch::LoongArch => 500_000,
            Arch::S390x => 50_000,
            Arch::Power => 10_000,
        }
    }

    /// Why a layer does not exist here, or is not modelled; `None` where it is.
    pub const fn lacks(self, owner: Owner) -> Option<&'static str> {
        let layer = match owner {
            _ if matches!(self, Arch::X86_64) => return None,
            Owner::Timer => return Some("only x86-64 has a local APIC timer"),
            Owner::Layer(layer) => layer,
        };
        match (layer, self) {
            (Layer::Iothread, _) => None,
            (Layer::Host, Arch::Power) => Some(
                "KVM on POWER polls by rules of its own, which are not modelled; before POWER9 one window for each \
                 virtual core and no KVM_CAP_HALT_POLL",
            ),
            // Only a distributor may have added haltpoll.
            (Layer::Host, _) | (Layer::Guest, Arch::Arm64) => None,
            (Layer::Guest, _) => Some("Linux has the haltpoll governor on x86-64 only, up to 7.3"),
            (Layer::Driver, _) => Some("dwell_idle is for x86-64"),
        }
    }

    /// What of the host's rule is not modelled here, or what else decides.
    pub const fn host_proviso(self) -> Option<&'static str> {
        match self {
            Arch::S390x => Some(
                "on s390x no vCPU polls while the host's steal time is at or above halt_poll_max_steal percent, and a \
                 wakeup that KVM does not count as valid shrinks the window: neither is modelled",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_found_again() {
        for arch in Arch::ALL {
            assert_eq!(NAMES[arch as usize].0, arch);
            assert_eq!(Arch::from_name(arch.machine()), Some(arch));
            assert_eq!(Arch::from_name(arch.name()), Some(arch));
        }
        assert_eq!(Arch::from_name("i686"), None);
    }
}
