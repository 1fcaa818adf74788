//! A request, from the descriptors of its chain. Everything here comes from the guest.
//!
//! The driver may cut a request into descriptors as it likes: the header is the first 16 readable bytes, the
//! status the last writable byte, wherever these are. A chain is refused where it has no header or no status,
//! where something writable comes before something readable, where it is longer than its queue, and where it
//! ends with a link that leads nowhere.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID, VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT,
    VIRTIO_BLK_T_WRITE_ZEROES,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, Permissions};

/// Bytes of a sector: the unit of addresses, whatever the size of a block.
pub const SECTOR: u64 = 512;
/// Bytes of the header.
pub const HEADER: usize = 16;
/// Ranges of one discard or write-zeroes request, at most.
pub const MAX_RANGES: usize = 32;
/// Bytes of a range.
const RANGE: usize = 16;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    In,
    Out,
    /// What was written before is durable afterwards.
    Flush,
    /// Ranges are not needed any more.
    Discard,
    /// Ranges read as zeroes afterwards.
    WriteZeroes,
    GetId,
    /// A type that this device does not implement.
    Other(u32),
}

impl Kind {
    const fn of(number: u32) -> Kind {
        match number {
            VIRTIO_BLK_T_IN => Kind::In,
            VIRTIO_BLK_T_OUT => Kind::Out,
            VIRTIO_BLK_T_FLUSH => Kind::Flush,
            VIRTIO_BLK_T_DISCARD => Kind::Discard,
            VIRTIO_BLK_T_WRITE_ZEROES => Kind::WriteZeroes,
            VIRTIO_BLK_T_GET_ID => Kind::GetId,
            other => Kind::Other(other),
        }
    }
}

/// A piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub at: GuestAddress,
    /// Its length in bytes; not zero.
    pub len: u32,
}

/// A range of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first sector.
    pub sector: u64,
    pub sectors: u32,
    /// For write-zeroes, bit 0: the sectors may be deallocated.
    pub flags: u32,
}

/// Why a chain is no request. It is returned with nothing written, since there may be nowhere to write a status to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedChain {
    /// Fewer than 16 readable bytes.
    #[error("fewer than 16 readable bytes, which the header has")]
    NoHeader,
    /// No writable byte.
    #[error("no writable byte for the status")]
    NoStatus,
    /// A readable descriptor after a writable one.
    #[error("a readable descriptor after a writable one")]
    Order,
    /// More descriptors than the queue has.
    #[error("more descriptors than the queue has")]
    TooLong,
    /// A link to a descriptor that is not there, a loop, or a descriptor of an indirect table that cannot be read.
    #[error("a link that leads nowhere")]
    Broken,
    /// Header or status outside of the guest's memory.
    #[error("header or status outside of the guest's memory")]
    Address,
}

/// A request. It is kept and decoded into again, so that it allocates nothing after the first requests.
#[derive(Debug)]
pub struct Request {
    /// What is asked for.
    pub kind: Kind,
    /// The first sector, of reads and writes.
    pub sector: u64,
    /// The data: what is written to the disk, or where what is read goes.
    pub data: Vec<Piece>,
    /// Bytes of the data.
    pub bytes: u64,
    /// Of discard and write-zeroes; `None` where there is none, a part of one, or more than [`MAX_RANGES`].
    pub ranges: Option<Vec<Range>>,
    /// Where the status goes.
    pub status: GuestAddress,
    /// Kept for its allocation.
    spare: Vec<Range>,
    /// The ranges as the driver wrote them, as far as they are read.
    range_bytes: Vec<u8>,
}

impl Default for Request {
    fn default() -> Request {
        let (kind, status) = (Kind::Other(u32::MAX), GuestAddress(0));
        Request {
            kind,
            sector: 0,
            data: vec![],
            bytes: 0,
            ranges: None,
            status,
            spare: vec![],
            range_bytes: vec![],
        }
    }
}

