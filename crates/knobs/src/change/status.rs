//! The present state of a change.

use super::{ended, is_original, is_ours};
use crate::journal::{Change, Entry};
use crate::value::{self, ValueError};
use dwell_machine::Writable;
use dwell_recording::with_causes;
use serde::Serialize;

/// The present state of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "standing")]
pub enum Standing {
    /// What the change set is in force.
    InForce,
    /// A value that the change writes in between is in force: the change was interrupted.
    OnTheWay { found: Option<String> },
    /// The original is in force.
    Original,
    /// Its owner no longer exists, or was started anew since: the module, the kernel or the QEMU.
    Gone,
    /// It was changed outside dwell.
    Foreign { found: Option<String> },
}

/// The present state of each place of a change; of one that cannot be read, why.
pub fn standings(
    machine: &dyn Writable,
    change: &Change,
    changes: &[Change],
) -> Vec<Result<Standing, String>> {
    let ended = ended(machine, change, changes);
    let of = |entry: &Entry| {
        let has_ended = ended(entry)?;
        let standing = standing(machine, entry).map_err(|error| with_causes(&error))?;
        Ok(if has_ended && standing != Standing::Original { Standing::Gone } else { standing })
    };
    change.entries.iter().map(of).collect()
}

fn standing(machine: &dyn Writable, entry: &Entry) -> Result<Standing, ValueError> {
    let found = match value::read(machine, &entry.place) {
        Err(_) if value::is_gone(machine, &entry.place) => return Ok(Standing::Gone),
        found => found?,
    };
    let text = found.as_deref();
    Ok(if value::same(&entry.place, text, entry.applied.as_deref()) {
        Standing::InForce
    } else if found.is_none() && entry.place.is_live() {
        Standing::Gone
    } else if is_original(entry, text) {
        Standing::Original
    } else if is_ours(entry, text) {
        Standing::OnTheWay { found }
    } else {
        Standing::Foreign { found }
    })
}
