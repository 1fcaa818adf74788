//! Any bytes opened and read as a recording of idle times and as one of timers: an error, or as many rows as
//! were claimed.
//!
//! The Parquet library may panic on damaged files; the reader turns that into an error. libFuzzer's hook would abort
//! before it could, so it is taken out: what is not caught still unwinds into the harness, which aborts.

use dwell_recording::timer::TimerReader;
use dwell_recording::{Chunk, Columns, Reader};

pub fn run(data: &[u8]) {
    let reader = Reader::from_bytes("fuzz", data.to_vec());
    let timers = TimerReader::from_bytes("fuzz", data.to_vec());
    assert!(reader.is_err() || timers.is_err());
    timers.iter().for_each(read_timers);
    let Ok(reader) = reader else { return };
    if let Ok(Some(segments)) = reader.segments() {
        assert!(segments.rows.iter().all(|row| (row.task as usize) < segments.tasks.len()));
        let _ = segments.shares();
    }
    let mut chunk = Chunk::default();
    for row_group in 0..reader.row_groups() {
        if reader.read(row_group, Columns::ALL, &mut chunk).is_ok() {
            assert_eq!(chunk.idle_ns.len(), chunk.rows);
            assert_eq!(chunk.ready.len(), chunk.rows);
            assert_eq!(chunk.idler.len(), chunk.rows);
        }
    }
}

fn read_timers(reader: &TimerReader) {
    let (mut timers, mut exits, mut whole) = (0, 0, true);
    for row_group in 0..reader.row_groups() {
        match reader.read(row_group) {
            Ok(rows) => {
                timers += rows.timers.len();
                exits += rows.exits.len();
            }
            Err(_) => whole = false,
        }
    }
    let claimed = reader.contents().timers() + reader.contents().exits();
    assert!(!whole || (timers + exits) as u64 == claimed);
}
