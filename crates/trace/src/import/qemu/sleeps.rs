//! When the threads of a QEMU slept: a recording of `dwell record thread` that ran beside QEMU's trace.

use super::QemuError;
use dwell_policy::Layer;
use dwell_recording::Chunk;
use dwell_recording::Columns;
use dwell_recording::Reader;
use dwell_recording::WakeCause;
use std::collections::BTreeMap;

/// Under this key a recording keeps by how much CLOCK_REALTIME was ahead of CLOCK_MONOTONIC \[ns\] when it was made. Both
/// run at the same rate; only setting the clock changes it.
pub const REALTIME_OFFSET: &str = "realtime_less_monotonic_ns";

/// One system call that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sleep {
    /// CLOCK_MONOTONIC.
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) wake: Option<WakeCause>,
}

#[derive(Clone, Debug)]
struct Thread {
    name: String,
    sleeps: Vec<Sleep>,
    /// Those before this one were taken.
    next: usize,
}

/// The waits of threads, by thread.
#[derive(Clone, Debug)]
pub struct Sleeps {
    offset_ns: u64,
    threads: BTreeMap<u32, Thread>,
}

impl Sleeps {
    /// Reads them all: 24 bytes a wait stay in memory.
    ///
    /// # Errors
    /// If the recording is not one of threads, does not tell how its clock stands to the time of day, or cannot be read.
    pub fn read(name: &str, reader: &Reader) -> Result<Sleeps, QemuError> {
        let metadata = reader.metadata();
        if metadata.layer != Layer::Iothread {
            return Err(QemuError::NotOfThreads { name: name.to_owned(), layer: metadata.layer.name() });
        }
        let offset_ns = metadata.other.get(REALTIME_OFFSET).and_then(serde_json::Value::as_u64);
        let offset_ns = offset_ns.ok_or_else(|| QemuError::NoOffset { name: name.to_owned() })?;
        let idlers = &reader.contents().idlers;
        // `comm/pid/tid`, where comm may be anything.
        let tids: Vec<Option<u32>> =
            idlers.iter().map(|idler| idler.name.rsplit('/').next()?.parse().ok()).collect();
        let mut threads = BTreeMap::new();
        for (idler, tid) in idlers.iter().zip(&tids) {
            let Some(tid) = *tid else { continue };
            threads.insert(tid, Thread { name: idler.name.clone(), sleeps: vec![], next: 0 });
        }
        let mut chunk = Chunk::default();
        let columns = Columns::IDLER | Columns::START_NS | Columns::IDLE_NS | Columns::WAKE;
        for row_group in 0..reader.row_groups() {
            reader
                .read(row_group, columns, &mut chunk)
                .map_err(|source| QemuError::Sleeps { name: name.to_owned(), source })?;
            for row in 0..chunk.rows {
                let (start_ns, end_ns) =
                    (chunk.start_ns[row], chunk.start_ns[row].saturating_add(chunk.idle_ns[row]));
                let tid = tids.get(chunk.idler[row] as usize).copied().flatten();
                if let Some(thread) = tid.and_then(|tid| threads.get_mut(&tid)) {
                    thread.sleeps.push(Sleep { start_ns, end_ns, wake: chunk.wake[row] });
                }
            }
        }
        Ok(Sleeps { offset_ns, threads })
    }

    /// The number of the only thread, if there is only one.
    pub(super) fn only(&self) -> Option<u32> {
        (self.threads.len() == 1).then(|| self.threads.keys().next().copied()).flatten()
    }

    /// The name of a thread whose waits are here.
    pub(super) fn name(&self, tid: u32) -> Option<&str> {
        self.threads.get(&tid).map(|thread| thread.name.as_str())
    }

    /// The time of day as CLOCK_MONOTONIC.
    pub(super) fn monotonic(&self, realtime_ns: u64) -> u64 {
        realtime_ns.saturating_sub(self.offset_ns)
    }

    /// The waits of a thread before a line that was written within a microsecond from `at_ns` (CLOCK_MONOTONIC), as far as
    /// they were not taken before. One that began in that microsecond is counted to what comes after the line.
    pub(super) fn take(&mut self, tid: u32, at_ns: u64) -> &[Sleep] {
        let Some(thread) = self.threads.get_mut(&tid) else { return &[] };
        let before = |sleep: &Sleep| {
            sleep.start_ns <= at_ns && sleep.end_ns <= at_ns.saturating_add(super::context::RESOLUTION_NS)
        };
        let from = thread.next;
        while thread.sleeps.get(thread.next).is_some_and(before) {
            thread.next += 1;
        }
        thread.sleeps.get(from..thread.next).unwrap_or_default()
    }

    /// Whether the waits of a thread were being recorded at `at_ns` (CLOCK_MONOTONIC): between the first and the last.
    pub(super) fn covers(&self, tid: u32, at_ns: u64) -> bool {
        let sleeps = self.threads.get(&tid).map_or(&[][..], |thread| &thread.sleeps);
        match (sleeps.first(), sleeps.last()) {
            (Some(first), Some(last)) => (first.start_ns..=last.end_ns).contains(&at_ns),
            _ => false,
        }
    }
}
