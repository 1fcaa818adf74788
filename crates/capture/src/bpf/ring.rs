//! The ring buffer that the programs fill and we empty, and the counts that they keep.
//!
//! The kernel advances the producer's position when a program asks for room, and marks the record busy until
//! the program is done with it; we advance the consumer's position. Records between the two that are not busy
//! are ours. The kernel maps the data twice, one after the other, so that no record wraps.

use crate::mapping::Mapping;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The positions and data of a ring buffer, wherever they are.
#[derive(Debug)]
struct View {
    consumer: NonNull<u64>,
    producer: NonNull<u64>,
    data: NonNull<u8>,
    /// Length of the data \[bytes\], a power of two; it is there twice.
    size: usize,
}

// SAFETY: the pointers lead into memory that the owner of the view keeps alive, and that all threads see alike.
unsafe impl Send for View {}

/// A record begins with its length and flags, and the number of its page (`struct bpf_ringbuf_hdr`).
const HEADER: usize = 8;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

impl View {
    /// Up to where programs have asked for room.
    fn produced(&self) -> u64 {
        // SAFETY: `producer` is alive and aligned (it is at the beginning of a page). The kernel stores to it
        // at any time, as one word, so that it is read as an atomic and never through a reference.
        unsafe { AtomicU64::from_ptr(self.producer.as_ptr()) }.load(Ordering::Acquire)
    }

    /// Gives everything before `position` back to the kernel. Release: our reading is over before the kernel
    /// may overwrite.
    fn give_back(&self, position: u64) {
        // SAFETY: as for `produced`; only we store to this word.
        unsafe { AtomicU64::from_ptr(self.consumer.as_ptr()) }.store(position, Ordering::Release);
    }

    fn place(&self, position: u64) -> usize {
        usize::try_from(position & (self.size - 1) as u64).unwrap_or(0)
    }

    /// The length and flags of the record at `position`. What a program wrote into a record that is not busy
    /// is visible once this is known (Acquire pairs with the kernel's exchange of this word).
    fn header(&self, position: u64) -> u32 {
        // SAFETY: the place is within the data, which is alive; positions are multiples of eight and the data
        // begins on a page, so that it is aligned. The kernel exchanges the word at any time, so that it is
        // read as an atomic.
        let header = unsafe { self.data.as_ptr().add(self.place(position)).cast::<u32>() };
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(header) }.load(Ordering::Acquire)
    }

    /// The `count` bytes of the record at `position`.
    ///
    /// # Safety
    /// The record must lie between the consumer's position and the producer's, `count` must be its length and
    /// at most `size`, it must not be busy, and no position behind it may be given back while the result is
    /// in use.
    unsafe fn record(&self, position: u64, count: usize) -> &[u8] {
        // SAFETY: the place is less than `size` and the data is there twice, so that the slice, at most
        // `size` long behind a header, lies within it. It is initialised (the kernel hands out zeroed pages),
        // and the kernel does not write to a record that is not busy before it is given back.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr().add(self.place(position) + HEADER), count) }
    }
}

#[derive(Debug)]
pub(super) struct Ring {
    view: View,
    position: u64,
    _mappings: Option<[Mapping; 2]>,
}

impl Ring {
    /// Maps the ring buffer `map` of `bytes` of data.
    pub(super) fn map(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Ring> {
        let page = rustix::param::page_size();
        let consumer = Mapping::new(map, 0, page, true)?;
        // The producer's page, then the data twice; we may not write there.
        let rest = Mapping::new(map, page, page + 2 * bytes, false)?;
        // SAFETY: the mapping is one page longer than the data.
        let data = unsafe { rest.base().add(page) };
        let view = View { consumer: consumer.base().cast(), producer: rest.base().cast(), data, size: bytes };
        Ok(Ring { view, position: 0, _mappings: Some([consumer, rest]) })
    }

    /// Shows `each` every record that is complete, up to the first that is not, and gives the room back.
    /// Returns how many bytes there were; `None` if they made no sense, in which case everything is skipped.
    pub(super) fn take(&mut self, mut each: impl FnMut(&[u8])) -> Option<u64> {
        let (begin, end) = (self.position, self.view.produced());
        let mut sane = end.wrapping_sub(begin) <= self.view.size as u64;
        while sane && self.position != end {
            let header = self.view.header(self.position);
            if header & BUSY != 0 {
                break;
            }
            let count = (header & !DISCARDED) as usize;
            let taken = (count + HEADER).next_multiple_of(8) as u64;
            sane = taken <= end.wrapping_sub(self.position);
            if sane && header & DISCARDED == 0 {
                // SAFETY: the record lies between our position and the producer's, as was just checked, which
                // also bounds its length; it is not busy; it is given back below, when `each` is over, which
                // cannot keep it.
                each(unsafe { self.view.record(self.position, count) });
            }
            self.position = self.position.wrapping_add(taken);
        }
        if !sane {
            self.position = end;
        }
        self.view.give_back(self.position);
        sane.then(|| self.position.wrapping_sub(begin))
    }
}

/// A map of numbers of 64 bits.
#[derive(Debug)]
pub(super) struct Numbers {
    mapping: Mapping,
    count: usize,
}

impl Numbers {
    /// Maps the `count` numbers of `map`.
    pub(super) fn map(map: BorrowedFd<'_>, count: usize) -> io::Result<Numbers> {
        let bytes = (count * 8).next_multiple_of(rustix::param::page_size());
        Ok(Numbers { mapping: Mapping::new(map, 0, bytes, true)?, count })
    }

