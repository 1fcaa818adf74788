//! A policy with its setting, and the same ready to run.

use crate::counts::Counts;
use crate::idle_loop::IdleLoop;
use crate::source::Run;
use dwell_policy::catalogue::{self, Entry, LEADER, POLICIES, SAVINGS, Start, Terms, Use};
use dwell_policy::iothread::{self, Aio, Handler, Kind};
use dwell_policy::param::Setting;
use dwell_policy::version::UnknownVersion;
use dwell_policy::{Any, Layer, Nanos, Outcome, Policy, guest, host};

/// A policy with its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A policy of the catalogue that is not the rule of a layer, or one of your own. The window of one that is started with
    /// a window is the halt cost of its terms.
    Policy(&'static Entry, Terms),
    /// The rule of a layer in one version: KVM halt polling, the haltpoll governor, or QEMU adaptive polling.
    Layer(Setting),
    /// A guest that polls above a host that polls for the rest of the episode.
    Stacked {
        guest: Setting,
        host: Setting,
        /// Whether the guest lets the host poll (`MSR_KVM_POLL_CONTROL`); haltpoll switches it off.
        poll_control: bool,
    },
}

/// Why a rule cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The rule of this version is not known.
    #[error("version {version}: {source}")]
    UnknownVersion {
        version: String,
        /// The known versions.
        source: UnknownVersion,
    },
    /// The rule of this name does not follow from idle episodes, or is not a single policy.
    #[error(
        "cannot run the rule {0} as one policy over idle episodes; host, guest and iothread have such rules"
    )]
    NotReplayable(&'static str),
}

impl Rule {
    /// Halts at once.
    pub const NEVER: Rule = Rule::Policy(&POLICIES[0], Terms::at(Nanos::ZERO));
    /// Polls until the wakeup.
    pub const ALWAYS: Rule = Rule::Policy(&POLICIES[1], Terms::at(Nanos::ZERO));

    /// The same window in every episode.
    pub const fn fixed(window: Nanos) -> Rule {
        Rule::Policy(&POLICIES[2], Terms::at(window))
    }

    /// Polls for as long as a halt costs.
    pub const fn ski_rental(halt_cost: Nanos) -> Rule {
        Rule::Policy(&POLICIES[3], Terms::at(halt_cost))
    }

    /// Polls for the window that would have cost least in similar episodes.
    pub const fn leader(terms: Terms) -> Rule {
        Rule::Policy(LEADER, terms)
    }

    /// Polls while polling has saved more than it cost.
    pub const fn savings(terms: Terms) -> Rule {
        Rule::Policy(SAVINGS, terms)
    }

