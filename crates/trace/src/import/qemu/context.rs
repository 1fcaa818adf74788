//! One context (`AioContext`): its lines into episodes.

use super::judge::{Bounds, Decisions, Verdict, judge};
use super::line::{Event, What};
use super::sleeps::Sleep;
use crate::import::ImportSummary;
use dwell_policy::iothread::{Change, ChangeKind, Params, Revision};
use dwell_recording::WriteError;
use dwell_recording::{Episode, WakeCause};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What the times of a log resolve \[ns\].
pub(super) const RESOLUTION_NS: u64 = 1_000;

/// Where episodes go.
pub(super) struct Sink<'a> {
    pub(super) push: &'a mut dyn FnMut(&Episode<'_>) -> Result<(), WriteError>,
    pub(super) summary: &'a mut ImportSummary,
    /// The rule and its parameters, where the version of QEMU is known.
    pub(super) rule: Option<(Revision, Params)>,
    pub(super) line: u64,
}

/// What is known at one line beside the line itself.
pub(super) struct Now<'a> {
    /// When the line was written \[ns, the recording's clock\]; `None` in a log without times.
    pub(super) at_ns: Option<u64>,
    /// The waits of the context's thread since its line before; `None` where they were not recorded.
    pub(super) sleeps: Option<&'a [Sleep]>,
}

/// A polling attempt.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    begin_ns: Option<u64>,
    /// The line before the attempt: the `aio_poll` began after it.
    floor_ns: Option<u64>,
    window_ns: u64,
    /// When it ended without having found anything.
    ended_in_vain: Option<Option<u64>>,
}

/// What the next decision can be about.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The `aio_poll` began after this.
    floor_ns: Option<u64>,
    /// And took at least so long.
    least_ns: u64,
    /// It polled or slept. If not, it only ran what was pending.
    seen: bool,
}

#[derive(Debug)]
pub(super) struct Context {
    name: String,
    ctx: u64,
    tid: Option<u32>,
    attempt: Option<Attempt>,
    turn: Turn,
    /// The polling time by the last decision.
    poll_ns: Option<i64>,
    last_line_ns: Option<u64>,
    last_start_ns: u64,
    handlers: BTreeMap<(u64, i64), (u64, u64)>,
}

impl Context {
    pub(super) fn new(ctx: u64, tid: Option<u32>, thread: Option<&str>) -> Context {
        let name = thread.map_or_else(|| format!("ctx-{ctx:#x}"), |thread| format!("{thread}/ctx-{ctx:#x}"));
        Context {
            name,
            ctx,
            tid,
            attempt: None,
            turn: Turn::default(),
            poll_ns: None,
            last_line_ns: None,
            last_start_ns: 0,
            handlers: BTreeMap::new(),
        }
    }

    /// Whether this comes within or at the end of a polling attempt, so that the thread cannot have slept before it.
    pub(super) fn is_polling_until(&self, what: What) -> bool {
        let polling = matches!(self.attempt, Some(Attempt { ended_in_vain: None, .. }));
        polling && matches!(what, What::End { .. } | What::Remove { .. })
    }

    pub(super) fn line(
        &mut self,
        event: &Event,
        now: &Now<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        self.settle(event.what, now, sink)?;
        match event.what {
            What::Begin { max_ns, .. } => self.begin(max_ns, now),
            What::End { progress, timeout_ns } => self.end(progress, timeout_ns, now, sink)?,
            What::Grow { old, new } => self.decide(Change { kind: ChangeKind::Grow, old, new }, now, sink),
            What::Shrink { old, new } => {
                self.decide(Change { kind: ChangeKind::Shrink, old, new }, now, sink)
            }
            What::Add { node, fd } => self.handlers.entry((node, fd)).or_default().0 += 1,
            What::Remove { node, fd } => self.handlers.entry((node, fd)).or_default().1 += 1,
        }
        self.last_line_ns = now.at_ns;
        Ok(())
    }

