//! Blocks, in order, until the figures are known well enough.

use super::findings::Figure;
use super::interval::MIN_ROUNDS;
use super::record::{Block, Disturbance, Ended, Gating, Measured, Record, Verdict};
use super::schedule::{Arm, Arms, Schedule, Slot};
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long to measure, and when to believe a block.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Plan {
    /// From which everything random comes: gaps and resamples.
    pub seed: u64,
    /// Rounds before it may end for being precise, at least [`MIN_ROUNDS`]. Stopping as soon as an interval happens to be narrow makes intervals a little too
    /// narrow; the more rounds there are at least, the less.
    pub min_rounds: u32,
    /// Rounds at most.
    pub max_rounds: u32,
    /// Time at most. No round is begun that would not end in time, judged by the longest so far; the first always is.
    #[serde(rename = "budget_s", serialize_with = "seconds")]
    pub budget: Duration,
    /// CPU time of others during a block, as a share of one CPU, beyond which it is measured again.
    pub foreign_limit: f64,
    /// How often one block is measured again before the least disturbed attempt is taken.
    pub repeats: u32,
    /// How long to wait for a quiet machine before a block is measured again.
    #[serde(rename = "quiet_wait_s", serialize_with = "seconds")]
    pub quiet_wait: Duration,
    /// After how many blocks in a row that stayed disturbed no more are repeated: the machine is never quiet.
    pub give_up_after: u32,
    /// How often an interval shall hold the truth.
    pub confidence: f64,
    /// Whether each arm is measured once before the first round, and thrown away.
    pub warm_up: bool,
}

impl Default for Plan {
    /// 8 rounds at least, a minute at most, 2 % of a CPU for others, intervals of 95 %.
    fn default() -> Plan {
        Plan {
            seed: 1,
            min_rounds: 8,
            max_rounds: u32::MAX,
            budget: Duration::from_mins(1),
            foreign_limit: 0.02,
            repeats: 4,
            quiet_wait: Duration::from_secs(2),
            give_up_after: 3,
            confidence: 0.95,
            warm_up: true,
        }
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_f64(time.as_secs_f64())
}

/// The machine around an experiment: a clock, and what others do. Faked in tests.
pub trait Surroundings {
    /// A clock that does not go back; from when does not matter.
    fn now(&mut self) -> Duration;
    /// A block begins.
    fn begin(&mut self);
    /// It has ended: what others took of the machine meanwhile, as far as that can be known.
    fn end(&mut self) -> Option<Disturbance>;
    /// Waits until others take no more than `limit` of a CPU, but no longer than `most`. Returns whether they do.
    fn wait_quiet(&mut self, limit: f64, most: Duration) -> bool;
    /// How the disturbance is known, for people.
    fn source(&self) -> String;
}

/// A machine of which nothing is known; no block is repeated, and the findings say so.
#[derive(Clone, Copy, Debug)]
pub struct Undisturbed {
    start: std::time::Instant,
}

/// What a block has to measure.
#[derive(Debug)]
pub struct Turn<'a, S> {
    /// What to set.
    pub setting: &'a S,
    /// What it is called.
    pub name: &'a str,
    /// Which arm, by its place in [`Arms::as_slice`].
    pub arm: usize,
    /// From 0.
    pub round: u32,
    /// 0: on the way there, 1: on the way back.
    pub pass: u8,
    /// Number of the sequence of gaps ([`Gaps::sequence`](super::Gaps::sequence)): the same for all arms of a pass, and
    /// for all attempts.
    pub sequence: u64,
    /// From 0; more where the block was disturbed before.
    pub attempt: u32,
    /// This block warms the machine up and will be thrown away.
    pub warm_up: bool,
}

/// How far it is, told before each block.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// What is measured next.
    pub arm: &'a str,
    /// In which round, from 0.
    pub round: u32,
    /// Which block of the round, from 0.
    pub block: usize,
    /// Blocks of a round.
    pub blocks: usize,
    /// Since the beginning.
    pub elapsed: Duration,
    /// How long it may take.
    pub budget: Duration,
    /// How well blocks could be kept undisturbed so far.
    pub gating: &'a Gating,
    /// Of the figures that shall be known precisely, the one that is farthest from it: its name, how far its interval
    /// reaches to either side (0.05: ±5 %), and how far it shall. Known after the least number of rounds.
    pub widest: Option<(&'a str, f64, f64)>,
}

