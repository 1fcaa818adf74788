//! Predicts a setting from a recording of the same thread under the same load without polling.

use crate::at_ends::AtEnds;
use anyhow::Context;
use dwell_capture::{Recorder, Target, Until};
use dwell_machine::threads::Thread;
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::Reader;
use dwell_replay::{Counts, RecordingSource, Rule, Source};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The waits of a thread that did not poll, with the requests that were served meanwhile.
pub(super) struct Waits {
    source: RecordingSource,
    requests: u64,
    /// Longer waits slept; at the beginning of the others an event was there already \[ns\].
    ready_ns: u64,
}

/// The predicted cost of one request under a setting.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Predicted {
    pub(super) sleeps: f64,
    /// Time polled \[ns\], on top of what the thread uses without polling.
    pub(super) polled_ns: f64,
}

impl Waits {
    /// Records a thread that does not poll; `requests` returns how many were served so far. It is asked while events
    /// count: opening and closing a recorder takes half a second, in which requests are served too.
    pub(super) fn record(
        thread: Thread,
        length: Duration,
        stop: &AtomicBool,
        mut requests: impl FnMut() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Waits> {
        let pid = i32::try_from(thread.tid()).context("not a thread ID")?;
        let recorder = Recorder::open(Target::Thread { pid: Some(pid), comm: vec![], causes: false }, None)?;
        let mut served = AtEnds::new(|| Ok([requests()?, super::usage(thread)?.switches.voluntary]));
        let (summary, bytes) = recorder.to_memory(&Until { duration: Some(length), stop }, &mut served)?;
        let [begin, end] = served.both()?.context("the recorder did not begin")?;
        let [requests, sleeps] = [0, 1].map(|which| end[which].saturating_sub(begin[which]));
        anyhow::ensure!(summary.status.lost == 0, "{} events were lost while recording", summary.status.lost);
        anyhow::ensure!(summary.contents.episodes > 0, "the thread did not wait in {length:?}");
        anyhow::ensure!(requests > 0, "no request was served in {length:?}");
        let source = RecordingSource::new(Reader::from_bytes("the thread's waits", bytes)?, true);
        let mut lengths = vec![];
        source.visit(0..u64::MAX, &mut |batch| {
            batch.runs().for_each(|run| lengths.extend_from_slice(&run.idle_ns));
        })?;
        Ok(Waits { source, requests, ready_ns: longest_ready(lengths, sleeps) })
    }

    pub(super) fn episodes(&self) -> u64 {
        self.source.episodes()
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    /// Replays the waits through each setting.
    pub(super) fn predict(&self, settings: &[Setting]) -> anyhow::Result<Vec<Predicted>> {
        debug_assert!(settings.iter().all(|setting| setting.layer() == Layer::Iothread));
        let per_request = |number: f64| number / self.requests as f64;
        let predict = |setting: &Setting| {
            let mut player = Rule::Layer(*setting).start(self.source.handlers())?;
            let (mut sleeps, mut counts) = (0u64, Counts::default());
            self.source.visit(0..u64::MAX, &mut |batch| {
                for run in batch.runs() {
                    let mut lengths = run.idle_ns.iter();
                    counts += player.follow(run, |seen| {
                        let slept = |idle: &u64| *idle > self.ready_ns && seen.halted;
                        sleeps += u64::from(lengths.next().is_some_and(slept));
                    });
                }
            })?;
            Ok(Predicted {
                sleeps: per_request(sleeps as f64),
                polled_ns: per_request(counts.polled_ns as f64),
            })
        };
        settings.iter().map(predict).collect()
    }
}

/// The longest wait that found an event ready, where so many of the waits slept: these are the longest ones \[ns\].
fn longest_ready(mut lengths_ns: Vec<u64>, sleeps: u64) -> u64 {
    lengths_ns.sort_unstable();
    let ready = lengths_ns.len().saturating_sub(usize::try_from(sleeps).unwrap_or(usize::MAX));
    ready.checked_sub(1).map_or(0, |last| lengths_ns[last])
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_capture::RecordError;
    use dwell_policy::version::Version;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A thread that sleeps once a request, and waits once more for an event that is there. Predicted were 0.78 of its
    /// waits, those of two of 2.5 seconds, and then all of them.
    #[test]
    fn requests_and_sleeps_are_of_the_same_time() {
        const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let (served, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&served), Arc::clone(&stop));
        let (name, named) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let ready = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            name.send(Thread::current()).unwrap();
            while !end.load(Ordering::Relaxed) {
                // A wait that a signal ends is one too.
                let _ = poll(&mut [], Some(&WAIT));
                let _ = poll(&mut [PollFd::new(&ready, PollFlags::IN)], None);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let requests = || Ok(served.load(Ordering::Relaxed));
        let never_stopped = AtomicBool::new(false);
        let waits =
            Waits::record(named.recv().unwrap(), Duration::from_millis(500), &never_stopped, requests);
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        let waits = match waits {
            Err(error) if error.is::<RecordError>() => {
                return dwell_testing::skip!("root", "requests_and_sleeps_are_of_the_same_time", "{error}");
            }
            waits => waits.unwrap(),
        };
        let mut never = Setting::defaults(Layer::Iothread, Version::new(10, 0));
        never.set("poll-max-ns", 0).unwrap();
        let sleeps = waits.predict(&[never]).unwrap()[0].sleeps;
        assert!((0.97..=1.03).contains(&sleeps), "{sleeps} of {} requests", waits.requests());
        assert!(waits.episodes() as f64 > 1.9 * waits.requests() as f64);
    }

    #[test]
    fn the_shortest_waits_are_those_that_did_not_sleep() {
        assert_eq!(longest_ready(vec![70, 2, 90, 3], 2), 3);
        assert_eq!(longest_ready(vec![70, 2], 5), 0);
        assert_eq!(longest_ready(vec![70, 2], 0), 70);
        assert_eq!(longest_ready(vec![], 0), 0);
    }
}