    /// Ends what this line shows to be over.
    fn settle(&mut self, what: What, now: &Now<'_>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let mut sleeps = now.sleeps.unwrap_or_default();
        let mut floor_ns = self.last_line_ns;
        match self.attempt {
            Some(Attempt { ended_in_vain: None, .. }) => {
                if self.is_polling_until(what) {
                    return Ok(());
                }
                // The end of the attempt is missing.
                self.attempt = None;
                sink.summary.incomplete_episodes += 1;
                sink.summary.lost.add(None, 1);
                self.turn = Turn { floor_ns: None, least_ns: 0, seen: true };
            }
            Some(attempt) => {
                self.attempt = None;
                let first = sleeps.first().copied();
                self.polled_in_vain(attempt, first, what, now, sink)?;
                sleeps = sleeps.get(1..).unwrap_or_default();
                floor_ns = first.map(|sleep| sleep.end_ns);
            }
            None => {}
        }
        for sleep in sleeps {
            self.slept(sleep, floor_ns, sink)?;
            floor_ns = Some(sleep.end_ns);
        }
        Ok(())
    }

    /// A wait before which nothing was polled, in an `aio_poll` that began after `floor_ns`.
    fn slept(&mut self, sleep: &Sleep, floor_ns: Option<u64>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        let idle_ns = sleep.end_ns.saturating_sub(sleep.start_ns);
        self.turn = Turn { floor_ns, least_ns: idle_ns, seen: true };
        let episode = Episode {
            window_ns: Some(0),
            halted: Some(true),
            wake: sleep.wake,
            ..Episode::new("", 0, idle_ns)
        };
        self.write(sleep.start_ns, episode, sink)
    }

    /// An attempt that found nothing, and the wait after it.
    fn polled_in_vain(
        &mut self,
        attempt: Attempt,
        sleep: Option<Sleep>,
        what: What,
        now: &Now<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        let polled_ns = match (attempt.begin_ns, attempt.ended_in_vain.flatten()) {
            (Some(begin), Some(end)) => end.saturating_sub(begin),
            _ => 0,
        };
        let begin_ns = attempt.begin_ns.unwrap_or(0);
        let (idle_ns, least_ns) = match (sleep, now.at_ns) {
            (Some(sleep), _) => {
                let idle = sleep.end_ns.saturating_sub(begin_ns);
                (idle, idle.saturating_sub(RESOLUTION_NS))
            }
            // Until the next that is heard of the context, which includes what its handlers did before, if they did.
            (None, Some(at_ns)) => (at_ns.saturating_sub(begin_ns), polled_ns.saturating_sub(RESOLUTION_NS)),
            (None, None) => (least(attempt.window_ns, what, sink.rule), 0),
        };
        self.turn = Turn { floor_ns: attempt.floor_ns, least_ns, seen: true };
        // Where waits were recorded and there is none, the context was notified before it could sleep.
        let halted = sleep.is_some() || now.sleeps.is_none();
        let wake = sleep.map_or(Some(WakeCause::Unknown), |sleep| sleep.wake);
        let window_ns = Some(attempt.window_ns);
        let episode = Episode { window_ns, halted: Some(halted), wake, ..Episode::new("", 0, idle_ns) };
        self.write(begin_ns, episode, sink)
    }

    fn begin(&mut self, max_ns: i64, now: &Now<'_>) {
        self.turn = Turn::default();
        self.attempt = Some(Attempt {
            begin_ns: now.at_ns,
            floor_ns: self.last_line_ns,
            // Negative after an overflow of QEMU's arithmetic: one round.
            window_ns: u64::try_from(max_ns).unwrap_or(0),
            ended_in_vain: None,
        });
    }

    fn end(
        &mut self,
        progress: bool,
        timeout_ns: i64,
        now: &Now<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), WriteError> {
        let Some(attempt) = self.attempt.as_mut() else {
            sink.summary.incomplete_episodes += 1;
            return Ok(());
        };
        if timeout_ns != 0 {
            attempt.ended_in_vain = Some(now.at_ns);
            return Ok(());
        }
        let attempt = *attempt;
        self.attempt = None;
        let idle_ns = match (attempt.begin_ns, now.at_ns) {
            (Some(begin), Some(end)) => end.saturating_sub(begin),
            _ => 0,
        };
        // Whether a decision that follows is of this aio_poll or of a later one cannot be told.
        self.turn = Turn { floor_ns: attempt.floor_ns, least_ns: 0, seen: true };
        let episode = Episode {
            window_ns: Some(attempt.window_ns),
            halted: Some(false),
            // Without progress it was another thread's notification, or a timer came due.
            wake: Some(if progress { WakeCause::Io } else { WakeCause::Unknown }),
            ..Episode::new("", 0, idle_ns)
        };
        self.write(attempt.begin_ns.unwrap_or(0), episode, sink)
    }

