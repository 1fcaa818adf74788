//! The footer of a Parquet file, checked before the Parquet library reads it.
//!
//! The library passes over fields that it does not know or need. Of a list, a set or a map of booleans it
//! passes over no byte for each element, and a list may claim 2^31 of them in six bytes: a file of a few
//! kilobytes keeps it busy for minutes. So the footer is read here first, a `FileMetaData` in Thrift's
//! compact protocol.
//!
//! It must be read as the library reads it, or what is checked is not what is used. The library goes by a
//! field's number and not by its type. So a known field of another type is refused, and so are lists, sets
//! and maps in unknown fields; the format has none there.

use crate::storage::Storage;
use crate::thrift::{BINARY, LIST, STRUCT, Thrift};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// What a field holds.
#[derive(Clone, Copy)]
enum Kind {
    Bool,
    Byte,
    /// 16, 32 or 64 bits, seven to a byte.
    Number,
    Double,
    Bytes,
    /// The kinds of its known fields, by number from 1; those passed over without regard to what they hold are `None`.
    Struct(&'static [Option<Kind>]),
    List(&'static Kind),
}

use Kind::{Bool, Byte, Bytes, Double, List, Number, Struct};

const FILE: Kind = Struct(&[
    Some(Number),
    Some(List(&SCHEMA_ELEMENT)),
    Some(Number),
    Some(List(&ROW_GROUP)),
    Some(List(&KEY_VALUE)),
    Some(Bytes),
    Some(List(&COLUMN_ORDER)),
]);
const SCHEMA_ELEMENT: Kind = Struct(&[
    Some(Number),
    Some(Number),
    Some(Number),
    Some(Bytes),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(LOGICAL_TYPE),
]);
const LOGICAL_TYPE: Kind = Struct(&[
    Some(EMPTY),
    Some(EMPTY),
    Some(EMPTY),
    Some(EMPTY),
    // Decimals.
    Some(Struct(&[Some(Number), Some(Number)])),
    Some(EMPTY),
    // Times and timestamps.
    Some(Struct(&[Some(Bool), Some(TIME_UNIT)])),
    Some(Struct(&[Some(Bool), Some(TIME_UNIT)])),
    None,
    // Integers.
    Some(Struct(&[Some(Byte), Some(Bool)])),
    Some(EMPTY),
    Some(EMPTY),
    Some(EMPTY),
    Some(EMPTY),
    Some(EMPTY),
    // Variants, geometries, geographies.
    Some(Struct(&[Some(Byte)])),
    Some(Struct(&[Some(Bytes)])),
    Some(Struct(&[Some(Bytes), Some(Number)])),
]);
const TIME_UNIT: Kind = Struct(&[Some(EMPTY), Some(EMPTY), Some(EMPTY)]);
const EMPTY: Kind = Struct(&[]);
const KEY_VALUE: Kind = Struct(&[Some(Bytes), Some(Bytes)]);
const COLUMN_ORDER: Kind = Struct(&[Some(EMPTY), Some(EMPTY)]);
const ROW_GROUP: Kind = Struct(&[
    Some(List(&COLUMN_CHUNK)),
    Some(Number),
    Some(Number),
    Some(List(&Struct(&[Some(Number), Some(Bool), Some(Bool)]))),
    Some(Number),
    Some(Number),
    Some(Number),
]);
const COLUMN_CHUNK: Kind = Struct(&[
    Some(Bytes),
    Some(Number),
    Some(COLUMN),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(Number),
    None,
    Some(Bytes),
]);
const COLUMN: Kind = Struct(&[
    Some(Number),
    Some(List(&Number)),
    Some(List(&Bytes)),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(List(&KEY_VALUE)),
    Some(Number),
    Some(Number),
    Some(Number),
    Some(STATISTICS),
    Some(List(&Struct(&[Some(Number), Some(Number), Some(Number)]))),
    Some(Number),
    Some(Number),
    Some(Struct(&[Some(Number), Some(List(&Number)), Some(List(&Number))])),
    // Of geometries: a box and types.
    Some(Struct(&[Some(Struct(&[Some(Double); 8])), Some(List(&Number))])),
]);
const STATISTICS: Kind = Struct(&[
    Some(Bytes),
    Some(Bytes),
    Some(Number),
    Some(Number),
    Some(Bytes),
    Some(Bytes),
    Some(Bool),
    Some(Bool),
    Some(Number),
]);

/// Length of the footer and the last mark of the file.
const TAIL: u64 = 8;

/// Refuses a file whose footer the library may not be given. What is no Parquet file is left to the library,
/// which says so.
pub(crate) fn check(storage: &Storage) -> Result<()> {
    let Some(tail_at) = storage.len().checked_sub(TAIL) else { return Ok(()) };
    let tail = storage.get_bytes(tail_at, 8)?;
    let (Some(length), b"PAR1") = (tail.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)), &tail[4..])
    else {
        return Ok(());
    };
    let Some(begin) = tail_at.checked_sub(length.into()) else { return Ok(()) };
    let bytes = storage.get_bytes(begin, length as usize)?;
    FILE.pass(STRUCT, &mut Thrift::new(&bytes))
        .ok_or_else(|| ParquetError::General("the footer is not one that the format allows".to_owned()))
}

impl Kind {
    /// Passes over a value of this kind that is said to be of type `found`.
    fn pass(self, found: u8, thrift: &mut Thrift<'_>) -> Option<()> {
        match (self, found) {
            (Bool, 1 | 2) | (Byte, 3) | (Number, 4..=6) | (Double, 7) | (Bytes, BINARY) => {
                thrift.skip(found, 0)
            }
            (Struct(known), STRUCT) => {
                let mut last = 0;
                while let Some((found, field)) = thrift.field(last)? {
                    last = field;
                    let place = usize::try_from(field).ok().and_then(|field| field.checked_sub(1));
                    match place.and_then(|place| known.get(place)?.as_ref()) {
                        Some(kind) => kind.pass(found, thrift)?,
                        None => thrift.skip(found, 0)?,
                    }
                }
                Some(())
            }
            (List(of), LIST) => {
                let (found, count) = thrift.list()?;
                // Each takes a byte or more, so that this ends with the footer.
                (0..count).try_for_each(|_| of.pass(found, thrift))
            }
            _ => None,
        }
    }
}
