//! One virtqueue: taking chains, returning them, notifications in both directions.

use crate::request::Request;
use crate::statistics::QueueCounts;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};
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
}

/// What taking a chain came to.
pub(crate) enum Taken {
    /// A request is decoded; the index of its head.
    Request(u16),
    /// A chain that is no request; it was returned.
    Malformed,
    /// There is none.
    Nothing,
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
        }
    }

    pub(crate) fn next_avail(&self) -> u16 {
        self.queue.next_avail()
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

    /// Takes a chain and decodes it into `request`.
    pub(crate) fn take(&mut self, memory: &Memory, request: &mut Request) -> Taken {
        if !self.takes() {
            return Taken::Nothing;
        }
        match self.queue.avail_idx(memory, Ordering::Acquire) {
            Ok(index) if index.0 == self.queue.next_avail() => return Taken::Nothing,
            Ok(_) => {}
            Err(error) => {
                self.breaks(&error);
                return Taken::Nothing;
            }
        }
        let chain = match self.queue.iter(memory) {
            // Available by the index that was just read: without a chain, its entry of the ring cannot be read.
            Ok(mut available) => available.next().ok_or(Error::InvalidChain),
            Err(error) => Err(error),
        };
        let chain = match chain {
            Ok(chain) => chain,
            Err(error) => {
                self.breaks(&error);
                return Taken::Nothing;
            }
        };
        let head = chain.head_index();
        if head >= self.queue.size() {
            self.breaks(&Error::InvalidDescriptorIndex);
            return Taken::Nothing;
        }
        match request.decode(memory, chain, self.queue.size()) {
            Ok(()) => {
                self.in_flight += 1;
                Taken::Request(head)
            }
            Err(_) => {
                self.counts.malformed += 1;
                self.give(memory, head, 0);
                Taken::Malformed
            }
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
