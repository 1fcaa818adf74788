//! What tests, benchmarks and their programs share. Without features it depends on nothing, so that tests of
//! every crate can use it.
//!
//! [`needs`] is for tests that need root, `/dev/kvm`, tracefs or QEMU.

#[cfg(feature = "contest")]
pub mod contest;
pub mod cpio;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "environment")]
pub mod environment;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod help;
pub mod kvm_stats;
#[cfg(feature = "learners")]
pub mod learners;
#[cfg(feature = "machine")]
pub mod machine;
pub mod needs;
pub mod open_metrics;
#[cfg(feature = "trace")]
pub mod perf_text;
pub mod process;
pub mod qemu;
#[cfg(feature = "schema")]
pub mod schema;
pub mod shim;
#[cfg(any(feature = "engine", feature = "fixture"))]
pub mod timers;
#[cfg(feature = "vcpu")]
pub mod vcpu;
#[cfg(feature = "waits")]
pub mod waits;
#[cfg(feature = "windows")]
pub mod windows;

/// As `eprintln!`, but printed also where the test passes: the test harness does not capture it.
///
/// ```
/// use dwell_testing::say;
/// say!("{} of {} cases", 3, 4);
/// ```
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use ::std::io::Write as _;
        let _ = ::std::writeln!(::std::io::stderr(), $($words)*);
    }};
}
