//! Policies as text: `leader@20us,late=12us`, `kvm@6.18,halt_poll_ns=50us`.
//!
//! The policies and how each is written come from [`dwell_policy::catalogue`], which has one line for each. A
//! [`Catalogue`] reads a [`Rule`] from text by them; [`Catalogue::with`] adds a policy of your own, which
//! then has all that the others have here.

use crate::rule::Rule;
use crate::versions::Versions;
use dwell_policy::catalogue::{Entry, POLICIES, Start, Terms, of_layer};
use dwell_policy::param::{self, ParseValueError, SetError, Setting, known_version};
use dwell_policy::version::{UnknownVersion, Version};
use dwell_policy::{Layer, Nanos, ParseNanosError};
use std::fmt;
use std::str::FromStr;

/// The policies that text can name.
#[derive(Clone, Debug)]
pub struct Catalogue {
    entries: Vec<&'static Entry>,
}

/// Why a text is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// No policy has this name; those that there are, as each is written.
    #[error("`{name}` is not a policy; there are {known}")]
    Unknown { name: String, known: String },
    /// The policy is written in another way, which is this.
    #[error("`{text}` is not how to write this policy; write {grammar}")]
    Grammar { text: String, grammar: String },
    /// A time cannot be read.
    #[error("`{text}` {source}")]
    Time { text: String, source: ParseNanosError },
    /// A version cannot be read.
    #[error("`{0}` is not a version; write it as 6.18")]
    Version(String),
    /// The rule of a version is not known.
    #[error("`{text}` is {source}")]
    UnknownVersion { text: String, source: UnknownVersion },
    /// A parameter's value cannot be read.
    #[error("`{text}`: {source}")]
    Value { text: String, source: ParseValueError },
    /// A parameter cannot be set so.
    #[error("`{text}`: {source}")]
    Parameter { text: String, source: SetError },
}

impl Default for Catalogue {
    /// [`POLICIES`].
    fn default() -> Catalogue {
        Catalogue { entries: POLICIES.iter().collect() }
    }
}

impl Catalogue {
    /// The same and one more policy. Its name takes precedence over an earlier one.
    #[must_use]
    pub fn with(mut self, entry: &'static Entry) -> Catalogue {
        self.entries.retain(|other| *other != entry);
        self.entries.push(entry);
        self
    }

