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
    /// Number of the idler.
    idler: usize,
    /// Episodes of it so far.
    seen: u64,
    pub(super) closeup: Closeup,
}

impl CloseupMaker {
    pub(super) fn new(contents: &Contents, idler: usize, policies: &[Policy]) -> CloseupMaker {
        let of = &contents.idlers[idler];
        let windows = |policy: &Policy| WindowsOf { policy: policy.name.clone(), window_ns: vec![] };
        let closeup = Closeup {
            idler: of.name.clone(),
            first_episode: (of.episodes / 2).saturating_sub(LONGEST as u64 / 2),
            start_ns: vec![],
            idle_ns: vec![],
            windows: policies.iter().map(windows).collect(),
        };
        CloseupMaker { idler, seen: 0, closeup }
    }

    /// Takes what is wanted of the episodes of a run, with the windows of each policy.
    pub(super) fn take(&mut self, run: &Run, windows: &[&[u64]]) {
        if self.idler != run.idler {
            return;
        }
        let closeup = &mut self.closeup;
        let skipped = usize::try_from(closeup.first_episode.saturating_sub(self.seen)).unwrap_or(usize::MAX);
        self.seen += run.idle_ns.len() as u64;
        let from = skipped.min(run.start_ns.len());
        let to = (from + LONGEST - closeup.idle_ns.len()).min(run.start_ns.len());
        closeup.start_ns.extend_from_slice(&run.start_ns[from..to]);
        closeup.idle_ns.extend_from_slice(&run.idle_ns[from..to]);
        for (kept, windows) in closeup.windows.iter_mut().zip(windows) {
            kept.window_ns.extend_from_slice(&windows[from..to]);
        }
    }
}
