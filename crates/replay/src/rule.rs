//! A policy with its setting, and the same ready to run.

use crate::counts::Counts;
use crate::source::Run;
use dwell_policy::guest::{self, Haltpoll};
use dwell_policy::host::{self, HaltPoll};
use dwell_policy::iothread::{self, Aio, Handler, Kind};
use dwell_policy::param::Setting;
use dwell_policy::reference::{Always, Fixed, Never, SkiRental};
use dwell_policy::version::UnknownEra;
use dwell_policy::{Any, Layer, Nanos, Outcome, Policy};

/// A policy with its setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Halts at once.
    Never,
    /// Polls until the wake.
    Always,
    /// One window for all time.
    Fixed(Nanos),
    /// Polls for as long as a halt is worth.
    SkiRental(Nanos),
    /// The rule of a layer in one version: KVM halt polling, the haltpoll governor, or QEMU's adaptive polling.
    Layer(Setting),
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
    /// The version of the setting has no known rule.
    #[error("version {version}: {source}")]
    UnknownEra {
        /// The version.
        version: String,
        /// Which ones are known.
        source: UnknownEra,
    },
    /// Episodes say nothing about this layer's rule.
    #[error(
        "the rule of the {0} layer cannot be replayed from idle episodes; layers that can: host, guest, iothread"
    )]
    NotReplayable(&'static str),
}

impl Rule {
    /// The policy's name in tables and JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::Never => "never",
            Rule::Always => "always",
            Rule::Fixed(_) => "fixed",
            Rule::SkiRental(_) => "ski-rental",
            Rule::Layer(setting) => match setting.layer() {
                Layer::Host => "kvm",
                Layer::Guest => "haltpoll",
                Layer::Timer => "timer",
                Layer::Iothread => match iothread::Release::new(setting.version()).map(|r| r.era()) {
                    Ok(iothread::Era::Global) => "aio-global",
                    Ok(iothread::Era::PerHandler) => "aio-per-handler",
                    _ => "aio-weighted",
                },
            },
            Rule::Stacked { .. } => "haltpoll+kvm",
        }
    }

    /// The parameters and their values; none for the reference policies but their window.
    pub fn values(&self) -> Vec<(&'static str, i64)> {
        match self {
            Rule::Never | Rule::Always => vec![],
            Rule::Fixed(window) | Rule::SkiRental(window) => {
                vec![("window_ns", i64::try_from(window.get()).unwrap_or(i64::MAX))]
            }
            Rule::Layer(setting) => named(setting).collect(),
            Rule::Stacked { guest, host, poll_control } => {
                named(guest).chain(named(host)).chain([("poll_control", i64::from(*poll_control))]).collect()
            }
        }
    }

    /// The policy at the beginning of an idler's life, with room for `handlers` of an event loop.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn start(&self, handlers: usize) -> Result<Player, RuleError> {
        Ok(Player(match self {
            Rule::Layer(setting) if setting.layer() == Layer::Iothread => {
                let handlers = vec![Handler::new(Kind::Polled); handlers.max(1)];
                State::Aio(Box::new(aio_policy(setting, handlers)?))
            }
            Rule::Stacked { guest, host, poll_control } => State::Stacked {
                guest: guest_policy(guest)?,
                host: if *poll_control { Some(host_policy(host)?) } else { None },
            },
            rule => State::One(rule.policy()?),
        }))
    }

    /// The policy at the beginning of an idler's life, for a live idler: an event loop has one handler.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that are no single policy.
    pub fn policy(&self) -> Result<Any, RuleError> {
        Ok(match self {
            Rule::Never => Any::Never(Never),
            Rule::Always => Any::Always(Always),
            Rule::Fixed(window) => Any::Fixed(Fixed(*window)),
            Rule::SkiRental(halt_cost) => Any::SkiRental(SkiRental { halt_cost: *halt_cost }),
            Rule::Layer(setting) => match setting.layer() {
                Layer::Host => Any::Kvm(host_policy(setting)?),
                Layer::Guest => Any::Haltpoll(guest_policy(setting)?),
                Layer::Iothread => Any::Aio(aio_policy(setting, [Handler::new(Kind::Polled)])?),
                Layer::Timer => return Err(RuleError::NotReplayable("timer")),
            },
            Rule::Stacked { .. } => return Err(RuleError::NotReplayable("guest above host")),
        })
    }
}

fn named(setting: &Setting) -> impl Iterator<Item = (&'static str, i64)> {
    setting.iter().map(|(param, value)| (param.name, value))
}

pub(crate) fn unknown(setting: &Setting) -> impl FnOnce(UnknownEra) -> RuleError {
    let version = setting.version().to_string();
    move |source| RuleError::UnknownEra { version, source }
}

fn host_policy(setting: &Setting) -> Result<HaltPoll, RuleError> {
    let era = host::Era::of(setting.version()).map_err(unknown(setting))?;
    Ok(HaltPoll::new(era, host::Params::from(setting)))
}

fn guest_policy(setting: &Setting) -> Result<Haltpoll, RuleError> {
    let era = guest::Era::of(setting.version()).map_err(unknown(setting))?;
    Ok(Haltpoll::new(era, guest::Params::from(setting)))
}

