//! The operations of io_uring that a request takes, one after the other.

use crate::disk::{Action, Refusal};
use crate::request::{Piece, Request};
use crate::virtqueue::Memory;
use io_uring::{opcode, squeue, types};
use virtio_bindings::virtio_blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
use vm_memory::{Bytes, GuestMemoryBackend};

/// Zeroes written at once where the file system cannot make a range zero by itself.
const ZEROES: usize = 1 << 16;

#[repr(align(4096))]
struct Zeroes([u8; ZEROES]);
static ZERO: Zeroes = Zeroes([0; ZEROES]);

/// The operations of a request on the file.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) request: Request,
    pub(crate) action: Option<Action>,
    pub(crate) queue: usize,
    pub(crate) head: u16,
    /// The data as the kernel takes it: what is left of it.
    pub(crate) pieces: Vec<libc::iovec>,
    /// The first of the pieces that is not done.
    first: usize,
    /// Bytes that are done; of a range that is made zero by writing, of that range.
    done: u64,
    /// The range that is being worked on.
    range: usize,
    /// Whether zeroes are written because the file system cannot do it.
    by_writing: bool,
}

/// How a request goes on after an operation.
pub(crate) enum Progress {
    More,
    Done,
    Failed(Refusal),
}

impl Slot {
    /// The request of this chain of this queue is begun.
    pub(crate) fn begin(&mut self, (queue, head): (usize, u16), action: Action) {
        (self.queue, self.head, self.action) = (queue, head, Some(action));
        (self.first, self.done, self.range, self.by_writing) = (0, 0, 0, false);
    }

    /// The next operation of the request.
    pub(crate) fn operation(&self) -> squeue::Entry {
        let file = types::Fixed(0);
        let pieces = &self.pieces[self.first..];
        // Almost all requests have one piece, which the kernel need not copy a list for.
        let one = match pieces {
            [piece] => u32::try_from(piece.iov_len).ok().map(|len| (piece.iov_base.cast::<u8>(), len)),
            _ => None,
        };
        let count = u32::try_from(pieces.len()).unwrap_or(0);
        match (self.action, one) {
            (Some(Action::Read(from)), Some((base, len))) => {
                opcode::Read::new(file, base, len).offset(from + self.done).build()
            }
            (Some(Action::Write(from)), Some((base, len))) => {
                opcode::Write::new(file, base.cast_const(), len).offset(from + self.done).build()
            }
            (Some(Action::Read(from)), None) => {
                opcode::Readv::new(file, pieces.as_ptr(), count).offset(from + self.done).build()
            }
            (Some(Action::Write(from)), None) => {
                opcode::Writev::new(file, pieces.as_ptr(), count).offset(from + self.done).build()
            }
            (Some(Action::Flush), _) => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
            (Some(Action::Zero), _) if self.by_writing => {
                let (from, bytes) = self.bytes();
                let length = (bytes - self.done).min(ZEROES as u64);
                let length = u32::try_from(length).unwrap_or(0);
                opcode::Write::new(file, ZERO.0.as_ptr(), length).offset(from + self.done).build()
            }
            (Some(action @ (Action::Discard | Action::Zero)), _) => {
                let (from, bytes) = self.bytes();
                let may_unmap =
                    self.range().is_some_and(|flags| flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0);
                let how = if action == Action::Discard || may_unmap {
                    libc::FALLOC_FL_PUNCH_HOLE
                } else {
                    libc::FALLOC_FL_ZERO_RANGE
                };
                opcode::Fallocate::new(file, bytes).offset(from).mode(how | libc::FALLOC_FL_KEEP_SIZE).build()
            }
            _ => opcode::Nop::new().build(),
        }
    }

    /// The flags of the range that is being worked on.
    fn range(&self) -> Option<u32> {
        Some(self.request.ranges.as_ref()?.get(self.range)?.flags)
    }

    /// First byte and length of the range that is being worked on.
    fn bytes(&self) -> (u64, u64) {
        let range = self.request.ranges.as_ref().and_then(|ranges| ranges.get(self.range));
        range.map_or((0, 0), |range| (range.sector * 512, u64::from(range.sectors) * 512))
    }

    /// What comes after an operation with this result.
    pub(crate) fn advance(&mut self, result: i32) -> Progress {
        let Ok(done) = usize::try_from(result) else {
            return match -result {
                libc::EINTR | libc::EAGAIN => Progress::More,
                libc::EOPNOTSUPP if self.action == Some(Action::Zero) && !self.by_writing => {
                    self.by_writing = true;
                    Progress::More
                }
                libc::EOPNOTSUPP => Progress::Failed(Refusal::Unsupported),
                _ => Progress::Failed(Refusal::IoError),
            };
        };
        match self.action {
            Some(Action::Read(_) | Action::Write(_)) => self.advance_data(done),
            Some(Action::Zero) if self.by_writing && done == 0 => Progress::Failed(Refusal::IoError),
            Some(Action::Zero) if self.by_writing && self.done + (done as u64) < self.bytes().1 => {
                self.done += done as u64;
                Progress::More
            }
            Some(Action::Discard | Action::Zero) => {
                (self.range, self.done) = (self.range + 1, 0);
                let ranges = self.request.ranges.as_ref().map_or(0, Vec::len);
                if self.range < ranges { Progress::More } else { Progress::Done }
            }
            _ => Progress::Done,
        }
    }

    /// So many bytes were read or written, perhaps fewer than wanted.
    fn advance_data(&mut self, mut bytes: usize) -> Progress {
        if bytes == 0 {
            // The file is shorter than it was when it was opened.
            return Progress::Failed(Refusal::IoError);
        }
        self.done += bytes as u64;
        while let Some(piece) = self.pieces.get_mut(self.first) {
            if bytes < piece.iov_len {
                // Within the piece, so within its mapping.
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(bytes).cast();
                piece.iov_len -= bytes;
                return Progress::More;
            }
            bytes -= piece.iov_len;
            self.first += 1;
        }
        Progress::Done
    }
}

/// The pieces of guest memory as the kernel takes them: all within `memory`.
pub(crate) fn pieces(memory: &Memory, data: &[Piece], pieces: &mut Vec<libc::iovec>) -> Result<(), Refusal> {
    pieces.clear();
    for piece in data {
        for slice in memory.get_slices(piece.at, piece.len as usize) {
            let slice = slice.map_err(|_| Refusal::IoError)?;
            let iov_base = slice.ptr_guard_mut().as_ptr().cast();
            pieces.push(libc::iovec { iov_base, iov_len: slice.len() });
        }
    }
    if pieces.len() > crate::disk::MAX_PIECES { Err(Refusal::IoError) } else { Ok(()) }
}

pub(crate) fn write_serial(memory: &Memory, data: &[Piece], serial: &[u8]) -> Result<(), Refusal> {
    let mut left = serial;
    for piece in data {
        let (now, later) = left.split_at(left.len().min(piece.len as usize));
        memory.write_slice(now, piece.at).map_err(|_| Refusal::IoError)?;
        left = later;
    }
    Ok(())
}
