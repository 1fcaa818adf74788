//! Paired timers and exits into a recording.

use dwell_recording::WriteError;
use dwell_recording::timer::{ExitRow, TimerRow, TimerRows, TimerWriter};
use std::io::Write;

/// Writes the rows of one pairing: its numbers of vCPUs and reasons become those of the recording.
#[derive(Debug, Default)]
pub struct TimerRowWriter {
    vcpus: Vec<u32>,
    reasons: Vec<u32>,
}

impl TimerRowWriter {
    /// Appends the rows, and leaves none. `vcpus` and `reasons` are the pairing's lists, which only grow.
    ///
    /// # Errors
    /// The writer's.
    pub fn push<W: Write + Send>(
        &mut self,
        [vcpus, reasons]: [&[String]; 2],
        rows: &mut TimerRows,
        writer: &mut TimerWriter<W>,
    ) -> Result<(), WriteError> {
        let named = self.vcpus.len();
        self.vcpus.extend(vcpus.iter().skip(named).map(|name| writer.vcpu(name)));
        let named = self.reasons.len();
        self.reasons.extend(reasons.iter().skip(named).map(|name| writer.reason(name)));
        let of = |numbers: &[u32], number: u32| numbers.get(number as usize).copied().unwrap_or(u32::MAX);
        for timer in rows.timers.drain(..) {
            writer.push_timer(&TimerRow { vcpu: of(&self.vcpus, timer.vcpu), ..timer })?;
        }
        for exit in rows.exits.drain(..) {
            let (vcpu, reason) = (of(&self.vcpus, exit.vcpu), of(&self.reasons, exit.reason));
            writer.push_exit(&ExitRow { vcpu, reason, ..exit })?;
        }
        Ok(())
    }
}
