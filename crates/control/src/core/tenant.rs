//! How much the cost of an idler counts, and its limit: weights and vetoes.
//!
//! # The idea
//! One setting is chosen for all idlers, so that one may pay for what others save. A weight says how much its
//! cost counts in that sum. A limit says what it may cost *this* idler: no setting is chosen that is
//! predicted to cost it more than that share above the originals, over its own sample; and where it has cost
//! it more, by its own account of the last 10 s, the originals are in force, for 1, 2 … 64 s.
//!
//! # Limits
//! A prediction is as good as the sample of that idler. An account is of whole periods, and sees a loss when
//! the period is over: 10 s cost the idler at most its share more and the losses of four periods, after 0, 1,
//! 3 and 7 s of rest.

use crate::core::window::{LONGEST_REST_NS, Rest, Window};

/// How long the originals are in force after the account of an idler first exceeds its limit \[ns\].
const FIRST_NS: u64 = 1_000_000_000;

/// How much the cost of an idler counts, and its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenant {
    /// How much its cost counts where one setting is chosen for all; 0: not at all.
    pub weight: f64,
    /// The share that a setting may cost it above the originals; `None`: any.
    pub most_loss: Option<f64>,
}

impl Default for Tenant {
    /// It counts as any other, and has no limit.
    fn default() -> Tenant {
        Tenant { weight: 1.0, most_loss: None }
    }
}

impl Tenant {
    /// Whether this is above its limit, where the originals cost that.
    pub(crate) fn vetoes(&self, cost_ns: f64, originals_ns: f64) -> bool {
        self.most_loss.is_some_and(|most_loss| cost_ns > (1.0 + most_loss) * originals_ns)
    }
}

/// A setting that would have been chosen, but for an idler that it is predicted to cost too much. Costs are
/// of its mean episode \[ns\].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Veto {
    pub idler: u64,
    pub setting: dwell_policy::param::Setting,
    /// What it would cost the idler.
    pub cost_ns: f64,
    /// What the originals would.
    pub originals_ns: f64,
}

/// What an idler has paid in the last 10 s, and would have paid under the originals.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    window: Window,
    rest: Rest,
}

/// An idler has paid too much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Excess {
    pub(crate) paid_ns: f64,
    pub(crate) originals_ns: f64,
    pub(crate) rest_ns: u64,
}

impl Own {
    pub(crate) fn new() -> Own {
        Own { window: Window::default(), rest: Rest::new(FIRST_NS, LONGEST_REST_NS) }
    }

    /// Books the period until now; `controlled` is whether another setting than the originals was in force.
    pub(crate) fn book(
        &mut self,
        now_ns: u64,
        paid_ns: f64,
        originals_ns: f64,
        controlled: bool,
        tenant: &Tenant,
    ) -> Option<Excess> {
        let period = self.window.book(now_ns, paid_ns, originals_ns, controlled);
        let all_paid_ns = self.window.sum(|period| period.paid_ns);
        let all_originals_ns = self.window.sum(|period| period.originals_ns);
        if !tenant.vetoes(all_paid_ns, all_originals_ns) {
            self.rest.begin_anew();
            return None;
        }
        // A loss before this period is not this setting's.
        if !controlled || !tenant.vetoes(period.paid_ns, period.originals_ns) {
            return None;
        }
        let rest_ns = self.rest.take_ns();
        Some(Excess { paid_ns: all_paid_ns, originals_ns: all_originals_ns, rest_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: u64 = 100_000_000;

    /// Periods in which the originals would have cost 1 ms; what was paid in each, and the rests that followed \[s\].
    fn rests(own: &mut Own, first: u64, paid: impl IntoIterator<Item = f64>, controlled: bool) -> Vec<f64> {
        let tenant = Tenant { most_loss: Some(0.05), ..Tenant::default() };
        let book = |(number, paid_ms): (u64, f64)| {
            own.book((first + number) * PERIOD, paid_ms * 1e6, 1e6, controlled, &tenant)
        };
        (0..).zip(paid).filter_map(book).map(|excess| excess.rest_ns as f64 / 1e9).collect()
    }

    #[test]
    fn ten_seconds_cost_an_idler_no_more_than_its_share_and_one_period() {
        let mut own = Own::new();
        assert!(rests(&mut own, 0, [9.0; 100], false).is_empty(), "the originals");
        let mut own = Own::new();
        assert!(rests(&mut own, 0, [1.0; 100], true).is_empty());
        // 5 % of 100 periods are five periods that cost twice as much.
        assert_eq!(rests(&mut own, 100, [2.0; 6], true), [1.0]);
        // One that costs no more than it may ends nothing, whatever was before it.
        assert!(rests(&mut own, 106, [1.0; 3], true).is_empty());
        assert_eq!(rests(&mut own, 109, [2.0; 8], true), [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]);
        // When 10 s are over it begins anew.
        assert!(rests(&mut own, 117, [1.0; 100], true).is_empty());
        assert_eq!(rests(&mut own, 217, [2.0; 6], true), [1.0]);
    }

    #[test]
    fn without_a_limit_nothing_is_too_much_and_with_0_anything() {
        assert!(!Tenant::default().vetoes(9e9, 1.0));
        let none = Tenant { most_loss: Some(0.0), ..Tenant::default() };
        assert!(none.vetoes(1.1, 1.0) && !none.vetoes(1.0, 1.0) && !none.vetoes(0.0, 0.0));
    }
}
