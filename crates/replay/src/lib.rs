//! Recordings through policies: what a setting would have cost.
//!
//! A [`Rule`] is a policy with its setting. Replaying it over the episodes of an idler gives [`Counts`]: polls, halts
//! and the polling CPU. With the halt cost these become a cost, which is compared with lower bounds that no
//! policy of a class can go below ([`bound`]).
//!
//! The replay here *is* the policy crate in a loop, one episode after the other: slow, obvious, and the oracle for
//! anything faster. It is open loop: episodes do not change when the policy does. [`causal`] replays what caused them
//! where a recording has that.
//!
//! The flow of the data: a [`Source`] gives episodes in [`Batch`]es of bounded size, grouped by idler; a [`Bank`] holds
//! one policy for every rule and idler and feeds them; [`replay`] does so once for a whole source,
//! [`tune`](mod@tune) searches a [`grid`](mod@grid) of rules.

pub mod advice;
pub mod alignment;
pub mod bound;
pub mod calibration;
pub mod catalogue;
pub mod causal;
pub mod check;
pub mod engine;
pub mod figures;
pub mod grid;
pub mod latency;
pub mod number;
pub mod tune;

mod bank;
mod counts;
mod idle_loop;
mod pass;
mod priced;
mod rule;
mod source;
mod versions;

pub use bank::Bank;
pub use catalogue::{Catalogue, ParseRuleError};
pub use counts::{Counts, kept};
pub use dwell_policy::catalogue::Terms;
pub use idle_loop::IdleLoop;
pub use pass::{ReplayError, Replayed, replay, replay_and_see};
pub use priced::{Figure, ParseValuesError, Priced, Pricing, Row, Values, WakeupLatency};
pub use rule::{Player, Rule, RuleError, Seen};
pub use source::{Batch, Halves, Memory, Overlapping, RecordingSource, Run, Source, Span, longest_idle_ns};
pub use versions::Versions;
