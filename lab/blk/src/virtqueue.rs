//! One virtqueue: taking chains, returning them, notifications in both directions.

use crate::request::MalformedChain;
use crate::statistics::QueueCounts;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Error, Queue, QueueT};
use vm_memory::{
    Address, Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileMemory, VolatileSlice,
};

pub type Memory = GuestMemoryMmap;

/// The file descriptors of a virtqueue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notifiers {
    /// The driver made something available.
    pub(crate) kick: Option<Arc<File>>,
    /// The device returned something.
    pub(crate) call: Option<Arc<File>>,
    /// The queue is broken.
    pub(crate) error: Option<Arc<File>>,
}

impl Notifiers {
    /// A descriptor that this side writes to: a full one must not block the I/O thread. The frontend can make it block
    /// again, as it has the same open file; then the I/O thread waits until it is interrupted.
    pub(crate) fn written(file: Option<File>) -> io::Result<Option<Arc<File>>> {
        let Some(file) = file else { return Ok(None) };
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        Ok(Some(Arc::new(file)))
    }
}

/// Bytes of a descriptor.
const DESCRIPTOR: usize = 16;
/// Chains that are put into the used ring before its index is written. A driver that polls the index takes
/// the cache line with it after each write, so that one for each chain costs more than the chain; one for all
/// of them would let the driver wait meanwhile.
const PUBLISHED_TOGETHER: u16 = 4;

/// The guest's memory from an address on, as far as it is in one region; at most so many bytes.
#[inline]
fn slice(memory: &Memory, at: GuestAddress, bytes: usize) -> Result<VolatileSlice<'_>, Error> {
    memory.get_slices(at, bytes).next().ok_or(Error::AddressOverflow)?.map_err(Error::GuestMemory)
}

#[inline]
fn word(ring: &VolatileSlice<'_>, offset: usize, order: Ordering) -> Result<u16, Error> {
    ring.load(offset, order).map(u16::from_le).map_err(|error| Error::GuestMemory(error.into()))
}

/// The descriptors of a chain. It ends before a descriptor that breaks the rules: one that is not in the
/// table, a second indirect table, one more than the table has, or one with which the chain is longer than 4
/// GiB.
pub(crate) struct Chain<'m> {
    memory: &'m Memory,
    /// The table, as far as it is in one region.
    table: VolatileSlice<'m>,
    /// Address of the table.
    at: GuestAddress,
    /// Descriptors of the table.
    size: u16,
    next: u16,
    /// Descriptors that may follow.
    left: u16,
    bytes: u32,
    indirect: bool,
}

impl<'m> Chain<'m> {
    /// A chain that begins with descriptor `head` of a table of `size` descriptors at this address.
    #[inline]
    fn new(
        memory: &'m Memory,
        table: VolatileSlice<'m>,
        at: GuestAddress,
        size: u16,
        head: u16,
    ) -> Chain<'m> {
        Chain { memory, table, at, size, next: head, left: size, bytes: 0, indirect: false }
    }

    #[inline]
    fn descriptor(&self) -> Option<Descriptor> {
        let offset = usize::from(self.next) * DESCRIPTOR;
        match self.table.get_ref(offset) {
            Ok(descriptor) => Some(descriptor.load()),
            Err(_) => self.memory.read_obj(self.at.checked_add(offset as u64)?).ok(),
        }
    }

    /// Goes on in the table that a descriptor refers to.
    fn enter(&mut self, descriptor: Descriptor) -> Option<()> {
        let bytes = descriptor.len() as usize;
        if self.indirect || !bytes.is_multiple_of(DESCRIPTOR) {
            return None;
        }
        self.size = u16::try_from(bytes / DESCRIPTOR).ok()?;
        self.table = slice(self.memory, descriptor.addr(), bytes).ok()?;
        (self.at, self.next, self.left, self.indirect) = (descriptor.addr(), 0, self.size, true);
        Some(())
    }
}

