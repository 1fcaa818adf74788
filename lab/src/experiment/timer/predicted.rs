//! What the model of KVM's timer predicts: which mechanism carries a guest's timer, and how many exits it costs.
//!
//! Nothing here is measured. The model is `dwell_policy::timer`; its facts about this host are read from sysfs, and the
//! other hosts are assumed to run the same kernel.

use super::super::{LabError, Rig};
use crate::vm::KvmKind;
use dwell_machine::{Machine, Sysroot, cpu as cpus, kernel};
use dwell_policy::timer::{
    Advance, AdvanceParameter, PI_INJECT_TIMER_DEFAULT, Revision, Setup, VcpuConfig, VcpuState,
    pi_inject_timer_at_init,
};
use dwell_policy::version::Version;
use serde::Serialize;

/// The bill of one timer on one host, as the model has it. HLT exits are not in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Predicted {
    pub host: String,
    /// Whether HLT does not exit (`KVM_CAP_X86_DISABLE_EXITS`).
    pub hlt_in_guest: bool,
    /// Whether `nohz_full=` keeps timers away from the vCPU's CPU.
    pub housekeeping: bool,
    /// How early the timer is set.
    pub advance: String,
    /// Where the guest runs when its timer fires.
    pub running: ExitCounts,
    /// Where it has halted.
    pub halted: ExitCounts,
}

/// One timer's way and exits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExitCounts {
    /// What carries it and where it fires.
    pub path: &'static str,
    /// Exits of setting it.
    pub arming: u32,
    /// Exits of its firing.
    pub firing: u32,
    /// How it is felt.
    pub fire: String,
}

/// A host as the model sees it.
struct Assumptions {
    name: &'static str,
    posts: bool,
    hv_timer: bool,
    hlt_in_guest: bool,
    housekeeping: bool,
    /// The module parameter after initialisation.
    pi_inject: bool,
    timer_migration: bool,
}

/// The rows for this host, as it is and with `nohz_full=`, and for three others with the same kernel: one with the VMX
/// preemption timer, one with APICv beside it, and one with AVIC.
///
/// # Errors
/// [`LabError::UnknownKernel`] where the model does not know the running kernel.
pub fn predicted(rig: &Rig) -> Result<Vec<Predicted>, LabError> {
    let machine = Sysroot::of_this_machine();
    let release = kernel::release(&machine).and_then(|text| Version::parse(&text));
    let revision = release.and_then(|version| Revision::of(version).ok()).ok_or(LabError::UnknownKernel)?;
    let cpu = rig.cores().vcpus.first().map_or(0, |cpu| cpu.0);
    let advance = advance(revision, &machine);
    let this = this_host(rig.kvm_kind(), cpu, &machine);
    let hosts = [this].into_iter().flat_map(with_and_without).chain(others());
    Ok(hosts.map(|host| host.predict(revision, advance)).collect())
}

fn this_host(kvm_kind: &KvmKind, cpu: u32, machine: &dyn Machine) -> Assumptions {
    let housekeeping = cpus::tickless(machine).contains(&cpu);
    let pi_inject = machine.switch("/sys/module/kvm/parameters/pi_inject_timer");
    Assumptions {
        name: "this host",
        posts: kvm_kind.posted_interrupts == Some(true),
        hv_timer: kvm_kind.preemption_timer == Some(true),
        hlt_in_guest: false,
        housekeeping,
        pi_inject: pi_inject.unwrap_or(housekeeping),
        timer_migration: machine.switch("/proc/sys/kernel/timer_migration").unwrap_or(true),
    }
}

/// This host as it is, and as if timers had been taken off the vCPU's CPU.
fn with_and_without(this: Assumptions) -> Vec<Assumptions> {
    if this.housekeeping {
        return vec![this];
    }
    let isolated = Assumptions {
        name: "this host with nohz_full",
        housekeeping: true,
        pi_inject: true,
        hv_timer: this.hv_timer,
        ..this
    };
    vec![this, isolated]
}

fn others() -> impl Iterator<Item = Assumptions> {
    let kinds = [
        ("VMX preemption timer", false, true),
        ("VMX with APICv", true, true),
        ("SVM with AVIC", true, false),
    ];
    let both = [false, true];
    kinds.into_iter().flat_map(move |(name, posts, hv_timer)| {
        both.into_iter().flat_map(move |housekeeping| {
            both.into_iter().map(move |hlt_in_guest| Assumptions {
                name,
                posts,
                hv_timer,
                hlt_in_guest,
                housekeeping,
                pi_inject: pi_inject_timer_at_init(PI_INJECT_TIMER_DEFAULT, housekeeping),
                timer_migration: true,
            })
        })
    })
}