    /// The policy's name in tables and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Policy(entry, _) => entry.name,
            Rule::Layer(setting) => match setting.layer() {
                Layer::Host => "kvm",
                Layer::Guest => "haltpoll",
                Layer::Driver => "dwell-idle",
                Layer::Iothread => match iothread::Revision::of(setting.version()) {
                    Ok(iothread::Revision::Global) => "aio-global",
                    Ok(iothread::Revision::PerHandler) => "aio-per-handler",
                    _ => "aio-weighted",
                },
            },
            Rule::Stacked { .. } => "haltpoll+kvm",
        }
    }

    /// The parameters and their values: the window of the reference policies that have one, the halt cost and
    /// the wakeup latency of those that learn.
    pub fn values(&self) -> Vec<(&'static str, i64)> {
        match self {
            Rule::Policy(entry, terms) => match entry.start {
                Start::Window(_) => vec![("window_ns", whole(terms.halt_cost))],
                Start::Learner(_) => {
                    vec![
                        ("halt_cost_ns", whole(terms.halt_cost)),
                        ("wake_latency_ns", whole(terms.wake_latency)),
                    ]
                }
                _ => vec![],
            },
            Rule::Layer(setting) => named(setting).collect(),
            Rule::Stacked { guest, host, poll_control } => {
                named(guest).chain(named(host)).chain([("poll_control", i64::from(*poll_control))]).collect()
            }
        }
    }

    /// How many parameters differ from those of another setting of the same rule.
    pub(crate) fn changes(&self, other: &Rule) -> usize {
        self.values().iter().zip(other.values()).filter(|(own, other)| **own != *other).count()
    }

    /// The policy at the first episode of an idler, for a replay ([`Player::play`]); an event loop has
    /// `handlers` handlers.
    ///
    /// The rules of the layers learn from what their kernels measure: lengths with the wakeup latency in them
    /// where the idler halted. A learner gets the lengths without it, which no correction ([`Terms`]) has to
    /// take out. Where a run has no latencies, the one that dwell_idle takes out is that of its parameter.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn start(&self, handlers: usize) -> Result<Player, RuleError> {
        match *self {
            Rule::Policy(entry, terms) => {
                let rule = Rule::Policy(entry, Terms::at(terms.halt_cost));
                Ok(Player { latency: Latency::LeftOut, ..rule.start_late(handlers)? })
            }
            rule => rule.start_late(handlers),
        }
    }

    /// As [`Rule::start`], of a policy that always gets the length with the wakeup latency in it where the idler
    /// halts ([`Player::play_late`]), as it does on a machine that cannot tell them apart.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn start_late(&self, handlers: usize) -> Result<Player, RuleError> {
        let state = match self {
            Rule::Layer(setting) if setting.layer() == Layer::Iothread => {
                let revision = iothread::Revision::of(setting.version()).map_err(unknown(setting))?;
                let handlers = vec![Handler::new(Kind::Polled); handlers.max(1)];
                State::Aio(Box::new(Aio::new(revision, iothread::Params::from(setting), handlers)))
            }
            Rule::Stacked { guest, host, poll_control } => State::Stacked {
                guest: Box::new(Rule::Layer(*guest).policy()?),
                host: poll_control.then(|| Rule::Layer(*host).policy().map(Box::new)).transpose()?,
            },
            rule => State::One(rule.policy()?),
        };
        let own = match self {
            Rule::Layer(setting) if setting.layer() == Layer::Driver => setting.get("wake_latency_ns"),
            _ => None,
        };
        let own = own.and_then(|own| u64::try_from(own).ok()).unwrap_or(0);
        Ok(Player {
            state,
            ended_ns: None,
            latency: Latency::OfRunOr(own),
            idle_loop: IdleLoop::UNKNOWN,
            ran_out: false,
        })
    }

    /// The policy at the first episode of an idler, to be run live: an event loop has one handler.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that are not a single policy.
    pub fn policy(&self) -> Result<Any, RuleError> {
        Ok(match self {
            Rule::Policy(entry, terms) => match entry.start {
                Start::Alone(start) => start(),
                Start::Window(start) => start(terms.halt_cost),
                Start::Learner(start) => start(*terms),
                _ => return Err(RuleError::NotReplayable(entry.name)),
            },
            Rule::Layer(setting) => match catalogue::of_layer(setting.layer()).map(|entry| entry.start) {
                Some(Start::Rule(_, start)) => start(setting).map_err(unknown(setting))?,
                _ => return Err(RuleError::NotReplayable(setting.layer().name())),
            },
            Rule::Stacked { .. } => return Err(RuleError::NotReplayable("haltpoll+kvm")),
        })
    }
}

fn whole(time: Nanos) -> i64 {
    i64::try_from(time.get()).unwrap_or(i64::MAX)
}

fn named(setting: &Setting) -> impl Iterator<Item = (&'static str, i64)> {
    setting.iter().map(|(param, value)| (param.name, value))
}

pub(crate) fn unknown(setting: &Setting) -> impl FnOnce(UnknownVersion) -> RuleError {
    let version = setting.version().to_string();
    move |source| RuleError::UnknownVersion { version, source }
}

/// A policy with the state of one idler.
#[derive(Clone, Debug)]
pub struct Player {
    state: State,
    /// When the last episode ended \[ns, the recording's clock\]: the idler has been busy since.
    ended_ns: Option<u64>,
    latency: Latency,
    /// Of the episodes that are played one by one.
    idle_loop: IdleLoop,
    /// Whether a guest's last idle state is a poll that ran out: it halts at once in the next episode.
    ran_out: bool,
}

// One player is one idler under one rule; there are few of those that learn.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
enum State {
    One(Any),
    Aio(Box<Aio<Vec<Handler>>>),
    Stacked { guest: Box<Any>, host: Option<Box<Any>> },
}

/// What a halt adds to the length that a policy learns from.
#[derive(Clone, Copy, Debug)]
enum Latency {
    /// Nothing: it knows when the wakeup event was.
    LeftOut,
    /// The wakeup latency of the episode, or so much where the run has none \[ns\].
    OfRunOr(u64),
}

/// What a rule did in an episode; of a guest and the host below it, both together.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub window: Nanos,
    /// How long it polled \[ns\].
    pub polled_ns: u64,
    /// Whether the idler halted after that.
    pub halted: bool,
}

/// One episode of an idler.
#[derive(Clone, Copy)]
struct Idle<'a> {
    /// How long the idler was busy before; `None` before its first.
    busy_ns: Option<u64>,
    idle_ns: u64,
    /// How much later it runs if it halts; `None`: not known.
    latency_ns: Option<u64>,
    /// How long a poll may last.
    alone_ns: u64,
    idle_loop: IdleLoop,
    ready: &'a [u32],
}

