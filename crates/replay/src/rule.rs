//! A policy with its setting, and the same ready to run.

use crate::counts::Counts;
use crate::outer::{self, Controlled};
use crate::source::Run;
use dwell_policy::catalogue::{self, Entry, LEADER, SAVINGS, Start, Terms, Use};
use dwell_policy::guest::{self, Haltpoll};
use dwell_policy::host::{self, HaltPoll};
use dwell_policy::iothread::{self, Aio, Handler, Kind};
use dwell_policy::param::Setting;
use dwell_policy::reference::{Always, Fixed, Never, SkiRental};
use dwell_policy::version::UnknownVersion;
use dwell_policy::{Any, Layer, Nanos, Outcome, Policy};

/// A policy with its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Halts at once.
    Never,
    /// Polls until the wakeup.
    Always,
    /// The same window in every episode.
    Fixed(Nanos),
    /// Polls for as long as a halt costs.
    SkiRental(Nanos),
    /// A policy of the catalogue that has no variant here ([`Rule::leader`], [`Rule::savings`]), or of your own.
    Policy(&'static Entry, Terms),
    /// The rule of a layer in one version: KVM halt polling, the haltpoll governor, or QEMU adaptive polling.
    Layer(Setting),
    /// KVM halt polling whose parameters a controller outside the kernel sets periodically.
    Controlled {
        /// The setting at the start.
        host: Setting,
        /// The halt cost and the period of the controller.
        terms: outer::Terms,
    },
    /// A guest that polls above a host that polls for the rest of the episode.
    Stacked {
        /// The guest's setting.
        guest: Setting,
        /// The host's setting.
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
        /// The version.
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
            Rule::Never => "never",
            Rule::Always => "always",
            Rule::Fixed(_) => "fixed",
            Rule::SkiRental(_) => "ski-rental",
            Rule::Policy(entry, _) => entry.name,
            Rule::Layer(setting) => match setting.layer() {
                Layer::Host => "kvm",
                Layer::Guest => "haltpoll",
                Layer::Driver => "dwell-idle",
                Layer::Iothread => match iothread::Release::new(setting.version()).map(|r| r.revision()) {
                    Ok(iothread::Revision::Global) => "aio-global",
                    Ok(iothread::Revision::PerHandler) => "aio-per-handler",
                    _ => "aio-weighted",
                },
            },
            Rule::Controlled { .. } => "kvm+controller",
            Rule::Stacked { .. } => "haltpoll+kvm",
        }
    }

    /// The parameters and their values: the window of the reference policies that have one, the halt cost and
    /// the wakeup latency of those that learn.
    pub fn values(&self) -> Vec<(&'static str, i64)> {
        match self {
            Rule::Never | Rule::Always => vec![],
            Rule::Fixed(window) | Rule::SkiRental(window) => {
                vec![("window_ns", whole(*window))]
            }
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
            Rule::Controlled { host, terms } => {
                let terms = [("halt_cost_ns", whole(terms.halt_cost)), ("period_ns", whole(terms.period))];
                named(host).chain(terms).collect()
            }
            Rule::Stacked { guest, host, poll_control } => {
                named(guest).chain(named(host)).chain([("poll_control", i64::from(*poll_control))]).collect()
            }
        }
    }

    /// The policy at the first episode of an idler, for a replay ([`Player::play`]); an event loop has
    /// `handlers` handlers.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn start(&self, handlers: usize) -> Result<Player, RuleError> {
        match *self {
            // A replay has the lengths without the latency.
            Rule::Policy(entry, terms) => {
                Rule::Policy(entry, Terms::at(terms.halt_cost)).start_late(handlers)
            }
            Rule::Layer(mut setting) if setting.layer() == Layer::Driver => {
                // In the range of the parameter.
                let _ = setting.set("wake_latency_ns", 0);
                Rule::Layer(setting).start_late(handlers)
            }
            rule => rule.start_late(handlers),
        }
    }

    /// As [`Rule::start`], for episodes whose lengths include a wakeup latency where the idler halts
    /// ([`Player::play_late`]).
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn start_late(&self, handlers: usize) -> Result<Player, RuleError> {
        let state = match self {
            Rule::Layer(setting) if setting.layer() == Layer::Iothread => {
                let release = iothread::Release::new(setting.version()).map_err(unknown(setting))?;
                let handlers = vec![Handler::new(Kind::Polled); handlers.max(1)];
                State::Aio(Box::new(Aio::new(release, iothread::Params::from(setting), handlers)))
            }
            Rule::Controlled { host, terms } => {
                let revision = host::Revision::of(host.version()).map_err(unknown(host))?;
                State::Controlled(Box::new(Controlled::new(revision, host::Params::from(host), *terms)))
            }
            Rule::Stacked { guest, host, poll_control } => State::Stacked {
                guest: guest_policy(guest)?,
                host: if *poll_control { Some(host_policy(host)?) } else { None },
            },
            rule => State::One(rule.policy()?),
        };
        Ok(Player { state, ended_ns: None })
    }

    /// The policy at the first episode of an idler, to be run live: an event loop has one handler.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that are not a single policy.
    pub fn policy(&self) -> Result<Any, RuleError> {
        Ok(match self {
            Rule::Never => Never.into(),
            Rule::Always => Always.into(),
            Rule::Fixed(window) => Fixed(*window).into(),
            Rule::SkiRental(halt_cost) => SkiRental { halt_cost: *halt_cost }.into(),
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
            Rule::Controlled { .. } => return Err(RuleError::NotReplayable("kvm+controller")),
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

fn host_policy(setting: &Setting) -> Result<HaltPoll, RuleError> {
    let revision = host::Revision::of(setting.version()).map_err(unknown(setting))?;
    Ok(HaltPoll::new(revision, host::Params::from(setting)))
}

fn guest_policy(setting: &Setting) -> Result<Haltpoll, RuleError> {
    let revision = guest::Revision::of(setting.version()).map_err(unknown(setting))?;
    Ok(Haltpoll::new(revision, guest::Params::from(setting)))
}

/// A policy with the state of one idler.
#[derive(Clone, Debug)]
pub struct Player {
    state: State,
    /// When the last episode ended \[ns, the recording's clock\]: the idler has been busy since.
    ended_ns: Option<u64>,
}

// One player is one idler under one rule; there are few of those that learn.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
enum State {
    One(Any),
    Aio(Box<Aio<Vec<Handler>>>),
    Controlled(Box<Controlled>),
    Stacked { guest: Haltpoll, host: Option<HaltPoll> },
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
                    self.state = fresh.state;
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

    /// Plays one episode after which the idler, if it halted, runs again only `wake_latency` after the wakeup event:
    /// what the rule learns from is that much longer, as it is in a kernel. Returns what it did.
    ///
    /// Policies of event loops take the episode as that of their first handler.
    pub fn play_late(&mut self, idle: Nanos, wake_latency: Nanos) -> Counts {
        self.play_late_alone(idle, wake_latency, Nanos::MAX)
    }

    /// As [`Player::play_late`], of an episode in which a poll of KVM's may last at most `alone`.
    pub fn play_late_alone(&mut self, idle: Nanos, wake_latency: Nanos, alone: Nanos) -> Counts {
        let mut counts = Counts { episodes: 1, idle_ns: idle.get().into(), ..Counts::default() };
        match &mut self.state {
            State::One(_) | State::Aio(_) => {
                return self.play_all_late(std::iter::once((0, idle.get(), alone.get())), wake_latency);
            }
            State::Controlled(controlled) => {
                // Without a clock the idler is never busy: an episode begins when the last has ended.
                let start = self.ended_ns.unwrap_or(0);
                let window = controlled.play(start, idle.get());
                self.ended_ns = Some(start.saturating_add(idle.get()));
                counts.count_alone(window, idle.get(), alone.get());
            }
            State::Stacked { guest, host } => {
                let guest_window = guest.window();
                let rest = idle.saturating_sub(guest_window);
                let host = host.as_mut().filter(|_| rest > Nanos::ZERO);
                let mut host_window = Nanos::ZERO;
                let mut host_poll = Nanos::ZERO;
                let mut late = if rest > Nanos::ZERO { wake_latency } else { Nanos::ZERO };
                if let Some(host) = host {
                    host_window = host.window();
                    host_poll = host_window.min(alone.saturating_sub(guest_window));
                    late = if rest > host_poll { wake_latency } else { Nanos::ZERO };
                    host.observe(Outcome::of(Nanos(rest.get().saturating_add(late.get()))));
                }
                guest.observe(Outcome::of(Nanos(idle.get().saturating_add(late.get()))));
                let window = guest_window.get().saturating_add(host_window.get());
                counts.count_alone(window, idle.get(), guest_window.get().saturating_add(host_poll.get()));
                counts.exits += u64::from(rest > Nanos::ZERO && rest <= host_poll);
            }
        }
        counts
    }

    /// As [`Player::play_late_alone`] of one episode after the other: of each how long the idler was busy
    /// before it, its length, and how long a poll may last \[ns\].
    pub fn play_all_late(
        &mut self,
        episodes: impl Iterator<Item = (u64, u64, u64)>,
        wake_latency: Nanos,
    ) -> Counts {
        match &mut self.state {
            State::One(policy) => late(policy, episodes, wake_latency),
            State::Aio(policy) => Late { episodes, wake_latency, sees_tasks: false }.with(policy.as_mut()),
            State::Controlled(_) | State::Stacked { .. } => episodes
                .map(|(_, idle, alone)| self.play_late_alone(Nanos(idle), wake_latency, Nanos(alone)))
                .sum(),
        }
    }

    /// Plays the episodes of a run, and returns what the rule did.
    pub fn play(&mut self, run: &Run) -> Counts {
        self.follow(run, |_| ())
    }

    /// As [`Player::play`], and calls `see` for every episode in order with the window of the rule; of a
    /// guest and the host below it, both together.
    pub fn follow(&mut self, run: &Run, see: impl FnMut(Nanos)) -> Counts {
        match &mut self.state {
            State::One(policy) => {
                let sees_tasks = sees_tasks(policy);
                policy.with(Drive { run, ended_ns: &mut self.ended_ns, sees_tasks, see })
            }
            State::Aio(policy) if run.has_ready() => drive_with_handlers(policy.as_mut(), run, see),
            State::Aio(policy) => {
                Drive { run, ended_ns: &mut self.ended_ns, sees_tasks: false, see }.with(policy.as_mut())
            }
            State::Controlled(controlled) => drive_controlled(controlled, run, see),
            State::Stacked { guest, host } => drive_stacked(guest, host.as_mut(), run, see),
        }
    }
}

/// Whether another task on the core ends its polls.
fn sees_tasks(policy: &Any) -> bool {
    !matches!(policy, Any::Haltpoll(_) | Any::Driver(_) | Any::Aio(_))
}

fn late(policy: &mut Any, episodes: impl Iterator<Item = (u64, u64, u64)>, wake_latency: Nanos) -> Counts {
    let sees_tasks = sees_tasks(policy);
    policy.with(Late { episodes, wake_latency, sees_tasks })
}

/// Episodes, each with the time alone, through a policy that learns from a longer one where the idler halts.
struct Late<I> {
    episodes: I,
    wake_latency: Nanos,
    sees_tasks: bool,
}

impl<I: Iterator<Item = (u64, u64, u64)>> Use for Late<I> {
    type Output = Counts;

    fn with<P: Policy + ?Sized>(self, policy: &mut P) -> Counts {
        let mut counts = Counts::default();
        for (busy, idle, alone) in self.episodes {
            let longest = if self.sees_tasks { alone } else { u64::MAX };
            let window = policy.window_after(Nanos(busy)).get();
            let late = if idle > window.min(longest) { self.wake_latency.get() } else { 0 };
            counts.episodes += 1;
            counts.idle_ns += u128::from(idle);
            counts.count_alone(window, idle, longest);
            policy.observe(Outcome::of(Nanos(idle.saturating_add(late))));
        }
        counts
    }
}

/// The episodes of a run through a policy, which gets the busy time before each.
struct Drive<'a, S> {
    run: &'a Run,
    ended_ns: &'a mut Option<u64>,
    /// Whether another task on the core ends a poll, as in KVM; a guest's and an event loop's policy cannot see it. The
    /// policy learns from the whole episode either way, as KVM's rule does.
    sees_tasks: bool,
    see: S,
}

impl<S: FnMut(Nanos)> Use for Drive<'_, S> {
    type Output = Counts;

    fn with<P: Policy + ?Sized>(mut self, policy: &mut P) -> Counts {
        let mut counts = of_run(self.run);
        let mut last = *self.ended_ns;
        for (&start, (idle, alone)) in self.run.start_ns.iter().zip(self.run.idle_and_alone()) {
            let window = match last {
                Some(ended) => policy.window_after(Nanos(start.saturating_sub(ended))),
                None => policy.window(),
            };
            (self.see)(window);
            counts.count_alone(window.get(), idle, if self.sees_tasks { alone } else { u64::MAX });
            policy.observe(Outcome::of(Nanos(idle)));
            last = Some(start.saturating_add(idle));
        }
        *self.ended_ns = last;
        counts
    }
}

fn drive_controlled(controlled: &mut Controlled, run: &Run, mut see: impl FnMut(Nanos)) -> Counts {
    let mut counts = of_run(run);
    for (&start, (idle, alone)) in run.start_ns.iter().zip(run.idle_and_alone()) {
        let window = controlled.play(start, idle);
        see(Nanos(window));
        counts.count_alone(window, idle, alone);
    }
    counts
}

fn drive_with_handlers(policy: &mut impl Policy, run: &Run, mut see: impl FnMut(Nanos)) -> Counts {
    let mut counts = of_run(run);
    for (episode, &idle) in run.idle_ns.iter().enumerate() {
        let window = policy.window();
        see(window);
        counts.count(window.get(), idle);
        policy.observe(Outcome::with_ready(Nanos(idle), run.ready(episode)));
    }
    counts
}

/// The guest polls first; the host gets the rest of the episode, and of the time alone: a guest's poll goes
/// on while another task has the core.
fn drive_stacked(
    guest: &mut Haltpoll,
    mut host: Option<&mut HaltPoll>,
    run: &Run,
    mut see: impl FnMut(Nanos),
) -> Counts {
    let mut counts = of_run(run);
    for (idle, alone) in run.idle_and_alone() {
        let guest_window = guest.window().get();
        guest.observe(Outcome::of(Nanos(idle)));
        let rest = idle.saturating_sub(guest_window);
        let mut host_window = 0;
        if let Some(host) = host.as_mut().filter(|_| rest > 0) {
            host_window = host.window().get();
            host.observe(Outcome::of(Nanos(rest)));
        }
        let window = guest_window.saturating_add(host_window);
        see(Nanos(window));
        let host_poll = host_window.min(alone.saturating_sub(guest_window));
        counts.count_alone(window, idle, guest_window.saturating_add(host_poll));
        counts.exits += u64::from(rest > 0 && rest <= host_poll);
    }
    counts
}

fn of_run(run: &Run) -> Counts {
    Counts {
        episodes: run.idle_ns.len() as u64,
        idle_ns: run.idle_ns.iter().map(|&idle| u128::from(idle)).sum(),
        ..Counts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, Source};
    use proptest::prelude::*;

    fn rules() -> Vec<Rule> {
        let defaults =
            |layer, major, minor| Setting::defaults(layer, dwell_policy::version::Version::new(major, minor));
        let (guest, host) = (defaults(Layer::Guest, 6, 12), defaults(Layer::Host, 6, 12));
        vec![
            Rule::Never,
            Rule::Always,
            Rule::Fixed(Nanos(50_000)),
            Rule::Layer(host),
            Rule::Layer(guest),
            Rule::Layer(defaults(Layer::Iothread, 11, 1)),
            Rule::Stacked { guest, host, poll_control: true },
            Rule::Stacked { guest, host, poll_control: false },
            Rule::savings(Terms::at(Nanos(20_000))),
            Rule::leader(Terms::at(Nanos(20_000))),
            Rule::Controlled {
                host,
                terms: outer::Terms { halt_cost: Nanos(20_000), period: Nanos(1_000_000) },
            },
        ]
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
            let episodes = lengths.iter().map(|&length| (busy(length), length, u64::MAX));
            player.play_all_late(episodes, Nanos::ZERO)
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
                            let counts = followed.follow(run, |window| windows.push(window.get()));
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
