//! The ring buffer that the kernel fills and we empty.
//!
//! The kernel advances `data_head`, we advance `data_tail`; it never writes between the two (and counts what it could
//! not write), so these bytes are ours until we publish a new tail. They are looked at where they lie, or,
//! where they wrap around the end of the buffer, in a copy that joins the two pieces.

use crate::mapping::Mapping;
use perf_event_open_sys::bindings::perf_event_mmap_page as Page;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// `cap_user_time` of the control page: the fields are valid that make nanoseconds of the time-stamp counter.
const CAP_USER_TIME: u64 = 1 << 3;

/// Control page and data of a ring buffer, wherever they are.
#[derive(Debug)]
struct View {
    page: NonNull<Page>,
    data: NonNull<u8>,
    /// Length of the data \[bytes\], a power of two.
    size: usize,
}

// SAFETY: the pointers lead into memory that the owner of the view keeps alive, and that all threads see alike.
unsafe impl Send for View {}

impl View {
    /// Up to where the kernel has written. What lies before is visible once this is known (Acquire pairs with the
    /// kernel's barrier before it stores the head).
    fn head(&self) -> u64 {
        // SAFETY: `page` is alive, and the field is aligned in it (it is a u64 in a C struct on a page). The
        // kernel stores to it at any time, as one word, so that it is read as an atomic and never through a
        // reference.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_head) }.load(Ordering::Acquire)
    }

    /// Gives everything before `tail` back to the kernel. Release: our copying is over before the kernel may overwrite.
    fn give_back(&self, tail: u64) {
        // SAFETY: as for `head`; only we store to this field.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.page.as_ptr()).data_tail) }
            .store(tail, Ordering::Release);
    }

    /// The frequency of the time-stamp counter by which the kernel computes its own time \[kHz\]; `None`
    /// where it shows none, as under a hypervisor's clock. It is that of the host: ns = (cycles ×
    /// `time_mult`) >> `time_shift`.
    fn tsc_khz(&self) -> Option<u32> {
        let page = self.page.as_ptr();
        // SAFETY: `page` is alive and the fields are aligned in it. The kernel may store to them at any time,
        // so that each is read once, as a whole, and no reference is made.
        let (capabilities, mult, shift) = unsafe {
            let capabilities = &raw const (*page).__bindgen_anon_1.capabilities;
            (
                capabilities.read_volatile(),
                (&raw const (*page).time_mult).read_volatile(),
                (&raw const (*page).time_shift).read_volatile(),
            )
        };
        let khz = 1_000_000u128.checked_shl(shift.into())?.checked_div(mult.into())?;
        u32::try_from(khz).ok().filter(|khz| capabilities & CAP_USER_TIME != 0 && *khz > 0)
    }

    /// The `count` bytes from position `at`, if they do not wrap.
    ///
    /// # Safety
    /// All of them must lie between tail and head, and no tail behind `at` may be published while the result is in use.
    unsafe fn bytes(&self, at: u64, count: usize) -> Option<&[u8]> {
        let begin = usize::try_from(at & (self.size - 1) as u64).ok()?;
        // SAFETY: begin + count <= size, so the slice lies within the data, which is alive and initialised (the kernel
        // hands out zeroed pages). The kernel does not write between tail and head, by the condition above.
        (count <= self.size - begin)
            .then(|| unsafe { std::slice::from_raw_parts(self.data.as_ptr().add(begin), count) })
    }

    /// Appends `count` bytes from position `at` (counted since the beginning of time) to `out`. `count` is at most
    /// `size`.
    fn copy(&self, at: u64, count: usize, out: &mut Vec<u8>) {
        let mask = self.size - 1;
        let begin = usize::try_from(at & mask as u64).unwrap_or(0);
        let first = count.min(self.size - begin);
        for (begin, count) in [(begin, first), (0, count - first)] {
            out.reserve(count);
            // SAFETY: begin + count <= size, so the source lies within the data, which is alive and which the
            // kernel does not write to between tail and head; `reserve` made room for `count` bytes behind
            // the length; the two do not overlap, as `out` is memory of our own. After the copy these bytes
            // are initialised.
            unsafe {
                let from = self.data.as_ptr().add(begin);
                std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(out.len()), count);
                out.set_len(out.len() + count);
            }
        }
    }
}

/// What was in a ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// Everything that the kernel wanted to write.
    All,
    /// Perhaps not everything: before room was given back, the largest record would not have fitted any more.
    Full,
    /// Nothing: the kernel's position made no sense, and the contents were skipped.
    Senseless,
}

/// More than the largest record of a tracepoint that is used here, with a record of losses before it
/// \[bytes\]; of small buffers it is an eighth.
const LARGEST: usize = 4096;

/// A ring buffer of one CPU.
#[derive(Debug)]
pub(super) struct Ring {
    view: View,
    tail: u64,
    _mapping: Option<Mapping>,
}

impl Ring {
    /// Maps a ring buffer of `bytes` of data (a power of two, at least a page) onto `event`.
    pub(super) fn map(event: BorrowedFd<'_>, bytes: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let mapping = Mapping::new(event, 0, page + bytes, true)?;
        // SAFETY: the mapping is one page longer than the data, so that both pointers lie in it.
        let data = unsafe { mapping.base().add(page) };
        Ok(Ring {
            view: View { page: mapping.base().cast(), data, size: bytes },
            tail: 0,
            _mapping: Some(mapping),
        })
    }

    /// The frequency of the time-stamp counter \[kHz\], if the kernel shows it.
    pub(super) fn tsc_khz(&self) -> Option<u32> {
        self.view.tsc_khz()
    }

