//! Whether this process may change settings. All that writes one is [`value::write`](crate::value::write) and
//! [`iothread::put`](crate::iothread::put), which ask here.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

static READ_ONLY: AtomicBool = AtomicBool::new(false);

/// From now on this process changes no setting: an attempt is an error.
pub fn read_only() {
    READ_ONLY.store(true, Ordering::Relaxed);
}

/// # Errors
/// If this process may not change settings.
pub(crate) fn check() -> io::Result<()> {
    if READ_ONLY.load(Ordering::Relaxed) { Err(refusal()) } else { Ok(()) }
}

fn refusal() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "this command changes no settings; please report this")
}
