//! Applying a checked plan.

use super::check::Ready;
use super::revert::{Outcome, put_all_back};
use super::{begun, in_state, is_ours};
use crate::iothread;
use crate::journal::{Change, Entry, Journal, JournalError, State};
use crate::place::Place;
use crate::value::{self, Changed, ValueError, shown};
use dwell_machine::Writable;
use std::time::Duration;

/// Why a plan was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal could not be written before the first write.
    #[error("nothing was changed")]
    Journal(#[source] JournalError),
    /// A write failed, and all values that were written are as before.
    #[error("change {id} failed; nothing that it wrote is in force")]
    RolledBack {
        /// The number it had.
        id: u32,
        source: Box<StepError>,
    },
    /// A write failed, and so did restoring.
    #[error(
        "change {id} failed, and {} could not be restored; the journal has the original, try `dwell revert {id}`: {}",
        if .left.len() == 1 { "one value" } else { "some values" },
        .left.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    )]
    Stuck {
        /// The number it has.
        id: u32,
        /// What is not as it was.
        left: Vec<Unrestored>,
        /// Why it failed at first.
        source: Box<StepError>,
    },
}

/// A value that could not be restored.
#[derive(Debug, thiserror::Error)]
#[error("{place} was {}: {why}", shown(.original.as_deref()))]
pub struct Unrestored {
    pub place: Place,
    /// What was there before.
    pub original: Option<String>,
    /// Why it is not there again.
    pub why: String,
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// Writing or reading back.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The final state could not be written to the journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Another program wrote since it was checked.
    #[error(transparent)]
    Meanwhile(#[from] Box<Changed>),
}

/// Applies a checked plan, or nothing. `wait` waits between two writes.
///
/// # Errors
/// [`ApplyError`], which has the state of the machine.
pub fn apply(
    journal: &mut Journal<'_>,
    ready: &Ready,
    wait: &mut dyn FnMut(Duration),
) -> Result<Change, ApplyError> {
    journal.is_not_verified().map_err(ApplyError::Journal)?;
    let begun = begun(journal, State::Unfinished, ready.plan.clone().bounded(), ready.entries.clone());
    let begun = begun.map_err(ApplyError::Journal)?;
    let machine = journal.machine();
    let target = begun.plan.iothread.as_ref();
    let process = target.and_then(|target| iothread::present(machine, target).ok()?.1);
    let mut change = Change { kept: ready.kept, back: ready.back.clone(), process, ..begun };
    journal.save(&change).map_err(ApplyError::Journal)?;
    let done = carry_out(machine, ready, &mut change, wait).and_then(|()| {
        let applied = Change { verifying: ready.verifying, ..in_state(&change, State::Applied) };
        journal.save(&applied)?;
        Ok(applied)
    });
    done.map_err(|error| roll_back(journal, &change, error))
}

fn carry_out(
    machine: &dyn Writable,
    ready: &Ready,
    change: &mut Change,
    wait: &mut dyn FnMut(Duration),
) -> Result<(), StepError> {
    for write in &ready.writes {
        let Some(entry) = change.entries.iter_mut().find(|entry| entry.place == write.place) else {
            continue;
        };
        let expected = Some(write.from.to_string());
        step(machine, entry, expected.as_deref(), &write.text())?;
        if write.then_wait_ms > 0 {
            wait(Duration::from_millis(write.then_wait_ms));
        }
    }
    for entry in change.entries.iter_mut().filter(|entry| entry.knob.is_none()) {
        if let (false, Some(text)) = (is_ours(entry, entry.original.as_deref()), entry.applied.clone()) {
            let original = entry.original.clone();
            step(machine, entry, original.as_deref(), &text)?;
        }
    }
    Ok(())
}

/// The longest value of the kernel's own that is kept in the journal \[bytes\]; parameters have fewer than 30.
const LONGEST_KEPT: usize = 200;

/// One write, if what is expected is there. What the kernel made of the value counts as ours from then on.
fn step(
    machine: &dyn Writable,
    entry: &mut Entry,
    expected: Option<&str>,
    text: &str,
) -> Result<(), StepError> {
    Changed::check(&entry.place, expected, value::read(machine, &entry.place)?)?;
    let written = value::write(machine, &entry.place, Some(text));
    if let Err(ValueError::Clamped { kept: Some(kept), .. }) = &written
        && kept.len() <= LONGEST_KEPT
    {
        entry.between.push(kept.clone());
    }
    Ok(written?)
}

fn roll_back(journal: &mut Journal<'_>, change: &Change, source: StepError) -> ApplyError {
    // What the kernel made of a value is known only now; where the disk is full it goes without saying.
    let _ = journal.save(change);
    let (id, source) = (change.id, Box::new(source));
    // What was changed outside dwell in between is left alone.
    let restored = put_all_back(journal.machine(), change, &[], false).places.into_iter();
    let left: Vec<Unrestored> = restored
        .filter_map(|(place, original, outcome)| match outcome {
            Outcome::Failed { why } => Some(Unrestored { place, original, why }),
            _ => None,
        })
        .collect();
    if !left.is_empty() {
        return ApplyError::Stuck { id, left, source };
    }
    // Where even this cannot be written, the change stays unfinished, and a later revert finds everything back.
    let _ = journal.save(&in_state(change, State::RolledBack));
    ApplyError::RolledBack { id, source }
}
