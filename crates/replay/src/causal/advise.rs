//! From causes to advice: the setting at which a unit of work costs least.
//!
//! Settings are searched on the first half of the recording, coarse to fine: a part of the grid on its first segments, the
//! best of it on the whole half, then what is near the best. On the second half the choice is judged. It is advised only
//! if its range excludes that a unit of work costs more than under the present setting, or under the better of the
//! default and *never*; else the better one of those two is tried.

use super::Outcome;
use super::predict::{Judged, Predictor, Range, Work};
use crate::advice::{Conclusion, Gain, Goal, Worth};
use crate::grid;
use crate::priced::{Priced, Pricing, Values, WakeupLatency};
use crate::rule::{Rule, RuleError};
use crate::tune::{Decided, Limit, Valuation, nearest};
use dwell_policy::Nanos;
use dwell_policy::param::{Setting, Unit};
use dwell_stats::Interval;
use serde::Serialize;

/// The coarse grid is replayed on so many segments.
const COARSE_SEGMENTS: usize = 1 << 14;
/// So many of it are replayed on the whole half, and so many of those have their neighbours tried.
const FINALISTS: usize = 32;
const CENTRES: usize = 3;
/// The maxima that are printed beside the advice \[us\].
const MAXIMA_US: [i64; 8] = [10, 20, 50, 100, 200, 500, 1_000, 2_000];

/// How often [`Task::progress`] is called.
pub const STEPS: u64 = 5;

/// What is to be tuned.
pub struct Task<'a> {
    pub predictor: &'a Predictor,
    /// The setting in force.
    pub present: Setting,
    pub goal: Goal,
    /// What one halt and wakeup costs in CPU time.
    pub halt_cost: Nanos,
    /// The latency that a halt adds to its wakeup, of the figures of a plan.
    pub wakeup_latency: &'a WakeupLatency,
    /// What a gain has to reach to be worth a change.
    pub worth_a_change: Worth,
    /// Is called after each of [`STEPS`] steps.
    pub progress: &'a (dyn Fn() + Sync),
}

/// Advice by the work done, and what it rests on.
#[derive(Clone, Debug, Serialize)]
pub struct AdviceByWork {
    pub verdict: Conclusion,
    pub settings_tried: usize,
    /// By how much the chosen setting lowers the goal's figure for a unit of work, as a share of the present
    /// setting's, and the figure itself a second at the recorded speed; nothing where the present one is best.
    pub gain: Option<Gain>,
    /// The present setting first.
    pub settings: Vec<RowByWork>,
    /// The present setting, and the chosen one or else the present one again, as a plan has them.
    #[serde(skip)]
    pub priced: [Priced; 2],
    /// The setting that was chosen, whether it is recommended or rejected.
    #[serde(skip)]
    pub chosen: Option<Setting>,
}

/// A setting by the work done under it.
#[derive(Clone, Debug, Serialize)]
pub struct RowByWork {
    pub role: &'static str,
    pub setting: Values,
    #[serde(flatten)]
    pub work: Work,
}

impl RowByWork {
    fn of(judged: &Judged, number: usize, role: &'static str, rule: &Rule, halt_cost: Nanos) -> RowByWork {
        RowByWork { role, setting: Values::from(rule), work: judged.work(number, halt_cost) }
    }
}

impl AdviceByWork {
    /// The row of a setting.
    pub fn row(&self, setting: &Setting) -> Option<&RowByWork> {
        let values = Values::from(setting);
        self.settings.iter().find(|row| row.setting == values)
    }

    /// Adds a row for what is recommended with the idle times as recorded, where it has none.
    ///
    /// # Errors
    /// [`RuleError`] for a setting that cannot be replayed.
    pub fn compare(
        &mut self,
        predictor: &Predictor,
        present: Setting,
        setting: Setting,
        halt_cost: Nanos,
    ) -> Result<&RowByWork, RuleError> {
        let values = Values::from(&setting);
        let row = self.settings.iter().position(|row| row.setting == values).unwrap_or(self.settings.len());
        if row == self.settings.len() {
            let both = [("", Rule::Layer(present)), ("by idle times", Rule::Layer(setting))];
            let both = rows(predictor, &both, halt_cost)?;
            self.settings.extend(both.into_iter().skip(1));
        }
        Ok(&self.settings[row])
    }

    /// For the search with the idle times as recorded.
    pub fn decided(&self) -> Decided {
        Decided { verdict: self.verdict, chosen: self.chosen, gain: self.gain }
    }
}

