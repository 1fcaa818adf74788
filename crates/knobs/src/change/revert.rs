//! Reverting a change.

use super::{in_state, is_known, is_of_another_boot, is_original, is_ours, is_undone};
use crate::iothread::{self, IothreadError};
use crate::journal::{Change, Entry, Id, Journal, JournalError, State};
use crate::lease::Holder;
use crate::place::Place;
use crate::plan::{self, Write};
use crate::qmp::QmpError;
use crate::value::{self, ValueError};
use dwell_machine::{Writable, identity};
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
    /// Its owner no longer exists or was started anew: the module was unloaded, the machine rebooted, or the QEMU has exited.
    Gone,
    /// A value that was set outside dwell was overwritten, as asked.
    Overwritten { found: Option<String> },
    /// A value that was set outside dwell was left alone.
    LeftAlone {
        found: Option<String>,
        /// A later change of dwell's own that has the place, and is to be reverted before.
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

/// Restores the values from before a change, in reverse order. A value changed outside dwell, or of a place that a later
/// change has as well, is left alone, unless `force`: then the later change restores what this one did. `wait` waits between two
/// writes. A lease is reverted only if no controller runs.
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
    of_holder(journal, id, None, force, wait)
}

/// The same for who may take leases, who knows the entries better than the journal where its controller lives.
pub(crate) fn of_holder(
    journal: &mut Journal<'_>,
    id: Id,
    entries: Option<Vec<Entry>>,
    force: bool,
    wait: &mut dyn FnMut(Duration),
) -> Result<Reverted, RevertError> {
    let change = journal.change(id)?.clone();
    if !change.state.is_open() {
        return Ok(Reverted { id, places: vec![], complete: true });
    }
    let machine = journal.machine();
    if !is_undone(&change, identity::boot_id(machine).as_deref()) {
        let_limits_come_down(machine, &change, Side::Before, wait);
    }
    let known = Change { entries: entries.unwrap_or_else(|| change.entries.clone()), ..change.clone() };
    let reverted = put_all_back(machine, &known, journal.changes(), force);
    if reverted.complete {
        let unrecorded = |source| RevertError::Unrecorded { id, source: Arc::new(source) };
        let is_there = |entry: &Entry| {
            reverted.places.iter().any(|(place, _, of)| *place == entry.place && *of != Outcome::Gone)
        };
        let entries = change.entries.iter().filter(|entry| is_there(entry)).cloned().collect();
        for later in with_originals_of(&Change { entries, ..change.clone() }, journal.changes()) {
            journal.save(&later).map_err(unrecorded)?;
        }
        journal.save(&in_state(&change, State::Reverted)).map_err(unrecorded)?;
    }
    Ok(reverted)
}

/// The later changes that have places of one that is reverted before them, which restore what it does.
fn with_originals_of(change: &Change, changes: &[Change]) -> Vec<Change> {
    let of_change = |place: &Place| change.entries.iter().find(|entry| entry.place == *place);
    let with_originals = |later: &Change| {
        let entry = |entry: &Entry| Entry {
            original: of_change(&entry.place)
                .map_or_else(|| entry.original.clone(), |of| of.original.clone()),
            ..entry.clone()
        };
        // The writes that were to revert it lead to other values.
        Change { entries: later.entries.iter().map(entry).collect(), back: vec![], ..later.clone() }
    };
    let later = changes.iter().filter(|later| later.id > change.id && later.state.is_open());
    let shares = |later: &&Change| later.entries.iter().any(|entry| of_change(&entry.place).is_some());
    later.filter(shares).map(with_originals).collect()
}

/// Restores the originals of a change, without the journal.
pub(crate) fn put_all_back(
    machine: &dyn Writable,
    change: &Change,
    changes: &[Change],
    force: bool,
) -> Reverted {
    let booted = identity::boot_id(machine);
    let later = |entry: &Entry| later_of(changes, change.id, &entry.place, booted.as_deref());
    let ended = ended(machine, change, changes);
    let back = |entry: &Entry| {
        let outcome = match ended(entry) {
            Ok(true) => Outcome::Gone,
            Err(why) => Outcome::Failed { why },
            Ok(false) => put_back(machine, entry, force, later(entry))
                .unwrap_or_else(|error| Outcome::Failed { why: with_causes(&error) }),
        };
        (entry.place.clone(), entry.original.clone(), outcome)
    };
    let (id, entries) = (change.id, &change.entries);
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

/// The last open change after `id` that has a place, unless a reboot has undone it.
fn later_of(changes: &[Change], id: Id, place: &Place, booted: Option<&str>) -> Option<Id> {
    let is_undone = |other: &Change| place.is_live() && is_undone(other, booted);
    let is_open = |other: &&Change| other.state.is_open() && !is_undone(other);
    later_with(changes, id, place).rfind(is_open).map(|other| other.id)
}

fn later_with<'a>(
    changes: &'a [Change],
    id: Id,
    place: &'a Place,
) -> impl DoubleEndedIterator<Item = &'a Change> {
    let has = move |other: &&Change| other.id > id && other.entries.iter().any(|entry| entry.place == *place);
    changes.iter().filter(has)
}

