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
    let is_text = |byte: &u8| *byte >= b' ' || byte.is_ascii_whitespace();
    let mut rest = start;
    let (Ok((1, WireType::LengthDelimited)), Ok(length)) = (decode_key(&mut rest), varint(&mut rest)) else {
        return false;
    };
    // What is not seen is taken to be as it should.
    let unseen = length.saturating_sub(rest.len() as u64);
    let seen = usize::try_from(length - unseen).unwrap_or(usize::MAX);
    let mut packet = rest.get(..seen).unwrap_or(rest);
    let mut known = 0;
    while !packet.is_empty() {
        let before = packet;
        match field(&mut packet) {
            Ok((1..=1000, _)) => known += 1,
            _ if unseen == 0 => return false,
            _ => return !start.iter().all(is_text) && (known > 0 || begins_long_field(before, length)),
        }
    }
    known > 0 && !start.iter().all(is_text)
}

/// Whether a field begins here that is longer than what is seen, and not longer than the packet.
fn begins_long_field(mut rest: &[u8], packet: u64) -> bool {
    let key = decode_key(&mut rest);
    matches!(key, Ok((1..=1000, WireType::LengthDelimited)))
        && varint(&mut rest).is_ok_and(|length| length < packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_told_from_a_text() {
        // A number; a text whose end is not seen, in a packet of 300 bytes; the same of a length that is not in it.
        for (start, is) in [
            (&b"\x0a\x02\x50\x03"[..], true),
            (b"\x0a\xac\x02\x8a\x02\xa0\x02abc", true),
            (b"\x0a\xac\x02\x8a\x02\xa0\x7fabc", false),
            (b"\x0a\x02\x50\x03\x0a\x01", true),
            (b"\n\nAnalyze events for all VMs, all VCPUs:\n", false),
            (b"\n# tracer: nop\n", false),
            (b"\x0a\x02\x53\x03", false),
            (b"PERFILE2\0\0", false),
            (b"", false),
        ] {
            assert_eq!(begins_with_packet(start), is, "{start:?}");
        }
    }

    #[test]
    fn fields_end_at_the_first_that_is_damaged() {
        let all = |bytes| fields(bytes).collect::<Vec<_>>();
        let number = Ok((1, Value::Number(300)));
        assert_eq!(all(b"\x08\xac\x02\x12\x02hi"), [number, Ok((2, Value::Bytes(b"hi")))]);
        assert_eq!(all(b"\x0d\x2c\x01\0\0"), [number]);
        assert_eq!(all(b"\x09\x2c\x01\0\0\0\0\0\0"), [number]);
        assert_eq!(all(b"\x08\xac\x02\x12\x03hi"), [number, Err(Damaged)]);
        assert_eq!(all(b"\x0b\x08\x01"), [Err(Damaged)]);
        let mut list = vec![];
        numbers(Value::Bytes(b"\x01\xac\x02"), &mut list).unwrap();
        numbers(Value::Number(7), &mut list).unwrap();
        assert_eq!(list, [1, 300, 7]);
    }
}
