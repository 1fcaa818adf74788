//! A VM on a host.

use dwell_policy::timer::{Revision, Setup, VcpuConfig, VcpuState};
use serde::Serialize;

/// The kind of pCPUs that vCPUs run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pcpu {
    /// The kernel's own timers are on it.
    Housekeeping,
    /// `nohz_full=` keeps timers off it.
    Isolated,
}

/// A VM on a host, of whatever kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimerVm {
    /// The module parameter `pi_inject_timer` after initialisation.
    pub pi_inject_timer: bool,
    /// APICv or AVIC is active for this VM.
    pub apicv: bool,
    /// The host has the VMX preemption timer and uses it.
    pub preemption_timer: bool,
    /// MWAIT does not exit.
    pub mwait_in_guest: bool,
    /// HLT does not exit.
    pub hlt_in_guest: bool,
    /// What its vCPUs run on.
    pub pcpu: Pcpu,
    /// sysctl `kernel.timer_migration`.
    pub timer_migration: bool,
}

impl TimerVm {
    /// The VM under the rules of a kernel.
    pub fn setup(&self, revision: Revision) -> Setup {
        let config = VcpuConfig {
            pi_inject_timer: self.pi_inject_timer,
            apicv_active: self.apicv,
            mwait_in_guest: self.mwait_in_guest,
            hlt_in_guest: self.hlt_in_guest,
            pcpu_is_timer_housekeeping: self.pcpu == Pcpu::Housekeeping,
            hv_timer: self.preemption_timer,
        };
        Setup { timer_migration: self.timer_migration, ..Setup::of(revision, config) }
    }
}

/// A VM without disabled exits, on isolated CPUs of a host that has all there is for timers.
#[cfg(test)]
pub(crate) const VM: TimerVm = TimerVm {
    pi_inject_timer: true,
    apicv: true,
    preemption_timer: true,
    mwait_in_guest: false,
    hlt_in_guest: false,
    pcpu: Pcpu::Isolated,
    timer_migration: true,
};

/// The exits of one timer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bill {
    /// What carries the timer, and where it fires.
    pub path: &'static str,
    /// Exits of arming it.
    pub arming: u32,
    /// Whether arming takes the kernel's fast path.
    pub arming_is_fast: bool,
    /// Exits of its firing.
    pub firing: u32,
    /// How the guest gets it.
    pub fire: String,
}

/// The exits of one timer by where the vCPU is when it fires.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bills {
    /// The guest runs, and another housekeeping CPU runs, too, with an event of its own before the timer.
    pub running: Bill,
    /// The guest runs, and the other housekeeping CPUs are idle.
    pub running_beside_idle: Bill,
    pub idling: Bill,
}

impl Bills {
    /// As the model has them.
    pub fn of(setup: &Setup) -> Bills {
        let bill = |state, busy| {
            let elsewhere = setup.fires_elsewhere(busy);
            let exits = setup.exits(state, elsewhere);
            Bill {
                path: setup.path(state, elsewhere).words(),
                arming: exits.arming(),
                arming_is_fast: exits.msr_write_fast > 0,
                firing: exits.firing(),
                fire: exits.fire.to_string(),
            }
        };
        Bills {
            running: bill(VcpuState::InGuestMode, true),
            running_beside_idle: bill(VcpuState::InGuestMode, false),
            idling: bill(setup.idling(), true),
        }
    }
}
