//! The self-check: mechanism, way and exits of every recorded timer, against the model under the set-up in force.

use super::predict::Predictor;
use super::tally::{Class, TimerExit};
use dwell_policy::timer::Path;
use dwell_recording::timer::{Mechanism, TimerRecording};
use serde::Serialize;

/// What the check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TimerCheck {
    /// Timers in the recording.
    pub timers: u64,
    /// Those of which enough was recorded to compare them.
    pub compared: u64,
    /// Those that were carried by another mechanism than in the model.
    pub other_mechanism: u64,
    /// Those that the vCPU noticed in another way than in the model.
    pub other_fire: u64,
    /// Exits by what they were for.
    pub exits: Vec<ExitsOf>,
}

/// The exits of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExitsOf {
    /// What they were for.
    pub kind: TimerExit,
    pub recorded: u64,
    /// As the model has them.
    pub replayed: u64,
}

/// What the check allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// The model and the recording agree.
    Agrees,
    /// They differ, but not enough to give no advice.
    Differs,
    /// They contradict each other: no advice is given.
    Contradicts,
    /// Nothing could be compared.
    NothingToCompare,
}

impl TimerCheck {
    /// Timers that deviate in mechanism or way, and exits too many or too few.
    pub fn deviations(&self) -> u64 {
        let exits: u64 = self.exits.iter().map(|of| of.recorded.abs_diff(of.replayed)).sum();
        self.other_mechanism + self.other_fire + exits
    }

    /// By the limits of the other layers' self-check.
    pub fn agreement(&self) -> Agreement {
        if self.compared == 0 {
            return Agreement::NothingToCompare;
        }
        let share = self.deviations() as f64 / self.timers as f64;
        match share {
            share if share <= dwell_replay::check::AGREES => Agreement::Agrees,
            share if share <= dwell_replay::check::CONTRADICTS => Agreement::Differs,
            _ => Agreement::Contradicts,
        }
    }
}

/// Compares every timer with the model.
pub fn check(recording: &TimerRecording, predictor: &Predictor<'_>) -> TimerCheck {
    let Predictor { tally, in_force, recorded: setup } = predictor;
    let mut found = TimerCheck { timers: recording.rows.timers.len() as u64, ..TimerCheck::default() };
    for timer in &recording.rows.timers {
        let class = Class::of(timer);
        let Some((mechanism, state)) = timer.mechanism.zip(class.state) else { continue };
        found.compared += 1;
        let elsewhere = class.elsewhere.unwrap_or_else(|| setup.fires_elsewhere(in_force.busy_housekeeping));
        let path = setup.path(state, elsewhere);
        let expected = if path == Path::HvTimer { Mechanism::HvTimer } else { Mechanism::Hrtimer };
        if mechanism != expected {
            found.other_mechanism += 1;
        } else if timer.fire.is_some_and(|fire| fire != setup.exits(state, elsewhere).fire) {
            found.other_fire += 1;
        }
    }
    let replayed = predictor.exits_of_timers();
    let of = |kind: TimerExit| ExitsOf {
        kind,
        recorded: tally.of_timers.get(&kind).map_or(0, |part| part.exits),
        replayed: replayed.get(&kind).copied().unwrap_or(0),
    };
    found.exits = TimerExit::ALL.map(of).into_iter().filter(|of| of.recorded + of.replayed > 0).collect();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::HostSetup;
    use crate::tally::Tally;
    use crate::{Pcpu, TimerVm};
    use dwell_policy::timer::{Fire, VcpuState};
    use dwell_policy::version::Version;
    use dwell_recording::timer::{ExitRow, TimerPart, TimerRow, TimerRows};

    fn in_force(preemption_timer: bool) -> HostSetup {
        let vm = TimerVm {
            pi_inject_timer: false,
            apicv: false,
            preemption_timer,
            mwait_in_guest: false,
            hlt_in_guest: false,
            pcpu: Pcpu::Housekeeping,
            timer_migration: true,
        };
        HostSetup { kernel: Version::new(6, 18), vm, busy_housekeeping: false }
    }

    fn recording(fire: Fire) -> TimerRecording {
        let timer = TimerRow {
            mechanism: Some(Mechanism::Hrtimer),
            fired_ns: Some(20),
            fired_on: Some(1),
            vcpu_on: Some(1),
            state: Some(VcpuState::InGuestMode),
            fire: Some(fire),
            ..TimerRow::new(0, 10)
        };
        let exit =
            |reason, cause| ExitRow { vcpu: 0, start_ns: 10, duration_ns: 5, reason, cause: Some(cause) };
        let rows = TimerRows {
            vcpus: vec!["vcpu0".to_owned()],
            reasons: ["MSR_WRITE", "EXTERNAL_INTERRUPT"].map(str::to_owned).to_vec(),
            timers: vec![timer],
            exits: vec![exit(0, TimerPart::Arm), exit(1, TimerPart::Fire)],
        };
        TimerRecording { rows, ..TimerRecording::default() }
    }

    fn checked(recording: &TimerRecording, in_force: &HostSetup) -> TimerCheck {
        check(recording, &Predictor::new(&Tally::of(recording), *in_force).unwrap())
    }

    #[test]
    fn timers_as_in_the_model_do_not_deviate() {
        let found = checked(&recording(Fire::HostInterrupt), &in_force(false));
        assert_eq!((found.compared, found.deviations()), (1, 0));
        assert_eq!(found.agreement(), Agreement::Agrees);
    }

    #[test]
    fn another_way_another_mechanism_and_missing_exits_are_deviations() {
        let found = checked(&recording(Fire::RescheduleIpi), &in_force(false));
        assert_eq!((found.other_fire, found.deviations(), found.agreement()), (1, 1, Agreement::Contradicts));
        // With a preemption timer the model has another exit in place of the interrupt.
        let found = checked(&recording(Fire::HostInterrupt), &in_force(true));
        assert_eq!((found.other_mechanism, found.deviations()), (1, 3));
        let mut without = recording(Fire::HostInterrupt);
        without.rows.exits.pop();
        assert_eq!(checked(&without, &in_force(false)).deviations(), 1);
        let nothing = TimerRecording::default();
        assert_eq!(checked(&nothing, &in_force(false)).agreement(), Agreement::NothingToCompare);
    }
}