impl Player {
    /// Gives the rule of a layer other parameters, as a write on a machine does: a window of KVM or haltpoll
    /// stays as it is, the polling state of an event loop is reset, and dwell_idle learns anew. Other
    /// policies, and rules of another layer, are left as they are.
    pub fn set(&mut self, setting: &Setting) {
        match (&mut self.state, setting.layer()) {
            (State::One(Any::Kvm(policy)), Layer::Host) => policy.set_params(host::Params::from(setting)),
            (State::One(Any::Haltpoll(policy)), Layer::Guest) => {
                policy.set_params(guest::Params::from(setting));
            }
            (State::One(Any::Driver(_)), Layer::Driver) => {
                if let Ok(fresh) = Rule::Layer(*setting).start_late(1) {
                    let Player { ended_ns, idle_loop, ran_out, .. } = *self;
                    *self = Player { ended_ns, idle_loop, ran_out, ..fresh };
                }
            }
            (State::Aio(policy), Layer::Iothread) => {
                if let Ok(fresh) = Rule::Layer(*setting).start(policy.handlers().len()) {
                    self.state = fresh.state;
                }
            }
            _ => {}
        }
    }

    /// How long steps of a guest's idle loop take in the episodes that are played one by one.
    pub fn set_idle_loop(&mut self, idle_loop: IdleLoop) {
        self.idle_loop = idle_loop;
    }

    /// Plays one episode after which the idler, if it halted, runs again only `wake_latency` after the wakeup event:
    /// what the rule learns from is that much longer, as it is in a kernel. Returns what it did.
    ///
    /// Policies of event loops take the episode as that of their first handler.
    pub fn play_late(&mut self, idle: Nanos, wake_latency: Nanos) -> Counts {
        self.play_one(Some(0), idle.get(), wake_latency.get(), u64::MAX)
    }

    /// Whether a CPU under haltpoll polls first when it idles next; other rules have no other way into their idle state.
    pub(crate) fn polls(&mut self) -> bool {
        match &mut self.state {
            State::One(Any::Haltpoll(policy)) => !self.ran_out && policy.window() > Nanos::ZERO,
            State::Stacked { guest, .. } => !self.ran_out && guest.window() > Nanos::ZERO,
            _ => true,
        }
    }

    /// As [`Player::play_late`], of an episode before which the idler was busy for so long, if that is known, and in which
    /// a poll of KVM's may last at most `alone_ns` \[ns\].
    pub fn play_one(&mut self, busy_ns: Option<u64>, idle_ns: u64, latency_ns: u64, alone_ns: u64) -> Counts {
        let (latency_ns, idle_loop) = (Some(latency_ns), self.idle_loop);
        let one = Idle { busy_ns, idle_ns, latency_ns, alone_ns, idle_loop, ready: &[] };
        self.drive(std::iter::once(one), |_| ())
    }

    /// Plays the episodes of a run, and returns what the rule did.
    pub fn play(&mut self, run: &Run) -> Counts {
        self.follow(run, |_| ())
    }

    /// As [`Player::play`], and calls `see` for every episode in order.
    pub fn follow(&mut self, run: &Run, see: impl FnMut(Seen)) -> Counts {
        let (mut ended_ns, latency_ns) = (self.ended_ns, run.latency_ns());
        let idle_loop = run.idle_loop();
        let one = |(episode, (&start_ns, (idle_ns, alone_ns))): (usize, (&u64, (u64, u64)))| {
            let busy_ns = ended_ns.map(|ended| start_ns.saturating_sub(ended));
            ended_ns = Some(start_ns.saturating_add(idle_ns));
            let latency_ns = latency_ns.map(|all| all[episode]);
            let ready = run.ready(episode);
            Idle { busy_ns, idle_ns, latency_ns, alone_ns, idle_loop, ready }
        };
        let counts = self.drive(run.start_ns.iter().zip(run.idle_and_alone()).enumerate().map(one), see);
        self.ended_ns = ended_ns;
        counts
    }

