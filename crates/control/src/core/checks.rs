//! When two settings are compared in turns, and what follows from it.
//!
//! A setting that is chosen is *checked* before it is used, and at most so often again. After one that is
//! refuted no other setting is used for a while, longer after each. Where idlers mostly halt, a *trial* of
//! polling comes after a pause; after a trial in vain the next pause is four times as long. A change of load
//! ends both.

use crate::core::by_work::ByWork;
use crate::core::change::{Cause, Measured};
use crate::core::pace::MINUTE_NS;
use crate::core::turns::{Next, Part, Turns};
use crate::core::window::{Rest, WINDOW_NS};
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::causal::maximum;
use std::collections::HashMap;

/// How long nothing else is tried after a check that does not exclude a loss \[ns\]; twice as long after
/// each, up to the time between two checks.
const REFUTED_NS: u64 = 8_000_000_000;
/// How long idlers mostly halt before the first trial, and how long the pause is after several that succeeded \[ns\].
const FIRST_PAUSE_NS: u64 = 250_000_000;
/// After a trial in vain the pause is so many times as long: three of them within 10 s, eight within 3 h.
const PAUSES: u64 = 4;
/// The pause after a check in which a setting was better than one that polls for as long as a trial would \[ns\]: as after
/// three trials in vain.
const PAUSE_AFTER_CHECK_NS: u64 = PAUSES * PAUSES * PAUSES * FIRST_PAUSE_NS;
/// The longest pause between two trials \[ns\].
const LONGEST_PAUSE_NS: u64 = 3_600_000_000_000;

/// After a loss or a change of load one trial comes whatever the account says, at most once in this time \[ns\].
const FREE_EVERY_NS: u64 = WINDOW_NS;
/// A load is measured for so long \[ns\] …
const LOAD_NS: u64 = 250_000_000;
/// … and has changed if its episodes are so many times as many, or as few, under the same setting, or so many
/// times as long, or as short, in the geometric mean.
const CHANGED: f64 = 1.5;
/// What is seen after a glance that differs is of the same load within this factor. That of a disk, which differs most from
/// glance to glance, was within 1.17 (`experiments/guest-loads/README.md`).
const ALIKE: f64 = 1.25;
/// Below so many episodes a second nothing is tried, and no change of load is seen: an idle CPU has that many.
pub(crate) const BUSY_PER_S: f64 = 640.0;

/// When to compare what in turns.
#[derive(Clone, Debug)]
pub(crate) struct Checks {
    every: Option<Nanos>,
    originals: Setting,
    /// The setting of trials.
    pub(crate) longest: Setting,
    turns: Option<Turns>,
    /// Whether turns were over at the last decision: what is seen after the last switch is left out as well.
    over: bool,
    /// When settings were last verified.
    verified_ns: HashMap<Setting, u64>,
    held_until_ns: u64,
    rest: Rest,
    pause_ns: u64,
    trial_at_ns: Option<u64>,
    /// Whether the load is another one than at the last free trial, and when the next may be \[ns\].
    free: bool,
    free_at_ns: u64,
    /// Until when loads are taken for closed loops, as turns have shown of one \[ns\].
    closed_until_ns: u64,
    /// A setting that does more than the originals in a closed loop, and what its cost may be of theirs for that.
    worth: Option<(Setting, f64)>,
    /// The same of settings by a replay of causes, until turns have measured it or the load changes.
    predicted: HashMap<Setting, f64>,
    load: Load,
}

impl Checks {
    /// Over these candidates, the originals first; a setting is checked at most so often, and nothing is
    /// compared where that is `None`.
    pub(crate) fn new(every: Option<Nanos>, candidates: &[Setting]) -> Checks {
        let longest_rest_ns = every.map_or(REFUTED_NS, Nanos::get).max(REFUTED_NS);
        Checks {
            every,
            originals: candidates[0],
            longest: longest(candidates),
            turns: None,
            over: false,
            verified_ns: HashMap::new(),
            held_until_ns: 0,
            rest: Rest::new(REFUTED_NS, longest_rest_ns),
            pause_ns: FIRST_PAUSE_NS,
            trial_at_ns: None,
            free: false,
            free_at_ns: 0,
            closed_until_ns: 0,
            worth: None,
            predicted: HashMap::new(),
            load: Load::default(),
        }
    }

