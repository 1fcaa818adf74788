//! From a recording to advice.
//!
//! The first half of the recording is for choosing, the second for judging: a setting is recommended for what it did
//! on the first half, and every figure shown of it is from the second, which had no part in the choice. Policies are
//! not started anew between the halves, as they would not be on a machine.
//!
//! Advice is given only if the gain is beyond doubt: the second half is cut into blocks, the blocks are drawn again
//! and again with replacement, and the whole 95 % interval of the gain has to lie above zero.

use crate::bank::Bank;
use crate::bound::{FixedWindows, OptimumBound};
use crate::counts::Counts;
use crate::rule::{Rule, RuleError};
use crate::source::{Source, SourceError, Span};
use dwell_policy::Nanos;
use dwell_policy::catalogue::Terms;
use dwell_policy::param::Setting;
use dwell_stats::{BLOCKS, Bootstrap, Draw};

pub use dwell_stats::Interval;

/// What a good setting is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Least cost: CPU burnt polling plus halts at their price.
    LeastCost,
    /// Fewest halts among the settings that burn at most this share of one CPU.
    MaxCpu(f64),
    /// Least CPU burnt among the settings with at most so many halts per second.
    MaxHaltsPerSecond(f64),
}

/// What is to be tuned.
pub struct Task<'a> {
    /// The recording.
    pub source: &'a dyn Source,
    /// The setting in force.
    pub present: Setting,
    /// The settings to choose from.
    pub candidates: &'a [Setting],
    /// What is wanted.
    pub goal: Goal,
    /// What one halt and wake is worth in CPU time.
    pub halt_cost: Nanos,
    /// Is told how many episodes of the recording were worked through since it was told last; there are two passes.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// Half of nothing.
    #[error(
        "{0} episodes are too few to choose on one half and judge on the other; at least {MIN_EPISODES} are needed"
    )]
    TooFew(u64),
    /// The recording cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A setting cannot be replayed.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// The fewest episodes that are tuned on: two in each block of both halves.
pub const MIN_EPISODES: u64 = 4 * BLOCKS as u64;

/// Costs this close to the best are equal; among equals the setting with the fewest changes is taken.
const EQUAL: f64 = 0.005;

/// A limit is aimed at with so much to spare, since the next load will not be exactly this one.
const SPARE: f64 = 0.05;

/// A gain below this share of the present cost is not worth a change, however certain it is.
pub const WORTH_A_CHANGE: f64 = 0.01;

/// One policy on the second half.
#[derive(Clone, Debug)]
pub struct Row {
    /// Which one.
    pub role: Role,
    /// The policy; `None` for the optimum, which is none.
    pub rule: Option<Rule>,
    /// What it did on the second half.
    pub counts: Counts,
    /// What it did on the first half.
    pub fitted: Counts,
}

/// What a row of the table stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Never polls.
    Never,
    /// Always polls.
    Always,
    /// The setting in force.
    Present,
    /// Chosen on the first half.
    Recommended,
    /// The best of all candidates on the second half: what the rule could have done.
    BestInHindsight,
    /// The best fixed window for the second half.
    BestFixedWindow,
    /// What a better rule would get: polls as long as that has saved something.
    Savings,
    /// What a better rule would get: follows the window that would have cost least.
    Leader,
    /// What no policy can beat.
    Optimum,
}

impl Role {
    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Never => "never",
            Role::Always => "always",
            Role::Present => "present",
            Role::Recommended => "recommended",
            Role::BestInHindsight => "best in hindsight",
            Role::BestFixedWindow => "best fixed window",
            Role::Savings => "savings",
            Role::Leader => "leader",
            Role::Optimum => "optimum",
        }
    }
}

/// What is advised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Set the recommended setting.
    Change,
    /// The present setting is the recommended one.
    AlreadyBest,
    /// The gain on the second half is not beyond noise, or there is none.
    WithinNoise,
    /// The gain is certain and too small to matter.
    TooSmall,
    /// The recommended setting missed the goal's limit on the second half.
    MissedLimit,
    /// No candidate meets the goal's limit on the first half.
    Unattainable,
}

