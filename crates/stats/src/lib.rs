//! Statistics for measurements that must be believed. Pure: no clocks, no files, no system calls.
//!
//! * [`bootstrap`]: intervals of any statistic, from few rounds or from the blocks of a recording.
//! * [`campaign`]: which setting is measured when, and for how long.
//! * [`results`]: figures of each setting with their intervals and [`Warning`]s.
//! * [`histogram`]: lengths in logarithmic buckets, with quantiles.
//! * [`random`]: random numbers that are the same in every run.
//!
//! # Campaigns
//! * **arm**: one setting that is measured. The first arm is the *baseline*. The *control* is the baseline
//!   once more under another name: any difference that it shows is the error of the method.
//! * **block**: one measurement of one arm, half a second at most. **pass**: one block of each arm.
//!   **round**: two passes, the second in reverse order (A B B A), which cancels linear drift.
//! * **figure**: a number that is reported for each arm: computed by each block, such as CPU time per wakeup,
//!   or from all samples, such as a quantile.
//!
//! All arms of a pass get the same stimulus. Blocks during which other programs used CPU time (*foreign load*) are
//! repeated. Rounds are added until the intervals are as narrow as required. What reads the machine, its clock and its
//! load, is behind the trait [`Environment`].
//!
//! # Intervals
//! The unit of resampling is the round: blocks of one round share their stimulus and the state of the
//! machine, and samples of one block even more so. Arms are compared within rounds.
//!
//! ```
//! use dwell_stats::{Arms, Block, Campaign, CampaignOptions, Figure, Unit};
//! use std::sync::atomic::AtomicBool;
//! use std::time::Instant;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let arms = Arms::new("halt", 0u64).arm("poll 200 us", 200_000);
//! let figures = [Figure::of_block("cpu_ns_per_wakeup", Unit::Nanos).within(0.05)];
//! let options = CampaignOptions { min_rounds: 6, ..CampaignOptions::default() };
//! let campaign = Campaign::new("wakeup", arms, figures, options)?;
//! let start = Instant::now();
//! let mut environment = || start.elapsed();
//! let measurements = campaign.run(&mut environment, &AtomicBool::new(false), &mut |_| (), |trial| {
//!     // Measure `trial.setting` here, with the stimulus number `trial.sequence`.
//!     let cpu_ns_per_wakeup = if *trial.setting == 0 { 20_000.0 } else { 100_000.0 };
//!     Ok::<_, std::convert::Infallible>(Block::default().figure("cpu_ns_per_wakeup", cpu_ns_per_wakeup))
//! })?;
//! let results = measurements.results();
//! let polling = results.row("poll 200 us", "cpu_ns_per_wakeup").ok_or("no such row")?;
//! assert_eq!(polling.ratio().map(|ratio| ratio.value.round()), Some(5.0));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

// The environment of `dwell-testing` is compiled for the unit tests once more, against the types that they test.
#[cfg(test)]
extern crate self as dwell_stats;
#[cfg(test)]
#[path = "../../testing/src/environment.rs"]
pub mod fake;

pub mod bootstrap;
pub mod campaign;
pub mod figure;
pub mod histogram;
pub mod interval;
pub mod measurements;
mod median;
pub mod options;
pub mod random;
pub mod results;
pub mod row;
pub mod schedule;
mod student;
pub mod warning;
pub mod whole;

pub use bootstrap::{BLOCKS, Bootstrap, Draw, MIN_ROUNDS};
pub use campaign::{Campaign, CampaignError, DuplicateName, Environment, Progress, Trial};
pub use figure::{Figure, OfSamples, OfWeights, Unit};
pub use histogram::{Bucket, LogHistogram, Resolution};
pub use interval::Interval;
pub use measurements::{
    ArmName, Block, BlockStatus, ForeignLoad, Gating, MeasuredBlock, Measurements, StopReason,
};
pub use median::median;
pub use options::CampaignOptions;
pub use random::SplitMix64;
pub use results::Results;
pub use row::{Comparison, ResultRow};
pub use schedule::{Arm, Arms, Role, Slot};
pub use student::student_mean;
pub use warning::Warning;
