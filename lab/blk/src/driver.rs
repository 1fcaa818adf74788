//! The other side of a vhost-user block device: a driver in user space, for tests and measurements of this or
//! any such device.
//!
//! Memory is a memfd: for each queue a page-aligned area of rings, headers and statuses, then the data. A request is a
//! chain of header, data and status; request *n* of a queue has the descriptors 3*n* to 3*n* + 2 and a data
//! buffer of its own.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering, fence};
use std::time::{Duration, Instant};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory, VolatileSlice};
use vmm_sys_util::eventfd::EventFd;

/// Where the memory begins in the guest's physical addresses.
pub const BASE: u64 = 1 << 32;
/// Bytes before the data of a queue: rings, headers, statuses.
const RINGS: usize = 1 << 16;
/// Bytes of a page, by which areas are aligned.
const PAGE: usize = 4096;

/// How a driver sets its device up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub queues: usize,
    /// Entries of each; a power of two, at most 1,024.
    pub size: u16,
    /// Requests of a queue at the same time; at most a third of `size`.
    pub depth: u16,
    /// Bytes of data of a request, at most.
    pub bytes: usize,
    /// Whether to use EVENT_IDX where the device has it.
    pub event_idx: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { queues: 1, size: 128, depth: 32, bytes: PAGE, event_idx: true }
    }
}

pub struct Driver {
    /// The connection, for control requests of the caller.
    pub frontend: Frontend,
    /// The features that were agreed.
    pub features: u64,
    pub queues: Vec<DriverQueue>,
    memory: MmapRegion,
}

/// A virtqueue, from the driver's side.
pub struct DriverQueue {
    index: usize,
    setup: Setup,
    /// Where its area begins in the memory.
    area: usize,
    available: u16,
    /// The available index when the driver last decided whether to kick.
    published: u16,
    used: u16,
    kick: EventFd,
    call: EventFd,
    error: EventFd,
    /// Times that the device was kicked.
    pub kicks: u64,
    event_idx: bool,
}

