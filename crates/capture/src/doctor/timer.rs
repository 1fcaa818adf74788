//! How timers of guests reach them here.

use super::kernel::Kernel;
use super::param::{self, Value};
use super::root::Root;
use dwell_policy::Layer;
use dwell_policy::timer::{PostingPredicate, Revision, pi_inject_timer_at_init};
use serde::Serialize;

/// What rules the timers of vCPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Timer {
    /// The module parameters of KVM's local APIC timer.
    pub parameters: Vec<Value>,
    /// Whether interrupts can be posted into running guests (`enable_apicv` of Intel, `avic` of AMD); `None` if neither
    /// vendor module is there.
    pub apicv: Option<bool>,
    /// Whether guests' timers may use the VMX preemption timer; `None` without `kvm_intel`.
    pub preemption_timer: Option<bool>,
    /// What this kernel asks for before it posts a timer; `None` if its rule is not known.
    pub posting_needs: Option<&'static str>,
    /// Whether posting also asks for MWAIT or HLT in the guest.
    #[serde(skip)]
    pub(super) posting_needs_disabled_exits: bool,
    /// CPUs without a tick, as the kernel lists them; empty if none.
    pub nohz_full: String,
    /// CPUs that are isolated from the scheduler, as the kernel lists them; empty if none.
    pub isolated: String,
    /// `kernel.timer_migration`: whether timers may be put on another CPU.
    pub timer_migration: Option<bool>,
}

impl Timer {
    pub(super) fn examine(root: &Root, kernel: &Kernel) -> Timer {
        let predicate = kernel.version.and_then(|version| Revision::of(version).ok()).map(Revision::posting);
        let flag = |path: &str| root.number(path).map(|value| value != 0);
        let cpus = |path: &str| root.text(path).ok().filter(|list| list != "(null)").unwrap_or_default();
        let nohz_full = cpus("/sys/devices/system/cpu/nohz_full");
        let mut parameters = param::values(root, Layer::Timer, kernel.version);
        for value in parameters.iter_mut().filter(|value| value.name == "pi_inject_timer") {
            // -1 means "KVM decides when it loads"; what it decides stands in the file.
            value.default = value
                .default
                .and_then(|default| i32::try_from(default).ok())
                .map(|default| i64::from(pi_inject_timer_at_init(default, !nohz_full.is_empty())));
        }
        Timer {
            parameters,
            apicv: flag("/sys/module/kvm_intel/parameters/enable_apicv")
                .or_else(|| flag("/sys/module/kvm_amd/parameters/avic")),
            preemption_timer: flag("/sys/module/kvm_intel/parameters/preemption_timer"),
            posting_needs: predicate.map(needs),
            posting_needs_disabled_exits: predicate == Some(PostingPredicate::Merged2022),
            nohz_full,
            isolated: cpus("/sys/devices/system/cpu/isolated"),
            timer_migration: flag("/proc/sys/kernel/timer_migration"),
        }
    }
}

fn needs(predicate: PostingPredicate) -> &'static str {
    match predicate {
        PostingPredicate::Merged2022 => {
            "pi_inject_timer, APICv or AVIC, and a VM that executes MWAIT or HLT itself (KVM_CAP_X86_DISABLE_EXITS)"
        }
        _ => "pi_inject_timer, and APICv or AVIC",
    }
}
