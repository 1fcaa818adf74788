//! A vhost-user block device on [`dwell_eventloop`]: its I/O thread decides by a policy how long to poll
//! before it sleeps.
//!
//! # The idea
//! A device of its own process serves the disk of a virtual machine: the VMM passes it the guest's memory and two file
//! descriptors for each virtqueue, and is not on the way of a request any more. While the I/O thread is
//! awake, virtqueues are looked at by a load and the guest need not notify, which costs it an exit from the
//! guest.
//!
//! # The parts
//! * [`request`]: a chain of descriptors is a request, or is malformed. [`disk`]: what is behind the device,
//!   and whether it can do what is asked.
//! * `device`: the sources of the loop, one for each virtqueue and one for the completions of io_uring.
//!   `requests`: those in flight; `slot`: the operations of one of them.
//! * [`worker`]: the I/O thread, which runs the loop, and a doorbell for control requests.
//! * [`session`]: a connection. Its thread reads and checks vhost-user requests, and asks the I/O thread; a
//!   frontend that sends half a message does not keep I/O waiting.
//! * [`driver`]: the other side, for tests and measurements.
//!
//! # Hostile guests and frontends
//! Whatever a guest puts into its rings and descriptors, the device does not panic, does not loop for longer
//! than the ring is long, and touches no memory but the guest's. A chain that is no request is returned with
//! nothing written. A ring whose rules are broken is stopped and its error descriptor signalled, until it is
//! started anew. A frontend that breaks the protocol is disconnected; the next one can connect.
//!
//! # Limits
//! * A frontend that makes the file behind the guest's memory shorter while it is in use ends the device by `SIGBUS`.
//! * Requests in flight are lost if the device is killed: the feature that keeps them for a successor
//!   (`INFLIGHT_SHMFD`) is not offered; neither are live migration, packed rings, and rings without a kick
//!   descriptor.
//! * The descriptor table and each ring are within one region of the guest's memory; otherwise the ring is
//!   stopped at its first request.
//! * One frontend at a time; one I/O thread.
#![deny(unsafe_op_in_unsafe_fn)]

mod device;
pub mod disk;
pub mod driver;
pub mod request;
// Operations of io_uring refer to memory: each block argues why it is there until they complete.
#[allow(unsafe_code)]
mod requests;
pub mod session;
mod slot;
pub mod statistics;
mod virtqueue;
pub mod worker;

pub use disk::Disk;
pub use session::{Shape, serve};
pub use statistics::Statistics;
pub use virtqueue::Memory;
pub use worker::{Options, Worker};

// The examples of the README are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
