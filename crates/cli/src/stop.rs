//! Ctrl-C and signals that end programs.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that the first Ctrl-C sets; the second ends the program at once.
pub fn on_ctrl_c() -> anyhow::Result<Arc<AtomicBool>> {
    at_signals(|| std::process::exit(130))
}

/// A flag that Ctrl-C and the signals that end programs set, however often: original values are restored first.
pub fn patiently() -> anyhow::Result<Arc<AtomicBool>> {
    at_signals(|| {})
}

/// A flag that these signals set; `again` is done at all but the first.
fn at_signals(again: fn()) -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let handler = move || {
        if flag.swap(true, Ordering::Relaxed) {
            again();
        }
    };
    ctrlc::set_handler(handler).context("cannot handle Ctrl-C")?;
    Ok(stop)
}
