//! A table of any bytes: an error, or a recording that reads back with as many episodes as were counted.

use dwell_recording::summary::Summary;
use dwell_recording::{Layer, Metadata, Packing, Reader, Writer};
use dwell_trace::import::{Input, csv};

pub fn run(data: &[u8]) {
    let packing = Packing { rows_per_group: 3, zstd_level: 1 };
    let mut writer = Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap();
    let Ok(input) = Input::new("fuzz", data) else { return };
    let Ok(summary) = csv::import(input, csv::usual_idler(Layer::Guest), &mut writer) else {
        return;
    };
    let reader = Reader::from_bytes("fuzz", writer.close().unwrap().1).unwrap();
    assert_eq!(reader.episodes(), summary.episodes);
    let read = Summary::of(&reader).unwrap();
    assert_eq!((read.all.episodes, read.out_of_order), (summary.episodes, 0));
}
