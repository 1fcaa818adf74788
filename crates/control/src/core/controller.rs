//! The loop of decisions: trust, account, gate, choice and turns, period by period.

use crate::core::account::{Account, Loss};
use crate::core::by_work::{ByWork, LONGEST_BEFORE_A_CHANGE, LONGEST_FOR_ADVICE, Question};
use crate::core::change::{Cause, Change, writes};
use crate::core::checks::Checks;
use crate::core::choice::{Choice, FEWEST};
use crate::core::glance::Glances;
use crate::core::haltpoll;
use crate::core::idlers::Idlers;
use crate::core::observed::Observed;
use crate::core::pace::{FIRST_NS, MOST_WRITES, Pace, Writes};
use crate::core::period::{Period, Searched};
use crate::core::pricing::fresh;
use crate::core::status::{Seen, Status};
use crate::core::tenant::{Excess, Veto};
use crate::core::terms::Terms;
use crate::core::trust::Trust;
use crate::core::turns::{Next, Part, SETTLE_NS, Turns};
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::causal::{maximum, with_maximum};
use dwell_replay::{Counts, RuleError};

/// A trial may not bring the writes of a minute above these: the others are for changes.
const MOST_WRITES_WITH_TRIALS: usize = MOST_WRITES - 12;
/// A trial that may begin within this time is waited for \[ns\].
const SOON_NS: u64 = 1_000_000_000;
/// What a change has to save of the present cost in a closed loop.
const WORTH_TURNS: f64 = 0.25;

/// Decides which setting is to be in force.
pub struct Controller {
    terms: Terms,
    choice: Choice,
    searched: Searched,
    present: Setting,
    idlers: Idlers,
    account: Account,
    trust: Trust,
    pace: Pace,
    writes: Writes,
    /// The end of the time that observations cover \[ns\].
    observed_ns: u64,
    glances: Glances,
    /// Whether a glance has shown that the load may be another one.
    pub(crate) another_load: bool,
    checks: Checks,
    /// The setting that was advised last, where changes are advised and not made.
    advised: Option<Setting>,
    /// Whether in the last period most episodes ended in a halt.
    mostly_halts: bool,
    /// Episodes a second in the last period, of all idlers.
    per_s: f64,
    waiting: Option<Waiting>,
}

/// What waits for a comparison by the work done.
struct Waiting {
    /// A change that a replay of idle times has chosen; `None`: a trial is due.
    chosen: Option<(Setting, Cause)>,
    part: Part,
    load_is_new: bool,
}

impl Controller {
    /// Over these settings, which are in force.
    ///
    /// # Errors
    /// [`RuleError`] if their rule cannot be replayed.
    pub fn new(originals: Setting, terms: Terms) -> Result<Controller, RuleError> {
        let choice = Choice::new(originals, terms)?;
        let checks = Checks::new(terms.verify, &choice.candidates);
        Ok(Controller {
            terms,
            choice,
            searched: Searched::default(),
            present: originals,
            idlers: Idlers::new(&originals),
            account: Account::new(),
            trust: Trust::new(0),
            pace: Pace::new(terms.period.get(), terms.cpu_limit.get() as f64 / 1e9),
            writes: Writes::default(),
            observed_ns: 0,
            glances: Glances::default(),
            another_load: false,
            checks,
            advised: None,
            mostly_halts: false,
            per_s: 0.0,
            waiting: None,
        })
    }

    /// The same with this setting in force, which an earlier controller has left.
    ///
    /// # Errors
    /// [`RuleError`] if its rule cannot be replayed.
    pub fn adopting(self, present: Setting) -> Result<Controller, RuleError> {
        fresh(present)?;
        Ok(Controller { present, ..self })
    }

    /// Control begins, or begins anew.
    pub fn start(&mut self, now_ns: u64) {
        self.checks.break_off(now_ns);
        self.trust = Trust::new(now_ns);
        self.observed_ns = now_ns;
        self.pace.start(now_ns);
    }

    /// When to decide next \[ns\].
    pub fn next_at_ns(&self) -> u64 {
        self.pace.next_ns
    }

    /// What the cost of a period may be of that under the originals: more than 1 where turns have found a closed loop, in
    /// which more is done under the setting in force.
    pub(crate) fn worth(&self) -> f64 {
        self.checks.worth(&self.present)
    }

    /// The setting that control began with.
    pub fn originals(&self) -> Setting {
        self.choice.originals()
    }

    /// Whether another setting than the originals is in force.
    fn is_controlled(&self) -> bool {
        self.present != self.originals()
    }

    /// The settings that it chooses from, the originals first.
    pub fn candidates(&self) -> &[Setting] {
        &self.choice.candidates
    }