    /// The one way in which a rule is fed.
    fn drive<'a>(&mut self, episodes: impl Iterator<Item = Idle<'a>>, see: impl FnMut(Seen)) -> Counts {
        let latency = self.latency;
        let episodes = episodes.map(|episode| match latency {
            Latency::LeftOut => Idle { latency_ns: None, ..episode },
            Latency::OfRunOr(ns) => Idle { latency_ns: Some(episode.latency_ns.unwrap_or(ns)), ..episode },
        });
        let ran_out = &mut self.ran_out;
        match &mut self.state {
            State::One(policy) => {
                let (sees_tasks, in_steps) = (sees_tasks(policy), matches!(policy, Any::Haltpoll(_)));
                policy.with(Drive { episodes, sees_tasks, in_steps, ran_out, see })
            }
            State::Aio(policy) => {
                Drive { episodes, sees_tasks: false, in_steps: false, ran_out, see }.with(policy.as_mut())
            }
            State::Stacked { guest, host } => {
                drive_stacked(guest, host.as_deref_mut(), episodes, ran_out, see)
            }
        }
    }
}

/// Whether another task on the core ends its polls.
fn sees_tasks(policy: &Any) -> bool {
    !matches!(policy, Any::Haltpoll(_) | Any::Driver(_) | Any::Aio(_))
}

/// Episodes through a policy, which gets the busy time before each. It learns from a longer one where the idler
/// halts: KVM's block time, haltpoll's residency (less the window, which the policy takes off), QEMU's
/// `block_ns` and what dwell_idle measures all end when the idler runs again.
struct Drive<'r, I, S> {
    episodes: I,
    /// Whether another task on the core ends a poll, as in KVM; a guest's and an event loop's policy cannot see it. The
    /// policy learns from the whole episode either way, as KVM's rule does.
    sees_tasks: bool,
    /// Whether a poll ends at a look at the clock, as in Linux's `poll_idle`.
    in_steps: bool,
    /// As [`Player::ran_out`].
    ran_out: &'r mut bool,
    see: S,
}

/// A guest's CPU in an idle time.
struct GuestIdle {
    /// The governor's limit, or 0 where it halts at once \[ns\].
    window: u64,
    /// How long a poll lasts \[ns\].
    poll: u64,
    /// When it halts \[ns\].
    halted_from: u64,
}

impl GuestIdle {
    /// With this limit, after a poll that ran out or not.
    fn of(limit: u64, ran_out: bool, idle_loop: IdleLoop) -> GuestIdle {
        let window = if ran_out { 0 } else { limit };
        let poll = guest::poll_end_ns(window, idle_loop.poll_step_ns().into());
        GuestIdle { window, poll, halted_from: poll.saturating_add(idle_loop.halt_entry_ns().into()) }
    }

    /// Whether its last idle state is a poll that ran out afterwards: an event on the way to a halt leaves the governor as it
    /// was.
    fn leaves_ran_out(&self, ran_out: bool, idle_ns: u64) -> bool {
        idle_ns <= self.halted_from && (ran_out || self.window > 0 && idle_ns > self.poll)
    }

    /// What haltpoll, which takes off its limit, is to be given so that it learns from the halt alone, which ends `late` after the
    /// idle time.
    fn seen(&self, limit: u64, idle_ns: u64, late: u64) -> u64 {
        if idle_ns > self.halted_from {
            (idle_ns.saturating_add(late) - self.halted_from).saturating_add(limit)
        } else {
            idle_ns.min(limit)
        }
    }
}

impl<'a, I: Iterator<Item = Idle<'a>>, S: FnMut(Seen)> Use for Drive<'_, I, S> {
    type Output = Counts;

    fn with<P: Policy + ?Sized>(mut self, policy: &mut P) -> Counts {
        let mut counts = Counts::default();
        for Idle { busy_ns, idle_ns, latency_ns, alone_ns, idle_loop, ready } in self.episodes {
            let longest = if self.sees_tasks { alone_ns } else { u64::MAX };
            let limit = match busy_ns {
                Some(busy_ns) => policy.window_after(Nanos(busy_ns)),
                None => policy.window(),
            };
            let limit = limit.get();
            let guest = self.in_steps.then(|| GuestIdle::of(limit, *self.ran_out, idle_loop));
            let (window, poll, halted_from) = match &guest {
                Some(guest) => (guest.window, guest.poll, guest.halted_from),
                None => (limit, limit.min(longest), limit.min(longest)),
            };
            let (polled_ns, halts) = (idle_ns.min(poll), idle_ns > halted_from);
            (self.see)(Seen { window: Nanos(window), polled_ns, halted: halts });
            let late = latency_ns.filter(|_| halts).unwrap_or(0);
            counts.episodes += 1;
            counts.idle_ns += u128::from(idle_ns);
            counts.count_poll(window != 0, polled_ns, halts);
            let seen = match &guest {
                Some(guest) => {
                    *self.ran_out = guest.leaves_ran_out(*self.ran_out, idle_ns);
                    guest.seen(limit, idle_ns, late)
                }
                None => idle_ns.saturating_add(late),
            };
            policy.observe(Outcome::with_ready(Nanos(seen), ready));
        }
        counts
    }
}

