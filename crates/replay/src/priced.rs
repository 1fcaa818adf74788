//! A policy with its figures: the row of every table, object and plan.
//!
//! [`Counts`] are what a policy did; [`Pricing`] turns them into a [`Priced`] row: rates over the time
//! recorded, cost at a halt cost, latency added by halts. [`Values`] is a setting by the names of its
//! parameters, and its one serialisation.

use crate::counts::Counts;
use crate::latency::{self, Latencies};
use crate::rule::Rule;
use dwell_policy::param::{self, SetError, Setting};
use dwell_policy::version::Version;
use dwell_policy::{Nanos, Owner};
use dwell_recording::{Chunk, ReadError, Reader};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The values of a setting by the names of its parameters, each in the parameter's own unit; switches are 0 and 1.
///
/// ```
/// use dwell_policy::{Layer, param::Setting, version::Version};
/// use dwell_replay::Values;
///
/// let setting = Setting::defaults(Layer::Guest, Version::new(6, 18));
/// let values = Values::from(&setting);
/// assert_eq!(values.get("guest_halt_poll_ns"), Some(200_000));
/// assert_eq!(values.setting(Layer::Guest, Version::new(6, 18)), Ok(setting));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Values(BTreeMap<String, i64>);

impl Values {
    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<i64> {
        self.0.get(name).copied()
    }

    /// Gives a name a value, whether it has one or not.
    pub fn insert(&mut self, name: &str, value: i64) {
        self.0.insert(name.to_owned(), value);
    }

    /// Names and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// Whether there is none, as for a policy without parameters.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those that another setting does not have, or has with another value.
    #[must_use]
    pub fn differing_from(&self, other: &Values) -> Values {
        let differs = |(name, value): &(&String, &i64)| other.0.get(*name) != Some(*value);
        Values(self.0.iter().filter(differs).map(|(name, value)| (name.clone(), *value)).collect())
    }

    /// As a setting of a layer's rule, or of timers, over the defaults of a version.
    ///
    /// # Errors
    /// [`SetError`] for a parameter that the version does not have, and for a value out of its range.
    pub fn setting<O: Copy + Into<Owner>>(&self, owner: O, version: Version) -> Result<Setting<O>, SetError> {
        let mut setting = Setting::defaults(owner, version);
        for (name, value) in self.iter() {
            setting.set(name, value)?;
        }
        Ok(setting)
    }
}

impl<O: Copy + Into<Owner>> From<&Setting<O>> for Values {
    fn from(setting: &Setting<O>) -> Values {
        setting.iter().map(|(param, value)| (param.name.to_owned(), value)).collect()
    }
}

impl From<&Rule> for Values {
    fn from(rule: &Rule) -> Values {
        rule.values().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

impl FromIterator<(String, i64)> for Values {
    fn from_iter<I: IntoIterator<Item = (String, i64)>>(values: I) -> Values {
        Values(values.into_iter().collect())
    }
}

/// `halt_poll_ns=200000 halt_poll_ns_grow=2 …`; nothing without values.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, value)) in self.iter().enumerate() {
            write!(f, "{}{name}=", if number == 0 { "" } else { " " })?;
            match param::find(name).and_then(|param| param.name_of(value)) {
                Some(of_number) => f.write_str(of_number)?,
                None => write!(f, "{value}")?,
            }
        }
        Ok(())
    }
}

/// A text is no list of values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not `name=value` with a whole number")]
pub struct ParseValuesError(String);

impl FromStr for Values {
    type Err = ParseValuesError;

    fn from_str(text: &str) -> Result<Values, ParseValuesError> {
        let pair = |pair: &str| -> Option<(String, i64)> {
            let (name, value) = pair.split_once('=')?;
            let number = value.parse().ok().or_else(|| param::find(name)?.parse_name(value));
            Some((name.to_owned(), number?))
        };
        let pairs = text.split_whitespace();
        pairs.map(|text| pair(text).ok_or_else(|| ParseValuesError(text.to_owned()))).collect()
    }
}

