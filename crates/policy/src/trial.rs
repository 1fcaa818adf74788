//! Trial bursts: a learner that never polls is made to poll now and then, so that it cannot lock itself in.
//!
//! # The idea
//! [`leader`](crate::leader) and [`savings`](crate::savings) learn what every window would have cost in an
//! episode from its length alone, as if the length did not depend on what the idler does. Where a peer waits
//! for this idler it does: the idler halts and answers late, so the peer sleeps too and wakes late, so the
//! episode is long, so it does not pay to poll. Polling would make the episodes short, but a policy that does
//! not poll never sees them.
//!
//! [`Trial`] gives the choice to the learner as long as that polls. After a number of halts it polls a
//! *burst* of episodes whatever the learner wants. If they cost clearly less than halts would have, it goes
//! on polling for a *lesson*, which is long enough for the learner to see what polling is like; if not, the
//! next burst comes after twice as many halts.
//!
//! # The steps
//! 1. [`Trial::window_after`](Policy::window_after): the learner's window; in a burst and in a lesson 2*K*,
//!    where that is longer. Either way within what the [account](crate::account) of the trial allows.
//! 2. [`Trial::observe`](Policy::observe): the account settles the window that was taken; the learner learns, always.
//!    A halt counts towards the next burst, which comes after [`FIRST_PAUSE`] of them at first. A burst ends
//!    when it has cost [`LOSS`] halts more than halting would have, or after [`BURST`] episodes. It has
//!    succeeded if these cost less than 9/10 of as many halts. Then a lesson of [`LESSON`] episodes follows,
//!    stopped by the same two tests after each [`BURST`] of them, and the next pause is a quarter of the
//!    last, but not less than [`LEAST_PAUSE`]. After a failure the pause doubles, up to [`LONGEST_PAUSE`].
//!
//! # The worst case
//! **Over any consecutive episodes the cost is at most twice the optimum's plus 4*K*,** as without bursts: the
//! [account's proof](crate::account) asks only that each window was [allowed](crate::account::Account::allow) and is
//! [settled](crate::account::Account::settle). It does not ask who wanted the window. A trial has an account
//! of its own, and bursts are charged to it: a failed poll of 2*K* takes *K* from the balance, so that a
//! burst that goes on failing soon polls for no more than *K*. What the learner's own account holds (it
//! settles the windows that the learner wanted) restricts the learner further and has no part in the proof.
//! `tests/regret.rs` searches for streams that break the bound.
//!
//! Where halting is right for good, a burst costs at most [`LOSS`] + 2 halts, so the cost of all bursts is
//! below 2 % of the first [`FIRST_PAUSE`] halts and below 0.1 % once the pause is at its longest.
//!
//! # Limits
//! A burst finds what polling does to this idler's own episodes. Two idlers that wait for each other and both
//! halt are found by either's burst if one burst suffices to make the other's episodes short.

use crate::account::Account;
use crate::leader::Leader;
use crate::{Nanos, Outcome, Policy};

/// Episodes of a burst: enough for the peer to be awake in most of them.
pub const BURST: u32 = 32;
/// Episodes of a lesson: twice what [`leader`](crate::leader) remembers.
pub const LESSON: u32 = 256;
/// What a burst may cost more than halts would have \[halts\]; the last poll may exceed it by two.
pub const LOSS: u32 = 8;
/// Halts before the first burst: at 10,000 a second it begins after 50 ms.
pub const FIRST_PAUSE: u32 = 512;
/// Halts before a burst after several successes.
pub const LEAST_PAUSE: u32 = 64;
/// Halts before a burst after many failures.
pub const LONGEST_PAUSE: u32 = 1 << 14;

/// Polls now and then where its policy would not, and goes on if that is cheaper.
#[derive(Clone, Debug)]
pub struct Trial<P> {
    policy: P,
    account: Account,
    /// The window of the present episode.
    window: Nanos,
    phase: Phase,
    /// Halts between two bursts.
    pause: u32,
    bursts: u32,
    lessons: u32,
}

/// Who chooses the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The policy; so many halts since the last burst.
    Learner { halts: u32 },
    /// Off: 2*K*. So many episodes are left, after those since the last test, which cost so much \[ns\].
    Forced { lesson: bool, left: u32, tested: u32, cost: u64 },
}

impl Trial<Leader> {
    /// [`leader`](crate::leader) at this halt cost, with trials.
    pub const fn leader(halt_cost: Nanos) -> Trial<Leader> {
        Trial::new(Leader::new(halt_cost), halt_cost)
    }
}

impl<P> Trial<P> {
    /// This policy with trials at the halt cost that it was made with.
    pub const fn new(policy: P, halt_cost: Nanos) -> Trial<P> {
        Trial {
            policy,
            account: Account::new(halt_cost),
            window: Nanos::ZERO,
            phase: Phase::Learner { halts: 0 },
            pause: FIRST_PAUSE,
            bursts: 0,
            lessons: 0,
        }
    }

    /// The policy.
    pub const fn policy(&self) -> &P {
        &self.policy
    }

    /// What may still be lost; see [`account`](crate::account).
    pub const fn account(&self) -> &Account {
        &self.account
    }

    /// How many bursts have begun, modulo 2^32.
    pub const fn bursts(&self) -> u32 {
        self.bursts
    }

    /// How many bursts have succeeded, modulo 2^32.
    pub const fn lessons(&self) -> u32 {
        self.lessons
    }

    #[inline]
    fn allow(&mut self, busy: Nanos, wanted: Nanos) -> Nanos {
        let wanted = match self.phase {
            Phase::Learner { .. } => wanted,
            Phase::Forced { .. } => wanted.max(Nanos(2 * self.account.halt_cost().0)),
        };
        self.window = self.account.allow(busy, wanted);
        self.window
    }

