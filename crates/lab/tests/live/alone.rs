//! One experiment at a time.

pub(crate) use dwell_testing::say;

use dwell_lab::experiment::Rig;
use dwell_stats::{Block, Trial};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Experiments need the cores for themselves.
static ONE: Mutex<()> = Mutex::new(());

/// A rig that no other test uses meanwhile.
pub(crate) struct Alone {
    pub(crate) rig: Rig,
    _one: MutexGuard<'static, ()>,
}

/// A rig for so many vCPUs; prints `SKIP` and why where this machine has none.
pub(crate) fn rig(vcpus: usize, test: &str) -> Option<Alone> {
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let rig = Rig::open(vcpus).map_err(|error| say!("SKIP {error}: {test}")).ok()?;
    Some(Alone { rig, _one: one })
}

/// A block of its own, outside of any campaign.
pub(crate) fn trial<'t, S>(name: &'t str, setting: &'t S) -> Trial<'t, S> {
    Trial { setting, name, arm: 0, round: 0, pass: 0, sequence: 0, attempt: 0, warm_up: false }
}

/// A figure of a block.
pub(crate) fn figure(block: &Block, name: &str) -> f64 {
    block.figures.get(name).copied().unwrap_or_else(|| panic!("no {name}: {:?}", block.figures))
}

/// The median of the samples \[us\].
pub(crate) fn median_us(block: &Block) -> f64 {
    let mut samples = block.samples_ns.clone();
    samples.sort_unstable();
    samples[samples.len() / 2] as f64 / 1e3
}

/// Threads of vCPUs and servers that have not ended. One that has been joined may be listed for a moment, for which is
/// waited.
pub(crate) fn threads_left() -> usize {
    let left = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name =
            |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        tasks.map(name).filter(|name| name.starts_with("CPU ") || name.starts_with("server")).count()
    };
    let began = Instant::now();
    while left() > 0 && began.elapsed() < Duration::from_secs(2) {
        std::thread::yield_now();
    }
    left()
}
