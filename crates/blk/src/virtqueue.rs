//! One virtqueue: taking chains, returning them, notifications in both directions.

use crate::request::MalformedChain;
use crate::statistics::QueueCounts;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT};
use vm_memory::GuestMemoryMmap;

/// The guest's memory.
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
    /// A descriptor that this side writes to: a full one must not block the I/O thread.
    pub(crate) fn written(file: Option<File>) -> io::Result<Option<Arc<File>>> {
        let Some(file) = file else { return Ok(None) };
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
        Ok(Some(Arc::new(file)))
    }
}

/// A virtqueue that was started.
#[derive(Debug)]
pub(crate) struct Virtqueue {
    queue: Queue,
    notifiers: Notifiers,
    pub(crate) enabled: bool,
    /// Takes nothing while a control request waits for the requests in flight.
    pub(crate) paused: bool,
    /// The driver broke the rules of the ring: nothing is taken until it is started anew.
    broken: bool,
    /// Chains that were taken and not returned.
    pub(crate) in_flight: u32,
    /// Something was returned since the driver was asked whether to be notified.
    returned: bool,
    pub(crate) counts: QueueCounts,
    /// Heads of chains that are no requests, and are to be returned.
    malformed: Vec<u16>,
}

impl Virtqueue {
    pub(crate) fn new(queue: Queue, notifiers: Notifiers, enabled: bool) -> Virtqueue {
        Virtqueue {
            queue,
            notifiers,
            enabled,
            paused: false,
            broken: false,
            in_flight: 0,
            returned: false,
            counts: QueueCounts::default(),
            malformed: vec![],
        }
    }

    pub(crate) fn next_avail(&self) -> u16 {
        self.queue.next_avail()
    }

    /// Descriptors of the queue.
    pub(crate) fn size(&self) -> u16 {
        self.queue.size()
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
            && match self.queue.avail_idx(memory, Ordering::Acquire) {
                Ok(index) => index.0 != self.queue.next_avail(),
                // Taking it finds the error again and handles it.
                Err(_) => true,
            }
    }

    /// Takes at most so many chains of those that are available now. `decode` gets each with the index of its head; one that it refuses is
    /// returned. The driver writes the ring's index all the time, so it is read once for all of them.
    pub(crate) fn take<'m>(
        &mut self,
        memory: &'m Memory,
        most: usize,
        mut decode: impl FnMut(u16, DescriptorChain<&'m Memory>) -> Result<(), MalformedChain>,
    ) {
        if !self.takes() {
            return;
        }
        let size = self.queue.size();
        let (mut taken, mut broken) = (0, None);
        match (self.queue.avail_idx(memory, Ordering::Acquire), self.queue.next_avail()) {
            (Ok(index), next) if index.0 == next => return,
            (Ok(index), next) => match self.queue.iter(memory) {
                Ok(mut available) => {
                    for chain in available.by_ref().take(most) {
                        let head = chain.head_index();
                        if head >= size {
                            broken = Some(Error::InvalidDescriptorIndex);
                            break;
                        }
                        taken += 1;
                        match decode(head, chain) {
                            Ok(()) => self.in_flight += 1,
                            Err(_) => self.malformed.push(head),
                        }
                    }
                    // Available by the index that was read first: without a chain, its entry of the ring cannot be read.
                    if broken.is_none() && taken < most.min(usize::from(index.0.wrapping_sub(next))) {
                        broken = Some(Error::InvalidChain);
                    }
                }
                Err(error) => broken = Some(error),
            },
            (Err(error), _) => broken = Some(error),
        }
        self.counts.malformed += self.malformed.len() as u64;
        for head in std::mem::take(&mut self.malformed) {
            self.give(memory, head, 0);
        }
        if let Some(error) = broken {
            self.breaks(&error);
        }
    }

    /// Returns a chain that was taken.
    pub(crate) fn complete(&mut self, memory: &Memory, head: u16, written: u32) {
        self.in_flight -= 1;
        self.give(memory, head, written);
    }

    fn give(&mut self, memory: &Memory, head: u16, written: u32) {
        match self.queue.add_used(memory, head, written) {
            Ok(()) => self.returned = true,
            Err(error) => self.breaks(&error),
        }
    }

    /// Notifies the driver of what was returned, if it wants that.
    pub(crate) fn notify(&mut self, memory: &Memory) {
        if !std::mem::take(&mut self.returned) {
            return;
        }
        match self.queue.needs_notification(memory) {
            Ok(true) => {
                self.counts.calls += 1;
                signal(self.notifiers.call.as_deref());
            }
            Ok(false) => {}
            Err(error) => self.breaks(&error),
        }
    }

    /// The driver's notifications on or off. With EVENT_IDX they are off as soon as the device stops asking for them.
    pub(crate) fn notifications(&mut self, memory: &Memory, on: bool) {
        let done = if on {
            self.queue.enable_notification(memory).map(|_| ())
        } else {
            self.queue.disable_notification(memory)
        };
        if let Err(error) = done {
            self.breaks(&error);
        }
    }

    /// Nothing is taken from here on: a ring without rules cannot be followed.
    fn breaks(&mut self, _: &Error) {
        if !self.broken {
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
