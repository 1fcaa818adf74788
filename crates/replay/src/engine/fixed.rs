//! Any number of fixed windows in one pass.

use crate::counts::Counts;
use std::ops::AddAssign;

/// Fixed windows, and for the episodes seen what is needed to tell what each did.
///
/// An episode is counted once, in the bin of the shortest window that covers it: those of all shorter bins are covered
/// as well. Exact for windows and lengths of 64 bits.
#[derive(Default)]
pub(super) struct Windows {
    /// In rising order, none twice \[ns\].
    windows: Vec<u64>,
    /// For each window, and last for episodes longer than all of them.
    bins: Vec<Bin>,
}

#[derive(Clone, Copy, Default)]
struct Bin {
    episodes: u64,
    idle_ns: u128,
}

impl AddAssign for Bin {
    fn add_assign(&mut self, other: Bin) {
        self.episodes += other.episodes;
        self.idle_ns += other.idle_ns;
    }
}

impl Windows {
    pub(super) fn new(mut windows: Vec<u64>) -> Windows {
        windows.sort_unstable();
        windows.dedup();
        Windows { bins: vec![Bin::default(); windows.len() + 1], windows }
    }

    pub(super) fn feed(&mut self, idle_ns: &[u64]) {
        if self.windows.is_empty() {
            return;
        }
        for &idle in idle_ns {
            let covering = self.windows.partition_point(|&window| window < idle);
            self.bins[covering] += Bin { episodes: 1, idle_ns: u128::from(idle) };
        }
    }

    /// What each window did, in rising order of windows; `all` holds the number of episodes and their length. Counts
    /// begin anew.
    pub(super) fn take(&mut self, all: Counts) -> Vec<(u64, Counts)> {
        let mut covered = Bin::default();
        let bins = std::mem::replace(&mut self.bins, vec![Bin::default(); self.windows.len() + 1]);
        let counts = |(&window, bin): (&u64, Bin)| {
            covered += bin;
            let halts = all.episodes - covered.episodes;
            let polls = window > 0;
            let counts = Counts {
                polls: if polls { all.episodes } else { 0 },
                polls_succeeded: if polls { covered.episodes } else { 0 },
                polled_ns: covered.idle_ns + u128::from(halts) * u128::from(window),
                halts,
                exits: halts,
                ..all
            };
            (window, counts)
        };
        self.windows.iter().zip(bins).map(counts).collect()
    }
}
