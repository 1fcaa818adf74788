//! The value at a [`Place`]: read, compared, written and read back.
//!
//! A value is text, as the place gives it; `None` means that nothing is there.

use crate::iothread::{self, IothreadError};
use crate::knob::Knob;
use crate::libvirt;
use crate::place::Place;
use crate::read_only;
use crate::whole_file;
use dwell_machine::Writable;
use dwell_machine::parameter::Value;
use std::io;

/// Why a value could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("cannot {what} {place}{}", hint(.source))]
    Io { what: &'static str, place: Place, source: io::Error },
    /// QEMU or its monitor refused.
    #[error("cannot {what} {place}")]
    Qemu { what: &'static str, place: Place, source: Box<IothreadError> },
    /// The present value is not one that the parameter can have.
    #[error("{place} has the value {found}, which is out of its range")]
    NoNumber { place: Place, found: String },
    /// The value was changed outside dwell.
    #[error("{place} has the value {found}, which was set outside dwell; it is left alone")]
    Foreign { place: Place, found: String },
    /// The value read back differs from the one written.
    #[error("wrote {written} to {place} and read back {}: {}", shown(.kept.as_deref()), clamped(.place))]
    Clamped { place: Place, written: String, kept: Option<String> },
}

/// A value is not the one that was there a moment ago, or that was written last.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place} is {} and not {}: another program changed it", shown(.found.as_deref()), shown(.expected.as_deref()))]
pub struct Changed {
    pub place: Place,
    pub expected: Option<String>,
    /// What is there; `None`: nothing.
    pub found: Option<String>,
}

impl Changed {
    pub(crate) fn check(
        place: &Place,
        expected: Option<&str>,
        found: Option<String>,
    ) -> Result<(), Box<Changed>> {
        if same(place, found.as_deref(), expected) {
            return Ok(());
        }
        Err(Box::new(Changed { place: place.clone(), expected: expected.map(str::to_owned), found }))
    }
}

fn clamped(place: &Place) -> &'static str {
    match place {
        Place::Iothread { .. } => "QEMU changed the value",
        _ => "the kernel changed the value, or another program wrote at the same time",
    }
}

/// What to do about it.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => "; run as root",
        io::ErrorKind::StorageFull => "; free some space and try again",
        io::ErrorKind::ReadOnlyFilesystem => "; mount it for writing",
        _ => "",
    }
}

/// A value as text for messages.
pub fn shown(value: Option<&str>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) => {
            let line: String = value.trim_end().chars().take(200).flat_map(char::escape_debug).collect();
            if line.is_empty() { "\"\"".to_owned() } else { line }
        }
    }
}

/// Whether two values are the same: switches are Y and N, or 1 and 0, and names their numbers.
pub fn same(place: &Place, a: Option<&str>, b: Option<&str>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) if place.is_live() => {
            let numbers = number_of(place, Some(a)).zip(number_of(place, Some(b)));
            numbers.map_or_else(|| Value::same(a, b), |(a, b)| a == b)
        }
        (a, b) => a == b,
    }
}

/// The value at a place as a number, switches being 0 and 1, and a name its place among the names; `None` if
/// it is none.
pub fn number_of(place: &Place, value: Option<&str>) -> Option<i64> {
    let value = value?;
    Knob::at(place).map_or_else(|| Value::parse(value).number(), |knob| knob.number_of(value))
}

/// The present value; `None` if there is none, as of a QEMU that has exited.
///
/// # Errors
/// [`ValueError`] if it cannot be read.
pub fn read(machine: &dyn Writable, place: &Place) -> Result<Option<String>, ValueError> {
    let io = |source| ValueError::Io { what: "read", place: place.clone(), source };
    match place {
        Place::Parameter(path) => {
            Ok(there(machine.read(path)).map_err(io)?.map(|bytes| lossy(&bytes).trim().to_owned()))
        }
        Place::File(path) => Ok(there(machine.read(path)).map_err(io)?.map(|bytes| lossy(&bytes))),
        Place::Link(path) => there(machine.target(path)).map_err(io),
        Place::Libvirt { domain, number } => libvirt::poll(machine, domain, *number).map_err(io),
        Place::Iothread { socket, id, property } => {
            let read = || iothread::get(&mut iothread::connect(machine, socket)?, id, property);
            match read() {
                Ok(value) => Ok(Some(value.to_string())),
                Err(error) if error.is_gone() => Ok(None),
                Err(error) => Err(of_qemu("read", place, error)),
            }
        }
    }
}

/// Whether parameters of modules can be seen at all, if the value is one: without `/sys` none is gone.
pub(crate) fn has_parameters(machine: &dyn Writable, place: &Place) -> bool {
    !matches!(place, Place::Parameter(_)) || machine.exists("/sys/module")
}

/// Whether the libvirt domain, or its I/O thread, that had the value no longer exists. Other places report that as no value.
pub(crate) fn is_gone(machine: &dyn Writable, place: &Place) -> bool {
    matches!(place, Place::Libvirt { domain, number } if libvirt::is_gone(machine, domain, *number))
}

fn of_qemu(what: &'static str, place: &Place, error: IothreadError) -> ValueError {
    ValueError::Qemu { what, place: place.clone(), source: Box::new(error) }
}

fn there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a value, or removes the present one, and reads it back.
///
/// # Errors
/// [`ValueError`]; after [`ValueError::Clamped`] a value is in force that was not asked for.
pub fn write(machine: &dyn Writable, place: &Place, value: Option<&str>) -> Result<(), ValueError> {
    read_only::check().map_err(|source| ValueError::Io { what: "write", place: place.clone(), source })?;
    put(machine, place, value)?;
    let kept = read(machine, place)?;
    if same(place, kept.as_deref(), value) {
        return Ok(());
    }
    Err(ValueError::Clamped { place: place.clone(), written: shown(value), kept })
}

fn put(machine: &dyn Writable, place: &Place, value: Option<&str>) -> Result<(), ValueError> {
    let io = |source| ValueError::Io { what: "write", place: place.clone(), source };
    match (place, value) {
        (Place::Parameter(path), Some(value)) => machine.write(path, value.as_bytes()).map_err(io),
        (Place::File(path), Some(text)) => {
            machine.make_directory(whole_file::parent(path)).map_err(io)?;
            whole_file::remove_unfinished(machine, path).map_err(io)?;
            whole_file::put(machine, path, text.as_bytes()).map_err(io)
        }
        (Place::Link(path), Some(target)) => {
            machine.make_directory(whole_file::parent(path)).map_err(io)?;
            machine.check_directory(whole_file::parent(path)).map_err(io)?;
            machine.link(target, path).map_err(io)?;
            machine.sync_directory(whole_file::parent(path)).map_err(io)
        }
        (Place::File(path) | Place::Link(path), None) => {
            whole_file::remove_unfinished(machine, path).map_err(io)?;
            whole_file::take_away(machine, path).map_err(io)
        }
        (Place::Libvirt { domain, number }, value) => {
            libvirt::set_poll(machine, domain, *number, value).map_err(io)
        }
        (Place::Iothread { socket, id, property }, Some(value)) => {
            let number = value.parse().map_err(|_| io(io::ErrorKind::InvalidInput.into()))?;
            let set = || iothread::put(&mut iothread::connect(machine, socket)?, id, property, number);
            set().map_err(|error| of_qemu("write", place, error))
        }
        (Place::Parameter(_) | Place::Iothread { .. }, None) => {
            Err(io(io::Error::new(io::ErrorKind::InvalidInput, "a parameter cannot be removed")))
        }
    }
}