dwell_policy::named! {
    /// A figure that is predicted, limited and promised. In JSON and plans it has the name of [`Figure::name`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Figure {
        /// Polling CPU plus halts at their cost \[ns/s\].
        #[serde(rename = "cost_ns_per_s")]
        Cost = "cost_ns_per_s",
        /// CPU time polled \[ns/s\].
        #[serde(rename = "polling_ns_per_s")]
        PollingCpu = "polling_ns_per_s",
        /// Halts a second; of an I/O thread, sleeps.
        #[serde(rename = "halts_per_s")]
        Halts = "halts_per_s",
    }

    /// Its name in results, with its unit.
    pub fn name
}

impl Figure {
    /// Its name in a sentence.
    pub const fn words(self) -> &'static str {
        match self {
            Figure::Cost => "cost",
            Figure::PollingCpu => "polling CPU",
            Figure::Halts => "halts",
        }
    }

    /// Its value in a row.
    pub const fn of(self, priced: &Priced) -> f64 {
        match self {
            Figure::Cost => priced.cost_ns_per_s,
            Figure::PollingCpu => priced.polling_ns_per_s,
            Figure::Halts => priced.halts_per_s,
        }
    }
}

/// What one policy does over a stretch of a recording, and what that costs. Rates are over the time recorded,
/// of all idlers together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Priced {
    pub episodes: u64,
    /// Episodes that began with a poll.
    pub polls: u64,
    /// Of those, the ones in which the wakeup came within the window.
    pub polls_succeeded: u64,
    /// CPU time polled \[ns\].
    #[serde(with = "long")]
    pub polled_ns: u128,
    /// Episodes that ended in a halt.
    pub halts: u64,
    /// Of a guest above a host that may poll: how often the guest left its CPU to the host; else the halts.
    pub exits: u64,
    /// CPU time polled \[ns/s\].
    pub polling_ns_per_s: f64,
    /// Halts a second.
    pub halts_per_s: f64,
    /// Latency that halts add to wakeups, mean over all episodes \[ns\].
    pub mean_added_latency_ns: f64,
    /// The same, which 99 of 100 wakeups do not exceed \[ns\].
    pub p99_added_latency_ns: u64,
    /// Polling CPU plus halts at their cost \[ns\].
    #[serde(with = "long")]
    pub cost_ns: u128,
    /// The same \[ns/s\].
    pub cost_ns_per_s: f64,
    /// Cost by that of the optimum; nothing where that costs nothing.
    #[serde(default)]
    pub cost_over_optimum: Option<f64>,
}

impl Priced {
    /// Polls that succeeded, of all; nothing without polls.
    pub fn success_share(&self) -> Option<f64> {
        (self.polls > 0).then(|| self.polls_succeeded as f64 / self.polls as f64)
    }

    /// Polling CPU as a share of one CPU.
    pub const fn polling_share(&self) -> f64 {
        self.polling_ns_per_s / 1e9
    }

    /// Cost as a share of one CPU.
    pub const fn cost_share(&self) -> f64 {
        self.cost_ns_per_s / 1e9
    }

    /// Whether every figure is a finite number, which TOML does not warrant.
    pub fn is_finite(&self) -> bool {
        let figures =
            [self.polling_ns_per_s, self.halts_per_s, self.mean_added_latency_ns, self.cost_ns_per_s];
        figures.into_iter().chain(self.cost_over_optimum).all(f64::is_finite)
    }
}

/// What turns [`Counts`] into figures.
#[derive(Clone, Debug, PartialEq)]
pub struct Pricing<'a> {
    /// What one halt and wakeup costs in CPU time.
    pub halt_cost: Nanos,
    /// The latency that a halt adds to a wakeup.
    pub wakeup_latency: &'a WakeupLatency,
    /// The time recorded \[ns\].
    pub span_ns: u64,
    /// What the optimum costs over the same episodes \[ns\].
    pub optimum_ns: u128,
}

