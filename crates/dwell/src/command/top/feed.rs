//! Where episodes come from while they happen.

use anyhow::{Context, bail};
use clap::ValueEnum;
use dwell_capture::{GuestSource, Observer, RecordError, Recorder, Status, Until};
use dwell_trace::pairing::PairedEpisode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// vCPUs, from KVM's tracepoints.
    Host,
    /// The CPUs of this machine.
    Guest,
    /// Threads that wait in system calls.
    Thread,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Host => "host",
            Target::Guest => "guest",
            Target::Thread => "thread",
        }
    }
}

/// An episode that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Who idled.
    pub(crate) idler: Arc<str>,
    /// How long \[ns\].
    pub(crate) idle_ns: u64,
    /// How long it would have polled before halting \[ns\]; 0: it did not poll; `None`: not known.
    pub(crate) window_ns: Option<u64>,
    /// Whether it halted; `None`: not known.
    pub(crate) halted: Option<bool>,
}

/// The episodes of some time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// The time they are of.
    pub(crate) span: Duration,
    /// The episodes, in any order.
    pub(crate) episodes: Vec<Seen>,
    /// Events that were lost meanwhile.
    pub(crate) lost: u64,
}

/// Gives episodes as they end.
pub(crate) trait Feed {
    /// Those that have ended since the last call, or since the feed began. Does not wait.
    ///
    /// # Errors
    /// Why there will be no more.
    fn next(&mut self) -> anyhow::Result<Batch>;
}

/// Episodes of this machine, from its tracepoints.
pub(crate) fn live(target: Target, pid: Option<u32>, comm: Option<&str>) -> anyhow::Result<Box<dyn Feed>> {
    let pid = pid.map(i32::try_from).transpose().context("--pid: no such process")?;
    let target = match target {
        Target::Host => dwell_capture::Target::Host { pid, exits: false, contention: false },
        Target::Guest => dwell_capture::Target::Guest { source: GuestSource::Auto },
        Target::Thread => dwell_capture::Target::Thread { pid, comm: comm.map(str::to_owned) },
    };
    Ok(Box::new(Live::start(Recorder::open(target, None)?)))
}

/// The most episodes that are kept for a screen that does not come to take them.
const MOST_WAITING: usize = 1 << 20;

/// A recorder that writes nothing, in a thread of its own.
struct Live {
    waiting: Arc<Mutex<Batch>>,
    stop: Arc<AtomicBool>,
    recorder: Option<JoinHandle<Result<Status, RecordError>>>,
    taken: Instant,
}

impl Live {
    fn start(recorder: Recorder) -> Live {
        let waiting = Arc::<Mutex<Batch>>::default();
        let stop = Arc::<AtomicBool>::default();
        let mut watcher = Watcher { waiting: Arc::clone(&waiting), names: vec![], lost: 0 };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            recorder.watch(&Until { duration: None, stop: &stopped }, &mut watcher)
        });
        Live { waiting, stop, recorder: Some(thread), taken: Instant::now() }
    }
}

impl Feed for Live {
    fn next(&mut self) -> anyhow::Result<Batch> {
        if self.recorder.as_ref().is_some_and(JoinHandle::is_finished) {
            let ended = self.recorder.take().and_then(|thread| thread.join().ok());
            match ended {
                Some(Err(error)) => return Err(error.into()),
                _ => bail!("what was watched has ended"),
            }
        }
        let now = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = Batch { span: now.duration_since(self.taken), ..std::mem::take(&mut *waiting) };
        self.taken = now;
        Ok(batch)
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.recorder.take() {
            let _ = thread.join();
        }
    }
}

/// Hands the recorder's episodes over.
struct Watcher {
    waiting: Arc<Mutex<Batch>>,
    names: Vec<Arc<str>>,
    lost: u64,
}

impl Observer for Watcher {
    fn status(&mut self, status: &Status) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.lost += status.lost.saturating_sub(self.lost);
        self.lost = status.lost;
    }

    fn episodes(&mut self, names: &[String], found: &[PairedEpisode]) {
        let new = names.get(self.names.len()..).unwrap_or_default();
        self.names.extend(new.iter().map(|name| Arc::from(name.as_str())));
        let names = &self.names;
        let seen = found.iter().filter_map(|found| {
            let idler = Arc::clone(names.get(usize::try_from(found.idler).ok()?)?);
            Some(Seen { idler, idle_ns: found.idle_ns, window_ns: found.window_ns, halted: found.halted })
        });
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_WAITING.saturating_sub(waiting.episodes.len());
        waiting.lost += found.len().saturating_sub(room) as u64;
        waiting.episodes.extend(seen.take(room));
    }
}