impl Iterator for Chain<'_> {
    type Item = Descriptor;

    #[inline]
    fn next(&mut self) -> Option<Descriptor> {
        if self.left == 0 || self.next >= self.size {
            return None;
        }
        let mut descriptor = self.descriptor()?;
        if descriptor.refers_to_indirect_table() {
            self.enter(descriptor)?;
            descriptor = self.descriptor().filter(|descriptor| !descriptor.refers_to_indirect_table())?;
        }
        self.bytes = self.bytes.checked_add(descriptor.len())?;
        (self.next, self.left) =
            if descriptor.has_next() { (descriptor.next(), self.left - 1) } else { (self.next, 0) };
        Some(descriptor)
    }
}

/// The used ring: what is returned to the driver.
#[derive(Debug)]
struct Used {
    /// Address of the used ring.
    ring: GuestAddress,
    /// Address of the used ring's index up to which the driver wants no notification; `None` without EVENT_IDX.
    event: Option<GuestAddress>,
    /// Chains that the ring holds.
    size: u16,
    /// Of the ring: chains that were put into it, modulo 2^16.
    next: u16,
    /// The index that the driver sees.
    published: u16,
    /// The index when the driver was last asked whether to be notified.
    asked: u16,
}

impl Used {
    fn new(queue: &Queue) -> Used {
        let (size, next) = (queue.size(), queue.next_used());
        // After the entries of the available ring, which is within the memory (`Queue::is_valid`).
        let event = GuestAddress(queue.avail_ring()).unchecked_add(4 + 2 * u64::from(size));
        let event = queue.event_idx_enabled().then_some(event);
        Used { ring: GuestAddress(queue.used_ring()), event, size, next, published: next, asked: next }
    }

    /// The ring in memory.
    fn ring<'m>(&self, memory: &'m Memory) -> Result<VolatileSlice<'m>, Error> {
        slice(memory, self.ring, 4 + 8 * usize::from(self.size))
    }

    /// Puts a chain into the ring. Whether it was published with those before it; if not, that is for the caller.
    #[inline]
    fn put(&mut self, ring: &VolatileSlice<'_>, head: u16, written: u32) -> Result<bool, Error> {
        let place = 4 + 8 * usize::from(self.next % self.size);
        let element = u64::from(written) << 32 | u64::from(head);
        ring.get_ref(place).map_err(|error| Error::GuestMemory(error.into()))?.store(element.to_le());
        self.next = self.next.wrapping_add(1);
        let publishes = self.next.wrapping_sub(self.published) >= PUBLISHED_TOGETHER;
        if publishes {
            self.publish(ring)?;
        }
        Ok(publishes)
    }

    /// Makes visible what was put into the ring.
    #[inline]
    fn publish(&mut self, ring: &VolatileSlice<'_>) -> Result<(), Error> {
        self.published = self.next;
        let stored = ring.store(self.next.to_le(), 2, Ordering::Release);
        stored.map_err(|error| Error::GuestMemory(error.into()))
    }

    /// Whether the driver wants to be notified of what was published since the last call.
    fn asks(&mut self, memory: &Memory) -> Result<bool, Error> {
        let before = std::mem::replace(&mut self.asked, self.published);
        let new = self.published.wrapping_sub(before);
        let Some(event) = self.event.filter(|_| new > 0) else { return Ok(new > 0) };
        // The driver writes its index and then looks at the ring's; here it is the other way round.
        fence(Ordering::SeqCst);
        let event = memory.load(event, Ordering::Relaxed).map(u16::from_le).map_err(Error::GuestMemory)?;
        Ok(self.published.wrapping_sub(event).wrapping_sub(1) < new)
    }
}

/// A virtqueue that was started.
#[derive(Debug)]
pub(crate) struct Virtqueue {
    available: Queue,
    used: Used,
    notifiers: Notifiers,
    pub(crate) enabled: bool,
    /// Takes nothing while a control request waits for the requests in flight.
    pub(crate) paused: bool,
    /// The driver broke the rules of the ring: nothing is taken until it is started anew.
    broken: bool,
    /// Chains that were taken and not returned.
    pub(crate) in_flight: u32,
    pub(crate) counts: QueueCounts,
}

impl Virtqueue {
    pub(crate) fn new(available: Queue, notifiers: Notifiers, enabled: bool) -> Virtqueue {
        Virtqueue {
            used: Used::new(&available),
            available,
            notifiers,
            enabled,
            paused: false,
            broken: false,
            in_flight: 0,
            counts: QueueCounts::default(),
        }
    }