impl Verdict {
    /// Whether to change anything.
    pub const fn is_change(self) -> bool {
        matches!(self, Verdict::Change)
    }
}

/// The advice and what it rests on.
#[derive(Clone, Debug)]
pub struct Advice {
    /// What to do.
    pub verdict: Verdict,
    /// Policies and bounds on the second half.
    pub rows: Vec<Row>,
    /// Gain of the recommended over the present setting on the second half, as a share of the present: of the cost, of
    /// the halts or of the CPU burnt, as the goal has it.
    pub gain: Interval,
    /// Of the candidates on the second half, those than which no other both burns less CPU and halts less: in order of
    /// the CPU burnt, so that halts, and with them the added latency, fall.
    pub front: Vec<Candidate>,
    /// Settings that were tried.
    pub tried: usize,
    /// Length of the first half \[ns\].
    pub fitted_span_ns: u64,
    /// Length of the second half \[ns\].
    pub judged_span_ns: u64,
}

/// A setting on the second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The setting.
    pub setting: Setting,
    /// What it did on the second half.
    pub counts: Counts,
}

/// The candidates than which no other both burns less CPU and halts less, in order of the CPU burnt; of equals the
/// first.
fn front(candidates: &[Setting], counts: &[Counts]) -> Vec<Candidate> {
    let candidate = |(setting, counts): (&Setting, &Counts)| Candidate { setting: *setting, counts: *counts };
    let mut all: Vec<Candidate> = candidates.iter().zip(counts).map(candidate).collect();
    all.sort_by_key(|candidate| (candidate.counts.polled_ns, candidate.counts.halts));
    let mut least = u64::MAX;
    all.retain(|candidate| {
        let fewer = candidate.counts.halts < least;
        least = least.min(candidate.counts.halts);
        fewer
    });
    all
}

impl Advice {
    /// The row of a role.
    pub fn row(&self, role: Role) -> &Row {
        self.rows.iter().find(|row| row.role == role).unwrap_or(&self.rows[0])
    }
}

/// Searches, judges and advises.
///
/// # Errors
/// [`TuneError`] for a recording that is too short or cannot be read, and for settings that cannot be replayed.
pub fn tune(task: &Task<'_>) -> Result<Advice, TuneError> {
    let episodes = task.source.episodes();
    if episodes < MIN_EPISODES {
        return Err(TuneError::TooFew(episodes));
    }
    let half = episodes / 2;
    let search = Search::run(task, half)?;
    let value = Valuation { goal: task.goal, halt_cost: task.halt_cost };
    let recommended = search.choose(task, &value);
    let hindsight = search.best_in_hindsight(&value);
    let (fixed_window, fixed_counts) = search.best_fixed_window(&value);

    let rule = |index: usize| Rule::Layer(task.candidates[index]);
    let chosen = recommended.map_or(Rule::Layer(task.present), rule);
    let finalists = [
        (Role::Never, Rule::Never),
        (Role::Always, Rule::Always),
        (Role::Present, Rule::Layer(task.present)),
        (Role::Recommended, chosen),
        (Role::BestInHindsight, rule(hindsight)),
        (Role::BestFixedWindow, Rule::Fixed(fixed_window)),
        (Role::Savings, Rule::savings(Terms::at(task.halt_cost))),
        (Role::Leader, Rule::leader(Terms::at(task.halt_cost))),
    ];
    let judged = Judged::run(task, half, &finalists.map(|(_, rule)| rule))?;
    debug_assert_eq!(judged.total(5), fixed_counts);

    let mut rows: Vec<Row> = (0..)
        .zip(finalists)
        .map(|(i, (role, rule))| Row {
            role,
            rule: Some(rule),
            counts: judged.total(i),
            fitted: judged.fitted[i],
        })
        .collect();
    let [fitted, counts] = search.optimum;
    rows.push(Row { role: Role::Optimum, rule: None, counts, fitted });

    let gain = judged.gain(2, 3, &value);
    let verdict = verdict(task, recommended.is_some(), chosen, &judged, gain);
    Ok(Advice {
        verdict,
        rows,
        gain,
        front: front(task.candidates, &search.judged),
        tried: task.candidates.len(),
        fitted_span_ns: search.fitted_span.ns(),
        judged_span_ns: judged.span.ns(),
    })
}

