//! Whether a change has the effect that its plan predicts, and whether as much work is done as before.
//!
//! A change is verified by switching between the values from before and after it, with those from before
//! twice (A/A); the difference between these two is the error of the method. What is judged, from the intervals
//! of at least [`MIN_ROUNDS`] rounds, in this order:
//!
//! 1. Less [`Work`] is done: a regression, whatever a second costs.
//! 2. A unit of work costs more: a regression. One costs as much: no difference.
//! 3. Nothing was predicted: a gain. The difference is outside the prediction, in either direction, or more work
//!    is done, which no replay of idle times predicts: a gain, not as predicted. Else the prediction is confirmed.
//!
//! A plan from causes predicts the work itself: its speed, and what a unit costs. These are judged instead of figures by
//! the second, which follow from them.
//!
//! The cost of a second alone would show a gain wherever fewer requests are served.

use crate::plan::{Effect, Plan};
pub use dwell_replay::Figure;
use dwell_replay::number;
use dwell_stats::{Interval, MIN_ROUNDS};
use serde::{Deserialize, Serialize};

/// A prediction and a measurement that differ by less than this share of the predicted difference agree.
const AGREEMENT: f64 = 0.2;
/// They also agree where they differ by less CPU time than this, 0.5 % of a CPU \[ns/s\].
pub const NEGLIGIBLE_NS_PER_S: f64 = 5e6;

/// The figure that a plan promises a gain of.
pub fn promised(plan: &Plan) -> Figure {
    plan.effect.gain.map_or(Figure::Cost, |gain| gain.of)
}

/// One figure, predicted and measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    pub figure: Figure,
    /// Predicted before the change.
    pub predicted_before: f64,
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

/// What counts as work done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// The end of an episode.
    Wakeup,
    /// A context switch of any CPU. Of a host, a vCPU that halts is one, so that it does not count there.
    ContextSwitch,
    /// A request to a block device of QEMU.
    Request,
    /// One of what the user's own counter counts.
    Work,
}

impl Unit {
    /// Its rate in results, what a plan promises by it in results, and one and many of them in a sentence.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Unit::Wakeup => ["wakeups_per_s", "promised_per_wakeup", "wakeup", "wakeups"],
            Unit::ContextSwitch => [
                "context_switches_per_s",
                "promised_per_context_switch",
                "context switch",
                "context switches",
            ],
            Unit::Request => ["requests_per_s", "promised_per_request", "request", "requests"],
            Unit::Work => ["work_per_s", "promised_per_work", "unit of work", "units of work"],
        }
    }

    /// Its rate in results.
    pub const fn per_s(self) -> &'static str {
        self.names()[0]
    }

    /// What a plan promises, by this unit, in results.
    pub const fn promised_per_unit(self) -> &'static str {
        self.names()[1]
    }

    /// One of them, in a sentence.
    pub const fn one(self) -> &'static str {
        self.names()[2]
    }

    /// Many of them, in a sentence.
    pub const fn many(self) -> &'static str {
        self.names()[3]
    }

    /// Whether it counts work itself, and not what goes along with it.
    const fn is_work(self) -> bool {
        matches!(self, Unit::Request | Unit::Work)
    }

    /// The share by which less, or more, is another amount of work. Wakeups and switches also depend on how many
    /// requests are served at one wakeup.
    const fn tolerance(self) -> f64 {
        if self.is_work() { 0.02 } else { 0.05 }
    }
}

/// Work done before and after a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    pub unit: Unit,
    /// A second, with the values from before.
    pub before: Option<Interval>,
    /// A second, with the values from after.
    pub after: Option<Interval>,
    /// After / before, within rounds.
    pub ratio: Option<Interval>,
    /// The figure that the plan promises a gain of, by unit, with the values from before.
    pub promised_before: Option<Interval>,
    /// The same with the values from after.
    pub promised_after: Option<Interval>,
    /// After - before of it, within rounds.
    pub promised_difference: Option<Interval>,
}

impl Work {
    fn ratio_limits(&self) -> Option<[f64; 2]> {
        self.ratio.and_then(|ratio| ratio.limits())
    }

    fn fell(&self) -> bool {
        self.ratio_limits().is_some_and(|[_, high]| high < 1.0 - self.unit.tolerance())
    }

    fn rose(&self) -> bool {
        self.ratio_limits().is_some_and(|[low, _]| low > 1.0 + self.unit.tolerance())
    }

