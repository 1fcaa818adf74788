//! The properties of a QEMU `iothread` object that steer its polling.

use super::Revision;
use core::fmt;

/// Default of `poll-max-ns` (ns) on every system but Windows, where it is 0. QEMU, `iothread` object.
pub const DEFAULT_POLL_MAX_NS: i64 = 32_768;
/// Default of `poll-grow` (a factor) since 11.1, and what writing 0 means. Before 11.1 the default 0 is kept as 0
/// and acts as 2.
pub const DEFAULT_POLL_GROW: i64 = 2;
/// Default of `poll-shrink` (a divisor) since 11.1, and what writing 0 means. Before 11.1 the default 0 is kept
/// as 0 and drops the polling time to zero.
pub const DEFAULT_POLL_SHRINK: i64 = 2;
/// Default of `poll-weight` (a shift) since 11.1, and what writing 0 means: a new block time counts for 1/8.
pub const DEFAULT_POLL_WEIGHT: i64 = 3;

/// What steers the polling of one context.
///
/// Every combination of values is calculated with as QEMU would; those that QEMU lets a user set are the ranges
/// of [`Property`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Params {
    /// No polling time exceeds this (ns); 0 switches polling off. 0 to `i64::MAX`.
    pub poll_max_ns: i64,
    /// What the polling time is multiplied with when it grows. 0 to `i64::MAX`; 0 acts as 2.
    pub poll_grow: i64,
    /// What the polling time is divided by when it shrinks. 0 to `i64::MAX`; 0 acts as "to zero" in the classic
    /// revisions and as 2 in the weighted one.
    pub poll_shrink: i64,
    /// A new block time counts for 1/2^weight in a handler's smoothed one. 0 to 63; 0 acts as 3. Weighted revision
    /// only; the others do not look at it.
    pub poll_weight: i64,
}

impl Params {
    /// What a new `iothread` object of this revision has, on every system but Windows.
    pub const fn default_for(revision: Revision) -> Params {
        Params { poll_max_ns: DEFAULT_POLL_MAX_NS, poll_grow: 0, poll_shrink: 0, poll_weight: 0 }
            .stored(revision)
    }

    /// What QEMU keeps when it is given these values. The weighted revision has no 0 but in `poll_max_ns`: there it
    /// keeps the default. The others keep what they get. The same holds for the object's properties and for the
    /// context that they are handed on to.
    #[must_use]
    pub const fn stored(self, revision: Revision) -> Params {
        const fn unless_zero(value: i64, default: i64) -> i64 {
            if value == 0 { default } else { value }
        }
        match revision {
            Revision::Global | Revision::PerHandler => self,
            Revision::Weighted => Params {
                poll_max_ns: self.poll_max_ns,
                poll_grow: unless_zero(self.poll_grow, DEFAULT_POLL_GROW),
                poll_shrink: unless_zero(self.poll_shrink, DEFAULT_POLL_SHRINK),
                poll_weight: unless_zero(self.poll_weight, DEFAULT_POLL_WEIGHT),
            },
        }
    }

    /// The value of a property, as `qom-get` would show it.
    pub const fn get(&self, property: Property) -> i64 {
        match property {
            Property::PollMaxNs => self.poll_max_ns,
            Property::PollGrow => self.poll_grow,
            Property::PollShrink => self.poll_shrink,
            Property::PollWeight => self.poll_weight,
        }
    }

    /// Writes a property as `qom-set` does; after an error the old value stays.
    pub const fn set(
        &mut self,
        revision: Revision,
        property: Property,
        value: i64,
    ) -> Result<(), SetPropertyError> {
        if !property.exists_in(revision) {
            return Err(SetPropertyError::NotFound(property));
        }
        if value < 0 || value > property.max() {
            return Err(SetPropertyError::OutOfRange(property));
        }
        match property {
            Property::PollMaxNs => self.poll_max_ns = value,
            Property::PollGrow => self.poll_grow = value,
            Property::PollShrink => self.poll_shrink = value,
            Property::PollWeight => self.poll_weight = value,
        }
        *self = self.stored(revision);
        Ok(())
    }

    /// Writes a property as `-object iothread,property=text` does; after an error the old value stays.
    pub fn set_option(
        &mut self,
        revision: Revision,
        property: Property,
        text: &str,
    ) -> Result<(), SetPropertyError> {
        if !property.exists_in(revision) {
            return Err(SetPropertyError::InvalidParameter(property));
        }
        let value = parse_number(text).ok_or(SetPropertyError::NotAnInteger(property))?;
        self.set(revision, property, value)
    }
}

/// Reads a number as QEMU's command line does: decimal, hexadecimal after `0x`, octal after `0`, with or without a
/// sign. `None` for anything else: a suffix (`32k`), blanks, what does not fit in 64 bits.
pub fn parse_number(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        (16, hex)
    } else if digits.len() > 1 && digits.starts_with('0') {
        (8, &digits[1..])
    } else {
        (10, digits)
    };
    if digits.starts_with('+') {
        return None; // the standard library would take a second sign
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// A property of the `iothread` object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// `poll-max-ns`: [`Params::poll_max_ns`].
    PollMaxNs,
    /// `poll-grow`: [`Params::poll_grow`].
    PollGrow,
    /// `poll-shrink`: [`Params::poll_shrink`].
    PollShrink,
    /// `poll-weight`: [`Params::poll_weight`]; since 11.1.
    PollWeight,
}

