//! Is reading ever what one waits for?
//!
//! * `csv import`: is a table imported at the speed of parsing, or does something else dominate? The baseline splits
//!   lines at commas and parses the two numbers, with no checks and no recording. Surprising: more than three times
//!   the baseline.
//! * `perf import`: the same for the text of `perf script` and of `trace-cmd report`; the baseline finds the event's name in each line.
//!
//! Throughput is in bytes of text.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dwell_recording::{Layer, Metadata, Packing, Writer};
use dwell_trace::import::{Input, csv, perf};
use std::fmt::Write as _;

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

fn csv_import(c: &mut Criterion) {
    let mut text = String::from("start_ns,idle_ns\n");
    for row in 0..ROWS {
        let _ = writeln!(text, "{},{}", row * 1_100_000, idle_ns(row));
    }
    let mut group = c.benchmark_group("csv import");
    group.throughput(Throughput::Bytes(text.len() as u64)).sample_size(10);
    group.bench_function("baseline: split and parse", |b| {
        b.iter(|| {
            let numbers = text.lines().skip(1).filter_map(|line| line.split_once(','));
            numbers.fold(0, |sum: u64, (a, b)| {
                sum.wrapping_add(a.parse::<u64>().unwrap()).wrapping_add(b.parse::<u64>().unwrap())
            })
        });
    });
    group.bench_function("import", |b| {
        b.iter(|| {
            let mut writer = writer(1 << 18);
            let options = csv::CsvOptions::for_layer(Layer::Guest);
            csv::import(Input::new("bench", text.as_bytes()).unwrap(), &options, &mut writer).unwrap();
            writer.close().unwrap().1.len()
        });
    });
}

/// The same wakeups as `perf script` and `trace-cmd report` print them.
fn wakeups(head: &str, name: &str) -> String {
    let mut text = String::new();
    let mut now_ns = 1_000_000_000;
    for row in 0..ROWS / 5 {
        now_ns += 10_000 + idle_ns(row);
        let (s, ns) = (now_ns / 1_000_000_000, now_ns % 1_000_000_000);
        let idle = idle_ns(row);
        let _ = writeln!(text, "{head} [003] {s:5}.{ns:09}: {name}: wait time {idle} ns, polling valid");
    }
    text
}

fn perf_import(c: &mut Criterion) {
    let of_perf = wakeups("       CPU 0/KVM  1234", "kvm:kvm_vcpu_wakeup");
    let trace_cmd = wakeups("       CPU 0/KVM-1234 ", "kvm_vcpu_wakeup");
    let mut group = c.benchmark_group("perf import");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(of_perf.len() as u64));
    group.bench_function("baseline: find the name", |b| {
        b.iter(|| of_perf.lines().filter(|line| line.contains("kvm:kvm_vcpu_wakeup:")).count());
    });
    for (name, text) in [("import", &of_perf), ("import of trace-cmd", &trace_cmd)] {
        group.throughput(Throughput::Bytes(text.len() as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut writer = writer(1 << 18);
                let input = Input::new("bench", text.as_bytes()).unwrap();
                perf::import(input, &perf::PerfOptions::default(), &mut writer).unwrap();
                writer.close().unwrap().1.len()
            });
        });
    }
}

criterion_group!(benches, csv_import, perf_import);
criterion_main!(benches);