    /// The setting in force and the state of the account.
    pub fn status(&self, now_ns: u64) -> Status {
        Status {
            present: self.present,
            owed_ns: self.account.owed_ns(),
            rests: self.account.rests(now_ns) || self.checks.hold(now_ns) && !self.is_controlled(),
            untrusted: self.trust.lost.filter(|lost| now_ns < lost.until_ns),
            latency_ns: self.idlers.latency_ns(),
        }
    }

    /// What the period before the last decision showed of each idler.
    pub fn seen(&self) -> &[Seen] {
        &self.idlers.seen
    }

    /// The vetoes without which the last decision would have chosen another setting, the one that costs least.
    pub fn vetoes(&self) -> &[Veto] {
        &self.choice.vetoes
    }

    /// So much CPU time was used since the last call, of all that is done for control; what is too much makes
    /// periods longer.
    pub fn spent(&mut self, now_ns: u64, cpu: Nanos) {
        self.pace.spent(now_ns, cpu.get());
    }

    /// Until when no CPU time is left to look or to decide \[ns\].
    pub fn out_of_budget_until_ns(&self) -> u64 {
        self.pace.out_of_budget_until_ns()
    }

    /// When to glance at counters, if no decision comes before \[ns\]; not in turns, whose setting changes.
    pub fn next_glance_ns(&self) -> Option<u64> {
        (!self.checks.in_turns() && !self.another_load).then_some(self.glances.next_ns)
    }

    /// What was counted of so many CPUs, of all together, in the `ns` before now. If that shows another load the next
    /// decision is due at once, as far as CPU time may be borrowed for it, and only of what is seen from now on.
    pub fn glance(&mut self, now_ns: u64, ns: u64, cpus: usize, counted: &Counts) {
        if self.glances.glance(now_ns, ns, cpus, &self.present, counted, self.terms.halt_cost) {
            self.another_load = true;
            self.observed_ns = now_ns;
            self.pace.hasten(now_ns);
        }
    }

    /// Decides. A change that is returned comes into force only with [`Controller::changed`].
    pub fn decide(&mut self, now_ns: u64, observed: &[Observed]) -> Option<Change> {
        let span_ns = now_ns.saturating_sub(self.observed_ns).max(1);
        // While a setting settles nothing is observed, and the next observation covers that time, too.
        if !(observed.is_empty() && self.settles()) {
            self.observed_ns = now_ns;
        }
        self.choice.vetoes.clear();
        let settings = [self.originals(), self.present];
        if self.another_load {
            // What is seen since the glance is of the load after it.
            self.idlers.grow_old();
        }
        let period = self.idlers.take_in(now_ns, span_ns, observed, &self.terms, settings);
        if self.checks.take_over() {
            self.idlers.forget_episodes();
        }
        self.mostly_halts = self.idlers.mostly_halt(period.part.ns);
        self.per_s = period.part.per_s();
        self.waiting = None;
        let (cause, quiet) = self.judge(now_ns, &period);
        let on_probation = self.is_controlled() && self.account.is_exceeded();
        self.pace.decided(now_ns, quiet, on_probation);
        let (to, cause) = match (cause, self.checks.in_turns()) {
            (Some(cause), _) => {
                // Turns may have begun with a gain. Trust or the account end them.
                if !matches!(cause.1, Cause::Gain { .. }) {
                    self.checks.break_off(now_ns);
                }
                cause
            }
            (None, true) => self.turn(now_ns, period.part)?,
            (None, false) => {
                self.wait_for_a_trial(now_ns);
                return None;
            }
        };
        Some(Change { at_ns: now_ns, from: self.present, to, cause })
    }

    /// Under a load that has changed and mostly halts, the next decision is due when a trial may begin.
    fn wait_for_a_trial(&mut self, now_ns: u64) {
        let exceeded = self.account.is_exceeded();
        let due_ns = self.checks.next_trial_ns(&self.present, exceeded).filter(|_| self.mostly_halts);
        if let Some(wait_ns) =
            due_ns.map(|due_ns| due_ns.saturating_sub(now_ns)).filter(|wait_ns| *wait_ns <= SOON_NS)
        {
            self.pace.at(now_ns, wait_ns.max(FIRST_NS));
        }
    }

    /// Nothing was observed that could decide: the next decision comes later.
    pub fn postpone(&mut self, now_ns: u64, quiet: bool) {
        self.pace.decided(now_ns, quiet, false);
    }

