//! `dwell report` of recordings of timers: a page, or the same figures as JSON.

use super::recorded::Timers;
use dwell_report::page;
use serde::Serialize;

/// The data of the page.
#[derive(Serialize)]
struct Data<'a> {
    dwell: &'static str,
    command: &'a str,
    /// The page is of timers, not of recordings of idle times.
    recordings: [(); 0],
    timers: &'a Timers,
    /// From before a change, where `timers` is from after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    timers_before: Option<&'a Timers>,
}

/// The figures; `command` makes them again.
pub(crate) fn json(timers: &Timers, before: Option<&Timers>, command: &str) -> anyhow::Result<String> {
    let dwell = env!("CARGO_PKG_VERSION");
    let data = Data { dwell, command, recordings: [], timers, timers_before: before };
    Ok(page::embeddable(&serde_json::to_string(&data)?) + "\n")
}

/// The page.
pub(crate) fn html(timers: &Timers, command: &str) -> anyhow::Result<String> {
    Ok(page::page(&format!("{} - dwell report", timers.name()), &json(timers, None, command)?))
}
