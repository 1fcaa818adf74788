//! The headers of the pages of a column, checked before the Parquet library reads the pages.
//!
//! The library takes memory for as much as a header claims: 2 GiB for a page that is said to have so many
//! bytes, 64 GiB for a dictionary that is said to have 2^31 names. Memory that cannot be had ends the
//! program. So every header of a column chunk is read here first; it is a `PageHeader` in Thrift's compact
//! protocol, of which a few numbers are of use.

use crate::storage::Storage;
use crate::thrift::{I32, STRUCT, Thrift};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use std::io::Read;

/// The longest page that is read \[bytes\]. Writers make pages of about a mebibyte, some one page of a whole row group.
const MOST_BYTES: i64 = 1 << 27;
/// The longest header that is read \[bytes\]; it may hold the least and the greatest value of its page.
const LONGEST_HEADER: u64 = 1 << 22;
/// Values of `Encoding` whose pages hold the number of their values once more, and memory is taken for so many:
/// DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY.
const COUNTED_TWICE: [i64; 2] = [6, 7];

/// Refuses a column chunk of a row group of `rows` rows if one of its pages claims more than can be true.
pub(crate) fn check(storage: &Storage, column: &ColumnChunkMetaData, rows: u64) -> Result<()> {
    let (mut at, length) = column.byte_range();
    let end = at.saturating_add(length);
    while at < end {
        let header = read(storage, at)?;
        header.check(rows)?;
        let body = u64::try_from(header.compressed_bytes).map_err(|_| implausible("of a negative length"))?;
        at = at.saturating_add(header.length).saturating_add(body);
    }
    Ok(())
}

fn read(storage: &Storage, at: u64) -> Result<PageHeader> {
    let mut window = 1 << 10;
    loop {
        let mut bytes = vec![];
        storage.get_read(at)?.take(window).read_to_end(&mut bytes)?;
        if let Some(header) = PageHeader::parse(&bytes) {
            return Ok(header);
        }
        if (bytes.len() as u64) < window || window >= LONGEST_HEADER {
            return Err(implausible("with a header that cannot be read"));
        }
        window <<= 4;
    }
}

fn implausible(what: &str) -> ParquetError {
    ParquetError::General(format!("a page {what}"))
}

/// What is of use of a page's header.
#[derive(Debug, Default, PartialEq, Eq)]
struct PageHeader {
    uncompressed_bytes: i64,
    compressed_bytes: i64,
    values: i64,
    counted_twice: bool,
    /// Its own length \[bytes\].
    length: u64,
}

impl PageHeader {
    fn check(&self, rows: u64) -> Result<()> {
        let PageHeader { uncompressed_bytes, values, counted_twice, .. } = self;
        if !(0..=MOST_BYTES).contains(uncompressed_bytes) {
            let what = format!("claims {uncompressed_bytes} bytes, and at most {MOST_BYTES} are read");
            return Err(implausible(&what));
        }
        if !u64::try_from(*values).is_ok_and(|values| values <= rows) {
            return Err(implausible(&format!("claims {values} values, and its row group {rows} rows")));
        }
        if *counted_twice {
            let what = "has delta-encoded strings, which are not read; write them plain or with a dictionary";
            return Err(implausible(what));
        }
        Ok(())
    }

    /// `None` if the bytes do not begin with a whole header.
    ///
    /// It must be read as the library reads it, or what is checked is not what is used. So what the format
    /// does not have is refused, not passed over: a known field of another type, and lists.
    fn parse(bytes: &[u8]) -> Option<PageHeader> {
        let mut thrift = Thrift::new(bytes);
        let mut header = PageHeader::default();
        let mut last = 0;
        while let Some((kind, field)) = thrift.field(last)? {
            last = field;
            match (field, kind) {
                (2, I32) => header.uncompressed_bytes = thrift.integer()?,
                (3, I32) => header.compressed_bytes = thrift.integer()?,
                (1 | 4, I32) | (6, STRUCT) => thrift.skip(kind, 0)?,
                // The kinds of pages: data, dictionary, the newer data page.
                (5, STRUCT) => header.numbers(4, 2, &mut thrift)?,
                (7, STRUCT) => header.numbers(2, 2, &mut thrift)?,
                (8, STRUCT) => header.numbers(6, 4, &mut thrift)?,
                (1..=8, _) => return None,
                _ => thrift.skip(kind, 0)?,
            }
        }
        header.length = (bytes.len() - thrift.left()) as u64;
        Some(header)
    }

    /// Of one kind of page: the first `count` fields are numbers, the first of them the number of values, and
    /// the one of this place the encoding.
    fn numbers(&mut self, count: i16, encoding: i16, thrift: &mut Thrift<'_>) -> Option<()> {
        let mut last = 0;
        while let Some((kind, field)) = thrift.field(last)? {
            last = field;
            if !(1..=count).contains(&field) {
                thrift.skip(kind, 0)?;
                continue;
            }
            let number = (kind == I32).then(|| thrift.integer())??;
            if field == 1 {
                // The least plausible one, should there be several.
                let less_plausible = number < 0 || (self.values >= 0 && number > self.values);
                self.values = if less_plausible { number } else { self.values };
            }
            self.counted_twice |= field == encoding && COUNTED_TWICE.contains(&number);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_a_header_with_statistics() {
        // Type 0, 1000 bytes, 200 compressed, a data page of 5 values with statistics; then data.
        let bytes = [
            0x15, 0, 0x15, 0xd0, 0x0f, 0x15, 0x90, 0x03, 0x2c, 0x15, 10, 0x15, 0, 0x15, 6, 0x15, 6, 0x1c,
            0x18, 2, b'a', b'b', 0, 0, 0, b'd', b'a',
        ];
        let header = PageHeader::parse(&bytes).unwrap();
        let expected = PageHeader {
            uncompressed_bytes: 1000,
            compressed_bytes: 200,
            values: 5,
            counted_twice: false,
            length: 25,
        };
        assert_eq!(header, expected);
        assert!((0..25).all(|length| PageHeader::parse(&bytes[..length]).is_none()));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let length = PageHeader::parse(&bytes).map_or(0, |header| header.length);
            prop_assert!(length <= bytes.len() as u64);
        }
    }
}
