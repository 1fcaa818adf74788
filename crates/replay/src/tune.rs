//! From a recording to advice.
//!
//! The first half of the recording is for choosing, the second for judging: a setting is recommended for what it did
//! on the first half, and every figure shown of it is from the second, which had no part in the choice. The
//! halves are of the time recorded; where that is not known, they have equally many episodes. Policies are
//! not started anew between the halves, as they would not be on a machine.
//!
//! Advice is given only if the gain is beyond doubt: the second half is cut into blocks, the blocks are drawn again
//! and again with replacement, and the whole 95 % interval of the gain has to lie above zero.

use crate::advice::{Advice, AdviceRow, BreakEven, Conclusion, Gain, Goal, Role, UpperBound, Worth};
use crate::bank::Bank;
use crate::bound::{FixedWindows, OptimumBound};
use crate::counts::Counts;
use crate::priced::{Figure, Pricing, Row, Values, WakeupLatency};
use crate::rule::{Rule, RuleError};
use crate::source::{Halves, Overlapping, Source, Span};
use dwell_policy::Nanos;
use dwell_policy::catalogue::{Terms, learners};
use dwell_policy::param::Setting;
use dwell_recording::ReadError;
use dwell_stats::{BLOCKS, Bootstrap, Draw, Interval};

/// What is to be tuned.
pub struct Task<'a> {
    pub source: &'a dyn Source,
    /// The setting in force.
    pub present: Setting,
    /// The settings to choose from.
    pub candidates: &'a [Setting],
    pub goal: Goal,
    /// What one halt and wakeup costs in CPU time.
    pub halt_cost: Nanos,
    /// The latency that a halt adds to its wakeup, of the columns of added latency; what rules learn from is the
    /// source's.
    pub wakeup_latency: &'a WakeupLatency,
    /// What a gain has to reach to be worth a change.
    pub worth_a_change: Worth,
    /// What was advised by the work done, in place of what this search would advise.
    pub decided: Option<Decided>,
    /// Gets the number of episodes replayed since the last call; there are two passes.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// One row in so many may be in the time of the other half.
const MOST_OUT_OF_TIME: u64 = 16;

