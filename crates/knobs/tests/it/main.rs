//! Changes of machines below a directory, and monitors.

mod change;
mod monitor;
