//! How long a thread waits for monitors, in all.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static ENDS: Cell<Option<Instant>> = const { Cell::new(None) };
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs `work`, in which this thread waits for monitors until a deadline, however many it connects to; within another one
/// the earlier deadline counts. Returns as well how long it waited.
pub fn within<T>(at_most: Duration, work: impl FnOnce() -> T) -> (T, Duration) {
    /// Also where `work` panics.
    struct Before(Option<Instant>);
    impl Drop for Before {
        fn drop(&mut self) {
            ENDS.set(self.0);
        }
    }
    let _before = Before(ENDS.get());
    ENDS.set(Some(earlier(Instant::now() + at_most)));
    let waited = WAITED.get();
    let result = work();
    (result, WAITED.get().saturating_sub(waited))
}

/// This deadline, or that of [`within`].
pub(super) fn earlier(deadline: Instant) -> Instant {
    ENDS.get().map_or(deadline, |ends| ends.min(deadline))
}

/// The time that passes until it is dropped is waited.
pub(super) struct Waiting(Instant);

impl Waiting {
    pub(super) fn begin() -> Waiting {
        Waiting(Instant::now())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITED.set(WAITED.get() + self.0.elapsed());
    }
}
