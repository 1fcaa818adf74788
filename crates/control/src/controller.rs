//! The controller.

use crate::account::{Account, Loss};
use crate::candidates::{Reach, candidates, permitted};
use crate::order::Order;
use crate::pace::{MOST_WRITES, Pace, Writes};
use crate::pricing::{Idlers, Prices, play_all};
use crate::sample::{Episode, Sample};
use crate::tenant::{Excess, Own, Tenant, Veto};
use crate::trust::{self, Apart, Trust, apart};
use crate::turns::{BUSY_PER_S, Checks, Next, Part, Turns};
use dwell_policy::Nanos;
use dwell_policy::param::Setting;
use dwell_replay::{Counts, Player, Rule, RuleError};
use dwell_stats::{Interval, SplitMix64};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The fewest episodes to decide on.
pub const FEWEST: usize = 64;

/// A change has to save this share of the present cost.
const WORTH: f64 = 1.0 / 16.0;
/// The gate: below this share of the cost nothing is searched …
const LEAST_SHARE: f64 = 0.02;
/// … nor below this share of a CPU.
const LEAST_CPU: f64 = 0.001;
/// More than one idler can count in a period: counters that were torn, or ran backwards.
const NONSENSE: u64 = 1 << 40;
/// A trial may not bring the writes of a minute above these: the others are for changes.
const MOST_WRITES_WITH_TRIALS: usize = MOST_WRITES * 3 / 5;
/// Where the costs of an episode are within this share of those at the last search, and that changed nothing, the next is left out, and
/// after each such search twice as many …
const ALIKE: f64 = 0.1;
/// … but no more than so many.
const MOST_LEFT_OUT: u32 = 8;
/// The most episodes that candidates are replayed over.
const MOST_EPISODES: f64 = 2048.0;

/// What a controller needs to be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// CPU time of one halt and wakeup.
    pub halt_cost: Nanos,
    /// By how much what a rule learns from is longer than the episode, where the idler halts.
    pub late: Nanos,
    /// No candidate polls for longer.
    pub longest_window: Nanos,
    /// Which parameters can be set.
    pub reach: Reach,
    /// The usual time between two decisions.
    pub period: Nanos,
    /// The CPU time of a second that control itself may use, searches for idlers included; decisions are further apart where they take more.
    pub cpu_limit: Nanos,
    /// A setting is compared in turns on the machine when it is first taken, and at most so often, and where idlers mostly halt polling is
    /// tried now and then; `None`: never.
    pub verify: Option<Nanos>,
}

impl Terms {
    /// The defaults at this halt cost: lengths without latency, windows up to four halt costs, a decision every 100 ms,
    /// 0.5 % of a CPU.
    pub const fn at(halt_cost: Nanos) -> Terms {
        Terms {
            halt_cost,
            late: Nanos::ZERO,
            longest_window: Nanos(halt_cost.get().saturating_mul(4)),
            reach: Reach::All,
            period: Nanos(100_000_000),
            cpu_limit: Nanos(5_000_000),
            verify: None,
        }
    }
}

/// What was seen of one idler, or of several together, since the last decision.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Which: any number that stays its own.
    pub idler: u64,
    /// How much its cost counts, and its limit.
    pub tenant: Tenant,
    /// The share of the time in which it was watched: all of it, or a burst.
    pub share: f64,
    /// All of its episodes in that time: what was counted under the setting in force.
    pub counted: Counts,
    /// Whether that was counted of other episodes, of as long a time before these, and without polls: halts are then compared with less
    /// precision, and polls are not.
    pub elsewhere: bool,
    /// Whether the episodes are drawn from histograms, and have no order.
    pub drawn: bool,
    /// Some or all of them, in their order unless they are drawn.
    pub episodes: Vec<Episode>,
}

impl Observed {
    /// An idler that counts as any other and was watched all the time.
    pub fn new(idler: u64, counted: Counts, episodes: Vec<Episode>) -> Observed {
        Observed {
            idler,
            tenant: Tenant::default(),
            share: 1.0,
            counted,
            elsewhere: false,
            drawn: false,
            episodes,
        }
    }

    /// The same, with episodes drawn from histograms.
    pub fn drawn(idler: u64, counted: Counts, episodes: Vec<Episode>) -> Observed {
        Observed { drawn: true, ..Observed::new(idler, counted, episodes) }
    }
}

/// A change of the setting, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// When it was decided \[ns\].
    pub at_ns: u64,
    /// The setting in force.
    pub from: Setting,
    /// The setting to use; the same where only control ends.
    pub to: Setting,
    /// Why.
    pub cause: Cause,
}

impl Change {
    /// How many parameters it writes.
    pub fn writes(&self) -> usize {
        writes(&self.from, &self.to)
    }
}

fn writes(from: &Setting, to: &Setting) -> usize {
    from.iter().zip(to.iter()).filter(|(from, to)| from.1 != to.1).count()
}