/// The guest polls first; the host gets the rest of the episode, and of the time alone: a guest's poll goes
/// on while another task has the core. What the host's poll catches adds no latency.
fn drive_stacked<'a>(
    guest: &mut Any,
    mut host: Option<&mut Any>,
    episodes: impl Iterator<Item = Idle<'a>>,
    ran_out: &mut bool,
    mut see: impl FnMut(Seen),
) -> Counts {
    let mut counts = Counts::default();
    for Idle { idle_ns, latency_ns, alone_ns, idle_loop, .. } in episodes {
        let limit = guest.window().get();
        let own = GuestIdle::of(limit, *ran_out, idle_loop);
        let rest = idle_ns.saturating_sub(own.halted_from);
        let latency_ns = latency_ns.unwrap_or(0);
        let (mut host_window, mut host_poll) = (0, 0);
        let mut late = if rest > 0 { latency_ns } else { 0 };
        if let Some(host) = host.as_mut().filter(|_| rest > 0) {
            host_window = host.window().get();
            host_poll = host_window.min(alone_ns.saturating_sub(own.halted_from));
            late = if rest > host_poll { latency_ns } else { 0 };
            host.observe(Outcome::of(Nanos(rest.saturating_add(late))));
        }
        *ran_out = own.leaves_ran_out(*ran_out, idle_ns);
        guest.observe(Outcome::of(Nanos(own.seen(limit, idle_ns, late))));
        let window = own.window.saturating_add(host_window);
        let (polled_ns, halted) = (idle_ns.min(own.poll) + rest.min(host_poll), rest > host_poll);
        see(Seen { window: Nanos(window), polled_ns, halted });
        counts.episodes += 1;
        counts.idle_ns += u128::from(idle_ns);
        counts.count_poll(window != 0, polled_ns, halted);
        counts.exits += u64::from(rest > 0 && rest <= host_poll);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Source};
    use proptest::prelude::*;

    fn of_run(run: &Run) -> Counts {
        Counts {
            episodes: run.idle_ns.len() as u64,
            idle_ns: run.idle_ns.iter().map(|&idle| u128::from(idle)).sum(),
            ..Counts::default()
        }
    }

    fn rules() -> Vec<Rule> {
        let defaults =
            |layer, major, minor| Setting::defaults(layer, dwell_policy::version::Version::new(major, minor));
        let (guest, host) = (defaults(Layer::Guest, 6, 12), defaults(Layer::Host, 6, 12));
        vec![
            Rule::NEVER,
            Rule::ALWAYS,
            Rule::fixed(Nanos(50_000)),
            Rule::Layer(host),
            Rule::Layer(guest),
            Rule::Layer(defaults(Layer::Iothread, 11, 1)),
            Rule::Stacked { guest, host, poll_control: true },
            Rule::Stacked { guest, host, poll_control: false },
            Rule::savings(Terms::at(Nanos(20_000))),
            Rule::leader(Terms::at(Nanos(20_000))),
        ]
    }

    #[test]
    fn policies_of_the_catalogue_are_found() {
        let window = Nanos(5_000);
        let rules = [Rule::NEVER, Rule::ALWAYS, Rule::fixed(window), Rule::ski_rental(window)];
        assert_eq!(rules.map(|rule| rule.name()), ["never", "always", "fixed", "ski-rental"]);
        assert_eq!(rules.map(|rule| rule.to_string().parse()), rules.map(Ok));
    }

    proptest! {
        #[test]
        fn without_latency_it_is_the_same_as_in_a_run(
            idle_ns in prop::collection::vec(prop_oneof![0u64..400_000, any::<u64>()], 1..60)
        ) {
            for rule in rules() {
                let (mut late, mut plain) = (rule.start_late(1).unwrap(), rule.start(1).unwrap());
                let late: Counts = idle_ns.iter().map(|&idle| late.play_late(Nanos(idle), Nanos::ZERO)).sum();
                let mut counts = Counts::default();
                let source = Memory::of_one(&idle_ns);
                source
                    .visit(0..source.episodes(), &mut |batch| {
                        batch.runs().for_each(|run| counts += plain.play(run));
                    })
                    .unwrap();
                prop_assert_eq!(late, counts, "{:?}", rule);
            }
        }
    }

    /// Polls in the second half of many episodes of 12 us, under a policy that gets lengths with
    /// `wake_latency` in them where it halts.
    fn polls_when_late(rule: Rule, wake_latency: Nanos) -> u64 {
        let mut player = rule.start_late(1).unwrap();
        let mut polls = || (0..500).map(|_| player.play_late(Nanos(12_000), wake_latency).polls).sum();
        let _first: u64 = polls();
        polls()
    }

    #[test]
    fn policies_that_learn_need_the_event_or_the_latency_taken_out() {
        let halt_cost = Nanos(20_000);
        let corrected = Terms { halt_cost, wake_latency: Nanos(15_000) };
        for rule in [Rule::savings as fn(Terms) -> Rule, Rule::leader] {
            // 12 us are measured as 27 us, more than the halt cost, and the policy never polls again.
            assert_eq!(polls_when_late(rule(Terms::at(halt_cost)), Nanos(15_000)), 0);
            assert_eq!(polls_when_late(rule(corrected), Nanos(15_000)), 500);
            // A quarter of the halt cost off, either way.
            assert_eq!(polls_when_late(rule(corrected), Nanos(10_000)), 500);
            assert_eq!(polls_when_late(rule(corrected), Nanos(20_000)), 500);
        }
    }

    #[test]
    fn correction_is_left_out_of_a_replay() {
        let idle_ns: Vec<u64> = (0..2_000).map(|n| [9_000, 31_000, 70_000][n % 3]).collect();
        let counts = |terms: Terms| {
            let replayed =
                crate::replay(&Memory::of_one(&idle_ns), &[Rule::leader(terms)], terms.halt_cost, &|_| ());
            replayed.unwrap().counts[0]
        };
        let terms = Terms::at(Nanos(20_000));
        assert_eq!(counts(terms), counts(Terms { wake_latency: Nanos(15_000), ..terms }));
    }

    #[test]
    fn leader_gets_the_busy_time_of_each_idler() {
        // Two idlers in turn: while one idles, the other is busy. The second idles as long as it was busy,
        // which follows only from its busy time; for the first there is nothing to learn.
        let mut random = dwell_stats::SplitMix64::new(1);
        let mut length = || if random.below(5) < 2 { 200_000 } else { 8_000 };
        let episodes: Vec<(usize, u64)> =
            (0..4_000).map(|_| length()).flat_map(|n| [(0, n), (1, n)]).collect();
        let source = Memory::new(episodes);
        let halt_cost = Nanos(20_000);
        let rules = [Rule::leader(Terms::at(halt_cost)), Rule::savings(Terms::at(halt_cost))];
        let replayed = crate::replay(&source, &rules, halt_cost, &|_| ()).unwrap();
        let ratio = |place: usize| {
            replayed.counts[place].cost_ns(halt_cost) as f64 / replayed.optimum.cost_ns(halt_cost) as f64
        };
        assert!(ratio(0) < 1.35 && ratio(1) > 1.5, "{} {}", ratio(0), ratio(1));
        // Read in parts, nothing changes.
        let mut bank = crate::Bank::new(&rules, 0).unwrap();
        let cuts: Vec<u64> = (0..=40).map(|part| part * 200).collect();
        source.visit_parts(&cuts, &mut |_, batch| bank.feed(batch)).unwrap();
        assert_eq!(bank.take(), replayed.counts);
    }

    #[test]
    fn dwell_idle_gets_the_busy_time_and_learns_anew_when_it_is_set() {
        // An idle time is as long as the busy time before it.
        let mut random = dwell_stats::SplitMix64::new(1);
        let lengths: Vec<u64> =
            (0..4_000).map(|_| if random.below(2) == 0 { 200_000 } else { 8_000 }).collect();
        let mut setting = Setting::defaults(Layer::Driver, dwell_policy::version::Version::new(6, 18));
        setting.set("halt_cost_ns", 20_000).unwrap();
        let mut player = Rule::Layer(setting).start_late(1).unwrap();
        let play = |player: &mut Player, busy: fn(u64) -> u64| {
            let one = |&length: &u64| player.play_one(Some(busy(length)), length, 0, u64::MAX);
            lengths.iter().map(one).sum::<Counts>()
        };
        let known = play(&mut player, |length| length);
        player.set(&setting);
        assert_eq!(play(&mut player, |length| length), known);
        player.set(&setting);
        let unknown = play(&mut player, |_| 0);
        let [known, unknown] = [known, unknown].map(|counts| counts.cost_ns(Nanos(20_000)));
        assert!(10 * known < 9 * unknown, "{known} {unknown}");
        setting.set("policy", 3).unwrap();
        player.set(&setting);
        assert_eq!(play(&mut player, |length| length).polls, 0);
    }

    proptest! {
        #[test]
        fn windows_seen_are_those_that_are_counted(
            idle_ns in prop::collection::vec(prop_oneof![0u64..400_000, any::<u64>()], 1..60)
        ) {
            for rule in rules() {
                let (mut followed, mut played) = (rule.start(1).unwrap(), rule.start(1).unwrap());
                let source = Memory::of_one(&idle_ns);
                source
                    .visit(0..source.episodes(), &mut |batch| {
                        for run in batch.runs() {
                            let mut windows = vec![];
                            let counts = followed.follow(run, |seen| windows.push(seen.window.get()));
                            let mut told = of_run(run);
                            for (&idle, &window) in run.idle_ns.iter().zip(&windows) {
                                told.count(window, idle);
                            }
                            // What a host below catches is an exit without a halt.
                            told.exits = counts.exits;
                            assert_eq!(told, counts, "{rule:?}");
                            assert_eq!(played.play(run), counts, "{rule:?}");
                        }
                    })
                    .unwrap();
            }
        }
    }

    proptest! {
        /// The latency of each episode in a run, and the same episodes one by one.
        #[test]
        fn a_run_with_latencies_is_its_episodes_one_by_one(
            episodes in prop::collection::vec(
                (prop_oneof![0u64..400_000, any::<u64>()], prop_oneof![0u64..60_000, any::<u64>()],
                 prop::option::of(0u64..400_000)), 1..60)
        ) {
            for rule in rules() {
                let (mut late, mut run) = (rule.start_late(1).unwrap(), rule.start(1).unwrap());
                if matches!(rule, Rule::Policy(..)) {
                    // A learner gets the length without the latency.
                    late.latency = Latency::LeftOut;
                }
                let source = Memory::late(episodes.iter().map(|&(idle, late, alone)| (0, idle, Some(late), alone)));
                let mut counts = Counts::default();
                source
                    .visit(0..source.episodes(), &mut |batch| {
                        batch.runs().for_each(|of_batch| counts += run.play(of_batch));
                    })
                    .unwrap();
                let one_by_one: Counts = episodes
                    .iter()
                    .map(|&(idle, latency, alone)| {
                        let alone = alone.filter(|&alone| alone < idle).unwrap_or(u64::MAX);
                        late.play_one(Some(0), idle, latency, alone)
                    })
                    .sum();
                prop_assert_eq!(one_by_one, counts, "{:?}", rule);
            }
        }
    }

    /// A CPU under haltpoll in which a pause takes `relax_ns` and all else is free.
    struct World {
        now_ns: u64,
        wake_ns: u64,
        relax_ns: u64,
    }

    impl guest::Environment for World {
        fn clock(&mut self) -> u64 {
            self.now_ns
        }

        fn relax(&mut self) {
            self.now_ns += self.relax_ns;
        }

        fn need_resched(&mut self) -> bool {
            self.now_ns >= self.wake_ns
        }
    }

    proptest! {
        /// The kernel's own polling loop. An idle time is a whole number of pauses, so that it does not end between
        /// a look for a task and one at the clock. An event while the CPU enters a halt prevents it.
        #[test]
        fn a_poll_ends_at_a_look_at_the_clock(
            episodes in prop::collection::vec((1u64..20_000, 0u64..30_000), 1..200),
            relax_ns in 1u64..40,
            entry_ns in prop_oneof![Just(0), 0u64..9_000],
            (max, start) in (1u32..300_000, 1u32..60_000),
            (grow, shrink) in (0u32..4, 0u32..4),
        ) {
            let mut setting = Setting::defaults(Layer::Guest, dwell_policy::version::Version::new(6, 18));
            for (name, value) in [
                ("guest_halt_poll_ns", max),
                ("guest_halt_poll_grow_start", start),
                ("guest_halt_poll_grow", grow),
                ("guest_halt_poll_shrink", shrink),
            ] {
                setting.set(name, value.into()).unwrap();
            }
            let params = guest::Params::from(&setting);
            let mut cpu = guest::Cpu::new(guest::Revision::of(setting.version()).unwrap());
            let mut player = Rule::Layer(setting).start_late(1).unwrap();
            // A poll looks at the clock after the 201st pause.
            player.set_idle_loop(IdleLoop::new(Nanos(201 * relax_ns), Nanos(entry_ns)));
            for (pauses, latency_ns) in episodes {
                let idle_ns = pauses * relax_ns;
                let mut world = World { now_ns: 0, wake_ns: idle_ns, relax_ns };
                let (mut polled_ns, mut polls) = (0, 0);
                let mut state = cpu.select(i64::MAX).state;
                if state == guest::State::Poll {
                    cpu.poll(&mut world, 0);
                    (polled_ns, polls) = (world.now_ns, 1);
                    cpu.reflect(&params, state, polled_ns);
                    state = cpu.select(i64::MAX).state;
                }
                let goes_to_halt = polls == 0 || cpu.expired();
                let halts = goes_to_halt && idle_ns > polled_ns + entry_ns;
                if halts {
                    assert_eq!(state, guest::State::Halt);
                    cpu.reflect(&params, state, idle_ns - polled_ns - entry_ns + latency_ns);
                }
                let did = player.play_late(Nanos(idle_ns), Nanos(latency_ns));
                // One that ends just then is seen first by the test of the loop in a replay.
                if polls == 1 && goes_to_halt && idle_ns == polled_ns {
                    break;
                }
                prop_assert_eq!((did.polls, did.halts), (polls, u64::from(halts)));
                prop_assert_eq!(did.polled_ns, u128::from(polled_ns));
            }
        }
    }

    #[test]
    fn haltpoll_compares_the_residency_of_the_halt_with_its_maximum() {
        // 10 us to the event and 14 us of latency under a maximum of 15 us: the kernel's window stays at zero, and
        // by the time to the event alone it would be 15 us (a newcomer's recording of redis).
        let mut setting = Setting::defaults(Layer::Guest, dwell_policy::version::Version::new(6, 18));
        setting.set("guest_halt_poll_ns", 15_000).unwrap();
        setting.set("guest_halt_poll_grow_start", 3_750).unwrap();
        let polls = |late: u64| {
            let mut player = Rule::Layer(setting).start(1).unwrap();
            (0..20).map(|_| player.play_late(Nanos(10_000), Nanos(late)).polls).sum::<u64>()
        };
        assert_eq!((polls(14_000), polls(5_001), polls(5_000), polls(0)), (0, 0, 19, 19));
    }

    #[test]
    fn linux_5_4_compares_whole_microseconds_of_the_residency() {
        // 5.4 truncates the residency, latency included: 9,000 + 6,999 ns are 15 us and grow, 1 ns more do not.
        let polls = |minor, late| {
            let mut setting = Setting::defaults(Layer::Guest, dwell_policy::version::Version::new(5, minor));
            setting.set("guest_halt_poll_ns", 15_000).unwrap();
            let mut player = Rule::Layer(setting).start(1).unwrap();
            (0..2).map(|_| player.play_late(Nanos(9_000), Nanos(late)).polls).sum::<u64>()
        };
        assert_eq!([polls(4, 6_999), polls(4, 7_000), polls(10, 6_000), polls(10, 6_001)], [1, 0, 1, 0]);
    }

    #[test]
    fn dwell_idle_takes_out_what_the_recording_or_its_parameter_has() {
        let idle_ns: Vec<u64> = (0..2_000).map(|n| [9_000, 31_000, 70_000][n % 3]).collect();
        let counts = |parameter: i64, recorded: Option<u64>| {
            let mut setting = Setting::defaults(Layer::Driver, dwell_policy::version::Version::new(6, 18));
            setting.set("halt_cost_ns", 20_000).unwrap();
            setting.set("wake_latency_ns", parameter).unwrap();
            let source = Memory::late(idle_ns.iter().map(|&idle| (0, idle, recorded, None)));
            crate::replay(&source, &[Rule::Layer(setting)], Nanos(20_000), &|_| ()).unwrap().counts[0]
        };
        // Where the latency is what the parameter has, or is not known, it learns from the times to the events.
        let exact = counts(0, None);
        assert_eq!([counts(15_000, None), counts(15_000, Some(15_000))], [exact; 2]);
        // Without the parameter, 9 us and 15 us of latency are longer than a halt costs.
        assert!(counts(0, Some(15_000)).polls < exact.polls);
    }

    #[test]
    fn a_late_wakeup_after_a_halt_is_a_longer_episode_for_the_rule() {
        let mut setting = Setting::defaults(Layer::Host, dwell_policy::version::Version::new(6, 12));
        setting.set("halt_poll_ns", 100_000).unwrap();
        // 95 us and 10 us of latency: longer than the maximum, so the window never grows.
        let mut player = Rule::Layer(setting).start(1).unwrap();
        let polls: u64 = (0..20).map(|_| player.play_late(Nanos(95_000), Nanos(10_000)).polls).sum();
        assert_eq!(polls, 0);
        let mut player = Rule::Layer(setting).start(1).unwrap();
        let polls: u64 = (0..20).map(|_| player.play_late(Nanos(95_000), Nanos::ZERO).polls).sum();
        assert!(polls > 0);
    }
}
