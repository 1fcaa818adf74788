//! The policies of the idle driver dwell_idle, with its parameters.
//!
//! The driver (`kernel/dwell_idle`) polls for the window that its policy gives, but never for longer than
//! `max_window_ns`. What its policies learn from is the length without the wakeup latency, see
//! [`late`](crate::late). The module is compared with this crate, window by window, by `make -C
//! kernel/dwell_idle test`.

use crate::late::Late;
use crate::leader::Leader;
use crate::reference::Fixed;
use crate::savings::Savings;
use crate::{Nanos, Outcome, Policy};

/// The parameter `policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// [`Leader`].
    #[default]
    Leader,
    /// [`Savings`].
    Savings,
    /// Always the longest window.
    Fixed,
    /// Halts at once.
    Never,
}

/// The parameters of the driver. A cost of zero is zero here; the driver measures it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// What a halt and the wakeup from it are worth.
    pub halt_cost: Nanos,
    /// How much later a halted CPU runs again.
    pub wake_latency: Nanos,
    /// The longest window.
    pub max_window: Nanos,
    /// The policy.
    pub choice: Choice,
}

/// What the driver does on one CPU.
#[derive(Clone, Debug)]
pub struct Driver(Late<Capped>);

impl Driver {
    /// Begins without experience.
    pub const fn new(params: Params) -> Driver {
        let policy = match params.choice {
            Choice::Leader => Chosen::Leader(Leader::new(params.halt_cost)),
            Choice::Savings => Chosen::Savings(Savings::new(params.halt_cost)),
            Choice::Fixed => Chosen::Fixed(Fixed(params.max_window)),
            Choice::Never => Chosen::Fixed(Fixed(Nanos::ZERO)),
        };
        Driver(Late::new(Capped { policy, longest: params.max_window }, params.wake_latency))
    }
}

impl Policy for Driver {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.0.window()
    }

    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        self.0.window_after(busy)
    }

    #[inline]
    fn longest_gap(&self) -> Nanos {
        self.0.longest_gap()
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        self.0.observe(outcome);
    }
}

/// A policy whose windows are cut to the longest; its [account](crate::account) is charged for what was polled.
#[derive(Clone, Debug)]
struct Capped {
    policy: Chosen,
    longest: Nanos,
}

// One for each CPU; there is no allocator to put the largest elsewhere.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
enum Chosen {
    Leader(Leader),
    Savings(Savings),
    Fixed(Fixed),
}

impl Policy for Capped {
    fn window(&mut self) -> Nanos {
        self.window_after(Nanos::ZERO)
    }

    fn window_after(&mut self, busy: Nanos) -> Nanos {
        match &mut self.policy {
            Chosen::Leader(policy) => {
                policy.window_after(busy);
                policy.cut(self.longest)
            }
            Chosen::Savings(policy) => {
                policy.window_after(busy);
                policy.cut(self.longest)
            }
            Chosen::Fixed(policy) => policy.window_after(busy),
        }
    }

    fn longest_gap(&self) -> Nanos {
        match &self.policy {
            Chosen::Leader(policy) => policy.longest_gap(),
            Chosen::Savings(policy) => policy.longest_gap(),
            Chosen::Fixed(policy) => policy.longest_gap(),
        }
    }

    fn observe(&mut self, outcome: Outcome<'_>) {
        match &mut self.policy {
            Chosen::Leader(policy) => policy.observe(outcome),
            Chosen::Savings(policy) => policy.observe(outcome),
            Chosen::Fixed(policy) => policy.observe(outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(choice: Choice, max_window: u64) -> Driver {
        let halt_cost = Nanos(20_000);
        Driver::new(Params { halt_cost, wake_latency: Nanos(5_000), max_window: Nanos(max_window), choice })
    }

    #[test]
    fn windows_are_those_of_the_policy_up_to_the_longest() {
        for (choice, most) in [(Choice::Fixed, 50_000), (Choice::Leader, 50_000), (Choice::Never, 0)] {
            let (mut free, mut capped) = (driver(choice, 50_000), driver(choice, 3_000));
            let mut longest = Nanos::ZERO;
            for episode in 0..200 {
                let busy = Nanos(1_000);
                let (window, cut) = (free.window_after(busy), capped.window_after(busy));
                assert!(window <= Nanos(most), "{choice:?}");
                assert!(cut <= Nanos(3_000), "{choice:?}");
                longest = longest.max(window);
                let idle = Nanos(if episode % 2 == 0 { 8_000 } else { 9_000 });
                free.observe(Outcome::of(idle));
                capped.observe(Outcome::of(idle));
            }
            assert_eq!(longest > Nanos::ZERO, choice != Choice::Never, "{choice:?}");
        }
    }

    #[test]
    fn without_a_limit_it_is_the_policy_that_it_names() {
        let (halt_cost, wake_latency) = (Nanos(20_000), Nanos(5_000));
        let mut leader = Late::new(Leader::new(halt_cost), wake_latency);
        let mut savings = Late::new(Savings::new(halt_cost), wake_latency);
        let (mut first, mut second) = (driver(Choice::Leader, 1 << 32), driver(Choice::Savings, 1 << 32));
        let (mut polled, mut number) = (0, 1_u64);
        for _ in 0..5_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (busy, idle) = (Nanos(number >> 50), Nanos(if number >> 63 == 0 { 8_000 } else { 60_000 }));
            let windows = [leader.window_after(busy), savings.window_after(busy)];
            assert_eq!([first.window_after(busy), second.window_after(busy)], windows);
            polled += u32::from(windows[0] > Nanos(1));
            let outcome = Outcome::of(idle);
            leader.observe(outcome);
            savings.observe(outcome);
            first.observe(outcome);
            second.observe(outcome);
        }
        assert!((500..4_500).contains(&polled), "{polled}");
    }
}
