//! What a controller answers: a change of the setting, and why.

use crate::core::trust::Apart;
use dwell_policy::param::{Param, Setting};
use dwell_replay::causal::Range;
use dwell_stats::Interval;
use serde::Serialize;

/// A change of the setting, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When it was decided \[ns\].
    pub at_ns: u64,
    /// The setting in force.
    pub from: Setting,
    /// The setting to use; the same where the originals stay in force.
    pub to: Setting,
    pub cause: Cause,
}

impl Change {
    /// How many parameters it writes.
    pub fn writes(&self) -> usize {
        writes(&self.from, &self.to)
    }
}

/// How many parameters differ between two settings.
pub(crate) fn writes(from: &Setting, to: &Setting) -> usize {
    differing(from, to).count()
}

/// The parameters that differ between two settings, and their values.
pub(crate) fn differing(from: &Setting, to: &Setting) -> impl Iterator<Item = (&'static Param, i64, i64)> {
    let both = from.iter().zip(to.iter()).map(|((param, from), (_, to))| (param, from, to));
    both.filter(|(_, from, to)| from != to)
}

/// Why a setting is changed. Costs are polling CPU plus halts at their cost, of a mean episode \[ns\].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// Another setting would have cost less.
    Gain {
        /// The episodes that the settings were replayed over.
        episodes: usize,
        /// The cost under the setting in force.
        present_ns: f64,
        /// The cost under the setting chosen.
        chosen_ns: f64,
        /// The cost under the originals.
        originals_ns: f64,
        /// The cost of the optimum.
        optimum_ns: f64,
    },
    /// What a replay of causes predicts of the work under a setting.
    Work {
        /// The segments that were replayed.
        segments: usize,
        /// Work a second, over that under the setting in force.
        speed: Range,
        /// The cost of a unit of work under the setting chosen \[ns\].
        chosen_ns: f64,
        /// The same under the setting in force.
        present_ns: f64,
    },
    /// Control has cost more than the originals would have: these are in force for a while.
    Loss {
        /// By how much more than 1.01 times their cost, since that was last so within 10 s \[ns\].
        excess_ns: f64,
        /// What the originals cost in the last 10 s \[ns\].
        originals_ns: f64,
        /// How long they stay in force \[ns\].
        rest_ns: u64,
    },
    /// Control has cost one idler more than its limit: the originals are in force for a while.
    Vetoed {
        idler: u64,
        /// What it cost in the last 10 s \[ns\].
        cost_ns: f64,
        /// What the originals would have cost it \[ns\].
        originals_ns: f64,
        /// How long they stay in force \[ns\].
        rest_ns: u64,
    },
    /// A turn of a comparison of two settings.
    Turn,
    /// The comparison is over: the setting in force stays.
    Verified(Measured),
    /// The comparison is over: a loss was not excluded, and the setting that it was compared with takes its place.
    Refuted {
        #[serde(flatten)]
        measured: Measured,
        /// How long that is not changed, unless the load changes \[ns\].
        rest_ns: u64,
    },
    /// Idlers mostly halted, and were cheaper, or did more for it, while they polled, which no replay had shown.
    Tried(Measured),
    /// Nothing could be observed: the originals are in force for a while.
    Unseen {
        /// How long they stay in force \[ns\].
        rest_ns: u64,
    },
    /// The rule does not do what was counted: the originals are in force for a while.
    Untrusted {
        #[serde(flatten)]
        apart: Apart,
        /// The episodes of the last period.
        episodes: u64,
        /// How long they stay in force, unless the load changes \[ns\].
        rest_ns: u64,
    },
}

/// What turns of a setting, and of the one that it was compared with, the reference, have shown, by unit of work: a
/// context switch or an episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The cost of a unit under the setting \[ns\].
    pub setting_ns: f64,
    /// The same under the reference.
    pub reference_ns: f64,
    /// Units a second under the setting; `None` if it had no turns and was not in force before them, as the cost
    /// of an episode without polls is known.
    pub setting_per_s: Option<f64>,
    /// The same under the reference.
    pub reference_per_s: Option<f64>,
    /// The first cost over the second, with its interval, in a closed loop each times the square of the time of a
    /// unit; `None` if there is none.
    pub ratio: Option<Interval>,
    /// Whether the loop is closed: units a second differ for certain.
    pub closed: bool,
    /// Whether the unit is a context switch.
    pub by_switches: bool,
}
