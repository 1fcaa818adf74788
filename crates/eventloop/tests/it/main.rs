//! The loop in a simulated world, and as it is used.

mod loop_live;
mod loop_world;
