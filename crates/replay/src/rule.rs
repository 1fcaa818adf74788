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

fn unknown(setting: &Setting) -> impl FnOnce(UnknownEra) -> RuleError {
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

fn aio_policy<H: AsRef<[Handler]> + AsMut<[Handler]>>(setting: &Setting, handlers: H) -> Result<Aio<H>, RuleError> {
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
