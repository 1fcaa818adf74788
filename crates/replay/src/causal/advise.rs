//! From causes to advice: the setting at which a unit of work costs least, of one layer or of a guest and its host together.
//!
//! Settings are searched on the first half of the recording, coarse to fine: a part of the grid on its first segments, the
//! best of it on the whole half, then what is near the best. On the second half the choice is judged. It is advised only
//! if its range excludes that a unit of work costs more than under the present setting, or under the better of the
//! default and *never*, or if its range excludes that less work is done, and a unit costs less in the middle; else the
//! better one of those two is tried. Nothing is advised with which less work would be done and a unit of it would take no
//! less CPU time: what is not polled is then spent in longer segments.

use super::Outcome;
use super::predict::{Judged, Predictor, Range, Work};
use super::space::{Near, beside, coarse, references};
use crate::advice::{Conclusion, Gain, Goal, Worth};
use crate::priced::{Priced, Pricing, Values, WakeupLatency};
use crate::rule::{Rule, RuleError};
use crate::tune::{Decided, Limit, Valuation, nearest};
use dwell_policy::Nanos;
use dwell_stats::Interval;
use serde::Serialize;

/// The coarse grid is replayed on so many segments.
const COARSE_SEGMENTS: usize = 1 << 14;
/// So many of it are replayed on the whole half, and so many of those have their neighbours tried.
const FINALISTS: usize = 32;
const CENTRES: usize = 3;
/// How often [`Task::progress`] is called.
pub const STEPS: u64 = 5;

/// What is to be tuned.
pub struct Task<'a> {
    pub predictor: &'a Predictor,
    /// The setting in force: of a layer, or of a guest and its host.
    pub present: Rule,
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
    pub chosen: Option<Rule>,
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
    pub fn row(&self, rule: &Rule) -> Option<&RowByWork> {
        let values = Values::from(rule);
        self.settings.iter().find(|row| row.setting == values)
    }

    /// Adds a row for what is recommended with the idle times as recorded, where it has none.
    ///
    /// # Errors
    /// [`RuleError`] for a setting that cannot be replayed.
    pub fn compare(
        &mut self,
        predictor: &Predictor,
        present: Rule,
        rule: Rule,
        halt_cost: Nanos,
    ) -> Result<&RowByWork, RuleError> {
        let values = Values::from(&rule);
        let row = self.settings.iter().position(|row| row.setting == values).unwrap_or(self.settings.len());
        if row == self.settings.len() {
            let both = [("", present), ("by idle times", rule)];
            let both = rows(predictor, &both, halt_cost)?;
            self.settings.extend(both.into_iter().skip(1));
        }
        Ok(&self.settings[row])
    }

    /// For the search with the idle times as recorded.
    pub fn decided(&self) -> Decided {
        let of_layer = |rule| if let Rule::Layer(setting) = rule { Some(setting) } else { None };
        Decided { verdict: self.verdict, chosen: self.chosen.and_then(of_layer), gain: self.gain }
    }
}

/// Without those whose rule comes again: the first one stays.
pub fn distinct<T>(rows: impl IntoIterator<Item = T>, rule: impl Fn(&T) -> Rule) -> Vec<T> {
    let mut all: Vec<T> = vec![];
    for row in rows {
        if all.iter().all(|other| rule(other) != rule(&row)) {
            all.push(row);
        }
    }
    all
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
    let references = references(&task.present);
    let better = search.best_of(&references.iter().map(|(_, rule)| *rule).collect::<Vec<_>>());
    let candidates = best.into_iter().chain(better);
    let mut rules = vec![task.present];
    rules.extend(candidates.clone());
    rules.extend(references.iter().map(|(_, rule)| *rule));
    rules.extend(beside(&task.present));
    let rules = distinct(rules, |rule| *rule);
    let judged = task.predictor.judge(&rules)?;
    (task.progress)();

    let at = |rule: Rule| rules.iter().position(|other| *other == rule);
    let compared = references.iter().filter_map(|(_, rule)| at(*rule)).collect();
    let judge = Judge { task, judged: &judged, value, references: compared };
    let verdicts: Vec<(usize, Conclusion)> =
        candidates.filter_map(at).map(|row| (row, judge.verdict(row))).collect();
    let found = verdicts.iter().find(|(_, verdict)| verdict.is_change()).or_else(|| verdicts.first());
    let (chosen, verdict) =
        found.map_or((None, Conclusion::Unattainable), |&(row, verdict)| (Some(row), verdict));
    let work = rules.iter().enumerate().map(|(number, rule)| {
        let reference = references.iter().find(|(_, other)| other == rule);
        let role = match verdict {
            _ if number == 0 => "present",
            Conclusion::Change if chosen == Some(number) => "recommended",
            _ if chosen == Some(number) => "rejected",
            _ => reference.map_or("", |(role, _)| role),
        };
        RowByWork::of(&judged, number, role, rule, task.halt_cost)
    });
    Ok(AdviceByWork {
        verdict,
        settings_tried: search.tried.len(),
        gain: chosen.filter(|&row| row > 0).map(|row| judge.gain(row)),
        settings: work.collect(),
        priced: [0, chosen.unwrap_or(0)].map(|row| price(task, &judged.outcome(row))),
        chosen: chosen.map(|row| rules[row]),
    })
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
    tried: Vec<Rule>,
    fitted: Vec<(Rule, Outcome)>,
}

