//! Which KVM this is.

use dwell_machine::{Apicv, Machine, Sysroot, preemption_timer};
use serde::Serialize;
use std::fmt;

/// What KVM is built on, as far as it decides what an experiment can show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvmKind {
    /// The vendor module: `kvm_intel` (VMX), `kvm_amd` (SVM), `kvm_pvm` (no hardware help), if any is known.
    pub module: Option<String>,
    /// Whether this host is itself a guest.
    pub nested: bool,
    /// Whether interrupts are posted to running vCPUs without an exit (APICv, AVIC).
    pub posted_interrupts: Option<bool>,
    /// Whether the VMX preemption timer can keep the guest's timer.
    pub preemption_timer: Option<bool>,
}

impl KvmKind {
    /// Looks at this host.
    pub fn detect() -> KvmKind {
        KvmKind::of(&Sysroot::of_this_machine())
    }

    fn of(host: &dyn Machine) -> KvmKind {
        let has = |module: &&str| host.exists(&format!("/sys/module/{module}"));
        let module = ["kvm_pvm", "kvm_intel", "kvm_amd"].into_iter().find(has);
        let vendor = module.filter(|module| *module != "kvm_pvm");
        let cpuinfo = host.text("/proc/cpuinfo").unwrap_or_default();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        KvmKind {
            module: module.map(str::to_owned),
            nested: flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"),
            posted_interrupts: vendor.and_then(|_| Apicv::read(host)).map(|switch| switch.on),
            preemption_timer: vendor.and_then(|_| preemption_timer(host)),
        }
    }
}

impl fmt::Display for KvmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.module.as_deref() {
            Some("kvm_intel") => "VMX (kvm_intel)",
            Some("kvm_amd") => "SVM (kvm_amd)",
            Some("kvm_pvm") => "PVM (kvm_pvm: no hardware help, CPL0 of the guest is emulated)",
            _ => "an unknown kind of KVM",
        };
        write!(f, "{kind}, {}", if self.nested { "nested in another hypervisor" } else { "on bare metal" })?;
        let mut say = |what: &str, known: Option<bool>| match known {
            Some(true) => write!(f, ", {what}"),
            Some(false) => write!(f, ", no {what}"),
            None => Ok(()),
        };
        say("posted interrupts", self.posted_interrupts)?;
        say("preemption timer", self.preemption_timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

    #[test]
    fn reads_modules_and_flags() {
        let vmx = "/sys/module/kvm_intel/parameters";
        let host = Fake::new()
            .file(&format!("{vmx}/enable_apicv"), "Y\n")
            .file(&format!("{vmx}/preemption_timer"), "N\n")
            .file("/proc/cpuinfo", "processor : 0\nflags : fpu vmx\n");
        let kvm_kind = KvmKind::of(&host);
        assert_eq!(
            kvm_kind.to_string(),
            "VMX (kvm_intel), on bare metal, posted interrupts, no preemption timer"
        );
        let nothing = KvmKind::of(&Fake::new());
        assert_eq!(nothing.to_string(), "an unknown kind of KVM, on bare metal");
    }
}