    /// Nothing could be observed, for a reason that may pass: the originals are to be in force, as after trust is lost.
    pub fn unseen(&mut self, now_ns: u64) -> Change {
        self.checks.break_off(now_ns);
        self.waiting = None;
        let rest_ns = self.trust.lose(now_ns, None);
        Change { at_ns: now_ns, from: self.present, to: self.originals(), cause: Cause::Unseen { rest_ns } }
    }

    /// Writes of the observer's own, which count as the controller's: whether so many are possible now, and
    /// the way back to the originals after them.
    pub fn may_write_more(&mut self, now_ns: u64, number: usize) -> bool {
        let back = writes(&self.present, &self.originals());
        self.writes.in_last_minute(now_ns) + number + back <= MOST_WRITES
    }

    /// The observer has written.
    pub fn wrote(&mut self, now_ns: u64, number: usize) {
        self.writes.wrote(now_ns, number);
    }

    /// A change is in force.
    pub fn changed(&mut self, change: &Change) {
        self.writes.wrote(change.at_ns, change.writes());
        self.present = change.to;
        self.searched = Searched::default();
        self.glances.begin_anew();
        self.idlers.changed(&change.to);
        match change.cause {
            Cause::Unseen { rest_ns } => self.pace.at(change.at_ns, rest_ns),
            _ if self.checks.settles() => self.pace.at(change.at_ns, SETTLE_NS),
            _ => self.pace.start(change.at_ns),
        }
    }

    /// What to compare by the work done, where that is waited for, or a change is advised, or idlers mostly halt: the setting in
    /// force, the one to change to, the one that was advised last, the one that polls for longest, never polling, and the
    /// originals. `None` where there is no such question.
    pub fn question(&self, advice: Option<&Change>) -> Option<Question> {
        let to = self.waits_for().or(advice.map(|change| change.to));
        if to.is_none() && self.waiting.is_none() && !self.mostly_halts {
            return None;
        }
        let others = [self.checks.longest, with_maximum(self.present, 0), self.originals()];
        let asked = [Some(self.present), to, self.advised].into_iter().flatten();
        let longest = if self.waits() { LONGEST_BEFORE_A_CHANGE } else { LONGEST_FOR_ADVICE };
        Some(Question::of(asked.chain(others), self.per_s, longest))
    }

    /// Whether a comparison by the work done is waited for: [`Controller::compared`] goes on.
    pub fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// The setting that waits to be compared by the work done.
    pub fn waits_for(&self) -> Option<Setting> {
        Some(self.waiting.as_ref()?.chosen?.0)
    }

    /// Goes on with what waits: as if there were no comparison, or with the setting that is best by it, if that is another one
    /// than is in force. If none is, no other setting is chosen for a while, unless the load changes.
    pub fn compared(&mut self, now_ns: u64, by_work: Option<&ByWork>) -> Option<Change> {
        let Waiting { mut chosen, part, load_is_new } = self.waiting.take()?;
        if let Some(by_work) = by_work {
            self.checks.predicted(by_work, &self.present);
            if let Some((to, _)) = chosen {
                let best = by_work.choose(Some(to), self.present);
                if best == self.present {
                    self.checks.wait(now_ns);
                    chosen = None;
                } else if best != to {
                    let change = (best, by_work.change(now_ns, best).cause);
                    chosen = Some(change).filter(|_| self.may_write(now_ns, &best));
                }
            }
        }
        let begun = self.begin_turns(now_ns, part, load_is_new, chosen.as_ref());
        let (to, cause) = match chosen.filter(|_| begun != Some(false)) {
            Some(chosen) => chosen,
            None if self.checks.in_turns() => self.turn(now_ns, part)?,
            None => return None,
        };
        Some(Change { at_ns: now_ns, from: self.present, to, cause })
    }

    /// The setting that was advised last, or else the one in force.
    pub fn advice(&self) -> Setting {
        self.advised.unwrap_or(self.present)
    }

    /// A change was advised, and is not made: the next advice has to be better than this one by as much as a
    /// change has to gain, and comes no sooner than after some seconds unless the load changes.
    pub fn advised(&mut self, change: &Change) {
        self.advised = Some(change.to);
        self.searched = Searched::default();
        self.checks.wait(change.at_ns);
    }

    /// Whether what is seen until the next decision is left out, as a setting has just been switched: it need
    /// not be recorded.
    pub fn settles(&self) -> bool {
        self.checks.settles()
    }

    /// The next part of turns.
    fn turn(&mut self, now_ns: u64, part: Part) -> Option<(Setting, Cause)> {
        match self.checks.next(part, &self.present)? {
            Next::Wait(wait_ns) => {
                self.pace.at(now_ns, wait_ns);
                None
            }
            Next::Switch(to) => Some((to, Cause::Turn)),
            Next::Over { keep, measured } => {
                let (to, cause) = self.checks.end(now_ns, keep, measured)?;
                (to != self.present || cause != Cause::Turn).then_some((to, cause))
            }
        }
    }