impl Pricing<'_> {
    /// The figures of a policy.
    pub fn price(&self, counts: &Counts) -> Priced {
        let seconds = self.span_ns.max(1) as f64 / 1e9;
        let cost_ns = counts.cost_ns(self.halt_cost);
        Priced {
            episodes: counts.episodes,
            polls: counts.polls,
            polls_succeeded: counts.polls_succeeded,
            polled_ns: counts.polled_ns,
            halts: counts.halts,
            exits: counts.exits,
            polling_ns_per_s: counts.polled_ns as f64 / seconds,
            halts_per_s: counts.halts as f64 / seconds,
            mean_added_latency_ns: self.wakeup_latency.mean_added_ns(counts),
            p99_added_latency_ns: self.wakeup_latency.p99_added_ns(counts),
            cost_ns,
            cost_ns_per_s: cost_ns as f64 / seconds,
            cost_over_optimum: (self.optimum_ns > 0).then(|| cost_ns as f64 / self.optimum_ns as f64),
        }
    }

    /// The row of a rule.
    pub fn row(&self, rule: &Rule, counts: &Counts) -> Row {
        Row { policy: rule.name().to_owned(), setting: Values::from(rule), figures: self.price(counts) }
    }
}

/// A policy with its setting and its figures.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    pub policy: String,
    pub setting: Values,
    #[serde(flatten)]
    pub figures: Priced,
}

/// The latency that a halt adds to its wakeup: one value for all halts, or what a recording has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeupLatency {
    /// In order of size, not empty.
    sorted_ns: Vec<u64>,
    /// How many latencies were recorded; more than are kept of a long recording.
    recorded: u64,
}

/// So many latencies of a recording are kept; of more, every second, fourth and so on.
const KEPT: usize = 1 << 16;

/// Some of many numbers, evenly.
pub(crate) struct Sample {
    kept: Vec<u64>,
    most: usize,
    /// One in 2 to the power of this is kept.
    thinned: u32,
    seen: u64,
}

impl Sample {
    /// Of at most `most`.
    pub(crate) fn new(most: usize) -> Sample {
        Sample { kept: vec![], most, thinned: 0, seen: 0 }
    }

    pub(crate) fn add(&mut self, latency_ns: u64) {
        if self.seen.is_multiple_of(1 << self.thinned) {
            self.kept.push(latency_ns);
        }
        self.seen += 1;
        if self.kept.len() > self.most {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.thinned += 1;
        }
    }

    /// How many there were.
    pub(crate) const fn seen(&self) -> u64 {
        self.seen
    }

    pub(crate) fn sorted(mut self) -> Vec<u64> {
        self.kept.sort_unstable();
        self.kept
    }
}

impl WakeupLatency {
    /// The same for every halt.
    pub fn constant(latency: Nanos) -> WakeupLatency {
        WakeupLatency { sorted_ns: vec![latency.get()], recorded: 0 }
    }

    /// Those of the halts of a recording; `None` where it has none.
    ///
    /// # Errors
    /// [`ReadError`] if the recording cannot be read.
    pub fn of_recording(reader: &Reader) -> Result<Option<WakeupLatency>, ReadError> {
        let (mut chunk, mut sample) = (Chunk::default(), Sample::new(KEPT));
        for row_group in 0..reader.row_groups() {
            reader.read(row_group, Latencies::COLUMNS, &mut chunk)?;
            (0..chunk.rows).filter_map(|row| latency::recorded(&chunk, row)).for_each(|ns| sample.add(ns));
        }
        Ok(WakeupLatency::of(sample))
    }

    fn of(sample: Sample) -> Option<WakeupLatency> {
        let recorded = sample.seen;
        let sorted_ns = sample.sorted();
        (!sorted_ns.is_empty()).then_some(WakeupLatency { sorted_ns, recorded })
    }

    /// How many were recorded; 0 for one value that was given.
    pub const fn recorded_halts(&self) -> u64 {
        self.recorded
    }

    /// Mean of a halt \[ns\].
    pub fn mean_ns(&self) -> f64 {
        self.sorted_ns.iter().map(|&ns| ns as f64).sum::<f64>() / self.sorted_ns.len().max(1) as f64
    }

    /// Mean over all episodes \[ns\], if each halt adds its latency and a successful poll nothing.
    fn mean_added_ns(&self, counts: &Counts) -> f64 {
        if counts.episodes == 0 {
            return 0.0;
        }
        counts.halts as f64 * self.mean_ns() / counts.episodes as f64
    }