    pub(crate) fn next_avail(&self) -> u16 {
        self.available.next_avail()
    }

    /// Descriptors of the queue.
    pub(crate) fn size(&self) -> u16 {
        self.available.size()
    }

    pub(crate) fn notifiers_mut(&mut self) -> &mut Notifiers {
        &mut self.notifiers
    }

    fn takes(&self) -> bool {
        self.enabled && !self.paused && !self.broken
    }

    /// Whether there is a chain to take: one load.
    #[inline]
    pub(crate) fn look(&self, memory: &Memory) -> bool {
        self.takes()
            && match self.available.avail_idx(memory, Ordering::Acquire) {
                Ok(index) => index.0 != self.available.next_avail(),
                // Taking it finds the error again and handles it.
                Err(_) => true,
            }
    }

    /// Takes at most so many chains of those that are available now. `begin` gets each with the index of its
    /// head. It returns how many bytes it wrote, and the chain is returned at once; or `None`, and the chain
    /// is in flight until [`complete`](Self::complete). A chain that it refuses is returned with nothing
    /// written.
    pub(crate) fn take<'m>(
        &mut self,
        memory: &'m Memory,
        most: usize,
        begin: impl FnMut(u16, Chain<'m>) -> Result<Option<u32>, MalformedChain>,
    ) {
        if self.takes() {
            let taken = self.try_take(memory, most, begin);
            self.must(taken);
        }
    }

    fn try_take<'m>(
        &mut self,
        memory: &'m Memory,
        most: usize,
        mut begin: impl FnMut(u16, Chain<'m>) -> Result<Option<u32>, MalformedChain>,
    ) -> Result<(), Error> {
        let Virtqueue { available, used, notifiers, in_flight, counts, .. } = self;
        let (size, next) = (available.size(), available.next_avail());
        let entries = usize::from(size);
        // Each part is looked up once for all chains; it must be in one region.
        let ring = slice(memory, GuestAddress(available.avail_ring()), 4 + 2 * entries)?;
        let (at, used_ring) = (GuestAddress(available.desc_table()), used.ring(memory)?);
        let table = slice(memory, at, DESCRIPTOR * entries)?;
        // The driver writes the ring's index all the time, so it is read once for all chains.
        let new = word(&ring, 2, Ordering::Acquire)?.wrapping_sub(next);
        if new > size {
            return Err(Error::InvalidAvailRingIndex);
        }
        let mut asked = used.event.is_none();
        for taken in 0..new.min(u16::try_from(most).unwrap_or(new)) {
            let number = next.wrapping_add(taken);
            let head = word(&ring, 4 + 2 * usize::from(number % size), Ordering::Relaxed)?;
            if head >= size {
                return Err(Error::InvalidDescriptorIndex);
            }
            available.set_next_avail(number.wrapping_add(1));
            let written = match begin(head, Chain::new(memory, table, at, size, head)) {
                Ok(None) => {
                    *in_flight += 1;
                    continue;
                }
                Ok(Some(written)) => written,
                Err(_) => {
                    counts.malformed += 1;
                    0
                }
            };
            // A driver that sleeps wakes up while the other chains are taken; `notify` is for those.
            if used.put(&used_ring, head, written)?
                && !std::mem::replace(&mut asked, true)
                && used.asks(memory)?
            {
                counts.calls += 1;
                signal(notifiers.call.as_deref());
            }
        }
        Ok(())
    }

    /// Returns a chain that was in flight; [`notify`](Self::notify) makes it visible.
    pub(crate) fn complete(&mut self, memory: &Memory, head: u16, written: u32) {
        self.in_flight -= 1;
        let ring = self.used.ring(memory);
        let put = ring.and_then(|ring| self.used.put(&ring, head, written));
        self.must(put.map(|_| ()));
    }

    /// Makes visible what was returned, and notifies the driver if it wants that.
    pub(crate) fn notify(&mut self, memory: &Memory) {
        let notified = self.try_notify(memory);
        self.must(notified);
    }

    fn try_notify(&mut self, memory: &Memory) -> Result<(), Error> {
        if self.used.published != self.used.next {
            self.used.publish(&self.used.ring(memory)?)?;
        }
        if self.used.asks(memory)? {
            self.counts.calls += 1;
            signal(self.notifiers.call.as_deref());
        }
        Ok(())
    }