fn other(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl Driver {
    /// Connects, agrees on features, shares memory and starts the rings. Waits for a device that does not listen yet.
    ///
    /// # Errors
    /// Nothing listens within 20 s; what the device refuses.
    pub fn connect(socket: &Path, setup: Setup) -> io::Result<Driver> {
        let begun = Instant::now();
        loop {
            match UnixStream::connect(socket) {
                // The file exists before anything listens at it.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
                        && begun.elapsed() < Duration::from_secs(20) =>
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
                stream => return Driver::over(stream?, setup),
            }
        }
    }

    /// As [`connect`](Driver::connect), over a connected socket.
    ///
    /// # Errors
    /// What the device refuses.
    pub fn over(stream: UnixStream, setup: Setup) -> io::Result<Driver> {
        let length = setup.queues * Driver::area(setup);
        let file = File::from(rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len(length as u64)?;
        let memory = MmapRegion::from_file(FileOffset::new(file, 0), length).map_err(other)?;
        let queues = VHOST_QUEUES.max(setup.queues as u64);
        let mut driver =
            Driver { frontend: Frontend::from_stream(stream, queues), features: 0, queues: vec![], memory };
        driver.agree(setup)?;
        driver.share()?;
        for index in 0..setup.queues {
            let queue = DriverQueue::new(index, setup, driver.has(VIRTIO_RING_F_EVENT_IDX))?;
            driver.start(&queue, 0)?;
            driver.queues.push(queue);
        }
        Ok(driver)
    }

    /// Bytes of a queue's area.
    fn area(setup: Setup) -> usize {
        RINGS + usize::from(setup.depth) * setup.bytes.next_multiple_of(PAGE)
    }

    fn agree(&mut self, setup: Setup) -> io::Result<()> {
        let Driver { frontend, .. } = self;
        frontend.set_owner().map_err(other)?;
        let mut features = frontend.get_features().map_err(other)?;
        if !setup.event_idx {
            features &= !(1 << VIRTIO_RING_F_EVENT_IDX);
        }
        // Without the log of dirty memory, packed rings and more, which the driver does not implement.
        let known = VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() | 1 << 32 | 0x3000_0000 | 0xffff;
        features &= known;
        let protocol = frontend.get_protocol_features().map_err(other)?;
        let wanted = VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(protocol & wanted).map_err(other)?;
        frontend.set_features(features).map_err(other)?;
        self.features = features;
        Ok(())
    }

    /// Whether a feature was agreed.
    pub const fn has(&self, bit: u32) -> bool {
        self.features & 1 << bit != 0
    }

    /// Shares the memory.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn share(&mut self) -> io::Result<()> {
        let file = self.memory.file_offset().ok_or_else(|| other("memory without a file"))?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE,
            memory_size: self.memory.size() as u64,
            userspace_addr: self.memory.as_ptr() as u64,
            mmap_offset: 0,
            mmap_handle: file.file().as_raw_fd(),
        };
        self.frontend.set_mem_table(&[region]).map(|_| ()).map_err(other)
    }

    /// Starts a ring at this index of the available ring.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn start(&self, queue: &DriverQueue, base: u16) -> io::Result<()> {
        let DriverQueue { index, setup, .. } = *queue;
        let at = |offset: usize| self.memory.as_ptr() as u64 + (queue.area + offset) as u64;
        let config = VringConfigData {
            queue_max_size: setup.size,
            queue_size: setup.size,
            flags: 0,
            desc_table_addr: at(DESCRIPTORS),
            used_ring_addr: at(USED),
            avail_ring_addr: at(AVAILABLE),
            log_addr: None,
        };
        let mut frontend = self.frontend.clone();
        frontend.set_vring_num(index, setup.size).map_err(other)?;
        frontend.set_vring_base(index, base).map_err(other)?;
        frontend.set_vring_addr(index, &config).map_err(other)?;
        frontend.set_vring_call(index, &queue.call).map_err(other)?;
        frontend.set_vring_err(index, &queue.error).map_err(other)?;
        frontend.set_vring_kick(index, &queue.kick).map_err(other)?;
        frontend.set_vring_enable(index, true).map_err(other)
    }

    /// Stops a ring when nothing of it is in flight; where it goes on.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn stop(&self, index: usize) -> io::Result<u16> {
        let base = self.frontend.get_vring_base(index).map_err(other)?;
        u16::try_from(base).map_err(other)
    }

    /// So many bytes of the configuration space.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn config(&mut self, offset: u32, size: u32) -> io::Result<Vec<u8>> {
        let empty = vec![0; size as usize];
        let read = self.frontend.get_config(offset, size, VhostUserConfigFlags::empty(), &empty);
        read.map(|(_, bytes)| bytes).map_err(other)
    }

    /// The length of the disk in sectors.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn sectors(&mut self) -> io::Result<u64> {
        let bytes = self.config(0, 60)?;
        bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(|| other("no configuration"))
    }

    /// A queue, and the memory that it is in.
    ///
    /// # Panics
    /// There is no such queue.
    pub fn queue(&mut self, index: usize) -> (&mut DriverQueue, &MmapRegion) {
        (&mut self.queues[index], &self.memory)
    }

    pub const fn memory(&self) -> &MmapRegion {
        &self.memory
    }
}

/// Queues that a frontend may assume without asking.
const VHOST_QUEUES: u64 = 16;

// The parts of a queue's area; sizes for 1,024 entries.
const DESCRIPTORS: usize = 0;
const AVAILABLE: usize = 0x4000;
const USED: usize = 0x5000;
const HEADERS: usize = 0x8000;
const STATUSES: usize = 0xc000;

/// A descriptor of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    pub address: u64,
    /// Bytes.
    pub length: u32,
    pub flags: u16,
    pub next: u16,
}

