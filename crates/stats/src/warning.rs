//! What limits the results of a campaign.

use crate::measurements::{Measurements, StopReason};
use crate::row::ResultRow;
use crate::schedule::Role;
use crate::{Interval, MIN_ROUNDS};
use serde::Serialize;

/// The fewest samples above a quantile with which it is more than a guess at the maximum.
pub const MIN_BEYOND: u64 = 10;

/// A reason to trust results less.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Warning {
    #[error("stopped early; complete rounds: {rounds}")]
    Stopped { rounds: u32 },
    #[error("too few rounds, {rounds}: intervals need at least {MIN_ROUNDS}")]
    FewRounds { rounds: u32 },
    #[error("the load of other programs during {blocks} blocks is not known")]
    NotGated {
        /// Blocks whose foreign load is not known.
        blocks: u64,
    },
    #[error(
        "other programs kept using more than {} % of a CPU; from round {} on, disturbed blocks were not repeated",
        .limit * 100.0,
        .round + 1
    )]
    NeverQuiet {
        /// The round, from 0, from which on blocks were not repeated.
        round: u32,
        /// The limit of foreign load, as a share of one CPU.
        limit: f64,
    },
    #[error(
        "{disturbed} of {blocks} blocks count although other programs used more than {} % of a CPU",
        .limit * 100.0
    )]
    Disturbed {
        /// How many of them.
        disturbed: u64,
        blocks: u64,
        /// The limit of foreign load, as a share of one CPU.
        limit: f64,
    },
    #[error(
        "{figure}: the baseline differs from its own control by {:+.1} % [{:+.1} %, {:+.1} %]; smaller differences are not \
         effects (of twenty figures one has this by chance)",
        percent(.ratio.value),
        percent(.ratio.low),
        percent(.ratio.high)
    )]
    ControlDiffers {
        /// Name of the figure.
        figure: String,
        ratio: Interval,
    },
    /// An interval is wider than required.
    #[error("{arm}: {figure} {}", imprecision(*.half_width, *.required))]
    Imprecise {
        /// Name of the arm.
        arm: String,
        /// Name of the figure.
        figure: String,
        /// Half the width of the interval of the ratio, 0.05: ±5 %; infinite (`null`) where there is no ratio.
        half_width: f64,
        /// The half width required.
        required: f64,
    },
    #[error("{arm}: only {beyond} of {samples} samples are above {figure}; at least {MIN_BEYOND} are needed")]
    FewSamples {
        /// Name of the arm.
        arm: String,
        /// Name of the figure.
        figure: String,
        samples: u64,
        /// Samples above the quantile.
        beyond: u64,
    },
    #[error("{arm}: {figure} is known in {known} of {rounds} rounds")]
    Missing {
        /// Name of the arm.
        arm: String,
        /// Name of the figure.
        figure: String,
        /// Rounds with the figure.
        known: usize,
        rounds: u32,
    },
}

impl Warning {
    /// The same, with other names of figures: those of people in place of those of programs.
    #[must_use]
    pub fn with_figures(mut self, name_of: impl Fn(&str) -> Option<String>) -> Warning {
        if let Warning::ControlDiffers { figure, .. }
        | Warning::Imprecise { figure, .. }
        | Warning::FewSamples { figure, .. }
        | Warning::Missing { figure, .. } = &mut self
            && let Some(name) = name_of(figure)
        {
            *figure = name;
        }
        self
    }
}

fn imprecision(half_width: f64, required: f64) -> String {
    match half_width.is_finite() {
        true => format!("is known to ±{:.1} %; ±{} % was required", half_width * 100.0, required * 100.0),
        false => "has no ratio to the baseline".to_owned(),
    }
}

fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

/// All warnings, the gravest first.
pub(super) fn of(rows: &[ResultRow], measurements: &Measurements, differing: &[&str]) -> Vec<Warning> {
    let rounds = measurements.rounds;
    let stopped = matches!(measurements.ended, StopReason::Stopped | StopReason::Failed);
    let mut warnings = Vec::new();
    warnings.extend(stopped.then_some(Warning::Stopped { rounds }));
    warnings.extend(((rounds as usize) < MIN_ROUNDS).then_some(Warning::FewRounds { rounds }));
    warnings.extend(gating(measurements));
    warnings.extend(rows.iter().filter_map(|row| control(row, differing)));
    warnings.extend(rows.iter().filter_map(|row| imprecise(row, measurements)));
    warnings.extend(rows.iter().filter_map(few_samples));
    warnings.extend(rows.iter().filter_map(|row| missing(row, rounds)));
    warnings
}

fn gating(measurements: &Measurements) -> impl Iterator<Item = Warning> {
    let (gating, limit) = (&measurements.gating, measurements.options.foreign_limit);
    let unknown = (gating.unknown > 0).then_some(Warning::NotGated { blocks: gating.unknown });
    let never = gating.given_up_in_round.map(|round| Warning::NeverQuiet { round, limit });
    let (disturbed, blocks) = (gating.disturbed, gating.blocks);
    let disturbed = (disturbed > 0).then_some(Warning::Disturbed { disturbed, blocks, limit });
    [unknown, never, disturbed].into_iter().flatten()
}

fn control(row: &ResultRow, differing: &[&str]) -> Option<Warning> {
    let differs = row.role == Role::Control && differing.contains(&&*row.figure);
    let ratio = row.ratio().filter(|_| differs)?;
    Some(Warning::ControlDiffers { figure: row.figure.clone(), ratio })
}

/// With too few rounds nothing is precise, which has its own warning.
fn imprecise(row: &ResultRow, measurements: &Measurements) -> Option<Warning> {
    if (measurements.rounds as usize) < MIN_ROUNDS {
        return None;
    }
    let figure = measurements.figures.iter().find(|figure| figure.name == row.figure)?;
    let required = figure.within.filter(|_| row.role != Role::Baseline)?;
    let half_width = row.ratio().map_or(f64::INFINITY, |ratio| ratio.ratio_half_width());
    let (arm, figure) = (row.arm.clone(), row.figure.clone());
    (half_width > required).then_some(Warning::Imprecise { arm, figure, half_width, required })
}

fn few_samples(row: &ResultRow) -> Option<Warning> {
    let (samples, beyond) = (row.samples?, row.beyond.filter(|beyond| *beyond < MIN_BEYOND)?);
    let (arm, figure) = (row.arm.clone(), row.figure.clone());
    Some(Warning::FewSamples { arm, figure, samples, beyond })
}

/// A figure that an arm never has does not apply to it.
fn missing(row: &ResultRow, rounds: u32) -> Option<Warning> {
    let (arm, figure) = (row.arm.clone(), row.figure.clone());
    (1..rounds as usize).contains(&row.rounds).then_some(Warning::Missing {
        arm,
        figure,
        known: row.rounds,
        rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_names_of_people_where_there_are_any() {
        let name_of = |figure: &str| (figure == "requests_per_s").then(|| "requests/s".to_owned());
        let missing = |figure: &str| {
            let (arm, figure) = ("a".to_owned(), figure.to_owned());
            Warning::Missing { arm, figure, known: 1, rounds: 6 }.with_figures(name_of).to_string()
        };
        assert_eq!(missing("requests_per_s"), "a: requests/s is known in 1 of 6 rounds");
        assert_eq!(missing("halts"), "a: halts is known in 1 of 6 rounds");
        let few = Warning::FewRounds { rounds: 2 };
        assert_eq!(few.clone().with_figures(name_of), few);
    }
}
