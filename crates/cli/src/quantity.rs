//! Quantities as people type them.

use dwell_policy::param::known_version;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};

/// A duration with its unit, or 0; the error quotes the text.
pub fn duration(text: &str) -> Result<Nanos, String> {
    let time: Nanos = text.parse().map_err(|error| format!("`{text}` {error}"))?;
    let bare = text.trim().ends_with(|c: char| c.is_ascii_digit());
    if bare && time != Nanos::ZERO {
        let number = text.trim();
        return Err(format!("`{number}` has no unit; write {number}s, {number}ms, {number}us or {number}ns"));
    }
    Ok(time)
}

/// The longest that a halt and its wakeup can take; more is a unit that was mistaken.
const LONGEST_HALT: Nanos = Nanos(10_000_000);

/// The cost or the latency of a halt: a duration of at most 10 ms.
pub fn halt(text: &str) -> Result<Nanos, String> {
    match duration(text)? {
        time if time > LONGEST_HALT => Err(format!(
            "`{text}` is more than any halt takes ({LONGEST_HALT:#}); is it a smaller unit, as in 20us?"
        )),
        time => Ok(time),
    }
}

/// The wakeup latency, for commands without the other options of a model.
#[derive(Debug, clap::Args)]
pub struct LatencyArg {
    /// Latency that one halt adds to its wakeup, such as 8us
    ///
    /// After a halt the kernel's rule learns from idle time and latency together. Where idle times include the latency,
    /// this one is taken out of them. From 0. [default: the wakeup latencies of each recording; none where it has
    /// none]
    #[arg(long, alias = "wake-latency", value_name = "TIME", value_parser = halt)]
    pub wakeup_latency: Option<Nanos>,
}

/// A release whose rule of this layer is known.
pub fn release(layer: Layer, text: &str) -> Result<Version, String> {
    let unknown = |version| known_version(layer, version).map_err(|unknown| unknown.to_string());
    match Version::parse(text) {
        Some(version) => unknown(version).map(|()| version),
        // The error for a malformed version names the known ones, too.
        None => Err(unknown(Version::new(0, 0)).err().unwrap_or_default()),
    }
}

/// The shortest time in which there is anything to record.
const SHORTEST_RECORDING: Nanos = Nanos(1_000_000);

/// How long to record: at least 1 ms.
pub fn recording_time(text: &str) -> Result<Nanos, String> {
    match duration(text)? {
        time if time < SHORTEST_RECORDING => Err(format!(
            "`{text}` is too short to record anything; it takes at least {SHORTEST_RECORDING:#}, as in 10s"
        )),
        time => Ok(time),
    }
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
        assert_eq!(duration("0"), Ok(Nanos::ZERO));
    }

    /// `record --duration 10` recorded for 10 ns over the recording that was there.
    #[test]
    fn a_number_without_a_unit_is_no_duration() {
        for text in ["10", "20", "1.0", " 7 "] {
            let told = duration(text).unwrap_err();
            let remedy = format!("write {}s, ", text.trim());
            assert!(told.contains("has no unit") && told.contains(&remedy), "{told}");
        }
    }

    #[test]
    fn times_that_nothing_takes_are_questioned() {
        assert_eq!(
            (halt("20us"), halt("10ms"), halt("0")),
            (Ok(Nanos(20_000)), Ok(Nanos(10_000_000)), Ok(Nanos::ZERO))
        );
        assert!(
            halt("20s")
                .unwrap_err()
                .contains("`20s` is more than any halt takes (10ms); is it a smaller unit")
        );
        assert!(halt("20").unwrap_err().contains("no unit"));
        assert_eq!(recording_time("1ms"), Ok(Nanos(1_000_000)));
        assert!(recording_time("10ns").unwrap_err().contains("at least 1ms, as in 10s"));
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
