//! Checks that a journal has only what dwell writes. Anything else was written by another program, and is not acted on.

use super::{Change, Entry};
use crate::iothread;
use crate::kept;
use crate::knob::Knob;
use crate::libvirt;
use crate::place::Place;
use crate::plan::{MOST_WRITES, Write};
use crate::value;

/// Checks that every place of a change, and every value that reverting it would write, is one that dwell writes.
///
/// # Errors
/// What dwell would not write.
pub(super) fn check(change: &Change) -> Result<(), String> {
    let most = MOST_WRITES + kept::MOST_ENTRIES;
    if change.entries.len() > most || change.back.len() > MOST_WRITES {
        return Err(format!("it has more than {most} entries or more than {MOST_WRITES} writes"));
    }
    change.entries.iter().try_for_each(|entry| match &entry.knob {
        Some(name) => parameter(change, entry, name),
        None => keeper(change, entry),
    })?;
    change.back.iter().try_for_each(|write| way_back(change, write))
}

/// The knob of this name, if it is one of the change's layer and at this place.
fn knob(change: &Change, name: &str, place: &Place) -> Result<Knob, String> {
    let knob = Knob::of(change.plan.owner, name)
        .ok_or_else(|| format!("no parameter of the {} layer has this name", change.plan.owner.name()))?;
    match knob.place(change.plan.iothread.as_ref()) {
        Some(own) if own == *place => Ok(knob),
        _ => Err(format!("{} is not at {place}", knob.param.name)),
    }
}

fn parameter(change: &Change, entry: &Entry, name: &str) -> Result<(), String> {
    if let (Some(target), true) = (&change.plan.iothread, iothread::OTHER_PROPERTIES.contains(&name)) {
        let is_number =
            |value: Option<&str>| value::number_of(&entry.place, value).is_some_and(|number| number >= 0);
        return match (
            target.place(name) == entry.place,
            is_number(entry.original.as_deref()) && is_number(entry.applied.as_deref()),
        ) {
            (true, true) => Ok(()),
            (false, _) => Err(format!("{name} is not at {}", entry.place)),
            (_, false) => Err(format!("{name} has a value that is out of its range")),
        };
    }
    let knob = knob(change, name, &entry.place)?;
    let in_range = |value: Option<&str>| {
        value::number_of(&entry.place, value)
            .is_some_and(|number| (knob.param.min..=knob.param.max).contains(&number))
    };
    if !in_range(entry.original.as_deref()) || !in_range(entry.applied.as_deref()) {
        return Err(format!("{} has a value that is out of its range", knob.param.name));
    }
    Ok(())
}

/// What keeps values over a reboot: its text is one that dwell generates, and its name has the change's number.
fn keeper(change: &Change, entry: &Entry) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what} of {} is not one that dwell generates", entry.place));
    match &entry.place {
        Place::File(path) | Place::Link(path) if !kept::is_of_change(path, change.id) => {
            Err(format!("{} is not a file of change {}", entry.place, change.id))
        }
        Place::File(_) | Place::Link(_) => {
            let generated = |text: &Option<String>| {
                text.as_ref().is_none_or(|text| kept::is_generated(&entry.place, text))
            };
            match (generated(&entry.original), entry.applied.is_some() && generated(&entry.applied)) {
                (true, true) => Ok(()),
                (false, _) => wrong("the original text"),
                (_, false) => wrong("the text"),
            }
        }
        Place::Libvirt { domain, number } => {
            let target = change.plan.iothread.as_ref();
            let same = target.is_some_and(|target| {
                target.domain.as_ref() == Some(domain) && *target.id == format!("iothread{number}")
            });
            let polls = [&entry.original, &entry.applied].into_iter().flatten();
            match (same, polls.into_iter().all(|poll| libvirt::is_poll(poll))) {
                (true, true) => Ok(()),
                (false, _) => Err(format!("{} is not the I/O thread of its plan", entry.place)),
                (_, false) => wrong("the <poll>"),
            }
        }
        Place::Parameter(_) | Place::Iothread { .. } => {
            Err(format!("{} is a parameter and has no name", entry.place))
        }
    }
}

fn way_back(change: &Change, write: &Write) -> Result<(), String> {
    let knob = knob(change, &write.knob, &write.place)?;
    match (knob.param.min..=knob.param.max).contains(&write.to)
        && write.then_wait_ms <= crate::plan::LONGEST_WAIT_MS
    {
        true => Ok(()),
        false => {
            Err(format!("a write to {} has a value or a wait that is out of its range", knob.param.name))
        }
    }
}
