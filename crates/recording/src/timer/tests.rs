use super::*;
use crate::{Layer, Metadata, OpenError, Owner, Packing, Reader};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

fn timer() -> impl Strategy<Value = TimerRow> {
    let fired = of((0..1_000u64, of(0..1_000u64)));
    let cpus = (of(any::<u32>()), of(any::<u32>()), of(any::<u32>()));
    let kinds = (of(select(&Mechanism::ALL)), of(select(&VcpuState::ALL)), of(select(&Fire::ALL)));
    (0..3u32, 0..1u64 << 40, of(any::<u64>()), fired, cpus, kinds, of(any::<i64>())).prop_map(
        |(vcpu, armed_ns, expires_ns, fired, (armed_on, fired_on, vcpu_on), kinds, late_tsc)| TimerRow {
            vcpu,
            armed_ns,
            mechanism: kinds.0,
            expires_ns,
            fired_ns: fired.map(|(after, _)| armed_ns + after),
            armed_on,
            fired_on,
            vcpu_on,
            state: kinds.1,
            fire: kinds.2,
            entered_ns: fired.and_then(|(after, more)| Some(armed_ns + after + more?)),
            late_tsc,
        },
    )
}

fn exit() -> impl Strategy<Value = ExitRow> {
    (0..3u32, 0..1u64 << 40, any::<u64>(), 0..2u32, of(select(&TimerPart::ALL))).prop_map(
        |(vcpu, start_ns, duration_ns, reason, cause)| ExitRow { vcpu, start_ns, duration_ns, reason, cause },
    )
}

fn recording(timers: Vec<TimerRow>, exits: Vec<ExitRow>) -> TimerRecording {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let (vcpus, reasons) = (names(&["vm/7/vcpu0", "vm/7/vcpu1", "b"]), names(&["MSR_WRITE", "HLT"]));
    TimerRecording { rows: TimerRows { vcpus, reasons, timers, exits }, ..TimerRecording::default() }
}

fn bytes(recording: &TimerRecording, rows_per_group: usize) -> Vec<u8> {
    let packing = Packing { rows_per_group, zstd_level: 1 };
    let mut writer = TimerWriter::new(vec![], recording.metadata.clone(), packing).unwrap();
    writer.push(&mut recording.rows.clone()).unwrap();
    writer.close().unwrap().1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn what_is_written_is_read(
        timers in prop::collection::vec(timer(), 0..40),
        exits in prop::collection::vec(exit(), 0..40),
        rows_per_group in 1..50usize,
    ) {
        let written = recording(timers, exits);
        let read = TimerRecording::from_bytes("test", bytes(&written, rows_per_group)).unwrap();
        prop_assert_eq!(read.span_ns(), written.span_ns());
        prop_assert_eq!(read, written);
    }

    #[test]
    fn damage_is_an_error_or_goes_unnoticed(at in any::<prop::sample::Index>(), bit in 0..8u32) {
        let armed = (0..30).map(|at| TimerRow { fired_ns: Some(at * 9), ..TimerRow::new(0, at * 7) });
        let mut bytes = bytes(&recording(armed.collect(), vec![]), 10);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(read) = TimerRecording::from_bytes("test", bytes) {
            prop_assert_eq!(read.rows.timers.len(), 30);
        }
    }
}

#[test]
fn each_kind_of_recording_is_refused_by_the_other_reader() {
    let timers = bytes(&recording(vec![TimerRow::new(0, 5)], vec![]), 10);
    let error = Reader::from_bytes("a.parquet", timers).err().unwrap();
    assert!(matches!(error, OpenError::Timers { .. }), "{error}");
    let idle = crate::Writer::new(vec![], Metadata::new(Layer::Guest), Packing::default()).unwrap();
    let error = TimerReader::from_bytes("a.parquet", idle.close().unwrap().1).err().unwrap();
    assert!(matches!(error, OpenError::NoTimers { .. }), "{error}");
    assert!(error.to_string().contains("dwell timer import"), "{error}");
}

#[test]
fn rows_that_cannot_be_are_refused_with_their_number() {
    let mut writer = TimerWriter::new(vec![], Metadata::new(Owner::Timer), Packing::default()).unwrap();
    let timer = |timer| TimerRows { timers: vec![timer], ..TimerRows::default() };
    writer.push(&mut TimerRows { vcpus: vec!["a".to_owned()], ..timer(TimerRow::new(0, 10)) }).unwrap();
    let fired = |ns| TimerRow { fired_ns: Some(ns), ..TimerRow::new(0, 10) };
    let mut refused = |mut rows| writer.push(&mut rows).unwrap_err().to_string();
    assert!(refused(timer(fired(9))).starts_with("row 1: `fired_ns`: 9 is before"));
    let entered = TimerRow { entered_ns: Some(11), ..fired(12) };
    assert!(refused(timer(entered)).starts_with("row 1: `entered_ns`: 11 is before"));
    let entered = TimerRow { entered_ns: Some(11), ..TimerRow::new(0, 10) };
    assert!(refused(timer(entered)).contains("did not fire"));
    assert_eq!(refused(timer(TimerRow::new(1, 10))), "row 1: vCPU number 1 was not named");
    let exit = ExitRow { vcpu: 0, start_ns: 1, duration_ns: 2, reason: 0, cause: None };
    let exit = TimerRows { exits: vec![exit], ..TimerRows::default() };
    assert_eq!(refused(exit), "row 1: exit reason number 0 was not named");
    writer.push(&mut timer(fired(10))).unwrap();
    let (contents, _) = writer.close().unwrap();
    assert_eq!((contents.timers(), contents.exits(), contents.last_ns), (2, 0, Some(10)));
}

#[test]
fn a_footer_that_contradicts_the_rows_is_refused() {
    let good = bytes(&recording(vec![TimerRow::new(0, 5_000); 12], vec![]), 10);
    for (from, to, why) in [
        ("\"timers\":12", "\"timers\":13", "there are 12 rows"),
        ("\"first_ns\":5000", "\"first_ns\":9000", "row 0 of row group 0, `at_ns`: the row is outside"),
        ("\"last_ns\":5000", "\"last_ns\":4000", "outside of the span"),
        ("vm/7/vcpu1", "vm/7/vcpu0", "lists vCPU `vm/7/vcpu0` twice"),
        ("vm/7/vcpu0", "vm/7/vcpu9", "vCPU `vm/7/vcpu0` is not in the list"),
    ] {
        let at = good.windows(from.len()).rposition(|window| window == from.as_bytes()).unwrap();
        let mut bad = good.clone();
        bad[at..at + to.len()].copy_from_slice(to.as_bytes());
        let error = TimerRecording::from_bytes("test", bad).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