/// Why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    #[error(
        "too few episodes to choose on one half and judge on the other: {0}; at least {MIN_EPISODES} are needed"
    )]
    TooFew(u64),
    /// Nearly all episodes are in one half of the time recorded; those in each.
    #[error(
        "the first half of the time recorded has {first} episodes and the second {second}: too few to choose on one and \
         judge on the other; at least {} are needed in each; record while the load runs",
        MIN_EPISODES / 2
    )]
    UnevenHalves { first: u64, second: u64 },
    /// The rows of each half are those of some idlers, not of half the time: so many of all rows.
    #[error(
        "the rows are not in the order of time: {number} of {episodes} are in one half and of the time of the other, so that \
         one cannot be chosen on and the other judged on; sort them by start_ns"
    )]
    OutOfTime { number: u64, episodes: u64 },
    /// The states of all settings of all idlers would take too much memory.
    #[error(
        "cannot try {settings} settings on {idlers} idlers: that takes more than {} GiB of memory; record fewer idlers, or \
         compare single settings with `dwell replay --set`",
        MOST_STATES >> 28
    )]
    TooManyIdlers { idlers: usize, settings: usize },
    /// The recording contradicts itself.
    #[error(transparent)]
    Overlapping(#[from] Overlapping),
    /// The recording cannot be read.
    #[error(transparent)]
    Source(#[from] ReadError),
    /// A setting cannot be replayed.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// Advice from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decided {
    pub verdict: Conclusion,
    /// The setting that is recommended or rejected.
    pub chosen: Option<Setting>,
    pub gain: Option<Gain>,
}

/// The fewest episodes that are tuned on: two in each block of both halves.
pub const MIN_EPISODES: u64 = 4 * BLOCKS as u64;

/// The most policies, of one setting and one idler each, that are replayed at once; each takes four bytes.
const MOST_STATES: usize = 1 << 29;

/// Costs this close to the best are equal; among equals the setting with the fewest changes is taken.
const EQUAL: f64 = 0.005;

/// A limit is aimed at with so much to spare, since the next load will not be exactly this one.
const SPARE: f64 = 0.05;

/// The candidates than which no other both polls less and halts less, in order of the polling CPU; of equals the first.
fn front(candidates: &[Setting], counts: &[Counts], pricing: &Pricing<'_>) -> Vec<Row> {
    let mut all: Vec<(&Setting, &Counts)> = candidates.iter().zip(counts).collect();
    all.sort_by_key(|(_, counts)| (counts.polled_ns, counts.halts));
    let mut least = u64::MAX;
    all.retain(|(_, counts)| {
        let fewer = counts.halts < least;
        least = least.min(counts.halts);
        fewer
    });
    all.into_iter().map(|(setting, counts)| pricing.row(&Rule::Layer(*setting), counts)).collect()
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
    let halves = task.source.halves()?;
    let (first, second) = (halves.second, episodes - halves.second.min(episodes));
    if first.min(second) < MIN_EPISODES / 2 {
        return Err(TuneError::UnevenHalves { first, second });
    }
    let (idlers, settings) = (task.source.idlers(), task.candidates.len());
    if idlers.saturating_mul(settings) > MOST_STATES {
        return Err(TuneError::TooManyIdlers { idlers, settings });
    }
    let search = Search::run(task, &halves)?;
    let out_of_time = task.source.out_of_time();
    if out_of_time > episodes / MOST_OUT_OF_TIME {
        return Err(TuneError::OutOfTime { number: out_of_time, episodes });
    }
    let mut span = search.fitted_span;
    span.extend(search.judged_span);
    Overlapping::check(task.source, search.optimum.iter().map(|counts| counts.idle_ns).sum(), span)?;
    let value = Valuation { goal: task.goal, halt_cost: task.halt_cost };
    let chosen = search.choose(task, &value);
    let hindsight = search.best_in_hindsight(task, &value);
    let (fixed_window, fixed_counts) = search.best_fixed_window(&value);

    let by_idle_times = Rule::Layer(chosen.unwrap_or(task.present));
    let decided = task.decided.and_then(|decided| decided.chosen).map(Rule::Layer);
    let candidate = decided.unwrap_or(by_idle_times);
    let mut finalists = vec![
        (Role::Never, Rule::NEVER),
        (Role::Always, Rule::ALWAYS),
        (Role::Present, Rule::Layer(task.present)),
        (Role::Recommended, candidate),
        (Role::BestInHindsight, Rule::Layer(hindsight)),
        (Role::BestFixedWindow, Rule::fixed(fixed_window)),
    ];
    let learner = |entry| (Role::Learner(entry), Rule::Policy(entry, Terms::at(task.halt_cost)));
    finalists.extend(learners().map(learner));
    if decided.is_some_and(|decided| decided != by_idle_times) && by_idle_times != Rule::Layer(task.present) {
        finalists.push((Role::Rejected, by_idle_times));
    }
    let rules: Vec<Rule> = finalists.iter().map(|(_, rule)| *rule).collect();
    let judged = Judged::run(task, halves.second, &rules)?;
    debug_assert_eq!(judged.total(5), fixed_counts);

    let [fitted_optimum, optimum] = search.optimum;
    let pricing = |span: Span, optimum: &Counts| Pricing {
        halt_cost: task.halt_cost,
        wakeup_latency: task.wakeup_latency,
        span_ns: span.ns(),
        optimum_ns: optimum.cost_ns(task.halt_cost),
    };
    let (first, second) =
        (pricing(search.fitted_span, &fitted_optimum), pricing(search.judged_span, &optimum));

    let of_idle_times = finalists.iter().position(|(_, rule)| *rule == by_idle_times).unwrap_or(3);
    let judged_span_ns = search.judged_span.ns();
    let gain = judged.gain(2, of_idle_times, &value, judged_span_ns);
    let meets = |row| Limit::of(task.goal, judged_span_ns).is_met_by(&judged.total(row));
    let by_idle_times = match chosen {
        None => Conclusion::Unattainable,
        Some(setting) if setting == task.present => Conclusion::AlreadyBest,
        Some(_) => {
            let is_sure = || gain.share.low > 0.0;
            Conclusion::of([2, of_idle_times].map(meets), &gain, is_sure, task.worth_a_change)
        }
    };
    let verdict = task.decided.map_or(by_idle_times, |decided| decided.verdict);
    let by_idle_times = chosen.filter(|_| by_idle_times.is_change());
    let row = |role, row, fitted: &Counts| AdviceRow { role, row, fitted: first.price(fitted) };
    let mut rows: Vec<AdviceRow> = vec![];
    for (number, (role, rule)) in finalists.iter().enumerate() {
        let role = match (role, verdict) {
            (Role::Recommended, Conclusion::Change) => Role::Recommended,
            // The present setting has its row, and where no candidate keeps the limit there is none to show.
            (Role::Recommended, _) if !has_candidate(verdict) => continue,
            (Role::Recommended, _) => Role::Rejected,
            _ => *role,
        };
        rows.push(row(role, second.row(rule, &judged.total(number)), &judged.fitted[number]));
    }
    let best = Row {
        policy: Role::Optimum.name().to_owned(),
        setting: Values::default(),
        figures: second.price(&optimum),
    };
    rows.push(row(Role::Optimum, best, &fitted_optimum));

    let present = second.price(&judged.total(2));
    let break_even = (task.goal == Goal::LeastCost && task.decided.is_none()).then(|| {
        if verdict.is_change() {
            return BreakEven::of_change(&judged.total(2), &judged.total(3));
        }
        let others = &search.judged;
        BreakEven::of_staying(&judged.total(2), others, task.halt_cost, task.worth_a_change, judged_span_ns)
    });
    let (present_cost, optimum_cost) = (present.cost_ns_per_s, second.price(&optimum).cost_ns_per_s);
    Ok(Advice {
        verdict,
        goal: task.goal,
        halt_cost_ns: task.halt_cost.get(),
        wakeup_latency_ns: task.wakeup_latency.mean_ns(),
        worth_a_change: task.worth_a_change,
        settings_tried: task.candidates.len(),
        fitted_span_ns: search.fitted_span.ns(),
        judged_span_ns,
        upper_bound: UpperBound {
            present_cost_ns_per_s: present_cost,
            optimum_cost_ns_per_s: optimum_cost,
            gain_ns_per_s: present_cost - optimum_cost,
        },
        gain: task.decided.map_or(Some(gain), |decided| decided.gain).filter(|_| has_candidate(verdict)),
        break_even,
        rows,
        front: front(task.candidates, &search.judged, &second),
        present: task.present,
        chosen: task.decided.map_or(chosen, |decided| decided.chosen),
        by_idle_times,
    })
}

/// Whether there is a setting that is recommended or rejected.
const fn has_candidate(verdict: Conclusion) -> bool {
    !matches!(verdict, Conclusion::AlreadyBest | Conclusion::Unattainable)
}

/// How good some counts are under the goal: less is better.
#[derive(Clone, Copy)]
pub(crate) struct Valuation {
    pub(crate) goal: Goal,
    pub(crate) halt_cost: Nanos,
}

impl Valuation {
    pub(crate) fn of(&self, counts: &Counts) -> f64 {
        match self.goal.figure() {
            Figure::Cost => counts.cost_ns(self.halt_cost) as f64,
            Figure::Halts => counts.halts as f64,
            Figure::PollingCpu => counts.polled_ns as f64,
        }
    }
}

/// What the goal forbids, over a span.
pub(crate) struct Limit {
    polled_ns: f64,
    halts: f64,
}

impl Limit {
    pub(crate) fn of(goal: Goal, span_ns: u64) -> Limit {
        let ns = span_ns as f64;
        match goal {
            Goal::LeastCost => Limit { polled_ns: f64::INFINITY, halts: f64::INFINITY },
            Goal::MaxCpu(share) => Limit { polled_ns: share * ns, halts: f64::INFINITY },
            Goal::MaxHaltsPerSecond(rate) => Limit { polled_ns: f64::INFINITY, halts: rate * ns / 1e9 },
        }
    }

    pub(crate) fn with_spare(self) -> Limit {
        Limit { polled_ns: self.polled_ns * (1.0 - SPARE), halts: self.halts * (1.0 - SPARE) }
    }

    pub(crate) fn is_met_by(&self, counts: &Counts) -> bool {
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
    fn run(task: &Task<'_>, halves: &Halves) -> Result<Search, TuneError> {
        let rules: Vec<Rule> = task.candidates.iter().copied().map(Rule::Layer).collect();
        let mut bank = Bank::new(&rules, task.source.handlers())?;
        let mut bounds = [OptimumBound::new(task.halt_cost); 2];
        let mut windows = FixedWindows::default();
        let mut fitted = vec![];
        let spans = task.source.visit_parts(&[0, halves.second, u64::MAX], &mut |part, batch| {
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
        let [fitted_span, judged_span] = halves.spans.unwrap_or([spans[0], spans[1]]);
        let optimum = bounds.map(|bound| bound.counts());
        Ok(Search { fitted, judged: bank.take(), fitted_span, judged_span, optimum, windows })
    }

    /// The candidate of least value within the goal's limit on the first half; of equals the one nearest to the
    /// present setting. `None` if none is within the limit.
    fn choose(&self, task: &Task<'_>, value: &Valuation) -> Option<Setting> {
        let limit = Limit::of(task.goal, self.fitted_span.ns()).with_spare();
        let within = task.candidates.iter().zip(&self.fitted).filter(|(_, counts)| limit.is_met_by(counts));
        let changes = |setting: &Setting| Rule::Layer(*setting).changes(&Rule::Layer(task.present));
        nearest(within.map(|(setting, counts)| (*setting, value.of(counts))).collect(), changes)
    }

    fn best_fixed_window(&self, value: &Valuation) -> (Nanos, Counts) {
        let limit = Limit::of(value.goal, self.judged_span.ns());
        self.windows.least(|counts| limit.is_met_by(counts).then(|| value.of(counts)))
    }

    fn best_in_hindsight(&self, task: &Task<'_>, value: &Valuation) -> Setting {
        let limit = Limit::of(value.goal, self.judged_span.ns());
        let key = |counts: &Counts| (!limit.is_met_by(counts), value.of(counts));
        let all = task.candidates.iter().zip(&self.judged);
        let best =
            all.min_by(|(_, a), (_, b)| key(a).partial_cmp(&key(b)).unwrap_or(std::cmp::Ordering::Equal));
        best.map_or(task.present, |(setting, _)| *setting)
    }
}

/// Of those of least value, or nearly, the one with the fewest `changes`.
pub(crate) fn nearest<T: Copy>(valued: Vec<(T, f64)>, changes: impl Fn(&T) -> usize) -> Option<T> {
    let least = valued.iter().map(|of| of.1).min_by(f64::total_cmp)?;
    let equal = valued.iter().filter(|of| of.1 <= least * (1.0 + EQUAL));
    let order = |of: &&(T, f64)| (changes(&of.0), of.1);
    let first = equal.min_by(|a, b| order(a).partial_cmp(&order(b)).unwrap_or(std::cmp::Ordering::Equal));
    first.map(|of| of.0)
}

/// The second pass: the finalists, block by block of the second half.
struct Judged {
    fitted: Vec<Counts>,
    blocks: Vec<Vec<Counts>>,
}

impl Judged {
    /// `half`: the first row of the second half.
    fn run(task: &Task<'_>, half: u64, rules: &[Rule]) -> Result<Judged, TuneError> {
        let mut bank = Bank::new(rules, task.source.handlers())?;
        let rows = task.source.episodes() - half;
        // The first part is the first half, and each other a block of the second.
        let ends = (0..=BLOCKS as u64).map(|block| half + rows * block / BLOCKS as u64);
        let cuts: Vec<u64> = std::iter::once(0).chain(ends).collect();
        let mut blocks: Vec<Vec<Counts>> = vec![];
        task.source.visit_parts(&cuts, &mut |part, batch| {
            while blocks.len() < part {
                blocks.push(bank.take());
            }
            bank.feed(batch);
            (task.progress)(batch.episodes() as u64);
        })?;
        blocks.push(bank.take());
        Ok(Judged { fitted: blocks.remove(0), blocks })
    }

    fn total(&self, rule: usize) -> Counts {
        self.blocks.iter().map(|block| block[rule]).sum()
    }

    /// The gain of rule `to` over rule `from` as a share of the latter, with the 95 % interval of a block bootstrap.
    fn gain(&self, from: usize, to: usize, value: &Valuation, span_ns: u64) -> Gain {
        let pairs: Vec<(f64, f64)> =
            self.blocks.iter().map(|block| (value.of(&block[from]), value.of(&block[to]))).collect();
        let sums = |draw: &[usize]| {
            let add = |a: (f64, f64), &pick: &usize| (a.0 + pairs[pick].0, a.1 + pairs[pick].1);
            draw.iter().fold((0.0, 0.0), add)
        };
        let share = |draw: &Draw| {
            let (from, to) = sums(&draw.picks);
            Some(if from > 0.0 { (from - to) / from } else { 0.0 })
        };
        let all: Vec<usize> = (0..pairs.len()).collect();
        let (before, after) = sums(&all);
        // The share always has a value, and is at most all.
        let interval = Bootstrap::RECORDING.blocks(pairs.len(), share).unwrap_or(Interval::unknown(0.0));
        Gain {
            of: value.goal.figure(),
            per_s: (before - after) / (span_ns.max(1) as f64 / 1e9),
            share: Interval { high: interval.high.min(1.0), ..interval },
        }
    }
}
