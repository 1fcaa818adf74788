//! Whether the effect that a plan predicts came: what was predicted beside what was measured.
//!
//! A change is verified by letting its two sides take turns, before and after, with the side of before twice (A/A), whose
//! difference is the error of the method. The verdict rests on the interval of the difference alone.

use crate::plan::Plan;
use serde::{Deserialize, Serialize};

/// A figure that is predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// CPU burnt, plus halts at their price \[ns/s\].
    CostNsPerS,
    /// CPU time polled \[ns/s\].
    CpuBurntNsPerS,
    /// Halts a second; of an I/O thread, sleeps.
    HaltsPerS,
}

impl Figure {
    /// All of them.
    pub const ALL: [Figure; 3] = [Figure::CostNsPerS, Figure::CpuBurntNsPerS, Figure::HaltsPerS];

    /// Its name in results, with its unit.
    pub const fn name(self) -> &'static str {
        match self {
            Figure::CostNsPerS => "cost_ns_per_s",
            Figure::CpuBurntNsPerS => "cpu_burnt_ns_per_s",
            Figure::HaltsPerS => "halts_per_s",
        }
    }

    /// The one that a plan promises a gain of.
    pub fn promised(plan: &Plan) -> Figure {
        match plan.effect.gain.of.as_str() {
            "halts" => Figure::HaltsPerS,
            "CPU burnt" => Figure::CpuBurntNsPerS,
            _ => Figure::CostNsPerS,
        }
    }

    /// What a plan predicts of it: before, after.
    pub fn predicted(self, plan: &Plan) -> (f64, f64) {
        let of = |side: &crate::plan::Predicted| match self {
            Figure::CostNsPerS => side.cost_ns_per_s,
            Figure::CpuBurntNsPerS => side.cpu_burnt_ns_per_s,
            Figure::HaltsPerS => side.halts_per_s,
        };
        (of(&plan.effect.present), of(&plan.effect.recommended))
    }
}

/// A value with its 95 % interval; a limit that is not known is null.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Lower limit.
    pub low_95: Option<f64>,
    /// The value.
    pub value: f64,
    /// Upper limit.
    pub high_95: Option<f64>,
}

impl Measured {
    /// From limits that may be infinite.
    pub fn new(low: f64, value: f64, high: f64) -> Measured {
        let known = |limit: f64| limit.is_finite().then_some(limit);
        Measured { low_95: known(low), value, high_95: known(high) }
    }
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
    /// Measured with the values of before; `None` where it cannot be measured.
    pub before: Option<Measured>,
    /// Measured with those of after.
    pub after: Option<Measured>,
    /// After less before, within rounds.
    pub difference: Option<Measured>,
    /// The same of before against itself: the error of the method.
    pub control_difference: Option<Measured>,
}

/// Whether the predicted effect came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A gain, and the predicted one is within its interval or below it.
    Came,
    /// A gain, but surely less than predicted.
    CameInPart,
    /// No difference that could be told from chance.
    NotSeen,
    /// The opposite.
    Worse,
    /// Nothing reads the knobs here.
    Void,
    /// It could not be measured, or too little was.
    Unknown,
}

impl Verdict {
    /// Whether a gain was measured.
    pub const fn is_gain(self) -> bool {
        matches!(self, Verdict::Came | Verdict::CameInPart)
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Verdict::Came => "the predicted effect came",
            Verdict::CameInPart => "a gain came, but less than was predicted",
            Verdict::NotSeen => "no effect can be told from chance",
            Verdict::Worse => "the opposite of what was predicted came",
            Verdict::Void => "no effect can be seen: nothing reads the knobs here",
            Verdict::Unknown => "the effect is not known: too little could be measured",
        }
    }
}

/// What verifying a change has shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// When \[s since 1970\].
    pub at_unix_s: u64,
    /// Whether it came.
    pub verdict: Verdict,
    /// The figure that the plan promises a gain of.
    pub promised: Figure,
    /// Every figure.
    pub figures: Vec<Compared>,
    /// Rounds of before, after, before and back again.
    pub rounds: u32,
    /// How long it took \[s\].
    pub elapsed_s: f64,
    /// Wakes a second with the values of before; the recording of the plan had another load if this is far from its own.
    pub wakes_per_s: Option<f64>,
    /// Wakes a second in the recording that the plan comes from.
    pub planned_wakes_per_s: Option<f64>,
    /// Whether the change was taken back for it.
    pub reverted: bool,
    /// What a reader has to know.
    pub notes: Vec<String>,
}

/// The verdict on the figure that was promised.
pub fn judge(compared: &Compared) -> Verdict {
    let predicted = compared.predicted_after - compared.predicted_before;
    let limits = compared.difference.and_then(|difference| difference.low_95.zip(difference.high_95));
    let Some((low, high)) = limits else { return Verdict::Unknown };
    // Seen from the side of a gain: less is better where less was predicted.
    let (low, high, predicted) =
        if predicted <= 0.0 { (low, high, predicted) } else { (-high, -low, -predicted) };
    match () {
        () if low > 0.0 => Verdict::Worse,
        () if high >= 0.0 => Verdict::NotSeen,
        () if low > predicted => Verdict::CameInPart,
        () => Verdict::Came,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(before: f64, after: f64, low: f64, high: f64) -> Verdict {
        judge(&Compared {
            figure: Figure::CostNsPerS,
            predicted_before: before,
            predicted_after: after,
            before: None,
            after: None,
            difference: Some(Measured::new(low, f64::midpoint(low, high), high)),
            control_difference: None,
        })
    }

    #[test]
    fn the_interval_of_the_difference_decides() {
        assert_eq!(verdict(100.0, 60.0, -50.0, -30.0), Verdict::Came);
        assert_eq!(verdict(100.0, 60.0, -90.0, -50.0), Verdict::Came);
        assert_eq!(verdict(100.0, 60.0, -20.0, -10.0), Verdict::CameInPart);
        assert_eq!(verdict(100.0, 60.0, -20.0, 1.0), Verdict::NotSeen);
        assert_eq!(verdict(100.0, 60.0, 1.0, 20.0), Verdict::Worse);
        // Where more was predicted, as for a limit that has to be kept, more is what has to come.
        assert_eq!(verdict(60.0, 100.0, 30.0, 50.0), Verdict::Came);
        assert_eq!(verdict(60.0, 100.0, -50.0, -30.0), Verdict::Worse);
        assert_eq!(verdict(100.0, 60.0, f64::NEG_INFINITY, -30.0), Verdict::Unknown);
    }
}
