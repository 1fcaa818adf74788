//! QEMU's contexts (`AioContext`): the polling attempts of event loops, and the sleeps of their threads, into episodes.
//!
//! QEMU traces when a context polls and how its window changes, but not that its thread sleeps; the kernel traces the
//! sleeps, but not that a thread polls. A [`ThreadPairing`](crate::thread::ThreadPairing) with [`Contexts`]
//! takes both: it makes waits of the system calls as it always does, and they end up here, as parts of the
//! episodes of the contexts.
//!
//! | events | an episode is |
//! |---|---|
//! | [`Aio::PollBegin`], [`Aio::PollEnd`] with a time-out of 0 | an attempt that found work: from begin to end, not halted |
//! | the same with another time-out | a failed poll, and the wait after it |
//! | none, but a wait of the thread | a sleep without a poll, window 0 |
//!
//! Each change of a window is compared with the rule of QEMU's version, where that is known: see [`DecisionCounts`].

mod judge;

pub use judge::DecisionCounts;

use crate::event::{Aio, Event};
use crate::pairing::{ByNumber, Idlers, PairedEpisode};
use dwell_policy::iothread::{Change, ChangeKind, Params, Revision};
use dwell_recording::WakeCause;
use judge::{Bounds, judge};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The contexts of a trace.
#[derive(Debug, Default)]
pub struct Contexts {
    rule: Option<(Revision, Params)>,
    /// What the times of QEMU's events resolve \[ns\]; `None`: they have none.
    resolution_ns: Option<u64>,
    contexts: BTreeMap<u64, Context>,
    /// Of the threads of which waits were seen.
    threads: ByNumber<(i32, i32), Waits>,
    tally: Tally,
}

/// The waits of a thread since the last event of a context of it.
#[derive(Debug, Default)]
struct Waits {
    /// Whether they are in the trace at present.
    traced: bool,
    since: Vec<PairedEpisode>,
}

/// Sums over all contexts.
#[derive(Debug, Default)]
struct Tally {
    decisions: Option<DecisionCounts>,
    incomplete: u64,
    lost: u64,
}

/// What is known at one event beside the event itself.
struct Now<'a> {
    /// Its time \[ns\]; `None` in a trace without times.
    at_ns: Option<u64>,
    /// The waits of the context's thread since its event before; `None` where they are not in the trace.
    waits: Option<&'a [PairedEpisode]>,
    rule: Option<(Revision, Params)>,
    resolution_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Attempt {
    begin_ns: Option<u64>,
    /// The event before the attempt: the `aio_poll` began after it.
    floor_ns: Option<u64>,
    window_ns: u64,
    failed: Option<Failed>,
}

impl Attempt {
    /// How long it took up to then \[ns\]; 0 in a trace without times.
    fn until(&self, end_ns: Option<u64>) -> u64 {
        self.begin_ns.zip(end_ns).map_or(0, |(begin_ns, end_ns)| end_ns.saturating_sub(begin_ns))
    }
}

/// An attempt that ended without having found anything.
#[derive(Clone, Copy, Debug)]
struct Failed {
    at_ns: Option<u64>,
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

#[derive(Debug, Default)]
struct Context {
    idler: u32,
    tid: i32,
    attempt: Option<Attempt>,
    turn: Turn,
    /// The polling time by the last decision.
    poll_ns: Option<i64>,
    last_ns: Option<u64>,
    /// How often each handler, by node and file descriptor, joined the poll list and left it.
    handlers: BTreeMap<(u64, i64), (u64, u64)>,
}

impl Contexts {
    /// The contexts of a QEMU with this rule and these parameters; without them no decision is judged. The times of its
    /// events resolve `resolution_ns`; `None`: they have no times, then lengths are the least that they can
    /// have been and starts are 0.
    pub fn new(rule: Option<(Revision, Params)>, resolution_ns: Option<u64>) -> Contexts {
        Contexts { rule, resolution_ns, ..Contexts::default() }
    }

