//! The timer of one vCPU, step by step: the oracle of [`Setup`](super::Setup).

pub(super) mod lapic;
