//! Predictions beside what was measured: printed by the commands that have both, and read again for the page.

use dwell_stats::Interval;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The predictions of one command, and what it measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub source: Cow<'static, str>,
    /// Its verdict, where it has one.
    pub verdict: Option<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub subject: String,
    /// Name, with its unit.
    pub figure: Cow<'static, str>,
    pub predicted: f64,
    pub measured: f64,
    /// Predicted / measured - 1.
    pub error: Interval,
}

/// Of a command's JSON output, what is read here.
#[derive(Deserialize)]
struct Output {
    predicted_and_measured: Measured,
}

/// Reads the field `predicted_and_measured` of a command's JSON output.
///
/// # Errors
/// Text that is not JSON or has no such field, with the position where that is known.
pub fn parse(text: &str) -> Result<Measured, serde_json::Error> {
    serde_json::from_str(text).map(|output: Output| output.predicted_and_measured)
}

/// The error of a prediction; the limits of the measurement swap places. Those that a ratio does not have are infinite.
pub fn error(predicted: f64, measured: Interval) -> Interval {
    let by = |measured: f64| (measured > 0.0 && measured.is_finite()).then(|| predicted / measured - 1.0);
    Interval {
        low: by(measured.high).unwrap_or(f64::NEG_INFINITY),
        value: by(measured.value).unwrap_or(f64::NAN),
        high: by(measured.low).unwrap_or(f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read() {
        let measured = Interval { low: 0.25, value: 0.3, high: 0.4 };
        let row = Row {
            subject: "io0, B".to_owned(),
            figure: "sleeps_per_request".into(),
            predicted: 0.3,
            measured: 0.3,
            error: error(0.3, measured),
        };
        let of = Measured { source: "dwell iothread bench".into(), verdict: None, rows: vec![row] };
        let text = serde_json::json!({ "qemu": "11.1", "predicted_and_measured": of }).to_string();
        assert_eq!(parse(&text).unwrap(), of);
        let error = &of.rows[0].error;
        assert!((error.low + 0.25).abs() < 1e-9 && error.value == 0.0, "{error:?}");
        assert!((error.high - 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_limit_that_is_missing_is_infinite() {
        let of = error(100.0, Interval { low: 0.0, value: 100.0, high: f64::INFINITY });
        assert_eq!((of.low, of.value, of.high), (f64::NEG_INFINITY, 0.0, f64::INFINITY));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "[]", "{}", r#"{"distributions": []}"#, r#"{"predicted_and_measured": {"rows": 1}}"#]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
