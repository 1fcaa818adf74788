//! Fuzz targets for everything that reads untrusted input, and seeds for them.
//!
//! A target is a function of bytes that panics when a promise is broken. It runs in two ways: `cargo +nightly
//! fuzz run TARGET` in the directory `fuzz` (libFuzzer, guided by coverage), and `cargo test --test targets`,
//! which changes the seeds at random for some seconds with the stable compiler.
#![forbid(unsafe_code)]
// A panic is how a target reports what it finds.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

pub mod csv;
pub mod doctor;
pub mod domstats;
pub mod exits;
pub mod journal;
pub mod kvm_stats;
pub mod libvirt;
pub mod measured;
pub mod metrics;
pub mod parquet;
pub mod perf;
pub mod plan;
pub mod qemu;
pub mod qmp;
pub mod request;
pub mod ring;
pub mod seeds;
pub mod sketch;
pub mod timers;
pub mod trace_text;
pub mod why;

/// A target: its name, and what runs it.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 20] = [
    ("csv", csv::run),
    ("perf", perf::run),
    ("timers", timers::run),
    ("qemu", qemu::run),
    ("exits", exits::run),
    ("ring", ring::run),
    ("parquet", parquet::run),
    ("plan", plan::run),
    ("journal", journal::run),
    ("qmp", qmp::run),
    ("libvirt", libvirt::run),
    ("measured", measured::run),
    ("metrics", metrics::run),
    ("kvm_stats", kvm_stats::run),
    ("doctor", doctor::run),
    ("request", request::run),
    ("sketch", sketch::run),
    ("trace_text", trace_text::run),
    ("domstats", domstats::run),
    ("why", why::run),
];