/// Why a campaign could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError<E: Error + 'static> {
    /// A block failed.
    #[error("cannot measure `{arm}` in round {round}")]
    Block {
        /// Which arm.
        arm: String,
        /// From 0.
        round: u32,
        /// Why.
        source: E,
        /// What was measured before.
        record: Box<Record>,
    },
}

/// Names that cannot be told apart.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesError {
    /// Of two arms.
    #[error("two arms are called `{name}`")]
    Arm {
        /// The name.
        name: String,
    },
    /// Of two figures.
    #[error("two figures are called `{name}`")]
    Figure {
        /// The name.
        name: String,
    },
}

/// An experiment that can be run.
#[derive(Clone, Debug)]
pub struct Campaign<S> {
    name: String,
    arms: Arms<S>,
    figures: Vec<Figure>,
    plan: Plan,
}

impl Undisturbed {
    /// Begins now.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Undisturbed {
        Undisturbed { start: std::time::Instant::now() }
    }
}

impl Surroundings for Undisturbed {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn begin(&mut self) {}

    fn end(&mut self) -> Option<Disturbance> {
        None
    }

    fn wait_quiet(&mut self, _limit: f64, _most: Duration) -> bool {
        true
    }

    fn source(&self) -> String {
        "nothing".to_owned()
    }
}

impl<S> Campaign<S> {
    /// Such an experiment.
    ///
    /// # Errors
    /// Where two arms or two figures have one name.
    pub fn new(
        name: &str,
        arms: Arms<S>,
        figures: impl IntoIterator<Item = Figure>,
        plan: Plan,
    ) -> Result<Campaign<S>, NamesError> {
        let figures: Vec<Figure> = figures.into_iter().collect();
        if let Some(name) = twice(arms.as_slice().iter().map(|arm| arm.name.as_str())) {
            return Err(NamesError::Arm { name });
        }
        if let Some(name) = twice(figures.iter().map(Figure::name)) {
            return Err(NamesError::Figure { name });
        }
        Ok(Campaign { name: name.to_owned(), arms, figures, plan })
    }

