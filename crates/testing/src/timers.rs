//! A recording of timers with numbers that are known.

use dwell_recording::timer::{ExitRow, Fire, Mechanism, TimerPart, TimerRecording, TimerRow, VcpuState};
use dwell_recording::{Layer, SettingValue, SettingsChange, TimeRecorded};

/// `EXTERNAL_INTERRUPT` exits in the table of the patch of 2019, "KVM: LAPIC: Inject timer interrupt via posted interrupt",
/// before it and after it.
pub const PATCH_OF_2019: (u64, u64) = (42_916, 6_871);

/// The CPU of the vCPU, and the housekeeping CPU.
const OWN: u32 = 4;
const HOUSEKEEPING: u32 = 0;

/// One second of a vCPU with `before` exits by interrupts, of which `after` cannot be saved by posting: half of those are no
/// timer's, and the other half are of timers that fired on the vCPU's own CPU. hrtimers carry the timers; each exit takes
/// 700 ns. Only the two numbers are from a table; all else is made up.
pub fn exits_by_interrupts(before: u64, after: u64) -> TimerRecording {
    let reasons = ["EXTERNAL_INTERRUPT", "MSR_WRITE"].map(str::to_owned).to_vec();
    let mut recording =
        TimerRecording { vcpus: vec!["vm/7/vcpu0".to_owned()], reasons, ..TimerRecording::default() };
    let off = [("pi_inject_timer".to_owned(), SettingValue::Number(0))];
    recording.metadata.settings =
        vec![SettingsChange { at_ns: None, layer: Layer::Timer, values: off.into_iter().collect() }];
    recording.metadata.recorded = Some(TimeRecorded { start_ns: 0, end_ns: 1_000_000_000 });
    for number in 0..before {
        let at = number * 10_000;
        let exit = |start_ns, reason, cause| ExitRow { vcpu: 0, start_ns, duration_ns: 700, reason, cause };
        if number < after / 2 {
            recording.exits.push(exit(at, 0, None));
            continue;
        }
        let own = number < after;
        recording.exits.push(exit(at, 1, Some(TimerPart::Arm)));
        recording.exits.push(exit(at + 5_000, 0, Some(TimerPart::Fire)));
        recording.timers.push(TimerRow {
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
