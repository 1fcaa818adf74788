//! Changing a machine, and reverting the change.
//!
//! # Steps
//! 1. [`check`] compares the plan with the machine and reads only. Every reason to refuse it is an [`Obstacle`]; all of
//!    them are reported at once, each with the option that overrides it.
//! 2. [`apply`] writes the originals to the [journal](crate::journal), then writes one place after the other,
//!    reading each before (another program may have changed it) and after (the kernel may have changed the
//!    value). If one fails, those before it are restored.
//! 3. [`revert`](revert()) restores the originals in reverse order, in any later process, however the one
//!    that applied ended. A value that is neither the original nor one that dwell wrote was changed outside
//!    dwell, and is left alone.

mod apply;
mod check;
mod revert;
mod status;

pub use apply::{ApplyError, Unrestored, apply};
pub use check::{Obstacle, Override, Permission, Ready, check};
use revert::ended;
pub use revert::{Outcome, RevertError, Reverted, Side, revert, set_by, switch};
pub(crate) use revert::{of_holder, put_all_back};
pub use status::{Standing, standings};

use crate::journal::{Change, Entry, Journal, JournalError, State};
use crate::plan::Plan;
use crate::value;
use dwell_machine::identity;
use std::time::SystemTime;

/// Name and version of this program.
pub(crate) const TOOL: &str = concat!("dwell ", env!("CARGO_PKG_VERSION"));

/// Seconds since 1970.
pub(crate) fn now_unix_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// A change that begins now, in this state.
pub(crate) fn begun(
    journal: &Journal<'_>,
    state: State,
    plan: Plan,
    entries: Vec<Entry>,
) -> Result<Change, JournalError> {
    let now = now_unix_s();
    Ok(Change {
        id: journal.next_id()?,
        state,
        begun_at_unix_s: now,
        since_unix_s: now,
        boot_id: identity::boot_id(journal.machine()),
        tool: TOOL.to_owned(),
        kept: false,
        lease: false,
        left: false,
        process: None,
        entries,
        back: vec![],
        plan,
        verifying: false,
        verifications: vec![],
    })
}

/// The change, in another state from now on.
pub(crate) fn in_state(change: &Change, state: State) -> Change {
    Change { state, since_unix_s: now_unix_s(), verifying: false, ..change.clone() }
}

/// Whether the machine was booted since, as far as both boots are known, and what the change set was not kept.
pub(crate) fn is_undone(change: &Change, booted: Option<&str>) -> bool {
    !change.kept && is_of_another_boot(change, booted)
}

fn is_of_another_boot(change: &Change, booted: Option<&str>) -> bool {
    change.boot_id.as_deref().zip(booted).is_some_and(|(then, now)| then != now)
}

/// Whether a value is one that this change writes, finally or in between.
pub(crate) fn is_ours(entry: &Entry, found: Option<&str>) -> bool {
    value::same(&entry.place, found, entry.applied.as_deref())
        || entry.between.iter().any(|between| value::same(&entry.place, found, Some(between)))
}

/// Whether a value is the original, or one that this change writes.
pub(crate) fn is_known(entry: &Entry, found: Option<&str>) -> bool {
    is_ours(entry, found) || is_original(entry, found)
}

pub(crate) fn is_original(entry: &Entry, found: Option<&str>) -> bool {
    value::same(&entry.place, found, entry.original.as_deref())
}
