//! Packets of any bytes behind a good first one, as `dwell import` takes a trace of Perfetto: an error, or a recording in
//! order with as many episodes as were counted, of the events that were used. The first byte chooses the layer.

use dwell_recording::summary::Summary;
use dwell_recording::{Layer, Metadata, Packing, Reader, Writer};
use dwell_trace::import::{Container, Input, perf};

/// A packet with the number of its writer, which begins a trace.
pub const FIRST: &[u8] = &[0x0a, 3, 0x50, 0x80, 0];

pub fn run(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let layer = [Layer::Guest, Layer::Host, Layer::Iothread][usize::from(choice) % 3];
    let options =
        perf::PerfOptions { layer: Some(layer), skip_unparsable: choice & 8 == 0, ..Default::default() };
    let packing = Packing { rows_per_group: 3, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(layer), packing).unwrap();
    let trace = [FIRST, data].concat();
    let input = Input::new("fuzz", trace.as_slice()).unwrap();
    assert_eq!(input.container(), Some(Container::Perfetto));
    let Ok(summary) = perf::import(input, &options, &mut writer) else { return };
    let events = summary.used.values().chain(summary.ignored.values()).sum::<u64>();
    assert!(events + summary.other_lines + summary.unparsable <= summary.lines, "{summary:?}");
    let reader = Reader::from_bytes("fuzz", writer.close().unwrap().1).unwrap();
    let read = Summary::of(&reader).unwrap();
    assert_eq!((read.all.episodes, read.out_of_order), (summary.episodes, 0));
}
