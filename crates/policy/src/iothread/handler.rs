//! Handlers and the two lists of them that a context keeps.

/// What a handler can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An unused place in the table.
    #[default]
    Vacant,
    /// Has only a file descriptor, no `io_poll`: sockets, listeners, kicks of vhost-user exports. One of them keeps
    /// a context that waits with ppoll or epoll from polling at all.
    FdOnly,
    /// Can be polled: linux-aio, the nvme driver.
    Polled,
    /// Can be polled, and its notifications are switched off meanwhile (`io_poll_begin`, `io_poll_end`): virtio.
    PolledQuietly,
    /// The context's own notifier, by which other threads wake it. Can be polled; is never progress.
    Notifier,
}

impl Kind {
    /// Whether it has `io_poll` and `io_poll_ready`.
    pub const fn can_poll(self) -> bool {
        matches!(self, Kind::Polled | Kind::PolledQuietly | Kind::Notifier)
    }

    /// Whether it has `io_poll_begin` and `io_poll_end`.
    pub const fn goes_quiet(self) -> bool {
        matches!(self, Kind::PolledQuietly)
    }
}

/// One handler of a context: what it can do, and its state in the context.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handler {
    /// Its own polling time (per-handler revision) or smoothed block time (weighted revision) (ns).
    pub(super) ns: i64,
    /// When it was last dispatched (weighted revision), or when it will have been idle for too long (before), 0 if
    /// that has not begun (ns of the context's clock).
    pub(super) timestamp: i64,
    links: [Link; 2],
    pub(super) kind: Kind,
    /// The wait found its file descriptor ready.
    pub(super) fd_ready: bool,
    /// A poll found work.
    pub(super) poll_ready: bool,
}

impl Handler {
    /// A handler as it is right after registration.
    pub const fn new(kind: Kind) -> Handler {
        Handler { kind, ns: 0, timestamp: 0, links: [Link::NONE; 2], fd_ready: false, poll_ready: false }
    }

    /// What it can do.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Its own polling time (per-handler revision) or smoothed block time (weighted revision) (ns); 0 in the
    /// global revision.
    pub const fn ns(&self) -> i64 {
        self.ns
    }

    /// Whether it is on the poll list: since its file descriptor first became ready, until it is removed.
    pub const fn in_poll(&self) -> bool {
        self.links[POLL].linked
    }
}

/// A handler's place in a list.
#[derive(Clone, Copy, Debug, Default)]
struct Link {
    before: Option<u32>,
    after: Option<u32>,
    linked: bool,
}

impl Link {
    const NONE: Link = Link { before: None, after: None, linked: false };
}

const POLL: usize = 0;
const READY: usize = 1;

/// The handlers that a context polls, in the order in which it polls them.
pub(super) type PollList = List<POLL>;
/// The handlers with something to do, in the order in which they will be dispatched.
pub(super) type ReadyList = List<READY>;

/// A list threaded through the table of handlers by their numbers. Numbers beyond the table are not there.
#[derive(Clone, Debug)]
pub(super) struct List<const WHICH: usize> {
    first: Option<u32>,
}

impl<const WHICH: usize> List<WHICH> {
    pub(super) const EMPTY: Self = List { first: None };

    pub(super) const fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) const fn first(&self) -> Option<u32> {
        self.first
    }

    pub(super) fn after(handlers: &[Handler], h: u32) -> Option<u32> {
        at(handlers, h)?.links[WHICH].after
    }

    /// Puts a handler at the head, from wherever in the list it was.
    pub(super) fn push_front(&mut self, handlers: &mut [Handler], h: u32) {
        self.remove(handlers, h);
        let Some(handler) = at_mut(handlers, h) else { return };
        handler.links[WHICH] = Link { before: None, after: self.first, linked: true };
        if let Some(second) = self.first.and_then(|first| at_mut(handlers, first)) {
            second.links[WHICH].before = Some(h);
        }
        self.first = Some(h);
    }

    /// Takes a handler off the list, if it is there.
    pub(super) fn remove(&mut self, handlers: &mut [Handler], h: u32) {
        let Some(handler) = at_mut(handlers, h) else { return };
        let link = core::mem::replace(&mut handler.links[WHICH], Link::NONE);
        if !link.linked {
            return;
        }
        match link.before.and_then(|before| at_mut(handlers, before)) {
            Some(before) => before.links[WHICH].after = link.after,
            None => self.first = link.after,
        }
        if let Some(after) = link.after.and_then(|after| at_mut(handlers, after)) {
            after.links[WHICH].before = link.before;
        }
    }

    pub(super) fn pop_front(&mut self, handlers: &mut [Handler]) -> Option<u32> {
        let h = self.first?;
        self.remove(handlers, h);
        Some(h)
    }
}

fn index(h: u32) -> usize {
    usize::try_from(h).unwrap_or(usize::MAX)
}

#[inline]
pub(super) fn at(handlers: &[Handler], h: u32) -> Option<&Handler> {
    handlers.get(index(h))
}

#[inline]
pub(super) fn at_mut(handlers: &mut [Handler], h: u32) -> Option<&mut Handler> {
    handlers.get_mut(index(h))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn order(list: &PollList, handlers: &[Handler]) -> Vec<u32> {
        core::iter::successors(list.first(), |&h| PollList::after(handlers, h)).collect()
    }

    proptest! {
        #[test]
        fn list_agrees_with_a_vector(ops in prop::collection::vec((0u8..3, 0u32..8), 0..64)) {
            let mut handlers = [Handler::new(Kind::Polled); 6];
            let (mut list, mut oracle) = (PollList::EMPTY, Vec::new());
            for (op, h) in ops {
                match op {
                    0 => {
                        list.push_front(&mut handlers, h);
                        oracle.retain(|&other| other != h);
                        if h < 6 {
                            oracle.insert(0, h);
                        }
                    }
                    1 => {
                        list.remove(&mut handlers, h);
                        oracle.retain(|&other| other != h);
                    }
                    _ => {
                        let expected = (!oracle.is_empty()).then(|| oracle.remove(0));
                        prop_assert_eq!(list.pop_front(&mut handlers), expected);
                    }
                }
                prop_assert_eq!(order(&list, &handlers), oracle.clone());
                prop_assert_eq!(list.is_empty(), oracle.is_empty());
                for h in 0..6 {
                    prop_assert_eq!(at(&handlers, h).unwrap().in_poll(), oracle.contains(&h));
                }
            }
        }
    }
}