impl Request {
    /// Decodes the descriptors of a chain; `longest` is the size of the queue.
    ///
    /// # Errors
    /// It is no request; what is decoded then means nothing.
    pub fn decode<M: GuestMemory>(
        &mut self,
        memory: &M,
        chain: impl Iterator<Item = Descriptor>,
        longest: u16,
    ) -> Result<(), MalformedChain> {
        let (mut header, mut filled) = ([0u8; HEADER], 0);
        let (mut readable, mut writable, mut count, mut goes_on) = (0u64, 0u64, 0u32, true);
        self.data.clear();
        self.range_bytes.clear();
        for descriptor in chain {
            count += 1;
            if count > u32::from(longest) {
                return Err(MalformedChain::TooLong);
            }
            goes_on = descriptor.has_next();
            let (mut at, mut len) = (descriptor.addr(), descriptor.len());
            if descriptor.is_write_only() {
                if filled < HEADER {
                    return Err(MalformedChain::NoHeader);
                }
                if writable == 0 && self.kind != Kind::Out {
                    self.data.clear();
                }
                writable += u64::from(len);
                if len > 0 {
                    self.status = at.checked_add(u64::from(len) - 1).ok_or(MalformedChain::Address)?;
                    if self.kind != Kind::Out {
                        self.data.push(Piece { at, len });
                    }
                }
                continue;
            }
            if writable > 0 {
                return Err(MalformedChain::Order);
            }
            if filled < HEADER {
                let part = (HEADER - filled).min(len as usize);
                memory
                    .read_slice(&mut header[filled..filled + part], at)
                    .map_err(|_| MalformedChain::Address)?;
                filled += part;
                at = at.checked_add(part as u64).ok_or(MalformedChain::Address)?;
                // At most 16.
                len -= u32::try_from(part).unwrap_or(0);
                self.header(header);
            }
            if len == 0 {
                continue;
            }
            if matches!(self.kind, Kind::Discard | Kind::WriteZeroes) {
                let known = self.range_bytes.len();
                // More than fit mean that there are none.
                let whole = (RANGE * MAX_RANGES - known).min(len as usize) + known;
                self.range_bytes.resize(whole, 0);
                memory.read_slice(&mut self.range_bytes[known..], at).map_err(|_| MalformedChain::Address)?;
            } else {
                self.data.push(Piece { at, len });
            }
            readable += u64::from(len);
        }
        if goes_on {
            return Err(MalformedChain::Broken);
        }
        if filled < HEADER {
            return Err(MalformedChain::NoHeader);
        }
        if writable == 0 {
            return Err(MalformedChain::NoStatus);
        }
        if !memory.check_range(self.status, 1, Permissions::Write) {
            return Err(MalformedChain::Address);
        }
        self.bytes = if self.kind == Kind::Out { readable } else { writable - 1 };
        if self.kind != Kind::Out
            && let Some(last) = self.data.last_mut()
        {
            last.len -= 1;
            if last.len == 0 {
                self.data.pop();
            }
        }
        self.take_ranges(readable);
        Ok(())
    }

    fn header(&mut self, header: [u8; HEADER]) {
        let [a, b, c, d, _, _, _, _, sector @ ..] = header;
        self.kind = Kind::of(u32::from_le_bytes([a, b, c, d]));
        self.sector = u64::from_le_bytes(sector);
    }

    fn take_ranges(&mut self, readable: u64) {
        let mut ranges = self.ranges.take().unwrap_or_else(|| std::mem::take(&mut self.spare));
        ranges.clear();
        let whole = usize::try_from(readable).ok().filter(|len| len.is_multiple_of(RANGE) && *len > 0);
        let known = matches!(self.kind, Kind::Discard | Kind::WriteZeroes);
        match whole.and_then(|len| self.range_bytes.get(..len)).filter(|_| known) {
            Some(bytes) => {
                let (all, _) = bytes.as_chunks::<RANGE>();
                ranges.extend(all.iter().map(|&[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]| Range {
                    sector: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
                    sectors: u32::from_le_bytes([i, j, k, l]),
                    flags: u32::from_le_bytes([m, n, o, p]),
                }));
                self.ranges = Some(ranges);
            }
            None => self.spare = ranges,
        }
    }
}
