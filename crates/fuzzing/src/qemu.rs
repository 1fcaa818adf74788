//! A QEMU log of any bytes: an error, or a recording in order with as many episodes as were counted. The first byte
//! chooses the options.

use dwell_policy::iothread::{Params, Revision};
use dwell_recording::summary::Summary;
use dwell_recording::{Layer, Metadata, Packing, Reader, Writer};
use dwell_trace::import::Input;
use dwell_trace::import::qemu::{self, QemuOptions};

pub fn run(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let revision = [None, Some(Revision::Global), Some(Revision::PerHandler), Some(Revision::Weighted)]
        [usize::from(choice & 3)];
    let options = QemuOptions {
        rule: revision.map(|revision| (revision, Params::default_for(revision))),
        sleeps: None,
        context: (choice & 4 != 0).then_some(0x5),
        skip_unparsable: choice & 8 == 0,
    };
    let packing = Packing { rows_per_group: 3, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Iothread), packing).unwrap();
    let Ok(input) = Input::new("fuzz", data) else { return };
    let Ok(summary) = qemu::import(input, options, &mut writer) else { return };
    let reader = Reader::from_bytes("fuzz", writer.close().unwrap().1).unwrap();
    let read = Summary::of(&reader).unwrap();
    assert_eq!((read.all.episodes, read.out_of_order), (summary.episodes, 0));
}
