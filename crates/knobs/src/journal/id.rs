//! The number of a change.

/// The number of a change, from 1.
pub type Id = u32;
