//! What an experiment needs of the machine it runs on.

pub mod clock;
pub mod thread;

pub use clock::{ClockError, Ticks, Tsc, TscClock, TscHz, monotonic};
pub use thread::{Cores, CoresError, Realtime};
