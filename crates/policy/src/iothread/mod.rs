//! QEMU adaptive polling (being written)

mod context;
mod handler;
mod params;
mod release;
mod rules;

#[cfg(test)]
mod oracle;

pub use context::{Aio, Event};
pub use handler::{Handler, Kind};
pub use params::{
    DEFAULT_POLL_GROW, DEFAULT_POLL_MAX_NS, DEFAULT_POLL_SHRINK, DEFAULT_POLL_WEIGHT, Params, Property,
    SetPropertyError, parse_number,
};
pub use release::{Era, Release};
pub use rules::{Change, ChangeKind, FIRST_GROWTH_NS, adjust, classic, weighted};
