//! What a block of a recorder is summed up to.

use super::work::Reading;
use crate::at_ends::AtEnds;
use dwell_capture::Observer;
use dwell_policy::guest::poll_end_ns;
use dwell_recording::accounting::Account;
use dwell_trace::pairing::PairedEpisode;

/// A poll may be longer than its window and the time to the next look at the clock, by an interrupt \[ns\].
const LATE_NS: u64 = 20_000;

/// Sums up the episodes of a block, and reads the counters of work at its ends.
pub(super) struct Watch<F> {
    pub(super) ends: AtEnds<Reading, F>,
    poll_step_ns: u64,
    /// The longest time that polls of this side take \[ns\].
    allowed_ns: u64,
    pub(super) account: Account,
    /// Time polled by windows that are longer than allowed.
    pub(super) stale_ns: u128,
}

impl<F: FnMut() -> anyhow::Result<Reading>> Watch<F> {
    /// Of a side whose windows are at most `longest_ns`, if that is known; `read` reads the counters.
    pub(super) fn new(poll_step_ns: u64, longest_ns: Option<u64>, read: F) -> Watch<F> {
        let allowed_ns = match longest_ns {
            Some(0) => 0,
            Some(ns) => poll_end_ns(ns, poll_step_ns).saturating_add(LATE_NS),
            None => u64::MAX,
        };
        Watch { ends: AtEnds::new(read), poll_step_ns, allowed_ns, account: Account::default(), stale_ns: 0 }
    }
}

impl<F: FnMut() -> anyhow::Result<Reading>> Observer for Watch<F> {
    fn begins(&mut self) {
        self.ends.begins();
    }

    fn ends(&mut self) {
        self.ends.ends();
    }

    fn episodes(&mut self, _names: &[String], found: &[PairedEpisode]) {
        for outcome in found.iter().map(|found| found.outcome(self.poll_step_ns)) {
            self.account.add(outcome);
            let stale_ns = outcome.polled_ns.filter(|polled_ns| *polled_ns > self.allowed_ns);
            self.stale_ns += stale_ns.map_or(0, u128::from);
        }
    }
}
