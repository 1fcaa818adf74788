//! Bursts of the recorder: short looks at the idle times of one target, one after the other.

use dwell_capture::{Observer, RecordError, Recorder, Status, Target, Until};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// One recorder for all bursts: to open one takes as much CPU time as many bursts.
pub(super) struct Bursts {
    /// With the source of its idle times as found for the first burst: to find it visits every CPU.
    target: Target,
    open: Option<Open>,
    /// Trace events lost by all recorders.
    pub(super) lost: u64,
}

struct Open {
    recorder: Recorder,
    /// The CPUs that were online.
    online: String,
    /// The events that it has reported as lost.
    reported: u64,
}

impl Bursts {
    /// Of a target. Nothing is opened yet.
    pub(super) const fn of(target: Target) -> Bursts {
        Bursts { target, open: None, lost: 0 }
    }

    /// Opens the recorder, unless one is open with the same CPUs online.
    pub(super) fn open(&mut self, online: &str) -> Result<&mut Recorder, RecordError> {
        let open = match self.open.take() {
            Some(open) if open.online == online => open,
            _ => {
                let recorder = Recorder::open(self.target.clone(), None)?;
                self.target = recorder.target().clone();
                Open { recorder, online: online.to_owned(), reported: 0 }
            }
        };
        Ok(&mut self.open.insert(open).recorder)
    }

    /// Shows an observer what happens for so long.
    pub(super) fn watch(
        &mut self,
        online: &str,
        length: Duration,
        observer: &mut dyn Observer,
    ) -> Result<(), RecordError> {
        self.during(online, length, |recorder, until| Ok((recorder.watch(until, observer)?, ())))
    }

    /// Records for so long: the bytes of a Parquet file.
    pub(super) fn record(&mut self, online: &str, length: Duration) -> Result<Vec<u8>, RecordError> {
        self.during(online, length, |recorder, until| {
            let (summary, bytes) = recorder.write(Vec::new(), until, &mut ())?;
            Ok((summary.status, bytes))
        })
    }

    /// After an error the next burst opens another recorder.
    fn during<T>(
        &mut self,
        online: &str,
        length: Duration,
        records: impl FnOnce(&mut Recorder, &Until<'_>) -> Result<(Status, T), RecordError>,
    ) -> Result<T, RecordError> {
        let stop = AtomicBool::new(false);
        let recorded = records(self.open(online)?, &Until { duration: Some(length), stop: &stop });
        match (recorded, &mut self.open) {
            (Ok((status, recorded)), Some(open)) => {
                let before = std::mem::replace(&mut open.reported, status.lost);
                self.lost += status.lost.saturating_sub(before);
                Ok(recorded)
            }
            (recorded, open) => {
                *open = None;
                recorded.map(|(_, recorded)| recorded)
            }
        }
    }

    /// Whether the next burst comes soon.
    pub(super) fn stay(&mut self, stays: bool) {
        if let Some(open) = &mut self.open {
            open.recorder.stay(stays);
        }
    }
}