/// Why a setting is changed. Costs are polling CPU plus halts at their cost, of a mean episode \[ns\].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum Cause {
    /// Another setting would have cost less.
    Gain {
        /// The episodes that the settings were replayed over.
        episodes: usize,
        /// The cost under the setting in force.
        present_ns: f64,
        /// The cost under the setting chosen.
        chosen_ns: f64,
        /// The cost under the originals.
        originals_ns: f64,
        /// The cost of the optimum.
        optimum_ns: f64,
    },
    /// Control has cost more than the originals would have: these are in force for a while.
    Loss {
        /// By how much more than 1.01 times their cost, since that was last so within 10 s \[ns\].
        excess_ns: f64,
        /// What the originals cost in the last 10 s \[ns\].
        originals_ns: f64,
        /// How long they stay in force \[ns\].
        rest_ns: u64,
    },
    /// Control has cost one idler more than its limit: the originals are in force for a while.
    Vetoed {
        /// Which.
        idler: u64,
        /// What it cost in the last 10 s \[ns\].
        cost_ns: f64,
        /// What the originals would have cost it \[ns\].
        originals_ns: f64,
        /// How long they stay in force \[ns\].
        rest_ns: u64,
    },
    /// A turn of a comparison of two settings.
    Turn,
    /// The comparison is over: the setting in force stays.
    Verified(Measured),
    /// The comparison is over: a loss was not excluded, and the setting that it was compared with takes its place.
    Refuted {
        /// What was measured.
        #[serde(flatten)]
        measured: Measured,
        /// How long that is not changed, unless the load changes \[ns\].
        rest_ns: u64,
    },
    /// Idlers mostly halted, and were cheaper while they polled, which no replay had shown.
    Tried(Measured),
    /// The rule does not do what was counted: control ends.
    Untrusted {
        /// What was apart.
        #[serde(flatten)]
        apart: Apart,
        /// The episodes of the last period.
        episodes: u64,
    },
}

/// What the last period showed of one idler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Which.
    pub idler: u64,
    /// The share of the time in which it was watched.
    pub share: f64,
    /// What was counted in that time.
    pub counted: Counts,
    /// What that cost, and what it would have cost; `None` where no episodes are known.
    pub costs: Option<Costs>,
}

/// What an idler cost while it was watched \[ns\].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// As counted.
    pub measured: f64,
    /// As predicted of the setting in force.
    pub predicted: f64,
    /// As predicted of the originals.
    pub originals: f64,
    /// The least possible.
    pub optimum: f64,
}

/// What turns of a setting, and of the one that it was compared with, the reference, have shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The cost of an episode under the setting \[ns\].
    pub setting_ns: f64,
    /// The same under the reference.
    pub reference_ns: f64,
    /// Episodes a second under the setting; `None` if it had no turns, as the cost of an episode without polls is known.
    pub setting_per_s: Option<f64>,
    /// The same under the reference.
    pub reference_per_s: Option<f64>,
    /// The first cost over the second, with its interval; `None` if there is none.
    pub ratio: Option<Interval>,
}

/// The state of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The setting in force.
    pub present: Setting,
    /// What control cost in the last 10 s more than 1.01 times the originals \[ns\]; negative is saved.
    pub owed_ns: f64,
    /// Whether the originals are in force for a while after a loss.
    pub rests: bool,
    /// Why it gave up, if it did.
    pub untrusted: Option<Apart>,
}

/// A rule at its beginning.
fn fresh(setting: Setting) -> Option<Player> {
    Rule::Layer(setting).start_late(1).ok()
}

/// What is known of one idler.
struct Idler {
    tenant: Tenant,
    own: Own,
    sample: Sample,
    order: Order,
    originals: Player,
    present: Player,
}

/// The sample of the idlers of one weight, in two halves.
struct Group {
    weight: f64,
    halves: [Idlers; 2],
}

impl Group {
    fn all(&self) -> impl Iterator<Item = &Episode> {
        self.halves.iter().flatten().flatten()
    }

    fn episodes(&self) -> usize {
        self.all().count()
    }

    fn optimum_ns(&self, halt_cost: u64) -> f64 {
        self.all().map(|episode| episode.least_cost_ns(halt_cost)).sum::<u64>() as f64
    }
}

/// A period, compared with what was predicted of it.
#[derive(Default)]
struct Period {
    counted: Counts,
    /// The counted cost of the idlers of which episodes are known, by weight, had all of the time been watched \[ns\].
    paid_ns: f64,
    /// What the originals would have cost them \[ns\].
    originals_ns: f64,
    /// The episodes of these idlers, by weight, had all of the time been watched; and those that were counted.
    episodes: f64,
    seen: u64,
    /// What was counted, and the most that could have been gained of it, had all of the time been watched \[ns\].
    cpu_ns: f64,
    gain_ns: f64,
    /// Polls and halts of the setting in force, replayed from where the last period ended, and afresh: of the episodes in between not
    /// all are known, and so neither is the window that the period began with.
    predicted: [[f64; 2]; 2],
    /// Whether any of it was counted elsewhere, or is drawn.
    how: trust::Seen,
    /// The first idler that has paid too much.
    excess: Option<(u64, Excess)>,
}

