//! The policies that are measured, and the episodes they live through.

use dwell_policy::guest::{self, Haltpoll};
use dwell_policy::host::{self, HaltPoll};
use dwell_policy::leader::Leader;
use dwell_policy::reference::Fixed;
use dwell_policy::savings::Savings;
use dwell_policy::{Nanos, Outcome, Policy};

const HALT_COST: Nanos = Nanos(20_000);

/// Busy and idle times in no order that a branch predictor could learn.
pub struct Stream(Vec<(Nanos, Nanos)>);

impl Stream {
    /// Idle times up to four halts, every third ten times as long; busy times up to two halts.
    pub fn new(episodes: usize) -> Stream {
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        let mut episode = || {
            let idle = below(4 * HALT_COST.get()) * if below(3) == 0 { 10 } else { 1 };
            (Nanos(below(2 * HALT_COST.get())), Nanos(idle))
        };
        Stream((0..episodes).map(|_| episode()).collect())
    }

    /// Lets a policy live through all episodes; returns the time that it would have polled, so that nothing
    /// is left out.
    #[inline(never)]
    pub fn live(&self, policy: &mut impl Policy) -> u64 {
        let mut polled = 0u64;
        for (busy, idle) in &self.0 {
            polled = polled.wrapping_add(policy.window_after(*busy).min(*idle).get());
            policy.observe(Outcome::of(*idle));
        }
        polled
    }
}

/// What is done with each policy.
pub trait Measure {
    fn measure(&mut self, name: &str, policy: impl Policy + Clone);
}

/// Every policy, the baseline first.
pub fn each(measure: &mut impl Measure) {
    measure.measure("baseline: fixed window", Fixed(HALT_COST));
    let revision = host::Revision::V6_11;
    measure.measure("kvm 6.18", HaltPoll::new(revision, host::Params::default_for(revision)));
    measure.measure("haltpoll 6.18", Haltpoll::new(guest::Revision::V6_9, guest::Params::default()));
    measure.measure("savings", Savings::new(HALT_COST));
    measure.measure("leader", Leader::new(HALT_COST));
}
