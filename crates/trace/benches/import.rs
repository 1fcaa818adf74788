//! Is reading ever what one waits for?
//!
//! Each format in lines per second, beside the least that a reader could do with the
//! same bytes in the same run: `baseline` looks for the event's name in each line, or splits the table and parses its
//! numbers, with no checks and no recording. Surprising: an import of a text at less than a tenth of its baseline, or a
//! dialect at less than half of the speed of another one.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dwell_recording::{Layer, Metadata, Packing, Writer};
use dwell_trace::import::{Input, csv, perf, qemu};
use std::fmt::Write as _;
use std::hint::black_box;

const ROWS: u64 = 100_000;

/// Lengths that look like those of a loaded machine: 1 us to 1 ms, all different.
fn idle_ns(row: u64) -> u64 {
    let mixed = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    1_000 + mixed % 1_000_000
}

fn writer() -> Writer<Vec<u8>> {
    let packing = Packing { rows_per_group: 1 << 18, ..Packing::default() };
    Writer::new(Vec::new(), Metadata::new(Layer::Guest), packing).unwrap()
}

/// When each wakeup ends, and how long the halt before it was.
fn wakeups() -> impl Iterator<Item = (u64, u64)> {
    let mut now_ns = 1_000_000_000;
    (0..ROWS).map(move |row| {
        now_ns += 10_000 + idle_ns(row);
        (now_ns, idle_ns(row))
    })
}

/// The wakeups as a tool prints them.
fn events(head: &str, flags: &str, name: &str) -> String {
    let mut text = String::new();
    for (now, idle) in wakeups() {
        let (s, ns) = (now / 1_000_000_000, now % 1_000_000_000);
        let _ =
            writeln!(text, "{head} [003] {flags}{s:5}.{ns:09}: {name}: wait time {idle} ns, polling valid");
    }
    text
}

/// As `simpletrace.py` prints a poll and its end.
fn simpletrace() -> String {
    let mut text = String::new();
    for (_, idle) in wakeups() {
        let us = idle as f64 / 1e3;
        let _ = writeln!(
            text,
            "run_poll_handlers_begin 10.000 pid=7 ctx=0x5 max_ns=0xfa0 timeout=0xffffffffffffffff"
        );
        let _ = writeln!(text, "run_poll_handlers_end {us:.3} pid=7 ctx=0x5 progress=0x1 timeout=0x0");
    }
    text
}

/// Compares the import of `bytes` with the baseline.
fn compare(
    c: &mut Criterion,
    name: &str,
    (lines, bytes): (u64, &[u8]),
    baseline: impl Fn(&[u8]) -> u64,
    import: impl Fn(Input<'_>, &mut Writer<Vec<u8>>) -> u64,
) {
    let mut group = c.benchmark_group(format!("import {name}"));
    group.throughput(Throughput::Elements(lines)).sample_size(10);
    group.bench_function("baseline", |b| b.iter(|| baseline(black_box(bytes))));
    group.bench_function("import", |b| {
        b.iter(|| {
            let mut writer = writer();
            assert_eq!(import(Input::new("bench", bytes).unwrap(), &mut writer), ROWS);
            writer.close().unwrap().1.len()
        });
    });
}

/// How many lines have the name.
fn named(text: &[u8], name: &str) -> u64 {
    let text = std::str::from_utf8(text).unwrap();
    text.lines().filter(|line| line.contains(name)).count() as u64
}

fn formats(c: &mut Criterion) {
    let of_events = |input: Input<'_>, writer: &mut Writer<Vec<u8>>| {
        perf::import(input, &perf::PerfOptions::default(), writer).unwrap().episodes
    };
    for (name, head, flags, event) in [
        ("perf script", "       CPU 0/KVM  1234", "", "kvm:kvm_vcpu_wakeup"),
        ("trace-cmd", "       CPU 0/KVM-1234 ", "", "kvm_vcpu_wakeup"),
        ("ftrace", "       CPU 0/KVM-1234    (-------)", "d..1. ", "kvm_vcpu_wakeup"),
    ] {
        let text = events(head, flags, event);
        compare(c, name, (ROWS, text.as_bytes()), |text| named(text, "kvm_vcpu_wakeup:"), of_events);
    }
    let of_qemu = |input: Input<'_>, writer: &mut Writer<Vec<u8>>| {
        qemu::import(input, qemu::QemuOptions::default(), writer).unwrap().episodes
    };
    let text = simpletrace();
    compare(c, "simpletrace.py", (2 * ROWS, text.as_bytes()), |text| named(text, "run_poll"), of_qemu);
    let mut table = String::from("start_ns,idle_ns\n");
    for (now, idle) in wakeups() {
        let _ = writeln!(table, "{},{idle}", now - idle);
    }
    let split = |text: &[u8]| {
        let lines = std::str::from_utf8(text).unwrap().lines().skip(1);
        let numbers = lines.filter_map(|line| line.split_once(','));
        numbers.fold(0, |sum: u64, (a, b)| {
            sum.wrapping_add(a.parse::<u64>().unwrap()).wrapping_add(b.parse::<u64>().unwrap())
        })
    };
    compare(c, "csv", (ROWS, table.as_bytes()), split, |input, writer| {
        csv::import(input, csv::usual_idler(Layer::Guest), writer).unwrap().episodes
    });
}

criterion_group!(benches, formats);
criterion_main!(benches);