fn aio_policy<H: AsRef<[Handler]> + AsMut<[Handler]>>(
    setting: &Setting,
    handlers: H,
) -> Result<Aio<H>, RuleError> {
    let release = iothread::Release::new(setting.version()).map_err(unknown(setting))?;
    Ok(Aio::new(release, iothread::Params::from(setting), handlers))
}

/// A policy in the middle of an idler's life.
#[derive(Clone, Debug)]
pub struct Player(State);

#[derive(Clone, Debug)]
enum State {
    One(Any),
    Aio(Box<Aio<Vec<Handler>>>),
    Stacked { guest: Haltpoll, host: Option<HaltPoll> },
}

impl Player {
    /// Lives through one episode after which the idler, if it halted, runs again only `wake_latency` after the wake event:
    /// what the rule learns from is that much longer, as it is in a kernel. Answers what it did.
    ///
    /// Policies of event loops take the episode as that of their first handler.
    pub fn play_late(&mut self, idle: Nanos, wake_latency: Nanos) -> Counts {
        let mut counts = Counts { episodes: 1, idle_ns: idle.get().into(), ..Counts::default() };
        let mut one = |policy: &mut dyn Policy| {
            let window = policy.window();
            let late = if idle > window { wake_latency } else { Nanos::ZERO };
            counts.count(window.get(), idle.get());
            policy.observe(Outcome::of(Nanos(idle.get().saturating_add(late.get()))));
        };
        match &mut self.0 {
            State::One(policy) => one(policy),
            State::Aio(policy) => one(policy.as_mut()),
            State::Stacked { guest, host } => {
                let guest_window = guest.window();
                let rest = idle.saturating_sub(guest_window);
                let host = host.as_mut().filter(|_| rest > Nanos::ZERO);
                let mut host_window = Nanos::ZERO;
                let mut late = if rest > Nanos::ZERO { wake_latency } else { Nanos::ZERO };
                if let Some(host) = host {
                    host_window = host.window();
                    late = if rest > host_window { wake_latency } else { Nanos::ZERO };
                    host.observe(Outcome::of(Nanos(rest.get().saturating_add(late.get()))));
                }
                guest.observe(Outcome::of(Nanos(idle.get().saturating_add(late.get()))));
                counts.count(guest_window.get().saturating_add(host_window.get()), idle.get());
                counts.exits += u64::from(rest > Nanos::ZERO && rest <= host_window);
            }
        }
        counts
    }

    /// Lives through the episodes of a run, and counts what it did.
    pub fn play(&mut self, run: &Run) -> Counts {
        match &mut self.0 {
            State::One(Any::Never(policy)) => drive(policy, run),
            State::One(Any::Always(policy)) => drive(policy, run),
            State::One(Any::Fixed(policy)) => drive(policy, run),
            State::One(Any::SkiRental(policy)) => drive(policy, run),
            State::One(Any::Kvm(policy)) => drive(policy, run),
            State::One(Any::Haltpoll(policy)) => drive(policy, run),
            State::One(Any::Aio(policy)) => drive(policy, run),
            State::Aio(policy) => drive_with_handlers(policy.as_mut(), run),
            State::Stacked { guest, host } => drive_stacked(guest, host.as_mut(), run),
        }
    }
}

fn drive(policy: &mut impl Policy, run: &Run) -> Counts {
    let mut counts = of_run(run);
    for &idle in &run.idle_ns {
        counts.count(policy.window().get(), idle);
        policy.observe(Outcome::of(Nanos(idle)));
    }
    counts
}

fn drive_with_handlers(policy: &mut impl Policy, run: &Run) -> Counts {
    if !run.has_ready() {
        return drive(policy, run);
    }
    let mut counts = of_run(run);
    for (episode, &idle) in run.idle_ns.iter().enumerate() {
        counts.count(policy.window().get(), idle);
        policy.observe(Outcome { idle: Nanos(idle), ready: run.ready(episode) });
    }
    counts
}

/// The guest polls first; the host gets the rest of the episode.
fn drive_stacked(guest: &mut Haltpoll, mut host: Option<&mut HaltPoll>, run: &Run) -> Counts {
    let mut counts = of_run(run);
    for &idle in &run.idle_ns {
        let guest_window = guest.window().get();
        guest.observe(Outcome::of(Nanos(idle)));
        let rest = idle.saturating_sub(guest_window);
        let mut host_window = 0;
        if let Some(host) = host.as_mut().filter(|_| rest > 0) {
            host_window = host.window().get();
            host.observe(Outcome::of(Nanos(rest)));
        }
        counts.count(guest_window.saturating_add(host_window), idle);
        counts.exits += u64::from(rest > 0 && rest <= host_window);
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
        ]
    }

    proptest! {
        #[test]
        fn without_latency_it_is_the_same_as_in_a_run(
            idle_ns in prop::collection::vec(prop_oneof![0u64..400_000, any::<u64>()], 1..60)
        ) {
            for rule in rules() {
                let (mut late, mut plain) = (rule.start(1).unwrap(), rule.start(1).unwrap());
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

    #[test]
    fn a_late_wake_after_a_halt_is_a_longer_episode_for_the_rule() {
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
