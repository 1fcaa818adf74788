//! QEMU adaptive polling: how long an event loop polls its handlers before it sleeps.
//!
//! # The idea
//!
//! An I/O thread of QEMU (`-object iothread`) waits for events in a system call. Falling asleep and being woken
//! costs microseconds, often more than the wait itself; so before it sleeps, the thread polls for a while
//! the memory where the next request will appear. Too short a poll fails, and too long a poll wastes a CPU;
//! the right length depends on the guest and the disk. So the thread adapts it: it compares how long each iteration
//! took with how long it was ready to poll.
//!
//! # Terms
//!
//! * A *context* (`AioContext`, here [`Aio`]) is one event loop, a *handler* (`AioHandler`, [`Handler`]) one source
//!   of events in it. Handlers of some [`Kind`]s can be polled: they have `io_poll`.
//! * The *poll list* holds the handlers that are polled. A handler joins it when its file descriptor first becomes
//!   ready, newest at the head.
//! * *block time*: from the start of an `aio_poll` to the end of its wait, polling and sleeping together. In the
//!   terms of this crate it is the length of the episode.
//! * *polling time*: for how long the next attempt polls ([`Aio::effective`]); the window of the episode. At most
//!   `poll_max_ns`.
//! * *poll mode*: from the first attempt until the context goes to sleep, notifications of the polled handlers are
//!   off, so that a guest does not pay for notifying what polling sees anyway.
//!
//! # The steps of one `aio_poll`
//!
//! 1. Find out how long the wait may last: bottom halves and timers.
//! 2. *Attempt*: poll the list, whole rounds, for the polling time or until there is work. Work found ends the wait
//!    before it begins.
//! 3. Otherwise leave poll mode, look a last time, and *wait* in the kernel.
//! 4. *Adapt*, in the global [`Revision`].
//! 5. *Dispatch* handlers, the one found last first; those found through the file descriptor join the poll list.
//!    *Adapt*, in the per-handler revision, each right after its dispatch.
//! 6. *Adapt*, in the weighted revision.
//!
//! # The rules
//!
//! | revision | releases | polling time | adapts | by |
//! |---|---|---|---|---|
//! | [global](Revision::Global) | 2.9 to 9.2 | of the context | in every `aio_poll`, whatever was ready | [`classic`] |
//! | [per handler](Revision::PerHandler) | 10.0 to 11.0 | longest of the polled handlers' | the handlers dispatched | [`classic`] |
//! | [weighted](Revision::Weighted) | 11.1 | of the context | if a polled handler was dispatched | [`weighted`], [`adjust`] |
//!
//! The arithmetic is QEMU's to the bit, overflow included. What a context is given and what it keeps differs by
//! revision, too: see [`Params::stored`].
//!
//! What follows from the rules and is easily overlooked:
//!
//! * In the global revision an `aio_poll` that neither waits nor dispatches adapts, too: a pending bottom half takes
//!   a microsecond and makes the polling time grow from 0 to 4000 ns.
//! * Nothing decays with time. In the per-handler revision a handler that fell silent keeps its polling time, and with
//!   it that of the context; in the weighted revision the polling time ends in 1 ns at the lowest (`poll_shrink` 2),
//!   which is one round of polling in each `aio_poll`, until parameters are set.
//! * Setting a parameter to the value that it has forgets what was learnt.
//!
//! # In here
//!
//! The rules are pure functions; [`Aio`] holds the state they work on. [`Aio::finish`] is for replays and
//! controllers: it learns from an `aio_poll` that happened elsewhere. The loop itself, which differs between releases
//! in more than the rule, is a part of the tests.
//!
//! # Limits
//!
//! * Compared with the compiled code of 7.2.0, 8.0.0, 9.2.0, 10.0.0, 10.2.0, 11.0.0 and 11.1.0-rc2, by the golden
//!   vectors, which include whole loops in virtual time. What the loop does otherwise before 7.0 (work done in `io_poll`)
//!   and before 5.0 (a forced round) follows the description of those changes and is compared with nothing; the
//!   rule itself is the same throughout the global revision.
//! * Stable releases may carry fixes of later ones; patch levels are not distinguished.
//! * The loop that a main thread runs through glib is not here, and neither are `aio_poll`s nested in callbacks and
//!   parameters that change during a wait (QEMU then sees one block time as long as the machine is up).
//! * [`Aio::finish`] has no clock; so no handler leaves the poll list for idleness. Neither does any in QEMU
//!   unless the monitor is io_uring, which iothreads use since 10.2.

mod context;
mod handler;
mod params;
mod revision;
mod rules;

#[cfg(test)]
mod tests;

pub use context::{Aio, Event};
pub use handler::{Handler, Kind};
pub use params::{
    DEFAULT_POLL_GROW, DEFAULT_POLL_MAX_NS, DEFAULT_POLL_SHRINK, DEFAULT_POLL_WEIGHT, Params, Property,
};
pub use revision::Revision;
pub use rules::{Change, ChangeKind, FIRST_GROWTH_NS, adjust, classic, weighted};