/// How early timers are set: by the module's parameter, or where that cannot be read, by its default.
fn advance(revision: Revision, machine: &dyn Machine) -> Advance {
    let path = |name: &str| format!("/sys/module/kvm/parameters/{name}");
    let of_12 = || Some(AdvanceParameter::LapicTimerAdvance(machine.switch(&path("lapic_timer_advance"))?));
    let older = || {
        let ns = machine.number(&path("lapic_timer_advance_ns"))?.try_into().ok()?;
        Some(AdvanceParameter::LapicTimerAdvanceNs(ns))
    };
    let of = |parameter| Advance::of(revision, parameter);
    of_12().and_then(of).or_else(|| older().and_then(of)).unwrap_or(Advance::ADAPTIVE)
}

fn in_words(advance: Advance) -> String {
    match (advance.is_adaptive(), advance.ns()) {
        (true, ns) => format!("adaptive from {ns} ns"),
        (false, 0) => "none".to_owned(),
        (false, ns) => format!("{ns} ns"),
    }
}

impl Assumptions {
    fn config(&self) -> VcpuConfig {
        VcpuConfig {
            pi_inject_timer: self.pi_inject,
            apicv_active: self.posts,
            mwait_in_guest: false,
            hlt_in_guest: self.hlt_in_guest,
            pcpu_is_timer_housekeeping: !self.housekeeping,
            hv_timer: self.hv_timer,
        }
    }

    fn predict(&self, revision: Revision, advance: Advance) -> Predicted {
        let setup = Setup { timer_migration: self.timer_migration, ..Setup::of(revision, self.config()) };
        // Beside a busy housekeeping CPU that has nothing to do later.
        let elsewhere = setup.fires_elsewhere(true);
        let counts = |state| {
            let exits = setup.exits(state, elsewhere);
            ExitCounts {
                path: setup.path(state, elsewhere).words(),
                arming: exits.arming(),
                firing: exits.firing(),
                fire: exits.fire.to_string(),
            }
        };
        Predicted {
            host: self.name.to_owned(),
            hlt_in_guest: self.hlt_in_guest,
            housekeeping: self.housekeeping,
            advance: in_words(advance),
            running: counts(VcpuState::InGuestMode),
            halted: counts(setup.idling()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;

    fn rows(revision: Revision) -> Vec<Predicted> {
        others().map(|host| host.predict(revision, Advance::ADAPTIVE)).collect()
    }

    fn row(rows: &[Predicted], host: &str, housekeeping: bool, hlt_in_guest: bool) -> Predicted {
        let wanted = |row: &&Predicted| {
            row.host == host && row.housekeeping == housekeeping && row.hlt_in_guest == hlt_in_guest
        };
        rows.iter().find(wanted).unwrap().clone()
    }

    #[test]
    fn a_running_guest_is_posted_to_only_with_housekeeping_and_since_2022_only_without_hlt_exits() {
        let now = rows(Revision::V6_12);
        for host in ["VMX with APICv", "SVM with AVIC"] {
            let posted = row(&now, host, true, true);
            assert_eq!((posted.running.path, posted.running.firing), ("posted, other CPU", 0), "{host}");
            assert_ne!(row(&now, host, true, false).running.firing, 0, "{host}");
            assert_ne!(row(&now, host, false, true).running.firing, 0, "{host}");
        }
        assert_eq!(row(&rows(Revision::V5_4), "VMX with APICv", true, false).running.firing, 0);
    }

    #[test]
    fn who_halts_leaves_the_preemption_timer_to_an_hrtimer() {
        let row = row(&rows(Revision::V6_12), "VMX with APICv", false, false);
        assert_eq!((row.running.path, row.running.firing), ("preemption timer", 1));
        assert_eq!((row.halted.path, row.halted.firing), ("hrtimer, own CPU", 0));
        assert_eq!((row.running.arming, row.halted.arming), (1, 1));
    }

    #[test]
    fn this_host_is_read_from_its_parameters() {
        let kvm_kind = KvmKind {
            module: Some("kvm_intel".to_owned()),
            nested: false,
            posted_interrupts: Some(true),
            preemption_timer: Some(true),
        };
        let files = |nohz, inject, advance| {
            Fake::new()
                .file("/sys/devices/system/cpu/nohz_full", nohz)
                .file("/sys/module/kvm/parameters/pi_inject_timer", inject)
                .file("/sys/module/kvm/parameters/lapic_timer_advance", advance)
        };
        let revision = Revision::V6_12;
        let isolated = this_host(&kvm_kind, 3, &files("2-3", "Y", "N"));
        assert!(isolated.housekeeping && isolated.pi_inject && isolated.hv_timer);
        assert_eq!(with_and_without(isolated).len(), 1);
        let plain = this_host(&kvm_kind, 1, &files("2-3", "N", "Y"));
        assert!(!plain.housekeeping && !plain.pi_inject);
        assert_eq!(with_and_without(plain).len(), 2);
        assert_eq!(in_words(advance(revision, &files("", "N", "N"))), "none");
        assert_eq!(in_words(advance(revision, &files("", "N", "Y"))), "adaptive from 1000 ns");
        assert_eq!(in_words(advance(Revision::V5_4, &files("", "N", "Y"))), "adaptive from 1000 ns");
    }
}
