//! Experiments on a real machine: what a policy or a setting really does, measured so that it can be believed.
//!
//! [`host`] is what an experiment needs of the machine it runs on: cores, priorities, clocks, and to know when others
//! disturb it. [`method`] is how experiments are run and judged, whatever they measure: arms in a balanced order, the same
//! stimulus for each, disturbed blocks repeated, intervals and warnings.

pub mod host;
pub mod method;