    /// Begins turns, if any are due and their writes within the most of a minute: whether what was chosen is
    /// put into force before them. A setting that is chosen is compared with the cheaper one, by replay, of
    /// that in force and the originals, but with that in force in a closed loop and where it alone polls; one that is in
    /// force with the originals, and these with it if it was found to do more than they do. In the period before now the load
    /// may have begun.
    fn begin_turns(
        &mut self,
        now_ns: u64,
        part: Part,
        load_is_new: bool,
        chosen: Option<&(Setting, Cause)>,
    ) -> Option<bool> {
        // On probation periods are short, which turns are not; but only turns show that less is done with less polling.
        let polls_less = chosen.is_some_and(|(to, _)| maximum(to) < maximum(&self.present));
        let exceeded = self.account.is_exceeded();
        let may_be_free = chosen.is_none() && self.checks.may_be_free(now_ns);
        let free = exceeded && may_be_free;
        if self.checks.are_off() || exceeded && !free && !polls_less {
            return None;
        }
        let (originals, present) = (self.originals(), self.present);
        let (setting, reference) = match chosen {
            Some((to, Cause::Gain { present_ns, originals_ns, .. }))
                if present_ns < originals_ns
                    || self.checks.are_necessary(now_ns)
                    || maximum(to) == 0 && maximum(&present) > 0 =>
            {
                (*to, present)
            }
            Some((to, Cause::Work { .. })) => (*to, present),
            Some((to, _)) => (*to, originals),
            None if self.worth() > 1.0 => (originals, present),
            None => (present, originals),
        };
        let new = chosen.map_or(&present, |(to, _)| to);
        let differ = setting != originals || reference != originals && self.checks.are_necessary(now_ns);
        let trial = if chosen.is_none() { self.trial(now_ns) } else { None };
        // Where idlers halt, polling may do more than both settings of a check.
        let turns = match trial {
            Some(polls) => Turns::trial(polls, (present, part), self.terms.halt_cost)?,
            None if !free && differ && self.checks.is_to_be_verified(now_ns, new) => {
                Turns::check(setting, reference, (present, part), load_is_new, self.terms.halt_cost)
            }
            None => return None,
        };
        let begins_with_chosen = chosen.is_some() && turns.is_of_setting(0);
        let in_force = if begins_with_chosen { &setting } else { &present };
        if haltpoll::cannot_take_turns(turns.settings()) || !self.may_switch(now_ns, in_force, &turns) {
            return self.checks.are_necessary(now_ns).then_some(false);
        }
        match may_be_free && turns.is_trial() {
            true => self.checks.begin_free(now_ns, turns),
            false => self.checks.begin(turns),
        }
        Some(begins_with_chosen)
    }

    /// The setting of a trial, if one is due.
    fn trial(&mut self, now_ns: u64) -> Option<Setting> {
        let exceeded = self.account.is_exceeded();
        let free = exceeded && self.checks.may_be_free(now_ns);
        let may_come = free || !exceeded && !self.account.rests(now_ns);
        self.checks.trial(now_ns, &self.present, may_come && self.mostly_halts)
    }

    /// Whether all switches of turns and the way back are within the most writes of a minute.
    fn may_switch(&mut self, now_ns: u64, in_force: &Setting, turns: &Turns) -> bool {
        let [setting, reference] = turns.settings();
        let originals = self.originals();
        let back = writes(setting, &originals).max(writes(reference, &originals));
        let to_first = writes(&self.present, in_force);
        let of_one =
            writes(setting, reference).max(writes(in_force, setting)).max(writes(in_force, reference));
        let most = if turns.is_trial() { MOST_WRITES_WITH_TRIALS } else { MOST_WRITES };
        self.writes.in_last_minute(now_ns) + to_first + turns.switches() * of_one + back <= most
    }

