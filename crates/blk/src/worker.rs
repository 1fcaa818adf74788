//! The I/O thread: virtqueues, io_uring and control requests on one event loop.

use crate::disk::{Action, Disk, Refusal};
use crate::request::{Kind, MalformedChain, Piece, Request};
use crate::statistics::{Counts, Statistics};
use crate::virtqueue::{Memory, Notifiers, Virtqueue};
use dwell_eventloop::{Bell, Doorbell, Idler, Loop, Nanos, Policy, Record, Source, SourceId};
use dwell_idle::policy::Outcome;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use virtio_bindings::virtio_blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP;
use virtio_queue::Queue;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestMemoryBackend};

/// Requests in flight, of all queues together. A guest that makes more available waits.
pub const IN_FLIGHT: usize = 512;
/// Zeroes written at once where the file system cannot make a range zero by itself.
const ZEROES: usize = 1 << 16;

#[repr(align(4096))]
struct Zeroes([u8; ZEROES]);
static ZERO: Zeroes = Zeroes([0; ZEROES]);

/// What the control thread asks of the I/O thread.
pub(crate) enum Command {
    /// A virtqueue from here on.
    Start(usize, Box<Queue>, Notifiers, bool),
    /// No virtqueue from here on; answered when nothing of it is in flight.
    Stop(usize),
    /// Whether it takes requests.
    Enable(usize, bool),
    /// Other descriptors for notifications of the frontend.
    Notifiers(usize, Notifiers),
    /// Other memory; answered when nothing is in flight.
    Memory(Option<Arc<Memory>>),
    /// What it did so far.
    Statistics,
    /// The end; answered when nothing is in flight.
    End,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Answer {
    Done,
    /// Of a virtqueue that was stopped: where it goes on.
    Stopped(Option<u16>),
    Statistics(Box<Statistics>),
    Failed(io::Error),
}

type Asked = (Command, Sender<Answer>);

/// The I/O thread of a device.
#[derive(Debug)]
pub struct Worker {
    commands: Sender<Asked>,
    doorbell: Doorbell,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// How an I/O thread is started.
pub struct Options<P, R> {
    /// How many virtqueues the device has.
    pub queues: usize,
    /// The CPU that it runs on; `None`: as the caller.
    pub cpu: Option<usize>,
    /// The policy.
    pub policy: P,
    /// The policy of waits while requests are in flight, which the disk ends rather than the driver; `None`: the same.
    pub disk_policy: Option<P>,
    /// Where waits are recorded.
    pub record: R,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// No thread, no io_uring, no event loop, or no such CPU.
    pub fn start<P, R>(disk: Arc<Disk>, options: Options<P, R>) -> io::Result<Worker>
    where
        P: Policy + Send + 'static,
        R: Record + Send + 'static,
    {
        let (commands, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let thread = thread::Builder::new().name("dwell-blk-io".into()).spawn(move || {
            let (mut thread, doorbell) = match IoThread::new(disk, options, asked) {
                Ok(made) => made,
                Err(error) => {
                    // The caller waits for it.
                    let _ = tell.send(Err(error));
                    return Ok(());
                }
            };
            let _ = tell.send(Ok(doorbell));
            thread.run()
        })?;
        let doorbell = told.recv().map_err(|_| gone())??;
        Ok(Worker { commands, doorbell, thread: Some(thread) })
    }

    /// Asks the I/O thread and waits for its answer.
    pub(crate) fn ask(&self, command: Command) -> io::Result<Answer> {
        let (answer, answered) = mpsc::channel();
        self.commands.send((command, answer)).map_err(|_| gone())?;
        self.doorbell.ring();
        match answered.recv().map_err(|_| gone())? {
            Answer::Failed(error) => Err(error),
            answer => Ok(answer),
        }
    }

    /// What it did so far.
    ///
    /// # Errors
    /// The thread has ended.
    pub fn statistics(&self) -> io::Result<Statistics> {
        match self.ask(Command::Statistics)? {
            Answer::Statistics(statistics) => Ok(*statistics),
            _ => Err(gone()),
        }
    }

    /// Ends it when nothing is in flight; what it did.
    ///
    /// # Errors
    /// The thread had ended before, by this error.
    pub fn end(mut self) -> io::Result<Statistics> {
        let answer = self.ask(Command::End);
        let result = self.thread.take().map(JoinHandle::join);
        if let Some(Ok(Err(error))) = result {
            return Err(error);
        }
        match answer? {
            Answer::Statistics(statistics) => Ok(*statistics),
            _ => Err(gone()),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = self.ask(Command::End);
            let _ = thread.join();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the I/O thread has ended")
}

/// The operations of a request on the file.
#[derive(Debug, Default)]
struct Slot {
    request: Request,
    action: Option<Action>,
    queue: usize,
    head: u16,
    /// The data as the kernel takes it: what is left of it.
    pieces: Vec<libc::iovec>,
    /// The first of the pieces that is not done.
    first: usize,
    /// Bytes that are done; of a range that is made zero by writing, of that range.
    done: u64,
    /// The range that is being worked on.
    range: usize,
    /// Whether zeroes are written because the file system cannot do it.
    by_writing: bool,
}

/// The device: virtqueues, and the requests of all of them.
struct Device {
    /// Replaced only while nothing is in flight: operations refer to it.
    memory: Option<Arc<Memory>>,
    queues: Vec<Option<Virtqueue>>,
    requests: Requests,
}

/// The requests in flight and the ring of io_uring.
struct Requests {
    disk: Arc<Disk>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    uring: IoUring,
    /// Entries that were not submitted.
    unsubmitted: bool,
    counts: Counts,
}

impl Device {
    fn new(disk: Arc<Disk>, queues: usize) -> io::Result<Device> {
        let entries = u32::try_from(IN_FLIGHT).map_err(io::Error::other)?;
        // With TASKRUN_FLAG, or a look would not see completions that wait for an entry into the kernel.
        let uring = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(entries)?;
        if let Some(file) = disk.file() {
            uring.submitter().register_files(&[file.as_raw_fd()])?;
        }
        let requests = Requests {
            disk,
            slots: (0..IN_FLIGHT).map(|_| Slot::default()).collect(),
            free: (0..IN_FLIGHT).rev().collect(),
            uring,
            unsubmitted: false,
            counts: Counts::default(),
        };
        Ok(Device { memory: None, queues: (0..queues).map(|_| None).collect(), requests })
    }

    /// Whether there is something to take from a queue, and a slot for it.
    #[inline]
    fn look(&self, index: usize) -> bool {
        match (&self.queues[index], &self.memory) {
            (Some(queue), Some(memory)) => !self.requests.free.is_empty() && queue.look(memory),
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
            let (most, size) = (requests.free.len().min(budget as usize), queue.size());
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
            let Some(done) = requests.uring.completion().next() else { break };
            let Ok(place) = usize::try_from(done.user_data()) else { continue };
            let Some(written) = requests.completed(memory, place, done.result()) else { continue };
            let Slot { queue, head, .. } = requests.slots[place];
            if let Some(queue) = &mut queues[queue] {
                queue.complete(memory, head, written);
            }
            requests.free.push(place);
        }
        requests.submit();
        for queue in queues.iter_mut().flatten() {
            queue.notify(memory);
        }
        requests.has_completions()
    }

    /// Whether a command can be carried out now; if not, it pauses what it waits for.
    fn is_ready_for(&mut self, command: &Command) -> bool {
        match command {
            Command::Stop(index) => match &mut self.queues[*index] {
                Some(queue) => {
                    queue.paused = true;
                    queue.in_flight == 0
                }
                None => true,
            },
            Command::Memory(_) | Command::End => {
                self.queues.iter_mut().flatten().for_each(|queue| queue.paused = true);
                self.requests.in_flight() == 0
            }
            _ => true,
        }
    }
}

impl Requests {
    fn in_flight(&self) -> usize {
        IN_FLIGHT - self.free.len()
    }

    /// Begins the request of a chain of `queue`, which has `size` descriptors. If it is over at once: the bytes that were written to the
    /// guest's memory; if it is in flight: `None`.
    fn begin(
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
                (slot.queue, slot.head, slot.action) = (queue, head, Some(action));
                (slot.first, slot.done, slot.range, slot.by_writing) = (0, 0, 0, false);
                self.push(place);
                Ok(None)
            }
        }
    }

    /// Puts the next operation of a request into the ring.
    fn push(&mut self, place: usize) {
        let entry = self.slots[place].operation().user_data(place as u64);
        loop {
            // SAFETY: the entry refers to the file, which is registered; to the slot's `pieces`, which are not changed before the
            // completion of this entry (`completed`), in slots that are never moved (`slots` does not grow); to the guest's memory
            // behind them, whose mapping is kept while anything is in flight (`execute`, `Drop`); or to `ZERO`, which is static and read.
            // The pieces are within that mapping (`pieces`).
            let pushed = unsafe { self.uring.submission().push(&entry) };
            self.unsubmitted = true;
            match pushed {
                Ok(()) => return,
                Err(_) => self.submit(),
            }
        }
    }

    fn submit(&mut self) {
        if std::mem::take(&mut self.unsubmitted) {
            self.counts.submissions += 1;
            // EBUSY and EAGAIN leave the entries; the next completion or wakeup submits them again.
            if self.uring.submit().is_err() {
                self.unsubmitted = true;
            }
        }
    }

    /// Whether there are completions, or will be as soon as the thread enters the kernel.
    fn has_completions(&mut self) -> bool {
        if self.free.len() == IN_FLIGHT {
            return false;
        }
        !self.uring.completion().is_empty() || {
            let submission = self.uring.submission();
            submission.taskrun() || submission.cq_overflow()
        }
    }

    /// Lets the kernel post the completions that wait for this, and submits what is left.
    fn enter(&mut self) {
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

    /// An operation is over. If the request is: the bytes that were written to the guest's memory.
    fn completed(&mut self, memory: &Memory, place: usize, result: i32) -> Option<u32> {
        match self.slots[place].advance(result) {
            Progress::More => {
                self.push(place);
                None
            }
            Progress::Done => Some(self.finish(memory, place, Ok(()))),
            Progress::Failed(refusal) => Some(self.finish(memory, place, Err(refusal))),
        }
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

impl Drop for Device {
    /// The kernel must not write into memory that is no longer mapped for the guest.
    fn drop(&mut self) {
        let requests = &mut self.requests;
        while requests.in_flight() > 0 {
            if requests.uring.submit_and_wait(1).is_err() {
                // Without completions it is not known when the kernel last writes to the memory: it stays mapped.
                std::mem::forget(self.memory.take());
                return;
            }
            while let Some(done) = requests.uring.completion().next() {
                if let Ok(place) = usize::try_from(done.user_data()) {
                    requests.free.push(place);
                }
            }
        }
    }
}

/// How a request goes on after an operation.
enum Progress {
    More,
    Done,
    Failed(Refusal),
}

impl Slot {
    /// The next operation of the request.
    fn operation(&self) -> squeue::Entry {
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
    fn advance(&mut self, result: i32) -> Progress {
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
fn pieces(memory: &Memory, data: &[Piece], pieces: &mut Vec<libc::iovec>) -> Result<(), Refusal> {
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

fn write_serial(memory: &Memory, data: &[Piece], serial: &[u8]) -> Result<(), Refusal> {
    let mut left = serial;
    for piece in data {
        let (now, later) = left.split_at(left.len().min(piece.len as usize));
        memory.write_slice(now, piece.at).map_err(|_| Refusal::IoError)?;
        left = later;
    }
    Ok(())
}

type Shared = Rc<RefCell<Device>>;

/// A virtqueue as a source of the loop.
struct QueueSource {
    device: Shared,
    index: usize,
    kick: Arc<File>,
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
struct Completions {
    device: Shared,
    /// A copy of the ring's descriptor: it is readable while there are completions.
    ring: OwnedFd,
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

/// One policy for waits for the driver and one for waits for the disk: their lengths have nothing to do with each other, and an interrupt
/// wakes the thread at another cost than the driver does.
struct ByWait<P> {
    driver: P,
    disk: Option<P>,
    /// Whether the present wait is for the disk.
    for_disk: bool,
    device: Shared,
}

impl<P> ByWait<P> {
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
    fn observe(&mut self, outcome: Outcome<'_>) {
        self.current().observe(outcome);
    }
}

/// The thread's own state: the loop and the device.
struct IoThread<P, R> {
    device: Shared,
    looped: Loop<'static, ByWait<P>, dwell_idle::Monotonic, R>,
    /// The sources of the virtqueues.
    sources: Vec<Option<SourceId>>,
    asked: Receiver<Asked>,
    /// Whether the doorbell was rung since the commands were looked at.
    rung: Rc<Cell<bool>>,
    waiting: VecDeque<Asked>,
}

impl<P: Policy, R: Record> IoThread<P, R> {
    fn new(disk: Arc<Disk>, options: Options<P, R>, asked: Receiver<Asked>) -> io::Result<(Self, Doorbell)> {
        if let Some(cpu) = options.cpu {
            let mut cpus = rustix::thread::CpuSet::new();
            cpus.set(cpu);
            rustix::thread::sched_setaffinity(None, &cpus)?;
        }
        let device = Device::new(disk, options.queues)?;
        let ring = borrowed(&device.requests.uring).try_clone_to_owned()?;
        let device = Rc::new(RefCell::new(device));
        let rung = Rc::new(Cell::new(false));
        let Options { policy, disk_policy, record, .. } = options;
        let policy =
            ByWait { driver: policy, disk: disk_policy, for_disk: false, device: Rc::clone(&device) };
        let mut looped = Loop::new(Idler::new(policy).recording(record))?;
        let rings = Rc::clone(&rung);
        let (bell, doorbell) = Bell::new(move || rings.set(true))?;
        looped.add(bell)?;
        looped.add(Completions { device: Rc::clone(&device), ring })?;
        let sources = vec![None; options.queues];
        Ok((IoThread { device, looped, sources, asked, rung, waiting: VecDeque::new() }, doorbell))
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.looped.step()?;
            if (self.rung.take() || !self.waiting.is_empty()) && self.carry_out() {
                return Ok(());
            }
        }
    }

    /// Carries out the commands that can be; whether the end was asked for.
    fn carry_out(&mut self) -> bool {
        self.waiting.extend(self.asked.try_iter());
        while let Some((command, answer)) = self.waiting.pop_front() {
            if !self.device.borrow_mut().is_ready_for(&command) {
                self.waiting.push_front((command, answer));
                return false;
            }
            let ends = matches!(command, Command::End);
            // The connection that asked may have ended.
            let _ = answer.send(self.execute(command).unwrap_or_else(Answer::Failed));
            if ends {
                return true;
            }
        }
        false
    }

    fn execute(&mut self, command: Command) -> io::Result<Answer> {
        let mut device = self.device.borrow_mut();
        match command {
            Command::Start(index, queue, notifiers, enabled) => {
                let kick =
                    notifiers.kick.clone().ok_or_else(|| io::Error::other("a queue without a kick"))?;
                device.queues[index] = Some(Virtqueue::new(*queue, notifiers, enabled));
                drop(device);
                let source = QueueSource { device: Rc::clone(&self.device), index, kick };
                let added = self.looped.add(source);
                if added.is_err() {
                    self.device.borrow_mut().queues[index] = None;
                }
                self.sources[index] = Some(added?);
            }
            Command::Stop(index) => {
                let queue = device.queues[index].take();
                if let Some(queue) = &queue {
                    device.requests.counts.queues.add(&queue.counts);
                }
                drop(device);
                if let Some(source) = self.sources[index].take() {
                    self.looped.remove(source)?;
                }
                return Ok(Answer::Stopped(queue.map(|queue| queue.next_avail())));
            }
            Command::Enable(index, enabled) => {
                if let Some(queue) = &mut device.queues[index] {
                    queue.enabled = enabled;
                }
            }
            Command::Notifiers(index, Notifiers { call, error, .. }) => {
                if let Some(queue) = &mut device.queues[index] {
                    let notifiers = queue.notifiers_mut();
                    (notifiers.call, notifiers.error) = (call, error);
                }
            }
            Command::Memory(memory) => {
                device.memory = memory;
                device.queues.iter_mut().flatten().for_each(|queue| queue.paused = false);
            }
            Command::Statistics | Command::End => {
                let mut counts = device.requests.counts;
                device.queues.iter().flatten().for_each(|queue| counts.queues.add(&queue.counts));
                let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let cpu = std::time::Duration::try_from(cpu).unwrap_or_default();
                let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
                let totals = self.looped.idler().totals();
                return Ok(Answer::Statistics(Box::new(Statistics::new(counts, totals, cpu))));
            }
        }
        Ok(Answer::Done)
    }
}

fn borrowed(uring: &IoUring) -> BorrowedFd<'_> {
    // SAFETY: the ring owns the descriptor and outlives the borrow, which has its lifetime.
    unsafe { BorrowedFd::borrow_raw(uring.as_raw_fd()) }
}