    /// Sets the first of them.
    pub(super) fn set_first(&self, number: u64) {
        let first = self.mapping.base().cast::<u64>();
        // SAFETY: the mapping is writable and alive, has at least one number and is aligned to a page.
        // Programs read it at any time, so that it is stored as an atomic.
        unsafe { AtomicU64::from_ptr(first.as_ptr()) }.store(number, Ordering::Release);
    }

    /// Each of them, now.
    pub(super) fn read(&self) -> impl Iterator<Item = u64> + '_ {
        let base = self.mapping.base().cast::<u64>();
        (0..self.count).map(move |index| {
            // SAFETY: the mapping has at least `count` numbers and is alive and aligned to a page. Programs
            // add to them at any time, so that they are read as atomics.
            unsafe { AtomicU64::from_ptr(base.as_ptr().add(index)) }.load(Ordering::Relaxed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: usize = 128;

    /// A ring in memory of our own, and the kernel's end of it. The positions are aligned as a page is.
    struct Pair {
        positions: Box<[u64; 2]>,
        data: Box<[u64; 2 * SIZE / 8]>,
        ring: Ring,
        head: u64,
    }

    impl Pair {
        fn new(at: u64) -> Pair {
            let mut positions = Box::new([at, at]);
            let mut data = Box::new([0u64; 2 * SIZE / 8]);
            let [consumer, producer] = &mut *positions;
            let view = View {
                consumer: NonNull::from(consumer),
                producer: NonNull::from(producer),
                data: NonNull::from(&mut *data).cast(),
                size: SIZE,
            };
            Pair { positions, data, ring: Ring { view, position: at, _mappings: None }, head: at }
        }

        fn put(&mut self, place: usize, bytes: &[u8]) {
            for (index, byte) in bytes.iter().enumerate() {
                // Both halves show the same memory.
                for place in [(place + index) % SIZE, (place + index) % SIZE + SIZE] {
                    // SAFETY: the place is within the data, which is alive in `self`.
                    unsafe { self.ring.view.data.as_ptr().add(place).write(*byte) };
                }
            }
        }

        /// Writes as the kernel does: all or nothing. Returns where the record begins.
        fn write(&mut self, bytes: &[u8], flags: u32) -> Option<usize> {
            // SAFETY: the positions are alive in `self`.
            let consumed = unsafe { self.ring.view.consumer.as_ptr().read() };
            let taken = (bytes.len() + HEADER).next_multiple_of(8) as u64;
            if self.head.wrapping_sub(consumed) + taken > SIZE as u64 {
                return None;
            }
            let place = usize::try_from(self.head % SIZE as u64).unwrap();
            let length = u32::try_from(bytes.len()).unwrap();
            self.put(place, &[&(length | flags).to_ne_bytes()[..], &[0; 4], bytes].concat());
            self.head = self.head.wrapping_add(taken);
            // SAFETY: as above.
            unsafe { self.ring.view.producer.as_ptr().write(self.head) };
            Some(place)
        }
    }

    proptest! {
        /// Whatever is written and whenever it is read, it comes out once, whole and in order, also across
        /// the end of the buffer and of the 64-bit position; what is discarded does not.
        #[test]
        fn what_goes_in_comes_out(
            writes in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), any::<bool>(), prop::bool::weighted(0.2)), 0..100),
            at in prop_oneof![Just(0u64), Just(u64::MAX - 127), (0u64..1 << 40).prop_map(|at| at * 8)],
        ) {
            let mut pair = Pair::new(at);
            let (mut sent, mut received) = (vec![], Vec::<Vec<u8>>::new());
            for (bytes, read, discard) in writes {
                let flags = if discard { DISCARDED } else { 0 };
                if pair.write(&bytes, flags).is_some() && !discard {
                    sent.push(bytes);
                }
                if read {
                    prop_assert!(pair.ring.take(|bytes| received.push(bytes.to_vec())).is_some());
                    prop_assert_eq!(&sent, &received);
                }
            }
            prop_assert!(pair.ring.take(|bytes| received.push(bytes.to_vec())).is_some());
            prop_assert_eq!(sent, received);
            prop_assert_eq!(pair.positions[0], pair.positions[1]);
        }
    }

    #[test]
    fn nothing_is_read_behind_a_record_that_is_being_written() {
        let mut pair = Pair::new(0);
        pair.write(&[1; 8], 0).unwrap();
        let busy = pair.write(&[2; 8], BUSY).unwrap();
        pair.write(&[3; 8], 0).unwrap();
        let mut seen = vec![];
        assert_eq!(pair.ring.take(|bytes| seen.push(bytes[0])), Some(16));
        assert_eq!(seen, [1]);
        pair.put(busy, &8u32.to_ne_bytes());
        assert_eq!(pair.ring.take(|bytes| seen.push(bytes[0])), Some(32));
        assert_eq!(seen, [1, 2, 3]);
        assert_eq!(pair.data[0].to_ne_bytes()[..4], 8u32.to_ne_bytes());
    }

    #[test]
    fn positions_and_lengths_that_make_no_sense_are_skipped() {
        let mut pair = Pair::new(0);
        let place = pair.write(&[1; 8], 0).unwrap();
        pair.put(place, &200u32.to_ne_bytes());
        assert_eq!(pair.ring.take(|_| panic!("no record")), None);
        pair.positions[1] = 16 + SIZE as u64 + 8;
        assert_eq!(pair.ring.take(|_| panic!("no record")), None);
    }
}
