//! What a reader has to know before believing a figure.

use super::findings::{Findings, Row};
use super::interval::{Interval, MIN_ROUNDS};
use super::record::{Ended, Record};
use super::schedule::Role;
use serde::Serialize;
use std::fmt;

/// Fewest samples beyond a quantile that make it more than a guess at an extreme.
pub const MIN_BEYOND: u64 = 10;

/// Something that makes findings worth less than they look.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Warning {
    /// It ended before there was enough.
    Stopped {
        /// Complete rounds.
        rounds: u32,
    },
    /// Too few rounds for intervals.
    FewRounds {
        /// Complete rounds.
        rounds: u32,
    },
    /// Nothing is known of what others did.
    NotGated {
        /// Blocks of which nothing is known.
        blocks: u64,
    },
    /// The machine was never quiet.
    NeverQuiet {
        /// In which round that was found, from 0.
        round: u32,
        /// What others were to take at most, as a share of one CPU.
        limit: f64,
    },
    /// Blocks count although others disturbed them.
    Disturbed {
        /// How many of them.
        disturbed: u64,
        /// Of how many.
        blocks: u64,
        /// What others were to take at most, as a share of one CPU.
        limit: f64,
    },
    /// The baseline differs from itself.
    ControlDiffers {
        /// In which figure.
        figure: String,
        /// By how much, as control by baseline.
        ratio: Interval,
    },
    /// Not known as precisely as wanted.
    Imprecise {
        /// Which arm.
        arm: String,
        /// Which figure.
        figure: String,
        /// How far its interval reaches to either side, 0.05: ±5 %; infinite (`null`) where there is no ratio.
        half_width: f64,
        /// How far it was to reach.
        wanted: f64,
    },
    /// A quantile beyond which too few samples lie.
    FewSamples {
        /// Which arm.
        arm: String,
        /// Which figure.
        figure: String,
        /// How many samples there are.
        samples: u64,
        /// How many are beyond.
        beyond: u64,
    },
    /// Some rounds lack the figure.
    Missing {
        /// Which arm.
        arm: String,
        /// Which figure.
        figure: String,
        /// Rounds that have it.
        known: usize,
        /// Of how many.
        rounds: u32,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Stopped { rounds } => write!(f, "stopped early, after {rounds} complete rounds"),
            Warning::FewRounds { rounds } => {
                write!(
                    f,
                    "{rounds} rounds are too few: intervals need {MIN_ROUNDS} to hold what they promise"
                )
            }
            Warning::NotGated { blocks } => {
                write!(f, "of {blocks} blocks it is not known whether other programs disturbed them")
            }
            Warning::NeverQuiet { round, limit } => write!(
                f,
                "others took more than {} % of a CPU whenever it was looked at; disturbed blocks were no longer \
                 repeated from round {} on",
                limit * 100.0,
                round + 1
            ),
            Warning::Disturbed { disturbed, blocks, limit } => write!(
                f,
                "{disturbed} of {blocks} blocks count although others took more than {} % of a CPU",
                limit * 100.0
            ),
            Warning::ControlDiffers { figure, ratio: Interval { low, value, high } } => write!(
                f,
                "{figure}: the baseline differs from itself, by {:+.1} % [{:+.1} %, {:+.1} %]; take no smaller \
                 difference for an effect (of twenty figures, one does so by chance)",
                percent(*value),
                percent(*low),
                percent(*high)
            ),
            Warning::Imprecise { arm, figure, half_width, wanted } if half_width.is_finite() => write!(
                f,
                "{arm}: {figure} is known to ±{:.1} %, not to ±{} % as wanted",
                half_width * 100.0,
                wanted * 100.0
            ),
            Warning::Imprecise { arm, figure, .. } => {
                write!(f, "{arm}: {figure} has no ratio to the baseline that could be known precisely")
            }
            Warning::FewSamples { arm, figure, samples, beyond } => write!(
                f,
                "{arm}: {figure} rests on {beyond} of {samples} samples; at least {MIN_BEYOND} are needed"
            ),
            Warning::Missing { arm, figure, known, rounds } => {
                write!(f, "{arm}: {figure} is known in {known} of {rounds} rounds")
            }
        }
    }
}

fn percent(ratio: f64) -> f64 {
    (ratio - 1.0) * 100.0
}

/// All that findings have to be warned of, the gravest first.
pub(super) fn of(findings: &Findings, record: &Record) -> Vec<Warning> {
    let rounds = record.rounds;
    let stopped = matches!(record.ended, Ended::Stopped | Ended::Failed);
    let mut warnings = Vec::new();
    warnings.extend(stopped.then_some(Warning::Stopped { rounds }));
    warnings.extend(((rounds as usize) < MIN_ROUNDS).then_some(Warning::FewRounds { rounds }));
    warnings.extend(gating(record));
    warnings.extend(findings.rows.iter().filter_map(control));
    warnings.extend(findings.rows.iter().filter_map(|row| imprecise(row, record)));
    warnings.extend(findings.rows.iter().filter_map(few_samples));
    warnings.extend(findings.rows.iter().filter_map(|row| missing(row, rounds)));
    warnings
}

fn gating(record: &Record) -> impl Iterator<Item = Warning> {
    let (gating, limit) = (&record.gating, record.plan.foreign_limit);
    let unknown = (gating.unknown > 0).then_some(Warning::NotGated { blocks: gating.unknown });
    let never = gating.given_up_in_round.map(|round| Warning::NeverQuiet { round, limit });
    let (disturbed, blocks) = (gating.disturbed, gating.blocks);
    let disturbed = (disturbed > 0).then_some(Warning::Disturbed { disturbed, blocks, limit });
    [unknown, never, disturbed].into_iter().flatten()
}

fn control(row: &Row) -> Option<Warning> {
    let ratio = row.ratio().filter(|ratio| row.role == Role::Control && !ratio.contains(1.0))?;
    Some(Warning::ControlDiffers { figure: row.figure.clone(), ratio })
}

/// With too few rounds nothing is precise, which is said once.
fn imprecise(row: &Row, record: &Record) -> Option<Warning> {
    if (record.rounds as usize) < MIN_ROUNDS {
        return None;
    }
    let figure = record.figures.iter().find(|figure| figure.name() == row.figure)?;
    let wanted = figure.wanted().filter(|_| row.role != Role::Baseline)?;
    let half_width = row.ratio().map_or(f64::INFINITY, |ratio| ratio.ratio_half_width());
    let (arm, figure) = (row.arm.clone(), row.figure.clone());
    (half_width > wanted).then_some(Warning::Imprecise { arm, figure, half_width, wanted })
}

fn few_samples(row: &Row) -> Option<Warning> {
    let (samples, beyond) = (row.samples?, row.beyond.filter(|beyond| *beyond < MIN_BEYOND)?);
    let (arm, figure) = (row.arm.clone(), row.figure.clone());
    Some(Warning::FewSamples { arm, figure, samples, beyond })
}

/// A figure that an arm never has is none of its figures.
fn missing(row: &Row, rounds: u32) -> Option<Warning> {
    let (arm, figure) = (row.arm.clone(), row.figure.clone());
    (1..rounds as usize).contains(&row.rounds).then_some(Warning::Missing {
        arm,
        figure,
        known: row.rounds,
        rounds,
    })
}
