//! Any number of fixed windows in one pass.

use crate::counts::Counts;
use crate::source::Run;
use std::ops::AddAssign;

/// Fixed windows, and the counts of the episodes seen from which follows what each window did.
///
/// An episode is counted once, in the bin of the shortest window that covers it: those of all shorter bins are covered
/// as well. One that another task cut short is counted by its time alone, apart from the others: it always
/// halts. Exact for windows and lengths of 64 bits.
#[derive(Default)]
pub(super) struct Windows {
    /// In rising order, none twice \[ns\].
    windows: Vec<u64>,
    /// For each window, and last for episodes longer than all of them.
    bins: Vec<Bin>,
    /// As `bins`, of the episodes that were cut short, with the times alone in place of the lengths.
    cut_short: Vec<Bin>,
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
        let bins = vec![Bin::default(); windows.len() + 1];
        Windows { cut_short: bins.clone(), bins, windows }
    }

    pub(super) fn feed(&mut self, run: &Run) {
        if self.windows.is_empty() {
            return;
        }
        let Windows { windows, bins, cut_short } = self;
        let count = |bins: &mut [Bin], length: u64| {
            let covering = windows.partition_point(|&window| window < length);
            bins[covering] += Bin { episodes: 1, idle_ns: u128::from(length) };
        };
        let Some(alone_ns) = run.alone_ns() else {
            run.idle_ns.iter().for_each(|&idle| count(bins, idle));
            return;
        };
        for (&idle, &alone) in run.idle_ns.iter().zip(alone_ns) {
            if idle <= alone { count(bins, idle) } else { count(cut_short, alone) }
        }
    }

    /// What each window did, in rising order of windows; `all` holds the number of episodes and their length. Counts
    /// begin anew.
    pub(super) fn take(&mut self, all: Counts) -> Vec<(u64, Counts)> {
        let (mut covered, mut short) = (Bin::default(), Bin::default());
        let fresh = vec![Bin::default(); self.windows.len() + 1];
        let bins = std::mem::replace(&mut self.bins, fresh.clone());
        let cut_short = std::mem::replace(&mut self.cut_short, fresh);
        let counts = |(&window, (bin, cut_short)): (&u64, (Bin, Bin))| {
            covered += bin;
            short += cut_short;
            let halts = all.episodes - covered.episodes;
            let polls = window > 0;
            let counts = Counts {
                polls: if polls { all.episodes } else { 0 },
                polls_succeeded: if polls { covered.episodes } else { 0 },
                polled_ns: covered.idle_ns
                    + short.idle_ns
                    + u128::from(halts - short.episodes) * u128::from(window),
                halts,
                exits: halts,
                ..all
            };
            (window, counts)
        };
        self.windows.iter().zip(bins.into_iter().zip(cut_short)).map(counts).collect()
    }
}
