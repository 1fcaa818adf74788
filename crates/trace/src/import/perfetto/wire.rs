//! The fields of a protobuf message, of whatever schema: an event that this program does not know is counted, where a
//! generated type would pass over it.

use prost::encoding::{WireType, decode_key, decode_varint};

/// A value as it is written: a number, or a text, list or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The bytes are no protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message in it is damaged")]
pub(super) struct Damaged;

impl<'a> Value<'a> {
    pub(super) fn bytes(self) -> Option<&'a [u8]> {
        if let Value::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    pub(super) fn number(self) -> Option<u64> {
        if let Value::Number(number) = self { Some(number) } else { None }
    }
}

/// Number and value of each field, in the order of the message, up to the first that is damaged.
pub(super) fn fields(mut rest: &[u8]) -> impl Iterator<Item = Result<(u32, Value<'_>), Damaged>> {
    std::iter::from_fn(move || (!rest.is_empty()).then(|| field(&mut rest).inspect_err(|_| rest = &[])))
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<(u32, Value<'a>), Damaged> {
    let (number, wire) = decode_key(rest).map_err(|_| Damaged)?;
    let value = match wire {
        WireType::Varint => Value::Number(varint(rest)?),
        WireType::SixtyFourBit => Value::Number(little_endian(take(rest, 8)?)),
        WireType::ThirtyTwoBit => Value::Number(little_endian(take(rest, 4)?)),
        WireType::LengthDelimited => {
            let length = varint(rest)?;
            Value::Bytes(take(rest, length)?)
        }
        WireType::StartGroup | WireType::EndGroup => return Err(Damaged),
    };
    Ok((number, value))
}

fn varint(rest: &mut &[u8]) -> Result<u64, Damaged> {
    decode_varint(rest).map_err(|_| Damaged)
}

fn take<'a>(rest: &mut &'a [u8], length: u64) -> Result<&'a [u8], Damaged> {
    let length = usize::try_from(length).map_err(|_| Damaged)?;
    let (taken, after) = rest.split_at_checked(length).ok_or(Damaged)?;
    *rest = after;
    Ok(taken)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Appends the numbers of a list, packed or one by one.
pub(super) fn numbers(value: Value<'_>, into: &mut Vec<u64>) -> Result<(), Damaged> {
    match value {
        Value::Number(number) => into.push(number),
        Value::Bytes(mut rest) => {
            while !rest.is_empty() {
                into.push(varint(&mut rest)?);
            }
        }
    }
    Ok(())
}

/// Whether a file begins like a trace of Perfetto, which has no magic number: with a packet, as far as it is seen.
pub(in crate::import) fn begins_with_packet(start: &[u8]) -> bool {
    let mut rest = start;
    let Ok((1, WireType::LengthDelimited)) = decode_key(&mut rest) else { return false };
    let Ok(length) = varint(&mut rest) else { return false };
    let whole = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    let is_text = |byte: &u8| *byte >= b' ' || byte.is_ascii_whitespace();
    let mut known = 0;
    for field in fields(whole.unwrap_or(rest)) {
        match field {
            Ok((1..=1000, _)) => known += 1,
            // The last field of what is seen may be cut off.
            Err(Damaged) if whole.is_none() => {}
            _ => return false,
        }
    }
    known > 0 && !start.iter().all(is_text)
}
