//! When the threads of a QEMU slept: a recording of `dwell record thread` that was made at the same time as
//! QEMU's trace.

use super::ImportError;
use super::line::RESOLUTION_NS;
use crate::event::{Event, EventKind, SystemCall, Timeout};
use crate::pairing::Names;
use dwell_policy::Layer;
use dwell_recording::Chunk;
use dwell_recording::Columns;
use dwell_recording::Reader;
use dwell_recording::WakeCause;
use std::collections::BTreeMap;

/// One system call that waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sleep {
    start_ns: u64,
    end_ns: u64,
    wake: Option<WakeCause>,
}

#[derive(Clone, Debug)]
struct Thread {
    pid: i32,
    comm: String,
    sleeps: Vec<Sleep>,
    /// Those before this one were given out.
    next: usize,
    /// How far the next one was: its beginning was, or nothing follows.
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Awake,
    Asleep,
    Over,
}

/// The waits of threads, by thread.
#[derive(Clone, Debug)]
pub struct Sleeps {
    offset_ns: u64,
    threads: BTreeMap<i32, Thread>,
}

impl Sleeps {
    /// Reads them all: 24 bytes a wait stay in memory.
    ///
    /// # Errors
    /// If the recording is not one of threads, does not have the difference of its clock to the time of day,
    /// or cannot be read.
    pub fn read(name: &str, reader: &Reader) -> Result<Sleeps, ImportError> {
        let metadata = reader.metadata();
        if metadata.layer != Layer::Iothread {
            let layer = metadata.layer.name();
            return Err(ImportError::Refused(format!(
                "{name}: is a recording of layer {layer}; waits of threads come from `dwell record thread`"
            )));
        }
        let offset_ns = metadata.realtime_offset_ns().and_then(|ns| u64::try_from(ns).ok());
        let offset_ns = offset_ns.ok_or_else(|| {
            ImportError::Refused(format!(
                "cannot align {name}: it has no time of day; record it with this version's `dwell record thread`"
            ))
        })?;
        let idlers = &reader.contents().idlers;
        let parsed: Vec<Option<(i32, i32, &str)>> = idlers.iter().map(|idler| ids(&idler.name)).collect();
        let mut threads = BTreeMap::new();
        for &(tid, pid, comm) in parsed.iter().flatten() {
            let comm = comm.to_owned();
            threads.insert(tid, Thread { pid, comm, sleeps: vec![], next: 0, progress: Progress::Awake });
        }
        let mut chunk = Chunk::default();
        let columns = Columns::IDLER | Columns::START_NS | Columns::IDLE_NS | Columns::WAKE;
        for row_group in 0..reader.row_groups() {
            reader
                .read(row_group, columns, &mut chunk)
                .map_err(|source| ImportError::Waits(name.to_owned(), source))?;
            for row in 0..chunk.rows {
                let (start_ns, end_ns) =
                    (chunk.start_ns[row], chunk.start_ns[row].saturating_add(chunk.idle_ns[row]));
                let ids = parsed.get(chunk.idler[row] as usize).copied().flatten();
                if let Some(thread) = ids.and_then(|(tid, ..)| threads.get_mut(&tid)) {
                    thread.sleeps.push(Sleep { start_ns, end_ns, wake: chunk.wake[row] });
                }
            }
        }
        Ok(Sleeps { offset_ns, threads })
    }

    /// The number of the only thread, if there is only one.
    pub(super) fn only(&self) -> Option<i32> {
        (self.threads.len() == 1).then(|| self.threads.keys().next().copied()).flatten()
    }

    /// The process of a thread.
    pub(super) fn pid(&self, tid: i32) -> i32 {
        self.threads.get(&tid).map_or(Event::UNKNOWN_ID, |thread| thread.pid)
    }

    /// The names of the threads.
    pub(super) fn names(&self) -> ThreadNames {
        ThreadNames(self.threads.iter().map(|(&tid, thread)| (tid, thread.comm.clone())).collect())
    }

    /// The time of day as CLOCK_MONOTONIC.
    pub(super) fn monotonic(&self, realtime_ns: u64) -> u64 {
        realtime_ns.saturating_sub(self.offset_ns)
    }

    /// The waits of a thread as the system calls that they were, as far as they come before a line that was
    /// written within a microsecond from `at_ns` (CLOCK_MONOTONIC) and were not given out before. One that
    /// began in that microsecond comes after the line. After the last one the calls of the thread are not
    /// traced any more.
    pub(super) fn until(&mut self, tid: i32, at_ns: u64, mut each: impl FnMut(Event)) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let mut event = |time_ns, kind| each(Event { time_ns, cpu: 0, pid: thread.pid, tid, kind });
        while let Some(sleep) = thread.sleeps.get(thread.next).filter(|sleep| sleep.start_ns <= at_ns) {
            if thread.progress == Progress::Awake {
                event(sleep.start_ns, EventKind::Enter { call: CALL, timeout: Timeout::Unlimited });
                thread.progress = Progress::Asleep;
            }
            if sleep.end_ns > at_ns.saturating_add(RESOLUTION_NS) {
                return;
            }
            event(sleep.end_ns, EventKind::Leave { call: CALL, result: result(sleep.wake) });
            thread.progress = Progress::Awake;
            thread.next += 1;
        }
        let last = thread.sleeps.last().filter(|_| thread.next == thread.sleeps.len());
        if thread.progress == Progress::Awake
            && let Some(last) = last.filter(|last| last.end_ns < at_ns)
        {
            event(last.end_ns, EventKind::Untraced);
            thread.progress = Progress::Over;
        }
    }
}

/// The call in which QEMU's loops wait. Which one a wait was is not in the recording, and makes no difference here.
const CALL: SystemCall = SystemCall::Ppoll;

/// What such a call returns that ended so.
fn result(wake: Option<WakeCause>) -> i64 {
    match wake {
        Some(WakeCause::Io) => 1,
        Some(WakeCause::Timer) => 0,
        _ => -i64::from(libc::EINTR),
    }
}

/// Thread, process and name out of `comm/pid/tid` or `comm/tid`, where comm may be anything.
pub fn ids(name: &str) -> Option<(i32, i32, &str)> {
    let (rest, tid) = name.rsplit_once('/')?;
    let tid = tid.parse().ok()?;
    let of_process = rest.rsplit_once('/').and_then(|(comm, pid)| Some((pid.parse().ok()?, comm)));
    let (pid, comm) = of_process.unwrap_or((Event::UNKNOWN_ID, rest));
    Some((tid, pid, comm))
}

/// The names of recorded threads.
#[derive(Debug, Default)]
pub(super) struct ThreadNames(BTreeMap<i32, String>);

impl Names for ThreadNames {
    fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
        self.0.get(&tid).cloned()
    }
}