    /// What to do, and whether there is next to nothing to gain.
    fn judge(&mut self, now_ns: u64, period: &Period) -> (Option<(Setting, Cause)>, bool) {
        let (originals, controlled) = (self.originals(), self.is_controlled());
        let originals_ns = period.originals_ns * self.worth();
        let free = self.checks.are_free();
        let loss = self.account.book(now_ns, period.part.cost_ns, originals_ns, controlled, free);
        let glanced = std::mem::take(&mut self.another_load);
        let load_changed = !self.checks.in_turns()
            && match glanced {
                true => self.checks.glanced(now_ns, &self.present, period.part),
                false => self.checks.saw(now_ns, &self.present, period.part),
            };
        match (load_changed, glanced) {
            // They are of another load.
            (true, false) => self.idlers.forget_episodes(),
            (true, true) => {
                self.idlers.forget_old_episodes();
                self.glances.forget();
            }
            (false, _) => {}
        }
        if self.trust.is_lost(now_ns, load_changed) {
            self.idlers.grow_old();
            return (None, true);
        }
        // Parts of turns are short, and what they show does not need the rule.
        if !self.checks.in_turns()
            && period.counted.episodes >= FEWEST as u64
            && let Some(apart) = self.trust.compare(&period.predicted, &period.counted, period.how)
        {
            let (episodes, rest_ns) = (period.counted.episodes, self.trust.lose(now_ns, Some(apart)));
            return (Some((originals, Cause::Untrusted { apart, episodes, rest_ns })), true);
        }
        if let Some(Loss { excess_ns, originals_ns, rest_ns }) = loss {
            self.checks.lost();
            // What a trial loses is no loss of the setting before it.
            if let Some(before) = self.checks.before_trial() {
                return (Some((before, Cause::Turn)), false);
            }
            let cause = Cause::Loss { excess_ns, originals_ns, rest_ns };
            return (Some((originals, cause)), false);
        }
        if let Some((idler, Excess { paid_ns, originals_ns, rest_ns })) = period.excess {
            self.account.rest(now_ns, rest_ns);
            let cause = Cause::Vetoed { idler, cost_ns: paid_ns, originals_ns, rest_ns };
            return (Some((originals, cause)), false);
        }
        if self.checks.in_turns() {
            return (None, false);
        }
        // A burst of load after a quiet time may find a setting that is wrong for it: then the usual period
        // bounds what it costs.
        let quiet = !controlled && period.cpu_ns <= period.least_ns();
        if self.idlers.episodes() < FEWEST {
            return (None, quiet);
        }
        let held = self.account.rests(now_ns) || self.checks.hold(now_ns);
        // Advice that was given may be worth no more than the originals by now.
        let worthless = period.is_worthless() && self.advised.is_none_or(|advised| advised == originals);
        let searched = !worthless && !held && self.searched.is_due(period);
        let over = self.advice();
        let chosen = if searched {
            let counted = period.of_one().filter(|_| over == self.present);
            self.choice.choose(&self.idlers, over, counted)
        } else {
            None
        };
        let chosen = chosen.map(|(to, cause)| (to, self.over_present(cause)));
        if searched && chosen.is_none() {
            self.searched.in_vain();
        }
        let chosen =
            chosen.filter(|(to, cause)| self.may_write(now_ns, to) && self.is_worth_turns(now_ns, cause));
        self.idlers.grow_old();
        if period.cpu_ns <= period.least_ns() {
            return (chosen, quiet);
        }
        let (part, load_is_new) = (period.part, glanced || load_changed);
        if self.terms.by_work && (chosen.is_some() || self.trial(now_ns).is_some()) {
            self.waiting = Some(Waiting { chosen, part, load_is_new });
            return (None, false);
        }
        let begun = self.begin_turns(now_ns, part, load_is_new, chosen.as_ref());
        match begun {
            Some(with_chosen) => (chosen.filter(|_| with_chosen), false),
            None => (chosen, quiet),
        }
    }

    /// In a closed loop no replay is right, so that a small gain is not worth the turns that it needs.
    fn is_worth_turns(&self, now_ns: u64, cause: &Cause) -> bool {
        match cause {
            Cause::Gain { present_ns, chosen_ns, .. } if self.checks.are_necessary(now_ns) => {
                *chosen_ns < present_ns * (1.0 - WORTH_TURNS)
            }
            _ => true,
        }
    }

    /// Advice is over the originals, which are in force, whatever was advised before.
    fn over_present(&self, cause: Cause) -> Cause {
        match (self.advised, cause) {
            (Some(_), Cause::Gain { episodes, chosen_ns, originals_ns, optimum_ns, .. }) => {
                Cause::Gain { episodes, present_ns: originals_ns, chosen_ns, originals_ns, optimum_ns }
            }
            _ => cause,
        }
    }

