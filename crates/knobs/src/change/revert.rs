//! Reverting a change.

use super::{in_state, is_known, is_original, is_ours};
use crate::iothread::{self, IothreadError, Process};
use crate::journal::{Change, Entry, Id, Journal, JournalError, State};
use crate::knob::IothreadTarget;
use crate::lease::Holder;
use crate::place::Place;
use crate::plan::{self, Write};
use crate::qmp::QmpError;
use crate::value::{self, ValueError};
use dwell_machine::Writable;
use dwell_recording::with_causes;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// The outcome for one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// The original was restored.
    Restored,
    /// The original was in force already.
    AlreadyBack,
    /// Its owner no longer exists: the module was unloaded, or the QEMU has exited.
    Gone,
    /// A value that was set outside dwell was overwritten, as asked.
    Overwritten { found: Option<String> },
    /// A value that was set outside dwell was left alone.
    LeftAlone {
        found: Option<String>,
        /// The later change of dwell's own that put it there.
        by: Option<Id>,
    },
    /// It could not be restored.
    Failed { why: String },
}

/// A change that was reverted, wholly or in part.
#[derive(Clone, Debug, Serialize)]
pub struct Reverted {
    pub id: Id,
    /// The outcome for each place, in the order of restoring.
    pub places: Vec<(Place, Option<String>, Outcome)>,
    /// Whether everything is as it was.
    pub complete: bool,
}

/// Why a change could not be reverted at all.
#[derive(Debug, thiserror::Error)]
pub enum RevertError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Everything is restored, but the journal cannot be written.
    #[error(
        "all values are as before change {id}, but the journal still has it as open; `dwell revert {id}` tries again"
    )]
    Unrecorded { id: Id, source: Arc<JournalError> },
}

/// Restores the values from before a change, in reverse order. A value changed outside dwell, or set by a later change, is
/// left alone, unless `force`. `wait` waits between two writes. A lease is reverted only if no controller runs.
///
/// # Errors
/// [`RevertError`], with [`JournalError::Controlled`] where one runs. A place that could not be restored is not an error, but
/// part of the result.
pub fn revert(
    journal: &mut Journal<'_>,
    id: Id,
    force: bool,
    wait: &mut dyn FnMut(Duration),
) -> Result<Reverted, RevertError> {
    let change = journal.change(id)?;
    let is_leased = change.lease && change.state.is_open();
    let _holder =
        is_leased.then(|| Holder::begin(journal.machine(), journal.state_directory())).transpose()?;
    of_holder(journal, id, force, wait)
}

/// The same for who may take leases.
pub(crate) fn of_holder(
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
    let_limits_come_down(machine, &change, Side::Before, wait);
    let process = change.process.zip(change.plan.iothread.as_ref());
    let reverted = put_all_back(machine, id, &change.entries, process, journal.changes(), force);
    if reverted.complete {
        let done = in_state(&change, State::Reverted);
        journal.save(&done).map_err(|source| RevertError::Unrecorded { id, source: Arc::new(source) })?;
    }
    Ok(reverted)
}

/// Restores the originals of these entries, without the journal.
pub(crate) fn put_all_back(
    machine: &dyn Writable,
    id: Id,
    entries: &[Entry],
    process: Option<(Process, &IothreadTarget)>,
    changes: &[Change],
    force: bool,
) -> Reverted {
    let by = |entry: &Entry, found: Option<&str>| set_by(changes, id, &entry.place, found);
    let restarted = restarted(machine, process);
    let back = |entry: &Entry| {
        let outcome = match &restarted {
            Ok(true) => Outcome::Gone,
            Ok(false) => put_back(machine, entry, force, &by)
                .unwrap_or_else(|error| Outcome::Failed { why: with_causes(&error) }),
            Err(error) => Outcome::Failed { why: with_causes(error) },
        };
        (entry.place.clone(), entry.original.clone(), outcome)
    };
    let places: Vec<_> = entries.iter().rev().map(back).collect();
    let complete = places
        .iter()
        .all(|(_, _, outcome)| !matches!(outcome, Outcome::LeftAlone { .. } | Outcome::Failed { .. }));
    Reverted { id, places, complete }
}

/// Which open change after `id` has set the value that is found at a place.
pub fn set_by(changes: &[Change], id: Id, place: &Place, found: Option<&str>) -> Option<Id> {
    let later = changes.iter().filter(|other| other.id > id && other.state.is_open());
    let mut setting = later
        .filter(|other| other.entries.iter().any(|entry| entry.place == *place && is_ours(entry, found)));
    setting.next_back().map(|other| other.id)
}

