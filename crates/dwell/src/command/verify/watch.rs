//! What a recorder shows of a block.

use super::work::{Counters, Reading};
use crate::at_ends::AtEnds;
use dwell_capture::{Observer, Recorder, Until};
use dwell_knobs::verification::{NEGLIGIBLE_NS_PER_S, Unit};
use dwell_policy::guest::poll_end_ns;
use dwell_recording::accounting::Account;
use dwell_trace::pairing::PairedEpisode;

/// A poll may be longer than its window and the time to the next look at the clock, by an interrupt \[ns\].
const LATE_NS: u64 = 20_000;

/// A block that was recorded.
pub(super) struct Watched {
    pub(super) account: Account,
    pub(super) seconds: f64,
    /// Work done a second.
    pub(super) rates: Vec<(Unit, f64)>,
    /// Whether idlers polled for longer than the windows of its side allow.
    pub(super) stale: bool,
    /// Events that this recorder has lost since it was opened.
    pub(super) lost: u64,
}

impl Watched {
    /// Records until then; `longest_ns` is the longest window that the side allows, if that is known.
    pub(super) fn of(
        recorder: &mut Recorder,
        counters: &Counters,
        longest_ns: Option<u64>,
        until: &Until<'_>,
    ) -> anyhow::Result<Watched> {
        let poll_step_ns = recorder.metadata().poll_step_ns().unwrap_or(0);
        let allowed_ns = match longest_ns {
            Some(0) => 0,
            Some(ns) => poll_end_ns(ns, poll_step_ns).saturating_add(LATE_NS),
            None => u64::MAX,
        };
        let ends = AtEnds::new(|| counters.read());
        let mut watch = Watch { ends, poll_step_ns, allowed_ns, account: Account::default(), stale_ns: 0 };
        let status = recorder.watch(until, &mut watch)?;
        let Watch { ends, account, stale_ns, .. } = watch;
        let rates = ends.both()?.map(|[begin, end]| end.rates_since(&begin).collect()).unwrap_or_default();
        let seconds = status.elapsed.as_secs_f64();
        let stale = stale_ns as f64 / seconds > NEGLIGIBLE_NS_PER_S;
        Ok(Watched { account, seconds, rates, stale, lost: status.lost })
    }
}

/// Sums up the episodes of a block, and reads the counters of work at its ends.
struct Watch<F> {
    ends: AtEnds<Reading, F>,
    poll_step_ns: u64,
    /// The longest time that polls of this side take \[ns\].
    allowed_ns: u64,
    account: Account,
    /// Time polled by windows that are longer than allowed.
    stale_ns: u128,
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
