//! Where polls end, and whether they were worth it: the two graphs, before and after, that `halt_poll_ns` has
//! been chosen by since it exists.

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
#[derive(Default)]
pub(super) struct PollsMaker {
    succeeded: LogHistogram,
    wasted: LogHistogram,
    wasted_ns: u128,
    windows: WindowsMaker,
}

impl PollsMaker {
    /// An episode of length `idle_ns` under this window.
    pub(super) fn add(&mut self, window_ns: u64, idle_ns: u64) {
        self.add_ended(window_ns, idle_ns.min(window_ns), idle_ns > window_ns);
    }

    /// The same, where it is known how long the idler polled and whether it halted.
    pub(super) fn add_ended(&mut self, window_ns: u64, polled_ns: u64, halted: bool) {
        self.windows.add(window_ns);
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
        let PollsMaker { succeeded, wasted, wasted_ns, windows } = self;
        let held = succeeded.buckets().chain(wasted.buckets());
        let bounds: BTreeMap<u64, u64> = held.map(|bucket| (bucket.from_ns, bucket.to_ns)).collect();
        let bucket = |(from_ns, to_ns): (u64, u64)| PollBucket {
            from_ns,
            to_ns,
            succeeded: succeeded.bucket_of(from_ns).count,
            wasted: wasted.bucket_of(from_ns).count,
        };
        Polls { wasted_ns, windows: windows.finish(), ends: bounds.into_iter().map(bucket).collect() }
    }
}

/// [`Windows`] in the making.
struct WindowsMaker {
    episodes: u64,
    total_ns: u128,
    min_ns: u64,
    max_ns: u64,
    histogram: LogHistogram,
}

impl Default for WindowsMaker {
    fn default() -> WindowsMaker {
        WindowsMaker {
            episodes: 0,
            total_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            histogram: LogHistogram::new(Resolution::Thousandth),
        }
    }
}

impl WindowsMaker {
    fn add(&mut self, window_ns: u64) {
        self.episodes += 1;
        self.total_ns += u128::from(window_ns);
        self.min_ns = self.min_ns.min(window_ns);
        self.max_ns = self.max_ns.max(window_ns);
        self.histogram.add(window_ns);
    }

    fn finish(self) -> Windows {
        if self.episodes == 0 {
            return Windows::default();
        }
        let at = |quantile: f64| {
            let found = self.histogram.quantile(quantile).map_or(0, |bucket| bucket.greatest_ns());
            found.clamp(self.min_ns, self.max_ns)
        };
        Windows {
            min_ns: self.min_ns,
            p5_ns: at(0.05),
            p50_ns: at(0.5),
            p95_ns: at(0.95),
            max_ns: self.max_ns,
            mean_ns: self.total_ns as f64 / self.episodes as f64,
        }
    }
}
