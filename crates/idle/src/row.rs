//! What is recorded of a wait.

use crate::Nanos;

/// One wait, in a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// When it began, by the idler's clock.
    pub start: Nanos,
    /// How long it was until the thread ran again: what the policy was taught. Where the thread halted, the
    /// wakeup latency is in it.
    pub idle: Nanos,
    /// How long the policy wanted to poll; the time-out may have been shorter.
    pub window: Nanos,
    /// Whether the thread halted; if not, the event came while it polled.
    pub halted: bool,
    /// After which time others had the CPU, so that polling ended. `None`: nothing was seen of others.
    pub alone: Option<Nanos>,
    /// Who was ready: bit *n* for handler *n*; bit 63 for every handler from 63 on.
    pub ready: u64,
}

/// Where rows go.
pub trait Record {
    /// Whether rows are wanted; a constant, so that nothing is left of a record that is not.
    const WANTED: bool = true;
    /// Takes the row of a finished wait; must not block.
    fn row(&mut self, row: &Row);
}

/// Nothing is recorded.
impl Record for () {
    const WANTED: bool = false;
    #[inline]
    fn row(&mut self, _: &Row) {}
}

impl<R: Record + ?Sized> Record for &mut R {
    #[inline]
    fn row(&mut self, row: &Row) {
        (**self).row(row);
    }
}

/// The bits of these handlers.
#[inline]
pub(crate) fn mask(ready: &[u32]) -> u64 {
    ready.iter().fold(0, |mask, handler| mask | 1 << (*handler).min(63))
}