    /// Whether there are so many contexts so far, and the one of this address is none of them.
    pub(crate) fn is_full(&self, most: usize, ctx: u64) -> bool {
        self.contexts.len() >= most && !self.contexts.contains_key(&ctx)
    }

    /// What became of the decisions so far; `None` where none is judged.
    pub fn decisions(&self) -> Option<DecisionCounts> {
        self.tally.decisions
    }

    /// Events that are missing, so far: an attempt without an end, or a change from a window that was not there.
    pub fn lost(&self) -> u64 {
        self.tally.lost
    }

    /// Attempts of which the beginning or the end was not seen, and decisions about an `aio_poll` of which nothing was.
    pub(crate) fn incomplete(&self) -> u64 {
        self.tally.incomplete
    }

    /// From here on the waits of a thread are in the trace.
    pub(crate) fn trace_waits(&mut self, ids: (i32, i32)) {
        self.threads.entry(ids).or_default().traced = true;
    }

    /// From here on the waits of a thread are not in the trace any more.
    pub(crate) fn end_waits(&mut self, ids: (i32, i32)) {
        if let Some(waits) = self.threads.get_mut(&ids) {
            *waits = Waits::default();
        }
    }

    /// A thread has waited.
    pub(crate) fn wait(&mut self, ids: (i32, i32), wait: PairedEpisode) {
        if let Some(waits) = self.threads.get_mut(&ids) {
            waits.since.push(wait);
        }
    }

    /// Takes the next event of a context. `thread` is the name of its thread, where that is known.
    pub(crate) fn observe(
        &mut self,
        event: &Event,
        (ctx, what): (u64, Aio),
        thread: impl FnOnce() -> Option<String>,
        idlers: &mut Idlers,
        found: &mut Vec<PairedEpisode>,
    ) {
        let Contexts { rule, resolution_ns, contexts, threads, tally } = self;
        let context = contexts.entry(ctx).or_insert_with(|| {
            let name =
                thread().map_or_else(|| format!("ctx-{ctx:#x}"), |thread| format!("{thread}/ctx-{ctx:#x}"));
            Context { idler: idlers.add(name), tid: event.tid, ..Context::default() }
        });
        // Within an attempt and at its end the thread cannot have slept before the event.
        let waits = threads.get_mut(&(event.pid, event.tid));
        let mut waits = waits.filter(|waits| waits.traced && !context.is_polling_until(what));
        let now = Now {
            at_ns: resolution_ns.map(|_| event.time_ns),
            waits: waits.as_ref().map(|waits| waits.since.as_slice()),
            rule: *rule,
            resolution_ns: resolution_ns.unwrap_or(0),
        };
        context.event(what, &now, tally, found);
        waits.iter_mut().for_each(|waits| waits.since.clear());
    }

    /// Events were lost: whatever is open may have ended unseen.
    pub(crate) fn forget(&mut self) {
        self.threads.values_mut().for_each(|waits| *waits = Waits::default());
        for context in self.contexts.values_mut() {
            self.tally.incomplete += u64::from(context.attempt.take().is_some());
            context.turn = Turn { floor_ns: None, least_ns: 0, seen: true };
            (context.poll_ns, context.last_ns) = (None, None);
        }
    }

    /// No event follows.
    pub(crate) fn finish(&mut self) {
        let open = self.contexts.values_mut().filter_map(|context| context.attempt.take()).count();
        self.tally.incomplete += open as u64;
    }

    /// For each context its thread and the handlers that joined and left its poll list.
    pub(crate) fn notes(&self, idlers: &Idlers) -> Value {
        let about = |(ctx, context): (&u64, &Context)| {
            (idlers.name(context.idler).to_owned(), context.describe(*ctx))
        };
        self.contexts.iter().map(about).collect::<serde_json::Map<_, _>>().into()
    }
}

impl Context {
    /// Whether this comes within or at the end of an attempt.
    fn is_polling_until(&self, what: Aio) -> bool {
        let polling = matches!(self.attempt, Some(Attempt { failed: None, .. }));
        polling && matches!(what, Aio::PollEnd { .. } | Aio::Handler { joins: false, .. })
    }

