//! The guard in a simulated world, and on this machine.

mod live;
mod world;
