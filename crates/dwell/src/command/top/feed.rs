//! Sources of live episodes.

use crate::privileges;
use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use dwell_capture::{GuestSource, Observer, RecordError, Recorder, Status, Until};
use dwell_recording::accounting::Outcome;
use dwell_trace::pairing::PairedEpisode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

dwell_policy::named! {
    /// What to watch.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    pub(crate) enum Target {
        /// vCPUs, from KVM's tracepoints.
        Host = "host",
        /// The CPUs of this machine.
        Guest = "guest",
        /// Threads that wait in system calls.
        Thread = "thread",
    }

    pub(crate) fn name
}

/// An episode that has ended.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) idler: Arc<str>,
    /// The window \[ns\]; 0: it did not poll; `None`: not known.
    pub(crate) window_ns: Option<u64>,
    pub(crate) outcome: Outcome,
}

/// The episodes of one interval.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    /// Length of the interval.
    pub(crate) span: Duration,
    /// The episodes, in any order.
    pub(crate) episodes: Vec<Seen>,
    /// Events that are known to have been lost in it. There may be more: the kernel reports a loss when there is room
    /// again.
    pub(crate) lost: u64,
    /// Whether the kernel does not count losses (before Linux 6.0), so that none known does not mean none.
    pub(crate) losses_unknown: bool,
}

/// Episodes of this machine, from its tracepoints.
pub(crate) fn live(target: Target, pid: Option<u32>, comm: Option<&str>) -> anyhow::Result<Feed> {
    let only = |given: bool, option: &str, targets: &str| {
        ensure!(!given, "{option} has no effect on the target {}: it is for {targets}", target.name());
        Ok(())
    };
    only(comm.is_some() && target != Target::Thread, "--comm", "thread")?;
    only(pid.is_some() && target == Target::Guest, "--pid", "host and thread")?;
    let pid = pid.map(i32::try_from).transpose().context("--pid: no such process")?;
    let target = match target {
        Target::Host => dwell_capture::Target::Host { pid, exits: false, contention: false, causes: false },
        Target::Guest => dwell_capture::Target::Guest { source: GuestSource::Auto, causes: false },
        Target::Thread => dwell_capture::Target::Thread {
            pid,
            comm: comm.into_iter().map(str::to_owned).collect(),
            causes: false,
        },
    };
    let recorder = Recorder::open(target, None)?;
    // Before any other thread is started: capabilities are those of a thread, and inherited.
    privileges::keep_those_for_watching();
    Ok(Feed::start(recorder))
}

/// The most episodes that are kept between two calls.
const MOST_WAITING: usize = 1 << 20;

/// A recorder without a file, in its own thread.
pub(crate) struct Feed {
    waiting: Arc<Mutex<Batch>>,
    stop: Arc<AtomicBool>,
    recorder: Option<JoinHandle<Result<Status, RecordError>>>,
    losses_unknown: bool,
    taken: Instant,
}

impl Feed {
    fn start(mut recorder: Recorder) -> Feed {
        let waiting = Arc::<Mutex<Batch>>::default();
        let stop = Arc::<AtomicBool>::default();
        let poll_step_ns = recorder.metadata().poll_step_ns().unwrap_or(0);
        let mut watcher = Watcher { waiting: Arc::clone(&waiting), names: vec![], lost: 0, poll_step_ns };
        let stopped = Arc::clone(&stop);
        let losses_unknown = recorder.metadata().lost.at_least;
        let thread = std::thread::spawn(move || {
            recorder.watch(&Until { duration: None, stop: &stopped }, &mut watcher)
        });
        Feed { waiting, stop, recorder: Some(thread), losses_unknown, taken: Instant::now() }
    }

    /// Episodes that ended since the last call, or since the feed started. Does not wait.
    ///
    /// # Errors
    /// The recorder failed or has ended.
    pub(crate) fn next(&mut self) -> anyhow::Result<Batch> {
        if self.recorder.as_ref().is_some_and(JoinHandle::is_finished) {
            let ended = self.recorder.take().and_then(|thread| thread.join().ok());
            match ended {
                Some(Err(error)) => return Err(error.into()),
                _ => bail!("what was watched has ended"),
            }
        }
        let now = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = Batch {
            span: now.duration_since(self.taken),
            losses_unknown: self.losses_unknown,
            ..std::mem::take(&mut *waiting)
        };
        self.taken = now;
        Ok(batch)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.recorder.take() {
            let _ = thread.join();
        }
    }
}

/// Passes the recorder's episodes on.
struct Watcher {
    waiting: Arc<Mutex<Batch>>,
    names: Vec<Arc<str>>,
    lost: u64,
    /// Of a guest, where it is known: from one look at the clock to the next \[ns\]; 0 otherwise.
    poll_step_ns: u64,
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
            Some(Seen { idler, window_ns: found.window_ns, outcome: found.outcome(self.poll_step_ns) })
        });
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MOST_WAITING.saturating_sub(waiting.episodes.len());
        waiting.lost += found.len().saturating_sub(room) as u64;
        waiting.episodes.extend(seen.take(room));
    }
}
