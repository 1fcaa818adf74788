//! Quantities as people type them.

use dwell_policy::Nanos;

/// A duration: a number and `ns`, `us`, `ms` or `s`; without a unit, nanoseconds. Fractions are taken if they come out
/// as whole nanoseconds.
pub(crate) fn duration(text: &str) -> Result<Nanos, String> {
    let wrong = || format!("`{text}` is no duration; write a number with ns, us, ms or s, such as 200us");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let digits = match unit.trim() {
        "" | "ns" => 0,
        "us" | "µs" => 3,
        "ms" => 6,
        "s" => 9,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(wrong());
    }
    let significant = fraction.trim_end_matches('0');
    if significant.len() > digits {
        return Err(format!("`{text}` is finer than a nanosecond"));
    }
    let too_long = || format!("`{text}` is longer than {} ns", u64::MAX);
    let scale = 10u64.pow(u32::try_from(digits).unwrap_or(0));
    let whole: u64 = whole.parse().map_err(|_| too_long())?;
    let fraction: u64 = format!("{significant:0<digits$}").parse().unwrap_or(0);
    whole.checked_mul(scale).and_then(|ns| ns.checked_add(fraction)).map(Nanos).ok_or_else(too_long)
}

/// A share of one CPU: `2%` or `0.02`.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value / scale),
        _ => Err(format!("`{text}` is no share of a CPU; write it as 2% or 0.02")),
    }
}

/// A rate per second: a number that is not negative.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(format!("`{text}` is no rate; write a number of events per second, such as 5000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_take_every_unit() {
        for (text, ns) in [
            ("0", 0),
            ("200", 200),
            ("200ns", 200),
            ("200us", 200_000),
            ("200 us", 200_000),
            ("1.5ms", 1_500_000),
            ("2.400ms", 2_400_000),
            ("3s", 3_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(duration(text), Ok(Nanos(ns)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_duration() {
        for text in
            ["", "us", "-5us", "5 minutes", "1e3", "0.5", "0.0001us", "1.", ".5us", "20000000000s", "1.5.2us"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shares_and_rates() {
        assert_eq!(share("2%"), Ok(0.02));
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(rate("5000"), Ok(5_000.0));
        for text in ["", "-1", "x", "NaN", "inf%"] {
            assert!(share(text).is_err() && rate(text).is_err(), "{text}");
        }
    }
}
