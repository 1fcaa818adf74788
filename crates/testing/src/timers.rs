//! Recordings of timers: one with numbers that are known, and any one beside the model.

use dwell_policy::timer::{Exits, Path, Revision};
use dwell_recording::timer::{ExitRow, Fire, Mechanism, TimerPart, TimerRecording, TimerRow, VcpuState};
use dwell_recording::{Owner, SettingValue, SettingsChange, TimeRecorded};
use std::collections::BTreeMap;

/// `EXTERNAL_INTERRUPT` exits in the table of the patch of 2019, "KVM: LAPIC: Inject timer interrupt via
/// posted interrupt", before it and after it.
pub const PATCH_OF_2019: (u64, u64) = (42_916, 6_871);

/// The CPU of the vCPU, and the housekeeping CPU.
const OWN: u32 = 4;
const HOUSEKEEPING: u32 = 0;

/// One second of a vCPU with `before` exits by interrupts, of which `after` cannot be saved by posting: half
/// of those are no timer's, and the other half are of timers that fired on the vCPU's own CPU. hrtimers carry
/// the timers; each exit takes 700 ns. Only the two numbers are from a table; all else is made up.
pub fn exits_by_interrupts(before: u64, after: u64) -> TimerRecording {
    let reasons = ["EXTERNAL_INTERRUPT", "MSR_WRITE"].map(str::to_owned).to_vec();
    let mut recording = TimerRecording::default();
    recording.rows.vcpus = vec!["vm/7/vcpu0".to_owned()];
    recording.rows.reasons = reasons;
    let off = [("pi_inject_timer".to_owned(), SettingValue::Number(0))];
    recording.metadata.settings =
        vec![SettingsChange { at_ns: None, owner: Owner::Timer, values: off.into_iter().collect() }];
    recording.metadata.recorded = Some(TimeRecorded { start_ns: 0, end_ns: 1_000_000_000 });
    for number in 0..before {
        let at = number * 10_000;
        let exit = |start_ns, reason, cause| ExitRow { vcpu: 0, start_ns, duration_ns: 700, reason, cause };
        if number < after / 2 {
            recording.rows.exits.push(exit(at, 0, None));
            continue;
        }
        let own = number < after;
        recording.rows.exits.push(exit(at, 1, Some(TimerPart::Arm)));
        recording.rows.exits.push(exit(at + 5_000, 0, Some(TimerPart::Fire)));
        recording.rows.timers.push(TimerRow {
            mechanism: Some(Mechanism::Hrtimer),
            fired_ns: Some(at + 5_000),
            fired_on: Some(if own { OWN } else { HOUSEKEEPING }),
            vcpu_on: Some(OWN),
            state: Some(VcpuState::InGuestMode),
            fire: Some(if own { Fire::HostInterrupt } else { Fire::RescheduleIpi }),
            late_tsc: Some(if number % 10 == 0 { 400 } else { -200 }),
            ..TimerRow::new(0, at)
        });
    }
    recording
}

/// The timers of a recording without AVIC and without a preemption timer, each beside the model's.
#[derive(Debug, Default)]
pub struct Checked {
    /// Timers in the recording.
    pub timers: u64,
    /// Those that did not fire, or of which it was not recorded how.
    pub not_fired: u64,
    /// The others, by how the vCPU noticed.
    pub by_fire: BTreeMap<&'static str, u64>,
    /// Exits to arm them, by the model.
    pub armings: u64,
    /// Exits as they fire, by the model.
    pub firings: u64,
    /// Timers that deviate in mechanism or way.
    pub deviations: Vec<TimerRow>,
    /// For a model that takes the vCPU's CPU for another one and a halted vCPU for a running one.
    pub deviations_if_off: u64,
}

impl Checked {
    pub fn of(recording: &TimerRecording, revision: Revision) -> Checked {
        let mut checked = Checked::default();
        for row in &recording.rows.timers {
            checked.timers += 1;
            checked.armings += 1;
            let (Some(_), Some(state), Some(fire)) = (row.fired_ns, row.state, row.fire) else {
                checked.not_fired += 1;
                continue;
            };
            *checked.by_fire.entry(fire.name()).or_default() += 1;
            let Some(mechanism) = row.mechanism else {
                // The time had come when it was armed: no path, and no exit but that of arming.
                if fire != Fire::AlreadyOutside {
                    checked.deviations.push(*row);
                }
                continue;
            };
            // No vCPU of SVM without AVIC can have its timers posted.
            let path = |own| match (mechanism, own) {
                (Mechanism::HvTimer, _) => Path::HvTimer,
                (Mechanism::Hrtimer, true) => Path::HrtimerOwnPcpu,
                (Mechanism::Hrtimer, false) => Path::HrtimerOtherPcpu,
            };
            let own = row.fired_on == row.vcpu_on;
            let model = Exits::of(path(own), revision, state);
            checked.firings += u64::from(model.firing());
            if model.fire != fire || mechanism == Mechanism::HvTimer {
                checked.deviations.push(*row);
            }
            let off = Exits::of(path(!own), revision, VcpuState::InGuestMode);
            checked.deviations_if_off += u64::from(off.fire != fire);
        }
        checked
    }
}
