//! Thrift's compact protocol, as far as Parquet's headers and footers need it.

/// A number of 32 bits.
pub(crate) const I32: u8 = 5;
/// Bytes, or text, after their length.
pub(crate) const BINARY: u8 = 8;
/// A list.
pub(crate) const LIST: u8 = 9;
/// A struct.
pub(crate) const STRUCT: u8 = 12;
/// No header is so deep.
const DEEPEST: u32 = 16;

/// Bytes in Thrift's compact protocol.
#[derive(Clone)]
pub(crate) struct Thrift<'a> {
    rest: &'a [u8],
}

impl Thrift<'_> {
    pub(crate) fn new(bytes: &[u8]) -> Thrift<'_> {
        Thrift { rest: bytes }
    }

    /// How many bytes have not been read.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn pass(&mut self, count: u64) -> Option<()> {
        self.rest = self.rest.get(usize::try_from(count).ok()?..)?;
        Some(())
    }

    /// Seven bits to a byte, the lowest first.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// 32 bits; the lowest bit of the number is the sign.
    pub(crate) fn integer(&mut self) -> Option<i64> {
        let number = self.number()?;
        let integer = (number >> 1).cast_signed() ^ -(number & 1).cast_signed();
        i32::try_from(integer).ok().map(i64::from)
    }

    /// Type and number of the next field of a struct, after the field `last`; nothing at its end.
    #[allow(clippy::option_option)]
    pub(crate) fn field(&mut self, last: i16) -> Option<Option<(u8, i16)>> {
        let byte = self.byte()?;
        match (i16::from(byte >> 4), byte & 0xf) {
            (_, 0) => Some(None),
            (0, kind) => Some(Some((kind, i16::try_from(self.integer()?).ok()?))),
            (step, kind) => Some(Some((kind, last.checked_add(step)?))),
        }
    }

    /// Type of the elements of a list and how many there are; a list of none may have the type 0.
    pub(crate) fn list(&mut self) -> Option<(u8, u64)> {
        let byte = self.byte()?;
        match byte >> 4 {
            15 => Some((byte & 0xf, self.number()?)),
            count => Some((byte & 0xf, count.into())),
        }
    }

    /// Passes over a value. Lists, sets and maps, of which a few bytes can claim any number of elements, are refused.
    pub(crate) fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        match kind {
            // A boolean is in its type.
            1 | 2 => Some(()),
            3 => self.pass(1),
            4..=6 => self.number().map(drop),
            7 => self.pass(8),
            BINARY => {
                let length = self.number()?;
                self.pass(length)
            }
            STRUCT if depth < DEEPEST => {
                let mut last = 0;
                while let Some((kind, field)) = self.field(last)? {
                    last = field;
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            _ => None,
        }
    }
}