    /// The policies, in the order in which they are listed.
    pub fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        self.entries.iter().copied()
    }

    /// How each policy is written, with commas between them: for help and error messages.
    pub fn grammar(&self) -> String {
        self.entries().map(|entry| entry.grammar().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The policy that a text names.
    ///
    /// # Errors
    /// [`ParseRuleError`].
    pub fn rule(&self, text: &str) -> Result<Rule, ParseRuleError> {
        let text = text.trim();
        let end = text.find(['@', '=', ',']).unwrap_or(text.len());
        let (name, rest) = text.split_at(end);
        let entry = self
            .entries()
            .find(|entry| entry.name == name.trim())
            .ok_or_else(|| ParseRuleError::Unknown { name: name.trim().to_owned(), known: self.grammar() })?;
        let terms = match entry.start {
            Start::Alone(_) if rest.is_empty() => Terms::default(),
            Start::Window(_) => {
                Terms::at(time(rest.strip_prefix('=').ok_or_else(|| unwritten(text, entry))?)?)
            }
            Start::Learner(_) => learner(text, rest, entry)?,
            Start::Rule(layer, _) => return layer_rule(text, rest, layer, entry),
            _ => return Err(unwritten(text, entry)),
        };
        Ok(Rule::Policy(entry, terms))
    }
}

fn unwritten(text: &str, entry: &Entry) -> ParseRuleError {
    ParseRuleError::Grammar { text: text.to_owned(), grammar: entry.grammar().to_string() }
}

fn time(text: &str) -> Result<Nanos, ParseRuleError> {
    let text = text.trim();
    text.parse().map_err(|source| ParseRuleError::Time { text: text.to_owned(), source })
}

/// `@20us,late=12us`.
fn learner(text: &str, rest: &str, entry: &Entry) -> Result<Terms, ParseRuleError> {
    let unwritten = || unwritten(text, entry);
    let values = rest.strip_prefix('@').ok_or_else(unwritten)?;
    let (halt_cost, late) = values.split_once(',').map_or((values, None), |(cost, late)| (cost, Some(late)));
    let late = match late.map(|late| late.split_once('=')) {
        None => "0",
        Some(Some((name, late))) if name.trim() == "late" => late,
        Some(_) => return Err(unwritten()),
    };
    Ok(Terms { halt_cost: time(halt_cost)?, wake_latency: time(late)? })
}

/// `@6.18,halt_poll_ns=50us`.
fn layer_rule(text: &str, rest: &str, layer: Layer, entry: &Entry) -> Result<Rule, ParseRuleError> {
    let (version, values) = match rest.strip_prefix('@') {
        None => (Versions::NEWEST.of(layer), rest),
        Some(rest) => {
            let (text, values) = rest.split_at(rest.find(',').unwrap_or(rest.len()));
            let text = text.trim();
            let version = Version::parse(text).ok_or_else(|| ParseRuleError::Version(text.to_owned()))?;
            known_version(layer, version)
                .map_err(|source| ParseRuleError::UnknownVersion { text: text.to_owned(), source })?;
            (version, values)
        }
    };
    let mut setting = Setting::defaults(layer, version);
    // What is before the first comma is nothing, or the text goes on in another way.
    let mut values = values.split(',');
    if values.next() != Some("") {
        return Err(unwritten(text, entry));
    }
    for part in values {
        let (name, value) = part.split_once('=').ok_or_else(|| unwritten(text, entry))?;
        let (text, name) = (part.trim().to_owned(), name.trim());
        let number = match param::index_of(layer, name) {
            Some(index) => param::table(layer)[index]
                .parse(value)
                .map_err(|source| ParseRuleError::Value { text: text.clone(), source })?,
            None => 0,
        };
        setting.set(name, number).map_err(|source| ParseRuleError::Parameter { text, source })?;
    }
    Ok(Rule::Layer(setting))
}

impl FromStr for Rule {
    type Err = ParseRuleError;

    /// One of [`POLICIES`] as it is written.
    ///
    /// ```
    /// use dwell_replay::Rule;
    /// let rule: Rule = "kvm@5.10,halt_poll_ns=50us".parse()?;
    /// assert_eq!(rule.to_string(), "kvm@5.10,halt_poll_ns=50000");
    /// assert!("kvn".parse::<Rule>().is_err());
    /// # Ok::<(), dwell_replay::ParseRuleError>(())
    /// ```
    fn from_str(text: &str) -> Result<Rule, ParseRuleError> {
        Catalogue::default().rule(text)
    }
}

impl fmt::Display for Rule {
    /// As it is parsed; of a layer's rule only what differs from the defaults. Rules that are not in the catalogue are
    /// written as their name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Policy(entry, terms) => match entry.start {
                Start::Window(_) => write!(f, "{}={:#}", entry.name, terms.halt_cost),
                Start::Learner(_) => {
                    write!(f, "{}@{:#}", entry.name, terms.halt_cost)?;
                    if terms.wake_latency == Nanos::ZERO {
                        return Ok(());
                    }
                    write!(f, ",late={:#}", terms.wake_latency)
                }
                _ => f.write_str(entry.name),
            },
            Rule::Layer(setting) => {
                f.write_str(of_layer(setting.layer()).map_or("", |entry| entry.name))?;
                if setting.version() != Versions::NEWEST.of(setting.layer()) {
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
            "never",
            "always",
            "fixed=20us",
            "ski-rental=1500ns",
            "savings@20us",
            "leader@20us,late=12us",
            "kvm",
            "haltpoll@6.1",
            "aio@7.2",
            "kvm@5.10,halt_poll_ns=50000",
            "aio,poll-weight=5",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
        let rule: Rule = " kvm@5.10 , halt_poll_ns = 50us ".parse().unwrap();
        assert_eq!(rule, "kvm@5.10,halt_poll_ns=50000".parse().unwrap());
    }

    #[test]
    fn every_policy_can_be_written_as_its_grammar_says() {
        for entry in Catalogue::default().entries() {
            let grammar = entry.grammar().to_string();
            let shortest = grammar.split('[').next().unwrap().replace("TIME", "20us");
            let rule: Rule = shortest.parse().unwrap();
            assert!(rule.start(1).is_ok() && rule.name().starts_with(entry.name), "{shortest}");
            if let Start::Learner(_) = entry.start {
                assert_eq!(
                    format!("{shortest},late=5us").parse::<Rule>().unwrap().values()[1],
                    ("wake_latency_ns", 5_000)
                );
            }
        }
    }

    #[test]
    fn errors_name_what_can_be_written() {
        for (text, error) in [
            ("", "there are never, always, fixed=TIME"),
            ("kvn", "kvm[@VERSION][,NAME=VALUE]..."),
            ("never=5us", "write never"),
            ("never,x=1", "write never"),
            ("fixed", "write fixed=TIME"),
            ("fixed@5us", "write fixed=TIME"),
            ("fixed=5 minutes", "not a duration"),
            ("leader", "write leader@TIME[,late=TIME]"),
            ("leader=20us", "write leader@TIME[,late=TIME]"),
            ("leader@20us,early=3us", "write leader@TIME[,late=TIME]"),
            ("savings@soon", "not a duration"),
            ("kvm=5", "write kvm[@VERSION]"),
            ("kvm,5", "write kvm[@VERSION]"),
            ("kvm@x", "not a version"),
            ("kvm@4.19", "5.4 to 7.3"),
            ("aio@12.0", "2.9 to 11.1"),
            ("kvm,halt_pol_ns=1", "it has halt_poll_ns"),
            ("kvm,halt_poll_ns=two", "such as 200us"),
            ("kvm,halt_poll_ns=5s", "out of range"),
            ("aio@10.0,poll-weight=2", "11.1"),
        ] {
            let why = text.parse::<Rule>().unwrap_err().to_string();
            assert!(why.contains(error), "{text}: {why}");
        }
    }
}
