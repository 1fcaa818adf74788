//! Runs a campaign: measures block after block until the figures are known precisely enough.

use crate::MIN_ROUNDS;
use crate::figure::Figure;
use crate::measurements::{Block, BlockStatus, ForeignLoad, Gating, MeasuredBlock, Measurements, StopReason};
use crate::options::CampaignOptions;
use crate::schedule::{self, Arm, Arms, PASSES, Slot};
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What a campaign reads from the machine: a clock and the foreign load.
/// `FakeEnvironment` of `dwell-testing` is for tests.
pub trait Environment {
    /// The time of a monotonic clock; its zero does not matter.
    fn now(&mut self) -> Duration;
    /// Called at the start of a block.
    fn begin(&mut self) {}
    /// Called at the end of a block. Returns the foreign load since its start; `None`: not known.
    fn end(&mut self) -> Option<ForeignLoad> {
        None
    }
    /// Waits until foreign load is at most `limit`, as a share of one CPU, but no longer than `longest`.
    /// Returns whether it is.
    fn wait_quiet(&mut self, _limit: f64, _longest: Duration) -> bool {
        true
    }
    /// How foreign load is measured, for people.
    fn source(&self) -> String {
        "nothing".to_owned()
    }
}

/// One block to measure.
#[derive(Debug)]
pub struct Trial<'a, S> {
    /// The setting to measure.
    pub setting: &'a S,
    /// Name of the arm.
    pub name: &'a str,
    /// Index of the arm in [`Arms::as_slice`].
    pub arm: usize,
    /// Number of the round, from 0.
    pub round: u32,
    /// 0: the first pass of the round, 1: the second, in reverse order.
    pub pass: u8,
    /// Number of the stimulus, from 0: the same for all arms of a pass and for all attempts.
    pub sequence: u64,
    /// From 0; above 0 where the block is repeated.
    pub attempt: u32,
    /// Whether this block is a warm-up that will be discarded.
    pub warm_up: bool,
}

/// Progress of a campaign, reported before each block.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Name of the arm that is measured next.
    pub arm: &'a str,
    /// Number of the round, from 0.
    pub round: u32,
    /// Number of the block in the round, from 0.
    pub block: usize,
    /// Blocks of a round.
    pub blocks: usize,
    /// Time since the start.
    pub elapsed: Duration,
    /// The most time the campaign may take.
    pub budget: Duration,
    /// Blocks repeated for foreign load so far.
    pub gating: &'a Gating,
    /// Of the figures with a required precision, the one farthest from it: its name, half the width of the
    /// interval of its ratio (0.05: ±5 %), and the half width required. `None` before the least number of
    /// rounds.
    pub widest: Option<(&'a str, f64, f64)>,
}

/// Why a campaign failed.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError<E: Error + 'static> {
    #[error("cannot measure arm `{arm}` in round {}", .round + 1)]
    Block {
        /// Name of the arm.
        arm: String,
        /// Number of the round, from 0.
        round: u32,
        source: E,
        /// What was measured before.
        measurements: Box<Measurements>,
    },
}

/// Two arms or two figures have the same name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DuplicateName {
    #[error("two arms have the name `{name}`")]
    Arm { name: String },
    #[error("two figures have the name `{name}`")]
    Figure { name: String },
}

/// A comparison of settings, ready to run.
#[derive(Clone, Debug)]
pub struct Campaign<S> {
    name: String,
    arms: Arms<S>,
    figures: Vec<Figure>,
    options: CampaignOptions,
}

/// A clock: of foreign load nothing is known, so no block is repeated, which a warning in the results reports.
impl<C: FnMut() -> Duration> Environment for C {
    fn now(&mut self) -> Duration {
        self()
    }
}

