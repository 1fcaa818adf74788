//! Events into episodes: one kind of event, one pairing for each layer.
//!
//! Whatever traces a machine (the ring buffers of perf, the text of `perf script`, the log of QEMU) yields
//! [`Event`](event::Event)s. They are put in order of time ([`merge`]) and paired to episodes by a state
//! machine that knows of no kernel ([`host`], [`guest`], [`thread`], all [`Pairing`](pairing::Pairing)).
//! [`import`] reads the text of other tools, [`exits`] counts the table of `perf kvm stat`.

#![forbid(unsafe_code)]

pub mod aio;
pub mod causes;
pub mod contention;
pub mod event;
pub mod exits;
mod full_polls;
pub mod guest;
mod halts;
pub mod host;
pub mod import;
pub mod merge;
pub mod pairing;
pub mod thread;
mod thread_causes;
pub mod tracepoint;
pub mod vcpu_causes;
pub mod waking;
pub mod write;
