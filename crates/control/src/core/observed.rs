//! What a controller is shown of an idler.

use crate::core::sample::Episode;
use crate::core::tenant::Tenant;
use dwell_replay::Counts;

/// What was seen of one idler, or of several together, since the last decision.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Which: any number that stays its own.
    pub idler: u64,
    /// How much its cost counts, and its limit.
    pub tenant: Tenant,
    /// The share of the time in which it was watched: all of it, or a burst.
    pub share: f64,
    /// All of its episodes in that time: what was counted under the setting in force.
    pub counted: Counts,
    /// All context switches of the machine in that time, where its idlers are its CPUs: of one of them.
    pub switches: Option<u64>,
    /// Whether that was counted of other episodes, of as long a time before these, and without polls: halts
    /// are then compared with less precision, and polls are not.
    pub elsewhere: bool,
    /// Whether the episodes are drawn from histograms, and have no order.
    pub drawn: bool,
    /// Some or all of them, in their order unless they are drawn.
    pub episodes: Vec<Episode>,
}

impl Observed {
    /// An idler that counts as any other and was watched all the time.
    pub fn new(idler: u64, counted: Counts, episodes: Vec<Episode>) -> Observed {
        Observed {
            idler,
            tenant: Tenant::default(),
            share: 1.0,
            counted,
            switches: None,
            elsewhere: false,
            drawn: false,
            episodes,
        }
    }

    /// The same, with episodes drawn from histograms.
    pub fn drawn(idler: u64, counted: Counts, episodes: Vec<Episode>) -> Observed {
        Observed { drawn: true, ..Observed::new(idler, counted, episodes) }
    }
}
