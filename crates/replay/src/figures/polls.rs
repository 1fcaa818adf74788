//! Where polls end, and whether they were worth it: the two graphs, before and after, that `halt_poll_ns` has
//! been chosen by since it exists.

use super::timeline::Extent;
use dwell_stats::{LogHistogram, Resolution};
use serde::Serialize;
use std::collections::BTreeMap;

/// Where the polls of a policy ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Polls {
    /// CPU time polled before halting all the same \[ns\].
    pub wasted_ns: u128,
    /// The windows there were.
    pub windows: Windows,
    /// Polls by the time that they took.
    pub ends: Vec<PollBucket>,
}

/// Polls that took about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PollBucket {
    /// Lower end of the time polled \[ns\], included.
    pub from_ns: u64,
    /// Upper end \[ns\], not included.
    pub to_ns: u64,
    /// Polls in which the wake came.
    pub succeeded: u64,
    /// Polls that ran out: the idler halted all the same.
    pub wasted: u64,
}

/// The windows of all episodes \[ns\]; quantiles are right within 0.1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Windows {
    pub min_ns: u64,
    /// One episode in twenty has a shorter one.
    pub p5_ns: u64,
    /// Half of the episodes have a shorter one.
    pub p50_ns: u64,
    /// One episode in twenty has a longer one.
    pub p95_ns: u64,
    pub max_ns: u64,
    pub mean_ns: f64,
}

/// [`Polls`] in the making.
pub(super) struct PollsMaker {
    succeeded: LogHistogram,
    wasted: LogHistogram,
    wasted_ns: u128,
    windows: LogHistogram,
    extent: Extent,
}

impl Default for PollsMaker {
    fn default() -> PollsMaker {
        PollsMaker {
            succeeded: LogHistogram::default(),
            wasted: LogHistogram::default(),
            wasted_ns: 0,
            windows: LogHistogram::new(Resolution::Thousandth),
            extent: Extent::default(),
        }
    }
}

impl PollsMaker {
    /// An episode in which the idler polled for so long under this window, and halted or not.
    pub(super) fn add(&mut self, window_ns: u64, polled_ns: u64, halted: bool) {
        self.windows.add(window_ns);
        self.extent.add(window_ns);
        if window_ns == 0 {
            return;
        }
        if halted {
            self.wasted.add(polled_ns);
            self.wasted_ns += u128::from(polled_ns);
        } else {
            self.succeeded.add(polled_ns);
        }
    }

    pub(super) fn finish(self) -> Polls {
        let windows = self.windows();
        let PollsMaker { succeeded, wasted, wasted_ns, .. } = self;
        let held = succeeded.buckets().chain(wasted.buckets());
        let bounds: BTreeMap<u64, u64> = held.map(|bucket| (bucket.from_ns, bucket.to_ns)).collect();
        let bucket = |(from_ns, to_ns): (u64, u64)| PollBucket {
            from_ns,
            to_ns,
            succeeded: succeeded.bucket_of(from_ns).count,
            wasted: wasted.bucket_of(from_ns).count,
        };
        Polls { wasted_ns, windows, ends: bounds.into_iter().map(bucket).collect() }
    }

    fn windows(&self) -> Windows {
        if self.windows.is_empty() {
            return Windows::default();
        }
        let Extent { min, sum, max } = self.extent;
        let at = |quantile: f64| {
            let found = self.windows.quantile(quantile).map_or(0, |bucket| bucket.greatest_ns());
            found.clamp(min, max)
        };
        Windows {
            min_ns: min,
            p5_ns: at(0.05),
            p50_ns: at(0.5),
            p95_ns: at(0.95),
            max_ns: max,
            mean_ns: sum as f64 / self.windows.total() as f64,
        }
    }
}
