//! What is behind the device.

use crate::request::{Kind, MAX_RANGES, Range, Request, SECTOR};
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_WRITE_ZEROES, VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_S_IOERR,
    VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Bytes of the serial number.
pub const SERIAL: usize = VIRTIO_BLK_ID_BYTES as usize;
/// Pieces of data of one request, at most: what one system call takes.
pub const MAX_PIECES: usize = 1024;
/// Bytes of the configuration space; what is behind the fields reads as zeroes.
const CONFIG: usize = 256;
/// Sectors of one range of discard and write-zeroes: 1 GiB, so that no request keeps the disk busy for long.
const RANGE_SECTORS: u32 = 1 << 21;

/// What a request ends with, other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It failed, or asks for what the disk does not have.
    IoError,
    /// The device does not do this.
    Unsupported,
}

impl Refusal {
    /// The status byte.
    pub fn status(self) -> u8 {
        let status = match self {
            Refusal::IoError => VIRTIO_BLK_S_IOERR,
            Refusal::Unsupported => VIRTIO_BLK_S_UNSUPP,
        };
        u8::try_from(status).unwrap_or(1)
    }
}

/// What is to be done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing more: it is done.
    Nothing,
    /// The serial number goes to the data.
    Serial,
    /// Read into the data, from this byte on.
    Read(u64),
    /// Write the data, from this byte on.
    Write(u64),
    /// Make durable what was written.
    Flush,
    Discard,
    /// Make the ranges zero.
    Zero,
}

/// Why a file cannot be a disk.
#[derive(Debug, thiserror::Error)]
pub enum OpenDiskError {
    /// It cannot be opened.
    #[error("cannot open the disk {}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// It has no whole sector.
    #[error("cannot use {} as a disk: it has {bytes} bytes, less than a sector of 512; `truncate -s 1G` makes it longer", path.display())]
    Empty { path: PathBuf, bytes: u64 },
    /// It cannot be read past the page cache.
    #[error("cannot read {} past the page cache; leave --direct away, or use another file system", path.display())]
    Direct { path: PathBuf, source: io::Error },
}

#[derive(Debug)]
pub struct Disk {
    file: Option<File>,
    sectors: u64,
    block: u32,
    read_only: bool,
    serial: [u8; SERIAL],
}

/// A block at an address that direct I/O takes.
#[repr(align(4096))]
struct Block([u8; 4096]);

impl Disk {
    /// A disk that does nothing: reads leave the buffers as they are, writes are forgotten.
    pub fn null(bytes: u64) -> Disk {
        Disk { file: None, sectors: bytes / SECTOR, block: 512, read_only: false, serial: [0; SERIAL] }
    }

    /// A file or block device; `direct`: past the page cache.
    ///
    /// # Errors
    /// It cannot be a disk.
    pub fn open(path: &Path, read_only: bool, direct: bool) -> Result<Disk, OpenDiskError> {
        let named = |source| OpenDiskError::Open { path: path.to_owned(), source };
        let flags = libc::O_CLOEXEC | if direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(!read_only).custom_flags(flags).open(path).map_err(named)?;
        // Also right for block devices, whose metadata has no length.
        let bytes = file.seek(SeekFrom::End(0)).map_err(named)?;
        if bytes < SECTOR {
            return Err(OpenDiskError::Empty { path: path.to_owned(), bytes });
        }
        let block = if direct {
            Disk::direct_block(&file)
                .map_err(|source| OpenDiskError::Direct { path: path.to_owned(), source })?
        } else {
            512
        };
        let sectors = bytes / SECTOR;
        Ok(Disk { file: Some(file), sectors, block, read_only, serial: [0; SERIAL] })
    }

    /// The shortest read that direct I/O takes here.
    fn direct_block(file: &File) -> io::Result<u32> {
        let mut buffer = Box::new(Block([0; 4096]));
        match file.read_at(&mut buffer.0[..512], 0) {
            Ok(_) => Ok(512),
            Err(_) => file.read_at(&mut buffer.0, 0).map(|_| 4096),
        }
    }

    /// The same disk with a serial number, of which the first 20 bytes count.
    pub fn with_serial(mut self, serial: &str) -> Disk {
        self.serial = [0; SERIAL];
        self.serial.iter_mut().zip(serial.bytes()).for_each(|(place, byte)| *place = byte);
        self
    }

    /// The file, unless it is the null disk.
    pub fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// The serial number, padded with zeroes.
    pub const fn serial(&self) -> &[u8; SERIAL] {
        &self.serial
    }

    /// Its length in sectors of 512 bytes.
    pub const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Bytes of a block, the smallest unit that is read or written.
    pub const fn block(&self) -> u32 {
        self.block
    }