fn verdict(task: &Task<'_>, attainable: bool, chosen: Rule, judged: &Judged, gain: Interval) -> Verdict {
    let (present, recommended) = (judged.total(2), judged.total(3));
    let meets = |counts: &Counts| Limit::of(task.goal, judged.span).is_met_by(counts);
    if !attainable {
        Verdict::Unattainable
    } else if chosen == Rule::Layer(task.present) {
        Verdict::AlreadyBest
    } else if !meets(&recommended) {
        Verdict::MissedLimit
    } else if !meets(&present) {
        // The present setting breaks the limit: that the other keeps it is the gain.
        Verdict::Change
    } else if gain.low <= 0.0 {
        Verdict::WithinNoise
    } else if gain.value < WORTH_A_CHANGE {
        Verdict::TooSmall
    } else {
        Verdict::Change
    }
}

/// How good some counts are under the goal: less is better.
struct Valuation {
    goal: Goal,
    halt_cost: Nanos,
}

impl Valuation {
    fn of(&self, counts: &Counts) -> f64 {
        match self.goal {
            Goal::LeastCost => counts.cost_ns(self.halt_cost) as f64,
            Goal::MaxCpu(_) => counts.halts as f64,
            Goal::MaxHaltsPerSecond(_) => counts.polled_ns as f64,
        }
    }
}

/// What the goal forbids, over a span.
struct Limit {
    polled_ns: f64,
    halts: f64,
}

impl Limit {
    fn of(goal: Goal, span: Span) -> Limit {
        let ns = span.ns() as f64;
        match goal {
            Goal::LeastCost => Limit { polled_ns: f64::INFINITY, halts: f64::INFINITY },
            Goal::MaxCpu(share) => Limit { polled_ns: share * ns, halts: f64::INFINITY },
            Goal::MaxHaltsPerSecond(rate) => Limit { polled_ns: f64::INFINITY, halts: rate * ns / 1e9 },
        }
    }

    fn with_spare(self) -> Limit {
        Limit { polled_ns: self.polled_ns * (1.0 - SPARE), halts: self.halts * (1.0 - SPARE) }
    }

    fn is_met_by(&self, counts: &Counts) -> bool {
        counts.polled_ns as f64 <= self.polled_ns && counts.halts as f64 <= self.halts
    }
}

/// The first pass: every candidate on both halves.
struct Search {
    fitted: Vec<Counts>,
    judged: Vec<Counts>,
    fitted_span: Span,
    judged_span: Span,
    optimum: [Counts; 2],
    windows: FixedWindows,
}

impl Search {
    fn run(task: &Task<'_>, half: u64) -> Result<Search, TuneError> {
        let rules: Vec<Rule> = task.candidates.iter().copied().map(Rule::Layer).collect();
        let mut bank = Bank::new(&rules, task.source.handlers())?;
        let mut bounds = [OptimumBound::new(task.halt_cost); 2];
        let mut windows = FixedWindows::default();
        let mut fitted = vec![];
        let spans = task.source.visit_parts(&[0, half, u64::MAX], &mut |part, batch| {
            if part == 1 && fitted.is_empty() {
                fitted = bank.take();
            }
            let bounds = || {
                bounds[part].feed(batch);
                if part == 1 {
                    windows.feed(batch);
                }
            };
            rayon::join(|| bank.feed(batch), bounds);
            (task.progress)(batch.episodes() as u64);
        })?;
        let (fitted_span, judged_span) = (spans[0], spans[1]);
        let optimum = bounds.map(|bound| bound.counts());
        Ok(Search { fitted, judged: bank.take(), fitted_span, judged_span, optimum, windows })
    }

