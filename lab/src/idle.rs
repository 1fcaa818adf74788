//! How a vCPU of the lab idles: written as text, tried as an arm.

use crate::vm::Options;
use dwell_policy::{Nanos, ParseNanosError};
use dwell_replay::{ParseRuleError, Rule};
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
/// `user:POLICY` (halts come to user space, which polls by the policy), `guest:POLICY` (the guest polls
/// before it halts), `no-poll-control` (the guest forbids its host to poll, `MSR_KVM_POLL_CONTROL` = 0).
///
/// POLICY is a policy of the [catalogue](dwell_replay::catalogue), such as `fixed=20us`, `leader@20us,late=12us` or
/// `kvm@5.10,halt_poll_ns=50us`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idle {
    /// Who handles its halts.
    pub halts: Halts,
    /// The policy by which the guest polls.
    pub guest: Option<Rule>,
    /// Whether the guest lets its host poll; `None`: it does not write the MSR, so the host may poll.
    pub poll_control: Option<bool>,
}

/// Why a text is not a way to idle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseIdleError {
    /// A part that is not known.
    #[error(
        "`{0}` is not a way to idle; write parts with + between them: host:200us, user:POLICY, guest:POLICY, no-poll-control"
    )]
    Part(String),
    /// A policy that cannot be read.
    #[error(transparent)]
    Policy(#[from] ParseRuleError),
    /// A duration that cannot be read.
    #[error("`{text}` {source}")]
    Duration {
        text: String,
        /// What is wrong with it.
        source: ParseNanosError,
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

    /// The same, with the value that the guest writes to `MSR_KVM_POLL_CONTROL`.
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
                    ("user", policy) => user.replace(policy.parse()?).is_some(),
                    ("guest", policy) => guest.replace(policy.parse()?).is_some(),
                    ("no-poll-control", "") => poll_control.replace(false).is_some(),
                    _ => return Err(ParseIdleError::Part(part.to_owned())),
                };
            if twice {
                return Err(ParseIdleError::Conflict("each part may be given once"));
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

/// A duration in an arm.
pub(crate) fn duration(text: &str) -> Result<Nanos, ParseIdleError> {
    text.parse().map_err(|source| ParseIdleError::Duration { text: text.to_owned(), source })
}

impl fmt::Display for Idle {
    /// As it is parsed; of a rule only what differs from its defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut plus = "";
        if let Some(rule) = &self.guest {
            write!(f, "guest:{rule}")?;
            plus = "+";
        }
        match &self.halts {
            Halts::InKernel(Nanos(0)) if self.guest.is_some() => {}
            Halts::InKernel(ns) => write!(f, "{plus}host:{ns:#}")?,
            Halts::InUserSpace(rule) => write!(f, "{plus}user:{rule}")?,
        }
        if self.poll_control == Some(false) { f.write_str("+no-poll-control") } else { Ok(()) }
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
            ("", "is not a way to idle"),
            ("host", "is not a duration"),
            ("host:5 minutes", "is not a duration"),
            ("host:5s", "at most 4294967295"),
            ("guest:fixed", "write fixed=TIME"),
            ("guest:never,x=1", "write never"),
            ("user:kvm,halt_pol_ns=1", "halt_pol_ns"),
            ("user:kvm@x", "is not a version"),
            ("user:leader", "leader@TIME"),
            ("user:savings@5 minutes", "is not a duration"),
            ("user:leader@20us,early=3us", "late=TIME"),
            ("user:leader@20us,late=soon", "is not a duration"),
            ("user:never+host:0", "either in the kernel"),
            ("host:0+host:0", "be given once"),
            ("user:never+no-poll-control", "kernel's polling"),
        ] {
            let told = text.parse::<Idle>().unwrap_err().to_string();
            assert!(told.contains(error), "{text}: {told}");
        }
    }
}
