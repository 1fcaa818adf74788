//! One integer: what polling has saved.
//!
//! # The idea
//! With *K* for the halt cost, there are two simple ways: halt at once, or poll for up to *K*. At the end of
//! an episode of length *d*, the cost of both is known, whichever was taken: *K* against *d* if *d* ≤ *K*,
//! else *K* against 2*K*. So no experiment is needed. The *savings* are the sum of what polling would have
//! saved, old episodes counting less and less; poll if they are positive.
//!
//! # The steps
//! 1. [`Savings::window`](Policy::window): *K* if the savings are above zero, else 0; within what the
//!    [account](crate::account) allows.
//! 2. [`Savings::observe`](Policy::observe): savings += (*d* ≤ *K* ? *K* − *d* : −*K*) − savings / 16, a shift.
//!
//! # The worst case
//! The account makes it what [its page](crate::account) proves: over any consecutive episodes the cost is at most twice
//! the optimum's plus 4*K*. Without it, alternating long and instant episodes make the savings err every time, at three
//! times the optimum's cost.
//!
//! # What it needs
//! The length up to the wakeup event, without the wakeup latency ([`Late`](crate::late::Late) takes it out).
//! Not the busy time. 24 bytes: the savings, and two integers that guard them.
//!
//! # Limits
//! It follows one load at a time: where short and long episodes alternate in a pattern,
//! [`leader`](crate::leader) uses the pattern. The savings are within ±(16*K* + 16): where a sixteenth of
//! them is more than *K*, no step leads further out.

use crate::account::Account;
use crate::{Nanos, Outcome, Policy};

/// Each episode an old one counts 1/16 less. On the fitted half of the bundled recordings (see
/// [`leader`](crate::leader)) this did best of the powers of two from 8 to 512 at halts of 5 and 20 us; at 50
/// us the mean of 8 was 0.01 lower and that of 64 0.02 higher.
const MEMORY: u32 = 4;

/// Polls for the halt cost as long as that has saved CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Savings {
    savings: i64,
    account: Account,
    window: Nanos,
}

impl Savings {
    /// At this halt cost; without any savings.
    pub const fn new(halt_cost: Nanos) -> Savings {
        Savings { savings: 0, account: Account::new(halt_cost), window: Nanos::ZERO }
    }

    /// What it may still lose; see [`account`](crate::account).
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// As [`Leader::cut`](crate::leader::Leader::cut).
    #[inline]
    pub(crate) fn cut(&mut self, longest: Nanos) -> Nanos {
        self.window = self.window.min(longest);
        self.window
    }
}

impl Policy for Savings {
    #[inline]
    fn window(&mut self) -> Nanos {
        self.window_after(Nanos::ZERO)
    }

    /// The busy time counts only while it [gives way](Account::gives_way).
    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        let wanted = if self.savings > 0 { self.account.halt_cost() } else { Nanos::ZERO };
        self.window = self.account.allow(busy, wanted);
        self.window
    }

    #[inline]
    fn longest_gap(&self) -> Nanos {
        self.account.longest_gap()
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        if !self.account.settle(self.window, &outcome) {
            return;
        }
        // At most 2^32 - 1.
        let halt_cost = self.account.halt_cost().0 as i64;
        let saved = match halt_cost.checked_sub_unsigned(outcome.idle.0) {
            Some(saved) if saved >= 0 => saved,
            _ => -halt_cost,
        };
        self.savings += saved - (self.savings >> MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(policy: &mut Savings, idle: impl IntoIterator<Item = u64>) -> Nanos {
        for idle in idle {
            policy.window();
            policy.observe(Outcome::of(Nanos(idle)));
        }
        policy.window()
    }

    #[test]
    fn short_episodes_are_polled_through_and_long_ones_are_not() {
        let k = Nanos(20_000);
        let mut policy = Savings::new(k);
        assert_eq!(windows(&mut policy, []), Nanos::ZERO);
        assert_eq!(windows(&mut policy, [5_000; 100]), k);
        assert_eq!(windows(&mut policy, [500_000; 100]), Nanos::ZERO);
        // Half of them short, and each saves less than a long one loses.
        assert_eq!(windows(&mut policy, [5_000, 500_000].repeat(200)), Nanos::ZERO);
        // Three of four.
        assert_eq!(windows(&mut policy, [5_000, 5_000, 5_000, 500_000].repeat(200)), k);
    }

    #[test]
    fn savings_stay_within_sixteen_halts() {
        let mut policy = Savings::new(Nanos::MAX);
        let k = policy.account.halt_cost().0 as i64;
        windows(&mut policy, [0; 2_000]);
        assert!((15 * k..=16 * k + 16).contains(&policy.savings), "{}", policy.savings);
        windows(&mut policy, [u64::MAX; 4_000]);
        assert!((-16 * k - 16..=-15 * k).contains(&policy.savings), "{}", policy.savings);
    }

    #[test]
    fn free_halts_are_never_put_off() {
        assert_eq!(windows(&mut Savings::new(Nanos::ZERO), [0, 1, 5, 0]), Nanos::ZERO);
    }
}
