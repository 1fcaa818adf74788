//! A device in this process, and connections to it.

use dwell_blk::driver::{Driver, Setup};
use dwell_blk::{Disk, Options, Shape, Statistics, Worker, serve};
use dwell_idle::Nanos;
use dwell_idle::policy::catalogue::Any;
use dwell_idle::policy::reference::{Fixed, Never};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const IN: u32 = 0;
pub(crate) const OUT: u32 = 1;
pub(crate) const FLUSH: u32 = 4;
pub(crate) const GET_ID: u32 = 8;
pub(crate) const DISCARD: u32 = 11;
pub(crate) const WRITE_ZEROES: u32 = 13;

pub(crate) struct Device {
    worker: Arc<Worker>,
    disk: Arc<Disk>,
    shape: Shape,
}

type Connection = JoinHandle<vhost::vhost_user::Result<()>>;

impl Device {
    pub(crate) fn new(disk: Disk, queues: usize, policy: Any) -> Device {
        Device::with_disk_policy(disk, queues, policy, None)
    }

    pub(crate) fn with_disk_policy(
        disk: Disk,
        queues: usize,
        policy: Any,
        disk_policy: Option<Any>,
    ) -> Device {
        let disk = Arc::new(disk);
        let options = Options { queues, cpu: None, policy, disk_policy, record: () };
        let worker = Arc::new(Worker::start(Arc::clone(&disk), options).unwrap());
        Device { worker, disk, shape: Shape { queues, queue_size: 256 } }
    }

    /// A connection that the device serves in a thread.
    pub(crate) fn accept(&self) -> (UnixStream, Connection) {
        let (frontend, stream) = UnixStream::pair().unwrap();
        let (worker, disk, shape) = (Arc::clone(&self.worker), Arc::clone(&self.disk), self.shape);
        (frontend, std::thread::spawn(move || serve(stream, &worker, &disk, shape)))
    }

    pub(crate) fn drive(&self, setup: Setup) -> (Driver, Connection) {
        let (frontend, served) = self.accept();
        (Driver::over(frontend, setup).unwrap(), served)
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.worker.statistics().unwrap()
    }

    pub(crate) fn end(self) -> Statistics {
        Arc::into_inner(self.worker).expect("no connection is left").end().unwrap()
    }
}

pub(crate) fn policies() -> [Any; 2] {
    [Never.into(), Fixed(Nanos::from_micros(50)).into()]
}

/// One request from beginning to end; its status.
pub(crate) fn request(
    driver: &mut Driver,
    queue: usize,
    (kind, sector): (u32, u64),
    bytes: u32,
    to_device: bool,
) -> u8 {
    let (queue, memory) = driver.queue(queue);
    queue.submit(memory, 0, kind, sector, bytes, to_device);
    queue.publish(memory).unwrap();
    let (number, status) = queue.wait(memory, PATIENCE).unwrap().expect("it is answered");
    assert_eq!(number, 0);
    status
}

pub(crate) fn write(driver: &mut Driver, queue: usize, sector: u64, data: &[u8]) -> u8 {
    let (ring, memory) = driver.queue(queue);
    ring.data(memory, 0).copy_from(data);
    request(driver, queue, (OUT, sector), u32::try_from(data.len()).unwrap(), true)
}

pub(crate) fn read(driver: &mut Driver, queue: usize, sector: u64, bytes: u32) -> (u8, Vec<u8>) {
    let (ring, memory) = driver.queue(queue);
    ring.data(memory, 0).copy_from(&vec![0xa5u8; bytes as usize]);
    let status = request(driver, queue, (IN, sector), bytes, false);
    let (ring, memory) = driver.queue(queue);
    let mut data = vec![0u8; bytes as usize];
    ring.data(memory, 0).copy_to(&mut data[..]);
    (status, data)
}

/// A disk of this many bytes, and its file.
pub(crate) fn file(bytes: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(bytes).unwrap();
    file
}

pub(crate) fn ended(connection: Connection) -> io::Result<()> {
    connection.join().expect("no panic").map_err(io::Error::other)
}
