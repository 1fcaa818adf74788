//! What a policy that learns may still lose, so that it is never much worse than the ski-rental rule.
//!
//! # The idea
//! A learner is good on loads that go on as they did and bad on others. The ski-rental rule (poll for *K*,
//! the halt cost, then halt) learns nothing and pays at most twice what the optimum pays, whatever the
//! episodes. So a learner gets an *account*: it holds what the learner has saved against twice the optimum's
//! cost, and each window may risk at most half of the balance. A full account does not restrict it; an empty
//! one makes it the ski-rental rule.
//!
//! # The steps
//! *B* is the balance, from 0 to [`LIMIT`] · *K*; it begins there. With *r* = ⌊*B*/2⌋,
//! 1. the window that the learner chose is clamped to *K* − *r* ..= *K* + *r* ([`Account::allow`]);
//! 2. after an episode of length *d* that cost *c*, *B* becomes *B* + 2 · min(*d*, *K*) − *c*, at most the limit
//!    ([`Account::settle`]).
//!
//! # The bound
//! **Over any consecutive episodes, from the first on or later, the cost is at most twice the
//! optimum's plus [`LIMIT`] · *K*.** Proof: an episode changes the balance by at most Δ = 2 · min(*d*, *K*) − *c*, so
//! the costs of a stretch sum up to at most 2 · the optimum's + the balance before it − the balance after it. The
//! former is at most the limit. The latter is never negative, since Δ ≥ −*r* under any window *w* from *K* − *r* to
//! *K* + *r*:
//!
//! | episode | cost | Δ | because |
//! |---|---|---|---|
//! | *d* ≤ *w*, *d* ≤ *K* | *d* | *d* | ≥ 0 |
//! | *d* ≤ *w*, *d* > *K* | *d* | 2*K* − *d* ≥ 2*K* − *w* | ≥ *K* − *r* |
//! | *d* > *w*, *d* ≤ *K* | *w* + *K* | 2*d* − *w* − *K* > *w* − *K* | ≥ −*r* |
//! | *d* > *w*, *d* > *K* | *w* + *K* | *K* − *w* | ≥ −*r* |
//!
//! The factor cannot be less: if every episode ends right after the window, a deterministic policy pays *w* + *K* where
//! min(*w*, *K*) would do, and that is twice as much or more.
//!
//! # Limits
//! The bound is on the cost of the episodes by the lengths that the policy gets. A wakeup latency in them has
//! to be taken out first ([`Late`](crate::late::Late)). An adversary that sees the account can keep it near
//! empty; the policy is then the ski-rental rule, no worse; any episode shorter than *K* fills it again.

use crate::Nanos;

/// The most that the account holds, in halts. Four are needed to allow every window from 0 to 2*K* after one
/// loss; 8 and 64 gave the same costs to four digits on the recordings that come with dwell.
pub const LIMIT: u64 = 4;

/// The longest halt cost that is counted with \[ns\], 4.3 s; a higher one is taken as this.
pub const MOST: Nanos = Nanos(u32::MAX as u64);

/// A learner's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    halt_cost: u64,
    balance: u64,
}

impl Account {
    /// A full account at this halt cost, at most [`MOST`].
    pub const fn new(halt_cost: Nanos) -> Account {
        let halt_cost = if halt_cost.0 < MOST.0 { halt_cost.0 } else { MOST.0 };
        Account { halt_cost, balance: LIMIT * halt_cost }
    }

    /// CPU time of one halt and wakeup.
    #[inline]
    pub const fn halt_cost(&self) -> Nanos {
        Nanos(self.halt_cost)
    }

    /// What may still be lost \[ns\].
    #[inline]
    pub const fn balance(&self) -> Nanos {
        Nanos(self.balance)
    }

    /// The window nearest to the wanted one that risks at most half of the balance.
    #[inline]
    pub fn allow(&self, wanted: Nanos) -> Nanos {
        let risk = self.balance / 2;
        Nanos(wanted.0.clamp(self.halt_cost.saturating_sub(risk), self.halt_cost + risk))
    }

    /// Settles an episode of length `idle` that was begun under `window`, which [`Account::allow`] gave.
    #[inline]
    pub fn settle(&mut self, window: Nanos, idle: Nanos) {
        // No sum here leaves 40 bits: halt cost, window, and with them what is added are below 8 * 2^32.
        let cost = if idle <= window { idle.0 } else { window.0 + self.halt_cost };
        let credit = self.balance + 2 * idle.0.min(self.halt_cost);
        // Never negative by the proof above; saturating, so that a window that was not allowed does no harm.
        self.balance = credit.saturating_sub(cost).min(LIMIT * self.halt_cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_window_that_is_allowed_loses_more_than_half(
            k in 0u64..1 << 33, losses in prop::collection::vec((any::<u64>(), any::<u64>()), 0..60),
        ) {
            let mut account = Account::new(Nanos(k));
            let k = account.halt_cost().get();
            for (wanted, idle) in losses {
                let before = account.balance().get();
                let window = account.allow(Nanos(wanted % (4 * k + 2)));
                // Lengths around the window and the halt cost lose most.
                for idle in [idle, window.get(), window.get() + 1, k, k + 1, 0, 1] {
                    let mut after = account;
                    after.settle(window, Nanos(idle));
                    prop_assert!(after.balance().get() >= before - before / 2, "{window} {idle}");
                }
                account.settle(window, Nanos(idle % (4 * k + 2)));
            }
        }
    }

    #[test]
    fn full_account_allows_every_window_and_an_empty_one_only_the_halt_cost() {
        let full = Account::new(Nanos(1_000));
        let wide = [0, 1, 1_000, 3_000].map(Nanos);
        assert_eq!(wide.map(|wanted| full.allow(wanted)), wide);
        let empty = Account { balance: 1, ..full };
        assert_eq!(wide.map(|wanted| empty.allow(wanted)), [Nanos(1_000); 4]);
    }
}
