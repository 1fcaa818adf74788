//! Lengths that include the wake-up latency, put right before a policy learns from them.
//!
//! A kernel or a VMM learns of the end of an episode when the idler runs again. Where it halted, that is later than the
//! wake event by the wake-up latency *L*, so the length that it measures is *d* + *L*; where the poll saw the event, it
//! is *d*. A rule that learns from lengths then takes short episodes for long ones as soon as it halts in them, and the
//! nearer *L* comes to what a halt is worth, the more surely it never polls again: it has made its own evidence.
//!
//! [`Late`] takes a calibrated *L* (`dwell lab calibrate`) out of the lengths of episodes that outlasted their window. An
//! error of a quarter of the halt cost does little harm. Whoever can stamp the event itself needs none of this: *L* is 0.

use crate::{Nanos, Outcome, Policy};

/// A policy that is told lengths with the wake-up latency in them, and learns from lengths without.
#[derive(Clone, Copy, Debug)]
pub struct Late<P> {
    policy: P,
    wake_latency: Nanos,
    window: Nanos,
}

impl<P> Late<P> {
    /// The policy, told that halted episodes look so much longer than they are; zero where the event itself is stamped.
    pub const fn new(policy: P, wake_latency: Nanos) -> Late<P> {
        Late { policy, wake_latency, window: Nanos::ZERO }
    }

    /// The policy.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// The policy itself, for whoever knows when the event came and need not correct anything.
    pub const fn exact(&mut self) -> &mut P {
        &mut self.policy
    }
}

impl<P: Policy> Policy for Late<P> {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.window = self.policy.window();
        self.window
    }

    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        self.window = self.policy.window_after(busy);
        self.window
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        let mut idle = outcome.idle;
        if idle > self.window {
            // Whatever the latency was, the episode did outlast the window.
            idle = idle.saturating_sub(self.wake_latency).max(Nanos(self.window.0 + 1));
        }
        self.policy.observe(Outcome { idle, ..outcome });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls for 100 ns and keeps what it was told.
    struct Told(Nanos);

    impl Policy for Told {
        fn window(&mut self) -> Nanos {
            Nanos(100)
        }
        fn observe(&mut self, outcome: Outcome<'_>) {
            self.0 = outcome.idle;
        }
    }

    #[test]
    fn latency_is_taken_out_of_halted_episodes_alone() {
        let mut late = Late::new(Told(Nanos::ZERO), Nanos(30));
        for (seen, told) in [(0, 0), (100, 100), (101, 101), (130, 101), (131, 101), (500, 470)] {
            late.window();
            late.observe(Outcome::of(Nanos(seen)));
            assert_eq!(late.policy().0, Nanos(told), "{seen}");
        }
        late.window_after(Nanos(7));
        late.observe(Outcome::of(Nanos::MAX));
        assert_eq!(late.policy().0, Nanos(u64::MAX - 30));
    }

    #[test]
    fn endless_window_is_outlasted_by_nothing() {
        let mut late = Late::new(crate::reference::Always, Nanos(30));
        late.window();
        late.observe(Outcome::of(Nanos::MAX));
    }
}
