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
//! # A core that is shared
//! A poll takes the time of whoever else wants the CPU. A guest or a thread cannot see that anyone does, but where the
//! clock jumps by more than [`Account::longest_gap`] between two readings, another has run. The time lost, *s*,
//! is what the scheduler gave to the other, which may have waited for a slice before, even if it then ran for less. It
//! is charged as if it had been polled:
//! 1. the poll ends, and *B* becomes −(1000 · *s* + 500 · *K*), with *s* at most [`MOST_LOST`];
//! 2. while *B* < 0 the policy *gives way*: every window is 0, and *B* grows by the time that passes: busy, and idle with
//!    the wakeup latency, each counted up to 500 · *K* in an episode;
//! 3. at 0 it polls again, as with an empty account.
//!
//! So of losses up to [`MOST_LOST`] a thousandth of the time is lost in tries that fail, and of longer ones *s* in each 0.8 s; and
//! where the other waits ten times as long as it then runs, 1 %. With a hundredth, another that computes for 0.3 ms at a time lost
//! 4 % of its work, and with this no part of it that can be measured (`dwell-lab neighbour`). A CPU that is left alone again is
//! polled on after at most 0.8 s and 500 halts where neither waits nor work last longer than 500 · *K*;
//! sparse loads, which have little to gain, take longer. Lengths that end while the policy gives way, or with
//! a loss, are not learned from: the other's slices are in them.
//!
//! **The one constant is the longest gap, [`LIMIT`] · *K*.** A look takes tens of nanoseconds, and an interrupt or an
//! exit of the guest less than *K*, for a halt has two switches and more. No window is longer than 3*K*, so that a
//! longer gap is no poll, even of a loop that never reads its clock in between; and it is more than a full
//! account can pay. The slices of Linux's fair scheduler are from 0.7 ms on: seen for every *K* up to 175 us.
//!
//! # The bound
//! **Over any consecutive episodes, from the first on or later, the cost is at most twice the
//! optimum's plus [`LIMIT`] · *K*, and plus [`MOST_LOST`] where the core is shared.** The cost is the time polled, the
//! time lost to others in polls (each loss counted up to [`MOST_LOST`]), and the halts. The optimum gives way
//! too: where the policy does, it may not poll either, and pays *K*. KVM's own polling is such a rule.
//!
//! Proof: let Ψ be *B* where that is not negative, and else *B*/1000 + *K*/2. An episode, with the busy time before it,
//! changes Ψ by at most Δ = 2 · the optimum's cost − *c*, so the costs of a stretch sum up to at most 2 · the
//! optimum's + Ψ before it − Ψ after it. The former is at most the limit. The latter is not below
//! −[`MOST_LOST`], for without losses Δ ≥ −*r* under any window *w* from *K* − *r* to *K* + *r*:
//!
//! | episode | cost | Δ | because |
//! |---|---|---|---|
//! | *d* ≤ *w*, *d* ≤ *K* | *d* | *d* | ≥ 0 |
//! | *d* ≤ *w*, *d* > *K* | *d* | 2*K* − *d* ≥ 2*K* − *w* | ≥ *K* − *r* |
//! | *d* > *w*, *d* ≤ *K* | *w* + *K* | 2*d* − *w* − *K* > *w* − *K* | ≥ −*r* |
//! | *d* > *w*, *d* > *K* | *w* + *K* | *K* − *w* | ≥ −*r* |
//! | with a loss *s* | one of these + *s* | | ≥ −*r* − *s* ≥ −*s* − Ψ before it; Ψ becomes −*s* |
//! | gives way | *K* | *K* | (500*K* + 500*K*)/1000 at most is added to Ψ |
//! | busy time that ends it | | | adds *K*/2 to Ψ at most, and *K*/2 is taken where *B* is 0 |
//!
//! The factor cannot be less: if every episode ends right after the window, a deterministic policy pays *w* + *K* where
//! min(*w*, *K*) would do, and that is twice as much or more.
//!
//! # Limits
//! The bound is on the cost of the episodes by the lengths that the policy gets. A wakeup latency in them has
//! to be taken out first ([`Late`](crate::late::Late)). An adversary that sees the account can keep it near
//! empty; the policy is then the ski-rental rule, no worse; any episode shorter than *K* fills it again.
//!
//! A neighbour is noticed only when it gets the CPU during a poll. An idler that takes less than its share,
//! polls included, is never preempted, and its polls take of the neighbour's time what they cost.

