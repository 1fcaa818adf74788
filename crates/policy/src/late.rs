//! Lengths that include the wakeup latency, corrected before a policy learns from them.
//!
//! A kernel or a VMM measures the end of an episode when the idler runs again. Where it halted, that is later than the
//! wakeup event by the wakeup latency *L*, so the measured length is *d* + *L*; where the poll saw the event,
//! it is *d*. A policy that learns from these lengths takes short episodes for long ones once it halts in
//! them, and if *L* is near the halt cost, it never polls again.
//!
//! [`Late`] takes a calibrated *L* (`dwell-lab calibrate`) out of the lengths of episodes that outlasted
//! their window. An error of a quarter of the halt cost does little harm. Where the event itself has a time
//! stamp, *L* is 0.

use crate::{Nanos, Outcome, Policy};

/// A policy that gets lengths with the wakeup latency in them, and learns from lengths without.
#[derive(Clone, Copy, Debug)]
pub struct Late<P> {
    policy: P,
    wake_latency: Nanos,
    window: Nanos,
}

impl<P> Late<P> {
    /// The policy; halted episodes are measured longer by the latency, which is zero where the event has a time stamp.
    pub const fn new(policy: P, wake_latency: Nanos) -> Late<P> {
        Late { policy, wake_latency, window: Nanos::ZERO }
    }

    /// The policy.
    pub const fn policy(&self) -> &P {
        &self.policy
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
    fn longest_gap(&self) -> Nanos {
        self.policy.longest_gap()
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        let mut idle = outcome.idle;
        if idle > self.window {
            // Whatever the latency was, the episode did outlast the window.
            idle = idle.saturating_sub(self.wake_latency).max(Nanos(self.window.0 + 1));
        }
        let late = Nanos(outcome.late.0.saturating_add(outcome.idle.0 - idle.0));
        self.policy.observe(Outcome { idle, late, ..outcome });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls for 100 ns and keeps the last length, and what was taken out of it.
    struct Keeper(Nanos, Nanos);

    impl Policy for Keeper {
        fn window(&mut self) -> Nanos {
            Nanos(100)
        }
        fn observe(&mut self, outcome: Outcome<'_>) {
            (self.0, self.1) = (outcome.idle, outcome.late);
        }
    }

    #[test]
    fn latency_is_taken_out_of_halted_episodes_alone() {
        let mut late = Late::new(Keeper(Nanos::ZERO, Nanos::ZERO), Nanos(30));
        for (measured, expected) in [(0, 0), (100, 100), (101, 101), (130, 101), (131, 101), (500, 470)] {
            late.window();
            late.observe(Outcome::of(Nanos(measured)));
            assert_eq!(late.policy().0, Nanos(expected), "{measured}");
            assert_eq!(late.policy().1, Nanos(measured - expected), "{measured}");
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
