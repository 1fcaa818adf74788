//! The decisions of a live controller of polling settings, apart from the machine.
//!
//! # The idea
//! Loads change by the second and settings are set once. A [`Controller`] gets, period by period, what every idler did
//! ([`Observed`]): what was counted, and the lengths of some of its episodes. It answers with a [`Change`],
//! or none. Time is an argument and nothing is read or written, so that the same code decides live, over a
//! recording ([`Simulation`]) and in tests.
//!
//! # The steps of a decision
//! 1. **Trust**: the setting in force is replayed over the episodes of the period, and its polls and halts
//!    are compared with those counted. Three periods in a row more than [`trust::LIMIT`] apart: the rule does
//!    not describe this load. The originals are in force for 1 s, then 2 s … 64 s, or until the load changes.
//! 2. **Account**: the originals are replayed over the same episodes. What the setting in force cost, less
//!    1.01 times what they would have cost, is added up over every stretch of 10 s or less that ends now.
//!    Above 1 % of what they cost in the last 10 s the controller goes back to the originals, for 100 ms,
//!    then 1, 2 … 64 s. The next setting is then on probation, in periods of 10 ms, until the loss is made
//!    good or 10 s old.
//! 3. **Gate**: the cost that was counted, less what the optimum pays, bounds any gain. Below 2 % of the cost
//!    or 0.1 % of a CPU nothing is searched.
//! 4. **Choice**: about 130 candidates, the originals first, are replayed over a sample of the last periods.
//!    The best is taken if it saves a sixteenth of the present cost, and something on each half of the
//!    sample. Fewer than 64 episodes decide nothing. An idler may have a weight, and a veto of what it would
//!    cost itself ([`Tenant`]).
//! 5. **Turns**, if [`Terms::verify`] asks for them: a setting that is taken in place of the originals is
//!    first compared with them on the machine, and again at most so often.
//!
//! The first decisions come after 10 ms, 20 ms … 100 ms, and so do those after a change. There are at most 240
//! writes of parameters a minute, of which a way back to the originals is always left. Where more CPU time is
//! used than may be, periods become longer. Where episodes are seen in bursts, glances at counters between two
//! decisions show that the load is another one, and the next decision comes at once ([`Controller::glance`]).
//!
//! # Limits
//! * Open loop: the episodes are taken as they came. A guest that waits for its peer would have had others. The account
//!   cannot see that; only turns of both settings on the machine can.
//! * One setting for all idlers that are observed, as sysfs has it; a VMM that can set each VM has a
//!   [`Controller`] for each, with [`Reach::Maximum`].
//! * A loss is seen when the period is over in which it was made. 10 s cost at most 1.01 times the originals,
//!   1 % of what these cost in 10 s before, and the losses of one usual period and of four of 10 ms; tests
//!   hold it to that. It is as exact as the originals' cost is predicted: from samples and drawn lengths it
//!   is not exact. Where decisions are slow, no period is short.

mod account;
pub(crate) mod by_work;
mod candidates;
mod change;
mod checks;
mod choice;
mod controller;
mod draw;
mod glance;
mod haltpoll;
mod idlers;
mod latency;
mod look;
mod observed;
mod order;
mod pace;
mod period;
mod pricing;
mod sample;
mod simulation;
mod status;
mod tenant;
mod terms;
#[cfg(test)]
mod tests;
pub mod trust;
mod turns;
mod window;

pub use account::TOLERANCE;
pub use by_work::{ByWork, Question};
pub use candidates::Reach;
pub use change::{Cause, Change, Measured};
pub(crate) use change::{differing, writes};
pub use choice::FEWEST;
pub use controller::Controller;
pub use draw::Histograms;
pub use look::{Drawn, Looks};
pub use observed::Observed;
pub use pace::{MINUTE_NS, MOST_WRITES};
pub use sample::{Episode, Stretches};
pub use simulation::{Observation, OfIdler, Simulated, Simulation, TENTH_NS, simulate};
pub use status::{Costs, Seen, Status};
pub use tenant::{Tenant, Veto};
pub use terms::Terms;