use crate::{Nanos, Outcome};

/// The most that the account holds, in halts. Four are needed to allow every window from 0 to 2*K* after one
/// loss; 8 and 64 gave the same costs to four digits on the recordings that come with dwell.
pub const LIMIT: u64 = 4;

/// The longest halt cost that is counted with \[ns\], 4.3 s; a higher one is taken as this.
pub const MOST: Nanos = Nanos(u32::MAX as u64);

/// What is charged for one loss at most: a thousandth of the 0.8 s after which polling is tried again.
pub const MOST_LOST: Nanos = Nanos(800_000);

/// Time without polling for each nanosecond lost.
const PER_LOSS: u64 = 1_000;

/// How much of a busy and of an idle time is counted towards the next try \[halts\]: a thousandth of both together is one halt.
const COUNTED: u64 = PER_LOSS / 2;

/// A learner's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    halt_cost: u64,
    /// What may still be lost; where negative, the time that has to pass before the next poll.
    balance: i64,
}

impl Account {
    /// A full account at this halt cost, at most [`MOST`].
    pub const fn new(halt_cost: Nanos) -> Account {
        let halt_cost = if halt_cost.0 < MOST.0 { halt_cost.0 } else { MOST.0 };
        Account { halt_cost, balance: (LIMIT * halt_cost) as i64 }
    }

    /// CPU time of one halt and wakeup.
    #[inline]
    pub const fn halt_cost(&self) -> Nanos {
        Nanos(self.halt_cost)
    }

    /// What may still be lost \[ns\].
    #[inline]
    pub const fn balance(&self) -> Nanos {
        Nanos(if self.gives_way() { 0 } else { self.balance.unsigned_abs() })
    }

    /// Whether the policy does not poll because others want the CPU.
    #[inline]
    pub const fn gives_way(&self) -> bool {
        self.balance < 0
    }

    /// The longest gap between two readings of the clock that is no preemption.
    #[inline]
    pub const fn longest_gap(&self) -> Nanos {
        Nanos(LIMIT * self.halt_cost)
    }

    /// The window nearest to the wanted one that risks at most half of the balance, after `busy` of work; none while the
    /// policy gives way.
    #[inline]
    pub fn allow(&mut self, busy: Nanos, wanted: Nanos) -> Nanos {
        if self.gives_way() {
            self.pass(busy);
            if self.gives_way() {
                return Nanos::ZERO;
            }
        }
        let risk = self.balance.unsigned_abs() / 2;
        Nanos(wanted.0.clamp(self.halt_cost.saturating_sub(risk), self.halt_cost + risk))
    }

    /// Settles an episode that was begun under `window`, which [`Account::allow`] gave. Whether its length is the load's,
    /// so that it can be learned from.
    #[inline]
    #[must_use]
    pub fn settle(&mut self, window: Nanos, outcome: &Outcome<'_>) -> bool {
        let Outcome { idle, late, lost, .. } = *outcome;
        if lost > Nanos::ZERO {
            let pause = PER_LOSS * lost.0.min(MOST_LOST.0) + COUNTED * self.halt_cost;
            // Below 2^30 + 500 * 2^32.
            self.balance = self.balance.min(-(pause as i64));
            return false;
        }
        if self.gives_way() {
            self.pass(Nanos(idle.0.saturating_add(late.0)));
            return false;
        }
        // No sum here leaves 40 bits: halt cost, window, and with them what is added are below 8 * 2^32.
        let cost = if idle <= window { idle.0 } else { window.0.saturating_add(self.halt_cost) };
        let credit = self.balance.unsigned_abs() + 2 * idle.0.min(self.halt_cost);
        // Never negative by the proof above; all saturates, so that a window that was not allowed does no harm.
        self.balance = credit.saturating_sub(cost).min(LIMIT * self.halt_cost) as i64;
        true
    }

