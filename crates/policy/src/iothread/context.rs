//! One context, and how it adapts.

use super::{Change, Handler, Params, Revision, adjust, classic, weighted};
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
/// [`Aio::finish`] takes what became of an `aio_poll`, which runs elsewhere.
#[derive(Clone, Debug)]
pub struct Aio<H> {
    pub(super) revision: Revision,
    pub(super) params: Params,
    /// The context's polling time (ns); stays 0 in the per-handler revision.
    pub(super) poll_ns: i64,
    /// How many times [`Aio::finish`] was called: the clock of a context that has none.
    finished: i64,
    pub(super) handlers: H,
}

impl<H: AsRef<[Handler]> + AsMut<[Handler]>> Aio<H> {
    /// A context with freshly registered handlers, none of which is polled yet. Of the handlers in the table only
    /// their kind counts. [Zeros](Params::stored) in the parameters are replaced as the release does.
    pub fn new(revision: Revision, params: Params, mut handlers: H) -> Aio<H> {
        for handler in handlers.as_mut() {
            *handler = Handler::new(handler.kind);
        }
        Aio { revision, params: params.stored(revision), poll_ns: 0, finished: 0, handlers }
    }

    /// The handlers, by number.
    pub fn handlers(&self) -> &[Handler] {
        self.handlers.as_ref()
    }

    /// How long the next attempt polls (ns), if it has anything to poll and no earlier deadline. Negative after an
    /// overflow, which means one round.
    #[inline]
    pub fn effective(&self) -> i64 {
        match self.revision {
            Revision::Global | Revision::Weighted => self.poll_ns,
            Revision::PerHandler => self.polled().map(|handler| handler.ns).fold(0, i64::max),
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
            if let Some(node) = self.joining(h) {
                node.in_poll = true;
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

    /// Handler `h`, about to be dispatched, if it joins the poll list.
    #[inline]
    pub(super) fn joining(&mut self, h: u32) -> Option<&mut Handler> {
        let joins = self.polling() || self.revision != Revision::Weighted;
        self.handler(h).filter(|node| joins && node.kind.can_poll() && !node.in_poll)
    }

    #[inline]
    pub(super) fn handler(&mut self, h: u32) -> Option<&mut Handler> {
        self.handlers.as_mut().get_mut(usize::try_from(h).unwrap_or(usize::MAX))
    }

    /// Where the global revision adapts: after the wait, before anything is dispatched.
    #[inline]
    pub(super) fn adapt_after_wait(&mut self, block: Block, sink: &mut impl FnMut(Event)) {
        if self.revision == Revision::Global && self.polling() {
            let change = classic(self.poll_ns, block.ns, &self.params);
            self.adapt_context(change, sink);
        }
    }

    /// Where the per-handler revision adapts, and the weighted one notes who was active: after each dispatch.
    #[inline]
    pub(super) fn adapt_after_dispatch(&mut self, h: u32, block: Block, sink: &mut impl FnMut(Event)) {
        if self.revision == Revision::Global || !self.polling() {
            return;
        }
        let weighted = self.revision == Revision::Weighted;
        let params = self.params;
        let Some(node) = self.handler(h).filter(|node| node.in_poll) else { return };
        if weighted {
            node.timestamp = block.stamp;
        } else if let Some(change) = classic(node.ns, block.ns, &params) {
            node.ns = change.new;
            sink(Event::Adapted { handler: Some(h), change });
        }
    }

    /// Where the weighted revision adapts: when all is dispatched.
    #[inline]
    pub(super) fn adapt_at_end(&mut self, block: Block, sink: &mut impl FnMut(Event)) {
        if self.revision != Revision::Weighted || !self.polling() {
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
        if self.polled().next().is_none() {
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
