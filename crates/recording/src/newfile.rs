//! A file that appears under its name only when it is complete.
//!
//! It is written under a random name beside its destination and renamed. Its mode is that of other new files of
//! the process (0666 less the umask), of a [private](NewFile::private) one 0600: a recording shows what other users'
//! threads do. A file that it replaces hands on its mode. A symbolic link is neither followed nor replaced: either could surprise, so
//! the caller is asked for the file that is meant. What a process that was killed left behind is removed when
//! the next file is begun in the same directory; whether its writer is alive is known from a lock (flock(2)),
//! which ends with the process.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Why a file could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewFileError {
    /// Something that cannot be replaced has this name.
    #[error("cannot write {path}: it is not a regular file; name a new file, or one that may be replaced")]
    NotRegular {
        /// The destination.
        path: PathBuf,
    },
    /// The name is that of a symbolic link.
    #[error(
        "cannot write {path}: it is a symbolic link to {target}, which is neither followed nor replaced; name the file itself, \
         or remove the link"
    )]
    Link {
        /// The destination.
        path: PathBuf,
        /// Where the link leads.
        target: PathBuf,
    },
    /// The temporary file could not be made.
    #[error("cannot create a file in {dir}{}", hint(.source))]
    Create {
        /// The directory of the destination.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The complete file could not be written to disk, or not be given its name.
    #[error("cannot put the new file at {path}{}", hint(.source))]
    Keep {
        /// The destination.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// What to do about an error of writing, with a semicolon in front, or nothing.
pub(crate) fn hint(error: &(dyn std::error::Error + 'static)) -> &'static str {
    let system =
        std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref());
    match system.map(io::Error::kind) {
        Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => FULL,
        Some(io::ErrorKind::NotFound) => "; create the directory first",
        Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            "; write to a directory where you may"
        }
        // Parquet keeps only the text of an error at the end of a file.
        None if error.to_string().contains("(os error 28)") => FULL,
        _ => "",
    }
}

const FULL: &str = "; free some space, or write to another file system";

/// A file under a temporary name, in the directory of its destination. Dropped, it disappears.
#[derive(Debug)]
pub struct NewFile {
    file: NamedTempFile,
    path: PathBuf,
    /// That of the file that is replaced.
    mode: Option<u32>,
}

/// How the names of temporary files begin and end.
const NAME: (&str, &str) = (".dwell-", ".new");
/// The mode of a file that only its owner may read.
const PRIVATE: u32 = 0o600;
/// The mode of a file that everybody may read, as far as the umask allows.
const SHARED: u32 = 0o666;

impl NewFile {
    /// Begins the file that will be at `path`.
    ///
    /// # Errors
    /// [`NewFileError`] if something at `path` cannot be replaced, or its directory cannot be written.
    pub fn create(path: &Path) -> Result<NewFile, NewFileError> {
        NewFile::with_mode(path, SHARED)
    }

    /// Begins one that no other user can read, unless it replaces one that they can.
    ///
    /// # Errors
    /// As [`NewFile::create`].
    pub fn private(path: &Path) -> Result<NewFile, NewFileError> {
        NewFile::with_mode(path, PRIVATE)
    }

    fn with_mode(path: &Path, new: u32) -> Result<NewFile, NewFileError> {
        // What ends with a slash is a directory, or would be one, and an empty path is nothing.
        if path.as_os_str().is_empty() || path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(NewFileError::NotRegular { path: path.to_owned() });
        }
        let mode = mode_at(path)?;
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let failed = |source| NewFileError::Create { dir: dir.to_owned(), source };
        // One that is replaced may be private: its mode is set when all is written.
        let file = begin(dir, if mode.is_some() { PRIVATE } else { new }).map_err(failed)?;
        remove_leftovers(dir, &file);
        Ok(NewFile { file, path: path.to_owned(), mode })
    }

    /// Gives the file its name. It is on disk before it has it.
    ///
    /// # Errors
    /// [`NewFileError::Keep`]; there is then no new file, and what was at the path is still there.
    pub fn keep(self) -> Result<(), NewFileError> {
        let NewFile { file, path, mode } = self;
        let failed = |source| NewFileError::Keep { path: path.clone(), source };
        if let Some(mode) = mode {
            file.as_file().set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        }
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

/// Puts a file at `path` whole or not at all.
///
/// # Errors
/// As [`NewFile::create`] and [`NewFile::keep`].
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), NewFileError> {
    fill(NewFile::create(path)?, bytes)
}

/// The same, for a file that no other user can read.
///
/// # Errors
/// As [`write()`].
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), NewFileError> {
    fill(NewFile::private(path)?, bytes)
}

fn fill(mut file: NewFile, bytes: &[u8]) -> Result<(), NewFileError> {
    let written = file.write_all(bytes).and_then(|()| file.flush());
    written.map_err(|source| NewFileError::Keep { path: file.path.clone(), source })?;
    file.keep()
}

/// The mode of what is to be replaced.
fn mode_at(path: &Path) -> Result<Option<u32>, NewFileError> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => {
            let target = fs::read_link(path).unwrap_or_default();
            Err(NewFileError::Link { path: path.to_owned(), target })
        }
        Ok(there) if !there.is_file() => Err(NewFileError::NotRegular { path: path.to_owned() }),
        Ok(there) => Ok(Some(there.mode() & 0o777)),
        // What cannot be looked at cannot be written either, which is reported then.
        Err(_) => Ok(None),
    }
}

