//! The data of the page of a recording of timers.

use crate::recorded::Timers;
use serde::Serialize;

/// The page of one recording, or of two from before a change and after it.
#[derive(Serialize)]
pub struct Page<'a> {
    dwell: &'static str,
    command: &'a str,
    /// The page is of timers, not of recordings of idle times.
    recordings: [(); 0],
    timers: &'a Timers,
    #[serde(skip_serializing_if = "Option::is_none")]
    timers_before: Option<&'a Timers>,
}

impl<'a> Page<'a> {
    /// `command` makes it again.
    pub fn of(timers: &'a Timers, before: Option<&'a Timers>, command: &'a str) -> Page<'a> {
        let dwell = env!("CARGO_PKG_VERSION");
        Page { dwell, command, recordings: [], timers, timers_before: before }
    }
}
