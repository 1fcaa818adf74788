//! The requests in flight, and the ring of io_uring that carries out their operations.

use crate::disk::{Action, Disk, Refusal};
use crate::request::{Kind, MalformedChain};
use crate::slot::{Progress, Slot, pieces, write_serial};
use crate::statistics::Counts;
use crate::virtqueue::Memory;
use io_uring::IoUring;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::desc::split::Descriptor;
use vm_memory::Bytes;

/// Requests in flight, of all queues together. A guest that makes more available waits.
const IN_FLIGHT: usize = 512;

/// Operations that the kernel gets together, so that the disk begins with the first while others are decoded.
/// On a virtual disk with 32 requests in flight this gave a fifth more requests than all at once, for as much
/// CPU time each; 2 gave as many for more CPU time, 8 fewer.
const SUBMITTED_TOGETHER: usize = 4;

/// The requests in flight and the ring of io_uring.
pub(crate) struct Requests {
    disk: Arc<Disk>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    uring: IoUring,
    /// Entries that were not submitted.
    unsubmitted: bool,
    pub(crate) counts: Counts,
}

/// An operation that io_uring has completed.
pub(crate) struct Operation {
    slot: usize,
    result: i32,
}

/// A request that is over: of which chain of which queue, and the bytes that were written to the guest's memory.
pub(crate) struct Done {
    pub(crate) queue: usize,
    pub(crate) head: u16,
    pub(crate) written: u32,
}

