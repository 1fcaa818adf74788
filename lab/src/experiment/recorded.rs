//! Records while an experiment runs, by dwell's own recorder.

use super::{LabError, Rig};
use dwell_capture::{Recorder, Status, Until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};

/// Reports when the recorder runs.
struct Started(Option<Sender<()>>);

impl dwell_capture::Observer for Started {
    fn status(&mut self, _: &Status) {
        if let Some(started) = self.0.take() {
            let _ = started.send(());
        }
    }
}

/// Records from before `drive` begins until it has ended; also returns the recording.
///
/// # Errors
/// Those of `drive`; the recorder's, or it lost events.
pub(super) fn record_during<T>(
    rig: &Rig,
    recorder: Recorder,
    drive: impl FnOnce() -> Result<T, LabError>,
) -> Result<(T, Vec<u8>), LabError> {
    let enough = AtomicBool::new(false);
    let (started, ready) = channel();
    std::thread::scope(|scope| {
        let recording = std::thread::Builder::new()
            .spawn_scoped(scope, || {
                let _aside = rig.aside()?;
                let until = Until { duration: None, stop: &enough };
                recorder.to_memory(&until, &mut Started(Some(started))).map_err(LabError::from)
            })
            .map_err(LabError::Thread)?;
        // If it fails before it starts, nothing comes, and its error is reported below.
        let driven = ready.recv().map_err(|_| LabError::Gone).and_then(|()| drive());
        enough.store(true, Ordering::Relaxed);
        let (summary, bytes) = recording.join().map_err(|_| LabError::Panicked)??;
        match summary.status.lost {
            0 => Ok((driven?, bytes)),
            lost => Err(LabError::LostEvents { lost }),
        }
    })
}
