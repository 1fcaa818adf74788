//! What this machine does now: probes, statistics, live episodes.
//!
//! | module | what it reads |
//! |---|---|
//! | [`doctor`] | which layers idle here, what rules them, and what can be recorded |
//! | [`kvm_stats`] | KVM's own counters of halts and polls, without tracing |

pub mod detached;
pub mod doctor;
pub mod kvm_stats;
