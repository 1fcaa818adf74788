//! How timers of guests are delivered here.

use crate::cpu::NOHZ_FULL;
use crate::host::Loading;
use crate::kernel::Kernel;
use crate::parameter::{self, Parameter};
use crate::seam::Machine;
use dwell_policy::Owner;
use dwell_policy::timer::{PostingPredicate, Revision, pi_inject_timer_at_init};
use serde::{Deserialize, Serialize};

const PREEMPTION_TIMER: &str = "/sys/module/kvm_intel/parameters/preemption_timer";
const TIMER_MIGRATION: &str = "/proc/sys/kernel/timer_migration";

/// What determines how the timers of vCPUs are delivered.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Timer {
    /// The module parameters of KVM's local APIC timer.
    pub parameters: Vec<Parameter>,
    /// The switch by which interrupts can be posted into running guests; `None` if no vendor module shows one.
    #[serde(serialize_with = "on")]
    pub apicv: Option<Apicv>,
    /// Whether they can be posted; `None` if that is not known.
    pub can_post: Option<bool>,
    /// Whether guests' timers may use the VMX preemption timer; `None` without a vendor module.
    pub preemption_timer: Option<bool>,
    /// What this kernel asks for before it posts a timer; `None` if that is not known.
    #[serde(serialize_with = "in_words")]
    pub posting_needs: Option<PostingPredicate>,
    /// CPUs without a tick, as the kernel lists them; empty if none.
    pub nohz_full: String,
    /// CPUs that are isolated from the scheduler, as the kernel lists them; empty if none.
    pub isolated: String,
    /// `kernel.timer_migration`: whether timers may be put on another CPU.
    pub timer_migration: Option<bool>,
}

/// The switch of APICv (Intel) or AVIC (AMD).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apicv {
    /// Whether it is on.
    pub on: bool,
    pub path: &'static str,
}

impl Apicv {
    /// Reads the switch of the vendor module that is loaded; `None` without one.
    pub fn read(machine: &dyn Machine) -> Option<Apicv> {
        let switches =
            ["/sys/module/kvm_intel/parameters/enable_apicv", "/sys/module/kvm_amd/parameters/avic"];
        let all: Vec<Apicv> =
            switches.into_iter().filter_map(|path| Some(Apicv { on: machine.switch(path)?, path })).collect();
        all.iter().find(|switch| switch.on).or(all.first()).copied()
    }
}

/// Whether interrupts can be posted into running guests; `None` if that is not known.
pub fn can_post(machine: &dyn Machine) -> Option<bool> {
    // A KVM without a vendor module that has the switch, such as one of another kind, cannot.
    let none = (machine.is_whole() && machine.exists("/sys/module/kvm")).then_some(false);
    Apicv::read(machine).map(|switch| switch.on).or(none)
}

/// Whether guests' timers may use the VMX preemption timer, which no AMD CPU has; `None` without a vendor module.
pub fn preemption_timer(machine: &dyn Machine) -> Option<bool> {
    let is_amd = || Loading::read(machine, "kvm_amd").map(|_| false);
    machine.switch(PREEMPTION_TIMER).or_else(is_amd)
}

/// What a host has for the timers of any of its VMs, as far as it shows that; part of a recording of timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerHost {
    /// Whether interrupts can be posted into running guests.
    pub apicv: Option<bool>,
    /// Whether guests' timers may use the VMX preemption timer.
    pub preemption_timer: Option<bool>,
    /// Whether it has CPUs without a tick.
    pub nohz_full: Option<bool>,
    /// `kernel.timer_migration`.
    pub timer_migration: Option<bool>,
}

impl TimerHost {
    /// Reads it from a machine.
    pub fn read(machine: &dyn Machine) -> TimerHost {
        // Without a vendor module that has the switch there is none.
        let kvm = (machine.is_whole() && machine.exists("/sys/module/kvm")).then_some(false);
        let tickless = machine.exists(NOHZ_FULL).then(|| !crate::cpu::tickless(machine).is_empty());
        TimerHost {
            apicv: can_post(machine),
            preemption_timer: preemption_timer(machine).or(kvm),
            nohz_full: tickless,
            timer_migration: machine.switch(TIMER_MIGRATION),
        }
    }
}

impl Timer {
    pub(crate) fn read(machine: &dyn Machine, kernel: &Kernel) -> Timer {
        let rules = kernel.version.and_then(|version| Revision::rules(version).ok());
        let cpus = |path: &str| machine.text(path).filter(|list| list != "(null)").unwrap_or_default();
        let nohz_full = cpus(NOHZ_FULL);
        let mut parameters = parameter::read(machine, Owner::Timer, kernel.version);
        for value in parameters.iter_mut().filter(|value| value.name == "pi_inject_timer") {
            // -1 means that KVM decides when it loads; the file has what it decided.
            value.default = value
                .default
                .and_then(|default| i32::try_from(default).ok())
                .map(|default| i64::from(pi_inject_timer_at_init(default, !nohz_full.is_empty())));
        }
        Timer {
            parameters,
            apicv: Apicv::read(machine),
            preemption_timer: preemption_timer(machine),
            can_post: can_post(machine),
            posting_needs: rules.and_then(|rules| rules.agreed(Revision::posting)),
            nohz_full,
            isolated: cpus("/sys/devices/system/cpu/isolated"),
            timer_migration: machine.switch(TIMER_MIGRATION),
        }
    }

    /// Whether this kernel posts timers only for VMs that execute MWAIT or HLT themselves.
    pub fn posting_needs_disabled_exits(&self) -> bool {
        self.posting_needs == Some(PostingPredicate::Merged2022)
    }

    /// What this kernel asks for before it posts a timer, in words.
    pub fn posting_needs_words(&self) -> Option<&'static str> {
        self.posting_needs.map(words)
    }
}

const fn words(predicate: PostingPredicate) -> &'static str {
    match predicate {
        PostingPredicate::Merged2022 => {
            "pi_inject_timer, APICv or AVIC, and a VM that executes MWAIT or HLT itself (KVM_CAP_X86_DISABLE_EXITS)"
        }
        _ => "pi_inject_timer, and APICv or AVIC",
    }
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
fn on<S: serde::Serializer>(apicv: &Option<Apicv>, out: S) -> Result<S::Ok, S::Error> {
    apicv.map(|switch| switch.on).serialize(out)
}

#[allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
fn in_words<S: serde::Serializer>(needs: &Option<PostingPredicate>, out: S) -> Result<S::Ok, S::Error> {
    needs.map(words).serialize(out)
}
