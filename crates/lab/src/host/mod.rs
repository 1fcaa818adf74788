//! What an experiment needs of the machine it runs on.

pub mod clock;
pub mod load;
pub mod thread;

pub use clock::{ClockError, Ticks, Tsc, TscClock, TscHz, monotonic};
pub use load::{Load, LoadError};
pub use thread::{Cores, CoresError, Cpu, Pinned, Realtime, Switches, Thread};
