//! How a campaign is to be run.

use std::time::Duration;

/// How long to measure, and which blocks count.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CampaignOptions {
    /// Seed of everything random: stimulus and resamples.
    pub seed: u64,
    /// Rounds before the campaign may end for being precise, at least [`MIN_ROUNDS`](crate::MIN_ROUNDS).
    /// Stopping as soon as an interval happens to be narrow makes intervals slightly too narrow; more rounds
    /// reduce this.
    pub min_rounds: u32,
    pub max_rounds: u32,
    /// The most time. No round is started that would end later, if it takes as long as the longest so far. The first
    /// round is always started.
    #[serde(rename = "budget_s", serialize_with = "seconds")]
    pub budget: Duration,
    /// Foreign load, as a share of one CPU, above which a block is repeated.
    pub foreign_limit: f64,
    /// How often one block is repeated at most; then the attempt with the least foreign load counts.
    pub repeats: u32,
    /// How long to wait at most for foreign load to end before a block is repeated.
    #[serde(rename = "quiet_wait_s", serialize_with = "seconds")]
    pub quiet_wait: Duration,
    /// After so many consecutive blocks with foreign load in all attempts, no block is repeated any more.
    pub give_up_after: u32,
    /// How often an interval covers the true value, such as 0.95.
    pub confidence: f64,
    /// Whether to measure one block of each arm before the first round and discard it.
    pub warm_up: bool,
}

impl Default for CampaignOptions {
    /// At least 8 rounds, at most a minute, foreign load up to 2 % of a CPU, 95 % intervals.
    fn default() -> CampaignOptions {
        CampaignOptions {
            seed: 1,
            min_rounds: 8,
            max_rounds: u32::MAX,
            budget: Duration::from_secs(60),
            foreign_limit: 0.02,
            repeats: 4,
            quiet_wait: Duration::from_secs(2),
            give_up_after: 3,
            confidence: 0.95,
            warm_up: true,
        }
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_f64(time.as_secs_f64())
}
