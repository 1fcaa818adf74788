//! What the report draws of a recording, computed once: how long its idlers idle, where the polls of a policy end, and
//! how the window moves over time above the idle times.
//!
//! One pass over the recording, row group by row group, with the policies in it; memory does not grow with
//! the number of episodes. What grows with the number of idlers is given for the [`SHOWN`] busiest only.
//! Figures are values that serialise; JSON, CSV, text and the page of a report are views of them.

mod blocks;
mod closeup;
mod polls;
mod recorded;
mod timeline;

pub use blocks::{Block, Compared, compare};
pub use closeup::{Closeup, LONGEST as CLOSEUP};
pub use dwell_stats::{Bucket, LogHistogram};
pub use polls::{PollBucket, Polls, Windows};
pub use recorded::{Recorded, Wakes};
pub use timeline::{IdlerTimeline, RecordedLine, SLICES, Timeline, WindowLine};

use crate::{Counts, Player, RecordingSource, ReplayError, Rule, RuleError, Run, Seen, Source};
use closeup::CloseupMaker;
use dwell_recording::Contents;
use polls::PollsMaker;
use serde::Serialize;
use timeline::TimelineMaker;

/// Idlers of which figures are given one by one, the ones with most episodes: more than eight lines in one chart are a
/// tangle, and the page has to stay small.
pub const SHOWN: usize = 8;

/// A policy that is replayed over the recording.
#[derive(Clone, Debug)]
pub struct Policy {
    /// What it is called: `present`, `recommended`.
    pub name: String,
    pub rule: Rule,
}

/// What is drawn of a recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// How long idlers idle: all of them first, then the busiest one by one, if there is more than one.
    pub idle: Vec<IdleDistribution>,
    /// Idlers that are part of the whole but not shown one by one.
    pub idlers_left_out: usize,
    /// What each policy would have done over the whole recording.
    pub policies: Vec<PolicyFigures>,
    /// What really happened, as far as it was recorded.
    pub recorded: Recorded,
    /// Windows and idle times over time, of the busiest idlers.
    pub timeline: Timeline,
    /// Consecutive episodes of the busiest idler, one by one.
    pub closeup: Option<Closeup>,
    /// The recording in stretches of equal time, for comparisons with intervals.
    pub blocks: Vec<Block>,
}

/// How long one idler, or all of them, idle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IdleDistribution {
    /// Which one; `None`: all.
    pub idler: Option<String>,
    pub episodes: u64,
    /// Episodes by length, twenty buckets a decade.
    pub buckets: Vec<Bucket>,
}

/// What a policy would have done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyFigures {
    /// What it is called.
    pub policy: String,
    /// Its parameters, `name=value` with a space between.
    pub setting: String,
    pub episodes: u64,
    /// Episodes that began with a poll.
    pub polls: u64,
    /// Of those, the ones in which the wake came.
    pub polls_succeeded: u64,
    /// CPU time polled \[ns\].
    pub polled_ns: u128,
    /// The part of it that ended in a halt all the same \[ns\].
    pub wasted_ns: u128,
    /// Episodes that ended in a halt.
    pub halts: u64,
    /// The windows it had.
    pub windows: Windows,
    /// Where its polls ended.
    pub ends: Vec<PollBucket>,
}

impl Figures {
    /// Reads all of a recording, and replays `policies` over it. `progress` gets the number of episodes read
    /// since the last call; each is counted twice.
    ///
    /// # Errors
    /// [`ReplayError`] for a recording that cannot be read, and for a policy that cannot be replayed.
    pub fn of(
        source: &RecordingSource,
        policies: &[Policy],
        progress: &dyn Fn(u64),
    ) -> Result<Figures, ReplayError> {
        let contents = source.reader().contents();
        let mut pass = Pass::new(contents, policies, source.handlers())?;
        source.visit(0..u64::MAX, &mut |batch| {
            batch.runs().for_each(|run| pass.take(run));
            progress(batch.episodes() as u64);
        })?;
        let (recorded, blocks) = recorded::read(source.reader(), &pass.shown, &mut pass.timeline, progress)?;
        let (idle, idlers_left_out) = pass.idle(contents);
        Ok(Figures {
            idle,
            idlers_left_out,
            timeline: pass.timeline.finish(contents, policies),
            closeup: pass.closeup.map(|maker| maker.closeup),
            policies: pass.policies.into_iter().map(PolicyReplay::finish).collect(),
            recorded,
            blocks,
        })
    }
}