    /// The cost of a unit over what it cost before.
    pub fn cost(&self) -> Option<Interval> {
        let (before, difference) = (self.promised_before?.value, self.promised_difference?);
        let [low, value, high] =
            [difference.low, difference.value, difference.high].map(|difference| 1.0 + difference / before);
        (before > 0.0).then_some(Interval { low, value, high })
    }

    /// `20,627 requests/s for 58,398 (-65 %)`.
    fn words(&self) -> String {
        let value = |measured: Option<Interval>| measured.map_or(f64::NAN, |measured| measured.value);
        let (before, after) = (value(self.before), value(self.after));
        format!(
            "{} {}/s for {} ({:+.0} %)",
            number::rounded(after),
            self.unit.many(),
            number::rounded(before),
            (self.ratio.map_or(after / before, |ratio| ratio.value) - 1.0) * 100.0
        )
    }
}

/// Of the work that was measured, what counts: work itself where it is known, else all that goes along with it.
fn counting(work: &[Work]) -> Vec<&Work> {
    let known = || work.iter().filter(|work| work.ratio_limits().is_some());
    match known().filter(|work| work.unit.is_work()).max_by_key(|work| work.unit) {
        Some(itself) => vec![itself],
        None => known().collect(),
    }
}

dwell_policy::named! {
    /// Whether the measurement confirms the predicted effect.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[non_exhaustive]
    pub enum Verdict {
        /// A gain, as large as predicted, with as much work done.
        #[serde(alias = "came")]
        Confirmed = "confirmed: the gain is as predicted",
        /// A gain, and what was measured is outside the prediction. Earlier versions called a gain that was less than
        /// predicted partly confirmed.
        #[serde(alias = "came_in_part", alias = "partly_confirmed")]
        NotAsPredicted = "not as predicted: a gain, but another effect than predicted",
        /// A gain of a change of which nothing was predicted.
        Gain = "gain: nothing was predicted",
        /// The interval of the difference includes 0.
        #[serde(alias = "not_seen")]
        NoDifference = "no difference: the interval includes 0",
        /// The change made it worse: less work is done, or a unit of work costs more.
        #[serde(alias = "worse")]
        Regression = "regression: the change made it worse",
        /// Nothing reads the parameters here.
        #[serde(alias = "void")]
        NoEffect = "no effect: nothing reads the parameters here",
        /// Fewer than [`MIN_ROUNDS`] complete rounds.
        NotEnoughRounds = "not enough rounds",
        /// The figure could not be measured.
        #[serde(alias = "unknown")]
        NotMeasured = "not measured",
    }

    pub fn words
}

