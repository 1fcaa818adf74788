//! The guest's own memory: one locked region of the host that has the same addresses on both sides.
//!
//! The guest sees the region at the virtual address that it has in the host, so that a reference into it means the same
//! thing here and there. It holds the guest's tables and stacks, and the mailboxes that both sides share.

use super::VmError;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The unit of mapping \[bytes\].
pub(super) const PAGE: usize = 4096;
/// Size of the region \[bytes\]: some fifty pages of tables and stacks, the rest for mailboxes and logs.
pub(super) const SIZE: usize = 4 << 20;

/// Data that host and guest may both use through shared references at the same time.
///
/// # Safety
/// All-zero bytes must be a valid value, and whatever changes must be atomic or otherwise be handed from one
/// side to the other by an atomic. Nothing in it may point out of the region, except to code and constants of
/// this program.
pub unsafe trait Shared: Sync + 'static {}

#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    used: AtomicUsize,
}

impl Memory {
    pub(super) fn new() -> Result<Memory, VmError> {
        // SAFETY: a new anonymous mapping of a constant size, at an address that the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(VmError::os("mapping guest memory"));
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| VmError::os("mapping guest memory"))?;
        let memory = Memory { base, used: AtomicUsize::new(0) };
        // SAFETY: the mapping was just made, with this size.
        if unsafe { libc::mlock(base.as_ptr().cast(), SIZE) } != 0 {
            return Err(VmError::os("locking guest memory (RLIMIT_MEMLOCK)"));
        }
        Ok(memory)
    }

    /// The address of the region, in the host as in the guest.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// The guest-physical address of something in the region.
    pub(super) fn physical(&self, address: u64) -> u64 {
        address - self.address()
    }

    /// Takes a free piece: zeroed, aligned to a page if it is as large, else as asked.
    pub(super) fn take(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, VmError> {
        let align = align.max(if bytes >= PAGE { PAGE } else { 1 });
        let start = |used: usize| used.next_multiple_of(align);
        let used = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                start(used).checked_add(bytes).filter(|end| *end <= SIZE)
            })
            .map_err(|_| VmError::OutOfMemory)?;
        let from = start(used);
        // SAFETY: `from` is within the region.
        Ok(unsafe { self.base.add(from) })
    }

    /// Takes pages and returns their address.
    pub(super) fn pages(&self, count: usize) -> Result<u64, VmError> {
        Ok(self.take(count * PAGE, PAGE)?.as_ptr() as u64)
    }

    /// Places a zeroed value.
    pub(super) fn place<T: Shared>(&self) -> Result<&T, VmError> {
        let at = self.take(size_of::<T>(), align_of::<T>())?;
        // SAFETY: fresh, aligned memory of its size, zeroed, which is a valid T (see Shared); nothing else
        // refers to it, and it lives as long as the region.
        Ok(unsafe { at.cast::<T>().as_ref() })
    }

    /// Writes a word of a table.
    pub(super) fn write<T: Copy>(&self, address: u64, value: T) {
        let at = usize::try_from(address - self.address()).expect("an address in the region");
        assert!(at + size_of::<T>() <= SIZE, "outside guest memory");
        // SAFETY: within the region, which is writable; tables are written before the guest runs.
        unsafe { self.base.add(at).cast::<T>().write_unaligned(value) }
    }

    /// Reads a word, if the address is in the region.
    pub(super) fn read(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.address())?).ok()?;
        if at.checked_add(8)? > SIZE {
            return None;
        }
        // SAFETY: within the region; the guest does not run while its memory is read.
        Some(unsafe { self.base.add(at).cast::<u64>().read_unaligned() })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` and nothing that borrows from it is left.
        unsafe { libc::munmap(self.base.as_ptr().cast(), SIZE) };
    }
}

// SAFETY: the region is plain memory that belongs to this value; pieces of it are handed out atomically, each
// once. Tables are written while a machine is set up, before any vCPU runs.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}