    pub(crate) const fn are_off(&self) -> bool {
        self.every.is_none()
    }

    /// Whether turns are under way.
    pub(crate) const fn in_turns(&self) -> bool {
        self.turns.is_some()
    }

    /// Whether what is seen until the next decision is left out.
    pub(crate) fn settles(&self) -> bool {
        self.over || self.turns.as_ref().is_some_and(|turns| !turns.settled)
    }

    /// Whether what was seen until this decision is to be forgotten.
    pub(crate) fn take_over(&mut self) -> bool {
        std::mem::take(&mut self.over)
    }

    pub(crate) fn begin(&mut self, turns: Turns) {
        self.turns = Some(turns);
    }

    /// A part of a turn is over.
    pub(crate) fn next(&mut self, part: Part, present: &Setting) -> Option<Next> {
        Some(self.turns.as_mut()?.next(part, present))
    }

    /// What the cost of an episode under this setting may be of that under the originals: more where it was found in turns
    /// to do more.
    pub(crate) fn worth(&self, present: &Setting) -> f64 {
        let predicted = self.predicted.get(present).copied();
        let measured = self.worth.filter(|(setting, _)| setting == present);
        match &self.turns {
            Some(turns) => turns.worth(present).max(predicted.unwrap_or(1.0)),
            None => measured.map(|(_, worth)| worth).or(predicted).unwrap_or(1.0),
        }
    }

    /// A replay of causes has compared settings. One in force that does more than the originals is to be compared with them in
    /// turns.
    pub(crate) fn predicted(&mut self, by_work: &ByWork, present: &Setting) {
        self.predicted = by_work.worths(&self.originals).collect();
        if self.predicted.contains_key(present) {
            self.verified_ns.remove(present);
        }
    }

    /// Ends turns: the setting to use, and why.
    pub(crate) fn end(&mut self, now_ns: u64, keep: bool, measured: Measured) -> Option<(Setting, Cause)> {
        let turns = self.turns.take()?;
        let [setting, reference] = turns.settings().map(|setting| *setting);
        self.over = true;
        self.predicted.clear();
        let better = if keep { setting } else { reference };
        // A load that changes meanwhile is another one than before.
        self.load.part = Part::default();
        // A trial in vain shows nothing for certain.
        if measured.closed || !keep && !turns.is_trial() && turns.worth(&reference) > 1.0 {
            self.closed_until_ns = now_ns.saturating_add(MINUTE_NS);
            let worse = if keep { reference } else { setting };
            // Nothing does less than those that never poll.
            let over_originals = worse == self.originals || maximum(&self.originals) == 0;
            let worth = Some(turns.worth(&better)).filter(|worth| over_originals && *worth > 1.0);
            self.worth = worth.map(|worth| (better, worth));
            // It is in force for as long as one that is verified.
            self.verified_ns.insert(better, now_ns);
        }
        Some(match (turns.is_trial(), keep) {
            (false, true) => {
                self.verified_ns.insert(setting, now_ns);
                self.rest.begin_anew();
                if maximum(&reference) >= maximum(&self.longest) {
                    // A trial would repeat this comparison.
                    self.pause_ns = self.pause_ns.max(PAUSE_AFTER_CHECK_NS);
                    self.trial_failed(now_ns);
                }
                (setting, Cause::Verified(measured))
            }
            (false, false) => {
                let rest_ns = self.refuted(now_ns, &setting);
                (reference, Cause::Refuted { measured, rest_ns })
            }
            (true, true) => {
                self.closed_until_ns = now_ns.saturating_add(MINUTE_NS);
                self.verified_ns.remove(&reference);
                self.verified_ns.insert(setting, now_ns);
                self.pause_ns = (self.pause_ns / PAUSES).max(FIRST_PAUSE_NS);
                self.trial_at_ns = Some(now_ns.saturating_add(self.pause_ns));
                if measured.closed && measured.setting_ns > measured.reference_ns {
                    // A replay would find it too dear at once.
                    self.wait(now_ns);
                }
                (setting, Cause::Tried(measured))
            }
            (true, false) => {
                self.trial_failed(now_ns);
                (reference, Cause::Turn)
            }
        })
    }

