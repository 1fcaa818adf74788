//! Is reading ever what one waits for?
//!
//! * `read`: is reading only what a replay needs (`idler`, `idle_ns`) much cheaper than reading all? Is the idler's
//!   name, decoded for each row where a row group has two idlers, what costs? The baseline decompresses as many bytes
//!   of plain numbers with gzip, which is what a compressed table costs before it is parsed.
//!
//! Throughput is in bytes of text, and in rows.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dwell_recording::{Chunk, Columns, Episode, Layer, Metadata, Packing, Reader, WakeCause, Writer};
use std::hint::black_box;
use std::io::{Read, Write};

const ROWS: u64 = 500_000;

/// Lengths that look like those of a loaded machine: 1 us to 1 ms, all different.
fn idle_ns(row: u64) -> u64 {
    let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    1_000 + mixed % 1_000_000
}

fn writer(rows_per_group: usize) -> Writer<Vec<u8>> {
    let packing = Packing { rows_per_group, ..Packing::default() };
    Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap()
}

fn recording(idlers: &[&str]) -> Reader {
    let mut writer = writer(1 << 18);
    for row in 0..ROWS {
        let idler = idlers[usize::try_from(row).unwrap() % idlers.len()];
        writer
            .push(&Episode {
                window_ns: Some(200_000),
                halted: Some(row % 3 == 0),
                wake: Some(WakeCause::Task),
                wake_latency_ns: Some(idle_ns(row) / 16),
                ..Episode::new(idler, row * 1_100_000, idle_ns(row))
            })
            .unwrap();
    }
    Reader::from_bytes("bench", writer.close().unwrap().1).unwrap()
}

fn read(c: &mut Criterion) {
    let plain: Vec<u8> = (0..ROWS).flat_map(|row| idle_ns(row).to_le_bytes()).collect();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&plain).unwrap();
    let packed = packed.finish().unwrap();
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Elements(ROWS)).sample_size(20);
    group.bench_function("baseline: gunzip 8 bytes a row", |b| {
        b.iter(|| {
            let mut out = Vec::with_capacity(plain.len());
            flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut out).unwrap();
            out.len()
        });
    });
    let replay = Columns::IDLER | Columns::IDLE_NS;
    for (name, idlers, columns) in [
        ("idle_ns", &["cpu0"][..], Columns::IDLE_NS),
        ("idler, idle_ns; one idler", &["cpu0"], replay),
        ("idler, idle_ns; two idlers in turn", &["cpu0", "cpu1"], replay),
        ("all columns; two idlers in turn", &["cpu0", "cpu1"], Columns::ALL),
    ] {
        let reader = recording(idlers);
        let mut chunk = Chunk::default();
        group.bench_function(name, |b| {
            b.iter(|| {
                for row_group in 0..reader.row_groups() {
                    reader.read(row_group, columns, &mut chunk).unwrap();
                    black_box(&chunk);
                }
            });
        });
    }
}

criterion_group!(benches, read);
criterion_main!(benches);