    /// The driver's notifications on or off. With EVENT_IDX they are off as soon as the device stops asking for them.
    pub(crate) fn notifications(&mut self, memory: &Memory, on: bool) {
        let done = if on {
            self.available.enable_notification(memory).map(|_| ())
        } else {
            self.available.disable_notification(memory)
        };
        self.must(done);
    }

    /// After an error, nothing is taken from here on: a ring without rules cannot be followed.
    fn must(&mut self, result: Result<(), Error>) {
        if result.is_err() && !self.broken {
            self.broken = true;
            self.counts.broken += 1;
            signal(self.notifiers.error.as_deref());
        }
    }
}

/// Adds one to an eventfd. A descriptor that refuses is the frontend's own: it will not be notified.
fn signal(file: Option<&File>) {
    if let Some(file) = file {
        let _ = rustix::io::write(file, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_stats::SplitMix64;
    use virtio_queue::QueueOwnedT;

    const SIZE: u16 = 8;
    const AVAILABLE: u64 = 0x800;

    /// The addresses and lengths that descriptors have, so that a table is often one of descriptors, in one
    /// region or in two, or is outside of the memory.
    const ADDRESSES: [u64; 8] = [0, 16, 0xfc0, 0xff0, 0xff8, 0x1000, 0x1fe0, 0x1_0000];
    const LENGTHS: [u32; 8] = [0, 1, 16, 48, 64, 512, 0x10_0000, u32::MAX - 600];

    fn one_of<'a, T>(random: &mut SplitMix64, all: &'a [T]) -> &'a T {
        &all[usize::try_from(random.below(all.len() as u64)).unwrap()]
    }

    /// Two regions, one after the other, of descriptors: their flags, and what comes next, are often right.
    fn memory(random: &mut SplitMix64) -> Memory {
        let memory =
            Memory::from_ranges(&[(GuestAddress(0), 0x1000), (GuestAddress(0x1000), 0x1000)]).unwrap();
        for at in (0..AVAILABLE).chain(0xf80..0x1080).chain(0x1fe0..0x2000).step_by(DESCRIPTOR) {
            let address = *one_of(random, &ADDRESSES);
            let length = *one_of(random, &LENGTHS);
            let flags = *one_of(random, &[1, 1, 3, 0, 2, 4, 5]);
            let next = u16::try_from(random.below(u64::from(SIZE) + 2)).unwrap();
            memory.write_obj(Descriptor::new(address, length, flags, next), GuestAddress(at)).unwrap();
        }
        memory
    }

    #[test]
    fn chains_are_those_of_virtio_queue() {
        let mut random = SplitMix64::new(18);
        let (mut indirect, mut long, mut across) = (0, 0, 0);
        for _ in 0..20_000 {
            let memory = memory(&mut random);
            let head = u16::try_from(random.below(SIZE.into())).unwrap();
            memory.write_obj([0u16, 1, head], GuestAddress(AVAILABLE)).unwrap();
            let mut queue = Queue::new(SIZE).unwrap();
            queue.try_set_desc_table_address(GuestAddress(0)).unwrap();
            queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).unwrap();
            queue.set_ready(true);
            let theirs = queue.iter(&memory).unwrap().next().unwrap();
            let table = slice(&memory, GuestAddress(0), DESCRIPTOR * usize::from(SIZE)).unwrap();
            let mut ours = Chain::new(&memory, table, GuestAddress(0), SIZE, head);
            let bits = |found: Descriptor| (found.addr(), found.len(), found.flags(), found.next());
            let found: Vec<_> = ours.by_ref().map(bits).collect();
            assert_eq!(found, theirs.map(bits).collect::<Vec<_>>());
            indirect += u32::from(ours.indirect && !found.is_empty());
            long += u32::from(found.len() > 3);
            across += u32::from(
                ours.indirect && ours.at.0 < 0x1000 && ours.at.0 + ours.table.len() as u64 == 0x1000,
            );
        }
        assert!(indirect > 200 && long > 200 && across > 200, "{indirect} {long} {across}");
    }
}
