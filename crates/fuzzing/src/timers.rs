//! A trace of any bytes as one of timers: an error, or a recording that is read back whole, can be compared
//! with the model, and has the exits that are counted in it. The first byte chooses the options.

use dwell_policy::version::Version;
use dwell_recording::timer::{TimerReader, TimerRecording, TimerWriter};
use dwell_recording::{Metadata, Owner, Packing};
use dwell_timer::check::check;
use dwell_timer::predict::{Predictor, in_force};
use dwell_timer::tally::Tally;
use dwell_timer::{Pcpu, TimerVm};
use dwell_timer::{exits, import};
use dwell_trace::import::{Input, perf};

pub fn run(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let options = perf::PerfOptions { skip_unparsable: choice & 1 == 0, ..perf::PerfOptions::default() };
    let packing = Packing { rows_per_group: 64, zstd_level: 1 };
    let mut writer = TimerWriter::new(Vec::new(), Metadata::new(Owner::Timer), packing).unwrap();
    let Ok(input) = Input::new("fuzz", data) else { return };
    if import::import(input, &options, &mut writer).is_err() {
        return;
    }
    let bytes = writer.close().unwrap().1;
    let reader = TimerReader::from_bytes("fuzz", bytes.clone()).unwrap();
    let (table, _) = exits::table(&reader).unwrap();
    assert_eq!(table.total_samples, reader.contents().exits());
    let recording = TimerRecording::from_bytes("fuzz", bytes).unwrap();
    assert_eq!(recording.rows.timers.len() as u64, reader.contents().timers());
    assert!(
        recording.rows.timers.iter().all(|timer| timer.fired_ns.is_none_or(|fired| timer.armed_ns <= fired))
    );
    let vm = TimerVm {
        pi_inject_timer: choice & 2 != 0,
        apicv: choice & 4 != 0,
        preemption_timer: choice & 8 != 0,
        mwait_in_guest: choice & 16 != 0,
        hlt_in_guest: choice & 32 != 0,
        pcpu: if choice & 64 == 0 { Pcpu::Housekeeping } else { Pcpu::Isolated },
        timer_migration: true,
    };
    let tally = Tally::of(&recording);
    let kernel = if choice & 128 == 0 { Version::new(6, 12) } else { Version::new(5, 10) };
    let found = check(&recording, &Predictor::new(&tally, in_force(&tally, kernel, &vm)).unwrap());
    assert!(found.compared <= found.timers);
}
