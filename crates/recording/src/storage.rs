//! Where a recording is read from: a file by position, or memory.

use crate::open::OpenError;
use bytes::{Buf, Bytes};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// The bytes of a recording, readable from several threads at once.
///
/// Parquet's own reading of a `File` moves the cursor that all clones of the file share, so that two threads would
/// read each other's bytes. This one reads by position.
#[derive(Clone, Debug)]
pub(crate) enum Storage {
    File { file: Arc<File>, len: u64 },
    Memory(Bytes),
}

impl Storage {
    /// The file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Storage, OpenError> {
        let file = crate::regular::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (len, file) = file.map_err(|source| match path == Path::new("-") {
            true => OpenError::Stdin,
            false => OpenError::Unreadable { path: path.to_owned(), source },
        })?;
        Ok(Storage::File { file: Arc::new(file), len })
    }
}

impl Length for Storage {
    fn len(&self) -> u64 {
        match self {
            Storage::File { len, .. } => *len,
            Storage::Memory(bytes) => bytes.len() as u64,
        }
    }
}

impl ChunkReader for Storage {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        match self {
            Storage::File { file, .. } => {
                Ok(Box::new(io::BufReader::new(From { file: Arc::clone(file), at: start })))
            }
            Storage::Memory(bytes) => {
                let rest = bytes.len().saturating_sub(usize::try_from(start).unwrap_or(usize::MAX));
                Ok(Box::new(self.get_bytes(start, rest)?.reader()))
            }
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        // Before anything is allocated: a broken file may claim any length.
        let len = self.len();
        if start.checked_add(length as u64).is_none_or(|end| end > len) {
            let what = format!("{length} bytes from {start} on are wanted; there are {len} in all");
            return Err(ParquetError::EOF(what));
        }
        match self {
            Storage::File { file, .. } => {
                let mut buffer = vec![0; length];
                file.read_exact_at(&mut buffer, start)?;
                Ok(buffer.into())
            }
            Storage::Memory(bytes) => bytes.get_bytes(start, length),
        }
    }
}

/// A file from a position on, with a cursor of its own.
struct From {
    file: Arc<File>,
    at: u64,
}

impl Read for From {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buf, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}