/// Whether a place of a change has had another owner since, which was started with values of its own: the QEMU, or the kernel
/// after a reboot. What was kept is what it was started with.
///
/// # Errors
/// As [`restarted`].
pub(super) fn ended<'a>(
    machine: &dyn Writable,
    change: &'a Change,
    changes: &'a [Change],
) -> impl Fn(&Entry) -> Result<bool, String> + 'a {
    let booted = identity::boot_id(machine);
    let is_undone = is_undone(change, booted.as_deref());
    let restarted = if is_undone { Ok(true) } else { restarted(machine, change) };
    // A later change that was kept over the reboot has restored what this one had set.
    let restores = move |later: &Change| later.kept && is_of_another_boot(later, booted.as_deref());
    move |entry| match entry.place {
        Place::Iothread { .. } => restarted.clone().map(|restarted| restarted && !change.kept),
        Place::Parameter(_) => Ok(is_undone && !later_with(changes, change.id, &entry.place).any(&restores)),
        _ => Ok(false),
    }
}

/// Whether another process than that of the change serves its monitor: a QEMU that was started anew has the
/// values of its command line. What cannot be found out is no; reading the values shows more.
///
/// # Errors
/// The monitor does not answer, or nothing listens there though the process runs: there is no use in asking for each value.
fn restarted(machine: &dyn Writable, change: &Change) -> Result<bool, String> {
    let Some((process, target)) = change.process.zip(change.plan.iothread.as_ref()) else { return Ok(false) };
    match iothread::present(machine, target) {
        Ok((_, now)) => Ok(now.is_some_and(|now| now != process)),
        Err(error @ IothreadError::Qmp(QmpError::Silent { .. } | QmpError::Noise { .. })) => {
            Err(with_causes(&error))
        }
        Err(error) if error.is_gone() && process.runs(machine) => {
            Err(format!("{}, though its process {} runs", with_causes(&error), process.pid))
        }
        Err(error) => Ok(error.is_gone()),
    }
}

/// `later`: a later change that has the place.
fn put_back(
    machine: &dyn Writable,
    entry: &Entry,
    force: bool,
    later: Option<Id>,
) -> Result<Outcome, ValueError> {
    let found = match value::read(machine, &entry.place) {
        Ok(None) if entry.place.is_live() => {
            return match value::has_parameters(machine, &entry.place) {
                true => Ok(Outcome::Gone),
                false => {
                    Ok(Outcome::Failed { why: "this machine shows no parameters of modules here".to_owned() })
                }
            };
        }
        Err(_) if value::is_gone(machine, &entry.place) => return Ok(Outcome::Gone),
        found => found?,
    };
    if later.is_some() && !force {
        return Ok(Outcome::LeftAlone { found, by: later });
    }
    if is_original(entry, found.as_deref()) {
        tidy(machine, entry)?;
        return Ok(Outcome::AlreadyBack);
    }
    let ours = is_ours(entry, found.as_deref());
    if !ours && !force {
        return Ok(Outcome::LeftAlone { found, by: None });
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
/// [`ValueError`] of the first that could not be set, also if it was changed outside dwell; all others are set.
pub fn switch(
    machine: &dyn Writable,
    change: &Change,
    side: Side,
    wait: &mut dyn FnMut(Duration),
) -> Result<(), ValueError> {
    let_limits_come_down(machine, change, side, wait);
    let knobs = change.entries.iter().filter(|entry| entry.knob.is_some());
    let entries: Vec<&Entry> = if side == Side::After { knobs.collect() } else { knobs.rev().collect() };
    entries.into_iter().map(|entry| switch_one(machine, entry, side)).fold(Ok(()), Result::and)
}

fn switch_one(machine: &dyn Writable, entry: &Entry, side: Side) -> Result<(), ValueError> {
    let wanted = if side == Side::After { &entry.applied } else { &entry.original };
    let found = value::read(machine, &entry.place)?;
    if value::same(&entry.place, found.as_deref(), wanted.as_deref()) {
        return Ok(());
    }
    if !is_known(entry, found.as_deref()) {
        let (place, found) = (entry.place.clone(), value::shown(found.as_deref()));
        return Err(ValueError::Foreign { place, found });
    }
    value::write(machine, &entry.place, wanted.as_deref())
}
