use core::fmt;
#[cfg(feature = "params")]
use core::str::FromStr;

/// A span of time in nanoseconds: the unit in which kernel counters and trace fields arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Nanos = Nanos(0);
    /// The longest span: the window of a policy that always polls.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// A span of whole microseconds; saturates at [`Nanos::MAX`].
    pub const fn from_micros(us: u64) -> Nanos {
        Nanos(us.saturating_mul(1_000))
    }

    /// `self - other`, or zero where `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Nanos {
    /// `20000 ns`; with `#` as short as it can be written without loss, `20us`, which parses as the same span.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return write!(f, "{} ns", self.0);
        }
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
        let whole = units.into_iter().find(|(scale, _)| self.0 != 0 && self.0 % *scale == 0);
        let (scale, unit) = whole.unwrap_or((1, "ns"));
        if self.0 == 0 { f.write_str("0") } else { write!(f, "{}{unit}", self.0 / scale) }
    }
}

/// Why a text is not a span of time. The message goes on from the text itself: "`5 minutes` is not a duration; …".
#[cfg(feature = "params")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParseNanosError {
    /// It is not a number and a unit.
    NotADuration,
    /// Its last digits are below one nanosecond.
    TooFine,
    /// It is beyond [`Nanos::MAX`].
    TooLong,
}

#[cfg(feature = "params")]
impl fmt::Display for ParseNanosError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseNanosError::NotADuration => {
                f.write_str("is not a duration; write a number with ns, us, ms or s, such as 200us")
            }
            ParseNanosError::TooFine => f.write_str("is finer than a nanosecond"),
            ParseNanosError::TooLong => write!(f, "is longer than {} ns", u64::MAX),
        }
    }
}

#[cfg(feature = "params")]
impl core::error::Error for ParseNanosError {}

#[cfg(feature = "params")]
impl FromStr for Nanos {
    type Err = ParseNanosError;

    /// A number and `ns`, `us`, `ms` or `s`; without a unit, nanoseconds. Fractions are taken if they come out as whole
    /// nanoseconds.
    ///
    /// ```
    /// use dwell_policy::Nanos;
    /// assert_eq!("1.5us".parse(), Ok(Nanos(1_500)));
    /// assert!("0.5ns".parse::<Nanos>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Nanos, ParseNanosError> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let digits = match unit.trim() {
            "" | "ns" => 0,
            "us" | "µs" => 3,
            "ms" => 6,
            "s" => 9,
            _ => return Err(ParseNanosError::NotADuration),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(ParseNanosError::NotADuration);
        }
        let significant = fraction.trim_end_matches('0');
        if significant.len() > digits {
            return Err(ParseNanosError::TooFine);
        }
        let scale = (0..digits).fold(1u64, |scale, _| scale * 10);
        let whole: u64 = whole.parse().map_err(|_| ParseNanosError::TooLong)?;
        let (fraction, _) = significant
            .bytes()
            .fold((0, scale / 10), |(sum, place), digit| (sum + u64::from(digit - b'0') * place, place / 10));
        let ns = whole.checked_mul(scale).and_then(|ns| ns.checked_add(fraction));
        ns.map(Nanos).ok_or(ParseNanosError::TooLong)
    }
}

#[cfg(all(test, feature = "params"))]
mod tests {
    use super::*;

    #[test]
    fn parses_every_unit() {
        for (text, ns) in [
            ("0", 0),
            ("200", 200),
            ("200ns", 200),
            ("200us", 200_000),
            ("200 us", 200_000),
            ("1.5ms", 1_500_000),
            ("2.400ms", 2_400_000),
            ("0.000000001s", 1),
            ("3s", 3_000_000_000),
            ("18446744073.709551615s", u64::MAX),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Nanos(ns)), "{text}");
        }
    }

    #[test]
    fn shortest_form_is_read_back() {
        extern crate std;
        use std::string::ToString;
        let shortest = |ns: u64| std::format!("{:#}", Nanos(ns));
        assert_eq!(
            [0, 1, 1_500, 20_000, 1_000_000, 2_000_000_000].map(shortest),
            ["0", "1ns", "1500ns", "20us", "1ms", "2s"]
        );
        assert_eq!(shortest(u64::MAX).parse(), Ok(Nanos::MAX));
        assert_eq!(Nanos(20_000).to_string(), "20000 ns");
    }

    #[test]
    fn refuses_what_is_no_duration() {
        for text in ["", "us", "-5us", "5 minutes", "1e3", "1.", ".5us", "1.5.2us", "²us"] {
            assert_eq!(text.parse::<Nanos>(), Err(ParseNanosError::NotADuration), "{text}");
        }
        for text in ["0.5", "0.0001us"] {
            assert_eq!(text.parse::<Nanos>(), Err(ParseNanosError::TooFine), "{text}");
        }
        for text in ["20000000000s", "18446744073709551616", "18446744073.709551616s"] {
            assert_eq!(text.parse::<Nanos>(), Err(ParseNanosError::TooLong), "{text}");
        }
    }
}