/// Whether another process than that of the change serves its monitor: a QEMU that was started anew has the
/// values of its command line. What cannot be found out is no; reading the values shows more.
///
/// # Errors
/// The monitor does not answer: there is no use in asking it for each value.
fn restarted(
    machine: &dyn Writable,
    process: Option<(Process, &IothreadTarget)>,
) -> Result<bool, IothreadError> {
    let Some((process, target)) = process else { return Ok(false) };
    match iothread::present(machine, target) {
        Ok((_, now)) => Ok(now.is_some_and(|now| now != process)),
        Err(error @ IothreadError::Qmp(QmpError::Silent { .. } | QmpError::Noise { .. })) => Err(error),
        Err(_) => Ok(false),
    }
}

pub(super) fn put_back(
    machine: &dyn Writable,
    entry: &Entry,
    force: bool,
    by: &dyn Fn(&Entry, Option<&str>) -> Option<Id>,
) -> Result<Outcome, ValueError> {
    let found = match value::read(machine, &entry.place) {
        Ok(None) if entry.place.is_live() => return Ok(Outcome::Gone),
        Err(_) if value::is_gone(machine, &entry.place) => return Ok(Outcome::Gone),
        found => found?,
    };
    if is_original(entry, found.as_deref()) {
        tidy(machine, entry)?;
        return Ok(Outcome::AlreadyBack);
    }
    let (ours, by) = (is_ours(entry, found.as_deref()), by(entry, found.as_deref()));
    if (!ours || by.is_some()) && !force {
        return Ok(Outcome::LeftAlone { found, by });
    }
    value::write(machine, &entry.place, entry.original.as_deref())?;
    Ok(if ours { Outcome::Restored } else { Outcome::Overwritten { found } })
}

/// What a write that was cut short may have left beside a file.
fn tidy(machine: &dyn Writable, entry: &Entry) -> Result<(), ValueError> {
    match (&entry.place, &entry.original) {
        (Place::File(_) | Place::Link(_), None) => value::write(machine, &entry.place, None),
        _ => Ok(()),
    }
}

/// If windows of haltpoll would stay above the maximum of a side, they are made to shrink first. If a value is not as the other
/// side has it, or a write fails, the side is set all the same.
fn let_limits_come_down(machine: &dyn Writable, change: &Change, side: Side, wait: &mut dyn FnMut(Duration)) {
    let writes = match side {
        Side::Before => change.back.clone(),
        Side::After => forth(change).unwrap_or_default(),
    };
    let Some(last) = writes.iter().position(|write| write.then_wait_ms > 0) else { return };
    let is_from = |entry: &Entry| {
        let from = if side == Side::Before { &entry.applied } else { &entry.original };
        let found = value::read(machine, &entry.place).ok().flatten();
        found.is_some() && value::same(&entry.place, found.as_deref(), from.as_deref())
    };
    if !change.entries.iter().filter(|entry| entry.knob.is_some()).all(is_from) {
        return;
    }
    for write in &writes[..=last] {
        if value::write(machine, &write.place, Some(&write.text())).is_err() {
            return;
        }
        if write.then_wait_ms > 0 {
            wait(Duration::from_millis(write.then_wait_ms));
        }
    }
}

/// The writes from the originals to what a change sets, or `None` if they are of no setting.
fn forth(change: &Change) -> Option<Vec<Write>> {
    let after = change.plan.recommended_setting().ok()?;
    let mut before = after;
    for entry in &change.entries {
        let Some(knob) = &entry.knob else { continue };
        before.set(knob, value::number_of(&entry.place, entry.original.as_deref())?).ok()?;
    }
    Some(plan::writes(&before, &after, change.plan.iothread.as_ref()))
}

/// The values of before a change, or those of after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    Before,
    /// What the change set.
    After,
}

/// Sets the knobs of an applied change to one of its sides, for a comparison. Files that keep values are not
/// touched, and values that are in force already are not written. `wait` waits between two writes, so that windows which have
/// grown on the other side come down.
///
/// # Errors
/// [`ValueError`], also if one of them was changed outside dwell.
pub fn switch(
    machine: &dyn Writable,
    change: &Change,
    side: Side,
    wait: &mut dyn FnMut(Duration),
) -> Result<(), ValueError> {
    let_limits_come_down(machine, change, side, wait);
    let knobs = change.entries.iter().filter(|entry| entry.knob.is_some());
    let entries: Vec<&Entry> = if side == Side::After { knobs.collect() } else { knobs.rev().collect() };
    for entry in entries {
        let wanted = if side == Side::After { &entry.applied } else { &entry.original };
        let found = value::read(machine, &entry.place)?;
        if value::same(&entry.place, found.as_deref(), wanted.as_deref()) {
            continue;
        }
        if !is_known(entry, found.as_deref()) {
            return Err(ValueError::Foreign {
                place: entry.place.clone(),
                found: value::shown(found.as_deref()),
            });
        }
        value::write(machine, &entry.place, wanted.as_deref())?;
    }
    Ok(())
}