/// The last search.
#[derive(Default)]
struct Searched {
    /// What an episode cost in the period before it, would have cost under the originals, and could have cost less \[ns\].
    costs_ns: [f64; 3],
    /// How many periods alike are searched no more, and how many are left of them.
    leaves_out: u32,
    left: u32,
}

impl Searched {
    /// Whether a period is to be searched; if not, it is one of those that are left out.
    fn is_due(&mut self, period: &Period) -> bool {
        let costs_ns = [period.paid_ns, period.originals_ns, period.gain_ns].map(|ns| ns / period.episodes);
        let alike =
            self.costs_ns.iter().zip(&costs_ns).all(|(a, b)| (a - b).abs() <= ALIKE * self.costs_ns[0]);
        if !alike {
            *self = Searched { costs_ns, ..Searched::default() };
        }
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    /// It changed nothing.
    fn in_vain(&mut self) {
        self.leaves_out = (2 * self.leaves_out).clamp(1, MOST_LEFT_OUT);
        self.left = self.leaves_out;
    }
}

/// Adds the polls and halts of some episodes, each of which stands for so many.
fn add(predicted: &mut [f64; 2], did: &Counts, scale: f64, elsewhere: bool) {
    if !elsewhere {
        predicted[0] += scale * did.polls as f64;
    }
    predicted[1] += scale * did.halts as f64;
}

impl Period {
    fn part(&self, ns: u64) -> Part {
        Part { cost_ns: self.paid_ns, episodes: self.episodes, seen: self.seen, ns }
    }
}

/// Decides which setting is to be in force.
pub struct Controller {
    terms: Terms,
    /// The originals first.
    candidates: Vec<Setting>,
    prices: Prices,
    searched: Searched,
    present: Setting,
    idlers: BTreeMap<u64, Idler>,
    account: Account,
    trust: Trust,
    pace: Pace,
    writes: Writes,
    decided_ns: u64,
    checks: Checks,
    untrusted: Option<Apart>,
    seen: Vec<Seen>,
    vetoes: Vec<Veto>,
    /// Orders the episodes that are drawn.
    random: SplitMix64,
}

impl Controller {
    /// Over these settings, which are in force.
    ///
    /// # Errors
    /// [`RuleError`] if their rule cannot be replayed.
    pub fn new(originals: Setting, terms: Terms) -> Result<Controller, RuleError> {
        let candidates = candidates(originals, terms.halt_cost, terms.longest_window, terms.reach);
        let checks = Checks::new(terms.verify, &candidates);
        Ok(Controller {
            terms,
            prices: Prices::of(&candidates)?,
            candidates,
            searched: Searched::default(),
            present: originals,
            idlers: BTreeMap::new(),
            account: Account::new(),
            trust: Trust::default(),
            pace: Pace::new(terms.period.get(), terms.cpu_limit.get() as f64 / 1e9),
            writes: Writes::default(),
            decided_ns: 0,
            checks,
            untrusted: None,
            seen: vec![],
            vetoes: vec![],
            random: SplitMix64::new(1),
        })
    }

    /// The same with this setting in force, which an earlier controller has left.
    ///
    /// # Errors
    /// [`RuleError`] if its rule cannot be replayed.
    pub fn adopting(self, present: Setting) -> Result<Controller, RuleError> {
        Rule::Layer(present).start_late(1)?;
        Ok(Controller { present, ..self })
    }

    /// Control begins, or begins anew after it gave up.
    pub fn start(&mut self, now_ns: u64) {
        self.untrusted = None;
        self.checks.break_off(now_ns);
        self.trust = Trust::default();
        self.decided_ns = now_ns;
        self.pace.start(now_ns);
    }

    /// When to decide next \[ns\].
    pub fn next_at_ns(&self) -> u64 {
        self.pace.next_ns()
    }

    /// The setting that control began with.
    pub fn originals(&self) -> Setting {
        self.candidates[0]
    }

    /// The settings that it chooses from, the originals first.
    pub fn candidates(&self) -> &[Setting] {
        &self.candidates
    }

    /// The least and the greatest value that it ever gives each parameter.
    pub fn permitted(&self) -> Vec<(&'static str, i64, i64)> {
        permitted(&self.candidates)
    }

    /// The setting in force and the state of the account.
    pub fn status(&self, now_ns: u64) -> Status {
        Status {
            present: self.present,
            owed_ns: self.account.owed_ns(),
            rests: self.account.rests(now_ns)
                || self.checks.hold(now_ns) && self.present == self.candidates[0],
            untrusted: self.untrusted,
        }
    }

    /// What the period before the last decision showed of each idler.
    pub fn seen(&self) -> &[Seen] {
        &self.seen
    }

