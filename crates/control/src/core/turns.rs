//! Two settings in turns on the machine itself: the only look at a *closed loop*, whose load is another one
//! because the setting is.
//!
//! # What is compared
//! The cost of a *unit of work*: a context switch where they are counted, else an episode. In an open loop, whose
//! wakeups come whatever the setting is, costs per unit and per second have the same ratio. In a closed
//! loop, where a peer waits for the idler, they do not: a setting that makes the idler answer late is cheaper
//! per second because less is done, and that is no gain.
//!
//! Where units a second differ for certain, the loop is closed, and less of them is less work done: then the
//! cost of one is multiplied by the square of its time (the energy-delay-squared product of hardware
//! design). A setting that does a tenth less has to save 19 % of the cost of a unit, one that costs half as
//! much again has to do 23 % more. In an open loop nothing but the cost counts. Where less than nine tenths are done
//! in the mean turn, nothing makes up for it, unless the interval after six pairs includes equality.
//!
//! Episodes mislead where their number says nothing about the work: a device that collects several requests for
//! one interrupt while the idler sleeps has more episodes under polling, each of them cheaper, for the same
//! requests, and an interrupt that wakes nobody ends a halt and no poll. What is done a second is therefore
//! reported with the cost. Both mislead where idlers of different cost share a setting and only one of them does more.
//!
//! # How
//! First, other, other, first, and so on, so that a load that grows or falls meanwhile costs both alike. What
//! is counted right after a switch is left out. Neighbours are pairs; the logarithms of the ratios of their
//! costs, weighted by the episodes, give an interval of 99 % by Student's distribution after three pairs and
//! after each one more, up to six. The first pairs are of short turns, which show what is large at little
//! cost; later ones are longer.
//!
//! An episode of a setting that does not poll costs one halt, whatever the load is, and is not measured: haltpoll's
//! windows stay as long as they were until a poll fails. Turns have only one of the two where one does not poll, and
//! the other is what was seen just before, if it is in force. That leaves two switches instead of seven. But where the
//! first turn shows that episodes a second may decide against the costs, both have turns: a load that has just begun
//! would look like a closed loop. So they have where polling costs more than the halts of a setting that was not in force just
//! before, as more may be done with it.
//!
//! * A *check* is of a setting that is chosen or in force: it is used if the interval excludes a loss, that
//!   is more than [`TOLERANCE`] times the cost of the reference, and refuted if the interval excludes a gain, unless both
//!   have turns and it may be a gain in a closed loop, which more pairs decide.
//!   What six pairs leave open is small, or the machine is noisy. Then the replay, which has promised a gain,
//!   decides, unless the mean of the turns contradicts it, be the loop open or closed.
//! * A *trial* is of a setting that polls, where the one in force mostly halts. Halting makes the idle times
//!   that justify halting, and no replay of them shows that polling would make them shorter. The one in force
//!   costs what it did just before: about a halt, whatever the load is. The setting stays if it is certainly
//!   cheaper, by 2 %, or where six pairs leave that open if it certainly does more and the mean is a gain. A first
//!   turn that costs [`DEARER`] times as much ends the trial.

use crate::core::account::TOLERANCE;
use crate::core::change::Measured;
use crate::core::checks::BUSY_PER_S;
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::causal::maximum;
use dwell_stats::{Interval, student_mean};
use std::ops::AddAssign;