    /// Whether a setting can be written and the originals after it, within the most writes of a minute.
    fn may_write(&mut self, now_ns: u64, to: &Setting) -> bool {
        let back = writes(to, &self.originals());
        self.writes.in_last_minute(now_ns) + writes(&self.present, to) + back <= MOST_WRITES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::pace::MINUTE_NS;
    use crate::core::sample::Episode;
    use crate::core::tenant::Tenant;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use dwell_replay::{Counts, Player};

    const K: Nanos = Nanos(20_000);

    fn controller() -> Controller {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut controller = Controller::new(originals, Terms::at(K)).unwrap();
        controller.start(0);
        controller
    }

    /// What the setting in force does in a period of so many episodes of this length, all of them seen.
    fn period(player: &mut Player, episodes: usize, idle_ns: u64) -> Observed {
        Observed::played(player, vec![Episode::of(idle_ns); episodes])
    }

    fn player(controller: &Controller) -> Player {
        fresh(controller.present).unwrap()
    }

    #[test]
    fn long_episodes_are_halted_through_and_short_ones_polled() {
        let mut controller = controller();
        let mut player = player(&controller);
        let mut told = vec![];
        for number in 0..40 {
            let now = controller.next_at_ns();
            let idle = if number < 20 { 150_000 } else { 12_000 };
            if let Some(change) = controller.decide(now, &[period(&mut player, 300, idle)]) {
                player.set(&change.to);
                controller.changed(&change);
                told.push((number, change));
            }
        }
        assert_eq!(told[0].1.to.get("halt_poll_ns"), Some(0));
        let Cause::Gain { present_ns, chosen_ns, optimum_ns, .. } = told[0].1.cause else {
            panic!("{told:?}")
        };
        assert!(present_ns > 7.0 * chosen_ns && chosen_ns == optimum_ns, "{:?}", told[0].1.cause);
        let (when, last) = &told[told.len() - 1];
        assert!(*when <= 24 && last.to.get("halt_poll_ns").unwrap() >= 12_000, "{when}: {last:?}");
        assert!(told.len() <= 4, "{told:?}");
    }

    #[test]
    fn what_was_seen_has_what_it_cost_and_would_have_cost() {
        let mut controller = controller();
        let mut player = player(&controller);
        let one = period(&mut player, 300, 150_000);
        let two = Observed::new(9, Counts { episodes: 5, ..Counts::default() }, vec![]);
        let counted = one.counted;
        controller.decide(10_000_000, &[one, two]);
        let [Seen { idler: 7, costs: Some(costs), .. }, Seen { idler: 9, costs: None, .. }] =
            controller.seen()
        else {
            panic!("{:?}", controller.seen())
        };
        let measured = counted.cost_ns(K) as f64;
        assert_eq!((costs.measured, costs.predicted, costs.originals), (measured, measured, measured));
        assert_eq!(costs.optimum, 300.0 * 20_000.0);
        controller.decide(20_000_000, &[]);
        assert_eq!(controller.seen(), []);
    }

    #[test]
    fn few_episodes_and_small_gains_decide_nothing() {
        let mut controller = controller();
        let mut one = player(&controller);
        assert_eq!(controller.decide(10_000_000, &[period(&mut one, FEWEST - 1, 150_000)]), None);
        assert!(controller.decide(20_000_000, &[period(&mut one, 1, 150_000)]).is_some());
        // Nothing can be saved of a load that the default polls through.
        let mut controller = self::controller();
        let mut one = player(&controller);
        for number in 1..50u64 {
            let seen = period(&mut one, 300, 3_000);
            assert_eq!(controller.decide(number * 100_000_000, &[seen]), None);
        }
    }

    #[test]
    fn a_rule_that_does_not_do_what_was_counted_is_not_trusted() {
        let mut controller = controller();
        let mut told = vec![];
        // Says that nothing polled, though the default would have.
        let wrong = || {
            let counted = Counts { episodes: 300, halts: 300, ..Counts::default() };
            Observed::new(1, counted, vec![Episode::of(90_000); 300])
        };
        for number in 1..13u64 {
            let seen = wrong();
            told.extend(controller.decide(number * 100_000_000, &[seen]).map(|change| (number, change)));
        }
        assert_eq!(told.len(), 1);
        let (
            3,
            Change {
                from, to, cause: Cause::Untrusted { apart, episodes: 300, rest_ns: 1_000_000_000 }, ..
            },
        ) = &told[0]
        else {
            panic!("{told:?}")
        };
        assert_eq!((from, apart.counted), (to, 300));
        let until_ns = controller.status(0).untrusted.unwrap().until_ns;
        assert_eq!(until_ns, 1_300_000_000);
        // What is counted is as predicted again, and control goes on with what it knows.
        let mut player = player(&controller);
        let seen = Observed { idler: 1, ..period(&mut player, 300, 90_000) };
        let change = controller.decide(until_ns, &[seen]).unwrap();
        assert!(matches!(change.cause, Cause::Gain { .. }), "{change:?}");
        assert_eq!(controller.status(until_ns).untrusted, None);
    }

    #[test]
    fn another_load_ends_the_time_without_trust() {
        let mut controller = controller();
        let at = |controller: &mut Controller, number: u64, seen| {
            controller.decide(number * 100_000_000, &[seen]).map(|change| change.cause)
        };
        let wrong = |number: u64| {
            let counted = Counts { episodes: number, halts: number, ..Counts::default() };
            Observed::new(1, counted, vec![Episode::of(90_000); 300])
        };
        let mut lost = 0;
        for number in 1..100 {
            let cause = at(&mut controller, number, wrong(600));
            lost += u32::from(matches!(cause, Some(Cause::Untrusted { .. })));
        }
        // At 0.3, 1.6, 3.9 and 8.2 s: 8 s from then on.
        assert_eq!(lost, 4);
        let mut player = player(&controller);
        let mut right = |number| Observed { idler: 1, ..period(&mut player, number, 150_000) };
        let mut since = 0;
        while controller.status(0).untrusted.is_some() {
            since += 1;
            let cause = at(&mut controller, 99 + since, right(2_000));
            assert!(cause.is_none_or(|cause| matches!(cause, Cause::Gain { .. })), "{cause:?}");
        }
        assert!(since <= 20, "{since}");
    }

    #[test]
    fn advice_does_not_alternate() {
        let mut controller = controller();
        let mut player = player(&controller);
        let mut advised = vec![];
        for number in 1..300u64 {
            // Two loads that take turns; none of their settings is much better than the other for both.
            let idle_ns = if number / 3 % 2 == 0 { 150_000 } else { 60_000 };
            if let Some(change) =
                controller.decide(number * 100_000_000, &[period(&mut player, 300, idle_ns)])
            {
                controller.advised(&change);
                advised.push((number, change));
            }
        }
        assert_eq!(advised.len(), 1, "{advised:?}");
        // A load for which the originals are as good as anything ends it.
        for number in 300..400u64 {
            if let Some(change) = controller.decide(number * 100_000_000, &[period(&mut player, 300, 3_000)])
            {
                controller.advised(&change);
                advised.push((number, change));
            }
        }
        let [_, (_, back)] = &advised[..] else { panic!("{advised:?}") };
        assert_eq!(back.to.get("halt_poll_ns").map(|window_ns| window_ns > 3_000), Some(true));
    }

    #[test]
    fn a_window_that_another_setting_has_left_does_not_end_trust() {
        let originals = Setting::defaults(Layer::Guest, Version::new(6, 12));
        let mut never = originals;
        never.set("guest_halt_poll_ns", 0).unwrap();
        let mut controller = Controller::new(originals, Terms::at(K)).unwrap();
        controller.start(0);
        let cause =
            Cause::Gain { episodes: 0, present_ns: 0.0, chosen_ns: 0.0, originals_ns: 0.0, optimum_ns: 0.0 };
        controller.changed(&Change { at_ns: 0, from: originals, to: never, cause });
        // The window is that of the originals, and no poll fails.
        let mut kernel = crate::core::haltpoll::widened(never, 200_000).unwrap();
        for number in 1..20u64 {
            let seen = period(&mut kernel, 300, 74_000);
            assert_eq!((seen.counted.polls, seen.counted.halts), (300, 0));
            // Episodes between two periods, which are not known, have their effect on what is predicted.
            controller.idlers.predict_afresh(&never);
            if let Some(change) = controller.decide(number * 100_000_000, &[seen]) {
                assert!(!matches!(change.cause, Cause::Untrusted { .. }), "{change:?}");
            }
        }
        // Nobody has left one as wide as that.
        let mut kernel = crate::core::haltpoll::widened(never, 1_000_000).unwrap();
        let mut ended = false;
        for number in 20..25u64 {
            let seen = period(&mut kernel, 300, 400_000);
            let change = controller.decide(number * 100_000_000, &[seen]);
            ended |= change.is_some_and(|change| matches!(change.cause, Cause::Untrusted { .. }));
        }
        assert!(ended);
    }

    #[test]
    fn what_was_counted_elsewhere_or_is_drawn_may_be_further_apart() {
        // Of 300 episodes that never poll, 225 halts are counted; or 270 of 300, of which a fifth more would
        // be too many.
        for (elsewhere, drawn, halts, ends) in [
            (false, false, 225, true),
            (true, false, 225, false),
            (false, true, 225, true),
            (false, false, 255, true),
            (false, true, 255, false),
        ] {
            let mut controller = controller();
            controller.present.set("halt_poll_ns", 0).unwrap();
            let mut ended = false;
            for number in 1..5u64 {
                let scale = 20;
                let counted = Counts { episodes: 300 * scale, halts: halts * scale, ..Counts::default() };
                let seen = Observed::new(1, counted, vec![Episode::of(90_000); 300]);
                let seen = Observed { elsewhere, drawn, ..seen };
                let change = controller.decide(number * 100_000_000, &[seen]);
                ended |= change.is_some_and(|change| matches!(change.cause, Cause::Untrusted { .. }));
            }
            assert_eq!(ended, ends, "{elsewhere} {drawn} {halts}");
        }
    }

    #[test]
    fn a_loss_leads_back_to_the_originals_for_a_while() {
        let mut controller = controller();
        let never = {
            let mut setting = controller.originals();
            setting.set("halt_poll_ns", 0).unwrap();
            setting
        };
        // The setting in force never polls, and the load is short.
        let cause =
            Cause::Gain { episodes: 0, present_ns: 0.0, chosen_ns: 0.0, originals_ns: 0.0, optimum_ns: 0.0 };
        let change = Change { at_ns: 0, from: controller.originals(), to: never, cause };
        controller.changed(&change);
        let mut one = player(&controller);
        let seen = period(&mut one, 3_000, 1_000);
        let back = controller.decide(100_000_000, &[seen]).unwrap();
        assert_eq!(back.to, controller.originals());
        let Cause::Loss { excess_ns, rest_ns: 100_000_000, .. } = back.cause else { panic!("{back:?}") };
        assert!(excess_ns > 50e6, "{excess_ns}");
    }

    #[test]
    fn an_idler_that_has_paid_too_much_ends_a_setting() {
        let mut controller = controller();
        let tenant = Tenant { most_loss: Some(0.05), ..Tenant::default() };
        let mut never = controller.originals();
        never.set("halt_poll_ns", 0).unwrap();
        let cause =
            Cause::Gain { episodes: 0, present_ns: 0.0, chosen_ns: 0.0, originals_ns: 0.0, optimum_ns: 0.0 };
        controller.changed(&Change { at_ns: 0, from: controller.originals(), to: never, cause });
        let mut one = player(&controller);
        // All together gain, and one of them loses.
        let gains = Observed { idler: 1, ..period(&mut one, 3_000, 150_000) };
        let loses = Observed { idler: 2, tenant, ..period(&mut one, 300, 9_000) };
        let back = controller.decide(100_000_000, &[gains, loses]).unwrap();
        assert_eq!(back.to, controller.originals());
        let Cause::Vetoed { idler: 2, cost_ns, originals_ns, rest_ns: 1_000_000_000 } = back.cause else {
            panic!("{back:?}")
        };
        assert!(cost_ns > 1.9 * originals_ns, "{back:?}");
        assert!(controller.status(1_000_000_000).rests);
    }

    #[test]
    fn nonsense_that_is_counted_leads_to_nothing_but_candidates() {
        let mut random = dwell_stats::SplitMix64::new(3);
        for _ in 0..50 {
            let mut controller = controller();
            let permitted = controller.candidates().to_vec();
            for period in 1..20u64 {
                let mut number = || match random.below(4) {
                    0 => 0,
                    1 => u64::MAX,
                    2 => random.below(1_000),
                    _ => random.below(u64::MAX),
                };
                let counted = Counts {
                    episodes: number(),
                    polls: number(),
                    polls_succeeded: number(),
                    polled_ns: number().into(),
                    halts: number(),
                    exits: number(),
                    ..Counts::default()
                };
                let episodes: Vec<Episode> = (0..80).map(|_| Episode::of(number())).collect();
                let observed = [0, 1].map(|idler| Observed::new(idler, counted, episodes.clone()));
                if let Some(change) = controller.decide(period * 100_000_000, &observed) {
                    assert!(permitted.contains(&change.to), "{change:?}");
                    controller.changed(&change);
                }
            }
        }
    }

    #[test]
    fn writes_are_limited_and_the_way_back_is_left() {
        let mut controller = controller();
        let mut player = player(&controller);
        let (mut writes, mut now, mut random) = (vec![], 0, dwell_stats::SplitMix64::new(1));
        for number in 0..600u64 {
            now += MINUTE_NS / 600;
            // For the first half a second polling for 5 us is best, for the next it is a loss.
            let short = if number / 5 % 2 == 0 { 0 } else { 2 };
            let mut length = || if random.below(4) < short { 5_000 } else { 150_000 };
            let episodes = std::iter::repeat_with(&mut length).map(Episode::of).take(1_000).collect();
            if let Some(change) = controller.decide(now, &[Observed::played(&mut player, episodes)]) {
                player.set(&change.to);
                controller.changed(&change);
                writes.push(change.writes());
            }
        }
        let all: usize = writes.iter().sum();
        assert!(all > 20 && all <= MOST_WRITES, "{writes:?}");
    }
}