    /// The vetoes without which the last decision would have chosen another setting, the one that costs least.
    pub fn vetoes(&self) -> &[Veto] {
        &self.vetoes
    }

    /// So much CPU time was used since the last call, of all that is done for control; what is too much makes periods longer.
    pub fn spent(&mut self, now_ns: u64, cpu: Nanos) {
        self.pace.spent(now_ns, cpu.get());
    }

    /// Until when no CPU time is left to look or to decide \[ns\].
    pub fn out_of_budget_until_ns(&self) -> u64 {
        self.pace.out_of_budget_until_ns()
    }

    /// Decides. A change that is returned comes into force only with [`Controller::changed`].
    pub fn decide(&mut self, now_ns: u64, observed: &[Observed]) -> Option<Change> {
        let span_ns = now_ns.saturating_sub(self.decided_ns).max(1);
        self.decided_ns = now_ns;
        self.vetoes.clear();
        let period = self.take_in(now_ns, observed);
        if self.checks.take_over() {
            self.forget_episodes();
        }
        let (cause, quiet) = self.judge(now_ns, span_ns, &period);
        let on_probation = self.present != self.candidates[0] && self.account.is_exceeded();
        self.pace.decided(now_ns, quiet, on_probation);
        let (to, cause) = match (cause, self.checks.in_turns()) {
            (Some(cause), _) => {
                // Turns may have begun with a gain. Trust or the account end them.
                if !matches!(cause.1, Cause::Gain { .. }) {
                    self.checks.break_off(now_ns);
                }
                cause
            }
            (None, true) => self.turn(now_ns, period.part(span_ns))?,
            (None, false) => return None,
        };
        Some(Change { at_ns: now_ns, from: self.present, to, cause })
    }

    /// Nothing was observed that could decide: the next decision comes later.
    pub fn postpone(&mut self, now_ns: u64, quiet: bool) {
        self.pace.decided(now_ns, quiet, false);
    }

    /// Writes of the observer's own, which count as the controller's: whether so many are possible now, and the way back to the originals
    /// after them.
    pub fn may_write_more(&mut self, now_ns: u64, number: usize) -> bool {
        let back = writes(&self.present, &self.candidates[0]);
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
        self.idlers.values_mut().for_each(|idler| idler.present.set(&change.to));
        match self.checks.settles() {
            true => self.pace.at(change.at_ns, Checks::settle_ns()),
            false => self.pace.start(change.at_ns),
        }
    }

    /// Whether what is seen until the next decision is left out, as a setting has just been switched: it need not be recorded.
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

    /// What is remembered is of another setting, under which the load may be another one.
    fn forget_episodes(&mut self) {
        self.idlers.values_mut().for_each(|idler| idler.sample = Sample::default());
    }

    /// Begins turns, if any are due and their writes within the most of a minute: whether what was chosen is put into force before them. A setting
    /// that is chosen is compared with the cheaper one, by replay, of that in force and the originals, in a closed loop with that in force; one that is in force with the originals.
    fn begin_turns(&mut self, now_ns: u64, part: Part, chosen: Option<&(Setting, Cause)>) -> Option<bool> {
        if self.checks.are_off() || self.account.is_exceeded() {
            // On probation periods are short, which turns are not.
            return None;
        }
        let (originals, present) = (self.candidates[0], self.present);
        let (setting, reference) = match chosen {
            Some((to, Cause::Gain { present_ns, originals_ns, .. }))
                if present_ns < originals_ns || self.checks.are_necessary() =>
            {
                (*to, present)
            }
            Some((to, _)) => (*to, originals),
            None => (present, originals),
        };
        let turns = if setting != originals && self.checks.is_to_be_verified(now_ns, &setting) {
            Turns::check(setting, reference, (present, part), self.terms.halt_cost)
        } else {
            let mostly_halts = chosen.is_none() && !self.account.rests(now_ns) && self.mostly_halts(part.ns);
            let polls = self.checks.trial(now_ns, &present, mostly_halts)?;
            Turns::trial(polls, (present, part))?
        };
        let begins_with_chosen = chosen.is_some() && turns.begin_with_the_setting();
        let in_force = if begins_with_chosen { &setting } else { &present };
        if !self.may_switch(now_ns, in_force, &turns) {
            return self.checks.are_necessary().then_some(false);
        }
        self.checks.begin(turns);
        Some(begins_with_chosen)
    }

    /// Whether all switches of turns and the way back are within the most writes of a minute.
    fn may_switch(&mut self, now_ns: u64, in_force: &Setting, turns: &Turns) -> bool {
        let [setting, reference] = turns.settings();
        let originals = &self.candidates[0];
        let back = writes(setting, originals).max(writes(reference, originals));
        let to_first = writes(&self.present, in_force);
        let of_one =
            writes(setting, reference).max(writes(in_force, setting)).max(writes(in_force, reference));
        let most = if turns.is_trial() { MOST_WRITES_WITH_TRIALS } else { MOST_WRITES };
        self.writes.in_last_minute(now_ns) + to_first + turns.switches() * of_one + back <= most
    }

