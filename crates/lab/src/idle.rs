//! How a vCPU of the lab idles: written as text, tried as an arm.

use crate::gaps::Typed;
use crate::vm::Options;
use dwell_policy::param::{SetError, Setting};
use dwell_policy::version::{NEWEST_KERNEL, NEWEST_QEMU, Version};
use dwell_policy::{Layer, Nanos, ParseNanosError};
use dwell_replay::{Rule, Terms};
use std::fmt;
use std::str::FromStr;

/// Who handles the halt of a vCPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halts {
    /// The kernel, which polls for up to so long first (`KVM_CAP_HALT_POLL`).
    InKernel(Nanos),
    /// The VMM's thread, under a policy of its own.
    InUserSpace(Rule),
}

/// How a vCPU idles.
///
/// Written as parts with `+` between them: `host:NS` (halts in the kernel, which polls up to NS; without it NS is 0),
/// `user:POLICY` (halts come to user space, which polls by the policy), `guest:POLICY` (the guest polls before it halts),
/// `no-poll-control` (the guest forbids its host to poll, `MSR_KVM_POLL_CONTROL` = 0).
///
/// POLICY is `never`, `always`, `fixed=NS`, `ski-rental=NS`, or a rule with what differs from its defaults: `kvm`,
/// `haltpoll`, `aio`, `kvm@5.10,halt_poll_ns=50us`. Policies that learn are told what a halt is worth, and how late they
/// learn of a wake that they slept through: `savings@20us`, `leader@20us,late=12us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Who handles its halts.
    pub halts: Halts,
    /// The policy by which the guest polls.
    pub guest: Option<Rule>,
    /// Whether the guest lets its host poll; `None`: it says nothing, which means yes.
    pub poll_control: Option<bool>,
}

/// Why a text does not say how to idle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseIdleError {
    /// A part that is not known.
    #[error(
        "`{0}` is no way to idle; write parts with + between them: host:200us, user:POLICY, guest:POLICY, no-poll-control"
    )]
    Part(String),
    /// A policy that is not known.
    #[error(
        "`{0}` is no policy; write never, always, fixed=20us, ski-rental=20us, savings@20us, leader@20us (with ,late=10us \
         where a halted idler learns of its wake so late), kvm, haltpoll or aio, the last three with NAME=VALUE after commas \
         and @VERSION after their name, such as kvm@5.10,halt_poll_ns=50us"
    )]
    Policy(String),
    /// A duration that cannot be read.
    #[error("`{text}` {source}")]
    Duration {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: ParseNanosError,
    },
    /// A version that cannot be read.
    #[error("`{0}` is no version; write it as 6.11")]
    Version(String),
    /// A parameter that cannot be set so.
    #[error("`{text}`: {source}")]
    Parameter {
        /// What was given.
        text: String,
        /// What is wrong with it.
        source: SetError,
    },
    /// Parts that exclude each other.
    #[error("{0}")]
    Conflict(&'static str),
}

impl Idle {
    /// Halts in the kernel, which polls up to so long.
    pub const fn host(halt_poll_ns: u32) -> Idle {
        Idle { halts: Halts::InKernel(Nanos(halt_poll_ns as u64)), guest: None, poll_control: None }
    }

    /// The guest polls by a rule; its host does not.
    pub const fn guest(rule: Rule) -> Idle {
        Idle { halts: Halts::InKernel(Nanos::ZERO), guest: Some(rule), poll_control: None }
    }

    /// Halts come to user space, which polls by a rule.
    pub const fn user(rule: Rule) -> Idle {
        Idle { halts: Halts::InUserSpace(rule), guest: None, poll_control: None }
    }

    /// The machine that it needs.
    pub fn machine(&self) -> Options {
        match self.halts {
            Halts::InKernel(ns) => Options {
                halt_poll_ns: Some(u32::try_from(ns.get()).unwrap_or(u32::MAX)),
                halts_in_user_space: false,
            },
            Halts::InUserSpace(_) => Options { halt_poll_ns: None, halts_in_user_space: true },
        }
    }

    /// The same with another maximum of the host's polling.
    #[must_use]
    pub const fn above_host(mut self, halt_poll_ns: u32) -> Idle {
        self.halts = Halts::InKernel(Nanos(halt_poll_ns as u64));
        self
    }