/// One pass over the episodes.
struct Pass {
    all: LogHistogram,
    /// The numbers of the idlers that are shown, busiest first.
    shown: Vec<usize>,
    of_shown: Vec<LogHistogram>,
    policies: Vec<PolicyReplay>,
    timeline: TimelineMaker,
    closeup: Option<CloseupMaker>,
}

/// A policy with its replay state of each idler.
struct PolicyReplay {
    policy: Policy,
    fresh: Player,
    players: Vec<Player>,
    counts: Counts,
    polls: PollsMaker,
    /// The windows of the run at hand \[ns\].
    windows: Vec<u64>,
}

/// The numbers of the busiest idlers, busiest first; of equals the first.
fn busiest(contents: &Contents) -> Vec<usize> {
    let mut order: Vec<usize> = (0..contents.idlers.len()).collect();
    order.sort_by_key(|&idler| std::cmp::Reverse(contents.idlers[idler].episodes));
    order.truncate(SHOWN);
    order
}

impl Pass {
    fn new(contents: &Contents, policies: &[Policy], handlers: usize) -> Result<Pass, RuleError> {
        let shown = busiest(contents);
        let start = |policy: &Policy| {
            Ok(PolicyReplay {
                policy: policy.clone(),
                fresh: policy.rule.start(handlers)?,
                players: vec![],
                counts: Counts::default(),
                polls: PollsMaker::default(),
                windows: vec![],
            })
        };
        Ok(Pass {
            all: LogHistogram::default(),
            of_shown: vec![LogHistogram::default(); shown.len()],
            policies: policies.iter().map(start).collect::<Result<_, RuleError>>()?,
            timeline: TimelineMaker::new(contents, shown.len(), policies.len()),
            closeup: shown.first().map(|&idler| CloseupMaker::new(contents, idler, policies)),
            shown,
        })
    }

    fn take(&mut self, run: &Run) {
        let place = self.shown.iter().position(|&idler| idler == run.idler);
        let mut own = place.map(|place| &mut self.of_shown[place]);
        for &idle_ns in &run.idle_ns {
            self.all.add(idle_ns);
            if let Some(own) = &mut own {
                own.add(idle_ns);
            }
        }
        self.policies.iter_mut().for_each(|policy| policy.take(run));
        let Some(place) = place else { return };
        let windows: Vec<&[u64]> = self.policies.iter().map(|policy| policy.windows.as_slice()).collect();
        self.timeline.take(place, run, &windows);
        self.closeup.iter_mut().for_each(|closeup| closeup.take(run, &windows));
    }

    fn idle(&self, contents: &Contents) -> (Vec<IdleDistribution>, usize) {
        let of = |idler: Option<String>, histogram: &LogHistogram| IdleDistribution {
            idler,
            episodes: histogram.total(),
            buckets: histogram.buckets().collect(),
        };
        let mut idle = vec![of(None, &self.all)];
        if contents.idlers.len() > 1 {
            let one = |(&idler, histogram): (&usize, &LogHistogram)| {
                of(Some(contents.idlers[idler].name.clone()), histogram)
            };
            idle.extend(self.shown.iter().zip(&self.of_shown).map(one));
        }
        (idle, contents.idlers.len() - self.shown.len())
    }
}

impl PolicyReplay {
    fn take(&mut self, run: &Run) {
        while self.players.len() <= run.idler {
            self.players.push(self.fresh.clone());
        }
        let PolicyReplay { players, counts, windows, polls, .. } = self;
        windows.clear();
        *counts += players[run.idler].follow(run, |Seen { window, polled_ns, halted }| {
            windows.push(window.get());
            polls.add(window.get(), polled_ns, halted);
        });
    }

    fn finish(self) -> PolicyFigures {
        let PolicyReplay { policy, counts, polls, .. } = self;
        let values: Vec<String> =
            policy.rule.values().into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let Polls { wasted_ns, windows, ends } = polls.finish();
        PolicyFigures {
            policy: policy.name,
            setting: values.join(" "),
            episodes: counts.episodes,
            polls: counts.polls,
            polls_succeeded: counts.polls_succeeded,
            polled_ns: counts.polled_ns,
            wasted_ns,
            halts: counts.halts,
            windows,
            ends,
        }
    }
}

#[cfg(test)]
mod tests;