impl Descriptor {
    /// As it is in memory.
    pub fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// Flag of a descriptor: another one follows.
pub const NEXT: u16 = 1;
/// Flag of a descriptor: the device writes.
pub const WRITE: u16 = 2;
/// Flag of a descriptor: it refers to a table of descriptors.
pub const INDIRECT: u16 = 4;

impl DriverQueue {
    fn new(index: usize, setup: Setup, event_idx: bool) -> io::Result<DriverQueue> {
        Ok(DriverQueue {
            index,
            setup,
            area: index * Driver::area(setup),
            available: 0,
            published: 0,
            used: 0,
            kick: EventFd::new(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?,
            call: EventFd::new(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?,
            error: EventFd::new(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)?,
            kicks: 0,
            event_idx,
        })
    }

    /// Fills the descriptor over which the device notifies, and makes the device wait that notifies nevertheless, as a
    /// driver must not.
    ///
    /// # Errors
    /// The system calls'.
    pub fn jam(&self) -> io::Result<()> {
        // What is in it.
        let _ = self.call.read();
        self.call.write(u64::MAX - 1)?;
        // SAFETY: the descriptor is open as long as this queue is.
        #[allow(unsafe_code)]
        let call = unsafe { BorrowedFd::borrow_raw(self.call.as_raw_fd()) };
        Ok(rustix::fs::fcntl_setfl(call, rustix::fs::fcntl_getfl(call)? - rustix::fs::OFlags::NONBLOCK)?)
    }

    /// A part of the queue's area.
    ///
    /// # Panics
    /// It is not within the memory.
    pub fn part<'a>(&self, memory: &'a MmapRegion, offset: usize, length: usize) -> VolatileSlice<'a> {
        memory.get_slice(self.area + offset, length).expect("within the memory")
    }