    fn decide(&mut self, change: Change, now: &Now<'_>, sink: &mut Sink<'_>) {
        // Setting a parameter makes it 0 without a word.
        let follows = self.poll_ns.is_none_or(|poll_ns| poll_ns == change.old || change.old == 0);
        let one_for_all = !matches!(sink.rule, Some((Revision::PerHandler, _)) | None);
        if one_for_all && !follows {
            sink.summary.lost.add(None, 1);
        }
        self.poll_ns = Some(change.new);
        if !self.turn.seen && now.sleeps.is_none() {
            sink.summary.incomplete_episodes += 1;
        }
        let per_handler = matches!(sink.rule, Some((Revision::PerHandler, _)));
        // In the per-handler revision the line before may be of the same aio_poll.
        let floor_ns = match self.turn.seen {
            true => self.turn.floor_ns,
            false => self.last_line_ns.filter(|_| !per_handler),
        };
        let bounds = Bounds {
            least: i64::try_from(self.turn.least_ns).unwrap_or(i64::MAX),
            most: match (floor_ns, now.at_ns) {
                (Some(floor), Some(at)) => {
                    i64::try_from(at.saturating_sub(floor).saturating_add(RESOLUTION_NS)).unwrap_or(i64::MAX)
                }
                _ => Bounds::UNKNOWN.most,
            },
        };
        if let Some((revision, params)) = sink.rule {
            sink.summary
                .decisions
                .get_or_insert_default()
                .count(judge(revision, &params, change, bounds), sink.line);
        }
        // In the per-handler revision another decision of the same aio_poll may follow, or of one that nothing else tells of.
        self.turn = if per_handler { Turn { least_ns: 0, ..self.turn } } else { Turn::default() };
    }

    /// Starts must not go back; they can by as much as the times of two sources differ.
    fn write(&mut self, start_ns: u64, episode: Episode<'_>, sink: &mut Sink<'_>) -> Result<(), WriteError> {
        if self.last_start_ns.saturating_sub(start_ns) > RESOLUTION_NS && start_ns != 0 {
            sink.summary.out_of_order += 1;
        }
        self.last_start_ns = self.last_start_ns.max(start_ns);
        sink.summary.episodes += 1;
        (sink.push)(&Episode { idler: &self.name, start_ns: self.last_start_ns, ..episode })
    }

    /// The text has ended.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>) {
        sink.summary.incomplete_episodes += u64::from(self.attempt.take().is_some());
    }

    pub(super) fn describe(&self) -> (String, Value) {
        let handlers: Vec<Value> = self
            .handlers
            .iter()
            .map(|((node, fd), (added, removed))| {
                json!({ "node": format!("{node:#x}"), "fd": fd, "added": added, "removed": removed })
            })
            .collect();
        (
            self.name.clone(),
            json!({ "ctx": format!("{:#x}", self.ctx), "tid": self.tid, "handlers": handlers }),
        )
    }
}

/// The least that an `aio_poll` that polled for `window_ns` in vain can have taken, by the decision that follows.
fn least(window_ns: u64, what: What, rule: Option<(Revision, Params)>) -> u64 {
    let above_max = match (what, rule) {
        (What::Shrink { .. }, Some((Revision::Global | Revision::PerHandler, params))) => {
            u64::try_from(params.poll_max_ns).unwrap_or(0).saturating_add(1)
        }
        _ => 0,
    };
    above_max.max(window_ns.saturating_add(1))
}

impl Decisions {
    fn count(&mut self, verdict: Verdict, line: u64) {
        self.traced += 1;
        match verdict {
            Verdict::Determined => self.determined += 1,
            Verdict::Possible => {}
            Verdict::Contradicted => {
                self.contradicted += 1;
                self.first_contradicted_line.get_or_insert(line);
            }
        }
    }
}
