//! What QEMU's weighted rule takes a handler's block time for, by weight.
//!
//! The weighted rule polls for as long as the smoothed block time of its busiest handler. A small weight follows
//! every block time; a large one hardly moves. Here the rule runs over a recording once for each weight, and
//! the smoothed times of the handlers that became ready are averaged over all episodes.

use crate::rule::{RuleError, unknown};
use crate::source::{Source, SourceError};
use dwell_policy::iothread::{Aio, Handler, Kind, Params, Release};
use dwell_policy::param::Setting;
use dwell_policy::{Nanos, Outcome, Policy};
use std::collections::BTreeMap;

/// The weights that QEMU's developers compared, and that are compared here.
pub const WEIGHTS: [i64; 5] = [1, 2, 3, 4, 5];

/// Over the episodes of a recording, under one weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Smoothed {
    /// The weight: a new block time counts for 1/2^weight.
    pub weight: i64,
    /// Handlers that became ready, each once an episode.
    pub readied: u64,
    /// Their smoothed block times right after, summed up \[ns\].
    pub handler_ns: u128,
    /// Of them, those whose smoothed time was forgotten (0) because it exceeded `poll-max-ns`.
    pub forgotten: u64,
    /// The context's polling time at the beginning of each episode, summed up \[ns\].
    pub window_ns: u128,
    pub episodes: u64,
}

impl Smoothed {
    /// Mean smoothed block time of a handler that became ready \[ns\].
    pub fn mean_handler_ns(&self) -> f64 {
        if self.readied == 0 { 0.0 } else { self.handler_ns as f64 / self.readied as f64 }
    }

    /// Mean polling time at the beginning of an episode \[ns\].
    pub fn mean_window_ns(&self) -> f64 {
        if self.episodes == 0 { 0.0 } else { self.window_ns as f64 / self.episodes as f64 }
    }
}

/// Why there are no smoothed times.
#[derive(Debug, thiserror::Error)]
pub enum SmoothError {
    /// The recording cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The setting is not of the weighted rule.
    #[error(transparent)]
    Rule(#[from] RuleError),
}

/// Smoothed times over a recording under the weighted rule of `setting`, once for each of [`WEIGHTS`].
///
/// # Errors
/// [`SmoothError`] if the version is not known or the recording cannot be read.
pub fn by_weight(source: &dyn Source, setting: &Setting) -> Result<Vec<Smoothed>, SmoothError> {
    let release = Release::new(setting.version()).map_err(unknown(setting))?;
    let handlers = source.handlers().max(1);
    let mut all = WEIGHTS.map(|weight| {
        let params = Params { poll_weight: weight, ..Params::from(setting) };
        let contexts: BTreeMap<usize, Aio<Vec<Handler>>> = BTreeMap::new();
        (params, Smoothed { weight, ..Smoothed::default() }, contexts)
    });
    source.visit(0..u64::MAX, &mut |batch| {
        for (params, smoothed, contexts) in &mut all {
            for run in batch.runs() {
                let aio = contexts.entry(run.idler).or_insert_with(|| {
                    Aio::new(release, *params, vec![Handler::new(Kind::Polled); handlers])
                });
                for (episode, &idle) in run.idle_ns.iter().enumerate() {
                    let latency_ns = run.latency_ns().map_or(0, |latency| latency[episode]);
                    smoothed.see(aio, idle, latency_ns, run.ready(episode));
                }
            }
        }
    })?;
    Ok(all.into_iter().map(|(_, smoothed, _)| smoothed).collect())
}

impl Smoothed {
    fn see(&mut self, aio: &mut Aio<Vec<Handler>>, idle_ns: u64, latency_ns: u64, ready: &[u32]) {
        self.episodes += 1;
        let window_ns = aio.window().get();
        self.window_ns += u128::from(window_ns);
        // The block time ends when the thread runs again.
        let late_ns = if idle_ns > window_ns { latency_ns } else { 0 };
        aio.observe(Outcome::with_ready(Nanos(idle_ns.saturating_add(late_ns)), ready));
        // As in a replay: where it is not known which handlers became ready, the first was it.
        let ready = if ready.is_empty() { &[0] } else { ready };
        for handler in ready.iter().filter_map(|&h| aio.handlers().get(h as usize)) {
            let ns = u64::try_from(handler.ns()).unwrap_or(0);
            self.readied += 1;
            self.handler_ns += u128::from(ns);
            self.forgotten += u64::from(ns == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Memory;
    use dwell_policy::Layer;
    use dwell_policy::iothread::weighted;
    use dwell_policy::version::Version;
    use proptest::prelude::*;

    proptest! {
        /// One handler: its smoothed time is the recurrence alone.
        #[test]
        fn one_handler_is_the_recurrence(
            idle in prop::collection::vec(0u64..60_000, 1..100), max in 1i64..50_000,
        ) {
            let mut setting = Setting::defaults(Layer::Iothread, Version::new(11, 1));
            setting.set("poll-max-ns", max).unwrap();
            let all = by_weight(&Memory::of_one(&idle), &setting).unwrap();
            for (smoothed, weight) in all.iter().zip(WEIGHTS) {
                let params = Params { poll_weight: weight, ..Params::from(&setting) };
                let (mut ns, mut sum, mut zeros) = (0, 0u128, 0);
                for &idle in &idle {
                    ns = weighted(ns, i64::try_from(idle).unwrap(), true, &params);
                    sum += u128::try_from(ns).unwrap();
                    zeros += u64::from(ns == 0);
                }
                prop_assert_eq!((smoothed.weight, smoothed.handler_ns, smoothed.forgotten), (weight, sum, zeros));
                prop_assert_eq!((smoothed.readied, smoothed.episodes), (idle.len() as u64, idle.len() as u64));
            }
        }
    }

    #[test]
    fn a_large_weight_keeps_the_first_block_time() {
        let setting = Setting::defaults(Layer::Iothread, Version::new(11, 1));
        let idle: Vec<u64> = [1_000].into_iter().chain([20_000; 8]).collect();
        let all = by_weight(&Memory::of_one(&idle), &setting).unwrap();
        let means: Vec<f64> = all.iter().map(Smoothed::mean_handler_ns).collect();
        assert!(means.is_sorted_by(|a, b| a > b), "{means:?}");
    }
}