    /// So much time has passed without polling.
    fn pass(&mut self, time: Nanos) {
        let counted = time.0.min(COUNTED * self.halt_cost);
        self.balance = (self.balance + counted as i64).min(0);
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
                let window = account.allow(Nanos::ZERO, Nanos(wanted % (4 * k + 2)));
                // Lengths around the window and the halt cost lose most.
                for idle in [idle, window.get(), window.get() + 1, k, k + 1, 0, 1] {
                    let mut after = account;
                    prop_assert!(after.settle(window, &Outcome::of(Nanos(idle))));
                    prop_assert!(after.balance().get() >= before - before / 2, "{window} {idle}");
                }
                let _ = account.settle(window, &Outcome::of(Nanos(idle % (4 * k + 2))));
            }
        }

        /// By a clock beside it: after a loss nothing is polled for a thousand times as long, or 0.8 s.
        #[test]
        fn losses_are_at_most_a_thousandth_of_the_time(
            k in 1u64..1 << 20,
            episodes in prop::collection::vec((0u64..1 << 22, 0u64..1 << 22, 0u64..1 << 25), 1..400),
        ) {
            let mut account = Account::new(Nanos(k));
            let (mut passed, mut due) = (0, 0);
            for (busy, idle, lost) in episodes {
                passed += busy;
                let window = account.allow(Nanos(busy), Nanos(k));
                prop_assert_eq!(window == Nanos::ZERO, account.gives_way());
                if window == Nanos::ZERO {
                    let late = lost / 2;
                    passed += idle + late;
                    let outcome = Outcome { late: Nanos(late), ..Outcome::of(Nanos(idle)) };
                    prop_assert!(!account.settle(window, &outcome));
                    continue;
                }
                passed += idle;
                prop_assert!(passed >= due, "{passed} {due}");
                let counted = lost.min(MOST_LOST.get());
                let outcome = Outcome::of(Nanos(idle + lost)).losing(Nanos(lost));
                prop_assert_eq!(account.settle(window, &outcome), lost == 0);
                (passed, due) = (0, 1_000 * counted);
            }
        }
    }

    #[test]
    fn it_gives_way_for_as_long_as_waits_and_work_take() {
        let k = Nanos(20_000);
        let mut account = Account::new(k);
        assert!(!account.settle(k, &Outcome::of(Nanos(320_000)).losing(Nanos(300_000))));
        let mut passed = 0;
        while account.allow(Nanos(10_000), k) == Nanos::ZERO {
            assert!(!account.settle(Nanos::ZERO, &Outcome::of(Nanos(30_000))));
            passed += 40_000;
        }
        // 1,000 times 0.3 ms, and 500 halts.
        assert!((300_000_000..=310_040_000).contains(&passed), "{passed}");
        assert_eq!(account.balance(), Nanos::ZERO);
        // However long the loss and the waits.
        let _ = account.settle(k, &Outcome::of(Nanos::MAX).losing(Nanos::MAX));
        let mut episodes = 0;
        while account.allow(Nanos::MAX, k) == Nanos::ZERO {
            let _ = account.settle(Nanos::ZERO, &Outcome::of(Nanos::MAX));
            episodes += 1;
        }
        assert_eq!(episodes, 800_000 / 20_000);
    }

    /// It overflowed.
    #[test]
    fn window_that_was_not_allowed_empties_the_account() {
        let mut account = Account::new(Nanos(1_000));
        assert!(account.settle(Nanos(u64::MAX - 1), &Outcome::of(Nanos::MAX)));
        assert_eq!(account.balance(), Nanos::ZERO);
    }

    #[test]
    fn full_account_allows_every_window_and_an_empty_one_only_the_halt_cost() {
        let mut full = Account::new(Nanos(1_000));
        let wide = [0, 1, 1_000, 3_000].map(Nanos);
        assert_eq!(wide.map(|wanted| full.allow(Nanos::ZERO, wanted)), wide);
        let mut empty = Account { balance: 1, ..full };
        assert_eq!(wide.map(|wanted| empty.allow(Nanos::ZERO, wanted)), [Nanos(1_000); 4]);
        assert_eq!(full.longest_gap(), Nanos(4_000));
    }
}