/// A new file with a random name, locked.
fn begin(dir: &Path, mode: u32) -> io::Result<NamedTempFile> {
    loop {
        let file = tempfile::Builder::new()
            .prefix(NAME.0)
            .suffix(NAME.1)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(dir)
            .map_err(of_system)?;
        match file.as_file().try_lock() {
            // Another process may have taken it for a leftover before it was locked.
            Ok(()) if file.as_file().metadata()?.nlink() == 0 => {}
            Err(TryLockError::WouldBlock) => {}
            // Where files cannot be locked, leftovers are not removed either.
            _ => return Ok(file),
        }
    }
}

/// The system's error, without the temporary name that `tempfile` writes after it.
fn of_system(error: io::Error) -> io::Error {
    let text = error.to_string();
    let own = text.split(" at path \"").next().unwrap_or_default();
    io::Error::new(error.kind(), own.to_owned())
}

/// Removes the temporary files of this user whose writers are gone. That some cannot be removed keeps nothing
/// from working.
fn remove_leftovers(dir: &Path, own: &NamedTempFile) {
    let Ok(user) = own.as_file().metadata().map(|metadata| metadata.uid()) else { return };
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_temporary =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(NAME.0) && name.ends_with(NAME.1));
        let path = entry.path();
        if !is_temporary || entry.file_name() == own.path().file_name().unwrap_or_default() {
            continue;
        }
        let is_ours = fs::symlink_metadata(&path).is_ok_and(|there| there.is_file() && there.uid() == user);
        if is_ours && File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        // Not through `NamedTempFile`, whose errors have the temporary name.
        self.file.as_file_mut().write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// Such a name was refused only after everything was written.
    #[test]
    fn a_name_that_no_file_can_have_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        for path in [dir.path().join("new/"), PathBuf::new()] {
            assert!(matches!(NewFile::create(&path), Err(NewFileError::NotRegular { .. })), "{path:?}");
        }
    }

    #[test]
    fn a_new_file_has_the_mode_of_other_files_and_one_that_replaces_another_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&other, "").unwrap();
        write(&path, b"1").unwrap();
        assert_eq!(mode(&path), mode(&other));
        fs::remove_file(&other).unwrap();
        fs::remove_file(&path).unwrap();
        write_private(&path, b"1").unwrap();
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        write(&path, b"2").unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap()), (0o640, b"2".to_vec()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()))
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_error_of_writing_has_its_remedy_and_no_temporary_name() {
        let dir = tempfile::tempdir().unwrap();
        let told = crate::with_causes(&write(&dir.path().join("none/a"), b"1").unwrap_err());
        let end = "/none; create the directory first: No such file or directory (os error 2)";
        assert!(told.ends_with(end) && !told.contains(".dwell-"), "{told}");
        let fields: Vec<_> = crate::columns::fields().collect();
        let table = crate::table::TableWriter::new(Full, "t", &fields, 3, "t")
            .and_then(|table| table.finish().map(drop));
        let told = crate::with_causes(&table.unwrap_err());
        assert!(
            told.starts_with("cannot write the table; free some space, or write to another file system: "),
            "{told}"
        );
        assert!(told.contains("No space left on device"), "{told}");
    }

    #[test]
    fn a_link_is_neither_followed_nor_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (aim, link) = (dir.path().join("aim"), dir.path().join("link"));
        fs::write(&aim, "precious").unwrap();
        symlink("aim", &link).unwrap();
        let told = write(&link, b"x").unwrap_err().to_string();
        assert!(told.contains("a symbolic link to aim"), "{told}");
        symlink("nowhere", dir.path().join("dangling")).unwrap();
        assert!(write(&dir.path().join("dangling"), b"x").is_err());
        assert_eq!(fs::read_to_string(&aim).unwrap(), "precious");
        assert!(link.is_symlink() && !dir.path().join("nowhere").exists());
        assert!(matches!(write("/dev/null".as_ref(), b"x"), Err(NewFileError::NotRegular { .. })));
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let living = NewFile::create(&dir.path().join("a")).unwrap();
        let left = dir.path().join(".dwell-Ab12Cd.new");
        fs::write(&left, "half").unwrap();
        fs::write(dir.path().join(".dwell-notes"), "mine").unwrap();
        symlink(".dwell-notes", dir.path().join(".dwell-link.new")).unwrap();
        write(&dir.path().join("b"), b"x").unwrap();
        assert!(!left.exists());
        assert!(dir.path().join(".dwell-link.new").is_symlink());
        living.keep().unwrap();
        let names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}
