//! The rows of a recording of timers.

use dwell_policy::timer::{Fire, VcpuState};
use serde::Serialize;

dwell_policy::named! {
    /// What carried a timer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Mechanism {
        /// The VMX preemption timer.
        HvTimer = "hv-timer",
        /// An hrtimer of the host.
        Hrtimer = "hrtimer",
    }

    /// The name used in files.
    pub fn name
}

dwell_policy::named! {
    /// For what a timer needs an exit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum TimerPart {
        /// The guest writes to a register of its timer.
        Arm = "arm",
        /// The timer fires.
        Fire = "fire",
    }

    /// The name used in files.
    pub fn name
}

/// A timer of a vCPU: from when it was armed to the guest entry after it fired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimerRow {
    /// Index into [`TimerRows::vcpus`](super::TimerRows::vcpus).
    pub vcpu: u32,
    /// When it was armed \[ns, the recording's clock\].
    pub armed_ns: u64,
    /// What carried it when it fired or was cancelled.
    pub mechanism: Option<Mechanism>,
    /// When it was set to fire \[ns, CLOCK_MONOTONIC of the host\]; known of an hrtimer.
    pub expires_ns: Option<u64>,
    /// When it fired \[ns, the recording's clock\]. `None`: it was cancelled or armed anew before.
    pub fired_ns: Option<u64>,
    /// The pCPU on which it was armed.
    pub armed_on: Option<u32>,
    /// The pCPU on which it fired.
    pub fired_on: Option<u32>,
    /// The pCPU on which the vCPU's thread ran, or ran last, when it fired.
    pub vcpu_on: Option<u32>,
    /// Where the vCPU was when it fired.
    pub state: Option<VcpuState>,
    /// How the vCPU noticed.
    pub fire: Option<Fire>,
    /// The first guest entry after it fired \[ns, the recording's clock\].
    pub entered_ns: Option<u64>,
    /// How late the guest was about to be entered, before KVM waited for the deadline \[guest TSC cycles\], from
    /// `kvm:kvm_wait_lapic_expire`; negative: early.
    pub late_tsc: Option<i64>,
}

impl TimerRow {
    /// A timer of which nothing is known but when it was armed.
    pub fn new(vcpu: u32, armed_ns: u64) -> TimerRow {
        TimerRow { vcpu, armed_ns, ..TimerRow::default() }
    }

    /// The latest time in it, but for when it was set to fire.
    pub(super) fn last_ns(&self) -> u64 {
        self.armed_ns.max(self.fired_ns.unwrap_or(0)).max(self.entered_ns.unwrap_or(0))
    }

    /// What cannot be in it: the column, and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        match (self.fired_ns, self.entered_ns) {
            (Some(fired_ns), _) if fired_ns < self.armed_ns => {
                Err(("fired_ns", format!("{fired_ns} is before the timer was armed, at {}", self.armed_ns)))
            }
            (Some(fired_ns), Some(entered_ns)) if entered_ns < fired_ns => {
                Err(("entered_ns", format!("{entered_ns} is before the timer fired, at {fired_ns}")))
            }
            (None, Some(_)) => Err(("entered_ns", "the timer did not fire".to_owned())),
            _ => Ok(()),
        }
    }
}

/// A VM exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitRow {
    /// Index into [`TimerRows::vcpus`](super::TimerRows::vcpus).
    pub vcpu: u32,
    /// When the guest was left \[ns, the recording's clock\].
    pub start_ns: u64,
    /// Until it was entered again \[ns\].
    pub duration_ns: u64,
    /// Index into [`TimerRows::reasons`](super::TimerRows::reasons).
    pub reason: u32,
    /// For which part of a timer it was, if it was for one.
    pub cause: Option<TimerPart>,
}

impl ExitRow {
    pub(super) fn last_ns(&self) -> u64 {
        self.start_ns.saturating_add(self.duration_ns)
    }
}