impl<S> Campaign<S> {
    /// Combines arms, figures and options.
    ///
    /// # Errors
    /// Where two arms or two figures have the same name.
    pub fn new(
        name: &str,
        arms: Arms<S>,
        figures: impl IntoIterator<Item = Figure>,
        options: CampaignOptions,
    ) -> Result<Campaign<S>, DuplicateName> {
        let figures: Vec<Figure> = figures.into_iter().collect();
        if let Some(name) = twice(arms.as_slice().iter().map(|arm| arm.name.as_str())) {
            return Err(DuplicateName::Arm { name });
        }
        if let Some(name) = twice(figures.iter().map(|figure| &*figure.name)) {
            return Err(DuplicateName::Figure { name });
        }
        Ok(Campaign { name: name.to_owned(), arms, figures, options })
    }

    /// Runs the campaign. `measure` measures one block; `progress` is called before each; setting `stop` ends
    /// the campaign early, with the rounds completed so far.
    ///
    /// # Errors
    /// The first error of `measure`, with what was measured before it.
    pub fn run<E: Error + 'static>(
        &self,
        environment: &mut dyn Environment,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(&Progress<'_>),
        measure: impl FnMut(&Trial<'_, S>) -> Result<Block, E>,
    ) -> Result<Measurements, CampaignError<E>> {
        let start = environment.now();
        let mut measurements =
            Measurements::new(&self.name, self.arms.as_slice(), &self.figures, self.options.clone());
        measurements.gating.source = environment.source();
        let mut run =
            Run { campaign: self, environment, start, stop, progress, measure, measurements, widest: None };
        let ended = run.all();
        let elapsed = run.elapsed();
        let mut measurements = Measurements { elapsed, ..run.measurements };
        match ended {
            Ok(ended) => {
                measurements.ended = ended;
                Ok(measurements)
            }
            Err(Failed { arm, round, source }) => {
                measurements.ended = StopReason::Failed;
                let arm = self.arms.as_slice()[arm].name.clone();
                Err(CampaignError::Block { arm, round, source, measurements: Box::new(measurements) })
            }
        }
    }
}

fn twice<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut seen = BTreeSet::new();
    names.find(|name| !seen.insert(*name)).map(str::to_owned)
}

/// A block that failed.
struct Failed<E> {
    arm: usize,
    round: u32,
    source: E,
}

struct Run<'a, S, M> {
    campaign: &'a Campaign<S>,
    environment: &'a mut dyn Environment,
    start: Duration,
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(&Progress<'_>),
    measure: M,
    measurements: Measurements,
    /// As in [`Progress`], with the index of the figure.
    widest: Option<(usize, f64, f64)>,
}

