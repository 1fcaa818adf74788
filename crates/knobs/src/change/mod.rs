//! Changing a machine, and taking it back.
//!
//! # Steps
//! 1. [`check`] compares the plan with the machine and reads only. Whatever stands in the way is an [`Obstacle`]: all of
//!    them are told at once, each with what gets past it.
//! 2. [`apply`] puts the originals into the [journal](crate::journal), then writes one place after the other, reading each
//!    before (nobody else may have come in between) and after (the kernel may have made another value of it). If one
//!    fails, those before it are put back.
//! 3. [`revert`](revert()) puts the originals back in reverse order, in any later process, whatever became of the one that
//!    applied. A value that is neither the original nor one of ours is somebody else's, and left alone.

mod apply;
mod check;
mod revert;
mod status;

pub use apply::{ApplyError, Unrestored, apply};
pub use check::{Obstacle, Past, Permission, Ready, check};
pub use revert::{Outcome, RevertError, Reverted, Side, revert, switch};
pub use status::{Standing, standing};

use crate::journal::{Change, Entry, State};
use crate::value;
use std::time::SystemTime;

/// Seconds since 1970.
fn now_unix_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// The change, in another state from now on.
fn in_state(change: &Change, state: State) -> Change {
    Change { state, since_unix_s: now_unix_s(), verifying: false, ..change.clone() }
}

/// Whether a value is one that this change puts there, for good or on the way.
fn is_ours(entry: &Entry, found: Option<&str>) -> bool {
    value::same(&entry.place, found, entry.applied.as_deref())
        || entry.between.iter().any(|between| value::same(&entry.place, found, Some(between)))
}

fn is_original(entry: &Entry, found: Option<&str>) -> bool {
    value::same(&entry.place, found, entry.original.as_deref())
}
