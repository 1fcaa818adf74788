//! The wakeup latency of an idler's halts.
//!
//! A kernel measures of a halt the idle time and the time until the CPU runs again, and its rule learns from
//! both: a maximum below their sum never polls. A recorder has that latency of each halt. An episode in which
//! the idler polled has none; where a candidate would have halted in it, the median of the halts of this
//! idler takes its place, else that of the other idlers, else [`Terms::late`](crate::core::Terms::late).

use crate::core::sample::Episode;
use std::collections::VecDeque;

/// The halts that are remembered, the last.
const KEPT: usize = 256;

/// The recorded wakeup latencies of one idler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency {
    recent_ns: VecDeque<u64>,
    /// The median; `None` while none was recorded.
    pub(crate) median_ns: Option<u64>,
}

impl Latency {
    /// Takes in the halts among these episodes.
    pub(crate) fn take_in(&mut self, episodes: &[Episode]) {
        let recorded = episodes.iter().filter_map(|episode| episode.latency_ns);
        let before = self.recent_ns.len();
        self.recent_ns.extend(recorded);
        if self.recent_ns.len() == before {
            return;
        }
        let old = self.recent_ns.len().saturating_sub(KEPT);
        self.recent_ns.drain(..old);
        self.median_ns = median(self.recent_ns.iter().copied());
    }
}

/// The median of some latencies.
pub(crate) fn median(all_ns: impl Iterator<Item = u64>) -> Option<u64> {
    let mut all_ns: Vec<u64> = all_ns.collect();
    let middle = all_ns.len().checked_sub(1)? / 2;
    Some(*all_ns.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_last_halts() {
        let mut latency = Latency::default();
        latency.take_in(&[Episode::of(9)]);
        assert_eq!(latency.median_ns, None);
        let halt = |latency_ns| Episode { latency_ns: Some(latency_ns), ..Episode::of(9) };
        latency.take_in(&[halt(14_000), halt(90_000), Episode::of(9), halt(12_000)]);
        assert_eq!(latency.median_ns, Some(14_000));
        latency.take_in(&[halt(5_000); KEPT]);
        assert_eq!((latency.median_ns, latency.recent_ns.len()), (Some(5_000), KEPT));
    }
}