    /// What 99 of 100 wakeups stay within \[ns\], under the same model.
    fn p99_added_ns(&self, counts: &Counts) -> u64 {
        let (halts, episodes) = (u128::from(counts.halts), u128::from(counts.episodes));
        if halts * 100 <= episodes {
            return 0;
        }
        // Of the halts, so many may exceed it: one hundredth of the episodes.
        let kept = self.sorted_ns.len() as u128;
        let beyond = episodes * kept / (100 * halts);
        let at = (kept - 1).saturating_sub(beyond);
        usize::try_from(at).ok().and_then(|at| self.sorted_ns.get(at)).copied().unwrap_or(0)
    }
}

/// Sums of time have 128 bits; TOML and most readers of JSON have 64, which hold what any real recording sums up to.
mod long {
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref)] // serde calls it with a reference.
    pub(super) fn serialize<S: Serializer>(number: &u128, out: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(*number) {
            Ok(short) => out.serialize_u64(short),
            Err(_) => out.serialize_u128(*number),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u128, D::Error> {
        u64::deserialize(input).map(u128::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept_of(latencies_ns: impl IntoIterator<Item = u64>) -> Option<WakeupLatency> {
        let mut sample = Sample::new(KEPT);
        latencies_ns.into_iter().for_each(|latency_ns| sample.add(latency_ns));
        WakeupLatency::of(sample)
    }

    fn counts(episodes: u64, halts: u64) -> Counts {
        Counts {
            episodes,
            halts,
            exits: halts,
            polls: episodes,
            polls_succeeded: episodes - halts,
            ..Counts::default()
        }
    }

    #[test]
    fn latency_is_the_recorded_distribution_of_halts() {
        let recorded = kept_of((1..=100).map(|n| n * 1_000)).unwrap();
        assert!((recorded.mean_added_ns(&counts(200, 100)) - 25_250.0).abs() < 1e-6);
        // Of 1000 episodes 10 may exceed it; if 100 halt, these are the longest tenth of the halts.
        assert_eq!(recorded.p99_added_ns(&counts(1_000, 100)), 90_000);
        assert_eq!(recorded.p99_added_ns(&counts(1_000, 10)), 0);
        assert_eq!(recorded.p99_added_ns(&counts(1_000, 1_000)), 99_000);
        assert_eq!(kept_of([]), None);
    }

    #[test]
    fn one_value_for_all_halts_is_what_counts_have() {
        let constant = WakeupLatency::constant(Nanos(20_000));
        for halts in [0, 9, 10, 11, 500, 1_000] {
            let counts = counts(1_000, halts);
            assert_eq!(
                constant.mean_added_ns(&counts),
                counts.halts as f64 * 20_000.0 / counts.episodes.max(1) as f64
            );
            assert_eq!(
                constant.p99_added_ns(&counts),
                if u128::from(counts.halts) * 100 > u128::from(counts.episodes) { 20_000 } else { 0 }
            );
        }
    }

    #[test]
    fn long_recordings_are_thinned_evenly() {
        let long = kept_of(0..1_000_000).unwrap();
        assert!(long.sorted_ns.len() <= KEPT && long.recorded == 1_000_000);
        assert!((long.mean_ns() - 500_000.0).abs() < 2_000.0);
    }

    #[test]
    fn a_setting_is_read_as_it_was_written() {
        let values: Values = [("b".to_owned(), -1), ("a".to_owned(), 2)].into_iter().collect();
        let text = serde_json::to_string(&values).unwrap();
        assert_eq!(text, r#"{"a":2,"b":-1}"#);
        assert_eq!(serde_json::from_str::<Values>(&text).unwrap(), values);
        assert_eq!(values.to_string(), "a=2 b=-1");
        let other: Values = [("a".to_owned(), 2)].into_iter().collect();
        assert_eq!(values.differing_from(&other).to_string(), "b=-1");
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        let pricing = Pricing {
            halt_cost: Nanos(20_000),
            wakeup_latency: &WakeupLatency::constant(Nanos(5_000)),
            span_ns: 2_000_000_000,
            optimum_ns: 100,
        };
        let priced = pricing.price(&Counts { polled_ns: 1 << 40, ..counts(100, 30) });
        let text = serde_json::to_string(&priced).unwrap();
        assert_eq!(serde_json::from_str::<Priced>(&text).unwrap(), priced);
        assert!((priced.halts_per_s - 15.0).abs() < 1e-12);
    }
}
