//! The place of a value on a machine, as one line of text.

use crate::object_id::ObjectId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Something that has a value and can be given another one.
///
/// Paths are those of the machine, without the root below which tests put them. As text:
///
/// ```
/// use dwell_knobs::place::Place;
/// for text in [
///     "/sys/module/kvm/parameters/halt_poll_ns",
///     "qmp:/run/vm.qmp:io0:poll-max-ns",
///     "libvirt:web 1:iothread2",
///     "file:/etc/modprobe.d/dwell-1.conf",
///     "link:/etc/systemd/system/multi-user.target.wants/dwell-1.service",
/// ] {
///     assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
/// }
/// assert!("/etc/passwd".parse::<Place>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// A parameter of a kernel module: `/sys/module/MODULE/parameters/NAME`.
    Parameter(String),
    /// A property of an iothread object of a running QEMU: `qmp:SOCKET:ID:PROPERTY`.
    Iothread {
        /// UNIX socket of QEMU's monitor.
        socket: String,
        /// Id of the object.
        id: ObjectId,
        /// Name of the property.
        property: String,
    },
    /// The `<poll>` element of an I/O thread in the configuration that libvirt keeps: `libvirt:DOMAIN:iothreadN`.
    Libvirt {
        domain: String,
        /// The number of the I/O thread.
        number: u32,
    },
    /// A configuration file of dwell's own: `file:PATH`.
    File(String),
    /// A symbolic link of dwell's own: `link:PATH`.
    Link(String),
}

/// Text that is not a place that dwell writes to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a place that dwell writes to")]
pub struct NotAPlace(String);

/// Where parameters of modules are.
const MODULES: &str = "/sys/module/";

/// How the paths begin and end at which dwell creates files and links; between is the number of a change.
pub(crate) const OWN: [(&str, &str); 4] = [
    ("/etc/modprobe.d/dwell-", ".conf"),
    ("/etc/tmpfiles.d/dwell-", ".conf"),
    ("/etc/systemd/system/dwell-", ".service"),
    (WANTED, ".service"),
];
pub(crate) const WANTED: &str = "/etc/systemd/system/multi-user.target.wants/dwell-";

impl Place {
    /// Whether it is in a running process or the running kernel, and so ends with it.
    pub const fn is_live(&self) -> bool {
        matches!(self, Place::Parameter(_) | Place::Iothread { .. })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Parameter(path) => f.write_str(path),
            Place::Iothread { socket, id, property } => write!(f, "qmp:{socket}:{id}:{property}"),
            Place::Libvirt { domain, number } => write!(f, "libvirt:{domain}:iothread{number}"),
            Place::File(path) => write!(f, "file:{path}"),
            Place::Link(path) => write!(f, "link:{path}"),
        }
    }
}

impl FromStr for Place {
    type Err = NotAPlace;

    fn from_str(text: &str) -> Result<Place, NotAPlace> {
        parse(text).ok_or_else(|| NotAPlace(text.chars().take(200).flat_map(char::escape_debug).collect()))
    }
}

fn parse(text: &str) -> Option<Place> {
    if text.contains(|c: char| c.is_control()) {
        return None;
    }
    match text.split_once(':') {
        None => is_parameter(text).then(|| Place::Parameter(text.to_owned())),
        Some(("qmp", rest)) => {
            let (rest, property) = rest.rsplit_once(':')?;
            let (socket, id) = rest.rsplit_once(':')?;
            let id = id.parse().ok()?;
            let told = !socket.is_empty() && is_name(property);
            told.then(|| Place::Iothread { socket: socket.to_owned(), id, property: property.to_owned() })
        }
        Some(("libvirt", rest)) => {
            let (domain, thread) = rest.rsplit_once(':')?;
            let number = thread.strip_prefix("iothread")?.parse().ok()?;
            (!domain.is_empty() && !domain.starts_with('-'))
                .then(|| Place::Libvirt { domain: domain.to_owned(), number })
        }
        Some(("file", path)) => is_own(path).then(|| Place::File(path.to_owned())),
        Some(("link", path)) => is_own(path).then(|| Place::Link(path.to_owned())),
        Some(_) => None,
    }
}

fn is_parameter(path: &str) -> bool {
    let Some((module, name)) = path.strip_prefix(MODULES).and_then(|rest| rest.split_once("/parameters/"))
    else {
        return false;
    };
    is_name(module) && is_name(name)
}

fn is_own(path: &str) -> bool {
    let named = |(begin, end): (&str, &str)| path.strip_prefix(begin)?.strip_suffix(end);
    OWN.into_iter().filter_map(named).any(is_name)
}

/// A name of letters, digits, `-`, `.` and `_`, the first a letter or a digit.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

crate::serde_as_text!(Place, NotAPlace);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_places_that_dwell_writes_to_are_places() {
        for text in [
            "",
            "/etc/passwd",
            "/sys/module/kvm/parameters/../../../../etc/passwd",
            "/sys/module/../kvm/parameters/x",
            "/sys/module/kvm/parameters/",
            "/sys/module/kvm/parameters/a\nb",
            "file:/etc/shadow",
            "file:/etc/modprobe.d/dwell-../../x.conf",
            "file:/etc/modprobe.d/other.conf",
            "libvirt::iothread1",
            "libvirt:--all:iothread1",
            "libvirt:vm:thread1",
            "qmp::io0:poll-max-ns",
            "qmp:/run/x:poll-max-ns",
            "ssh:host",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn sockets_may_have_colons() {
        let place: Place = "qmp:/run/a:b.qmp:io0:poll-max-ns".parse().unwrap();
        assert!(matches!(place, Place::Iothread { socket, .. } if socket == "/run/a:b.qmp"));
    }
}
