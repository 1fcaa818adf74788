//! Any bytes opened and read as a recording: an error, or as many rows as were claimed.
//!
//! The Parquet library may panic on damaged files; the reader turns that into an error. libFuzzer's hook would abort
//! before it could, so it is taken out: what is not caught still unwinds into the harness, which aborts.

use dwell_recording::{Chunk, Columns, Reader};

/// Runs the target.
pub fn run(data: &[u8]) {
    let Ok(reader) = Reader::from_bytes("fuzz", data.to_vec()) else { return };
    let mut chunk = Chunk::default();
    for row_group in 0..reader.row_groups() {
        if reader.read(row_group, Columns::ALL, &mut chunk).is_ok() {
            assert_eq!(chunk.idle_ns.len(), chunk.rows);
            assert_eq!(chunk.ready.len(), chunk.rows);
            assert_eq!(chunk.idler.len(), chunk.rows);
        }
    }
}