impl Property {
    /// Every property, in the order in which `query-iothreads` lists them.
    pub const ALL: [Property; 4] =
        [Property::PollMaxNs, Property::PollGrow, Property::PollShrink, Property::PollWeight];

    /// QEMU's name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Property::PollMaxNs => "poll-max-ns",
            Property::PollGrow => "poll-grow",
            Property::PollShrink => "poll-shrink",
            Property::PollWeight => "poll-weight",
        }
    }

    /// The property of this name, if it is one that steers polling.
    pub fn from_name(name: &str) -> Option<Property> {
        Property::ALL.into_iter().find(|property| property.name() == name)
    }

    /// The largest value that QEMU accepts; the smallest is 0.
    pub const fn max(self) -> i64 {
        match self {
            Property::PollWeight => 63,
            Property::PollMaxNs | Property::PollGrow | Property::PollShrink => i64::MAX,
        }
    }

    /// Whether the releases of this revision have it.
    pub const fn exists_in(self, revision: Revision) -> bool {
        match self {
            Property::PollWeight => matches!(revision, Revision::Weighted),
            Property::PollMaxNs | Property::PollGrow | Property::PollShrink => true,
        }
    }
}

/// Why QEMU refuses to set a property. The texts are QEMU's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetPropertyError {
    /// The value is outside the property's range.
    OutOfRange(Property),
    /// `qom-set` of a property that this release does not have.
    NotFound(Property),
    /// `-object` with a property that this release does not have.
    InvalidParameter(Property),
    /// `-object` with something that [`parse_number`] does not read.
    NotAnInteger(Property),
}

impl fmt::Display for SetPropertyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            SetPropertyError::OutOfRange(p) => {
                write!(f, "{} value must be in range [0, {}]", p.name(), p.max())
            }
            SetPropertyError::NotFound(p) => write!(f, "Property 'iothread.{}' not found", p.name()),
            SetPropertyError::InvalidParameter(p) => write!(f, "Invalid parameter '{}'", p.name()),
            SetPropertyError::NotAnInteger(p) => {
                write!(f, "Parameter '{}' expects an int64 value", p.name())
            }
        }
    }
}

impl core::error::Error for SetPropertyError {}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn defaults_are_what_query_iothreads_reports() {
        let values = |revision| Property::ALL.map(|p| Params::default_for(revision).get(p));
        assert_eq!(values(Revision::Global), [32_768, 0, 0, 0]);
        assert_eq!(values(Revision::PerHandler), [32_768, 0, 0, 0]);
        assert_eq!(values(Revision::Weighted), [32_768, 2, 2, 3]);
    }

    #[test]
    fn writing_zero_stores_the_default_in_the_weighted_era_only() {
        for revision in Revision::ALL {
            let mut params = Params { poll_max_ns: 9, poll_grow: 9, poll_shrink: 9, poll_weight: 9 };
            for property in Property::ALL.into_iter().filter(|p| p.exists_in(revision)) {
                params.set(revision, property, 0).unwrap();
            }
            let stored = Property::ALL.map(|p| params.get(p));
            let expected = if revision == Revision::Weighted { [0, 2, 2, 3] } else { [0, 0, 0, 9] };
            assert_eq!(stored, expected, "{revision:?}");
        }
    }

    #[test]
    fn refusals_say_what_qemu_says_and_keep_the_old_value() {
        use Property::*;
        let mut params = Params::default_for(Revision::Weighted);
        let before = params;
        let mut refusal =
            |revision, property, value| params.set(revision, property, value).unwrap_err().to_string();
        assert_eq!(
            refusal(Revision::Global, PollGrow, -1),
            "poll-grow value must be in range [0, 9223372036854775807]"
        );
        assert_eq!(refusal(Revision::Weighted, PollWeight, 64), "poll-weight value must be in range [0, 63]");
        assert_eq!(refusal(Revision::PerHandler, PollWeight, 3), "Property 'iothread.poll-weight' not found");
        let mut refusal =
            |revision, property, text| params.set_option(revision, property, text).unwrap_err().to_string();
        assert_eq!(refusal(Revision::Global, PollWeight, "3"), "Invalid parameter 'poll-weight'");
        assert_eq!(
            refusal(Revision::Global, PollMaxNs, "32k"),
            "Parameter 'poll-max-ns' expects an int64 value"
        );
        assert_eq!(params, before);
        params.set_option(Revision::Weighted, PollWeight, "077").unwrap();
        assert_eq!(params.poll_weight, 63);
    }

    #[test]
    fn numbers_are_read_as_the_command_line_reads_them() {
        for (text, value) in [
            ("0", 0),
            ("32768", 32_768),
            ("010", 8),
            ("00", 0),
            ("0x10", 16),
            ("0Xff", 255),
            ("-1", -1),
            ("+5", 5),
            ("-0x10", -16),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(parse_number(text), Some(value), "{text:?}");
        }
        for text in [
            "",
            "-",
            "+",
            "0x",
            "08",
            "0x+1",
            "0+1",
            "++1",
            "+-1",
            "32k",
            "1 ",
            "1.5",
            "9223372036854775808",
            "é",
        ] {
            assert_eq!(parse_number(text), None, "{text:?}");
        }
    }
}
