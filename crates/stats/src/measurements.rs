//! What a campaign measured, block by block.

use crate::figure::Figure;
use crate::options::CampaignOptions;
use crate::schedule::{Arm, Role};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

/// What one block measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Block {
    /// The samples \[ns\], in order.
    pub samples_ns: Vec<u64>,
    /// The figures by name. A value that is not finite counts as not known.
    pub figures: BTreeMap<Cow<'static, str>, f64>,
}

impl Block {
    /// A block with these samples \[ns\].
    pub fn new(samples_ns: Vec<u64>) -> Block {
        Block { samples_ns, figures: BTreeMap::new() }
    }

    #[must_use]
    pub fn figure(mut self, name: impl Into<Cow<'static, str>>, value: f64) -> Block {
        self.figures.insert(name.into(), value);
        self
    }
}

/// CPU time used by others during a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ForeignLoad {
    /// CPU time of other programs, as a share of one CPU.
    pub foreign: f64,
    /// By how much that may be too high.
    pub foreign_error: f64,
    /// Steal time: CPU time that the hypervisor below gave to others, over all CPUs, as a share of one CPU.
    pub steal: f64,
    /// By how much that may be too high.
    pub steal_error: f64,
}

impl ForeignLoad {
    /// Whether either share is above `limit`, also after its error is subtracted.
    pub fn exceeds(&self, limit: f64) -> bool {
        self.foreign - self.foreign_error > limit || self.steal - self.steal_error > limit
    }
}

/// Whether a block counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockStatus {
    Kept,
    /// It counts in spite of foreign load: no other attempt had less, or there was none.
    KeptDisturbed,
    /// It does not count: another attempt had less foreign load.
    Rejected,
}

/// A block with everything that is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredBlock {
    /// Index of the arm in [`Measurements::arms`].
    pub arm: usize,
    /// Number of the round, from 0.
    pub round: u32,
    /// 0: the first pass of the round, 1: the second, in reverse order.
    pub pass: u8,
    /// Number of its stimulus.
    pub sequence: u64,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// How long it took, including the preparation by `measure`.
    pub elapsed: Duration,
    /// Foreign load; `None`: not known.
    pub load: Option<ForeignLoad>,
    pub status: BlockStatus,
    pub block: Block,
}

/// Blocks that were repeated for foreign load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gating {
    /// How foreign load was measured.
    pub source: String,
    /// Blocks that count.
    pub blocks: u64,
    /// Attempts that do not count.
    pub rejected: u64,
    /// Blocks that count in spite of foreign load.
    pub disturbed: u64,
    /// Blocks that count and whose foreign load is not known.
    pub unknown: u64,
    /// The round, from 0, from which on no block was repeated because foreign load did not end.
    pub given_up_in_round: Option<u32>,
    /// Consecutive blocks with foreign load.
    #[serde(skip)]
    in_a_row: u32,
}

impl Gating {
    /// Whether blocks are no longer repeated.
    pub fn given_up(&self) -> bool {
        self.given_up_in_round.is_some()
    }

    pub(super) fn consider_giving_up(&mut self, after: u32, round: u32) {
        if !self.given_up() && self.in_a_row >= after.max(1) {
            self.given_up_in_round = Some(round);
        }
    }
}

/// Why a campaign ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// All intervals are as narrow as required.
    Precise,
    /// The most rounds were measured.
    Rounds,
    /// There was not enough time for another round.
    Budget,
    /// It was stopped by the caller.
    Stopped,
    /// A block could not be measured.
    Failed,
}

/// Name and role of an arm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ArmName {
    pub name: String,
    /// What it is for.
    pub role: Role,
}

/// Everything that a campaign measured.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// Name of the campaign.
    pub name: String,
    /// The baseline first, the control last.
    pub arms: Vec<ArmName>,
    /// Which figures are reported.
    pub figures: Vec<Figure>,
    /// How the campaign was to be run.
    pub options: CampaignOptions,
    /// All blocks in order of time, including those that do not count and those of an incomplete round.
    pub blocks: Vec<MeasuredBlock>,
    /// Complete rounds. Only these count.
    pub rounds: u32,
    /// Blocks that were repeated for foreign load.
    pub gating: Gating,
    /// Why a campaign ended.
    pub ended: StopReason,
    /// How long it took.
    pub elapsed: Duration,
}

impl Measurements {
    pub(super) fn new<S>(
        name: &str,
        arms: &[Arm<S>],
        figures: &[Figure],
        options: CampaignOptions,
    ) -> Measurements {
        Measurements {
            name: name.to_owned(),
            arms: arms.iter().map(|arm| ArmName { name: arm.name.clone(), role: arm.role }).collect(),
            figures: figures.to_vec(),
            options,
            blocks: Vec::new(),
            rounds: 0,
            gating: Gating::default(),
            ended: StopReason::Stopped,
            elapsed: Duration::ZERO,
        }
    }

    /// The blocks of one arm that count, by complete round.
    pub fn rounds_of(&self, arm: usize) -> Vec<Vec<&Block>> {
        let mut rounds = vec![Vec::new(); self.rounds as usize];
        let counts =
            |measured: &&MeasuredBlock| measured.arm == arm && measured.status != BlockStatus::Rejected;
        for measured in self.blocks.iter().filter(counts) {
            if let Some(round) = rounds.get_mut(measured.round as usize) {
                round.push(&measured.block);
            }
        }
        rounds
    }

    /// Of the attempts from index `first` on, all at one block, lets the one with the least foreign load count.
    pub(super) fn choose(&mut self, first: usize, limit: f64) {
        let foreign =
            |measured: &MeasuredBlock| measured.load.map_or(0.0, |load| load.foreign.max(load.steal));
        let attempts = &mut self.blocks[first..];
        let Some(best) =
            (0..attempts.len()).min_by(|a, b| foreign(&attempts[*a]).total_cmp(&foreign(&attempts[*b])))
        else {
            return;
        };
        attempts.iter_mut().for_each(|attempt| attempt.status = BlockStatus::Rejected);
        let gating = &mut self.gating;
        gating.blocks += 1;
        gating.rejected += attempts.len() as u64 - 1;
        gating.unknown += u64::from(attempts[best].load.is_none());
        let disturbed = attempts[best].load.is_some_and(|load| load.exceeds(limit));
        gating.disturbed += u64::from(disturbed);
        gating.in_a_row = if disturbed { gating.in_a_row + 1 } else { 0 };
        attempts[best].status = if disturbed { BlockStatus::KeptDisturbed } else { BlockStatus::Kept };
    }
}
