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
    let few = change.entries.len() <= most && change.back.len() <= MOST_WRITES;
    ensure(few, || format!("it has more than {most} entries or more than {MOST_WRITES} writes"))?;
    change.entries.iter().try_for_each(|entry| match &entry.knob {
        Some(name) => parameter(change, entry, name),
        None => keeper(change, entry),
    })?;
    change.back.iter().try_for_each(|write| way_back(change, write))
}

fn ensure(is: bool, wrong: impl FnOnce() -> String) -> Result<(), String> {
    if is { Ok(()) } else { Err(wrong()) }
}

/// The knob of this name, if it is one of the change's layer and at this place.
fn knob(change: &Change, name: &str, place: &Place) -> Result<Knob, String> {
    let knob = Knob::of(change.plan.owner, name)
        .ok_or_else(|| format!("no parameter of the {} layer has this name", change.plan.owner.name()))?;
    let own = knob.place(change.plan.iothread.as_ref());
    ensure(own.as_ref() == Some(place), || format!("{name} is not at {place}"))?;
    Ok(knob)
}

fn parameter(change: &Change, entry: &Entry, name: &str) -> Result<(), String> {
    let both = |permitted: &dyn Fn(i64) -> bool| {
        let is =
            |value: &Option<String>| value::number_of(&entry.place, value.as_deref()).is_some_and(permitted);
        let are = is(&entry.original) && is(&entry.applied);
        ensure(are, || format!("{name} has a value that is out of its range"))
    };
    if let (Some(target), true) = (&change.plan.iothread, iothread::OTHER_PROPERTIES.contains(&name)) {
        ensure(target.place(name) == entry.place, || format!("{name} is not at {}", entry.place))?;
        return both(&|number| number >= 0);
    }
    let knob = knob(change, name, &entry.place)?;
    both(&|number| (knob.param.min..=knob.param.max).contains(&number))
}

/// What keeps values over a reboot: its text is one that dwell generates, and its name has the change's number.
fn keeper(change: &Change, entry: &Entry) -> Result<(), String> {
    let place = &entry.place;
    let generates =
        |is: bool, what: &str| ensure(is, || format!("{what} of {place} is not one that dwell generates"));
    match place {
        Place::File(path) | Place::Link(path) => {
            let of_change = kept::is_of_change(path, change.id);
            ensure(of_change, || format!("{place} is not a file of change {}", change.id))?;
            let generated =
                |text: &Option<String>| text.as_ref().is_none_or(|text| kept::is_generated(place, text));
            generates(generated(&entry.original), "the original text")?;
            generates(entry.applied.is_some() && generated(&entry.applied), "the text")
        }
        Place::Libvirt { domain, number } => {
            let target = change.plan.iothread.as_ref();
            let same = target.is_some_and(|target| {
                target.domain.as_ref() == Some(domain) && *target.id == format!("iothread{number}")
            });
            ensure(same, || format!("{place} is not the I/O thread of its plan"))?;
            let mut polls = [&entry.original, &entry.applied].into_iter().flatten();
            generates(polls.all(|poll| libvirt::is_poll(poll)), "the <poll>")
        }
        Place::Parameter(_) | Place::Iothread { .. } => {
            Err(format!("{place} is a parameter and has no name"))
        }
    }
}

fn way_back(change: &Change, write: &Write) -> Result<(), String> {
    let knob = knob(change, &write.knob, &write.place)?;
    let is_value = (knob.param.min..=knob.param.max).contains(&write.to);
    let fits = is_value && write.then_wait_ms <= crate::plan::LONGEST_WAIT_MS;
    ensure(fits, || format!("a write to {} has a value or a wait that is out of its range", write.knob))
}