    fn event(&mut self, what: Aio, now: &Now<'_>, tally: &mut Tally, found: &mut Vec<PairedEpisode>) {
        self.settle(what, now, tally, found);
        match what {
            Aio::PollBegin { max_ns } => self.begin(max_ns, now),
            Aio::PollEnd { progress, timeout_ns } => self.end(progress, timeout_ns, now, tally, found),
            Aio::Window { grow, new, old } => {
                let kind = if grow { ChangeKind::Grow } else { ChangeKind::Shrink };
                self.decide(Change { kind, old, new }, now, tally);
            }
            Aio::Handler { node, fd, joins } => {
                let (joined, left) = self.handlers.entry((node, fd)).or_default();
                *(if joins { joined } else { left }) += 1;
            }
        }
        self.last_ns = now.at_ns;
    }

    /// Ends what this event shows to be over.
    fn settle(&mut self, what: Aio, now: &Now<'_>, tally: &mut Tally, found: &mut Vec<PairedEpisode>) {
        let mut waits = now.waits.unwrap_or_default();
        let mut floor_ns = self.last_ns;
        match self.attempt {
            Some(Attempt { failed: None, .. }) => {
                if self.is_polling_until(what) {
                    return;
                }
                // The end of the attempt is missing.
                self.attempt = None;
                tally.incomplete += 1;
                tally.lost += 1;
                self.turn = Turn { floor_ns: None, least_ns: 0, seen: true };
            }
            Some(Attempt { failed: Some(failed), .. }) => {
                let Some(attempt) = self.attempt.take() else { return };
                let first = waits.first();
                found.push(self.failed_poll((attempt, failed), first, what, now));
                waits = waits.get(1..).unwrap_or_default();
                floor_ns = first.map(end_ns);
            }
            None => {}
        }
        for wait in waits {
            found.push(self.slept(wait, floor_ns));
            floor_ns = Some(end_ns(wait));
        }
    }

    /// A wait before which nothing was polled, in an `aio_poll` that began after `floor_ns`.
    fn slept(&mut self, wait: &PairedEpisode, floor_ns: Option<u64>) -> PairedEpisode {
        self.turn = Turn { floor_ns, least_ns: wait.idle_ns, seen: true };
        PairedEpisode { idler: self.idler, window_ns: Some(0), halted: Some(true), ..*wait }
    }

    /// An attempt that found nothing, and the wait after it.
    fn failed_poll(
        &mut self,
        (attempt, failed): (Attempt, Failed),
        wait: Option<&PairedEpisode>,
        what: Aio,
        now: &Now<'_>,
    ) -> PairedEpisode {
        let polled_ns = attempt.until(failed.at_ns);
        let begin_ns = attempt.begin_ns.unwrap_or(0);
        let (idle_ns, least_ns) = match (wait, now.at_ns) {
            (Some(wait), _) => {
                let idle = end_ns(wait).saturating_sub(begin_ns);
                (idle, idle.saturating_sub(now.resolution_ns))
            }
            // Until the next event of the context, which includes what its handlers did before, if they did.
            (None, Some(at_ns)) => {
                (at_ns.saturating_sub(begin_ns), polled_ns.saturating_sub(now.resolution_ns))
            }
            (None, None) => (least(attempt.window_ns, what, now.rule), 0),
        };
        self.turn = Turn { floor_ns: attempt.floor_ns, least_ns, seen: true };
        PairedEpisode {
            window_ns: Some(attempt.window_ns),
            // Where waits are in the trace and there is none, the context was notified before it could sleep.
            halted: Some(wait.is_some() || now.waits.is_none()),
            wake: wait.map_or(Some(WakeCause::Unknown), |wait| wait.wake),
            ..PairedEpisode::new(self.idler, begin_ns, idle_ns)
        }
    }

    fn begin(&mut self, max_ns: i64, now: &Now<'_>) {
        self.turn = Turn::default();
        self.attempt = Some(Attempt {
            begin_ns: now.at_ns,
            floor_ns: self.last_ns,
            // Negative after an overflow of QEMU's arithmetic: one round.
            window_ns: u64::try_from(max_ns).unwrap_or(0),
            failed: None,
        });
    }

