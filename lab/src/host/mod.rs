//! What an experiment needs of the machine it runs on.

pub mod clock;
pub mod load;
pub mod pin;
pub mod thread;

pub use clock::{ClockError, Ticks, Tsc, TscClock, TscHz, monotonic};
pub use load::{ExperimentLoad, load_of_programs, load_on};
pub use pin::{Cpu, PinError, Pinned, allowed};
pub use thread::{Cores, CoresError, Realtime};