    /// Shows `each` everything that is in the buffer, as one piece, and gives the room back. `spare` is room
    /// for what wraps.
    pub(super) fn take(&mut self, spare: &mut Vec<u8>, each: impl FnOnce(&[u8])) -> Taken {
        let head = self.view.head();
        let count = head.wrapping_sub(self.tail);
        let sane = usize::try_from(count).ok().filter(|&count| count <= self.view.size);
        if let Some(count) = sane {
            // SAFETY: the bytes lie between our tail and the kernel's head; the new tail is published below,
            // when `each` is over, and cannot keep the slice.
            match unsafe { self.view.bytes(self.tail, count) } {
                Some(bytes) => each(bytes),
                None => {
                    spare.clear();
                    self.view.copy(self.tail, count, spare);
                    each(spare);
                }
            }
        }
        let begin = std::mem::replace(&mut self.tail, head);
        self.view.give_back(head);
        // Until the room was given back it may have filled up further. The fence keeps the second look behind that.
        fence(Ordering::SeqCst);
        let most = self.view.head().wrapping_sub(begin);
        let size = self.view.size;
        match sane {
            None => Taken::Senseless,
            Some(_) if most > (size - LARGEST.min(size / 8)) as u64 => Taken::Full,
            Some(_) => Taken::All,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The kernel's end of a ring in memory of our own.
    pub(crate) struct Kernel {
        _page: Box<Page>,
        _data: Box<[u8]>,
        view: View,
        head: u64,
    }

    impl Kernel {
        /// Both ends of a ring of `size` bytes at the position `at`; the memory is the kernel's end's.
        pub(in crate::perf) fn new(size: usize, at: u64) -> (Kernel, Ring) {
            let mut page = Box::<Page>::default();
            page.data_head = at;
            page.data_tail = at;
            let mut data = vec![0u8; size].into_boxed_slice();
            let (page_at, data_at) = (NonNull::from(&mut *page), NonNull::new(data.as_mut_ptr()).unwrap());
            let view = || View { page: page_at, data: data_at, size };
            let ring = Ring { view: view(), tail: at, _mapping: None };
            (Kernel { _page: page, _data: data, view: view(), head: at }, ring)
        }

        /// Writes as the kernel does: all or nothing.
        pub(crate) fn write(&mut self, bytes: &[u8]) -> bool {
            let size = self.view.size as u64;
            // SAFETY: the page is alive in `self`.
            let tail = unsafe { (*self.view.page.as_ptr()).data_tail };
            if self.head.wrapping_sub(tail) + bytes.len() as u64 > size {
                return false;
            }
            for (i, byte) in bytes.iter().enumerate() {
                let at = usize::try_from(self.head.wrapping_add(i as u64) % size).unwrap();
                // SAFETY: `at` is within the data, which is alive in `self`.
                unsafe { self.view.data.as_ptr().add(at).write(*byte) };
            }
            self.publish(self.head.wrapping_add(bytes.len() as u64));
            true
        }

        fn publish(&mut self, head: u64) {
            self.head = head;
            // SAFETY: the page is alive in `self`.
            unsafe { (*self.view.page.as_ptr()).data_head = head };
        }
    }

    proptest! {
        /// Whatever is written and whenever it is read, it comes out once, whole and in order, also across
        /// the end of the buffer and of the 64-bit position.
        #[test]
        fn what_goes_in_comes_out(
            writes in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>()), 0..200),
            at in prop_oneof![Just(0u64), Just(u64::MAX - 100), any::<u64>()],
        ) {
            let (mut kernel, mut ring) = Kernel::new(64, at);
            let (mut sent, mut received, mut spare) = (vec![], Vec::<u8>::new(), vec![]);
            for (bytes, read) in writes {
                if kernel.write(&bytes) {
                    sent.extend(bytes);
                }
                if read {
                    prop_assert_ne!(ring.take(&mut spare, |bytes| received.extend(bytes)), Taken::Senseless);
                    prop_assert_eq!(&sent, &received);
                }
            }
            prop_assert_ne!(ring.take(&mut spare, |bytes| received.extend(bytes)), Taken::Senseless);
            prop_assert_eq!(sent, received);
        }
    }

    #[test]
    fn frequency_is_what_the_kernel_computes_times_with() {
        let with = |capabilities, mult, shift| {
            let (kernel, ring) = Kernel::new(64, 0);
            let page = kernel.view.page.as_ptr();
            // SAFETY: the page is alive in `kernel`, and nothing else uses it.
            unsafe {
                (*page).__bindgen_anon_1.capabilities = capabilities;
                ((*page).time_mult, (*page).time_shift) = (mult, shift);
            }
            ring.tsc_khz()
        };
        assert_eq!(with(CAP_USER_TIME, 1 << 30, 31), Some(2_000_000));
        assert_eq!(with(CAP_USER_TIME, 1 << 31, 31), Some(1_000_000));
        assert_eq!(with(0, 1 << 30, 31), None);
        assert_eq!(with(CAP_USER_TIME, 0, 31), None);
        assert_eq!(with(CAP_USER_TIME, 1, u16::MAX), None);
    }

    #[test]
    fn a_head_that_makes_no_sense_is_skipped() {
        let (mut kernel, mut ring) = Kernel::new(64, 0);
        kernel.publish(65);
        let (mut out, mut spare) = (Vec::<u8>::new(), vec![]);
        assert_eq!(ring.take(&mut spare, |bytes| out.extend(bytes)), Taken::Senseless);
        assert!(out.is_empty());
        assert!(kernel.write(&[1, 2, 3]));
        assert_eq!(ring.take(&mut spare, |bytes| out.extend(bytes)), Taken::All);
        assert_eq!(out, [1, 2, 3]);
    }
}