    /// The originals are to be used, whatever turns show.
    pub(crate) fn break_off(&mut self, now_ns: u64) {
        match self.turns.take() {
            // One that has shown nothing was not in vain.
            Some(turns) if turns.is_trial() && turns.is_new() => {
                self.trial_at_ns = Some(now_ns.saturating_add(self.pause_ns));
            }
            Some(turns) if turns.is_trial() => self.trial_failed(now_ns),
            // What a replay finds once more would be lost once more.
            Some(turns) if self.are_necessary(now_ns) => {
                self.refuted(now_ns, turns.settings()[0]);
            }
            _ => {}
        }
    }

    /// No other setting is used for a while \[ns\].
    fn refuted(&mut self, now_ns: u64, setting: &Setting) -> u64 {
        self.verified_ns.remove(setting);
        let rest_ns = self.rest.take_ns();
        self.held_until_ns = now_ns.saturating_add(rest_ns);
        rest_ns
    }

    /// Whether the load may be a closed loop, so that no replay can be used without turns: also after it has changed, for
    /// as long as writes that turns took are counted.
    pub(crate) const fn are_necessary(&self, now_ns: u64) -> bool {
        now_ns < self.closed_until_ns
    }

    fn trial_failed(&mut self, now_ns: u64) {
        self.trial_at_ns = Some(now_ns.saturating_add(self.pause_ns));
        self.pause_ns = (PAUSES * self.pause_ns).min(LONGEST_PAUSE_NS);
    }

    /// Whether a check that did not exclude a loss keeps other settings from being used.
    pub(crate) fn hold(&self, now_ns: u64) -> bool {
        now_ns < self.held_until_ns
    }

    /// Whether a setting is to be compared with another one.
    pub(crate) fn is_to_be_verified(&self, now_ns: u64, setting: &Setting) -> bool {
        let verified_ns = self.verified_ns.get(setting);
        self.every.is_some_and(|every| verified_ns.is_none_or(|at| now_ns.saturating_sub(*at) >= every.get()))
    }

    /// The setting of a trial, if one is due.
    pub(crate) fn trial(&mut self, now_ns: u64, present: &Setting, mostly_halts: bool) -> Option<Setting> {
        if self.are_off() || !mostly_halts || length(present) >= length(&self.longest) {
            return None;
        }
        let at_ns = *self.trial_at_ns.get_or_insert(now_ns.saturating_add(FIRST_PAUSE_NS));
        (now_ns >= at_ns).then_some(self.longest)
    }

    /// Whether a trial may come though the account is exceeded: what exceeded it was of another load.
    pub(crate) const fn may_be_free(&self, now_ns: u64) -> bool {
        self.free && now_ns >= self.free_at_ns
    }

    /// When a trial may come \[ns\], if none has since the load changed; where the account is `exceeded`, as a free one.
    pub(crate) fn next_trial_ns(&self, present: &Setting, exceeded: bool) -> Option<u64> {
        let would_poll_longer = length(present) < length(&self.longest);
        let free_at_ns = if exceeded { self.free_at_ns } else { 0 };
        (self.free && would_poll_longer && !self.are_off())
            .then(|| free_at_ns.max(self.trial_at_ns.unwrap_or(0)))
    }

    /// Such a trial begins.
    pub(crate) fn begin_free(&mut self, now_ns: u64, turns: Turns) {
        (self.free, self.free_at_ns) = (false, now_ns.saturating_add(FREE_EVERY_NS));
        self.turns = Some(turns.free());
    }

    /// A setting that was a gain is a loss: the load is another one.
    pub(crate) const fn lost(&mut self) {
        self.free = true;
    }

