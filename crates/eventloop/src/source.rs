//! What a loop watches.

use rustix::fd::BorrowedFd;

/// Names a source of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub(crate) u32);

impl SourceId {
    /// The source of this number; they are given from 0.
    pub const fn of(number: u32) -> SourceId {
        SourceId(number)
    }

    /// Its number: what a policy gets as the handler that was ready, and what a recording has.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Something that has events.
pub trait Source {
    /// Whether there is something to do. Loads only: it is called in every round of polling.
    fn look(&mut self) -> bool;

    /// No notifications from here: the loop is awake and looks. One that comes all the same does no harm.
    fn quiet(&mut self) {}

    /// Notifications from here: the loop is about to sleep, and looks once more after this and a full fence
    /// of its own. Whoever notifies needs one too, between the event and the test whether to notify.
    fn loud(&mut self) {}

    /// Does what there is to do, in at most `budget` units. Whether there is more. Called without anything to
    /// do now and then.
    fn run(&mut self, budget: u32) -> bool;

    /// The file descriptor that notifications make readable; it is never read and need not be drained.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
