//! Predictions and measurements, from the JSON of the commands that print both.

use anyhow::{Context, bail};
use dwell_knobs::verification::{self, Compared};
use dwell_lab::experiment::validate::Prediction;
use dwell_recording::regular;
use dwell_stats::Interval;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The largest JSON file that is read \[bytes\]; those that dwell writes have a few kilobytes.
const LONGEST: u64 = 64 << 20;

/// One file.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Measured {
    pub(super) file: String,
    /// The command that wrote it.
    pub(super) source: &'static str,
    /// The verdict of that command.
    pub(super) verdict: Option<String>,
    pub(super) rows: Vec<Row>,
}

/// One figure.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Row {
    /// Load and setting.
    pub(super) subject: String,
    /// Name, with its unit.
    pub(super) figure: String,
    pub(super) predicted: f64,
    pub(super) measured: f64,
    /// Predicted / measured - 1.
    pub(super) error: Interval,
}

/// The fields of the commands' output that are used here.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    Validated { distributions: Vec<OfGaps> },
    Benched { iothread: String, arms: Vec<Arm>, findings: Findings },
    Verified { change: serde_json::Value, verdict: verification::Verdict, figures: Vec<Compared> },
}

#[derive(Deserialize)]
struct OfGaps {
    gaps: String,
    verdicts: Vec<Prediction>,
}

#[derive(Deserialize)]
struct Arm {
    name: String,
    predicted: Option<Predicted>,
}

#[derive(Deserialize)]
struct Predicted {
    sleeps: f64,
}

#[derive(Deserialize)]
struct Findings {
    rows: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    arm: String,
    figure: String,
    value: Option<Interval>,
}

/// Reads the output of a command.
pub(super) fn read(path: &Path) -> anyhow::Result<Measured> {
    let file = path.display().to_string();
    let text = regular::read_text(path, LONGEST).with_context(|| format!("cannot read {file}"))?;
    parse(file, &text)
}

/// Parses the text of such a file.
pub(super) fn parse(file: String, text: &str) -> anyhow::Result<Measured> {
    let told = serde_json::from_str(text).with_context(|| {
        format!(
            "cannot read {file}: not the output of `dwell verify`, `dwell lab validate` or `dwell iothread bench --predict` with \
             --format json"
        )
    })?;
    let (source, verdict, rows) = match told {
        Told::Validated { distributions } => {
            ("dwell lab validate", None, distributions.into_iter().flat_map(validated).collect())
        }
        Told::Benched { iothread, arms, findings } => {
            ("dwell iothread bench", None, benched(&iothread, &arms, &findings))
        }
        Told::Verified { change, verdict, figures } => {
            ("dwell verify", Some(verdict.words().to_owned()), verified(&change, figures))
        }
    };
    let measured = Measured { file, source, verdict, rows };
    if measured.rows.is_empty() {
        bail!(
            "cannot use {}: it has no predictions; run `dwell iothread bench` with --predict",
            measured.file
        );
    }
    Ok(measured)
}

fn validated(OfGaps { gaps, verdicts }: OfGaps) -> impl Iterator<Item = Row> {
    verdicts.into_iter().map(move |Prediction { arm, figure, predicted, measured, error, .. }| Row {
        subject: format!("{gaps}, {arm}"),
        figure: figure.into_owned(),
        predicted,
        measured,
        error,
    })
}

/// Only the sleeps can be compared: the prediction of CPU time is polling CPU, which is not measured separately.
fn benched(iothread: &str, arms: &[Arm], findings: &Findings) -> Vec<Row> {
    let row = |arm: &Arm| {
        let predicted = arm.predicted.as_ref()?.sleeps;
        let found = |row: &&Found| row.arm == arm.name && row.figure == "sleeps_per_request";
        let value = findings.rows.iter().find(found)?.value?;
        Some(Row {
            subject: format!("{iothread}, {}", arm.name),
            figure: "sleeps_per_request".to_owned(),
            predicted,
            measured: value.value,
            error: error(predicted, value),
        })
    };
    arms.iter().filter_map(row).collect()
}