/// The part of a turn after a switch that is left out \[ns\]: windows reach their length within some episodes.
pub(crate) const SETTLE_NS: u64 = 5_000_000;
/// The shortest turn \[ns\].
const SHORTEST_NS: u64 = 10_000_000;
/// How long a turn goes on in which fewer than [`FEWEST`] episodes were seen \[ns\].
const LONGEST_NS: u64 = 100_000_000;
/// The episodes of a turn.
const FEWEST: u64 = 64;
/// The most pairs of turns.
const PAIRS: usize = 6;
/// The turns of each pair, in the shortest ones.
const LENGTHS: [u64; PAIRS] = [1, 1, 1, 2, 4, 8];
/// What a free trial may lose: the time right after the switch, and one part.
pub(crate) const FREE_PARTS: u32 = 2;
/// Fewer pairs decide nothing for sure.
const LEAST_PAIRS: usize = 3;
/// Polling that costs so many times what halting does ends a trial after its first turn.
const DEARER: f64 = 1.25;
/// A setting that does not poll has this share of halts among its episodes, at least.
const ONLY_HALTS: f64 = 0.9;
/// A setting under which less than this share of the work is done in the mean turn is not used, whatever it saves.
const LEAST_WORK: f64 = 0.9;
/// What a unit may cost of what it costs under the other setting for the work done, at most.
const MOST_WORTH: f64 = 4.0;
/// It is asked four times: together they are right as often as one interval of 95 % at least.
const CONFIDENCE: f64 = 0.99;

/// What a unit may cost of what it costs under another setting, where so many times as much is done a second.
pub(crate) fn worth(more: f64) -> f64 {
    more.powi(2).clamp(1.0, MOST_WORTH)
}

/// What was seen between two decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Part {
    /// What was paid, had all of the time been watched \[ns\].
    pub(crate) cost_ns: f64,
    /// The episodes, had all of the time been watched.
    pub(crate) episodes: f64,
    /// How many of them ended in a halt.
    pub(crate) halts: f64,
    /// The sum of the logarithms of their lengths, as seen, to the base of 2 \[ns\].
    pub(crate) logs: f64,
    /// The context switches, had all of the time been watched, where they are known.
    pub(crate) switches: Option<f64>,
    /// The episodes that were counted.
    pub(crate) seen: u64,
    pub(crate) ns: u64,
}

impl Part {
    /// What was done: context switches, or episodes.
    fn done(&self) -> f64 {
        self.switches.unwrap_or(self.episodes)
    }

    fn of_one(&self) -> Option<f64> {
        (self.done() > 0.0 && self.cost_ns > 0.0).then(|| self.cost_ns / self.done())
    }

    /// What was done a second.
    fn done_per_s(&self) -> f64 {
        self.done() * 1e9 / self.ns.max(1) as f64
    }

    /// Whether hardly any episode was polled through. Not by their costs: a poll may cost as much as a halt.
    fn only_halts(&self) -> bool {
        self.halts > ONLY_HALTS * self.episodes
    }

    /// The same for another time.
    fn during(&self, ns: u64) -> Part {
        let share = ns as f64 / self.ns.max(1) as f64;
        Part {
            cost_ns: self.cost_ns * share,
            episodes: self.episodes * share,
            halts: self.halts * share,
            switches: self.switches.map(|switches| switches * share),
            ns,
            ..*self
        }
    }

    /// Episodes a second.
    pub(crate) fn per_s(&self) -> f64 {
        self.episodes * 1e9 / self.ns.max(1) as f64
    }
}

impl AddAssign for Part {
    fn add_assign(&mut self, other: Part) {
        self.cost_ns += other.cost_ns;
        self.episodes += other.episodes;
        self.halts += other.halts;
        self.logs += other.logs;
        let all = self.ns == 0 || self.switches.is_some();
        self.switches =
            other.switches.filter(|_| all).map(|switches| self.switches.unwrap_or(0.0) + switches);
        self.seen += other.seen;
        self.ns += other.ns;
    }
}

/// Why settings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The setting is in force or chosen, and is used if a loss is excluded.
    Check,
    /// The reference is in force, and the setting replaces it if it is cheaper, or worth its cost by the work done.
    Trial,
}

/// Which of two has turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Setting,
    Reference,
    Both,
}

