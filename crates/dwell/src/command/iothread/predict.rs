//! Predicts a setting from a recording of the same thread under the same load without polling.

use anyhow::Context;
use dwell_capture::{Recorder, Target, Until};
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
    /// Records a thread that does not poll; `requests` returns how many were served so far.
    pub(super) fn record(
        tid: u32,
        length: Duration,
        stop: &AtomicBool,
        mut requests: impl FnMut() -> anyhow::Result<u64>,
    ) -> anyhow::Result<Waits> {
        let pid = i32::try_from(tid).context("not a thread ID")?;
        let recorder = Recorder::open(Target::Thread { pid: Some(pid), comm: None }, None)?;
        let before = requests()?;
        let (summary, bytes) = recorder.to_memory(&Until { duration: Some(length), stop }, &mut ())?;
        let requests = requests()?.saturating_sub(before);
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
