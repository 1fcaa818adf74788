//! Predicts a setting from a recording of the same thread under the same load without polling.

use anyhow::Context;
use dwell_capture::{Observer, Recorder, Target, Until};
use dwell_policy::Layer;
use dwell_policy::param::Setting;
use dwell_recording::Reader;
use dwell_replay::{Bank, RecordingSource, Rule, Source};
use serde::Serialize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The waits of a thread that did not poll, with the requests that were served meanwhile.
pub(super) struct Waits {
    source: RecordingSource,
    requests: u64,
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
        tid: u32,
        length: Duration,
        stop: &AtomicBool,
        requests: impl FnMut() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Waits> {
        let pid = i32::try_from(tid).context("not a thread ID")?;
        let recorder = Recorder::open(Target::Thread { pid: Some(pid), comm: None }, None)?;
        let mut served = Served { requests, ends: vec![] };
        let (summary, bytes) = recorder.to_memory(&Until { duration: Some(length), stop }, &mut served)?;
        let requests = served.number()?;
        anyhow::ensure!(summary.status.lost == 0, "{} events were lost while recording", summary.status.lost);
        anyhow::ensure!(summary.contents.episodes > 0, "the thread did not wait in {length:?}");
        anyhow::ensure!(requests > 0, "no request was served in {length:?}");
        let source = RecordingSource::new(Reader::from_bytes("the thread's waits", bytes)?, true);
        Ok(Waits { source, requests })
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
        let rules: Vec<Rule> = settings.iter().map(|setting| Rule::Layer(*setting)).collect();
        let mut bank = Bank::new(&rules, self.source.handlers())?;
        self.source.visit(0..u64::MAX, &mut |batch| bank.feed(batch))?;
        let requests = self.requests as f64;
        let predicted = |counts: dwell_replay::Counts| Predicted {
            sleeps: counts.halts as f64 / requests,
            polled_ns: counts.polled_ns as f64 / requests,
        };
        Ok(bank.take().into_iter().map(predicted).collect())
    }
}

/// Reads how many requests were served, at the beginning and at the end of a recording.
struct Served<F> {
    requests: F,
    ends: Vec<anyhow::Result<u64>>,
}

impl<F: FnMut() -> anyhow::Result<u64>> Served<F> {
    fn read(&mut self) {
        self.ends.push((self.requests)());
    }

    fn number(self) -> anyhow::Result<u64> {
        let ends: Vec<u64> = self.ends.into_iter().collect::<anyhow::Result<_>>()?;
        Ok(ends.last().unwrap_or(&0).saturating_sub(*ends.first().unwrap_or(&0)))
    }
}

impl<F: FnMut() -> anyhow::Result<u64>> Observer for Served<F> {
    fn begins(&mut self) {
        self.read();
    }

    fn ends(&mut self) {
        self.read();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_capture::RecordError;
    use dwell_policy::version::Version;
    use rustix::event::{Timespec, poll};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A thread that waits once a request: predicted were 0.78 of its waits, those of two of 2.5 seconds.
    #[test]
    fn requests_and_waits_are_of_the_same_time() {
        const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let (served, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (Arc::clone(&served), Arc::clone(&stop));
        let (name, named) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            name.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            while !end.load(Ordering::Relaxed) {
                // A wait that a signal ends is one too.
                let _ = poll(&mut [], Some(&WAIT));
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
                return dwell_testing::skip!("tracing", "prediction of a thread of this process", "{error}");
            }
            waits => waits.unwrap(),
        };
        let mut never = Setting::defaults(Layer::Iothread, Version::new(10, 0));
        never.set("poll-max-ns", 0).unwrap();
        let sleeps = waits.predict(&[never]).unwrap()[0].sleeps;
        assert!((0.97..=1.03).contains(&sleeps), "{sleeps} of {} requests", waits.requests());
    }
}