/// Turns that are under way.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    kind: Kind,
    setting: Setting,
    reference: Setting,
    side: Side,
    /// The cost of an episode under one that does not poll \[ns\].
    halt_ns: f64,
    /// The setting in force when they began, and what was seen under it.
    before: (Setting, Part),
    begun: bool,
    /// Whether what is seen now is of one setting alone, and not of the time right after a switch.
    pub(crate) settled: bool,
    /// How long windows were left under a setting that does not poll, in all turns \[ns\].
    waited_ns: u64,
    /// The parts of a turn that may lose what the account does not allow.
    pub(crate) free_parts: u32,
    part: Part,
    turns: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Next {
    /// The same setting for so long \[ns\].
    Wait(u64),
    Switch(Setting),
    /// The turns are over, and the setting is to be used or not.
    Over {
        keep: bool,
        measured: Measured,
    },
}

impl Turns {
    /// A check of a setting; `before` is in force, and what was seen under it: where the load has begun in it, that is not
    /// compared with, as it does less at first.
    pub(crate) fn check(
        setting: Setting,
        reference: Setting,
        before: (Setting, Part),
        load_is_new: bool,
        halt_cost: Nanos,
    ) -> Turns {
        let halt_ns = halt_cost.get() as f64;
        let seen = before.0 == reference && before.1.of_one().is_some();
        // What costs more than that is not worth it, whatever is done.
        let may_be_worth = before.1.cost_ns < MOST_WORTH * halt_ns * before.1.episodes;
        let side = match [setting, reference].map(|one| maximum(&one) == 0) {
            [true, false] | [false, true] if seen && load_is_new && may_be_worth => Side::Both,
            [true, false] if seen => Side::Setting,
            [true, _] => Side::Reference,
            [false, true] => Side::Setting,
            [false, false] => Side::Both,
        };
        Turns::new(Kind::Check, [setting, reference], side, halt_ns, before)
    }

    /// A trial of a setting in place of the one in force, under which this was seen. `None` where it was nothing, or not yet
    /// what that setting does: windows from before one that does not poll are left.
    pub(crate) fn trial(setting: Setting, before: (Setting, Part), halt_cost: Nanos) -> Option<Turns> {
        before.1.of_one()?;
        if maximum(&before.0) == 0 && !before.1.only_halts() {
            return None;
        }
        let halt_ns = halt_cost.get() as f64;
        Some(Turns::new(Kind::Trial, [setting, before.0], Side::Setting, halt_ns, before))
    }

    fn new(
        kind: Kind,
        [setting, reference]: [Setting; 2],
        side: Side,
        halt_ns: f64,
        before: (Setting, Part),
    ) -> Turns {
        Turns {
            kind,
            setting,
            reference,
            side,
            halt_ns,
            before,
            begun: false,
            settled: false,
            waited_ns: 0,
            free_parts: 0,
            part: Part::default(),
            turns: vec![],
        }
    }

    /// The setting, and the reference.
    pub(crate) const fn settings(&self) -> [&Setting; 2] {
        [&self.setting, &self.reference]
    }

    /// Whether it is no check.
    pub(crate) fn is_trial(&self) -> bool {
        self.kind == Kind::Trial
    }

    /// The same, of which what is seen right after the switch and the part after it may lose whatever it is.
    pub(crate) fn free(self) -> Turns {
        Turns { free_parts: FREE_PARTS, ..self }
    }

    /// Whether no turn is over yet.
    pub(crate) fn is_new(&self) -> bool {
        self.turns.is_empty()
    }

    /// The most switches that they need.
    pub(crate) fn switches(&self) -> usize {
        if self.side == Side::Reference { 2 } else { PAIRS + 1 }
    }

    pub(crate) fn is_of_setting(&self, turn: usize) -> bool {
        match self.side {
            Side::Setting => true,
            Side::Reference => false,
            Side::Both => matches!(turn % 4, 0 | 3),
        }
    }

    fn of_turn(&self, turn: usize) -> Setting {
        if self.is_of_setting(turn) { self.setting } else { self.reference }
    }

