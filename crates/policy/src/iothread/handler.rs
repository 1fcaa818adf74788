//! The handlers of a context.

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
}

/// One handler of a context: what it can do, and its state in the context.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handler {
    /// Its own polling time (per-handler revision) or smoothed block time (weighted revision) (ns).
    pub(super) ns: i64,
    /// The stamp of the block after which it was last dispatched (weighted revision).
    pub(super) timestamp: i64,
    /// Whether it is on the poll list.
    pub(super) in_poll: bool,
    pub(super) kind: Kind,
}

impl Handler {
    /// A handler as it is right after registration.
    pub const fn new(kind: Kind) -> Handler {
        Handler { kind, ns: 0, timestamp: 0, in_poll: false }
    }

    /// Its own polling time (per-handler revision) or smoothed block time (weighted revision) (ns); 0 in the
    /// global revision.
    pub const fn ns(&self) -> i64 {
        self.ns
    }

    /// Whether it is on the poll list: since its file descriptor first became ready, until it is removed.
    pub const fn in_poll(&self) -> bool {
        self.in_poll
    }
}