    /// The same, with the guest's word to its host whether it may poll.
    #[must_use]
    pub const fn poll_control(mut self, allowed: bool) -> Idle {
        self.poll_control = Some(allowed);
        self
    }
}

impl FromStr for Idle {
    type Err = ParseIdleError;

    fn from_str(text: &str) -> Result<Idle, ParseIdleError> {
        let (mut host, mut user, mut guest, mut poll_control) = (None, None, None, None);
        for part in text.split('+').map(str::trim) {
            let twice =
                match part.split_once(':').map_or((part, ""), |(kind, rest)| (kind.trim(), rest.trim())) {
                    ("host", ns) => host.replace(duration(ns)?).is_some(),
                    ("user", policy) => user.replace(rule(policy)?).is_some(),
                    ("guest", policy) => guest.replace(rule(policy)?).is_some(),
                    ("no-poll-control", "") => poll_control.replace(false).is_some(),
                    _ => return Err(ParseIdleError::Part(part.to_owned())),
                };
            if twice {
                return Err(ParseIdleError::Conflict("each part may stand once"));
            }
        }
        let halts = match (host, user) {
            (Some(_), Some(_)) => {
                return Err(ParseIdleError::Conflict(
                    "halts are handled either in the kernel (host:) or in user space (user:)",
                ));
            }
            (_, Some(rule)) => Halts::InUserSpace(rule),
            (host, None) => Halts::InKernel(host.unwrap_or(Nanos::ZERO)),
        };
        if matches!(halts, Halts::InUserSpace(_)) && poll_control.is_some() {
            return Err(ParseIdleError::Conflict("no-poll-control speaks to the kernel's polling (host:)"));
        }
        if let Halts::InKernel(ns) = halts {
            u32::try_from(ns.get())
                .map_err(|_| ParseIdleError::Conflict("host: takes at most 4294967295 ns"))?;
        }
        Ok(Idle { halts, guest, poll_control })
    }
}

fn duration(text: &str) -> Result<Nanos, ParseIdleError> {
    text.parse().map_err(|source| ParseIdleError::Duration { text: text.to_owned(), source })
}

/// A policy as text.
///
/// # Errors
/// [`ParseIdleError`], with what is wrong.
pub fn rule(text: &str) -> Result<Rule, ParseIdleError> {
    let unknown = || ParseIdleError::Policy(text.to_owned());
    let (name, values) = text.split_once(',').map_or((text, None), |(name, values)| (name, Some(values)));
    let (name, version) = name.split_once('@').map_or((name, None), |(name, version)| (name, Some(version)));
    let layer = match name.trim() {
        "kvm" => Layer::Host,
        "haltpoll" => Layer::Guest,
        "aio" => Layer::Iothread,
        "savings" => return Ok(Rule::Savings(terms(version, values).ok_or_else(unknown)??)),
        "leader" => return Ok(Rule::Leader(terms(version, values).ok_or_else(unknown)??)),
        simple => {
            if version.is_some() || values.is_some() {
                return Err(unknown());
            }
            return match simple.split_once('=').map_or((simple, None), |(name, ns)| (name, Some(ns))) {
                ("never", None) => Ok(Rule::Never),
                ("always", None) => Ok(Rule::Always),
                ("fixed", Some(ns)) => Ok(Rule::Fixed(duration(ns)?)),
                ("ski-rental", Some(ns)) => Ok(Rule::SkiRental(duration(ns)?)),
                _ => Err(unknown()),
            };
        }
    };
    let version = match version {
        Some(text) => Version::parse(text).ok_or_else(|| ParseIdleError::Version(text.to_owned()))?,
        None if layer == Layer::Iothread => NEWEST_QEMU,
        None => NEWEST_KERNEL,
    };
    let mut setting = Setting::defaults(layer, version);
    for part in values.into_iter().flat_map(|values| values.split(',')) {
        let (name, value) = part.split_once('=').ok_or_else(unknown)?;
        let value = value
            .trim()
            .parse()
            .or_else(|_| duration(value.trim()).map(|ns| i64::try_from(ns.get()).unwrap_or(i64::MAX)))?;
        let wrong = |source| ParseIdleError::Parameter { text: part.trim().to_owned(), source };
        setting.set(name.trim(), value).map_err(wrong)?;
    }
    Ok(Rule::Layer(setting))
}

