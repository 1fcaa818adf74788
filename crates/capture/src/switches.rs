//! Context switches beside a recording: a load that waits for itself does less while it is recorded.

use crate::clock::now_ns;
use dwell_machine::Machine;
use dwell_machine::threads::context_switches;
use serde_json::{Value, json};
use std::time::Duration;

/// How long they are counted before and after a recording: at 1,000 a second the count is within 6 % of its mean, in two of
/// three cases.
const BESIDE: Duration = Duration::from_millis(250);
/// Of a recording of a given length at most such a part.
const PART: u32 = 8;

/// The context switches of all CPUs at the beginnings and ends of the time before, in and after a recording: when, and how many
/// since boot.
#[derive(Debug, Default)]
pub(crate) struct Switches(Vec<Option<(u64, u64)>>);

impl Switches {
    /// Where a recording of that length begins or has ended: waits meanwhile.
    pub(crate) fn count(&mut self, machine: &(impl Machine + ?Sized), recorded: Option<Duration>) {
        self.read(machine);
        std::thread::sleep(recorded.map_or(BESIDE, |length| BESIDE.min(length / PART)));
        self.read(machine);
    }

    pub(crate) fn read(&mut self, machine: &(impl Machine + ?Sized)) {
        let count = machine.text("/proc/stat").as_deref().and_then(context_switches);
        self.0.push(count.map(|count| (now_ns(), count)));
    }

    /// How many there were a second; `None` before the end and where they cannot be read.
    pub(crate) fn per_s(&self) -> Option<Value> {
        let per_s = |begins: usize| {
            let [begin, end] = [begins, begins + 1].map(|at| self.0.get(at).copied().flatten());
            let ((begin_ns, first), (end_ns, last)) = begin.zip(end)?;
            let ns = end_ns.checked_sub(begin_ns).filter(|ns| *ns > 0)?;
            Some(last.checked_sub(first)? as f64 * 1e9 / ns as f64)
        };
        Some(json!({ "before": per_s(0)?, "while": per_s(2)?, "after": per_s(4)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_three_times() {
        let at = |times: &[(u64, u64)]| Switches(times.iter().copied().map(Some).collect());
        let all =
            [(0, 0), (250_000_000, 500), (300_000_000, 600), (2_300_000_000, 2_600), (3_000_000_000, 3_000)];
        assert_eq!(at(&all).per_s(), None, "it has not ended");
        let mut ended = at(&all);
        ended.0.push(Some((3_500_000_000, 4_000)));
        let expected = json!({ "before": 2_000.0, "while": 1_000.0, "after": 2_000.0 });
        assert_eq!(ended.per_s(), Some(expected));
        ended.0[3] = None;
        assert_eq!(ended.per_s(), None);
        assert_eq!(at(&[(5, 7); 6]).per_s(), None, "in no time");
    }
}