    /// Whether most episodes of the idlers that have many end in a halt.
    fn mostly_halts(&self, span_ns: u64) -> bool {
        let least = BUSY_PER_S * span_ns as f64 / 1e9;
        let busy = self.seen.iter().filter(|seen| seen.counted.episodes as f64 / seen.share >= least);
        let of = |(halts, episodes): (f64, f64), seen: &Seen| {
            let of_one = |number: u64| number as f64 / seen.share;
            (halts + of_one(seen.counted.halts), episodes + of_one(seen.counted.episodes))
        };
        let (halts, episodes) = busy.fold((0.0, 0.0), of);
        2.0 * halts > episodes
    }

    /// Remembers what was seen, and replays the originals and the setting in force over it.
    fn take_in(&mut self, now_ns: u64, observed: &[Observed]) -> Period {
        let (halt_cost, late) = (self.terms.halt_cost, self.terms.late);
        let controlled = self.present != self.candidates[0];
        let (mut period, mut replayed) = (Period::default(), vec![]);
        self.seen.clear();
        for Observed { idler, tenant, share, counted, elsewhere, drawn, episodes } in observed {
            let Counts { idle_ns, polled_ns, polls_succeeded, exits, .. } = *counted;
            let numbers =
                counted.episodes.max(counted.polls).max(counted.halts).max(polls_succeeded).max(exits);
            if u128::from(numbers).max(idle_ns).max(polled_ns) > u128::from(NONSENSE) {
                continue;
            }
            let mut random = SplitMix64::new(self.random.bits());
            let Some(known) = self.idler(*idler) else { continue };
            let episodes: Cow<'_, [Episode]> = if *drawn {
                known.order.arrange(episodes, counted, &known.present, late, &mut random).into()
            } else {
                episodes.into()
            };
            known.tenant = *tenant;
            known.sample.push(counted.episodes, &episodes);
            period.counted += *counted;
            if episodes.is_empty() {
                self.seen.push(Seen { idler: *idler, share: *share, counted: *counted, costs: None });
                continue;
            }
            let originals = play_all(&mut known.originals, &episodes, late);
            let present = play_all(&mut known.present, &episodes, late);
            let optimum: u64 = episodes.iter().map(|episode| episode.least_cost_ns(halt_cost.get())).sum();
            let scale = counted.episodes as f64 / episodes.len() as f64;
            let cost_ns = counted.cost_ns(halt_cost) as f64;
            period.cpu_ns += cost_ns / share;
            period.paid_ns += tenant.weight * cost_ns / share;
            period.gain_ns += (cost_ns - scale * optimum as f64).max(0.0) / share;
            let originals_ns = scale * originals.cost_ns(halt_cost) as f64;
            period.originals_ns += tenant.weight * originals_ns / share;
            if tenant.most_loss.is_some() {
                let excess =
                    known.own.book(now_ns, cost_ns / share, originals_ns / share, controlled, tenant);
                period.excess = period.excess.or(excess.map(|excess| (*idler, excess)));
            }
            period.episodes += tenant.weight * counted.episodes as f64 / share;
            period.seen += counted.episodes;
            add(&mut period.predicted[0], &present, scale, *elsewhere);
            period.how.elsewhere |= *elsewhere;
            period.how.drawn |= *drawn;
            let cost = |counts: &Counts| scale * counts.cost_ns(halt_cost) as f64;
            let costs = Costs {
                measured: cost_ns,
                predicted: cost(&present),
                originals: originals_ns,
                optimum: scale * optimum as f64,
            };
            self.seen.push(Seen { idler: *idler, share: *share, counted: *counted, costs: Some(costs) });
            replayed.push((episodes, scale, *elsewhere));
        }
        // Only what does not agree needs a second way.
        if apart(period.predicted[0], &period.counted, period.how).is_none() {
            period.predicted[1] = period.predicted[0];
        } else if let Some(fresh) = fresh(self.present) {
            for (episodes, scale, elsewhere) in replayed {
                let present = play_all(&mut fresh.clone(), &episodes, late);
                add(&mut period.predicted[1], &present, scale, elsewhere);
            }
        }
        // Idlers that are no longer observed are removed.
        let seen = |idler: &u64| observed.iter().any(|seen| seen.idler == *idler);
        self.idlers.retain(|idler, known| seen(idler) || !known.sample.is_empty());
        period
    }

    fn idler(&mut self, idler: u64) -> Option<&mut Idler> {
        if !self.idlers.contains_key(&idler) {
            let first = Idler {
                tenant: Tenant::default(),
                own: Own::new(),
                sample: Sample::default(),
                order: Order::default(),
                originals: fresh(self.candidates[0])?,
                present: fresh(self.present)?,
            };
            self.idlers.insert(idler, first);
        }
        self.idlers.get_mut(&idler)
    }

