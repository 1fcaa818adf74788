//! What this machine does now: probes, statistics, live episodes.
//!
//! | module | what it reads |
//! |---|---|
//! | [`doctor`] | which layers idle here, what rules them, and what can be recorded |

pub mod detached;
pub mod doctor;
