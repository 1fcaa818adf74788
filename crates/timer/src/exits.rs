//! The exits of a recording of timers, as `perf kvm stat` counts them, and those that timers caused.

use dwell_recording::ReadError;
use dwell_recording::timer::{TimerPart, TimerReader};
use dwell_trace::exits::{ExitCounter, ExitTable};
use serde::Serialize;

/// The exits of one reason that vCPUs' timers caused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimerExits {
    /// The reason, as the kernel names it.
    pub reason: String,
    pub part: TimerPart,
    pub samples: u64,
    /// Time in all \[ns\].
    pub total_ns: u64,
}

/// The exits of a recording of timers, which are in the order of their ends.
///
/// # Errors
/// The reader's.
pub fn table(reader: &TimerReader) -> Result<(ExitTable, Vec<TimerExits>), ReadError> {
    let mut counter = ExitCounter::default();
    let mut parts: Vec<TimerExits> = vec![];
    let reasons = &reader.contents().reasons;
    for row_group in 0..reader.row_groups() {
        for exit in reader.read(row_group)?.exits {
            let reason = reasons.get(exit.reason as usize).map_or("", String::as_str);
            counter.add(reason, exit.duration_ns);
            let Some(part) = exit.cause else { continue };
            let place = parts.iter().position(|known| (&*known.reason, known.part) == (reason, part));
            let place = place.unwrap_or_else(|| {
                parts.push(TimerExits { reason: reason.to_owned(), part, samples: 0, total_ns: 0 });
                parts.len() - 1
            });
            parts[place].samples += 1;
            parts[place].total_ns = parts[place].total_ns.saturating_add(exit.duration_ns);
        }
    }
    Ok((counter.finish(), parts))
}
