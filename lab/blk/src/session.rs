//! A frontend's connection: the vhost-user requests, checked, and made into commands for the I/O thread.

use crate::disk::Disk;
use crate::virtqueue::{Memory, Notifiers};
use crate::worker::{Answer, Command, Worker};
use rustix::fs::{SealFlags, fcntl_add_seals};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Regions of memory that a frontend may give.
const MEMORY_SLOTS: usize = 509;

/// Serves one connection until the frontend ends it, or breaks the protocol. The device is stopped afterwards, and
/// can be connected to again.
///
/// # Errors
/// The frontend broke the protocol, or the I/O thread has ended.
pub fn serve(stream: UnixStream, worker: &Worker, disk: &Arc<Disk>, shape: Shape) -> Result<()> {
    let session = Session::new(worker, Arc::clone(disk), shape);
    let mut requests = BackendReqHandler::from_stream(stream, Arc::new(Mutex::new(session)));
    loop {
        match requests.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected) => return Ok(()),
            Err(Error::SocketBroken(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// How many virtqueues a device has, and how long they may be.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub queues: usize,
    /// Entries of each, at most; a power of two.
    pub queue_size: u16,
}

/// A region of guest memory.
#[derive(Clone)]
struct Region {
    /// What the frontend calls it.
    given: VhostUserMemoryRegion,
    mapped: Arc<GuestRegionMmap>,
}

/// A virtqueue as the frontend sets it up.
struct Ring {
    size: u16,
    descriptors: GuestAddress,
    available: GuestAddress,
    used: GuestAddress,
    base: u16,
    notifiers: Notifiers,
    enabled: bool,
    started: bool,
}

impl Ring {
    fn new(size: u16) -> Ring {
        let nowhere = GuestAddress(0);
        Ring {
            size,
            descriptors: nowhere,
            available: nowhere,
            used: nowhere,
            base: 0,
            notifiers: Notifiers::default(),
            enabled: false,
            started: false,
        }
    }
}

struct Session<'a> {
    worker: &'a Worker,
    disk: Arc<Disk>,
    shape: Shape,
    features: u64,
    regions: Vec<Region>,
    memory: Option<Arc<Memory>>,
    rings: Vec<Ring>,
}

impl<'a> Session<'a> {
    fn new(worker: &'a Worker, disk: Arc<Disk>, shape: Shape) -> Session<'a> {
        let rings = (0..shape.queues).map(|_| Ring::new(shape.queue_size)).collect();
        Session { worker, disk, shape, features: 0, regions: vec![], memory: None, rings }
    }

    fn ask(&self, command: Command) -> Result<Answer> {
        self.worker.ask(command).map_err(Error::ReqHandlerError)
    }

    fn ring(&mut self, index: usize) -> Result<&mut Ring> {
        self.rings.get_mut(index).ok_or(Error::InvalidParam)
    }

    /// As [`ring`](Session::ring), of one that is not running: its place cannot change under the I/O thread.
    fn idle_ring(&mut self, index: u32) -> Result<&mut Ring> {
        let ring = self.ring(place(index)?)?;
        if ring.started { Err(Error::InvalidOperation("the ring is running")) } else { Ok(ring) }
    }

    /// Guest address of an address of the frontend's own.
    fn guest_address(&self, address: u64) -> Result<GuestAddress> {
        let region = self.regions.iter().find_map(|region| {
            let offset = address.checked_sub(region.given.user_addr)?;
            (offset < region.given.memory_size).then(|| region.given.guest_phys_addr.checked_add(offset))?
        });
        region.map(GuestAddress).ok_or(Error::InvalidParam)
    }

    fn map(region: &VhostUserMemoryRegion, file: File) -> Result<Region> {
        let size = usize::try_from(region.memory_size).map_err(|_| Error::InvalidParam)?;
        let invalid = |error| Error::ReqHandlerError(io::Error::other(error));
        // What lies behind the end of its file ends this process by SIGBUS. Where the file takes the seal it cannot be
        // shortened later; a file that does not take it is trusted not to be.
        let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
        let found = file.metadata().map_err(Error::ReqHandlerError)?;
        let end = region.mmap_offset.checked_add(region.memory_size);
        if !found.is_file() || end.is_none_or(|end| end > found.len()) {
            return Err(Error::InvalidOperation("a region that is longer than its file"));
        }
        let mapped = MmapRegion::from_file(FileOffset::new(file, region.mmap_offset), size)
            .map_err(|error| invalid(error.to_string()))?;
        let mapped = GuestRegionMmap::new(mapped, GuestAddress(region.guest_phys_addr));
        Ok(Region { given: *region, mapped: Arc::new(mapped.ok_or(Error::InvalidParam)?) })
    }

    /// The guest's memory is these regions from here on.
    fn set_regions(&mut self, regions: Vec<Region>) -> Result<()> {
        let mapped = regions.iter().map(|region| Arc::clone(&region.mapped)).collect();
        let memory = if regions.is_empty() {
            None
        } else {
            let memory = GuestMemoryMmap::from_arc_regions(mapped);
            Some(Arc::new(
                memory.map_err(|error| Error::ReqHandlerError(io::Error::other(error.to_string())))?,
            ))
        };
        self.ask(Command::Memory(memory.clone()))?;
        (self.regions, self.memory) = (regions, memory);
        Ok(())
    }

    fn start(&mut self, index: usize) -> Result<()> {
        let event_idx = self.features & 1 << VIRTIO_RING_F_EVENT_IDX != 0;
        let memory = self.memory.clone().ok_or(Error::InvalidOperation("a ring without memory"))?;
        let largest = self.shape.queue_size;
        let ring = self.ring(index)?;
        let wrong = |error: virtio_queue::Error| Error::ReqHandlerError(io::Error::other(error.to_string()));
        let mut queue = Queue::new(largest).map_err(wrong)?;
        queue.try_set_size(ring.size).map_err(wrong)?;
        queue.try_set_desc_table_address(ring.descriptors).map_err(wrong)?;
        queue.try_set_avail_ring_address(ring.available).map_err(wrong)?;
        queue.try_set_used_ring_address(ring.used).map_err(wrong)?;
        queue.set_event_idx(event_idx);
        queue.set_next_avail(ring.base);
        queue.set_next_used(queue.used_idx(&*memory, Ordering::Acquire).map_err(wrong)?.0);
        queue.set_ready(true);
        if !queue.is_valid(&*memory) {
            return Err(Error::InvalidParam);
        }
        let (notifiers, enabled) = (ring.notifiers.clone(), ring.enabled);
        self.ask(Command::Start(index, Box::new(queue), notifiers, enabled))?;
        self.ring(index)?.started = true;
        Ok(())
    }

    fn stop(&mut self, index: usize) -> Result<()> {
        if self.ring(index)?.started {
            let answer = self.ask(Command::Stop(index))?;
            let ring = self.ring(index)?;
            ring.started = false;
            ring.notifiers.kick = None;
            if let Answer::Stopped(Some(base)) = answer {
                ring.base = base;
            }
        }
        Ok(())
    }

    fn stop_all(&mut self) -> Result<()> {
        (0..self.rings.len()).try_for_each(|index| self.stop(index))
    }

    fn notifiers(&mut self, index: usize) -> Result<()> {
        let ring = self.ring(index)?;
        if ring.started {
            let notifiers = ring.notifiers.clone();
            self.ask(Command::Notifiers(index, notifiers))?;
        }
        Ok(())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // If the I/O thread has ended, there is nothing to stop.
        let _ = self.stop_all();
        let _ = self.set_regions(vec![]);
    }
}

fn place(index: u32) -> Result<usize> {
    usize::try_from(index).map_err(|_| Error::InvalidParam)
}

/// What this device does not do: the protocol features that ask for it are not offered.
fn not_offered<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered by this device"))
}

impl VhostUserBackendReqHandlerMut for Session<'_> {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all()?;
        self.features = 0;
        let size = self.shape.queue_size;
        self.rings.iter_mut().for_each(|ring| *ring = Ring::new(size));
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.disk.features(self.shape.queues))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.disk.features(self.shape.queues) != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features = features;
        // Without the protocol features there is no message that enables a ring.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.rings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let regions = regions.iter().zip(files).map(|(region, file)| Session::map(region, file));
        let regions = regions.collect::<Result<Vec<_>>>()?;
        self.set_regions(regions)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.regions.len() >= MEMORY_SLOTS {
            return Err(Error::InvalidParam);
        }
        let added = Session::map(region, file)?;
        self.set_regions(self.regions.iter().cloned().chain([added]).collect())?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let same = |kept: &Region| {
            let VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, .. } = kept.given;
            (guest_phys_addr, memory_size, user_addr)
                == (region.guest_phys_addr, region.memory_size, region.user_addr)
        };
        let kept: Vec<Region> = self.regions.iter().filter(|kept| !same(kept)).cloned().collect();
        if kept.len() == self.regions.len() {
            return Err(Error::InvalidParam);
        }
        self.set_regions(kept)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let most = self.shape.queue_size;
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two() && *size <= most);
        self.idle_ring(index)?.size = size.ok_or(Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return Err(Error::InvalidOperation("the log of dirty memory is not offered"));
        }
        let [descriptors, available, used] =
            [descriptor, available, used].map(|address| self.guest_address(address));
        let (descriptors, available, used) = (descriptors?, available?, used?);
        let ring = self.idle_ring(index)?;
        (ring.descriptors, ring.available, ring.used) = (descriptors, available, used);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.idle_ring(index)?.base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let at = place(index)?;
        self.stop(at)?;
        let base = self.ring(at)?.base;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = fd.ok_or(Error::InvalidOperation("a ring without a kick file descriptor"))?;
        let index = usize::from(index);
        self.ring(index)?;
        self.stop(index)?;
        self.ring(index)?.notifiers.kick = Some(Arc::new(kick));
        self.start(index)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = Notifiers::written(fd).map_err(Error::ReqHandlerError)?;
        self.ring(index.into())?.notifiers.call = call;
        self.notifiers(index.into())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = Notifiers::written(fd).map_err(Error::ReqHandlerError)?;
        self.ring(index.into())?.notifiers.error = error;
        self.notifiers(index.into())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(Disk::protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !Disk::protocol_features().bits() != 0 {
            return Err(Error::FeatureMismatch);
        }
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.shape.queues as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let index = place(index)?;
        let ring = self.ring(index)?;
        ring.enabled = enable;
        if ring.started {
            self.ask(Command::Enable(index, enable))?;
        }
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let Shape { queues, queue_size } = self.shape;
        self.disk.config(offset, size, queues, queue_size).ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _: u32, _: &[u8], _: VhostUserConfigFlags) -> Result<()> {
        not_offered()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        not_offered()
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        not_offered()
    }

    fn get_inflight_fd(&mut self, _: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        not_offered()
    }

    fn set_inflight_fd(&mut self, _: &VhostUserInflight, _: File) -> Result<()> {
        not_offered()
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        not_offered()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered()
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        not_offered()
    }
}
