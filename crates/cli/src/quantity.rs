//! Quantities as people type them.

use dwell_policy::Nanos;

/// A duration, as [`Nanos`] parses it; the error quotes the text.
pub fn duration(text: &str) -> Result<Nanos, String> {
    text.parse().map_err(|error| format!("`{text}` {error}"))
}

/// A share of one CPU, at most all of it: `2%` or `0.02`.
pub fn share(text: &str) -> Result<f64, String> {
    match cpus(text) {
        Ok(cpus) if cpus <= 1.0 => Ok(cpus),
        Ok(_) => Err(format!("`{text}` is more than one CPU; write a share of one, such as 2% or 0.02")),
        Err(_) => Err(format!("`{text}` is not a share of a CPU; write it as 2% or 0.02")),
    }
}

/// A number of CPUs; may be more than one. `50%` and `0.5` are half a CPU.
pub fn cpus(text: &str) -> Result<f64, String> {
    let (number, scale) = match text.trim().strip_suffix('%') {
        Some(percent) => (percent.trim_end(), 100.0),
        None => (text.trim(), 1.0),
    };
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value / scale),
        _ => Err(format!("`{text}` is not a number of CPUs; write it as 4% or 1.5")),
    }
}

/// A rate per second: a number that is not negative.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err(format!("`{text}` is not a rate; write a number of events per second, such as 5000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_say_what_is_wrong_with_which_text() {
        assert_eq!(duration("1.5ms"), Ok(Nanos(1_500_000)));
        assert_eq!(duration("0.5"), Err("`0.5` is finer than a nanosecond".to_owned()));
    }

    #[test]
    fn shares_and_rates() {
        assert_eq!(share("2%"), Ok(0.02));
        assert_eq!(share("0.5"), Ok(0.5));
        assert_eq!(share("1"), Ok(1.0));
        assert_eq!(share("100 %"), Ok(1.0));
        assert_eq!((cpus("150%"), cpus("2")), (Ok(1.5), Ok(2.0)));
        for text in ["2", "101%", "inf"] {
            assert!(share(text).unwrap_err().contains("2% or 0.02"), "{text}");
        }
        assert_eq!(rate("5000"), Ok(5_000.0));
        for text in ["", "-1", "x", "NaN", "inf%"] {
            assert!(share(text).is_err() && rate(text).is_err(), "{text}");
        }
    }
}