    fn after(&mut self, idle: Nanos) {
        let halt_cost = self.account.halt_cost().0;
        match &mut self.phase {
            Phase::Learner { halts } => {
                *halts += u32::from(idle > self.window);
                if *halts >= self.pause {
                    self.bursts = self.bursts.wrapping_add(1);
                    self.phase = Phase::Forced { lesson: false, left: BURST, tested: 0, cost: 0 };
                }
            }
            Phase::Forced { lesson, left, tested, cost } => {
                // At most 4 halts of 2^32 ns in each of 32 episodes.
                *cost += if idle <= self.window { idle.0 } else { self.window.0 + halt_cost };
                *left -= 1;
                *tested += 1;
                let halts = u64::from(*tested) * halt_cost;
                let fails = *cost > halts + u64::from(LOSS) * halt_cost;
                let tests = *tested == BURST;
                if fails || (tests && *cost * 10 >= halts * 9) {
                    if !*lesson {
                        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
                    }
                    self.phase = Phase::Learner { halts: 0 };
                } else if tests && !*lesson {
                    self.lessons = self.lessons.wrapping_add(1);
                    self.pause = (self.pause / 4).max(LEAST_PAUSE);
                    self.phase = Phase::Forced { lesson: true, left: LESSON, tested: 0, cost: 0 };
                } else if *left == 0 {
                    self.phase = Phase::Learner { halts: 0 };
                } else if tests {
                    (*tested, *cost) = (0, 0);
                }
            }
        }
    }
}

impl<P: Policy> Policy for Trial<P> {
    #[inline]
    fn window(&mut self) -> Nanos {
        let wanted = self.policy.window();
        self.allow(Nanos::ZERO, wanted)
    }

    #[inline]
    fn window_after(&mut self, busy: Nanos) -> Nanos {
        let wanted = self.policy.window_after(busy);
        self.allow(busy, wanted)
    }

    #[inline]
    fn longest_gap(&self) -> Nanos {
        self.account.longest_gap()
    }

    #[inline]
    fn observe(&mut self, outcome: Outcome<'_>) {
        let counts = self.account.settle(self.window, &outcome);
        self.policy.observe(outcome);
        // A burst that others interrupt goes on after the pause.
        if counts {
            self.after(outcome.idle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::savings::Savings;

    const K: u64 = 20_000;

    /// Lets a policy live with a peer: episodes last `polled` ns where the window is that long, else `halted`.
    fn live(policy: &mut impl Policy, episodes: u32, polled: u64, halted: u64) -> (u64, u32) {
        let (mut cost, mut caught) = (0, 0);
        for _ in 0..episodes {
            let window = policy.window_after(Nanos(1_000)).get();
            let idle = if window >= polled { polled } else { halted };
            cost += if idle <= window { idle } else { window + K };
            caught += u32::from(idle <= window);
            policy.observe(Outcome::of(Nanos(idle)));
        }
        (cost, caught)
    }

    #[test]
    fn peer_that_sleeps_too_locks_the_learners_in_and_trials_free_them() {
        // Halting makes 1.5 K of what would be 0.6 K.
        let (polled, halted) = (K * 6 / 10, K * 3 / 2);
        assert_eq!(live(&mut Leader::new(Nanos(K)), 10_000, polled, halted).1, 0);
        assert_eq!(live(&mut Savings::new(Nanos(K)), 10_000, polled, halted).1, 0);
        let mut leader = Trial::leader(Nanos(K));
        assert!(live(&mut leader, 10_000, polled, halted).1 > 9_000);
        assert!(leader.lessons() >= 1);
        let mut savings = Trial::new(Savings::new(Nanos(K)), Nanos(K));
        assert!(live(&mut savings, 10_000, polled, halted).1 > 9_000);
    }

    #[test]
    fn where_halting_is_right_bursts_cost_little_and_less_and_less() {
        for halted in [3 * K, 100 * K] {
            let mut policy = Trial::leader(Nanos(K));
            let (first, _) = live(&mut policy, 1_000, halted, halted);
            assert_eq!(policy.bursts(), 1);
            assert!(first <= 1_000 * K * 102 / 100, "{first}");
            live(&mut policy, 100_000, halted, halted);
            let (later, _) = live(&mut policy, 100_000, halted, halted);
            assert!(later <= 100_000 * K * 1_001 / 1_000, "{later}");
            assert_eq!((policy.lessons(), policy.pause), (0, LONGEST_PAUSE));
        }
    }

    #[test]
    fn learner_that_polls_is_left_alone() {
        let (mut trial, mut leader) = (Trial::leader(Nanos(K)), Leader::new(Nanos(K)));
        for episode in 0..20_000u64 {
            let idle = Nanos(episode % 7 * 3_000);
            assert_eq!(trial.window_after(Nanos(500)), leader.window_after(Nanos(500)));
            trial.observe(Outcome::of(idle));
            leader.observe(Outcome::of(idle));
        }
        assert_eq!(trial.bursts(), 0);
    }

    #[test]
    fn lesson_ends_when_the_peer_has_left() {
        let mut policy = Trial::leader(Nanos(K));
        while policy.lessons() == 0 {
            live(&mut policy, 1, K / 2, 2 * K);
        }
        let (cost, _) = live(&mut policy, 1_000, u64::MAX, 100 * K);
        assert!(cost <= 1_000 * K * 105 / 100, "{cost}");
    }

    #[test]
    fn free_halts_are_never_put_off() {
        let mut policy = Trial::leader(Nanos::ZERO);
        assert_eq!(live(&mut policy, 2_000, 1, 5).1, 0);
    }
}