    fn pairs_so_far(&self) -> usize {
        if self.side == Side::Both { self.turns.len() / 2 } else { self.turns.len() }
    }

    fn length_ns(&self) -> u64 {
        LENGTHS[self.pairs_so_far().min(PAIRS - 1)] * SHORTEST_NS
    }

    /// A part of a turn is over, in which this setting was in force.
    pub(crate) fn next(&mut self, part: Part, present: &Setting) -> Next {
        if !std::mem::replace(&mut self.begun, true) && self.of_turn(0) != *present {
            return Next::Switch(self.of_turn(0));
        }
        self.free_parts = self.free_parts.saturating_sub(1);
        if !std::mem::replace(&mut self.settled, true) {
            return Next::Wait(self.length_ns());
        }
        if maximum(present) == 0 && self.still_polls(&part) {
            self.waited_ns += part.ns;
            return Next::Wait(SHORTEST_NS);
        }
        self.part += part;
        if self.part.seen < FEWEST && self.part.ns < LONGEST_NS {
            return Next::Wait(SHORTEST_NS);
        }
        self.turns.push(std::mem::take(&mut self.part));
        if self.turns.len() == 1 && self.side == Side::Setting && self.may_be_closed() {
            self.side = Side::Both;
        }
        let ratio = self.ratio();
        if let Some(keep) = self.verdict(ratio) {
            return Next::Over { keep, measured: self.measured(ratio) };
        }
        let next = self.of_turn(self.turns.len());
        if next == *present {
            return Next::Wait(self.length_ns());
        }
        self.settled = false;
        Next::Switch(next)
    }

    /// Whether windows of haltpoll are left, so that a setting that does not poll does not yet do what it will; for some
    /// time, since what has no episodes does not show it.
    fn still_polls(&self, part: &Part) -> bool {
        self.waited_ns < LONGEST_NS && !part.only_halts()
    }

    /// Each pair: the setting's turn and the reference's.
    fn pairs(&self) -> Vec<[Part; 2]> {
        let priced = |part: Part, of: &Setting| match maximum(of) {
            0 => Part { cost_ns: self.halt_ns * part.episodes, ..part },
            _ => part,
        };
        let own = |turn: &Part| priced(*turn, &self.setting);
        // What was seen just before, if that was it; else one that does not poll, with as much done as in the turn.
        let known = |turn: &Part, of: Setting| match self.before.0 == of {
            true => Part { seen: turn.seen, ..priced(self.before.1.during(turn.ns), &of) },
            false => priced(*turn, &of),
        };
        match self.side {
            Side::Setting => self.turns.iter().map(|turn| [own(turn), known(turn, self.reference)]).collect(),
            Side::Reference => self.turns.iter().map(|turn| [known(turn, self.setting), *turn]).collect(),
            Side::Both => {
                let in_order = |(number, pair): (usize, &[Part])| match self.is_of_setting(2 * number) {
                    true => [pair[0], pair[1]],
                    false => [pair[1], pair[0]],
                };
                self.turns.chunks_exact(2).enumerate().map(in_order).collect()
            }
        }
    }

    /// The mean logarithm of a figure under the setting over that under the reference; `None` where a turn has none.
    fn mean_of(&self, figure: impl Fn(&Part) -> Option<f64>) -> Option<Interval> {
        let of = |[setting, reference]: [Part; 2]| {
            let weight = setting.seen.min(reference.seen) as f64;
            Some(((figure(&setting)? / figure(&reference)?).ln(), weight))
        };
        let (logarithms, weights): (Vec<f64>, Vec<f64>) =
            self.pairs().into_iter().map(of).collect::<Option<_>>()?;
        student_mean(&logarithms, &weights, CONFIDENCE)
    }

