//! One context, and how it adapts.

use super::handler::{PollList, ReadyList, at_mut};
use super::{Change, Handler, Kind, Params, Release, Revision, adjust, classic, weighted};
use crate::{Nanos, Outcome, Policy};

/// QEMU's trace events of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// `poll_grow` or `poll_shrink`.
    Adapted {
        /// Whose polling time: a handler's in the per-handler revision, the context's (`None`) in the others.
        handler: Option<u32>,
        /// What changed.
        change: Change,
    },
    /// `poll_add`: this handler is polled from now on.
    PollAdd(u32),
    /// `poll_remove`: this handler was idle for too long and is no longer polled.
    PollRemove(u32),
    /// `run_poll_handlers_begin`.
    PollBegin {
        /// How long to poll at most (ns).
        max_ns: i64,
        /// How long the wait may last (ns); -1 without end.
        timeout_ns: i64,
    },
    /// `run_poll_handlers_end`.
    PollEnd {
        /// Whether a handler other than the notifier has something to do.
        progress: bool,
        /// How long the wait may still last (ns); 0 where polling found something, -1 without end.
        timeout_ns: i64,
    },
}

/// The block of one `aio_poll`: its time from the start to the end of its wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// How long polling and sleeping took together (ns).
    pub(super) ns: i64,
    /// Unique for each `aio_poll`: when the wait ended.
    pub(super) stamp: i64,
}

/// The adaptive state of one context (an `AioContext` of QEMU) with a table of handlers that the caller owns: an
/// array, a slice, a vector. A handler's number is its place in the table.
///
/// There are two ways to drive it, for one context not to be mixed: [`Aio::finish`] takes what became of an
/// `aio_poll` that ran elsewhere, [`Aio::aio_poll`] runs one.
#[derive(Clone, Debug)]
pub struct Aio<H> {
    pub(super) release: Release,
    pub(super) params: Params,
    /// The context's polling time (ns); stays 0 in the per-handler revision.
    poll_ns: i64,
    /// Whether the context is in poll mode: notifications are off.
    pub(super) started: bool,
    /// QEMU's `poll_disable_cnt`: how many handlers cannot be polled.
    pub(super) unpollable: usize,
    /// How many times [`Aio::finish`] was called: the clock of a context that has none.
    finished: i64,
    pub(super) poll_list: PollList,
    pub(super) ready_list: ReadyList,
    pub(super) handlers: H,
}

impl<H: AsRef<[Handler]> + AsMut<[Handler]>> Aio<H> {
    /// A context with freshly registered handlers, none of which is polled yet. Of the handlers in the table only
    /// their kind counts. [Zeros](Params::stored) in the parameters are replaced as the release does.
    pub fn new(release: Release, params: Params, mut handlers: H) -> Aio<H> {
        let mut unpollable = 0;
        for handler in handlers.as_mut() {
            *handler = Handler::new(handler.kind);
            unpollable += usize::from(handler.kind == Kind::FdOnly);
        }
        Aio {
            release,
            params: params.stored(release.revision),
            poll_ns: 0,
            started: false,
            unpollable,
            finished: 0,
            poll_list: PollList::EMPTY,
            ready_list: ReadyList::EMPTY,
            handlers,
        }
    }

    /// The release whose behaviour this is.
    pub fn release(&self) -> Release {
        self.release
    }

    /// The parameters in force.
    pub fn params(&self) -> Params {
        self.params
    }

    /// The handlers, by number.
    pub fn handlers(&self) -> &[Handler] {
        self.handlers.as_ref()
    }

    /// Whether the context is in poll mode: the notifications of its polled handlers are off.
    pub fn in_poll_mode(&self) -> bool {
        self.started
    }

    /// How long the next attempt polls (ns), if it has anything to poll and no earlier deadline. Negative after an
    /// overflow, which means one round.
    #[inline]
    pub fn effective(&self) -> i64 {
        match self.release.revision {
            Revision::Global | Revision::Weighted => self.poll_ns,
            Revision::PerHandler => self.polled().map(|handler| handler.ns).fold(0, i64::max),
        }
    }

    /// Sets the parameters and forgets what was learnt, as any write to a property of a running `iothread` does.
    /// Handlers stay on the poll list. QEMU then notifies the context; so must who runs [`Aio::aio_poll`].
    pub fn set_params(&mut self, params: Params) {
        self.params = params.stored(self.release.revision);
        self.poll_ns = 0;
        for handler in self.handlers.as_mut() {
            handler.ns = 0;
        }
    }

    /// Registers a handler of this kind as number `h`, in place of what was there; [`Kind::Vacant`] deletes.
    /// Not polled until its file descriptor becomes ready. A number beyond the table is ignored.
    pub fn register(&mut self, h: u32, kind: Kind) {
        let handlers = self.handlers.as_mut();
        self.poll_list.remove(handlers, h);
        self.ready_list.remove(handlers, h);
        if let Some(handler) = at_mut(handlers, h) {
            self.unpollable -= usize::from(handler.kind == Kind::FdOnly);
            self.unpollable += usize::from(kind == Kind::FdOnly);
            *handler = Handler::new(kind);
        }
    }

