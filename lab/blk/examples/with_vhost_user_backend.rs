//! The guard in rust-vmm's vhost-user-backend: a null disk whose thread looks at the ring for a while before
//! it goes back to the crate's `epoll_wait`. `cargo run --release -p dwell-blk --example
//! with_vhost_user_backend -- --socket /run/disk0.sock`
//!
//! The crate's thread calls `handle_event` when it was kicked, and sleeps when that returns: the wait begins
//! at the end of one call and ends in the next, so a [`Parker`] keeps it. Reads return what is in the guest's
//! buffers, and writes are forgotten.

use anyhow::Context;
use clap::Parser;
use dwell_idle::policy::reference::Never;
use dwell_idle::{Halt, Idler, Policy, Price, Totals, park::Parker};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VhostUserDaemon, VringRwLock, VringT};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueOwnedT;
use vm_memory::{Address, Bytes, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// Sectors of 512 bytes: 1 GiB.
const SECTORS: u64 = 1 << 21;

/// A disk without data, on one virtqueue.
struct NullDisk<P> {
    memory: Memory,
    parker: Mutex<Parker<P>>,
}

impl<P: Policy> NullDisk<P> {
    /// Answers what is available; whether there was something.
    fn answer(&self, vring: &VringRwLock) -> io::Result<bool> {
        let memory = self.memory.memory();
        let mut vring = vring.get_mut();
        let mut any = false;
        let chains = vring.get_queue_mut().iter(memory.clone()).map_err(io::Error::other)?;
        for chain in chains.collect::<Vec<_>>() {
            let (head, mut status, mut written) = (chain.head_index(), None, 0u32);
            for descriptor in chain.filter(|descriptor| descriptor.is_write_only() && descriptor.len() > 0) {
                written = written.saturating_add(descriptor.len());
                status = descriptor.addr().checked_add(u64::from(descriptor.len()) - 1);
            }
            // The last writable byte is the status. A guest without one, or with a wrong address, gets none.
            let _ = status.map(|status| memory.write_obj(0u8, status));
            vring.add_used(head, written).map_err(io::Error::other)?;
            any = true;
        }
        if any && vring.needs_notification().map_err(io::Error::other)? {
            vring.signal_used_queue()?;
        }
        Ok(any)
    }
}

impl<P: Policy + Send + 'static> VhostUserBackend for NullDisk<P> {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn handle_event(&self, queue: u16, _: EventSet, vrings: &[VringRwLock], _: usize) -> io::Result<()> {
        let Some(vring) = vrings.get(usize::from(queue)) else { return Ok(()) };
        let mut parker = self.parker.lock().unwrap_or_else(PoisonError::into_inner);
        vring.disable_notification().map_err(io::Error::other)?;
        loop {
            if self.answer(vring)? {
                parker.works();
            } else if !parker.parks() {
                // Back to sleep, unless something came before notifications were on.
                if !vring.enable_notification().map_err(io::Error::other)? {
                    return Ok(());
                }
                vring.disable_notification().map_err(io::Error::other)?;
            }
        }
    }

    fn num_queues(&self) -> usize {
        1
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&self, _: bool) {
        // The daemon sets it in the vring.
    }

    /// The capacity is the first field; the others are zero.
    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let config = SECTORS.to_le_bytes().into_iter().chain(std::iter::repeat(0));
        config.skip(offset as usize).take(size as usize).collect()
    }

    fn update_memory(&self, _: Memory) -> io::Result<()> {
        // The daemon replaces what is in `memory`.
        Ok(())
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }
}

/// Serves one connection; what its thread did.
fn serve(socket: &Path, idler: Idler<impl Policy + Send + 'static>) -> anyhow::Result<Totals> {
    let memory = Memory::new(GuestMemoryMmap::new());
    let disk = Arc::new(NullDisk { memory: memory.clone(), parker: Mutex::new(Parker::new(idler)) });
    let daemon = VhostUserDaemon::new("null-disk".into(), Arc::clone(&disk), memory);
    daemon.and_then(|mut daemon| daemon.serve(socket)).map_err(|error| anyhow::anyhow!("{error}"))?;
    let parker = disk.parker.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(parker.idler().totals())
}

/// Serve a disk without data to one virtual machine
#[derive(Parser)]
struct Args {
    /// Path of the Unix socket
    #[arg(long)]
    socket: PathBuf,
    /// CPU to run on
    #[arg(long)]
    cpu: Option<usize>,
    /// Learn how long to poll, at this price of latency in percent of CPU time; never polls unless given
    #[arg(long, value_name = "PERCENT")]
    latency_price: Option<u32>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    // Measured between two CPUs.
    let halt =
        args.latency_price.map(|percent| Halt::measure().map(|halt| halt.leader(Price::percent(percent))));
    if let Some(cpu) = args.cpu {
        let mut cpus = rustix::thread::CpuSet::new();
        cpus.set(cpu);
        rustix::thread::sched_setaffinity(None, &cpus).context("cannot run on this CPU")?;
    }
    let totals = match halt {
        Some(leader) => serve(&args.socket, Idler::new(leader?))?,
        None => serve(&args.socket, Idler::new(Never))?,
    };
    println!("{totals:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_blk::driver::{Driver, Setup};
    use dwell_idle::Nanos;
    use dwell_idle::policy::reference::Fixed;
    use std::time::Duration;

    const REQUESTS: u64 = 300;

    /// So many requests, one after the other, each 1 ms after the answer to the one before: without the
    /// pause, a device that shares its CPU with the driver may never park.
    fn requests(idler: Idler<impl Policy + Send + 'static>) -> Totals {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let daemon = std::thread::spawn({
            let socket = socket.clone();
            move || serve(&socket, idler).unwrap()
        });
        let mut driver = Driver::connect(&socket, Setup::default()).unwrap();
        let (queue, memory) = driver.queue(0);
        for request in 0..REQUESTS {
            std::thread::sleep(Duration::from_millis(1));
            queue.submit(memory, 0, 0, request * 8, 4096, false);
            queue.publish(memory).unwrap();
            let status = loop {
                if let Some((_, status)) = queue.completed(memory) {
                    break status;
                }
                assert!(queue.listens(memory) || queue.sleep(Duration::from_secs(20)).unwrap());
            };
            assert_eq!(status, 0);
        }
        drop(driver);
        daemon.join().unwrap()
    }

    #[test]
    fn every_request_is_answered_polling_or_not() {
        let never = requests(Idler::new(Never));
        assert!(never.caught == 0 && never.halts == never.episodes && never.halts > 0, "{never:?}");
        let polls = requests(Idler::new(Fixed(Nanos(50_000_000))));
        assert!(polls.caught > 0, "{polls:?}");
    }
}