    /// The candidate of least value within the goal's limit on the first half; of equals the one nearest to the
    /// present setting. `None` if none is within the limit.
    fn choose(&self, task: &Task<'_>, value: &Valuation) -> Option<usize> {
        let limit = Limit::of(task.goal, self.fitted_span).with_spare();
        let within = || self.fitted.iter().enumerate().filter(|(_, counts)| limit.is_met_by(counts));
        let least = within().map(|(_, counts)| value.of(counts)).min_by(f64::total_cmp)?;
        let equal = within().filter(|(_, counts)| value.of(counts) <= least * (1.0 + EQUAL));
        let order = |&(index, counts): &(usize, &Counts)| {
            (changes(&task.candidates[index], &task.present), value.of(counts))
        };
        equal
            .min_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal))
            .map(|(index, _)| index)
    }

    fn best_fixed_window(&self, value: &Valuation) -> (Nanos, Counts) {
        let limit = Limit::of(value.goal, self.judged_span);
        self.windows.least(|counts| limit.is_met_by(counts).then(|| value.of(counts)))
    }

    fn best_in_hindsight(&self, value: &Valuation) -> usize {
        let limit = Limit::of(value.goal, self.judged_span);
        let key = |counts: &Counts| (!limit.is_met_by(counts), value.of(counts));
        let all = self.judged.iter().enumerate();
        let best =
            all.min_by(|(_, a), (_, b)| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
        best.map_or(0, |(index, _)| index)
    }
}

/// How many parameters differ.
fn changes(a: &Setting, b: &Setting) -> usize {
    a.iter().zip(b.iter()).filter(|((_, x), (_, y))| x != y).count()
}

/// The second pass: the finalists, block by block of the second half.
struct Judged {
    fitted: Vec<Counts>,
    blocks: Vec<Vec<Counts>>,
    span: Span,
}

impl Judged {
    fn run(task: &Task<'_>, half: u64, rules: &[Rule]) -> Result<Judged, TuneError> {
        let mut bank = Bank::new(rules, task.source.handlers())?;
        let rows = task.source.episodes() - half;
        // The first part is the first half, and each other a block of the second.
        let ends = (0..=BLOCKS as u64).map(|block| half + rows * block / BLOCKS as u64);
        let cuts: Vec<u64> = std::iter::once(0).chain(ends).collect();
        let mut blocks: Vec<Vec<Counts>> = vec![];
        let spans = task.source.visit_parts(&cuts, &mut |part, batch| {
            while blocks.len() < part {
                blocks.push(bank.take());
            }
            bank.feed(batch);
            (task.progress)(batch.episodes() as u64);
        })?;
        blocks.push(bank.take());
        let fitted = blocks.remove(0);
        let mut span = Span::default();
        spans[1..].iter().for_each(|of_block| span.extend(*of_block));
        Ok(Judged { fitted, blocks, span })
    }

    fn total(&self, rule: usize) -> Counts {
        self.blocks.iter().map(|block| block[rule]).sum()
    }

    /// The gain of rule `to` over rule `from` as a share of the latter, with the 95 % interval of a block bootstrap.
    fn gain(&self, from: usize, to: usize, value: &Valuation) -> Interval {
        let pairs: Vec<(f64, f64)> =
            self.blocks.iter().map(|block| (value.of(&block[from]), value.of(&block[to]))).collect();
        let share = |draw: &Draw| {
            let add = |a: (f64, f64), &pick: &usize| (a.0 + pairs[pick].0, a.1 + pairs[pick].1);
            let (from, to) = draw.picks().iter().fold((0.0, 0.0), add);
            Some(if from > 0.0 { (from - to) / from } else { 0.0 })
        };
        // The share always has a value.
        Bootstrap::RECORDING.blocks(pairs.len(), share).unwrap_or(Interval::unknown(0.0))
    }
}