    fn end(
        &mut self,
        progress: bool,
        timeout_ns: i64,
        now: &Now<'_>,
        tally: &mut Tally,
        found: &mut Vec<PairedEpisode>,
    ) {
        let Some(attempt) = self.attempt.as_mut() else {
            tally.incomplete += 1;
            return;
        };
        if timeout_ns != 0 {
            attempt.failed = Some(Failed { at_ns: now.at_ns });
            return;
        }
        let attempt = *attempt;
        self.attempt = None;
        let idle_ns = attempt.until(now.at_ns);
        // Whether a decision that follows is of this aio_poll or of a later one is not known.
        self.turn = Turn { floor_ns: attempt.floor_ns, least_ns: 0, seen: true };
        found.push(PairedEpisode {
            window_ns: Some(attempt.window_ns),
            halted: Some(false),
            // Without progress it was another thread's notification, or a timer came due.
            wake: Some(if progress { WakeCause::Io } else { WakeCause::Unknown }),
            ..PairedEpisode::new(self.idler, attempt.begin_ns.unwrap_or(0), idle_ns)
        });
    }

    fn decide(&mut self, change: Change, now: &Now<'_>, tally: &mut Tally) {
        let per_handler = matches!(now.rule, Some((Revision::PerHandler, _)));
        // Setting a parameter makes it 0 without an event.
        let follows = self.poll_ns.is_none_or(|poll_ns| poll_ns == change.old || change.old == 0);
        tally.lost += u64::from(now.rule.is_some() && !per_handler && !follows);
        self.poll_ns = Some(change.new);
        // Neither polled nor slept before: it did not wait, or its sleep is not in the trace.
        tally.incomplete += u64::from(!self.turn.seen);
        // In the per-handler revision the event before may be of the same aio_poll.
        let floor_ns = match self.turn.seen {
            true => self.turn.floor_ns,
            false => self.last_ns.filter(|_| !per_handler),
        };
        let most = floor_ns.zip(now.at_ns).map_or(Bounds::UNKNOWN.most, |(floor_ns, at_ns)| {
            let most = at_ns.saturating_sub(floor_ns).saturating_add(now.resolution_ns);
            i64::try_from(most).unwrap_or(i64::MAX)
        });
        let bounds = Bounds { least: i64::try_from(self.turn.least_ns).unwrap_or(i64::MAX), most };
        if let Some((revision, params)) = &now.rule {
            tally.decisions.get_or_insert_default().count(judge(*revision, params, change, bounds));
        }
        // In the per-handler revision another decision of the same aio_poll may follow, or of one without
        // another event.
        self.turn = if per_handler { Turn { least_ns: 0, ..self.turn } } else { Turn::default() };
    }

    fn describe(&self, ctx: u64) -> Value {
        let handler = |(&(node, fd), &(added, removed)): (&(u64, i64), &(u64, u64))| json!({ "node": format!("{node:#x}"), "fd": fd, "added": added, "removed": removed });
        let handlers: Vec<Value> = self.handlers.iter().map(handler).collect();
        let tid = Some(self.tid).filter(|&tid| tid != Event::UNKNOWN_ID);
        json!({ "ctx": format!("{ctx:#x}"), "tid": tid, "handlers": handlers })
    }
}

fn end_ns(wait: &PairedEpisode) -> u64 {
    wait.start_ns.saturating_add(wait.idle_ns)
}

/// The least that an `aio_poll` with a failed poll of `window_ns` can have taken, by the decision that follows.
fn least(window_ns: u64, what: Aio, rule: Option<(Revision, Params)>) -> u64 {
    let above_max = match (what, rule) {
        (Aio::Window { grow: false, .. }, Some((Revision::Global | Revision::PerHandler, params))) => {
            u64::try_from(params.poll_max_ns).unwrap_or(0).saturating_add(1)
        }
        _ => 0,
    };
    above_max.max(window_ns.saturating_add(1))
}
