//! QEMU adaptive polling (being written)

mod params;
mod release;

pub use params::{
    DEFAULT_POLL_GROW, DEFAULT_POLL_MAX_NS, DEFAULT_POLL_SHRINK, DEFAULT_POLL_WEIGHT, Params, Property,
    SetPropertyError, parse_number,
};
pub use release::{Era, Release};