impl Verdict {
    /// Whether a gain was measured.
    pub const fn is_gain(self) -> bool {
        matches!(self, Verdict::Confirmed | Verdict::NotAsPredicted | Verdict::Gain)
    }
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verification {
    /// When \[s since 1970\].
    pub at_unix_s: u64,
    /// Whether the effect was confirmed.
    pub verdict: Verdict,
    /// What the verdict is based on, in words.
    #[serde(default)]
    pub why: Vec<String>,
    /// The figure that the plan promises a gain of.
    pub promised: Figure,
    /// Every figure that is predicted.
    pub figures: Vec<Compared>,
    #[serde(default)]
    pub work: Vec<Work>,
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

/// What a verdict is based on.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// What the plan predicts.
    pub effect: &'a Effect,
    /// The figure that the plan promises a gain of.
    pub promised: Figure,
    /// The figures that can be compared with the prediction.
    pub figures: &'a [Compared],
    pub work: &'a [Work],
    /// CPU time of one halt \[ns\].
    pub halt_cost_ns: f64,
    pub rounds: u32,
}

impl Evidence<'_> {
    /// The verdict, and what it is based on.
    pub fn judge(&self) -> (Verdict, Vec<String>) {
        if (self.rounds as usize) < MIN_ROUNDS {
            return (Verdict::NotEnoughRounds, vec![]);
        }
        if self.work.iter().any(|work| work.unit == Unit::Work && work.ratio_limits().is_none()) {
            return (
                Verdict::NotMeasured,
                vec!["the counter of work did not rise in every block".to_owned()],
            );
        }
        let promised = self.figures.iter().find(|compared| compared.figure == self.promised);
        let Some((promised, [low, high])) = promised.and_then(|of| Some((of, of.difference?.limits()?)))
        else {
            return (Verdict::NotMeasured, vec![]);
        };
        let work = counting(self.work);
        let words = |work: &[&Work]| work.iter().map(|work| work.words()).collect::<Vec<_>>().join(", ");
        let all = |is: fn(&Work) -> bool| !work.is_empty() && work.iter().all(|work| is(work));
        if all(Work::fell) {
            return (Verdict::Regression, vec![format!("less work is done: {}", words(&work))]);
        }
        // Where more is predicted, as for a limit that must be kept, more is a gain. More of a second, because more work is
        // done in it, is none.
        let predicted = self.effect.present.episodes > 0;
        let more =
            predicted && self.effect.speed.is_none() && promised.predicted_after > promised.predicted_before;
        let oriented = |[low, high]: [f64; 2]| if more { [-high, -low] } else { [low, high] };
        let by_unit: Vec<[f64; 2]> =
            work.iter().filter_map(|work| work.promised_difference?.limits()).map(oriented).collect();
        let judged = if by_unit.is_empty() { vec![oriented([low, high])] } else { by_unit };
        let unit = work.last().map_or("second", |work| work.unit.one());
        if judged.iter().all(|[low, _]| *low > 0.0) {
            let which = if more { "less" } else { "more" };
            return (Verdict::Regression, vec![format!("{which} {} for each {unit}", self.promised.words())]);
        }
        let rose = all(Work::rose);
        if !rose && !judged.iter().all(|[_, high]| *high < 0.0) {
            return (
                Verdict::NoDifference,
                vec![format!("{} for each {unit} decides", self.promised.words())],
            );
        }
        if !predicted {
            return (Verdict::Gain, vec![]);
        }
        let why: Vec<String> = if let Some(speed) = self.effect.speed {
            self.outside_by_work(speed, &work)
        } else {
            let outside = self.figures.iter().filter_map(|compared| compared.outside(self.halt_cost_ns));
            let rose = rose.then(|| format!("more work is done: {}", words(&work)));
            rose.into_iter().chain(outside).collect()
        };
        (if why.is_empty() { Verdict::Confirmed } else { Verdict::NotAsPredicted }, why)
    }

    /// How what was measured is outside what a plan from causes predicts. Of what only goes along with work one is
    /// enough that agrees.
    fn outside_by_work(&self, speed: Interval, work: &[&Work]) -> Vec<String> {
        let outside = |name: &str, predicted: Interval, of: fn(&Work) -> Option<Interval>| {
            let measured: Vec<Interval> = work.iter().filter_map(|work| of(work)).collect();
            let agrees = |is: &Interval| is.low <= predicted.high && is.high >= predicted.low;
            let first = measured.last().filter(|_| !measured.iter().any(agrees))?;
            let [is, value, low, high] =
                [first.value, predicted.value, predicted.low, predicted.high].map(number::ratio);
            Some(format!("{name}, after / before: {is} measured, {value} ({low} to {high}) predicted"))
        };
        let speed = outside("work a second", speed, |work| work.ratio);
        let gain = self.effect.gain;
        let cost = gain.and_then(|gain| outside("cost of a unit", cost_after(gain.share), Work::cost));
        speed.into_iter().chain(cost).collect()
    }
}

/// What is left of a cost that became less by this share.
pub fn cost_after(gain: Interval) -> Interval {
    Interval { low: 1.0 - gain.high, value: 1.0 - gain.value, high: 1.0 - gain.low }
}

impl Compared {
    /// How the measured difference is outside the prediction, if it is.
    fn outside(&self, halt_cost_ns: f64) -> Option<String> {
        let difference = self.difference?;
        let [low, high] = difference.limits()?;
        let predicted = self.predicted_after - self.predicted_before;
        let negligible = match self.figure {
            Figure::Halts => NEGLIGIBLE_NS_PER_S / halt_cost_ns.max(1_000.0),
            Figure::Cost | Figure::PollingCpu => NEGLIGIBLE_NS_PER_S,
        };
        let tolerance = negligible.max(AGREEMENT * predicted.abs());
        let agrees = low <= predicted + tolerance && high >= predicted - tolerance;
        let text = |value: f64| match self.figure {
            Figure::Halts => number::rounded(value),
            Figure::Cost | Figure::PollingCpu => number::percent(value / 1e9),
        };
        (!agrees).then(|| {
            format!(
                "{}: {} measured, {} predicted as the difference",
                self.figure.words(),
                text(difference.value),
                text(predicted)
            )
        })
    }
}

#[cfg(test)]
mod tests;
