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
//!
//! The library reads the schema by recursion without a limit, and takes memory for as many children as a node
//! claims. So its depth and its nodes have bounds here.

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
    /// The kinds of its known fields, by number from 1.
    Struct(&'static [Kind]),
    List(&'static Kind),
    /// The list of [`SCHEMA_ELEMENT`]s.
    Schema,
    /// Passed over without regard to what it holds.
    Any,
}

use Kind::{Any, Bool, Byte, Bytes, Double, List, Number, Schema, Struct};

const FILE: Kind =
    Struct(&[Number, Schema, Number, List(&ROW_GROUP), List(&KEY_VALUE), Bytes, List(&COLUMN_ORDER)]);
/// The place of the number of children in [`SCHEMA_ELEMENT`], from 1.
const CHILDREN: i16 = 5;
const SCHEMA_ELEMENT: Kind =
    Struct(&[Number, Number, Number, Bytes, Number, Number, Number, Number, Number, LOGICAL_TYPE]);
const LOGICAL_TYPE: Kind = Struct(&[
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    // Decimals.
    Struct(&[Number, Number]),
    EMPTY,
    // Times and timestamps.
    Struct(&[Bool, TIME_UNIT]),
    Struct(&[Bool, TIME_UNIT]),
    Any,
    // Integers.
    Struct(&[Byte, Bool]),
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    EMPTY,
    // Variants, geometries, geographies.
    Struct(&[Byte]),
    Struct(&[Bytes]),
    Struct(&[Bytes, Number]),
]);
const TIME_UNIT: Kind = Struct(&[EMPTY, EMPTY, EMPTY]);
const EMPTY: Kind = Struct(&[]);
const KEY_VALUE: Kind = Struct(&[Bytes, Bytes]);
const COLUMN_ORDER: Kind = Struct(&[EMPTY, EMPTY]);
const ROW_GROUP: Kind = Struct(&[
    List(&COLUMN_CHUNK),
    Number,
    Number,
    List(&Struct(&[Number, Bool, Bool])),
    Number,
    Number,
    Number,
]);
const COLUMN_CHUNK: Kind = Struct(&[Bytes, Number, COLUMN, Number, Number, Number, Number, Any, Bytes]);
const COLUMN: Kind = Struct(&[
    Number,
    List(&Number),
    List(&Bytes),
    Number,
    Number,
    Number,
    Number,
    List(&KEY_VALUE),
    Number,
    Number,
    Number,
    STATISTICS,
    List(&Struct(&[Number, Number, Number])),
    Number,
    Number,
    Struct(&[Number, List(&Number), List(&Number)]),
    // Of geometries: a box and types.
    Struct(&[Struct(&[Double; 8]), List(&Number)]),
]);
const STATISTICS: Kind = Struct(&[Bytes, Bytes, Number, Number, Bytes, Bytes, Bool, Bool, Number]);

/// Nodes of a schema that are read at most: the library takes some hundred bytes for each.
const MOST_NODES: u64 = 4096;
/// Levels below the root of a schema that are read at most; a list of structs has three.
const MOST_LEVELS: usize = 8;

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
}

fn malformed() -> ParquetError {
    refused("is not one that the format allows")
}

fn refused(what: &str) -> ParquetError {
    ParquetError::General(format!("the footer {what}"))
}

/// Passes over a schema: its nodes in the order of the tree, each with the number of its children.
fn pass_schema(thrift: &mut Thrift<'_>) -> Result<()> {
    let (found, nodes) = thrift.list().ok_or_else(malformed)?;
    if nodes > MOST_NODES {
        let what = format!("has a schema of {nodes} nodes, and at most {MOST_NODES} are read");
        return Err(refused(&what));
    }
    // How many nodes of each level are still to come.
    let mut to_come = vec![1];
    for left in (0..nodes).rev() {
        let element = thrift.clone();
        SCHEMA_ELEMENT.pass(found, thrift)?;
        let children = children(element).ok_or_else(malformed)?;
        to_come.truncate(to_come.iter().rposition(|&nodes| nodes > 0).map_or(0, |last| last + 1));
        *to_come.last_mut().ok_or_else(malformed)? -= 1;
        if children > left {
            let what = format!("has a node of {children} children in its schema, and {left} nodes follow");
            return Err(refused(&what));
        }
        to_come.push(children);
        if children > 0 && to_come.len() > MOST_LEVELS + 1 {
            return Err(refused(&format!("has a schema of more than {MOST_LEVELS} levels")));
        }
    }
    Ok(())
}

/// How many children this node of a schema has: what its last field of that number says, as the library reads it.
fn children(mut element: Thrift<'_>) -> Option<u64> {
    let (mut last, mut children) = (0, 0);
    while let Some((found, field)) = element.field(last)? {
        last = field;
        if field == CHILDREN {
            children = u64::try_from(element.integer()?).ok()?;
        } else {
            element.skip(found, 0)?;
        }
    }
    Some(children)
}

impl Kind {
    /// Passes over a value of this kind that is said to be of type `found`.
    fn pass(self, found: u8, thrift: &mut Thrift<'_>) -> Result<()> {
        match (self, found) {
            (Bool, 1 | 2) | (Byte, 3) | (Number, 4..=6) | (Double, 7) | (Bytes, BINARY) | (Any, _) => {
                thrift.skip(found, 0).ok_or_else(malformed)
            }
            (Struct(known), STRUCT) => {
                let mut last = 0;
                while let Some((found, field)) = thrift.field(last).ok_or_else(malformed)? {
                    last = field;
                    let place = usize::try_from(field).ok().and_then(|field| field.checked_sub(1));
                    place.and_then(|place| known.get(place)).unwrap_or(&Any).pass(found, thrift)?;
                }
                Ok(())
            }
            (List(of), LIST) => {
                let (found, count) = thrift.list().ok_or_else(malformed)?;
                // Each takes a byte or more, so that this ends with the footer.
                (0..count).try_for_each(|_| of.pass(found, thrift))
            }
            (Schema, LIST) => pass_schema(thrift),
            _ => Err(malformed()),
        }
    }
}