/// Rules with their roles, in what is for judging; the first is the one that was in force.
///
/// # Errors
/// [`RuleError`] for a setting that cannot be replayed.
pub fn rows(
    predictor: &Predictor,
    rules: &[(&'static str, Rule)],
    halt_cost: Nanos,
) -> Result<Vec<RowByWork>, RuleError> {
    let judged = predictor.judge(&rules.iter().map(|(_, rule)| *rule).collect::<Vec<_>>())?;
    let row = |(number, (role, rule)): (usize, &(&'static str, Rule))| {
        RowByWork::of(&judged, number, role, rule, halt_cost)
    };
    Ok(rules.iter().enumerate().map(row).collect())
}

/// Searches, judges and advises.
///
/// # Errors
/// [`RuleError`] for settings that cannot be replayed.
pub fn advise(task: &Task<'_>) -> Result<AdviceByWork, RuleError> {
    let value = Valuation { goal: task.goal, halt_cost: task.halt_cost };
    let mut search = Search { task, value, tried: vec![], fitted: vec![] };
    let best = search.run()?;
    let (layer, version) = (task.present.layer(), task.present.version());
    let default = Setting::defaults(layer, version);
    let never = with_maximum(task.present, 0);
    let better = search.best_of(&[default, never]);
    let mut rows: Vec<(&'static str, Setting)> = vec![];
    let mut add = |role: &'static str, setting: Setting| {
        if rows.iter().all(|(_, other)| *other != setting) {
            rows.push((role, setting));
        }
    };
    add("present", task.present);
    best.into_iter().chain(better).for_each(|setting| add("candidate", setting));
    add("default", default);
    add("never", never);
    MAXIMA_US.into_iter().for_each(|us| add("", with_maximum(task.present, us * 1_000)));
    let rules: Vec<Rule> = rows.iter().map(|(_, setting)| Rule::Layer(*setting)).collect();
    let judged = task.predictor.judge(&rules)?;
    (task.progress)();

    let at = |setting: Setting| rows.iter().position(|(_, other)| *other == setting);
    let references = [at(default), at(never)];
    let judge = Judge { task, judged: &judged, value, references };
    let candidates: Vec<usize> = best.into_iter().chain(better).filter_map(at).collect();
    let verdicts: Vec<(usize, Conclusion)> =
        candidates.iter().map(|&row| (row, judge.verdict(row))).collect();
    let found = verdicts.iter().find(|(_, verdict)| verdict.is_change()).or_else(|| verdicts.first());
    let (chosen, verdict) =
        found.map_or((None, Conclusion::Unattainable), |&(row, verdict)| (Some(row), verdict));
    let work = rows.iter().enumerate().map(|(number, (role, setting))| {
        let role = match (role, verdict) {
            _ if number == 0 => "present",
            (_, Conclusion::Change) if chosen == Some(number) => "recommended",
            _ if chosen == Some(number) => "rejected",
            _ if *setting == default => "default",
            _ if *setting == never => "never",
            _ => "",
        };
        RowByWork::of(&judged, number, role, &rules[number], task.halt_cost)
    });
    Ok(AdviceByWork {
        verdict,
        settings_tried: search.tried.len(),
        gain: chosen.filter(|&row| row > 0).map(|row| judge.gain(row)),
        settings: work.collect(),
        priced: [0, chosen.unwrap_or(0)].map(|row| price(task, &judged.outcome(row))),
        chosen: chosen.map(|row| rows[row].1),
    })
}

/// The present setting with another maximum \[ns\].
pub fn with_maximum(present: Setting, ns: i64) -> Setting {
    let mut setting = present;
    if let Some((param, _)) = present.iter().next() {
        let _ = setting.set(param.name, ns);
    }
    setting
}

/// The maximum of a rule \[ns\]: the first parameter of each layer.
pub fn maximum(setting: &Setting) -> i64 {
    setting.iter().next().map_or(0, |(_, ns)| ns)
}

fn price(task: &Task<'_>, outcome: &Outcome) -> Priced {
    let pricing = Pricing {
        halt_cost: task.halt_cost,
        wakeup_latency: task.wakeup_latency,
        span_ns: outcome.span_ns,
        optimum_ns: 0,
    };
    pricing.price(&outcome.counts)
}

/// The settings that were tried, with what they did in the first half.
struct Search<'a> {
    task: &'a Task<'a>,
    value: Valuation,
    tried: Vec<Setting>,
    fitted: Vec<(Setting, Outcome)>,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Option<Setting>, RuleError> {
        let (layer, version) = (self.task.present.layer(), self.task.present.version());
        let mut coarse = grid::coarse(layer, version);
        coarse.push(self.task.present);
        let mut begun = self.replayed(&coarse, COARSE_SEGMENTS)?;
        begun.sort_by(|a, b| self.value_of(&a.1).total_cmp(&self.value_of(&b.1)));
        (self.task.progress)();
        // Those that a recommendation is compared with take part in any case.
        let mut whole: Vec<Setting> = begun.into_iter().take(FINALISTS).map(|(setting, _)| setting).collect();
        whole.extend([
            self.task.present,
            Setting::defaults(layer, version),
            with_maximum(self.task.present, 0),
        ]);
        self.fit(&whole)?;
        (self.task.progress)();
        let all = grid::settings(layer, version);
        for near in [near_in_time, near_in_factors] {
            let centres: Vec<Setting> = self.best().into_iter().take(CENTRES).collect();
            let is_near = |setting: &&Setting| centres.iter().any(|centre| near(centre, setting));
            let neighbours: Vec<Setting> = all.iter().filter(is_near).copied().collect();
            self.fit(&neighbours)?;
            (self.task.progress)();
        }
        let settings: Vec<Setting> = self.fitted.iter().map(|(setting, _)| *setting).collect();
        Ok(self.best_of(&settings))
    }

    fn value_of(&self, outcome: &Outcome) -> f64 {
        let is_met = Limit::of(self.task.goal, outcome.span_ns).with_spare().is_met_by(&outcome.counts);
        if is_met { outcome.per_work(self.value.of(&outcome.counts)) } else { f64::INFINITY }
    }

    fn replayed(&mut self, settings: &[Setting], most: usize) -> Result<Vec<(Setting, Outcome)>, RuleError> {
        let new: Vec<Setting> =
            settings.iter().filter(|setting| !self.tried.contains(setting)).copied().collect();
        self.tried.extend(&new);
        let rules: Vec<Rule> = settings.iter().copied().map(Rule::Layer).collect();
        Ok(settings.iter().copied().zip(self.task.predictor.fit(&rules, most)?).collect())
    }

    /// Replays those that were not replayed on the whole half.
    fn fit(&mut self, settings: &[Setting]) -> Result<(), RuleError> {
        let mut new: Vec<Setting> = vec![];
        for setting in settings {
            if self.fitted.iter().all(|(other, _)| other != setting) && !new.contains(setting) {
                new.push(*setting);
            }
        }
        let outcomes = self.replayed(&new, usize::MAX)?;
        self.fitted.extend(outcomes);
        Ok(())
    }

    /// All, the best first.
    fn best(&self) -> Vec<Setting> {
        let mut all: Vec<(f64, Setting)> =
            self.fitted.iter().map(|(setting, outcome)| (self.value_of(outcome), *setting)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().map(|(_, setting)| setting).collect()
    }

    /// The best of some that were replayed; of equals the one nearest to the present setting. `None` if none is within the limit.
    fn best_of(&self, settings: &[Setting]) -> Option<Setting> {
        let within = self.fitted.iter().filter(|(setting, _)| settings.contains(setting));
        let valued = within.map(|(setting, outcome)| (*setting, self.value_of(outcome)));
        nearest(&self.task.present, valued.filter(|of| of.1.is_finite()).collect())
    }
}

/// The same factors, and times that differ by at most a factor of 2.
fn near_in_time(centre: &Setting, other: &Setting) -> bool {
    centre.iter().zip(other.iter()).all(|((param, a), (_, b))| {
        if param.unit == Unit::Nanoseconds { a <= 2 * b && b <= 2 * a } else { a == b }
    })
}

/// The same times.
fn near_in_factors(centre: &Setting, other: &Setting) -> bool {
    centre.iter().zip(other.iter()).all(|((param, a), (_, b))| param.unit != Unit::Nanoseconds || a == b)
}

/// Candidates against what they have to be better than.
struct Judge<'a> {
    task: &'a Task<'a>,
    judged: &'a Judged,
    value: Valuation,
    /// The default and *never*.
    references: [Option<usize>; 2],
}

impl Judge<'_> {
    fn value_of(&self, outcome: &Outcome) -> f64 {
        outcome.per_work(self.value.of(&outcome.counts))
    }

    /// One rule's value over that of another.
    fn over(&self, rule: usize, other: usize) -> Range {
        self.judged.range(rule, |all| self.value_of(&all[rule]) / self.value_of(&all[other]))
    }

    fn meets(&self, rule: usize) -> bool {
        let outcome = self.judged.outcome(rule);
        Limit::of(self.task.goal, outcome.span_ns).is_met_by(&outcome.counts)
    }

    fn gain(&self, rule: usize) -> Gain {
        let [before, after] = [0, rule].map(|rule| self.value_of(&self.judged.outcome(rule)));
        let Range { middle, low, high } = self.over(rule, 0);
        Gain {
            of: self.task.goal.figure(),
            per_s: (before - after) * self.task.predictor.recorded_per_s,
            share: Interval { low: 1.0 - high, value: 1.0 - middle, high: 1.0 - low },
        }
    }

    fn verdict(&self, rule: usize) -> Conclusion {
        if rule == 0 {
            return Conclusion::AlreadyBest;
        }
        let mut others =
            self.references.into_iter().flatten().filter(|other| *other != rule && self.meets(*other));
        let is_best = || !others.any(|other| self.over(rule, other).high > 1.0);
        let meets = [0, rule].map(|rule| self.meets(rule));
        Conclusion::of(meets, &self.gain(rule), is_best, self.task.worth_a_change)
    }
}
