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
        let (len, file) = file.map_err(|source| OpenError::Unreadable { path: path.to_owned(), source })?;
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
            Storage::Memory(bytes) => Ok(Box::new(slice(bytes, start, None)?.reader())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        match self {
            Storage::File { file, len } => {
                // Before anything is allocated: a broken file may claim any length.
                if start.checked_add(length as u64).is_none_or(|end| end > *len) {
                    return Err(beyond(start, length, *len));
                }
                let mut buffer = vec![0; length];
                file.read_exact_at(&mut buffer, start)?;
                Ok(buffer.into())
            }
            Storage::Memory(bytes) => slice(bytes, start, Some(length)),
        }
    }
}

fn slice(bytes: &Bytes, start: u64, length: Option<usize>) -> Result<Bytes, ParquetError> {
    let from = usize::try_from(start).unwrap_or(usize::MAX);
    let wanted = length.unwrap_or(bytes.len().saturating_sub(from));
    match from.checked_add(wanted) {
        Some(end) if end <= bytes.len() => Ok(bytes.slice(from..end)),
        _ => Err(beyond(start, wanted, bytes.len() as u64)),
    }
}

fn beyond(start: u64, length: usize, len: u64) -> ParquetError {
    ParquetError::EOF(format!("{length} bytes from {start} on are wanted; there are {len} in all"))
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