impl Search<'_> {
    fn run(&mut self) -> Result<Option<Rule>, RuleError> {
        let mut coarse = coarse(&self.task.present);
        coarse.push(self.task.present);
        let mut begun = self.replayed(&coarse, COARSE_SEGMENTS)?;
        begun.sort_by(|a, b| self.value_of(&a.1).total_cmp(&self.value_of(&b.1)));
        (self.task.progress)();
        // Those that a recommendation is compared with take part in any case.
        let mut whole: Vec<Rule> = begun.into_iter().take(FINALISTS).map(|(rule, _)| rule).collect();
        whole.push(self.task.present);
        whole.extend(references(&self.task.present).into_iter().map(|(_, rule)| rule));
        self.fit(&whole)?;
        (self.task.progress)();
        for near in [Near::Times, Near::Factors] {
            let centres: Vec<Rule> = self.best().into_iter().take(CENTRES).collect();
            self.fit(&near.to(&centres))?;
            (self.task.progress)();
        }
        let rules: Vec<Rule> = self.fitted.iter().map(|(rule, _)| *rule).collect();
        Ok(self.best_of(&rules))
    }

    fn value_of(&self, outcome: &Outcome) -> f64 {
        let is_met = Limit::of(self.task.goal, outcome.span_ns).with_spare().is_met_by(&outcome.counts);
        if is_met { outcome.value(self.value) } else { f64::INFINITY }
    }

    fn replayed(&mut self, rules: &[Rule], most: usize) -> Result<Vec<(Rule, Outcome)>, RuleError> {
        let new: Vec<Rule> = rules.iter().filter(|rule| !self.tried.contains(rule)).copied().collect();
        self.tried.extend(&new);
        Ok(rules.iter().copied().zip(self.task.predictor.fit(rules, most)?).collect())
    }

    /// Replays those that were not replayed on the whole half.
    fn fit(&mut self, rules: &[Rule]) -> Result<(), RuleError> {
        let is_new = |rule: &Rule| self.fitted.iter().all(|(other, _)| other != rule);
        let new = distinct(rules.iter().copied().filter(is_new), |rule| *rule);
        let outcomes = self.replayed(&new, usize::MAX)?;
        self.fitted.extend(outcomes);
        Ok(())
    }

    /// All, the best first.
    fn best(&self) -> Vec<Rule> {
        let mut all: Vec<(f64, Rule)> =
            self.fitted.iter().map(|(rule, outcome)| (self.value_of(outcome), *rule)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all.into_iter().map(|(_, rule)| rule).collect()
    }

    /// The best of some that were replayed; of equals the one nearest to the present setting. `None` if none is within the limit.
    fn best_of(&self, rules: &[Rule]) -> Option<Rule> {
        let within = self.fitted.iter().filter(|(rule, _)| rules.contains(rule));
        let valued = within.map(|(rule, outcome)| (*rule, self.value_of(outcome)));
        nearest(valued.filter(|of| of.1.is_finite()).collect(), |rule| rule.changes(&self.task.present))
    }
}

/// Candidates against what they have to be better than.
struct Judge<'a> {
    task: &'a Task<'a>,
    judged: &'a Judged,
    value: Valuation,
    /// What a recommendation has to be better than, too.
    references: Vec<usize>,
}

impl Judge<'_> {
    /// One rule's value over that of another.
    fn over(&self, rule: usize, other: usize) -> Range {
        self.judged.range(rule, |all| all[rule].value(self.value) / all[other].value(self.value))
    }

    fn meets(&self, rule: usize) -> bool {
        let outcome = self.judged.outcome(rule);
        Limit::of(self.task.goal, outcome.span_ns).is_met_by(&outcome.counts)
    }

    fn gain(&self, rule: usize) -> Gain {
        let [before, after] = [0, rule].map(|rule| self.judged.outcome(rule).value(self.value));
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
        let others = || self.references.iter().filter(|other| **other != rule && self.meets(**other));
        let is_best = || others().all(|other| self.over(rule, *other).high <= 1.0);
        let is_beaten = || others().any(|other| self.over(rule, *other).low > 1.0);
        let (meets, gain) = ([0, rule].map(|rule| self.meets(rule)), self.gain(rule));
        let is_sure = || (gain.share.low > 0.0 && is_best()) || (self.is_faster(rule, &gain) && !is_beaten());
        let verdict = Conclusion::of(meets, &gain, is_sure, self.task.worth_a_change);
        if verdict.is_change() && self.is_only_slower(rule) { Conclusion::Slower } else { verdict }
    }

    /// Whether more work is done than under the present setting, beyond doubt, and in the middle at less CPU time for a unit of
    /// it, where CPU time is the goal.
    fn is_faster(&self, rule: usize, gain: &Gain) -> bool {
        self.task.goal == Goal::LeastCost
            && gain.share.value > 0.0
            && self.judged.over_present(rule, |of| of.work_per_s().unwrap_or(0.0)).low > 1.0
            && self.judged.over_present(rule, |of| of.cpu_per_work(self.task.halt_cost)).middle < 1.0
    }

    /// Whether less work is done than under the present setting, and a unit of it takes no less CPU time, where CPU time is
    /// the goal. A halt is counted at its cost and with what it adds to segments, which a measured cost may have in it: two
    /// vCPUs that polled took 1.15 to 1.18 times the CPU time with halts, and 1.02 to 1.10 by this sum
    /// (`dwell-lab pingpong --predict --layers`, 30 November 2026).
    fn is_only_slower(&self, rule: usize) -> bool {
        let over_present = |figure: &dyn Fn(&Outcome) -> f64| self.judged.over_present(rule, figure).middle;
        self.task.goal == Goal::LeastCost
            && over_present(&|of| of.work_per_s().unwrap_or(0.0)) < 1.0
            && over_present(&|of| of.cpu_per_work(self.task.halt_cost)) >= 1.0
    }
}
