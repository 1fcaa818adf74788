//! A file that appears under its name only when it is complete.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Why a file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum NewFileError {
    /// Something that cannot be replaced has this name.
    #[error("{path}: is not a regular file; a new file is written beside its destination and renamed")]
    NotRegular {
        /// The destination.
        path: PathBuf,
    },
    /// The temporary file could not be made.
    #[error("cannot create a file in {dir}")]
    Create {
        /// The folder of the destination.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The complete file could not be written to disk, or not be given its name.
    #[error("cannot put the new file at {path}")]
    Keep {
        /// The destination.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A file under a temporary name, in the folder of its destination. Dropped, it disappears.
#[derive(Debug)]
pub struct NewFile {
    file: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Begins the file that will be at `path`. A symbolic link is followed, not replaced.
    pub fn create(path: &Path) -> Result<NewFile, NewFileError> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.exists() && !path.is_file() {
            return Err(NewFileError::NotRegular { path });
        }
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        // The process's umask applies to these permissions, as to any new file.
        let file = tempfile::Builder::new()
            .prefix(".dwell-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(dir)
            .map_err(|source| NewFileError::Create { dir: dir.to_owned(), source })?;
        Ok(NewFile { file, path })
    }

    /// Gives the file its name. It is on disk before it has it.
    pub fn keep(self) -> Result<(), NewFileError> {
        let NewFile { file, path } = self;
        let failed = |source| NewFileError::Keep { path: path.clone(), source };
        file.as_file().sync_all().map_err(failed)?;
        file.persist(&path).map_err(|error| failed(error.error))?;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
