//! Consecutive episodes one by one: how the rule really moves the window.

use super::Policy;
use crate::Run;
use dwell_recording::Contents;
use serde::Serialize;

/// Episodes that are shown at most: enough to see windows grow and shrink some dozen times.
pub const LONGEST: usize = 1_000;

/// Consecutive episodes of one idler, out of the middle of the recording. The lists have one entry an episode.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Closeup {
    pub idler: String,
    /// How many episodes of it are before these.
    pub first_episode: u64,
    /// When each began \[ns, the recording's clock\].
    pub start_ns: Vec<u64>,
    /// How long it took \[ns\].
    pub idle_ns: Vec<u64>,
    /// The windows of each policy.
    pub windows: Vec<WindowsOf>,
}

/// The windows that a policy had.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowsOf {
    /// What it is called.
    pub policy: String,
    /// For each episode how long it would have polled \[ns\].
    pub window_ns: Vec<u64>,
}

/// [`Closeup`] in the making.
pub(super) struct CloseupMaker {
    idler: Option<usize>,
    first: u64,
    seen: u64,
    start_ns: Vec<u64>,
    idle_ns: Vec<u64>,
    window_ns: Vec<Vec<u64>>,
}

impl CloseupMaker {
    pub(super) fn new(contents: &Contents, idler: Option<usize>, policies: usize) -> CloseupMaker {
        let episodes = idler.map_or(0, |idler| contents.idlers[idler].episodes);
        CloseupMaker {
            idler,
            first: (episodes / 2).saturating_sub(LONGEST as u64 / 2),
            seen: 0,
            start_ns: vec![],
            idle_ns: vec![],
            window_ns: vec![vec![]; policies],
        }
    }

    /// Takes what is wanted of the episodes of a run, with the windows of each policy.
    pub(super) fn take(&mut self, run: &Run, windows: &[&[u64]]) {
        if self.idler != Some(run.idler) {
            return;
        }
        let skipped = usize::try_from(self.first.saturating_sub(self.seen)).unwrap_or(usize::MAX);
        self.seen += run.idle_ns.len() as u64;
        let from = skipped.min(run.start_ns.len());
        let to = (from + LONGEST - self.idle_ns.len()).min(run.start_ns.len());
        self.start_ns.extend_from_slice(&run.start_ns[from..to]);
        self.idle_ns.extend_from_slice(&run.idle_ns[from..to]);
        for (kept, windows) in self.window_ns.iter_mut().zip(windows) {
            kept.extend_from_slice(&windows[from..to]);
        }
    }

    pub(super) fn finish(self, contents: &Contents, policies: &[Policy]) -> Option<Closeup> {
        let idler = contents.idlers.get(self.idler?)?.name.clone();
        let windows = policies.iter().zip(self.window_ns);
        Some(Closeup {
            idler,
            first_episode: self.first,
            start_ns: self.start_ns,
            idle_ns: self.idle_ns,
            windows: windows
                .map(|(policy, window_ns)| WindowsOf { policy: policy.name.clone(), window_ns })
                .collect(),
        })
    }
}
