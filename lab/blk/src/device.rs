//! The device as sources of the event loop: its virtqueues, and the completions of io_uring.

use crate::disk::Disk;
use crate::requests::Requests;
use crate::virtqueue::{Memory, Virtqueue};
use dwell_eventloop::{Nanos, Policy, Source};
use dwell_idle::policy::Outcome;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// The device: virtqueues, and the requests of all of them.
pub(crate) struct Device {
    /// Replaced only while nothing is in flight: operations refer to it.
    pub(crate) memory: Option<Arc<Memory>>,
    pub(crate) queues: Vec<Option<Virtqueue>>,
    pub(crate) requests: Requests,
}

impl Device {
    pub(crate) fn new(disk: Arc<Disk>, queues: usize) -> io::Result<Device> {
        Ok(Device {
            memory: None,
            queues: (0..queues).map(|_| None).collect(),
            requests: Requests::new(disk)?,
        })
    }

    /// Whether there is something to take from a queue, and a slot for it.
    #[inline]
    fn look(&self, index: usize) -> bool {
        match (&self.queues[index], &self.memory) {
            (Some(queue), Some(memory)) => self.requests.room() > 0 && queue.look(memory),
            _ => false,
        }
    }

    fn notifications(&mut self, index: usize, on: bool) {
        if let (Some(queue), Some(memory)) = (&mut self.queues[index], &self.memory) {
            queue.notifications(memory, on);
        }
    }

    /// Takes at most `budget` chains of a queue; whether there are more.
    fn serve(&mut self, index: usize, budget: u32) -> bool {
        let Device { memory: Some(memory), queues, requests } = self else { return false };
        if let Some(queue) = &mut queues[index] {
            let (most, size) = (requests.room().min(budget as usize), queue.size());
            queue.take(memory, most, |head, chain| requests.begin(memory, (index, head), chain, size));
            requests.submit();
            queue.notify(memory);
        }
        self.look(index)
    }

    /// Takes at most `budget` completions; whether there are more.
    fn complete(&mut self, budget: u32) -> bool {
        let Device { memory: Some(memory), queues, requests } = self else { return false };
        requests.enter();
        for _ in 0..budget {
            let Some(operation) = requests.next_operation() else { break };
            let Some(done) = requests.completed(memory, operation) else { continue };
            if let Some(queue) = &mut queues[done.queue] {
                queue.complete(memory, done.head, done.written);
            }
        }
        requests.submit();
        for queue in queues.iter_mut().flatten() {
            queue.notify(memory);
        }
        requests.has_completions()
    }

    /// Takes no more chains of a queue; whether none of it is in flight.
    pub(crate) fn pause(&mut self, index: usize) -> bool {
        self.queues[index].as_mut().is_none_or(|queue| {
            queue.paused = true;
            queue.in_flight == 0
        })
    }

    /// The same of all queues.
    pub(crate) fn pause_all(&mut self) -> bool {
        self.queues.iter_mut().flatten().for_each(|queue| queue.paused = true);
        self.requests.in_flight() == 0
    }
}

impl Drop for Device {
    /// The kernel must not write into memory that is no longer mapped for the guest.
    fn drop(&mut self) {
        if self.requests.wait_for_all().is_err() {
            // Without completions it is not known when the kernel last writes to the memory: it stays mapped.
            std::mem::forget(self.memory.take());
        }
    }
}

pub(crate) type Shared = Rc<RefCell<Device>>;

/// A virtqueue as a source of the loop.
pub(crate) struct QueueSource {
    pub(crate) device: Shared,
    pub(crate) index: usize,
    pub(crate) kick: Arc<File>,
}

impl Source for QueueSource {
    fn look(&mut self) -> bool {
        self.device.borrow().look(self.index)
    }
    fn quiet(&mut self) {
        self.device.borrow_mut().notifications(self.index, false);
    }
    fn loud(&mut self) {
        self.device.borrow_mut().notifications(self.index, true);
    }
    fn run(&mut self, budget: u32) -> bool {
        self.device.borrow_mut().serve(self.index, budget)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.kick.as_fd())
    }
}

/// The completions of io_uring as a source of the loop.
pub(crate) struct Completions {
    pub(crate) device: Shared,
    /// A copy of the ring's descriptor: it is readable while there are completions.
    pub(crate) ring: OwnedFd,
}

impl Source for Completions {
    fn look(&mut self) -> bool {
        self.device.borrow_mut().requests.has_completions()
    }
    fn run(&mut self, budget: u32) -> bool {
        self.device.borrow_mut().complete(budget)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }
}

/// One policy for waits for the driver and one for waits for the disk: their lengths have nothing to do with
/// each other, and an interrupt wakes the thread at another cost than the driver does.
pub(crate) struct ByWait<P> {
    driver: P,
    disk: Option<P>,
    /// Whether the present wait is for the disk.
    for_disk: bool,
    device: Shared,
}

impl<P> ByWait<P> {
    /// Without `disk`: one for both.
    pub(crate) const fn new(driver: P, disk: Option<P>, device: Shared) -> ByWait<P> {
        ByWait { driver, disk, for_disk: false, device }
    }

    fn begins(&mut self) -> &mut P {
        self.for_disk = self.disk.is_some() && self.device.borrow().requests.in_flight() > 0;
        self.current()
    }

    fn current(&mut self) -> &mut P {
        self.disk.as_mut().filter(|_| self.for_disk).unwrap_or(&mut self.driver)
    }
}

impl<P: Policy> Policy for ByWait<P> {
    fn window(&mut self) -> Nanos {
        self.begins().window()
    }
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        self.begins().window_after(busy)
    }
    fn longest_gap(&self) -> Nanos {
        self.disk.as_ref().filter(|_| self.for_disk).unwrap_or(&self.driver).longest_gap()
    }
    fn observe(&mut self, outcome: Outcome<'_>) {
        self.current().observe(outcome);
    }
}