impl Requests {
    pub(crate) fn new(disk: Arc<Disk>) -> io::Result<Requests> {
        let entries = u32::try_from(IN_FLIGHT).map_err(io::Error::other)?;
        // With TASKRUN_FLAG, or a look would not see completions that wait for an entry into the kernel.
        let uring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries)?;
        if let Some(file) = disk.file() {
            uring.submitter().register_files(&[file.as_raw_fd()])?;
        }
        Ok(Requests {
            disk,
            slots: (0..IN_FLIGHT).map(|_| Slot::default()).collect(),
            free: (0..IN_FLIGHT).rev().collect(),
            uring,
            unsubmitted: false,
            counts: Counts::default(),
        })
    }

    /// A copy of the ring's descriptor.
    pub(crate) fn ring(&self) -> io::Result<OwnedFd> {
        // SAFETY: the ring owns the descriptor and outlives this borrow of it.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }.try_clone_to_owned()
    }

    pub(crate) fn in_flight(&self) -> usize {
        IN_FLIGHT - self.free.len()
    }

    /// How many more can be in flight.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Begins the request of a chain of `queue`, which has `size` descriptors. If it is over at once: the
    /// bytes that were written to the guest's memory; if it is in flight: `None`.
    pub(crate) fn begin(
        &mut self,
        memory: &Memory,
        (queue, head): (usize, u16),
        chain: impl Iterator<Item = Descriptor>,
        size: u16,
    ) -> Result<Option<u32>, MalformedChain> {
        // The caller takes no more chains than there are slots.
        let Some(&place) = self.free.last() else { return Ok(None) };
        let slot = &mut self.slots[place];
        slot.request.decode(memory, chain, size)?;
        let planned = self.disk.plan(&slot.request);
        let planned = planned.and_then(|action| match action {
            Action::Read(_) | Action::Write(_) => {
                pieces(memory, &slot.request.data, &mut slot.pieces).map(|()| action)
            }
            Action::Serial => {
                write_serial(memory, &slot.request.data, self.disk.serial()).map(|()| Action::Nothing)
            }
            action => Ok(action),
        });
        match planned {
            Ok(Action::Nothing | Action::Serial) => Ok(Some(self.finish(memory, place, Ok(())))),
            Err(refusal) => Ok(Some(self.finish(memory, place, Err(refusal)))),
            Ok(action) => {
                self.free.pop();
                slot.begin((queue, head), action);
                self.push(place);
                Ok(None)
            }
        }
    }

    /// Puts the next operation of a request into the ring.
    fn push(&mut self, place: usize) {
        let entry = self.slots[place].operation().user_data(place as u64);
        loop {
            // SAFETY: the entry refers to the file, which is registered; to the slot's `pieces`, which are
            // not changed before the completion of this entry (`completed`), in slots that are never moved
            // (`slots` does not grow); to the guest's memory behind them, whose mapping is kept while
            // anything is in flight (`Device`); or to `ZERO`, which is static and read. The pieces are within
            // that mapping (`pieces`).
            let pushed = unsafe { self.uring.submission().push(&entry) };
            self.unsubmitted = true;
            match pushed {
                Ok(()) => break,
                Err(_) => self.submit(),
            }
        }
        if self.uring.submission().len().is_multiple_of(SUBMITTED_TOGETHER) {
            self.submit();
        }
    }

    pub(crate) fn submit(&mut self) {
        if std::mem::take(&mut self.unsubmitted) {
            self.counts.submissions += 1;
            // EBUSY and EAGAIN leave the entries; the next completion or wakeup submits them again.
            if self.uring.submit().is_err() {
                self.unsubmitted = true;
            }
        }
    }

    /// Whether there are completions, or will be as soon as the thread enters the kernel.
    pub(crate) fn has_completions(&mut self) -> bool {
        if self.free.len() == IN_FLIGHT {
            return false;
        }
        !self.uring.completion().is_empty() || {
            let submission = self.uring.submission();
            submission.taskrun() || submission.cq_overflow()
        }
    }

    /// Lets the kernel post the completions that wait for this, and submits what is left.
    pub(crate) fn enter(&mut self) {
        let waits_for_kernel = {
            let submission = self.uring.submission();
            submission.taskrun() || submission.cq_overflow()
        };
        if waits_for_kernel || self.unsubmitted {
            self.unsubmitted = false;
            // SAFETY: no signal mask is passed. It posts what is due, and submits what is left.
            let entered = unsafe {
                let entries = u32::try_from(self.uring.submission().len()).unwrap_or(0);
                self.uring.submitter().enter::<libc::sigset_t>(entries, 0, GETEVENTS, None)
            };
            self.unsubmitted = entered.is_err() && !self.uring.submission().is_empty();
        }
    }

    /// The next operation that has completed.
    pub(crate) fn next_operation(&mut self) -> Option<Operation> {
        let entry = self.uring.completion().next()?;
        // The kernel returns what `push` gave it.
        let slot = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
        Some(Operation { slot, result: entry.result() })
    }

    /// The request goes on with another operation, or is over.
    pub(crate) fn completed(&mut self, memory: &Memory, operation: Operation) -> Option<Done> {
        let Operation { slot: place, result } = operation;
        let written = match self.slots.get_mut(place)?.advance(result) {
            Progress::More => {
                self.push(place);
                return None;
            }
            Progress::Done => self.finish(memory, place, Ok(())),
            Progress::Failed(refusal) => self.finish(memory, place, Err(refusal)),
        };
        self.free.push(place);
        let Slot { queue, head, .. } = self.slots[place];
        Some(Done { queue, head, written })
    }

    /// Waits until nothing is in flight.
    pub(crate) fn wait_for_all(&mut self) -> io::Result<()> {
        while self.in_flight() > 0 {
            self.uring.submit_and_wait(1)?;
            while let Some(operation) = self.next_operation() {
                self.free.push(operation.slot);
            }
        }
        Ok(())
    }

    /// Writes the status of a request; the bytes that were written to the guest's memory.
    fn finish(&mut self, memory: &Memory, place: usize, result: Result<(), Refusal>) -> u32 {
        let slot = &mut self.slots[place];
        slot.action = None;
        let counts = &mut self.counts;
        counts.requests += 1;
        let bytes = if result.is_ok() { slot.request.bytes } else { 0 };
        let mut written = 1;
        match slot.request.kind {
            Kind::In => {
                counts.reads += 1;
                counts.read_bytes += bytes;
                written += u32::try_from(bytes).unwrap_or(u32::MAX - 1);
            }
            Kind::Out => {
                counts.writes += 1;
                counts.written_bytes += bytes;
            }
            Kind::Flush => counts.flushes += 1,
            Kind::Discard => counts.discards += 1,
            Kind::WriteZeroes => counts.write_zeroes += 1,
            Kind::GetId => written += u32::try_from(bytes.min(20)).unwrap_or(0),
            Kind::Other(_) => {}
        }
        counts.errors += u64::from(result.is_err());
        let status = result.err().map_or(0, Refusal::status);
        // It was within the memory when the request was taken, and the memory has not changed since.
        let _ = memory.store(status, slot.request.status, Ordering::Relaxed);
        written
    }
}

/// `IORING_ENTER_GETEVENTS`.
const GETEVENTS: u32 = 1;