    /// Registers handler `h` anew: it loses what was learnt of it and is not polled until its file descriptor
    /// becomes ready. A number beyond the table is ignored.
    pub fn reregister(&mut self, h: u32) {
        if let Some(handler) = at_mut(self.handlers.as_mut(), h) {
            let kind = handler.kind;
            self.register(h, kind);
        }
    }

    /// Learns from one `aio_poll` that took `block_ns`, polling and sleeping together, and then dispatched the
    /// handlers `ready`, whose file descriptors were ready, in this order and each once. Numbers beyond the table
    /// and vacant places are ignored.
    ///
    /// Handlers are never removed for idleness here; that is part of a polling attempt.
    #[inline]
    pub fn finish(&mut self, block_ns: i64, ready: &[u32], mut sink: impl FnMut(Event)) {
        self.finished = self.finished.wrapping_add(1);
        let block = Block { ns: block_ns, stamp: self.finished };
        self.adapt_after_wait(block, &mut sink);
        for &h in ready {
            if self.joins(h) {
                self.poll_list.push_front(self.handlers.as_mut(), h);
                sink(Event::PollAdd(h));
            }
            self.adapt_after_dispatch(h, block, &mut sink);
        }
        self.adapt_at_end(block, &mut sink);
    }

    /// Whether polling is on. Where it is off, nothing adapts.
    #[inline]
    pub(super) fn polling(&self) -> bool {
        self.params.poll_max_ns != 0
    }

    /// Whether handler `h`, about to be dispatched, joins the poll list.
    #[inline]
    pub(super) fn joins(&mut self, h: u32) -> bool {
        (self.polling() || self.release.revision != Revision::Weighted)
            && at_mut(self.handlers.as_mut(), h).is_some_and(|node| node.kind.can_poll() && !node.in_poll())
    }

    /// Where the global revision adapts: after the wait, before anything is dispatched.
    #[inline]
    pub(super) fn adapt_after_wait(&mut self, block: Block, sink: &mut impl FnMut(Event)) {
        if self.release.revision == Revision::Global && self.polling() {
            let change = classic(self.poll_ns, block.ns, &self.params);
            self.adapt_context(change, sink);
        }
    }

    /// Where the per-handler revision adapts, and the weighted one notes who was active: after each dispatch.
    #[inline]
    pub(super) fn adapt_after_dispatch(&mut self, h: u32, block: Block, sink: &mut impl FnMut(Event)) {
        if self.release.revision == Revision::Global || !self.polling() {
            return;
        }
        let Some(node) = at_mut(self.handlers.as_mut(), h).filter(|node| node.in_poll()) else { return };
        if self.release.revision == Revision::Weighted {
            node.timestamp = block.stamp;
        } else if let Some(change) = classic(node.ns, block.ns, &self.params) {
            node.ns = change.new;
            sink(Event::Adapted { handler: Some(h), change });
        }
    }

    /// Where the weighted revision adapts: when all is dispatched.
    #[inline]
    pub(super) fn adapt_at_end(&mut self, block: Block, sink: &mut impl FnMut(Event)) {
        if self.release.revision != Revision::Weighted || !self.polling() {
            return;
        }
        let mut best = -1;
        for node in self.handlers.as_mut().iter_mut().filter(|node| node.in_poll()) {
            let active = node.timestamp == block.stamp;
            node.ns = weighted(node.ns, block.ns, active, &self.params);
            if active {
                best = best.max(node.ns);
            }
        }
        if best >= 0 {
            let change = adjust(self.poll_ns, best, &self.params);
            self.adapt_context(change, sink);
        }
    }

    #[inline]
    fn adapt_context(&mut self, change: Option<Change>, sink: &mut impl FnMut(Event)) {
        if let Some(change) = change {
            self.poll_ns = change.new;
            sink(Event::Adapted { handler: None, change });
        }
    }

    fn polled(&self) -> impl Iterator<Item = &Handler> {
        self.handlers.as_ref().iter().filter(|handler| handler.in_poll())
    }
}

/// Replays episodes: each is one `aio_poll` in which the handlers of the outcome became ready through their file
/// descriptors. Where these are not known (`ready` is empty) handler 0 was it.
///
/// The window supposes that nothing forbids polling. Whether a handler without `io_poll` does, depends on how the
/// context waits, which a recording of episodes does not have; then the window is 0 for good.
impl<H: AsRef<[Handler]> + AsMut<[Handler]>> Policy for Aio<H> {
    #[inline]
    fn window(&mut self) -> Nanos {
        if self.poll_list.is_empty() {
            return Nanos::ZERO;
        }
        Nanos(u64::try_from(self.effective()).unwrap_or(0))
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        let block_ns = i64::try_from(outcome.idle.get()).unwrap_or(i64::MAX);
        let ready = if outcome.ready.is_empty() { &[0] } else { outcome.ready };
        self.finish(block_ns, ready, |_| {});
    }
}
