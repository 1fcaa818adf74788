//! Why something could not be read.

use serde::Serialize;
use std::io;

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Absent {
    /// It is not there.
    Missing,
    /// It is there, but this user may not read it.
    Denied,
    /// Reading it failed in another way.
    Unreadable,
}

impl From<io::Error> for Absent {
    fn from(error: io::Error) -> Absent {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Absent::Missing,
            io::ErrorKind::PermissionDenied => Absent::Denied,
            _ => Absent::Unreadable,
        }
    }
}
