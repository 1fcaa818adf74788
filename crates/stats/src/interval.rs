//! An estimate between two limits.

use serde::{Deserialize, Deserializer, Serialize};

/// An estimate between two limits. A limit that is not known is infinite (`null` in JSON). Journals of
/// earlier versions have the limits under the names `low_95` and `high_95`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    #[serde(alias = "low_95", deserialize_with = "or_minus_infinity")]
    pub low: f64,
    #[serde(deserialize_with = "or_nan")]
    pub value: f64,
    /// Upper limit.
    #[serde(alias = "high_95", deserialize_with = "or_infinity")]
    pub high: f64,
}

fn or_minus_infinity<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or(f64::NEG_INFINITY))
}

fn or_nan<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or(f64::NAN))
}

fn or_infinity<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or(f64::INFINITY))
}

impl Interval {
    /// An estimate of unknown accuracy.
    pub const fn unknown(value: f64) -> Interval {
        Interval { low: f64::NEG_INFINITY, value, high: f64::INFINITY }
    }

    /// Lower and upper limit, where both are known.
    pub fn limits(&self) -> Option<[f64; 2]> {
        let limits = [self.low, self.high];
        limits.iter().all(|limit| limit.is_finite()).then_some(limits)
    }

    /// Whether `value` is within the limits.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The interval of an increasing function of the estimate.
    #[must_use]
    pub fn map(&self, increasing: impl Fn(f64) -> f64) -> Interval {
        Interval { low: increasing(self.low), value: increasing(self.value), high: increasing(self.high) }
    }

    /// Half the width of the interval of a ratio, as a share of the ratio: 0.02 is ±2 %. Infinite where the lower limit
    /// is not above 0.
    pub fn ratio_half_width(&self) -> f64 {
        if self.low > 0.0 { (self.high / self.low).sqrt() - 1.0 } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_are_not_known_are_null_and_read_as_they_were() {
        let half = Interval { low: f64::NEG_INFINITY, value: 1.5, high: 2.0 };
        let text = serde_json::to_string(&half).unwrap();
        assert_eq!(text, r#"{"low":null,"value":1.5,"high":2.0}"#);
        assert_eq!(serde_json::from_str::<Interval>(&text).unwrap(), half);
    }

    #[test]
    fn half_widths_of_ratios() {
        let ratio = Interval { low: 0.5, value: 1.0, high: 2.0 };
        assert!((ratio.ratio_half_width() - 1.0).abs() < 1e-12);
        assert_eq!(Interval::unknown(0.0).map(f64::exp).ratio_half_width(), f64::INFINITY);
        assert_eq!(Interval { low: 1.0, value: 1.0, high: 1.0 }.ratio_half_width(), 0.0);
    }
}