    /// What is done a second under the setting over that under the reference, as a logarithm.
    fn rates(&self) -> Option<Interval> {
        self.mean_of(|part| Some(part.done_per_s()).filter(|per_s| *per_s > 0.0))
    }

    /// Whether what is done a second differs for certain.
    fn is_closed(&self) -> bool {
        let busy = self.turns.iter().all(|turn| turn.per_s() >= BUSY_PER_S);
        busy && self.pairs_so_far() >= LEAST_PAIRS && self.rates().is_some_and(|rates| !rates.contains(0.0))
    }

    /// The cost of a unit under the setting over that under the reference, as a logarithm, if the loop is closed times the
    /// square of its time; `None` where a turn had no episodes.
    fn ratio_if(&self, closed: bool) -> Option<Interval> {
        self.mean_of(|part| Some(part.of_one()? / if closed { part.done_per_s().powi(2) } else { 1.0 }))
    }

    fn ratio(&self) -> Option<Interval> {
        self.ratio_if(self.is_closed())
    }

    /// Whether to use the setting, if that is decided.
    fn verdict(&self, ratio: Option<Interval>) -> Option<bool> {
        if self.side == Side::Both && self.turns.len() % 2 == 1 {
            return None;
        }
        let Some(Interval { low, value, high }) = ratio else { return Some(false) };
        let pairs = self.pairs_so_far();
        let known = pairs >= LEAST_PAIRS;
        // What costs more may be a gain if the loop is closed, which more pairs show.
        let may_gain = self.side == Side::Both && pairs < PAIRS && !self.may_do_less();
        match self.kind {
            Kind::Check if known && high <= TOLERANCE.ln() && !self.may_do_less() => Some(true),
            Kind::Check if known && low > 0.0 && !may_gain => Some(false),
            Kind::Trial if value >= 0.0 && may_gain => None,
            Kind::Trial if value >= if known { 0.0 } else { DEARER.ln() } => Some(false),
            // One that does not poll either costs the same.
            Kind::Trial if known && high < -TOLERANCE.ln() => Some(true),
            _ => (pairs == PAIRS).then(|| match self.kind {
                Kind::Check => value < 0.0 && !self.may_do_less(),
                Kind::Trial => value < 0.0 && self.is_closed() && self.more() > 1.0,
            }),
        }
    }

    /// Whether the work done may decide against the costs of turns of the setting alone.
    fn may_be_closed(&self) -> bool {
        let [open, closed] = [false, true].map(|closed| self.ratio_if(closed));
        // The reference is taken to do as much as the setting where it was not seen.
        let unseen = self.before.0 != self.reference;
        open.zip(closed)
            .is_some_and(|(open, closed)| open.value * closed.value < 0.0 || unseen && open.value > 0.0)
    }

    /// Whether too little is done in the mean turn, or it is a loss if the loop is closed.
    fn may_do_less(&self) -> bool {
        // No more pairs follow that could show whether less work was chance.
        let may_be_chance = self.side == Side::Both && self.pairs_so_far() == PAIRS && !self.is_closed();
        !may_be_chance && self.more() * self.chance().exp() < LEAST_WORK
            || self.ratio_if(true).is_some_and(|ratio| ratio.value > 0.0)
    }

    /// By how much, as a logarithm, [`Turns::more`] may be chance where all turns are compared with the same short time
    /// before them: two standard deviations of a Poisson distribution. Pairs of turns have their own interval.
    fn chance(&self) -> f64 {
        if self.side == Side::Both {
            return 0.0;
        }
        let turns: u64 = self.turns.iter().map(|turn| turn.seen).sum();
        2.0 * (1.0 / self.before.1.seen.max(1) as f64 + 1.0 / turns.max(1) as f64).sqrt()
    }

    /// How many times as much is done a second under the setting, so far.
    fn more(&self) -> f64 {
        self.rates().map_or(1.0, |rates| rates.value.exp())
    }

