//! One pass over all episodes of a source: what rules would have cost, and the lower bound.

use crate::bound::OptimumBound;
use crate::{Bank, Batch, Counts, Overlapping, Rule, RuleError, Source, Span};
use dwell_policy::Nanos;
use dwell_recording::ReadError;

/// What a pass found.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The time recorded, else from the first start of an episode to the last end.
    pub span: Span,
    /// What each rule did, in the order asked for.
    pub counts: Vec<Counts>,
    /// What the optimum did: the policy that knows the length of each episode beforehand.
    pub optimum: Counts,
}

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A rule cannot be replayed.
    #[error(transparent)]
    Rule(#[from] RuleError),
    /// The recording cannot be read.
    #[error(transparent)]
    Source(#[from] ReadError),
    /// The recording contradicts itself.
    #[error(transparent)]
    Overlapping(#[from] Overlapping),
}

/// Replays every rule over all episodes. `progress` gets the number of episodes replayed since its last call.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(
    source: &dyn Source,
    rules: &[Rule],
    halt_cost: Nanos,
    progress: &dyn Fn(u64),
) -> Result<Replayed, ReplayError> {
    replay_and_see(source, rules, halt_cost, &mut |batch| progress(batch.episodes() as u64))
}

/// As [`replay`]; `see` gets each batch of episodes after it was replayed.
///
/// # Errors
/// [`ReplayError`].
pub fn replay_and_see(
    source: &dyn Source,
    rules: &[Rule],
    halt_cost: Nanos,
    see: &mut dyn FnMut(&Batch),
) -> Result<Replayed, ReplayError> {
    let mut bank = Bank::new(rules, source.handlers())?;
    let mut optimum = OptimumBound::new(halt_cost);
    let span = source.visit(0..u64::MAX, &mut |batch| {
        bank.feed(batch);
        optimum.feed(batch);
        see(batch);
    })?;
    let span = source.time_recorded().unwrap_or(span);
    let optimum = optimum.counts();
    Overlapping::check(source, optimum.idle_ns, span)?;
    Ok(Replayed { span, counts: bank.take(), optimum })
}
