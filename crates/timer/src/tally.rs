//! A recording of timers, counted: all that a prediction of exits depends on.

use crate::pairing::OTHER;
use dwell_policy::timer::{Fire, VcpuState};
use dwell_recording::timer::{ExitRow, Mechanism, TimerPart, TimerRecording, TimerRow};
use serde::Serialize;
use std::collections::BTreeMap;

/// Timers that no set-up of a host treats differently from one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Whether it fired; those that were cancelled or armed anew have only been armed.
    pub fired: bool,
    /// Where the vCPU was when it fired, if that was recorded.
    pub state: Option<VcpuState>,
    /// Whether its hrtimer fired on another pCPU than the vCPU's; `None` of an hv timer, or if it was not recorded.
    pub elsewhere: Option<bool>,
}

impl Class {
    /// The class of a timer.
    pub fn of(timer: &TimerRow) -> Class {
        let is_hrtimer = timer.mechanism == Some(Mechanism::Hrtimer);
        let elsewhere = timer.fired_on.zip(timer.vcpu_on).filter(|_| is_hrtimer).map(|(at, of)| at != of);
        match timer.fired_ns {
            Some(_) => Class { fired: true, state: timer.state, elsewhere },
            None => Class { fired: false, state: None, elsewhere: None },
        }
    }
}

/// Exits of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    pub exits: u64,
    /// From exit to entry, all together \[ns\].
    pub total_ns: u128,
}

impl Part {
    fn add(&mut self, exit: &ExitRow) {
        self.exits += 1;
        self.total_ns += u128::from(exit.duration_ns);
    }

    /// Mean \[ns\]; `None` if there was none.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.exits > 0).then(|| self.total_ns as f64 / self.exits as f64)
    }
}

/// What an exit of a timer was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimerExit {
    /// The guest armed it.
    Arm,
    /// The VMX preemption timer fired.
    PreemptionTimer,
    /// An hrtimer fired: the interrupt of the host's timer, or that of a kick.
    Interrupt,
}

impl TimerExit {
    pub const ALL: [TimerExit; 3] = [TimerExit::Arm, TimerExit::PreemptionTimer, TimerExit::Interrupt];
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub timers: BTreeMap<Class, u64>,
    /// The exits of timers.
    pub of_timers: BTreeMap<TimerExit, Part>,
    /// The kernel's name for each of those that was recorded.
    pub reasons: BTreeMap<TimerExit, String>,
    /// All other exits, by reason.
    pub others: BTreeMap<String, Part>,
    /// Whether a timer was carried by the preemption timer.
    pub preemption_timer: bool,
    /// Timers that were posted.
    pub posted: u64,
    /// vCPUs with a timer.
    pub vcpus: usize,
    /// The time that rates are over \[ns\].
    pub span_ns: u64,
}

/// Whether a reason is the exit of HLT, whose time is sleep.
pub fn is_halt(reason: &str) -> bool {
    reason.eq_ignore_ascii_case("hlt")
}

impl Tally {
    pub fn of(recording: &TimerRecording) -> Tally {
        let mut tally = Tally { span_ns: recording.span_ns(), ..Tally::default() };
        let mut vcpus = vec![false; recording.rows.vcpus.len()];
        for timer in &recording.rows.timers {
            *tally.timers.entry(Class::of(timer)).or_default() += 1;
            tally.preemption_timer |= timer.mechanism == Some(Mechanism::HvTimer);
            tally.posted += u64::from(timer.fire == Some(Fire::Posted));
            if let Some(vcpu) = vcpus.get_mut(timer.vcpu as usize) {
                *vcpu = true;
            }
        }
        for exit in &recording.rows.exits {
            let reason = recording.rows.reasons.get(exit.reason as usize).map_or("", String::as_str);
            match kind(exit, reason) {
                Some(kind) => {
                    tally.of_timers.entry(kind).or_default().add(exit);
                    tally.reasons.entry(kind).or_insert_with(|| reason.to_owned());
                }
                None => tally.others.entry(reason.to_owned()).or_default().add(exit),
            }
        }
        tally.vcpus = vcpus.into_iter().filter(|has| *has).count();
        tally
    }

    /// The kernel's name for the exits of a kind: as recorded, else as the vendor of the other reasons names them.
    pub fn reason(&self, kind: TimerExit) -> String {
        if let Some(reason) = self.reasons.get(&kind) {
            return reason.clone();
        }
        // A number without a name does not show the vendor.
        let is_named = |name: &&String| !name.starts_with("0x") && *name != OTHER;
        let mut names = self.others.keys().chain(self.reasons.values()).filter(is_named);
        let is_svm = names.any(|name| name.chars().any(|c| c.is_ascii_lowercase()));
        match (kind, is_svm) {
            (TimerExit::Arm, false) => "MSR_WRITE",
            (TimerExit::Arm, true) => "msr",
            (TimerExit::Interrupt, false) => "EXTERNAL_INTERRUPT",
            (TimerExit::Interrupt, true) => "interrupt",
            (TimerExit::PreemptionTimer, _) => "PREEMPTION_TIMER",
        }
        .to_owned()
    }

    /// Whether an HLT exit was recorded.
    pub fn halts(&self) -> Part {
        self.others.iter().find(|(reason, _)| is_halt(reason)).map(|(_, part)| *part).unwrap_or_default()
    }
}

fn kind(exit: &ExitRow, reason: &str) -> Option<TimerExit> {
    match exit.cause? {
        // What a timer wakes is the halt's own exit.
        _ if is_halt(reason) => None,
        TimerPart::Arm => Some(TimerExit::Arm),
        TimerPart::Fire if reason.contains("PREEMPTION_TIMER") => Some(TimerExit::PreemptionTimer),
        TimerPart::Fire => Some(TimerExit::Interrupt),
    }
}
