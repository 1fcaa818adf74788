//! A trace of any bytes: an error, or a recording in order with as many episodes as were counted. The first byte
//! chooses the options.

use dwell_policy::arch::Arch;
use dwell_recording::summary::Summary;
use dwell_recording::{Layer, Metadata, Packing, Reader, Writer};
use dwell_trace::guest::GuestSource;
use dwell_trace::import::{Input, perf};

pub fn run(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let options = perf::PerfOptions {
        layer: [None, Some(Layer::Host), Some(Layer::Guest), Some(Layer::Iothread)][usize::from(choice & 3)],
        source: if choice & 4 == 0 { GuestSource::Auto } else { GuestSource::CpuIdle },
        arch: [None, Some(Arch::Arm64), Some(Arch::S390x), Some(Arch::Power)][usize::from(choice >> 4 & 3)],
        skip_unparsable: choice & 8 == 0,
    };
    let packing = Packing { rows_per_group: 3, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap();
    let Ok(input) = Input::new("fuzz", data) else { return };
    let Ok(summary) = perf::import(input, &options, &mut writer) else { return };
    let reader = Reader::from_bytes("fuzz", writer.close().unwrap().1).unwrap();
    let read = Summary::of(&reader).unwrap();
    assert_eq!((read.all.episodes, read.out_of_order), (summary.episodes, 0));
}