    /// Whether turns may lose what the account does not allow.
    pub(crate) fn are_free(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| turns.free_parts > 0)
    }

    /// The setting that was in force before the trial that is under way, if that was not the originals.
    pub(crate) fn before_trial(&self) -> Option<Setting> {
        let trial = self.turns.as_ref().filter(|turns| turns.is_trial())?;
        Some(*trial.settings()[1]).filter(|before| *before != self.originals)
    }

    /// No other setting is chosen for a while, unless the load changes: one was advised.
    pub(crate) fn wait(&mut self, now_ns: u64) {
        self.held_until_ns = now_ns.saturating_add(REFUTED_NS);
    }

    /// What was seen under a setting; whether the load has changed, which ends pauses.
    pub(crate) fn saw(&mut self, now_ns: u64, present: &Setting, part: Part) -> bool {
        let changes = self.load.changes(present, part);
        if changes {
            self.another_load(now_ns, FIRST_PAUSE_NS);
        }
        changes
    }

    /// A glance has shown that the load may be another one: whether what was seen since differs from what is known of the load
    /// under this setting. Otherwise pauses continue: turns would repeat what they have shown.
    pub(crate) fn glanced(&mut self, now_ns: u64, present: &Setting, part: Part) -> bool {
        if self.load.is_alike(present, part) {
            return false;
        }
        self.load = Load::of(present, part);
        // They were compared under another load.
        self.verified_ns.clear();
        self.another_load(now_ns, 0);
        true
    }

    /// Nothing is known of the load: pauses end, and a trial comes after `pause_ns` at most.
    fn another_load(&mut self, now_ns: u64, pause_ns: u64) {
        self.worth = None;
        self.predicted.clear();
        self.free = true;
        self.pause_ns = FIRST_PAUSE_NS;
        let at_ns = now_ns.saturating_add(pause_ns);
        self.trial_at_ns = Some(self.trial_at_ns.map_or(at_ns, |before_ns| before_ns.min(at_ns)));
        self.rest.begin_anew();
        self.held_until_ns = self.held_until_ns.min(now_ns);
    }
}

/// How long a rule polls: for at first, at most, and whether it keeps its window.
fn length(setting: &Setting) -> (i64, i64, bool) {
    let value = |ends: &str| {
        let mut all = setting.iter();
        all.find(|(param, _)| param.name.ends_with(ends)).map_or(0, |(_, value)| value)
    };
    (value("grow_start").min(maximum(setting)), maximum(setting), value("_shrink") == 1)
}

/// The one that polls for longest, the first of equals.
fn longest(candidates: &[Setting]) -> Setting {
    *candidates.iter().rev().max_by_key(|setting| length(setting)).unwrap_or(&candidates[0])
}

/// How many episodes a load has, and how long they are, to see it change.
#[derive(Clone, Debug, Default)]
struct Load {
    present: Option<Setting>,
    part: Part,
    /// Episodes a second, and the logarithm of their length, at first under each setting: a load that changes during turns is
    /// seen when the setting from before is in force again.
    first: HashMap<Setting, [f64; 2]>,
}

impl Load {
    /// One of which nothing else is known.
    fn of(present: &Setting, part: Part) -> Load {
        Load { first: HashMap::from([(*present, Load::figures(part))]), ..Load::default() }
    }

    fn figures(part: Part) -> [f64; 2] {
        let per_s = part.per_s().max(BUSY_PER_S);
        // An idle CPU has episodes of any length.
        let log = if per_s > BUSY_PER_S { part.logs / part.episodes } else { f64::NAN };
        [per_s.log2(), log]
    }

    /// Whether figures, each a logarithm, are apart by more than a factor.
    fn are_apart(figures: [f64; 2], first: [f64; 2], factor: f64) -> bool {
        figures.iter().zip(first).any(|(log, first)| (log - first).abs() > factor.log2())
    }

    /// Whether a part is as the load was at first under this setting.
    fn is_alike(&self, present: &Setting, part: Part) -> bool {
        let first = self.first.get(present);
        first.is_some_and(|first| !Load::are_apart(Load::figures(part), *first, ALIKE))
    }