    /// Measures. `measure` is called for each block; `stop` ends it early with what there is; `progress` is told before
    /// each block.
    ///
    /// # Errors
    /// The first error of `measure`, with what was measured before it.
    pub fn run<E: Error + 'static>(
        &self,
        surroundings: &mut dyn Surroundings,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(&Progress<'_>),
        measure: impl FnMut(&Turn<'_, S>) -> Result<Block, E>,
    ) -> Result<Record, CampaignError<E>> {
        let start = surroundings.now();
        let mut record = Record::new(&self.name, self.arms.as_slice(), &self.figures, self.plan.clone());
        record.gating.source = surroundings.source();
        let mut run =
            Run { campaign: self, surroundings, start, stop, progress, measure, record, widest: None };
        let ended = run.all();
        let elapsed = run.elapsed();
        let mut record = Record { elapsed, ..run.record };
        match ended {
            Ok(ended) => {
                record.ended = ended;
                Ok(record)
            }
            Err(Failed { arm, round, source }) => {
                record.ended = Ended::Failed;
                let arm = self.arms.as_slice()[arm].name.clone();
                Err(CampaignError::Block { arm, round, source, record: Box::new(record) })
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

/// A campaign that is running.
struct Run<'a, S, M> {
    campaign: &'a Campaign<S>,
    surroundings: &'a mut dyn Surroundings,
    start: Duration,
    stop: &'a AtomicBool,
    progress: &'a mut dyn FnMut(&Progress<'_>),
    measure: M,
    record: Record,
    /// As in [`Progress`], the figure by its number.
    widest: Option<(usize, f64, f64)>,
}

impl<S, E, M: FnMut(&Turn<'_, S>) -> Result<Block, E>> Run<'_, S, M> {
    fn elapsed(&mut self) -> Duration {
        self.surroundings.now().saturating_sub(self.start)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn all(&mut self) -> Result<Ended, Failed<E>> {
        if self.campaign.plan.warm_up && !self.warm_up()? {
            return Ok(Ended::Stopped);
        }
        let mut longest = Duration::ZERO;
        loop {
            if let Some(ended) = self.enough(longest) {
                return Ok(ended);
            }
            let began = self.elapsed();
            if let Some(ended) = self.round(self.record.rounds)? {
                return Ok(ended);
            }
            self.record.rounds += 1;
            longest = longest.max(self.elapsed().saturating_sub(began));
        }
    }

    fn warm_up(&mut self) -> Result<bool, Failed<E>> {
        for arm in 0..self.campaign.arms.as_slice().len() {
            if self.stopped() {
                return Ok(false);
            }
            self.tell(arm, 0, 0);
            let turn = turn(&self.campaign.arms, Slot { arm, pass: 0 }, 0, 0, true);
            (self.measure)(&turn).map_err(|source| Failed { arm, round: 0, source })?;
        }
        Ok(true)
    }

    /// Whether there is enough, or no time for another round as long as the longest.
    fn enough(&mut self, longest: Duration) -> Option<Ended> {
        let Plan { min_rounds, max_rounds, budget, .. } = self.campaign.plan;
        let rounds = self.record.rounds;
        if rounds as usize >= MIN_ROUNDS && rounds >= min_rounds {
            self.widest = self.record.widest();
            if self.widest.is_some_and(|(_, half_width, within)| half_width <= within) {
                return Some(Ended::Precise);
            }
        }
        if rounds >= max_rounds {
            return Some(Ended::Rounds);
        }
        (rounds > 0 && self.elapsed() + longest > budget).then_some(Ended::Budget)
    }

    /// Measures one round. `Some`: it had to be broken off.
    fn round(&mut self, round: u32) -> Result<Option<Ended>, Failed<E>> {
        let schedule = Schedule::new(self.campaign.arms.as_slice().len());
        for (block, slot) in schedule.round(round).enumerate() {
            if self.stopped() {
                return Ok(Some(Ended::Stopped));
            }
            if round > 0 && self.elapsed() > self.campaign.plan.budget {
                return Ok(Some(Ended::Budget));
            }
            self.tell(slot.arm, round, block);
            self.block(round, slot)?;
        }
        Ok(None)
    }

    fn tell(&mut self, arm: usize, round: u32, block: usize) {
        let arms = self.campaign.arms.as_slice();
        let figures = &self.campaign.figures;
        let elapsed = self.elapsed();
        (self.progress)(&Progress {
            arm: &arms[arm].name,
            round,
            block,
            blocks: arms.len() * usize::from(Schedule::PASSES),
            elapsed,
            budget: self.campaign.plan.budget,
            gating: &self.record.gating,
            widest: self
                .widest
                .map(|(figure, half_width, within)| (figures[figure].name(), half_width, within)),
        });
    }

    /// Measures one block, again where it was disturbed, and puts all attempts on record.
    fn block(&mut self, round: u32, slot: Slot) -> Result<(), Failed<E>> {
        let Plan { foreign_limit, quiet_wait, repeats, .. } = self.campaign.plan;
        let first = self.record.blocks.len();
        for attempt in 0.. {
            let measured = self.attempt(round, slot, attempt)?;
            let disturbed = measured.disturbance.is_some_and(|found| found.exceeds(foreign_limit));
            self.record.blocks.push(measured);
            if !disturbed {
                break;
            }
            let out_of_time = self.elapsed() > self.campaign.plan.budget;
            if attempt >= repeats || out_of_time || self.stopped() || self.record.gating.given_up() {
                break;
            }
            self.surroundings.wait_quiet(foreign_limit, quiet_wait);
        }
        self.record.choose(first, foreign_limit);
        self.record.gating.consider_giving_up(self.campaign.plan.give_up_after, round);
        Ok(())
    }

    fn attempt(&mut self, round: u32, slot: Slot, attempt: u32) -> Result<Measured, Failed<E>> {
        let turn = turn(&self.campaign.arms, slot, round, attempt, false);
        let began = self.surroundings.now();
        self.surroundings.begin();
        let block = (self.measure)(&turn);
        let disturbance = self.surroundings.end();
        let block = block.map_err(|source| Failed { arm: slot.arm, round, source })?;
        Ok(Measured {
            arm: slot.arm,
            round,
            pass: slot.pass,
            sequence: turn.sequence,
            attempt,
            elapsed: self.surroundings.now().saturating_sub(began),
            disturbance,
            verdict: Verdict::Kept,
            block,
        })
    }
}

fn turn<S>(arms: &Arms<S>, slot: Slot, round: u32, attempt: u32, warm_up: bool) -> Turn<'_, S> {
    let Arm { name, setting, .. } = &arms.as_slice()[slot.arm];
    let sequence = u64::from(round) * u64::from(Schedule::PASSES) + u64::from(slot.pass);
    Turn { setting, name, arm: slot.arm, round, pass: slot.pass, sequence, attempt, warm_up }
}

#[cfg(test)]
mod tests;
