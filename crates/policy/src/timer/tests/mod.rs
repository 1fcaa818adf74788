//! The oracles of [`Setup`](super::Setup): the timer of one vCPU, step by step, and the pCPU on which an hrtimer fires.

pub(super) mod housekeeping;
pub(super) mod lapic;
