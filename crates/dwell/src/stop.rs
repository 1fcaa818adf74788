//! The user's wish to end.

use anyhow::Context;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set by the first Ctrl-C; the second ends the program as usual, so that nobody is kept waiting.
pub(crate) fn on_ctrl_c() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .context("cannot prepare for Ctrl-C")?;
    Ok(stop)
}

/// Set by Ctrl-C and by the signals that end programs. However often: what was there has to be put back first.
pub(crate) fn patiently() -> anyhow::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("cannot prepare for Ctrl-C")?;
    Ok(stop)
}
