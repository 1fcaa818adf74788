//! How experiments are run and judged, whatever they measure.
//!
//! # Words
//! * **arm**: one setting that is tried. The first is the *baseline*; the *control* is the baseline once more under
//!   another name, and whatever difference it shows is the error of the method.
//! * **block**: one stretch of measuring one arm, at most half a second. **pass**: one block of each arm.
//!   **round**: two passes, the second in reverse order (A B B A), so that a linear drift cancels out.
//! * **figure**: a number that is reported for each arm: one that a block tells, such as CPU time per wake, or a quantile
//!   of the samples.
//!
//! # Steps
//! [`Gaps`] are drawn so that all arms of a pass have the same; [`Schedule`] gives the order; [`Campaign`] runs blocks,
//! repeats those in which other programs took CPU time, and adds rounds until the intervals are as narrow as wanted;
//! [`Findings`] hold the figures with their intervals and all [`Warning`]s; [`samples`] keeps every sample.
//!
//! # Intervals
//! The unit that is drawn again in the bootstrap is the round: blocks of one round share their stimulus and the state of
//! the machine, samples of one block even more so. Arms are compared within rounds.
//!
//! ```
//! use dwell_lab::method::{Arms, Block, Campaign, Figure, Plan, Undisturbed, Unit};
//! use std::sync::atomic::AtomicBool;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let arms = Arms::new("halt", 0u64).arm("poll 200 us", 200_000);
//! let figures = [
//!     Figure::of_block("cpu_ns_per_wake", Unit::Nanos).within(0.05),
//!     Figure::quantile(0.5),
//! ];
//! let plan = Plan { min_rounds: 6, ..Plan::default() };
//! let campaign = Campaign::new("wake", arms, figures, plan)?;
//! let record = campaign.run(&mut Undisturbed::new(), &AtomicBool::new(false), &mut |_| (), |turn| {
//!     // Measure `turn.setting` here, with the gaps of `turn.sequence`.
//!     let cpu_ns_per_wake = if *turn.setting == 0 { 20_000.0 } else { 100_000.0 };
//!     let latency_ns: Vec<u64> = (0..100).map(|i| if *turn.setting == 0 { 12_000 + i } else { 5_000 + i }).collect();
//!     Ok::<_, std::convert::Infallible>(Block::new(latency_ns).figure("cpu_ns_per_wake", cpu_ns_per_wake))
//! })?;
//! let findings = record.findings();
//! let polling = findings.row("poll 200 us", "cpu_ns_per_wake").ok_or("no such row")?;
//! assert_eq!(polling.ratio().map(|ratio| ratio.value.round()), Some(5.0));
//! # Ok(())
//! # }
//! ```

pub mod campaign;
#[cfg(test)]
mod fake;
pub mod findings;
pub mod gaps;
pub mod interval;
pub mod pool;
pub mod record;
pub mod samples;
pub mod schedule;
pub mod warning;

pub use campaign::{Campaign, CampaignError, NamesError, Plan, Progress, Surroundings, Turn, Undisturbed};
pub use findings::{Comparison, Figure, Findings, Row, Unit};
pub use gaps::{GapSpec, Gaps, GapsError, Sequence};
pub use interval::Interval;
pub use record::{Block, Disturbance, Ended, Gating, Measured, Record, Verdict};
pub use schedule::{Arms, Role, Schedule};
pub use warning::Warning;