/// What a policy that learns is told: the price after its name, and `late=`; `None` where it is not told so.
fn terms(price: Option<&str>, values: Option<&str>) -> Option<Result<Terms, ParseIdleError>> {
    let late = match values.map(|values| values.split_once('=')) {
        None => "0",
        Some(Some((name, late))) if name.trim() == "late" => late.trim(),
        Some(_) => return None,
    };
    let terms = |price: &str| Ok(Terms { halt_cost: duration(price.trim())?, wake_latency: duration(late)? });
    price.map(terms)
}

impl fmt::Display for Idle {
    /// As it is parsed; of a rule only what differs from its defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plus = "";
        if let Some(rule) = &self.guest {
            write!(f, "guest:{}", Written(rule))?;
            plus = "+";
        }
        match &self.halts {
            Halts::InKernel(Nanos(0)) if self.guest.is_some() => {}
            Halts::InKernel(ns) => write!(f, "{plus}host:{}", Typed(*ns))?,
            Halts::InUserSpace(rule) => write!(f, "{plus}user:{}", Written(rule))?,
        }
        if self.poll_control == Some(false) { f.write_str("+no-poll-control") } else { Ok(()) }
    }
}

/// A rule as it is parsed, with all its parameters.
pub(crate) struct Written<'r>(pub(crate) &'r Rule);

impl fmt::Display for Written<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Rule::Fixed(ns) => write!(f, "fixed={}", Typed(*ns)),
            Rule::SkiRental(ns) => write!(f, "ski-rental={}", Typed(*ns)),
            Rule::Savings(terms) | Rule::Leader(terms) => {
                write!(f, "{}@{}", self.0.name(), Typed(terms.halt_cost))?;
                if terms.wake_latency == Nanos::ZERO {
                    return Ok(());
                }
                write!(f, ",late={}", Typed(terms.wake_latency))
            }
            Rule::Layer(setting) => {
                let (name, newest) = match setting.layer() {
                    Layer::Host => ("kvm", NEWEST_KERNEL),
                    Layer::Guest => ("haltpoll", NEWEST_KERNEL),
                    Layer::Timer | Layer::Iothread => ("aio", NEWEST_QEMU),
                };
                f.write_str(name)?;
                if setting.version() != newest {
                    write!(f, "@{}", setting.version())?;
                }
                let defaults = Setting::defaults(setting.layer(), setting.version());
                let mut set =
                    setting.iter().filter(|(param, value)| defaults.get(param.name) != Some(*value));
                set.try_for_each(|(param, value)| write!(f, ",{}={value}", param.name))
            }
            rule => f.write_str(rule.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "host:0",
            "host:200us",
            "guest:fixed=20us",
            "guest:always+host:200us+no-poll-control",
            "user:ski-rental=1500ns",
            "guest:never+user:never",
            "guest:haltpoll",
            "guest:aio@7.2",
            "user:kvm@5.10,halt_poll_ns=50000",
            "user:savings@20us",
            "guest:leader@20us,late=12us",
        ] {
            let idle: Idle = text.parse().unwrap();
            assert_eq!(idle.to_string(), text);
        }
        let idle: Idle = "user:kvm@5.10,halt_poll_ns=50us + guest:haltpoll".parse().unwrap();
        let again: Idle = idle.to_string().parse().unwrap();
        assert_eq!(again, idle);
        let Halts::InUserSpace(Rule::Layer(setting)) = idle.halts else { unreachable!() };
        assert_eq!(setting.get("halt_poll_ns"), Some(50_000));
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, error) in [
            ("", "is no way to idle"),
            ("host", "is no duration"),
            ("host:5 minutes", "is no duration"),
            ("host:5s", "at most 4294967295"),
            ("guest:fixed", "is no policy"),
            ("guest:never,x=1", "is no policy"),
            ("user:kvm,halt_pol_ns=1", "halt_pol_ns"),
            ("user:kvm@x", "is no version"),
            ("user:leader", "leader@20us"),
            ("user:savings@5 minutes", "is no duration"),
            ("user:leader@20us,early=3us", "late=10us"),
            ("user:leader@20us,late=soon", "is no duration"),
            ("user:never+host:0", "either in the kernel"),
            ("host:0+host:0", "stand once"),
            ("user:never+no-poll-control", "kernel's polling"),
        ] {
            let told = text.parse::<Idle>().unwrap_err().to_string();
            assert!(told.contains(error), "{text}: {told}");
        }
    }
}
