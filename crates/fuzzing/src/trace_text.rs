//! A file of any bytes, as `dwell import FILE` takes it: recognised, and then an error or as many episodes as were
//! counted. No event is used that is not counted, and no line is in two counts.

use dwell_recording::summary::Summary;
use dwell_recording::{Layer, Metadata, Packing, Reader, Writer};
use dwell_trace::import::{Format, ImportSummary, Input, csv, perf, qemu, recognise};

pub fn run(data: &[u8]) {
    let packing = Packing { rows_per_group: 3, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap();
    let Ok(mut input) = Input::new("fuzz", data) else { return };
    let Ok(format) = recognise(&mut input) else { return };
    let summary: ImportSummary = match format {
        Format::Events => match perf::import(input, &perf::PerfOptions::default(), &mut writer) {
            Ok(summary) => summary,
            Err(_) => return,
        },
        Format::Qemu => match qemu::import(input, qemu::QemuOptions::default(), &mut writer) {
            Ok(summary) => summary,
            Err(_) => return,
        },
        Format::Csv => match csv::import(input, csv::usual_idler(Layer::Guest), &mut writer) {
            Ok(summary) => summary,
            Err(_) => return,
        },
        Format::Foreign(foreign) => return assert!(!foreign.words().is_empty()),
    };
    if format == Format::Events {
        let events = summary.used.values().chain(summary.ignored.values()).sum::<u64>();
        assert!(events + summary.other_lines + summary.unparsable <= summary.lines, "{summary:?}");
    }
    let reader = Reader::from_bytes("fuzz", writer.close().unwrap().1).unwrap();
    let read = Summary::of(&reader).unwrap();
    assert_eq!((read.all.episodes, read.out_of_order), (summary.episodes, 0));
}
