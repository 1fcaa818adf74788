//! What is due at a time.

use dwell_idle::Nanos;
use std::collections::BTreeMap;
use std::time::Duration;

/// Names a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TimerId(u64);

type Callback<'a> = Box<dyn FnMut() -> Option<Duration> + 'a>;

/// Timers in the order of their times; of equals the older first.
#[derive(Default)]
pub(crate) struct Timers<'a> {
    due: BTreeMap<(u64, u64), Callback<'a>>,
    next: u64,
}

impl<'a> Timers<'a> {
    pub(crate) fn add(&mut self, at: Nanos, callback: Callback<'a>) -> TimerId {
        self.next += 1;
        self.due.insert((at.get(), self.next), callback);
        TimerId(self.next)
    }

    pub(crate) fn remove(&mut self, id: TimerId) -> bool {
        let found = self.due.keys().find(|(_, number)| *number == id.0).copied();
        found.is_some_and(|key| self.due.remove(&key).is_some())
    }

    /// When the first one is due.
    pub(crate) fn first(&self) -> Option<Nanos> {
        self.due.keys().next().map(|&(at, _)| Nanos(at))
    }

    /// Runs those that are due now, each once; whether there were any. The time is only asked for if there are timers.
    pub(crate) fn run(&mut self, now: impl FnOnce() -> Nanos) -> bool {
        let Some(first) = self.first() else { return false };
        let now = now();
        if first > now {
            return false;
        }
        // One at a time, for where a callback panics the others stay.
        for _ in 0..self.due.range(..=(now.get(), u64::MAX)).count() {
            let Some(((_, number), mut callback)) = self.due.pop_first() else { break };
            if let Some(again) = callback() {
                let after = u64::try_from(again.as_nanos()).unwrap_or(u64::MAX).max(1);
                self.due.insert((now.get().saturating_add(after), number), callback);
            }
        }
        true
    }
}