    /// What a unit under this setting may cost of what it costs under the other one for the work done, so far.
    pub(crate) fn worth(&self, present: &Setting) -> f64 {
        if self.side != Side::Both || self.turns.is_empty() {
            return 1.0;
        }
        worth(if *present == self.setting { self.more() } else { self.more().recip() })
    }

    fn measured(&self, ratio: Option<Interval>) -> Measured {
        let mut sums = [Part::default(); 2];
        for pair in self.pairs() {
            sums.iter_mut().zip(pair).for_each(|(sum, part)| *sum += part);
        }
        let cost = sums.map(|sum| sum.of_one().unwrap_or(0.0));
        let per_s = |place: usize, setting: Setting, without: Side| match self.side == without {
            false => Some(sums[place].done_per_s()),
            true => (self.before.0 == setting).then(|| self.before.1.done_per_s()),
        };
        Measured {
            setting_ns: cost[0],
            reference_ns: cost[1],
            setting_per_s: per_s(0, self.setting, Side::Reference),
            reference_per_s: per_s(1, self.reference, Side::Setting),
            ratio: ratio.map(|ratio| ratio.map(f64::exp)),
            closed: self.is_closed(),
            by_switches: sums[0].switches.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use dwell_stats::SplitMix64;

    fn two() -> [Setting; 2] {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut other = originals;
        other.set("halt_poll_ns", 0).unwrap();
        [other, originals]
    }

    /// Turns to their end, in which an episode costs this by turn and setting: whether the setting is kept,
    /// what was measured, the switches, and the time.
    fn turns(kind: Kind, mut cost: impl FnMut(usize, bool) -> f64) -> (bool, Measured, usize, u64) {
        let [never, polls] = two();
        let mut longer = polls;
        longer.set("halt_poll_ns", 300_000).unwrap();
        let seen = |cost_of_one: f64, ns: u64| {
            let episodes = ns / 100_000;
            part(episodes, cost_of_one, ns)
        };
        let before = seen(20.0, 10 * SHORTEST_NS);
        let (mut turns, mut present) = match kind {
            Kind::Check => (Turns::check(longer, polls, (longer, before), false, Nanos(20)), longer),
            Kind::Trial => (Turns::trial(polls, (never, before), Nanos(20)).unwrap(), never),
        };
        let (mut switches, mut ns, mut wait) = (0, 0, 0);
        loop {
            ns += wait;
            let of_one = cost(turns.turns.len(), present == turns.setting);
            match turns.next(seen(of_one, wait), &present) {
                Next::Wait(ns) => wait = ns,
                Next::Switch(to) => {
                    assert_ne!(to, present);
                    (present, switches, wait) = (to, switches + 1, SETTLE_NS);
                }
                Next::Over { keep, measured } => {
                    assert!(switches < turns.switches());
                    return (keep, measured, switches, ns);
                }
            }
        }
    }

    /// Episodes of which one costs so much: halts, if as much as one.
    fn part(seen: u64, of_one: f64, ns: u64) -> Part {
        let episodes = seen as f64;
        let halts = if of_one == 20.0 { episodes } else { 0.0 };
        Part { cost_ns: of_one * episodes, episodes, halts, seen, ns, ..Part::default() }
    }

    /// Turns to their end, in which `does` is how many episodes a setting has in 10 ms and what one costs: whether the setting
    /// is kept, and what was measured.
    fn over(
        turns: &mut Turns,
        mut present: Setting,
        mut does: impl FnMut(&Setting) -> (u64, f64),
    ) -> (bool, Measured) {
        let mut wait = 0;
        loop {
            let (episodes, of_one) = does(&present);
            match turns.next(part(episodes * (wait / SHORTEST_NS), of_one, wait), &present) {
                Next::Wait(ns) => wait = ns,
                Next::Switch(to) => (present, wait) = (to, SETTLE_NS),
                Next::Over { keep, measured } => return (keep, measured),
            }
        }
    }

    fn never_or_polls(never: (u64, f64), polls: (u64, f64)) -> impl Fn(&Setting) -> (u64, f64) {
        move |setting| if maximum(setting) == 0 { never } else { polls }
    }

    #[test]
    fn a_load_that_grows_costs_both_alike() {
        let grows = |turn: usize, of_setting: bool| {
            let mean = if of_setting { 60.0 } else { 50.0 };
            mean * 1.1f64.powi(i32::try_from(turn).unwrap())
        };
        let (keep, measured, ..) = turns(Kind::Check, grows);
        assert!(!keep && measured.ratio.unwrap().contains(1.2), "{measured:?}");
        let (keep, measured, ..) = turns(Kind::Check, |turn, of_setting| 1.0 / grows(turn, of_setting));
        assert!(keep && measured.ratio.unwrap().contains(1.0 / 1.2), "{measured:?}");
    }

    #[test]
    fn what_is_certain_ends_turns_early_and_a_trial_in_vain_is_one_turn() {
        let (keep, _, switches, ns) =
            turns(Kind::Check, |_, of_setting| if of_setting { 20.0 } else { 150.0 });
        assert!(keep && switches == 3 && ns <= 100_000_000, "{switches} {ns}");
        let (keep, measured, switches, ns) = turns(Kind::Trial, |_, _| 80.0);
        assert!(!keep && switches == 1 && ns == SETTLE_NS + SHORTEST_NS, "{switches} {ns}");
        assert_eq!((measured.reference_per_s, measured.reference_ns), (Some(10_000.0), 20.0));
        let (keep, _, switches, ns) = turns(Kind::Trial, |_, _| 10.0);
        assert!(keep && switches == 1 && ns == SETTLE_NS + 3 * SHORTEST_NS, "{switches} {ns}");
    }

    /// The cost of an episode that is halted through is known, and so is that of the other setting, which was in force.
    #[test]
    fn never_is_compared_with_what_was_seen_before() {
        let [never, polls] = two();
        let (polled, halts) = (part(100, 150.0, SHORTEST_NS), part(100, 20.0, SHORTEST_NS));
        let mut turns = Turns::check(never, polls, (polls, polled), false, Nanos(20));
        assert!(turns.is_of_setting(0));
        // Windows are left, also where a poll costs as much as a halt: they keep the work that polls do.
        let as_dear = Part { halts: 0.0, ..halts };
        for left in [polled, polled, as_dear] {
            assert_eq!(turns.next(left, &never), Next::Wait(SHORTEST_NS));
        }
        assert!(Turns::trial(polls, (never, as_dear), Nanos(20)).is_none());
        for _ in 0..2 {
            assert_eq!(turns.next(halts, &never), Next::Wait(SHORTEST_NS));
        }
        let Next::Over { keep: true, measured } = turns.next(halts, &never) else { panic!() };
        assert_eq!((measured.setting_ns, measured.reference_ns), (20.0, 150.0));
        assert_eq!((measured.setting_per_s, measured.reference_per_s), (Some(10_000.0), Some(10_000.0)));
        assert!(!measured.closed);
    }

    /// Half as many episodes under *never*, at two thirds of the cost: both have turns, and it is refuted.
    #[test]
    fn less_work_refutes_a_setting_that_is_cheaper() {
        let [never, polls] = two();
        let mut turns = Turns::check(never, polls, (polls, part(1_000, 30.0, SHORTEST_NS)), false, Nanos(20));
        let (keep, measured) = over(&mut turns, never, never_or_polls((500, 20.0), (1_000, 30.0)));
        assert!(!keep && measured.closed, "{measured:?}");
        assert!((turns.worth(&polls) - 4.0).abs() < 1e-9 && turns.worth(&never) == 1.0);
        assert!((measured.ratio.unwrap().value - 4.0 * 2.0 / 3.0).abs() < 1e-9, "{measured:?}");
    }

    /// Half as much is done under *never*, and as little was seen of polling as the load began: that is compared with only
    /// where it was not the beginning, or where polling costs more than it can be worth.
    #[test]
    fn a_load_that_begins_is_seen_under_both_settings() {
        let [never, polls] = two();
        let check = |polled_ns: f64, begins: bool| {
            let before = (polls, part(400, polled_ns, SHORTEST_NS));
            let mut turns = Turns::check(never, polls, before, begins, Nanos(20));
            over(&mut turns, never, never_or_polls((500, 20.0), (1_000, polled_ns))).0
        };
        assert!(check(30.0, false) && !check(30.0, true));
        assert!(check(90.0, true));
    }

    /// A setting in force that polls and costs more than the halts of *never* would, which was not in force before: it is
    /// kept where twice as much is done for it, and refuted where as much is done.
    #[test]
    fn halts_that_were_not_seen_have_turns_before_they_refute_polling() {
        let [never, polls] = two();
        let check = |under_never: u64| {
            let before = (polls, part(1_000, 40.0, SHORTEST_NS));
            let mut turns = Turns::check(polls, never, before, false, Nanos(20));
            let (keep, measured) =
                over(&mut turns, polls, never_or_polls((under_never, 20.0), (1_000, 40.0)));
            (keep, measured.closed, measured.reference_per_s)
        };
        assert_eq!(check(500), (true, true, Some(50_000.0)));
        assert_eq!(check(1_000), (false, false, Some(100_000.0)));
    }

    /// Both have turns, and the number of episodes varies by half from turn to turn, whatever the setting is. The cheaper one is
    /// kept, even where by chance it had fewer of them.
    #[test]
    fn chance_does_not_refute_a_setting_that_costs_a_quarter() {
        let [_, polls] = two();
        let mut longer = polls;
        longer.set("halt_poll_ns", 300_000).unwrap();
        let (mut random, mut refuted) = (SplitMix64::new(1), 0);
        for _ in 0..2_000 {
            let before = (longer, part(50, 20.0, SHORTEST_NS));
            let mut turns = Turns::check(longer, polls, before, false, Nanos(20));
            let does =
                |present: &Setting| (25 + random.below(51), if *present == longer { 20.0 } else { 80.0 });
            let (keep, _) = over(&mut turns, longer, does);
            refuted += u32::from(!keep);
        }
        assert!(refuted <= 20, "{refuted}");
    }

    #[test]
    fn turns_without_episodes_show_nothing() {
        let [never, polls] = two();
        let nothing = Part { ns: LONGEST_NS, ..Part::default() };
        assert!(Turns::trial(polls, (never, nothing), Nanos(20)).is_none());
        let mut turns = Turns::check(never, polls, (polls, nothing), false, Nanos(20));
        assert_eq!(turns.next(nothing, &polls), Next::Wait(SHORTEST_NS));
        assert!(matches!(turns.next(nothing, &polls), Next::Over { keep: false, .. }));
    }

    /// Costs vary by a third from turn to turn. A trial that is kept by mistake is put right by the next replay.
    #[test]
    fn what_is_the_same_is_seldom_taken_for_a_gain() {
        let mut random = SplitMix64::new(1);
        let mut noisy = |mean: f64| mean * (0.7 + 0.6 * random.below(1_000) as f64 / 1_000.0);
        let mut kept = [0; 3];
        for _ in 0..1_000 {
            kept[0] += u32::from(turns(Kind::Trial, |_, _| noisy(20.0)).0);
            kept[1] += u32::from(turns(Kind::Check, |_, of| noisy(if of { 30.0 } else { 20.0 })).0);
            kept[2] += u32::from(turns(Kind::Check, |_, of| noisy(if of { 5.0 } else { 20.0 })).0);
        }
        assert!(kept[0] <= 80 && kept[1] <= 20 && kept[2] >= 990, "{kept:?}");
    }
}
