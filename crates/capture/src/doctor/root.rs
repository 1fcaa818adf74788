//! The files a machine describes itself with, below any directory.

use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The most that is read of one file \[bytes\]; what a machine says of itself is shorter.
const LONGEST: u64 = 1 << 20;

/// A directory that is taken for `/`.
#[derive(Clone, Debug)]
pub struct Root {
    base: PathBuf,
}

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
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

impl Root {
    /// This machine's own files.
    pub fn of_this_machine() -> Root {
        Root::at("/")
    }

    /// Another machine's files, copied below a directory.
    pub fn at(base: impl Into<PathBuf>) -> Root {
        Root { base: base.into() }
    }

    /// Where a path of the machine is found; leading slashes do not matter.
    pub fn path(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    /// The bytes of a file, at most a mebibyte of them.
    ///
    /// # Errors
    /// [`Absent`] if it cannot be read.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Absent> {
        read(&self.path(path))
    }

    /// The text of a file without the white space around it; what is no UTF-8 is replaced.
    ///
    /// # Errors
    /// [`Absent`] if it cannot be read.
    pub fn text(&self, path: &str) -> Result<String, Absent> {
        Ok(String::from_utf8_lossy(&self.bytes(path)?).trim().to_owned())
    }

    /// A file that holds one value; `None` if it cannot be read or holds something else.
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.text(path).ok()?.parse().ok()
    }

    /// A module parameter as a number: `Y` and `N` are 1 and 0.
    pub fn number(&self, path: &str) -> Option<i64> {
        parse_number(&self.text(path).ok()?)
    }

    /// Whether something is there, as far as this user can see.
    pub fn exists(&self, path: &str) -> bool {
        fs::symlink_metadata(self.path(path)).is_ok()
    }

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// [`Absent`] if it cannot be listed.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Absent> {
        let mut names: Vec<String> = fs::read_dir(self.path(path))?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// The numbers among the names in a directory, in order: processes, threads, descriptors.
    ///
    /// # Errors
    /// [`Absent`] if it cannot be listed.
    pub fn numbers(&self, path: &str) -> Result<Vec<u32>, Absent> {
        let mut numbers: Vec<u32> = self.names(path)?.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Where a symbolic link leads, as it is written.
    pub fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(self.path(path)).ok()?.to_string_lossy().into_owned())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Absent> {
    let mut bytes = vec![];
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A number as module parameters print it.
fn parse_number(text: &str) -> Option<i64> {
    match text {
        "Y" | "y" => Some(1),
        "N" | "n" => Some(0),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_and_negative_numbers_are_numbers() {
        assert_eq!(parse_number("Y"), Some(1));
        assert_eq!(parse_number("N"), Some(0));
        assert_eq!(parse_number("-1"), Some(-1));
        assert_eq!(parse_number("4294967295"), Some(4_294_967_295));
        assert_eq!(parse_number("(null)"), None);
    }

    #[test]
    fn what_is_missing_is_said_to_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(root.text("/proc/cmdline"), Err(Absent::Missing));
        assert_eq!(root.names("/proc"), Err(Absent::Missing));
        assert!(!root.exists("/proc"));
    }
}
