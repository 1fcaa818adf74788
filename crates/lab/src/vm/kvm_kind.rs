//! Which KVM this is.

use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::Path;

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
        KvmKind::under(Path::new("/"))
    }

    fn under(root: &Path) -> KvmKind {
        let has = |module: &str| root.join("sys/module").join(module).exists();
        let module = ["kvm_pvm", "kvm_intel", "kvm_amd"].into_iter().find(|module| has(module));
        let flag = |name: &str| {
            let path = root.join("sys/module").join(module?).join("parameters").join(name);
            Some(matches!(fs::read_to_string(path).ok()?.trim(), "Y" | "1"))
        };
        let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        KvmKind {
            module: module.map(str::to_owned),
            nested: flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"),
            posted_interrupts: flag("enable_apicv").or_else(|| flag("avic")),
            preemption_timer: flag("preemption_timer"),
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

    #[test]
    fn reads_modules_and_flags() {
        let root = tempfile::tempdir().unwrap();
        let parameters = root.path().join("sys/module/kvm_intel/parameters");
        fs::create_dir_all(&parameters).unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        fs::write(parameters.join("enable_apicv"), "Y\n").unwrap();
        fs::write(parameters.join("preemption_timer"), "N\n").unwrap();
        fs::write(root.path().join("proc/cpuinfo"), "processor : 0\nflags : fpu vmx\n").unwrap();
        let kvm_kind = KvmKind::under(root.path());
        assert_eq!(
            kvm_kind.to_string(),
            "VMX (kvm_intel), on bare metal, posted interrupts, no preemption timer"
        );
        let nothing = KvmKind::under(Path::new("/nonexistent"));
        assert_eq!(nothing.to_string(), "an unknown kind of KVM, on bare metal");
    }
}
