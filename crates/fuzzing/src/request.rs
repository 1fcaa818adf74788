//! A guest's memory of any bytes: every chain of its virtqueue is decoded, or refused, without a panic; and
//! as an obvious decoder does it, which follows the descriptors and takes the bytes one by one.
//!
//! The first byte chooses the size of the queue. The memory has two regions that touch; descriptors begin at
//! 0, the available ring at 0x800.

use dwell_blk::Memory;
use dwell_blk::request::{Kind, MAX_RANGES, Request};
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

const HALF: u64 = 0x2000;
const AVAILABLE: u64 = 0x800;
const USED: u64 = 0xc00;
/// Chains with more bytes are not compared.
const MOST: u64 = 1 << 16;

/// What the obvious decoder finds; addresses by byte.
#[derive(Debug, PartialEq)]
struct Plain {
    kind: u32,
    sector: u64,
    data: Vec<u64>,
    /// Of a discard or write-zeroes request.
    ranges: Vec<u8>,
    status: u64,
}

struct Bytewise<'a>(&'a [u8]);

impl Bytewise<'_> {
    fn at(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        (0..len).map(|byte| self.0.get(usize::try_from(address.checked_add(byte)?).ok()?).copied()).collect()
    }

    fn number(&self, address: u64, len: u64) -> Option<u64> {
        Some(self.at(address, len)?.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Decodes a chain; the error is `Some` where it is too long to be compared, and `None` where it is no request.
    fn decode(&self, size: u64, head: u64) -> Result<Plain, Option<()>> {
        let (mut table, mut entries, mut at, mut indirect, mut count) = (0, size, head, false, 0);
        let (mut readable, mut writable, mut total) = (vec![], vec![], 0);
        loop {
            if at >= entries {
                return Err(None);
            }
            let Some(place) = at.checked_mul(16).and_then(|offset| offset.checked_add(table)) else {
                return Err(None);
            };
            let field = |offset: u64, len| self.number(place.checked_add(offset)?, len);
            let (Some(address), Some(len), Some(flags), Some(next)) =
                (field(0, 8), field(8, 4), field(12, 2), field(14, 2))
            else {
                return Err(None);
            };
            if flags & 4 != 0 {
                if indirect || len % 16 != 0 || len / 16 > 0xffff {
                    return Err(None);
                }
                (table, entries, at, indirect) = (address, len / 16, 0, true);
                continue;
            }
            (count, total) = (count + 1, total + len);
            if count > size {
                return Err(None);
            }
            if total > MOST {
                return Err(Some(()));
            }
            let bytes = (0..len).map(|byte| address.wrapping_add(byte));
            if address.checked_add(len).is_none() {
                return Err(Some(()));
            }
            if flags & 2 != 0 {
                writable.extend(bytes);
                // Even where it has no bytes.
                if readable.len() < 16 {
                    return Err(None);
                }
            } else if writable.is_empty() {
                readable.extend(bytes);
            } else {
                return Err(None);
            }
            if flags & 1 == 0 {
                break;
            }
            at = next;
        }
        let byte = |address: &u64| self.at(*address, 1).map(|bytes| bytes[0]);
        let header: Option<Vec<u8>> = readable.iter().take(16).map(byte).collect();
        let header = header.filter(|header| header.len() == 16).ok_or(None)?;
        let status = writable.pop().filter(|status| byte(status).is_some()).ok_or(None)?;
        let number = |range: std::ops::Range<usize>| {
            header[range].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
        };
        let kind = u32::try_from(number(0..4)).unwrap();
        let known = matches!(kind, 11 | 13);
        let ranges: Option<Vec<u8>> =
            readable.iter().skip(16).take(if known { MAX_RANGES * 16 } else { 0 }).map(byte).collect();
        let ranges = ranges.ok_or(None)?;
        let whole = known
            && readable.len() > 16
            && readable.len() % 16 == 0
            && readable.len() <= 16 + MAX_RANGES * 16;
        let data = if kind == 1 { readable.split_off(16) } else { writable };
        Ok(Plain { kind, sector: number(8..16), data, ranges: if whole { ranges } else { vec![] }, status })
    }
}

fn number_of(kind: Kind) -> u32 {
    match kind {
        Kind::In => 0,
        Kind::Out => 1,
        Kind::Flush => 4,
        Kind::GetId => 8,
        Kind::Discard => 11,
        Kind::WriteZeroes => 13,
        Kind::Other(kind) => kind,
    }
}

pub fn run(data: &[u8]) {
    requests(data);
}

/// As [`run`]; how many chains were requests.
pub fn requests(data: &[u8]) -> usize {
    let Some((&choice, data)) = data.split_first() else { return 0 };
    let mut bytes = data.to_vec();
    bytes.resize(usize::try_from(2 * HALF).unwrap(), 0);
    let half = usize::try_from(HALF).unwrap();
    let memory = Memory::from_ranges(&[(GuestAddress(0), half), (GuestAddress(HALF), half)]).unwrap();
    memory.write_slice(&bytes, GuestAddress(0)).unwrap();
    let size = 1u16 << (choice & 7);
    let mut queue = Queue::new(256).unwrap();
    queue.try_set_size(size).unwrap();
    queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).unwrap();
    queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
    queue.set_ready(true);
    let mut request = Request::default();
    let Ok(available) = queue.iter(&memory) else { return 0 };
    let mut requests = 0;
    for chain in available {
        let head = chain.head_index();
        let decoded = request.decode(&memory, chain, size);
        let plain = match Bytewise(&bytes).decode(size.into(), head.into()) {
            Err(Some(())) => continue,
            Err(None) => None,
            Ok(plain) => Some(plain),
        };
        let fast = decoded.ok().map(|()| Plain {
            kind: number_of(request.kind),
            sector: request.sector,
            data: request
                .data
                .iter()
                .flat_map(|piece| (0..piece.len).map(|byte| piece.at.0 + u64::from(byte)))
                .collect(),
            ranges: request
                .ranges
                .iter()
                .flatten()
                .flat_map(|range| {
                    [
                        &range.sector.to_le_bytes()[..],
                        &range.sectors.to_le_bytes(),
                        &range.flags.to_le_bytes(),
                    ]
                    .concat()
                })
                .collect(),
            status: request.status.0,
        });
        assert_eq!(fast, plain, "head {head} of {size}");
        if fast.is_some() {
            requests += 1;
            assert_eq!(request.bytes, request.data.iter().map(|piece| u64::from(piece.len)).sum::<u64>());
        }
    }
    requests
}
