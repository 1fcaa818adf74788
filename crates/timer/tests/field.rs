//! Traces of timers as people have them: each with the values that were worked out by hand, before dwell read it.

use dwell_recording::timer::{Fire, TimerReader, TimerWriter};
use dwell_recording::{Metadata, Owner, Packing};
use dwell_timer::exits;
use dwell_timer::import::import;
use dwell_trace::import::perf::PerfOptions;
use dwell_trace::import::{ImportSummary, Input, NOTES};

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("field/", $name))
    };
}

fn timers(text: &[u8]) -> (ImportSummary, TimerReader) {
    let metadata = Metadata::new(Owner::Timer);
    let mut writer = TimerWriter::new(Vec::new(), metadata, Packing::default()).unwrap();
    let input = Input::new("t", text).unwrap();
    let summary = import(input, &PerfOptions::default(), &mut writer).unwrap();
    let (_, bytes) = writer.close().unwrap();
    (summary, TimerReader::from_bytes("t", bytes).unwrap())
}

#[test]
fn case_05_timers_of_windows_are_not_passed_over_in_silence() {
    let (summary, reader) = timers(file!("05-perf-windows-stimer.txt"));
    let (table, parts) = exits::table(&reader).unwrap();
    let rows: Vec<_> =
        table.rows.iter().map(|row| (row.reason.as_str(), row.samples, row.average_ns())).collect();
    let wanted = [("MSR_WRITE", 6, 2_000.0), ("EXTERNAL_INTERRUPT", 3, 3_100.0), ("HLT", 3, 985_500.0)];
    assert_eq!((rows, parts.len()), (wanted.to_vec(), 0));
    assert!(summary.notes[0].starts_with("6 Hyper-V timers"), "{:?}", summary.notes);
    assert_eq!(reader.metadata().other[NOTES][0], summary.notes[0]);
    // A trace without the tracepoints of these timers has the registers.
    let text = String::from_utf8_lossy(file!("05-perf-windows-stimer.txt"));
    let without: String = text.split_inclusive('\n').filter(|line| !line.contains("stimer")).collect();
    assert!(timers(without.as_bytes()).0.notes[0].starts_with("6 Hyper-V timers"));
}

fn fired(reader: &TimerReader, fire: Fire) -> usize {
    let timers = (0..reader.row_groups()).flat_map(|group| reader.read(group).unwrap().timers);
    timers.filter(|timer| timer.fired_ns.is_some() && timer.fire == Some(fire)).count()
}

/// Guests of Arm have another timer, which no event here shows.
#[test]
fn timers_of_other_architectures_are_not_passed_over_in_silence() {
    for (exit, arch) in [
        ("TRAP: HSR_EC: 0x0001 (WFx), PC: 0xffff800010a1b2c4", "arm64"),
        ("SEPC:0x1, SCAUSE:0x16, STVAL:0x10500073, HTVAL:0x0, HTINST:0x0", "RISC-V"),
    ] {
        let text = format!(
            "v 6/7 [001] 5.000000: kvm:kvm_entry: PC: 0x1\nv 6/7 [001] 5.000001: kvm:kvm_exit: {exit}\n\
             v 6/7 [001] 5.000009: kvm:kvm_entry: PC: 0x1\n"
        );
        let (summary, _) = timers(text.as_bytes());
        let note = "and only x86-64 has a local APIC timer: no timer of its guests is counted";
        assert_eq!(summary.notes, [format!("the trace is of {arch}, {note}")]);
    }
}

/// The kernel calls exits of SVM `hlt`, the plugin of perf and trace-cmd `EXIT_HLT`.
#[test]
fn exits_of_amd_have_two_names() {
    let of = |text: &[u8], names: [&str; 3]| {
        let text = String::from_utf8_lossy(text);
        let text = text.replace("MSR_WRITE", names[0]).replace("reason HLT", names[1]);
        timers(text.replace("EXTERNAL_INTERRUPT", names[2]).as_bytes())
    };
    let plugin = ["EXIT_MSR", "reason EXIT_HLT", "EXIT_INTR"];
    let (_, by_kernel) = of(file!("06-reference-with-guest-code.txt"), ["msr", "reason hlt", "interrupt"]);
    let (_, by_plugin) = of(file!("06-reference-with-guest-code.txt"), plugin);
    assert_eq!(fired(&by_plugin, Fire::HostInterrupt), 3);
    assert_eq!(exits::table(&by_plugin).unwrap(), exits::table(&by_kernel).unwrap());
    let (summary, _) = of(file!("06-perf515-timer-no-guest-code.txt"), plugin);
    assert!(summary.notes[0].starts_with("3 exits are by an interrupt"), "{:?}", summary.notes);
}

/// Each of these changes what is counted, without another sign of it.
#[test]
fn a_text_without_some_of_the_tracepoints_of_timers_says_so() {
    let text = String::from_utf8_lossy(file!("06-reference-with-guest-code.txt"));
    for name in ["kvm:kvm_hv_timer_state", "kvm:kvm_msr", "timer:hrtimer_start", "timer:hrtimer_expire_entry"]
    {
        let without: String =
            text.split_inclusive('\n').filter(|line| !line.contains(&format!(" {name}: "))).collect();
        let notes = timers(without.as_bytes()).0.notes;
        assert!(notes[0].starts_with(&format!("the text has no {name}, of which timers")), "{notes:?}");
    }
}

#[test]
fn case_06_interrupts_that_perf_left_out_are_missed() {
    let (summary, reader) = timers(file!("06-reference-with-guest-code.txt"));
    assert_eq!((reader.contents().timers(), &summary.notes), (6, &vec![]));
    assert_eq!(fired(&reader, Fire::HostInterrupt), 3);
    let (summary, reader) = timers(file!("06-perf515-timer-no-guest-code.txt"));
    let note = &summary.notes[0];
    assert!(
        note.starts_with("3 exits are by an interrupt") && note.contains("this is perf 5.15.160"),
        "{note}"
    );
    assert_eq!(
        (fired(&reader, Fire::HostInterrupt), &reader.metadata().other[NOTES][0]),
        (0, &(*note).clone().into())
    );
}