/// Each figure before and after the change.
fn verified(change: &serde_json::Value, figures: Vec<Compared>) -> Vec<Row> {
    let rows = |of: Compared| {
        let sides = [("before", of.predicted_before, of.before), ("after", of.predicted_after, of.after)];
        sides.map(|(side, predicted, measured)| {
            let measured = measured?;
            let interval = Interval {
                low: measured.low_95.unwrap_or(f64::NEG_INFINITY),
                value: measured.value,
                high: measured.high_95.unwrap_or(f64::INFINITY),
            };
            Some(Row {
                subject: format!("change {change}, {side}"),
                figure: of.figure.name().to_owned(),
                predicted,
                measured: measured.value,
                error: error(predicted, interval),
            })
        })
    };
    figures.into_iter().flat_map(rows).flatten().collect()
}

/// The error of a prediction; limits of the measurement swap places.
fn error(predicted: f64, measured: Interval) -> Interval {
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
    fn validate_is_read_row_by_row() {
        let text = r#"{"recorded_under": "host:1ms", "distributions": [{"gaps": "exponential:100us", "rounds": 9,
            "verdicts": [{"arm": "host:50us", "figure": "halts", "predicted": 0.6, "measured": 0.5,
            "error": {"low": null, "value": 0.2, "high": 0.25}}]}]}"#;
        let measured = parse("v.json".to_owned(), text).unwrap();
        assert_eq!(measured.source, "dwell lab validate");
        assert_eq!(measured.rows[0].subject, "exponential:100us, host:50us");
        assert_eq!(measured.rows[0].error, Interval { low: f64::NEG_INFINITY, value: 0.2, high: 0.25 });
    }

    #[test]
    fn bench_gives_the_sleeps_of_arms_that_were_predicted() {
        let text = r#"{"qemu": "11.1", "iothread": "io0", "arms": [{"name": "A"}, {"name": "B", "predicted":
            {"sleeps": 0.3, "polled_ns": 9.0}}], "findings": {"rows": [{"arm": "B", "figure": "sleeps_per_request",
            "value": {"low": 0.25, "value": 0.3, "high": 0.4}}, {"arm": "B", "figure": "cpu_ns_per_request", "value": null}]}}"#;
        let measured = parse("b.json".to_owned(), text).unwrap();
        let [row] = measured.rows.as_slice() else { panic!("{measured:?}") };
        let error = row.error;
        assert!((error.low + 0.25).abs() < 1e-9 && error.value == 0.0, "{error:?}");
        assert!((error.high - 0.2).abs() < 1e-9);
    }

    #[test]
    fn verify_gives_both_sides_and_its_verdict() {
        let text = r#"{"change": 3, "verdict": "came_in_part", "rounds": 8, "figures": [{"figure": "halts_per_s",
            "predicted_before": 100.0, "predicted_after": 300.0, "before": {"low_95": 90.0, "value": 100.0,
            "high_95": null}, "after": null, "difference": null}]}"#;
        let measured = parse("v.json".to_owned(), text).unwrap();
        assert_eq!(measured.verdict.as_deref(), Some(verification::Verdict::PartlyConfirmed.words()));
        let [row] = measured.rows.as_slice() else { panic!("{measured:?}") };
        assert_eq!(row.subject, "change 3, before");
        assert_eq!((row.error.low, row.error.value), (f64::NEG_INFINITY, 0.0));
        assert!((row.error.high - 1.0 / 9.0).abs() < 1e-9);
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for text in ["", "[]", "{}", r#"{"distributions": []}"#] {
            let error = format!("{:#}", parse("x.json".to_owned(), text).unwrap_err());
            assert!(error.contains("x.json") && error.contains("dwell"), "{error}");
        }
    }
}
