//! Taking a change back.

use super::apply::tidy;
use super::{in_state, is_original, is_ours};
use crate::journal::{Change, Entry, Id, Journal, JournalError, State};
use crate::knob::Knob;
use crate::place::Place;
use crate::value::{self, ValueError};
use dwell_machine::Writable;
use serde::Serialize;
use std::time::Duration;

/// What became of one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// The original is there again.
    Restored,
    /// It was there already.
    AlreadyBack,
    /// What it was set in is gone: the module was unloaded, the QEMU has ended.
    Gone,
    /// Somebody else's value was there, and was overwritten as asked.
    Overwritten {
        /// What was there.
        found: Option<String>,
    },
    /// Somebody else's value is there, and was left alone.
    LeftAlone {
        /// What is there.
        found: Option<String>,
        /// The later change of dwell's own that put it there.
        by: Option<Id>,
    },
    /// It could not be put back.
    Failed {
        /// Why.
        why: String,
    },
}

/// A change that was taken back, wholly or as far as it went.
#[derive(Clone, Debug, Serialize)]
pub struct Reverted {
    /// The change.
    pub id: Id,
    /// What became of each place, in the order in which they were put back.
    pub places: Vec<(Place, Option<String>, Outcome)>,
    /// Whether everything is as it was.
    pub complete: bool,
}

/// Why a change could not be taken back at all.
#[derive(Debug, thiserror::Error)]
pub enum RevertError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Everything is back, but the journal cannot be told.
    #[error(
        "everything is as it was before change {id}, but the journal still calls it open; `dwell revert {id}` tries again"
    )]
    Unrecorded {
        /// The change.
        id: Id,
        /// Why.
        source: JournalError,
    },
}

/// Puts back what was there before a change, in reverse order. What somebody else has set since is left alone, unless
/// `force`. `wait` waits between two writes.
///
/// # Errors
/// [`RevertError`]. That some place could not be put back is no error but told in the answer.
pub fn revert(
    journal: &mut Journal<'_>,
    id: Id,
    force: bool,
    wait: &mut dyn FnMut(Duration),
) -> Result<Reverted, RevertError> {
    let change = journal.change(id)?.clone();
    if !change.state.is_open() {
        return Ok(Reverted { id, places: vec![], complete: true });
    }
    let machine = journal.machine();
    let_limits_come_down(machine, &change, wait);
    let by = |entry: &Entry, found: Option<&str>| {
        let later = journal.changes().iter().filter(|other| other.id > id && other.state.is_open());
        let mut setting =
            later.filter(|other| other.entries.iter().any(|e| e.place == entry.place && is_ours(e, found)));
        setting.next_back().map(|other| other.id)
    };
    let back = |entry: &Entry| {
        let outcome = put_back(machine, entry, force, &by)
            .unwrap_or_else(|error| Outcome::Failed { why: chain(&error) });
        (entry.place.clone(), entry.original.clone(), outcome)
    };
    let places: Vec<_> = change.entries.iter().rev().map(back).collect();
    let complete = places
        .iter()
        .all(|(_, _, outcome)| !matches!(outcome, Outcome::LeftAlone { .. } | Outcome::Failed { .. }));
    if complete {
        let done = in_state(&change, State::Reverted);
        journal.save(&done).map_err(|source| RevertError::Unrecorded { id, source })?;
    }
    Ok(Reverted { id, places, complete })
}

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

fn put_back(
    machine: &dyn Writable,
    entry: &Entry,
    force: bool,
    by: &dyn Fn(&Entry, Option<&str>) -> Option<Id>,
) -> Result<Outcome, ValueError> {
    let found = value::read(machine, &entry.place)?;
    if found.is_none() && entry.place.is_live() {
        return Ok(Outcome::Gone);
    }
    if is_original(entry, found.as_deref()) {
        tidy(machine, entry)?;
        return Ok(Outcome::AlreadyBack);
    }
    let ours = is_ours(entry, found.as_deref());
    if !ours && !force {
        let by = by(entry, found.as_deref());
        return Ok(Outcome::LeftAlone { found, by });
    }
    value::write(machine, &entry.place, entry.original.as_deref())?;
    Ok(if ours { Outcome::Restored } else { Outcome::Overwritten { found } })
}

/// Where limits of haltpoll would stay above a maximum that is put back, they are let down first. If anything is not as the
/// change left it, or fails, the originals are put back all the same.
fn let_limits_come_down(machine: &dyn Writable, change: &Change, wait: &mut dyn FnMut(Duration)) {
    let Some(last) = change.back.iter().position(|write| write.then_wait_ms > 0) else { return };
    let as_applied = |entry: &Entry| {
        let found = value::read(machine, &entry.place).ok().flatten();
        found.is_some() && value::same(&entry.place, found.as_deref(), entry.applied.as_deref())
    };
    if !change.entries.iter().filter(|entry| entry.knob.is_some()).all(as_applied) {
        return;
    }
    for write in change.back.iter().take(last + 1) {
        let Some(knob) = Knob::find(&write.knob) else { return };
        if value::write(machine, &write.place, Some(&knob.written(write.to))).is_err() {
            return;
        }
        if write.then_wait_ms > 0 {
            wait(Duration::from_millis(write.then_wait_ms));
        }
    }
}

/// The values of before a change, or those of after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// The originals.
    Before,
    /// What the change set.
    After,
}

/// Puts the knobs of an applied change to one of its sides, for a comparison; what keeps values is not touched, and nothing
/// that is there already is written.
///
/// # Errors
/// [`ValueError`], also if somebody else has set one of them.
pub fn switch(machine: &dyn Writable, change: &Change, side: Side) -> Result<(), ValueError> {
    let knobs = change.entries.iter().filter(|entry| entry.knob.is_some());
    let entries: Vec<&Entry> = if side == Side::After { knobs.collect() } else { knobs.rev().collect() };
    for entry in entries {
        let wanted = if side == Side::After { &entry.applied } else { &entry.original };
        let found = value::read(machine, &entry.place)?;
        if value::same(&entry.place, found.as_deref(), wanted.as_deref()) {
            continue;
        }
        if !is_ours(entry, found.as_deref()) && !is_original(entry, found.as_deref()) {
            return Err(ValueError::Foreign {
                place: entry.place.clone(),
                found: value::shown(found.as_deref()),
            });
        }
        value::write(machine, &entry.place, wanted.as_deref())?;
    }
    Ok(())
}
