//! Whether a change has the effect that its plan predicts.
//!
//! A change is verified by switching between the values from before and after it, with those from before
//! twice (A/A); the difference between these two is the error of the method. The verdict is decided by the
//! interval of the difference between after and before, from at least [`MIN_ROUNDS`] rounds.

use crate::plan::Plan;
pub use dwell_replay::Figure;
use dwell_stats::{Interval, MIN_ROUNDS};
use serde::{Deserialize, Serialize};

/// The figure that a plan promises a gain of.
pub fn promised(plan: &Plan) -> Figure {
    plan.effect.gain.map_or(Figure::Cost, |gain| gain.of)
}

/// One figure, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Which.
    pub figure: Figure,
    /// Predicted before the change.
    pub predicted_before: f64,
    /// Predicted after it.
    pub predicted_after: f64,
    /// Measured with the values from before; `None` where it cannot be measured.
    pub before: Option<Interval>,
    /// Measured with the values from after.
    pub after: Option<Interval>,
    /// After - before, within rounds.
    pub difference: Option<Interval>,
    /// The same for before and its control: the error of the method.
    pub control_difference: Option<Interval>,
}

/// Whether the measurement confirms the predicted effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// A gain at least as large as predicted, or one whose interval includes the predicted one.
    #[serde(alias = "came")]
    Confirmed,
    /// A gain whose whole interval is smaller than predicted.
    #[serde(alias = "came_in_part")]
    PartlyConfirmed,
    /// The interval of the difference includes 0.
    #[serde(alias = "not_seen")]
    NoDifference,
    /// The change made it worse.
    #[serde(alias = "worse")]
    Regression,
    /// Nothing reads the parameters here.
    #[serde(alias = "void")]
    NoEffect,
    /// Fewer than [`MIN_ROUNDS`] complete rounds.
    NotEnoughRounds,
    /// The figure could not be measured.
    #[serde(alias = "unknown")]
    NotMeasured,
}

impl Verdict {
    /// Whether a gain was measured.
    pub const fn is_gain(self) -> bool {
        matches!(self, Verdict::Confirmed | Verdict::PartlyConfirmed)
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Confirmed => "confirmed: the gain is as predicted",
            Verdict::PartlyConfirmed => "partly confirmed: a gain, but less than predicted",
            Verdict::NoDifference => "no difference: the interval includes 0",
            Verdict::Regression => "regression: the change made it worse",
            Verdict::NoEffect => "no effect: nothing reads the parameters here",
            Verdict::NotEnoughRounds => "not enough rounds",
            Verdict::NotMeasured => "not measured",
        }
    }
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// When \[s since 1970\].
    pub at_unix_s: u64,
    /// Whether the effect was confirmed.
    pub verdict: Verdict,
    /// The figure that the plan promises a gain of.
    pub promised: Figure,
    /// Every figure.
    pub figures: Vec<Compared>,
    /// Complete rounds; a round measures before, after, before, and again in reverse order.
    pub rounds: u32,
    /// How long it took \[s\].
    pub elapsed_s: f64,
    /// Wakeups per second with the values from before. If it is far from that of the plan's recording, the
    /// load differs.
    #[serde(alias = "wakes_per_s")]
    pub wakeups_per_s: Option<f64>,
    /// Wakeups per second in the recording that the plan comes from.
    #[serde(alias = "planned_wakes_per_s")]
    pub planned_wakeups_per_s: Option<f64>,
    /// Whether the change was reverted automatically.
    pub reverted: bool,
    /// What limits the result.
    pub notes: Vec<String>,
}

/// The verdict on the figure that the plan promises a gain of, measured in so many complete rounds.
pub fn judge(compared: &Compared, rounds: u32) -> Verdict {
    if (rounds as usize) < MIN_ROUNDS {
        return Verdict::NotEnoughRounds;
    }
    let predicted = compared.predicted_after - compared.predicted_before;
    let limits = compared.difference.and_then(|difference| difference.limits());
    let Some([low, high]) = limits else { return Verdict::NotMeasured };
    // As a gain is counted: less is better where less was predicted.
    let (low, high, predicted) =
        if predicted <= 0.0 { (low, high, predicted) } else { (-high, -low, -predicted) };
    match () {
        () if low > 0.0 => Verdict::Regression,
        () if high >= 0.0 => Verdict::NoDifference,
        () if low > predicted => Verdict::PartlyConfirmed,
        () => Verdict::Confirmed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(before: f64, after: f64, low: f64, high: f64) -> Verdict {
        judge_rounds(before, after, low, high, 8)
    }

    fn judge_rounds(before: f64, after: f64, low: f64, high: f64, rounds: u32) -> Verdict {
        let compared = Compared {
            figure: Figure::Cost,
            predicted_before: before,
            predicted_after: after,
            before: None,
            after: None,
            difference: Some(Interval { low, value: f64::midpoint(low, high), high }),
            control_difference: None,
        };
        judge(&compared, rounds)
    }

    #[test]
    fn the_interval_of_the_difference_decides() {
        assert_eq!(verdict(100.0, 60.0, -50.0, -30.0), Verdict::Confirmed);
        assert_eq!(verdict(100.0, 60.0, -90.0, -50.0), Verdict::Confirmed);
        assert_eq!(verdict(100.0, 60.0, -20.0, -10.0), Verdict::PartlyConfirmed);
        assert_eq!(verdict(100.0, 60.0, -20.0, 1.0), Verdict::NoDifference);
        assert_eq!(verdict(100.0, 60.0, 1.0, 20.0), Verdict::Regression);
        // Where more was predicted, as for a limit that must be kept, more is a gain.
        assert_eq!(verdict(60.0, 100.0, 30.0, 50.0), Verdict::Confirmed);
        assert_eq!(verdict(60.0, 100.0, -50.0, -30.0), Verdict::Regression);
        assert_eq!(verdict(100.0, 60.0, f64::NEG_INFINITY, -30.0), Verdict::NotMeasured);
    }

    /// Two rounds gave "the predicted effect came", from an interval between two values.
    #[test]
    fn a_few_rounds_confirm_nothing() {
        for rounds in 0..6 {
            assert_eq!(judge_rounds(100.0, 60.0, -50.0, -30.0, rounds), Verdict::NotEnoughRounds, "{rounds}");
            assert_eq!(judge_rounds(100.0, 60.0, 1.0, 20.0, rounds), Verdict::NotEnoughRounds, "{rounds}");
        }
        assert_eq!(judge_rounds(100.0, 60.0, -50.0, -30.0, 6), Verdict::Confirmed);
    }

    #[test]
    fn verdicts_of_older_journals_are_read() {
        for (old, verdict) in [
            ("came", Verdict::Confirmed),
            ("came_in_part", Verdict::PartlyConfirmed),
            ("not_seen", Verdict::NoDifference),
            ("worse", Verdict::Regression),
            ("void", Verdict::NoEffect),
            ("unknown", Verdict::NotMeasured),
        ] {
            let read: Verdict = serde_json::from_value(old.into()).unwrap();
            assert_eq!(read, verdict);
        }
        assert_eq!(serde_json::to_value(Verdict::NotEnoughRounds).unwrap(), "not_enough_rounds");
    }
}