    fn changes(&mut self, present: &Setting, part: Part) -> bool {
        if self.present != Some(*present) {
            (self.present, self.part) = (Some(*present), Part::default());
        }
        self.part += part;
        if self.part.ns < LOAD_NS {
            return false;
        }
        let figures = Load::figures(std::mem::take(&mut self.part));
        let first = *self.first.entry(*present).or_insert(figures);
        let changed = Load::are_apart(figures, first, CHANGED);
        if changed {
            self.first.clear();
        }
        if changed || first[1].is_nan() {
            self.first.insert(*present, figures);
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::by_work::tests::{in_turns, of};
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use dwell_replay::causal::with_maximum;

    #[test]
    fn the_setting_of_trials_polls_for_longest() {
        let of = |layer, maximum: &str, value: i64| {
            let mut originals = Setting::defaults(layer, Version::new(6, 18));
            originals.set(maximum, value).unwrap();
            let candidates = crate::core::candidates::candidates(
                originals,
                Nanos(20_000),
                Nanos(80_000),
                crate::core::candidates::Reach::All,
            );
            longest(&candidates)
        };
        for (layer, maximum, first, shrink) in [
            (Layer::Host, "halt_poll_ns", "halt_poll_ns_grow_start", "halt_poll_ns_shrink"),
            (Layer::Guest, "guest_halt_poll_ns", "guest_halt_poll_grow_start", "guest_halt_poll_shrink"),
        ] {
            for original in [0, 200_000] {
                let longest = of(layer, maximum, original);
                assert_eq!(
                    [maximum, first, shrink].map(|name| longest.get(name)),
                    [Some(80_000), Some(80_000), Some(1)]
                );
            }
        }
    }

    #[test]
    fn work_that_is_predicted_is_worth_its_cost_until_the_load_changes() {
        let default = Setting::defaults(Layer::Guest, Version::new(6, 18));
        let [never, polls] = [0, 80_000].map(|ns| with_maximum(default, ns));
        let by_work = |every_ns| of(&in_turns(every_ns), &[never, polls]).unwrap();
        let mut checks = Checks::new(Some(Nanos(60_000_000_000)), &[never, polls]);
        checks.verified_ns.insert(polls, 0);
        checks.predicted(&by_work(None), &polls);
        assert!(checks.worth(&polls) > 1.5 && checks.worth(&never) == 1.0, "{}", checks.worth(&polls));
        assert!(checks.is_to_be_verified(1, &polls));
        checks.another_load(1, 0);
        assert_eq!(checks.worth(&polls), 1.0);
        // As much work is done.
        checks.predicted(&by_work(Some(45_000)), &polls);
        assert_eq!(checks.worth(&polls), 1.0);
    }

    #[test]
    fn a_load_with_twice_as_many_episodes_is_another_one() {
        let mut load = Load::default();
        let a = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut b = a;
        b.set("halt_poll_ns", 0).unwrap();
        let second = |load: &mut Load, setting: &Setting, per_s: f64| {
            load.changes(setting, Part { episodes: per_s / 4.0, ns: LOAD_NS, ..Part::default() })
        };
        let all =
            [(a, 5e3), (a, 7e3), (a, 8e3), (a, 7e3), (a, 5e3), (b, 30e3), (a, 5e3), (a, 100.0), (a, 10.0)];
        let changes: Vec<bool> =
            all.iter().map(|(setting, per_s)| second(&mut load, setting, *per_s)).collect();
        assert_eq!(changes, [false, false, true, false, true, false, false, true, false]);
        // As many, and some half as long.
        let mut of_length = |ns: f64| {
            load.changes(&a, Part { episodes: 9e3, logs: 9e3 * ns.log2(), ns: LOAD_NS, ..Part::default() })
        };
        let changes = [30e3, 30e3, 35e3, 15e3, 18e3].map(&mut of_length);
        assert_eq!(changes, [true, false, false, true, false]);
        // After a glance: what is known of the load, what is a quarter more, and another setting.
        let part = |per_s: f64| Part { episodes: per_s / 100.0, ns: LOAD_NS / 25, ..Part::default() };
        let load = Load::of(&a, part(30e3));
        assert_eq!([25e3, 37e3, 38e3].map(|per_s| load.is_alike(&a, part(per_s))), [true, true, false]);
        assert!(!load.is_alike(&b, part(30e3)));
        // While another setting is in force, under which nothing is known of the new load.
        let mut load = Load::default();
        let all = [(a, 5e3), (b, 30e3), (a, 9e3), (b, 60e3), (b, 9e3)];
        let changes = all.map(|(setting, per_s)| second(&mut load, &setting, per_s));
        assert_eq!(changes, [false, false, true, false, true]);
    }
}
