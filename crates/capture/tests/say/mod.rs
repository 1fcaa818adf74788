//! Words that reach the reader of `cargo test`: what was counted, and what was left out and why.

/// As `eprintln!`, but not kept back by the test harness where the test passes.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}
pub(crate) use say;