impl<S, E, M: FnMut(&Trial<'_, S>) -> Result<Block, E>> Run<'_, S, M> {
    fn elapsed(&mut self) -> Duration {
        self.environment.now().saturating_sub(self.start)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn all(&mut self) -> Result<StopReason, Failed<E>> {
        if self.campaign.options.warm_up && !self.warm_up()? {
            return Ok(StopReason::Stopped);
        }
        let mut longest = Duration::ZERO;
        loop {
            if let Some(ended) = self.enough(longest) {
                return Ok(ended);
            }
            let began = self.elapsed();
            if let Some(ended) = self.round(self.measurements.rounds)? {
                return Ok(ended);
            }
            self.measurements.rounds += 1;
            longest = longest.max(self.elapsed().saturating_sub(began));
        }
    }

    fn warm_up(&mut self) -> Result<bool, Failed<E>> {
        for arm in 0..self.campaign.arms.as_slice().len() {
            if self.stopped() {
                return Ok(false);
            }
            self.report(arm, 0, 0);
            let trial = trial(&self.campaign.arms, Slot { arm, pass: 0 }, 0, 0, true);
            (self.measure)(&trial).map_err(|source| Failed { arm, round: 0, source })?;
        }
        Ok(true)
    }

    /// Why to measure no more, if so: precise enough, or no time for another round.
    fn enough(&mut self, longest: Duration) -> Option<StopReason> {
        let CampaignOptions { min_rounds, max_rounds, budget, .. } = self.campaign.options;
        let rounds = self.measurements.rounds;
        if rounds as usize >= MIN_ROUNDS && rounds >= min_rounds {
            self.widest = self.measurements.widest();
            if self.widest.is_some_and(|(_, half_width, within)| half_width <= within) {
                return Some(StopReason::Precise);
            }
        }
        if rounds >= max_rounds {
            return Some(StopReason::Rounds);
        }
        (rounds > 0 && self.elapsed() + longest > budget).then_some(StopReason::Budget)
    }

    /// Measures one round. `Some`: it was interrupted.
    fn round(&mut self, round: u32) -> Result<Option<StopReason>, Failed<E>> {
        for (block, slot) in schedule::round(self.campaign.arms.as_slice().len(), round).enumerate() {
            if self.stopped() {
                return Ok(Some(StopReason::Stopped));
            }
            if round > 0 && self.elapsed() > self.campaign.options.budget {
                return Ok(Some(StopReason::Budget));
            }
            self.report(slot.arm, round, block);
            self.block(round, slot)?;
        }
        Ok(None)
    }

    fn report(&mut self, arm: usize, round: u32, block: usize) {
        let arms = self.campaign.arms.as_slice();
        let figures = &self.campaign.figures;
        let elapsed = self.elapsed();
        (self.progress)(&Progress {
            arm: &arms[arm].name,
            round,
            block,
            blocks: arms.len() * usize::from(PASSES),
            elapsed,
            budget: self.campaign.options.budget,
            gating: &self.measurements.gating,
            widest: self
                .widest
                .map(|(figure, half_width, within)| (&*figures[figure].name, half_width, within)),
        });
    }

    /// Measures one block, repeats it on foreign load, and keeps all attempts.
    fn block(&mut self, round: u32, slot: Slot) -> Result<(), Failed<E>> {
        let CampaignOptions { foreign_limit, quiet_wait, repeats, .. } = self.campaign.options;
        let first = self.measurements.blocks.len();
        for attempt in 0.. {
            let measured = self.attempt(round, slot, attempt)?;
            let disturbed = measured.load.is_some_and(|load| load.exceeds(foreign_limit));
            self.measurements.blocks.push(measured);
            if !disturbed {
                break;
            }
            let out_of_time = self.elapsed() > self.campaign.options.budget;
            if attempt >= repeats || out_of_time || self.stopped() || self.measurements.gating.given_up() {
                break;
            }
            self.environment.wait_quiet(foreign_limit, quiet_wait);
        }
        self.measurements.choose(first, foreign_limit);
        self.measurements.gating.consider_giving_up(self.campaign.options.give_up_after, round);
        Ok(())
    }

    fn attempt(&mut self, round: u32, slot: Slot, attempt: u32) -> Result<MeasuredBlock, Failed<E>> {
        let trial = trial(&self.campaign.arms, slot, round, attempt, false);
        let began = self.environment.now();
        self.environment.begin();
        let block = (self.measure)(&trial);
        let load = self.environment.end();
        let block = block.map_err(|source| Failed { arm: slot.arm, round, source })?;
        Ok(MeasuredBlock {
            arm: slot.arm,
            round,
            pass: slot.pass,
            sequence: trial.sequence,
            attempt,
            elapsed: self.environment.now().saturating_sub(began),
            load,
            status: BlockStatus::Kept,
            block,
        })
    }
}

fn trial<S>(arms: &Arms<S>, slot: Slot, round: u32, attempt: u32, warm_up: bool) -> Trial<'_, S> {
    let Arm { name, setting, .. } = &arms.as_slice()[slot.arm];
    let sequence = u64::from(round) * u64::from(PASSES) + u64::from(slot.pass);
    Trial { setting, name, arm: slot.arm, round, pass: slot.pass, sequence, attempt, warm_up }
}

#[cfg(test)]
mod tests;