    /// The virtio features that a device with this disk offers.
    pub fn features(&self, queues: usize) -> u64 {
        let mut bits = vec![
            VIRTIO_F_VERSION_1,
            VIRTIO_RING_F_EVENT_IDX,
            VIRTIO_RING_F_INDIRECT_DESC,
            VIRTIO_BLK_F_SEG_MAX,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_FLUSH,
        ];
        if queues > 1 {
            bits.push(VIRTIO_BLK_F_MQ);
        }
        if self.read_only {
            bits.push(VIRTIO_BLK_F_RO);
        } else {
            bits.extend([VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]);
        }
        bits.iter().fold(VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), |all, bit| all | 1 << bit)
    }

    /// The vhost-user protocol features.
    pub fn protocol_features() -> VhostUserProtocolFeatures {
        use VhostUserProtocolFeatures as Features;
        Features::CONFIG
            | Features::MQ
            | Features::REPLY_ACK
            | Features::CONFIGURE_MEM_SLOTS
            | Features::RESET_DEVICE
    }

    /// A part of the configuration space; `None` beyond its end.
    pub fn config(&self, offset: u32, size: u32, queues: usize, queue_size: u16) -> Option<Vec<u8>> {
        let mut config = [0; CONFIG];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        let ranges = u32::try_from(MAX_RANGES).unwrap_or(1);
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        // The offsets of `struct virtio_blk_config`.
        put(0, &self.sectors.to_le_bytes());
        put(12, &u32::from(queue_size.saturating_sub(2)).max(1).to_le_bytes()); // seg_max: less header and status
        put(20, &self.block.to_le_bytes());
        put(34, &queues.to_le_bytes());
        put(36, &RANGE_SECTORS.to_le_bytes()); // max_discard_sectors
        put(40, &ranges.to_le_bytes()); // max_discard_seg
        put(44, &(self.block / 512).to_le_bytes()); // discard_sector_alignment
        put(48, &RANGE_SECTORS.to_le_bytes()); // max_write_zeroes_sectors
        put(52, &ranges.to_le_bytes()); // max_write_zeroes_seg
        put(56, &[1]); // write_zeroes_may_unmap
        let from = usize::try_from(offset).ok()?;
        let to = from.checked_add(usize::try_from(size).ok()?)?;
        config.get(from..to).map(<[u8]>::to_vec)
    }

    /// What is to be done for a request.
    ///
    /// # Errors
    /// It is refused.
    pub fn plan(&self, request: &Request) -> Result<Action, Refusal> {
        let writes = matches!(request.kind, Kind::Out | Kind::Discard | Kind::WriteZeroes);
        if writes && self.read_only {
            return Err(Refusal::IoError);
        }
        let action = match request.kind {
            Kind::In => Action::Read(self.bytes(request)?),
            Kind::Out => Action::Write(self.bytes(request)?),
            Kind::Flush => Action::Flush,
            Kind::GetId => return Ok(Action::Serial),
            Kind::Discard => {
                self.ranges(request, 0)?;
                Action::Discard
            }
            Kind::WriteZeroes => {
                self.ranges(request, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP)?;
                Action::Zero
            }
            Kind::Other(_) => return Err(Refusal::Unsupported),
        };
        let nothing = self.file.is_none()
            || (request.bytes == 0 && matches!(action, Action::Read(_) | Action::Write(_)));
        Ok(if nothing { Action::Nothing } else { action })
    }

    /// The first byte of a read or write that is within the disk and of whole blocks.
    fn bytes(&self, request: &Request) -> Result<u64, Refusal> {
        let block = u64::from(self.block);
        let fits = request.bytes.is_multiple_of(block)
            && request.sector.is_multiple_of(block / SECTOR)
            && self.has(request.sector, request.bytes / SECTOR)
            && request.data.len() <= MAX_PIECES;
        if fits { Ok(request.sector * SECTOR) } else { Err(Refusal::IoError) }
    }

    fn has(&self, sector: u64, sectors: u64) -> bool {
        sector.checked_add(sectors).is_some_and(|end| end <= self.sectors)
    }

    /// Checks the ranges of a request, of whose flags only those are known.
    fn ranges(&self, request: &Request, known: u32) -> Result<(), Refusal> {
        let ranges = request.ranges.as_deref().ok_or(Refusal::IoError)?;
        if ranges.iter().any(|range| range.flags & !known != 0) {
            return Err(Refusal::Unsupported);
        }
        let block = u64::from(self.block) / SECTOR;
        let fits = |range: &Range| {
            range.sectors <= RANGE_SECTORS
                && self.has(range.sector, range.sectors.into())
                && range.sector.is_multiple_of(block)
                && u64::from(range.sectors).is_multiple_of(block)
        };
        if ranges.iter().all(fits) { Ok(()) } else { Err(Refusal::IoError) }
    }
}
