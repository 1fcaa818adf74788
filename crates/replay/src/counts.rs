use dwell_policy::Nanos;
use std::iter::Sum;
use std::ops::AddAssign;

/// What a policy did over a number of episodes.
///
/// An episode of length *d* under a window *w* polls min(*d*, *w*); it succeeds if *d* ≤ *w*, else the idler
/// halts. Where another task is runnable on the core after *a* ([`Run::alone_ns`](crate::Run::alone_ns)),
/// min(*w*, *a*) takes the place of *w*; a window above zero is still a poll. Sums of time have 128 bits,
/// since one recording may hold any number of 64-bit lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub episodes: u64,
    /// Their lengths, summed up \[ns\].
    pub idle_ns: u128,
    /// Episodes that began with a poll (the window was not zero).
    pub polls: u64,
    /// Of those, the ones in which the wakeup came within the window.
    pub polls_succeeded: u64,
    /// Polling CPU \[ns\].
    pub polled_ns: u128,
    /// Episodes that outlasted the window: the idler halted.
    pub halts: u64,
    /// Of a guest above a polling host: times that the guest left to the host, which may still have polled through
    /// the wakeup. Without a host below it is the number of halts.
    pub exits: u64,
}

impl Counts {
    /// Polling CPU plus the halts at their cost \[ns\].
    pub fn cost_ns(&self, halt_cost: Nanos) -> u128 {
        self.polled_ns + u128::from(self.halts) * u128::from(halt_cost.get())
    }

    /// Counts one episode of length `idle` under `window` \[ns\].
    #[inline]
    pub(crate) fn count(&mut self, window: u64, idle: u64) {
        self.count_alone(window, idle, u64::MAX);
    }

    /// Counts one episode of length `idle` under `window`, of which a poll may last at most `alone` \[ns\].
    #[inline]
    pub(crate) fn count_alone(&mut self, window: u64, idle: u64, alone: u64) {
        let poll = window.min(alone);
        self.count_poll(window != 0, idle.min(poll), idle > poll);
    }

    /// Counts one episode that began with a poll, or not, in which the idler polled for `polled_ns` and then halted, or not.
    #[inline]
    pub(crate) fn count_poll(&mut self, polled: bool, polled_ns: u64, halted: bool) {
        self.polls += u64::from(polled);
        self.polls_succeeded += u64::from(polled && !halted);
        self.polled_ns += u128::from(polled_ns);
        self.halts += u64::from(halted);
        self.exits += u64::from(halted);
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.episodes += other.episodes;
        self.idle_ns += other.idle_ns;
        self.polls += other.polls;
        self.polls_succeeded += other.polls_succeeded;
        self.polled_ns += other.polled_ns;
        self.halts += other.halts;
        self.exits += other.exits;
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(all: I) -> Counts {
        all.fold(Counts::default(), |mut sum, counts| {
            sum += counts;
            sum
        })
    }
}

/// The share of the leader's gain over KVM's defaults that another policy keeps: 1 where it costs as much as
/// the leader, 0 where it costs as much as the defaults. `None` where the leader gains nothing. Gains are
/// logarithms of ratios, so that means over recordings are geometric.
pub fn kept(kvm: f64, leader: f64, other: f64) -> Option<f64> {
    let gain = (kvm / leader).ln();
    (gain > 1e-3).then(|| (kvm / other).ln() / gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_is_a_share_of_the_gain() {
        assert_eq!(kept(4.0, 1.0, 2.0), Some(0.5));
        assert_eq!(kept(4.0, 1.0, 1.0), Some(1.0));
        assert!(kept(4.0, 1.0, 8.0).unwrap() < 0.0);
        assert_eq!(kept(1.0, 1.0, 1.0), None);
    }
}
