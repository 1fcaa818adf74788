//! What was measured.

use super::campaign::Plan;
use super::findings::{Figure, Findings};
use super::schedule::{Arm, Role};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// What one block found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// Every sample \[ns\], in order.
    pub samples_ns: Vec<u64>,
    /// Every figure, by name. What is not finite is taken as not known.
    pub figures: BTreeMap<Cow<'static, str>, f64>,
}

impl Block {
    /// A block with these samples \[ns\].
    pub fn new(samples_ns: Vec<u64>) -> Block {
        Block { samples_ns, figures: BTreeMap::new() }
    }

    /// Adds a figure.
    #[must_use]
    pub fn figure(mut self, name: impl Into<Cow<'static, str>>, value: f64) -> Block {
        self.figures.insert(name.into(), value);
        self
    }
}

/// What others took of the machine during a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Disturbance {
    /// CPU time of other programs by the time that passed, as a share of one CPU.
    pub foreign: f64,
    /// By how much that may be too high.
    pub foreign_error: f64,
    /// CPU time that the hypervisor below gave to others, over all CPUs, as a share of one.
    pub steal: f64,
    /// By how much that may be too high.
    pub steal_error: f64,
}

impl Disturbance {
    /// Whether either share is surely above `limit`.
    pub fn exceeds(&self, limit: f64) -> bool {
        self.foreign - self.foreign_error > limit || self.steal - self.steal_error > limit
    }
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It counts.
    Kept,
    /// It counts although others disturbed it: no attempt was better, or none was made.
    KeptDisturbed,
    /// It does not count: others disturbed it, and another attempt was taken.
    Rejected,
}

impl Verdict {
    /// Its name in files.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Kept => "kept",
            Verdict::KeptDisturbed => "kept_disturbed",
            Verdict::Rejected => "rejected",
        }
    }
}

/// A block with all that is known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Which arm, by its place in [`Record::arms`].
    pub arm: usize,
    /// From 0.
    pub round: u32,
    /// 0: on the way there, 1: on the way back.
    pub pass: u8,
    /// Number of its sequence of gaps.
    pub sequence: u64,
    /// From 0.
    pub attempt: u32,
    /// How long it took, with all that `measure` did before and after.
    pub elapsed: Duration,
    /// What others did; `None`: not known.
    pub disturbance: Option<Disturbance>,
    /// Whether it counts.
    pub verdict: Verdict,
    /// What it found.
    pub block: Block,
}

/// How well blocks could be kept undisturbed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gating {
    /// How the disturbance is known.
    pub source: String,
    /// Blocks that count.
    pub blocks: u64,
    /// Attempts that were rejected and repeated.
    pub rejected: u64,
    /// Of the blocks that count, those that were disturbed all the same.
    pub disturbed: u64,
    /// Of the blocks that count, those of which it is not known whether they were disturbed.
    pub unknown: u64,
    /// The round in which the machine was found never to be quiet; no block was repeated from there on.
    pub given_up_in_round: Option<u32>,
    /// Disturbed blocks in a row.
    #[serde(skip)]
    in_a_row: u32,
}

impl Gating {
    /// Whether disturbed blocks are no longer repeated.
    pub fn given_up(&self) -> bool {
        self.given_up_in_round.is_some()
    }

    pub(super) fn consider_giving_up(&mut self, after: u32, round: u32) {
        if !self.given_up() && self.in_a_row >= after.max(1) {
            self.given_up_in_round = Some(round);
        }
    }
}

/// Why no more was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All intervals are as narrow as wanted.
    Precise,
    /// There are as many rounds as were allowed.
    Rounds,
    /// There was no time for another round.
    Budget,
    /// It was stopped from outside.
    Stopped,
    /// A block could not be measured.
    Failed,
}

/// An arm without its setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArmName {
    /// What it is called.
    pub name: String,
    /// What it is for.
    pub role: Role,
}

/// All that a campaign measured.
#[derive(Clone, Debug)]
pub struct Record {
    /// The experiment.
    pub name: String,
    /// The baseline first, the control last.
    pub arms: Vec<ArmName>,
    /// What is asked of the blocks.
    pub figures: Vec<Figure>,
    /// How it was to be run.
    pub plan: Plan,
    /// All blocks in order, with those rejected and those of a round that was not completed.
    pub blocks: Vec<Measured>,
    /// Complete rounds: only these count.
    pub rounds: u32,
    /// How well blocks could be kept undisturbed.
    pub gating: Gating,
    /// Why no more was measured.
    pub ended: Ended,
    /// How long it took.
    pub elapsed: Duration,
}

impl Record {
    pub(super) fn new<S>(name: &str, arms: &[Arm<S>], figures: &[Figure], plan: Plan) -> Record {
        Record {
            name: name.to_owned(),
            arms: arms.iter().map(|arm| ArmName { name: arm.name.clone(), role: arm.role }).collect(),
            figures: figures.to_vec(),
            plan,
            blocks: Vec::new(),
            rounds: 0,
            gating: Gating::default(),
            ended: Ended::Stopped,
            elapsed: Duration::ZERO,
        }
    }

    /// The figures of all arms, with intervals and warnings.
    pub fn findings(&self) -> Findings {
        Findings::new(self)
    }

    /// The blocks of one arm that count, by round: both passes of each complete one.
    pub fn rounds_of(&self, arm: usize) -> Vec<Vec<&Block>> {
        let mut rounds = vec![Vec::new(); self.rounds as usize];
        let counts = |measured: &&Measured| measured.arm == arm && measured.verdict != Verdict::Rejected;
        for measured in self.blocks.iter().filter(counts) {
            if let Some(round) = rounds.get_mut(measured.round as usize) {
                round.push(&measured.block);
            }
        }
        rounds
    }

    /// Of the attempts from number `first` on, all at one block, takes the least disturbed.
    pub(super) fn choose(&mut self, first: usize, limit: f64) {
        let foreign =
            |measured: &Measured| measured.disturbance.map_or(0.0, |found| found.foreign.max(found.steal));
        let attempts = &mut self.blocks[first..];
        let Some(best) =
            (0..attempts.len()).min_by(|a, b| foreign(&attempts[*a]).total_cmp(&foreign(&attempts[*b])))
        else {
            return;
        };
        attempts.iter_mut().for_each(|attempt| attempt.verdict = Verdict::Rejected);
        let gating = &mut self.gating;
        gating.blocks += 1;
        gating.rejected += attempts.len() as u64 - 1;
        gating.unknown += u64::from(attempts[best].disturbance.is_none());
        let disturbed = attempts[best].disturbance.is_some_and(|found| found.exceeds(limit));
        gating.disturbed += u64::from(disturbed);
        gating.in_a_row = if disturbed { gating.in_a_row + 1 } else { 0 };
        attempts[best].verdict = if disturbed { Verdict::KeptDisturbed } else { Verdict::Kept };
    }
}
