//! Memory shared with the kernel: the ring buffers of perf and BPF, and the numbers that BPF programs keep.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// A shared mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` of `file` from `offset`, a multiple of the page size, to read or to read and write.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        offset: usize,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Mapping> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new shared mapping at an address that the kernel chooses overlaps no other memory of this
        // process. `file` is open while it is borrowed; the mapping does not need it afterwards. The result
        // is checked.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), offset)
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Mapping { base, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Its first byte, aligned to a page.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `base` and `bytes` are what mmap returned and was passed, nothing else unmaps them, and no
        // pointer into them outlives the owner. An error would mean that they are not, and nothing can be
        // done about it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