    fn word<'a>(&self, memory: &'a MmapRegion, offset: usize) -> &'a AtomicU16 {
        memory.get_atomic_ref(self.area + offset).expect("aligned, within the memory")
    }

    /// Guest address of a part of the queue's area.
    pub const fn address(&self, offset: usize) -> u64 {
        BASE + (self.area + offset) as u64
    }

    /// The data of a request.
    ///
    /// # Panics
    /// It is not within the memory.
    pub fn data<'a>(&self, memory: &'a MmapRegion, request: u16) -> VolatileSlice<'a> {
        self.part(memory, self.data_at(request), self.setup.bytes)
    }

    /// Where the data of a request is in the queue's area.
    pub const fn data_at(&self, request: u16) -> usize {
        RINGS + request as usize * self.setup.bytes.next_multiple_of(PAGE)
    }

    /// Puts a descriptor into the table.
    ///
    /// # Panics
    /// It is not within the table.
    pub fn describe(&self, memory: &MmapRegion, at: u16, descriptor: Descriptor) {
        self.part(memory, DESCRIPTORS + usize::from(at) * 16, 16).copy_from(&descriptor.bytes());
    }

    /// Makes request number `request` of this kind available: `bytes` of its data, read by the device or
    /// written (`to_device`).
    ///
    /// # Panics
    /// There is no request of this number, or it has not so many bytes.
    pub fn submit(
        &mut self,
        memory: &MmapRegion,
        request: u16,
        kind: u32,
        sector: u64,
        bytes: u32,
        to_device: bool,
    ) {
        assert!(request < self.setup.depth && bytes as usize <= self.setup.bytes, "a request of this size");
        let number = usize::from(request);
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        self.part(memory, HEADERS + number * 16, 16).copy_from(&header);
        self.part(memory, STATUSES + number, 1).copy_from(&[0xffu8]);
        let first = request * 3;
        let data = if to_device { NEXT } else { NEXT | WRITE };
        let header = Descriptor {
            address: self.address(HEADERS + number * 16),
            length: 16,
            flags: NEXT,
            next: first + 1,
        };
        let data = Descriptor {
            address: self.address(self.data_at(request)),
            length: bytes,
            flags: data,
            next: first + 2,
        };
        let status =
            Descriptor { address: self.address(STATUSES + number), length: 1, flags: WRITE, next: 0 };
        if bytes == 0 {
            self.describe(memory, first, Descriptor { next: first + 2, ..header });
        } else {
            self.describe(memory, first, header);
            self.describe(memory, first + 1, data);
        }
        self.describe(memory, first + 2, status);
        self.offer(memory, first);
    }

    /// Puts the head of a chain into the available ring; [`publish`](DriverQueue::publish) makes it visible.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn offer(&mut self, memory: &MmapRegion, head: u16) {
        let place = usize::from(self.available % self.setup.size);
        self.word(memory, AVAILABLE + 4 + place * 2).store(head.to_le(), Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    /// Makes visible what was offered, and kicks the device unless it has turned notifications off.
    ///
    /// # Errors
    /// The kick.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn publish(&mut self, memory: &MmapRegion) -> io::Result<()> {
        self.word(memory, AVAILABLE + 2).store(self.available.to_le(), Ordering::Release);
        fence(Ordering::SeqCst);
        let kicks = if self.event_idx {
            let event = u16::from_le(
                self.word(memory, USED + 4 + usize::from(self.setup.size) * 8).load(Ordering::Relaxed),
            );
            let (new, old) = (self.available, self.published);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.word(memory, USED).load(Ordering::Relaxed) & 1 == 0
        };
        self.published = self.available;
        if kicks { self.kick() } else { Ok(()) }
    }

    /// Kicks the device, also where it has turned notifications off.
    ///
    /// # Errors
    /// The system call's.
    pub fn kick(&mut self) -> io::Result<()> {
        self.kicks += 1;
        self.kick.write(1)
    }

    /// Sets the index of the available ring to any value, as a driver must not.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn set_available(&mut self, memory: &MmapRegion, available: u16) {
        self.word(memory, AVAILABLE + 2).store(available.to_le(), Ordering::Release);
    }

    /// What the device returned: the head of a chain, and how many bytes it wrote.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn returned(&mut self, memory: &MmapRegion) -> Option<(u16, u32)> {
        if u16::from_le(self.word(memory, USED + 2).load(Ordering::Acquire)) == self.used {
            return None;
        }
        let place = usize::from(self.used % self.setup.size);
        let entry: u64 = self.part(memory, USED + 4 + place * 8, 8).read_obj(0).expect("8 bytes");
        self.used = self.used.wrapping_add(1);
        let [a, b, _, _, len @ ..] = entry.to_le_bytes();
        Some((u16::from_le_bytes([a, b]), u32::from_le_bytes(len)))
    }

    /// As [`returned`](DriverQueue::returned), of requests: the number of a request and its status.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn completed(&mut self, memory: &MmapRegion) -> Option<(u16, u8)> {
        let (head, _) = self.returned(memory)?;
        let request = head / 3;
        let status = self.part(memory, STATUSES + usize::from(request), 1).read_obj(0).expect("1 byte");
        Some((request, status))
    }

    /// Asks the device to notify when it returns the next chain; whether it has returned one meanwhile.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn listens(&self, memory: &MmapRegion) -> bool {
        self.word(memory, AVAILABLE + 4 + usize::from(self.setup.size) * 2)
            .store(self.used.to_le(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        u16::from_le(self.word(memory, USED + 2).load(Ordering::Acquire)) != self.used
    }

    /// Sleeps until the device notifies; `false` after the time-out.
    ///
    /// # Errors
    /// The system calls'.
    pub fn sleep(&self, most: Duration) -> io::Result<bool> {
        poll(&self.call, most)
    }

    /// Whether the device has reported that the ring is broken, within this time.
    ///
    /// # Errors
    /// The system calls'.
    pub fn is_broken(&self, within: Duration) -> io::Result<bool> {
        poll(&self.error, within)
    }

    /// Waits until a request is completed: its number and status; `None` after the time-out.
    ///
    /// # Errors
    /// The system calls'.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn wait(&mut self, memory: &MmapRegion, most: Duration) -> io::Result<Option<(u16, u8)>> {
        loop {
            if let Some(done) = self.completed(memory) {
                return Ok(Some(done));
            }
            if !self.listens(memory) && !self.sleep(most)? {
                return Ok(self.completed(memory));
            }
        }
    }

    /// Empties the rings, as a driver does that starts again.
    ///
    /// # Panics
    /// The ring is not within the memory.
    pub fn clear(&mut self, memory: &MmapRegion) {
        self.part(memory, 0, RINGS).copy_from(&[0u8; RINGS]);
        (self.available, self.published, self.used) = (0, 0, 0);
        let _ = self.error.read();
        let _ = self.call.read();
    }
}

/// Waits for an eventfd and reads it.
fn poll(event: &EventFd, most: Duration) -> io::Result<bool> {
    let timeout = rustix::event::Timespec::try_from(most).map_err(other)?;
    // SAFETY: the eventfd is open for as long as it is borrowed here.
    #[allow(unsafe_code)]
    let fd = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
    let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN)];
    let ready = rustix::event::poll(&mut fds, Some(&timeout))? > 0;
    if ready {
        let _ = event.read();
    }
    Ok(ready)
}
