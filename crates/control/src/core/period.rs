//! A period of all idlers, compared with what was predicted of it, and whether a better setting is searched
//! for after it.

use crate::core::choice::FEWEST;
use crate::core::tenant::Excess;
use crate::core::trust;
use crate::core::turns::Part;
use dwell_replay::Counts;

/// The gate: below this share of the cost nothing is searched …
const LEAST_SHARE: f64 = 0.02;
/// … nor below this share of a CPU.
const LEAST_CPU: f64 = 0.001;
/// Where the costs of an episode are within this share of those at the last search, and that changed nothing,
/// the next is left out, and after each such search twice as many …
const ALIKE: f64 = 0.1;
/// … but no more than so many.
const MOST_LEFT_OUT: u32 = 8;

/// A period, compared with what was predicted of it.
#[derive(Default)]
pub(crate) struct Period {
    pub(crate) counted: Counts,
    /// What was seen of the idlers of which episodes are known, by weight.
    pub(crate) part: Part,
    /// What the originals would have cost them \[ns\].
    pub(crate) originals_ns: f64,
    /// What was counted, and the most that could have been gained of it, had all of the time been watched \[ns\].
    pub(crate) cpu_ns: f64,
    pub(crate) gain_ns: f64,
    /// Polls and halts of the setting in force, replayed from where the last period ended, afresh, and from
    /// the widest window that can be left: of the episodes in between not all are known, and so neither is
    /// the window that the period began with.
    pub(crate) predicted: [[f64; 2]; 3],
    /// Whether any of it was counted elsewhere, or is drawn.
    pub(crate) how: trust::Seen,
    /// The first idler that has paid too much.
    pub(crate) excess: Option<(u64, Excess)>,
}

impl Period {
    /// Adds the polls and halts of some episodes to a prediction; each stands for so many.
    pub(crate) fn predict(&mut self, way: usize, did: &Counts, scale: f64, elsewhere: bool) {
        let predicted = &mut self.predicted[way];
        if !elsewhere {
            predicted[0] += scale * did.polls as f64;
        }
        predicted[1] += scale * did.halts as f64;
    }

    /// The counted cost of an episode \[ns\]; `None` where too few were seen, or what was counted is of other episodes.
    pub(crate) fn of_one(&self) -> Option<f64> {
        let known = self.part.seen >= FEWEST as u64 && !self.how.elsewhere;
        known.then(|| self.part.cost_ns / self.part.episodes)
    }

    /// The CPU time that is next to nothing in such a time \[ns\].
    pub(crate) const fn least_ns(&self) -> f64 {
        LEAST_CPU * self.part.ns as f64
    }

    /// Whether too little could have been gained for a search.
    pub(crate) fn is_worthless(&self) -> bool {
        self.gain_ns <= (LEAST_SHARE * self.cpu_ns).max(self.least_ns())
    }
}

/// The last search.
#[derive(Default)]
pub(crate) struct Searched {
    /// What an episode cost in the period before it, would have cost under the originals, and could have cost
    /// less \[ns\].
    costs_ns: [f64; 3],
    /// How many periods alike are searched no more, and how many are left of them.
    leaves_out: u32,
    left: u32,
}

impl Searched {
    /// Whether a period is to be searched; if not, it is one of those that are left out.
    pub(crate) fn is_due(&mut self, period: &Period) -> bool {
        let costs_ns =
            [period.part.cost_ns, period.originals_ns, period.gain_ns].map(|ns| ns / period.part.episodes);
        let alike =
            self.costs_ns.iter().zip(&costs_ns).all(|(a, b)| (a - b).abs() <= ALIKE * self.costs_ns[0]);
        if !alike {
            *self = Searched { costs_ns, ..Searched::default() };
        }
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }

    pub(crate) fn in_vain(&mut self) {
        self.leaves_out = (2 * self.leaves_out).clamp(1, MOST_LEFT_OUT);
        self.left = self.leaves_out;
    }
}