    /// What to do, and whether there is next to nothing to gain.
    fn judge(&mut self, now_ns: u64, span_ns: u64, period: &Period) -> (Option<(Setting, Cause)>, bool) {
        if self.untrusted.is_some() {
            return (None, true);
        }
        let originals = self.candidates[0];
        let controlled = self.present != originals;
        let loss = self.account.book(now_ns, period.paid_ns, period.originals_ns, controlled);
        // Parts of turns are short, and what they show does not need the rule.
        if !self.checks.in_turns()
            && period.counted.episodes >= FEWEST as u64
            && let Some(apart) = self.trust.compare(&period.predicted, &period.counted, period.how)
        {
            self.untrusted = Some(apart);
            let episodes = period.counted.episodes;
            return (Some((originals, Cause::Untrusted { apart, episodes })), true);
        }
        if let Some(Loss { excess_ns, originals_ns, rest_ns }) = loss {
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
        self.checks.saw(now_ns, &self.present, period.part(span_ns));
        let least_ns = LEAST_CPU * span_ns as f64;
        // A burst of load after a quiet time may find a setting that is wrong for it: then the usual period bounds what it costs.
        let quiet = !controlled && period.cpu_ns <= least_ns;
        let known: usize = self.idlers.values().map(|idler| idler.sample.known()).sum();
        if known < FEWEST {
            return (None, quiet);
        }
        let worthless = period.gain_ns <= (LEAST_SHARE * period.cpu_ns).max(least_ns);
        let held = self.account.rests(now_ns) || self.checks.hold(now_ns);
        let searched = !worthless && !held && self.searched.is_due(period);
        let chosen = if searched { self.choose() } else { None };
        if searched && chosen.is_none() {
            self.searched.in_vain();
        }
        let chosen = chosen.filter(|(to, _)| self.may_write(now_ns, to));
        self.idlers.values_mut().for_each(|idler| idler.sample.grow_old());
        let begun = (period.cpu_ns > least_ns)
            .then(|| self.begin_turns(now_ns, period.part(span_ns), chosen.as_ref()))
            .flatten();
        match begun {
            Some(with_chosen) => (chosen.filter(|_| with_chosen), false),
            None => (chosen, quiet),
        }
    }

    /// The candidate that costs least over the sample, of those that no idler vetoes, if it is worth a change.
    fn choose(&mut self) -> Option<(Setting, Cause)> {
        let groups = self.groups();
        let episodes = groups.iter().map(Group::episodes).sum();
        // More are known, but too old.
        if episodes < FEWEST {
            return None;
        }
        if !self.prices.settings().contains(&self.present) {
            let settings = [&self.candidates[..], &[self.present]].concat();
            self.prices = Prices::of(&settings).ok()?;
        }
        let place = self.prices.settings().iter().position(|setting| *setting == self.present)?;
        let Terms { halt_cost, late, .. } = self.terms;
        let mut costs = vec![Some([0.0; 2]); self.prices.settings().len()];
        for Group { weight, halves } in &groups {
            // The originals are the first.
            let of_group = self.prices.costs(&[0, place], halves, halt_cost, late).ok()?;
            for (sum, cost) in costs.iter_mut().zip(of_group) {
                let both = sum.zip(cost);
                *sum = both.map(|(sum, cost)| [0, 1].map(|half| sum[half] + weight * cost[half]));
            }
        }
        let (originals, present) = (costs[0]?, costs[place]?);
        let total = |[a, b]: [f64; 2]| a + b;
        // One in force that is no candidate is not taken again.
        let candidates = costs.iter().enumerate().take(self.candidates.len());
        let mut cheaper: Vec<(usize, [f64; 2])> = candidates
            .filter_map(|(place, cost)| Some((place, (*cost)?)))
            .filter(|(_, cost)| total(*cost) < total(present) * (1.0 - WORTH))
            .collect();
        cheaper.sort_by(|a, b| total(a.1).total_cmp(&total(b.1)));
        let places: Vec<usize> = cheaper.iter().map(|(place, _)| *place).collect();
        let (chosen, cost) = cheaper[self.first_without_veto(&places)?];
        let chosen = self.candidates[chosen];
        if !cost.iter().zip(&present).all(|(chosen, present)| chosen < present) {
            return None;
        }
        let halt_cost = self.terms.halt_cost.get();
        let optimum: f64 = groups.iter().map(|group| group.weight * group.optimum_ns(halt_cost)).sum();
        let weighted: f64 = groups.iter().map(|group| group.weight * group.episodes() as f64).sum();
        let of_one = |cost: f64| cost / weighted.max(f64::MIN_POSITIVE);
        let cause = Cause::Gain {
            episodes,
            present_ns: of_one(total(present)),
            chosen_ns: of_one(total(cost)),
            originals_ns: of_one(total(originals)),
            optimum_ns: of_one(optimum),
        };
        Some((chosen, cause))
    }

    /// The first of the candidates at these places that no idler with a limit vetoes. Vetoes of the very first are remembered.
    fn first_without_veto(&mut self, places: &[usize]) -> Option<usize> {
        let best = *places.first()?;
        let with_limit = || self.idlers.iter().filter(|(_, idler)| idler.tenant.most_loss.is_some());
        let number = with_limit().count();
        let always = [&[0], places].concat();
        let Terms { halt_cost, late, .. } = self.terms;
        let mut vetoed = vec![false; places.len()];
        for (name, idler) in with_limit() {
            let share = (MOST_EPISODES / number as f64 / idler.sample.weight().max(1.0)).min(1.0);
            let halves = idler.sample.halves(share).map(|half| vec![half]);
            let episodes: usize = halves.iter().flatten().map(Vec::len).sum();
            let costs = self.prices.costs(&always, &halves, halt_cost, late).ok()?;
            let cost = |place: usize| costs[place].map_or(f64::INFINITY, |[a, b]| a + b);
            for (place, vetoed) in places.iter().zip(&mut vetoed) {
                *vetoed |= idler.tenant.vetoes(cost(*place), cost(0));
            }
            if idler.tenant.vetoes(cost(best), cost(0)) {
                let [cost_ns, originals_ns] = [best, 0].map(|place| cost(place) / episodes.max(1) as f64);
                self.vetoes.push(Veto {
                    idler: *name,
                    setting: self.candidates[best],
                    cost_ns,
                    originals_ns,
                });
            }
        }
        vetoed.iter().position(|vetoed| !vetoed)
    }

    /// The sample of all idlers that count.
    fn groups(&self) -> Vec<Group> {
        let counted = || self.idlers.values().filter(|idler| idler.tenant.weight > 0.0);
        let all: f64 = counted().map(|idler| idler.sample.weight()).sum();
        let share = (MOST_EPISODES / all.max(1.0)).min(1.0);
        let mut groups: Vec<Group> = vec![];
        for idler in counted() {
            let weight = idler.tenant.weight;
            let at = groups.iter().position(|group| group.weight == weight).unwrap_or_else(|| {
                groups.push(Group { weight, halves: [vec![], vec![]] });
                groups.len() - 1
            });
            for (half, episodes) in groups[at].halves.iter_mut().zip(idler.sample.halves(share)) {
                half.push(episodes);
            }
        }
        groups
    }

    /// Whether a setting can be written and the originals after it, within the most writes of a minute.
    fn may_write(&mut self, now_ns: u64, to: &Setting) -> bool {
        let back = writes(to, &self.candidates[0]);
        self.writes.in_last_minute(now_ns) + writes(&self.present, to) + back <= MOST_WRITES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::MINUTE_NS;
    use crate::pricing::{one_by_one, play};
    use dwell_policy::Layer;
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    const K: Nanos = Nanos(20_000);

    fn controller() -> Controller {
        let originals = Setting::defaults(Layer::Host, Version::new(6, 18));
        let mut controller = Controller::new(originals, Terms::at(K)).unwrap();
        controller.start(0);
        controller
    }

    /// What the setting in force does in a period of so many episodes of this length, all of them seen.
    fn period(player: &mut Player, episodes: usize, idle_ns: u64) -> Observed {
        seen(player, vec![Episode::of(idle_ns); episodes])
    }

    fn seen(player: &mut Player, seen: Vec<Episode>) -> Observed {
        let counted = seen.iter().map(|episode| play(player, *episode, Nanos::ZERO)).sum();
        Observed::new(7, counted, seen)
    }

    fn player(controller: &Controller) -> Player {
        Rule::Layer(controller.present).start_late(1).unwrap()
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
        for number in 1..10u64 {
            // Says that nothing polled, though the default would have.
            let counted = Counts { episodes: 300, halts: 300, ..Counts::default() };
            let seen = Observed::new(1, counted, vec![Episode::of(90_000); 300]);
            told.extend(controller.decide(number * 100_000_000, &[seen]).map(|change| (number, change)));
        }
        assert_eq!(told.len(), 1);
        let (3, Change { from, to, cause: Cause::Untrusted { apart, episodes: 300 }, .. }) = &told[0] else {
            panic!("{told:?}")
        };
        assert_eq!((from, apart.counted), (to, 300));
        assert!(controller.status(0).untrusted.is_some());
    }

    #[test]
    fn what_was_counted_elsewhere_or_is_drawn_may_be_further_apart() {
        // Of 300 episodes that never poll, 225 halts are counted; or 270 of 300, of which a fifth more would be too many.
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

    /// The choice, slowly: every setting played over every idler's sample, one episode after the other.
    fn slow_choice(controller: &Controller) -> Option<Setting> {
        let halves = |setting: &Setting, idler: &Idler| {
            idler.sample.halves(1.0).map(|half| {
                one_by_one(setting, &vec![half], controller.terms.late).unwrap().cost_ns(K) as f64
            })
        };
        let sum = |[a, b]: [f64; 2]| a + b;
        let cost = |setting: &Setting| {
            let all = controller
                .idlers
                .values()
                .map(|idler| halves(setting, idler).map(|half| idler.tenant.weight * half));
            all.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d])
        };
        let originals = controller.candidates[0];
        let vetoed = |setting: &Setting| {
            controller.idlers.values().any(|idler| {
                let own = |setting| sum(halves(setting, idler));
                let limit = idler.tenant.most_loss.map(|share| (1.0 + share) * own(&originals));
                limit.is_some_and(|limit| own(setting) > limit)
            })
        };
        let present = cost(&controller.present);
        let mut best = (controller.present, present);
        for setting in controller.candidates() {
            let cost = cost(setting);
            if sum(cost) < sum(best.1) && sum(cost) < sum(present) * (1.0 - WORTH) && !vetoed(setting) {
                best = (*setting, cost);
            }
        }
        let gains = best.1.iter().zip(&present).all(|(chosen, present)| chosen < present);
        gains.then_some(best.0)
    }

    prop_compose! {
        fn idlers()(idlers in prop::collection::vec((
            prop::collection::vec(prop_oneof![500u64..30_000, 20_000u64..400_000], 1..400),
            prop::sample::select(vec![0.0, 0.5, 1.0, 3.0]),
            prop::sample::select(vec![None, Some(0.0), Some(0.05), Some(0.5)]),
        ), 1..5)) -> Vec<(Vec<u64>, Tenant)> {
            let of = |(lengths, weight, most_loss)| (lengths, Tenant { weight, most_loss });
            idlers.into_iter().map(of).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// The choice is the slow one; no idler is given what its limit excludes, and each veto is a true one.
        #[test]
        fn the_cheapest_setting_without_a_veto_is_chosen(idlers in idlers(), present in any::<prop::sample::Index>()) {
            let mut controller = controller();
            let originals = controller.originals();
            controller.present = *present.get(controller.candidates());
            let mut one = player(&controller);
            let observed: Vec<Observed> = (0..).zip(&idlers).map(|(idler, (lengths, tenant))| {
                let episodes = lengths.iter().copied().map(Episode::of).collect();
                Observed { idler, tenant: *tenant, ..seen(&mut one, episodes) }
            }).collect();
            controller.take_in(10_000_000, &observed);
            let slow = slow_choice(&controller);
            let chosen = controller.choose().map(|(to, _)| to);
            let enough = controller.groups().iter().map(Group::episodes).sum::<usize>() >= FEWEST;
            prop_assert_eq!(chosen, slow.filter(|_| enough));
            for veto in controller.vetoes() {
                let limit = idlers[usize::try_from(veto.idler).unwrap()].1.most_loss.unwrap();
                prop_assert!(veto.cost_ns > (1.0 + limit) * veto.originals_ns);
                prop_assert!(Some(veto.setting) != chosen && veto.setting != originals);
            }
        }
    }

    #[test]
    fn a_weight_is_as_many_idlers() {
        let mixed = |short: usize| {
            (0..320).map(move |n| if n % 4 < short { 4_000 } else { 150_000 }).map(Episode::of)
        };
        let chosen = |tenants: &[(f64, usize)]| {
            let mut controller = controller();
            let observed = (0..).zip(tenants).map(|(idler, (weight, short))| {
                let tenant = Tenant { weight: *weight, ..Tenant::default() };
                Observed { idler, tenant, ..seen(&mut player(&controller), mixed(*short).collect()) }
            });
            let observed: Vec<Observed> = observed.collect();
            controller.take_in(10_000_000, &observed);
            let (to, cause) = controller.choose().unwrap();
            let Cause::Gain { present_ns, chosen_ns, originals_ns, .. } = cause else { panic!("{cause:?}") };
            (to, [present_ns, chosen_ns, originals_ns].map(f64::round))
        };
        assert_eq!(chosen(&[(1.0, 3), (1.0, 3), (1.0, 3), (1.0, 0)]), chosen(&[(3.0, 3), (1.0, 0)]));
        assert_eq!(chosen(&[(0.5, 3), (0.5, 0)]), chosen(&[(40.0, 3), (40.0, 0)]));
        assert_eq!(chosen(&[(0.0, 3), (1.0, 0)]), chosen(&[(7.0, 0)]));
        assert_ne!(chosen(&[(0.0, 3), (1.0, 0)]).0, chosen(&[(1.0, 3), (0.0, 0)]).0);
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
            if let Some(change) = controller.decide(now, &[seen(&mut player, episodes)]) {
                player.set(&change.to);
                controller.changed(&change);
                writes.push(change.writes());
            }
        }
        let all: usize = writes.iter().sum();
        assert!(all > 20 && all <= MOST_WRITES, "{writes:?}");
    }
}
