//! A thin safe layer over `perf_event_open(2)`: tracepoint samples of all processes through one ring buffer a CPU.
//!
//! | module | holds |
//! |---|---|
//! | `event` | one sampled tracepoint on one CPU: opening, filtering, switching |
//! | `ring` | the memory shared with the kernel; its contents are looked at while they are ours |
//! | `record` | what it holds, cut into records; safe code |
//! | `sampler` | all of these for every CPU |
//!
//! This module and [`bpf`](crate::bpf) are the only ones of the crate with `unsafe`: there is no way to
//! `perf_event_open` and to memory shared with the kernel without it.
#![allow(unsafe_code)]

mod event;
mod record;
mod ring;
mod sampler;

pub use event::{Attributes, Source, open};
pub use record::{Record, Records};
pub use sampler::{Sampler, Tracepoint};

#[cfg(test)]
pub(crate) use ring::tests::Kernel;
