//! What the tests of the workspace share. Without its feature `fixture` it depends on nothing, so that tests of every crate
//! can use it.
//!
//! A test that needs root, `/dev/kvm`, tracefs or QEMU prints `SKIP cause: name of the test` where it is absent.
#![forbid(unsafe_code)]

pub mod cpio;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod kvm_stats;
pub mod qemu;
pub mod shim;

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
