//! Files that are written whole or not at all, and synced to the disk.

use dwell_machine::Writable;
use std::hash::{BuildHasher, RandomState};
use std::io;

/// The directory that a path is in.
pub(crate) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent })
}

/// How the name of a file ends while it is not complete.
pub(crate) const UNFINISHED: &str = ".dwell-new";

/// The name of a file while it is not complete. It cannot be guessed, so nothing can be put there first.
fn unfinished(path: &str) -> String {
    let random = RandomState::new().hash_one(path);
    format!("{path}.{random:016x}{UNFINISHED}")
}

/// Removes leftovers of interrupted writes in the directory of a file.
pub(crate) fn remove_unfinished(machine: &dyn Writable, path: &str) -> io::Result<()> {
    let directory = parent(path);
    let names = match machine.names(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        names => names?,
    };
    let base = format!("{}.", path.rsplit('/').next().unwrap_or(path));
    for name in names.iter().filter(|name| name.starts_with(&base) && name.ends_with(UNFINISHED)) {
        take_away(machine, &format!("{directory}/{name}"))?;
    }
    Ok(())
}

/// Writes a file whole or not at all, and syncs it to the disk. Its directory must be one that no other user
/// can change.
pub(crate) fn put(machine: &dyn Writable, path: &str, bytes: &[u8]) -> io::Result<()> {
    machine.check_directory(parent(path))?;
    let beside = unfinished(path);
    let put = || {
        machine.create(&beside, bytes)?;
        machine.rename(&beside, path)?;
        machine.sync_directory(parent(path))
    };
    put().inspect_err(|_| {
        // What is left of it is removed at the next start; the error that matters is the first.
        let _ = machine.remove(&beside);
    })
}

/// Removes a file, and from the disk; a missing one is not an error.
pub(crate) fn take_away(machine: &dyn Writable, path: &str) -> io::Result<()> {
    match machine.remove(path) {
        Ok(()) => machine.sync_directory(parent(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}
