//! One experiment at a time, repeated where others disturbed it.

pub(crate) use dwell_testing::say;

use dwell_lab::experiment::{LabError, Rig};
use dwell_stats::{Block, Trial};
use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A rig that no other test uses meanwhile.
pub(crate) struct Alone {
    pub(crate) rig: Rig,
    _one: MutexGuard<'static, ()>,
}

/// A rig for so many vCPUs; skips the test where this machine has none.
pub(crate) fn rig(vcpus: usize, test: &str) -> Option<Alone> {
    let one = crate::alone();
    let rig = Rig::open(vcpus).map_err(|error| dwell_testing::skip!("kvm", test, "{error}")).ok()?;
    Some(Alone { rig, _one: one })
}

/// Checks that a block, by its name, which is to stop before it begins does so and leaves no thread.
pub(crate) fn ends_when_stopped(
    names: &[&str],
    block: impl Fn(&Rig, &str, &AtomicBool) -> Result<Block, LabError>,
) {
    let Some(Alone { rig, .. }) = &rig(1, "what_is_stopped_ends") else { return };
    let stop = AtomicBool::new(true);
    for name in names {
        let stopped = block(rig, name, &stop).unwrap_err();
        assert!(matches!(stopped, LabError::Stopped), "{name}: {stopped}");
    }
    assert_eq!(threads_left(), 0);
}

/// How often something is measured at most until it holds.
const ATTEMPTS: usize = 3;

/// Why what was measured does not hold.
#[derive(Debug)]
pub(crate) enum Missed {
    /// It is wrong, as far as is known on an undisturbed machine.
    Wrong(String),
    /// Other programs used the cores, so that nothing can be said.
    Disturbed(String),
}

/// Measures up to three times until what was measured holds: a hypervisor below or another program may keep a
/// core for a while. Only what depends on how long something takes is judged so. Prints why an attempt
/// failed.
///
/// # Panics
/// If every attempt is wrong. If none holds and one was disturbed, it prints `UNKNOWN`.
pub(crate) fn repeated(test: &str, attempt: impl FnMut() -> Result<(), Missed>) {
    match attempts(test, attempt) {
        Outcome::Held => (),
        Outcome::Unknown => say!("UNKNOWN {test}: others use this machine"),
        Outcome::Wrong(reasons) => panic!("{test}: {reasons}"),
    }
}

/// What follows from the attempts.
#[derive(Debug, PartialEq)]
enum Outcome {
    Held,
    /// None held, and one was disturbed.
    Unknown,
    /// All were wrong, and how.
    Wrong(String),
}

fn attempts(test: &str, mut attempt: impl FnMut() -> Result<(), Missed>) -> Outcome {
    let mut wrong = vec![];
    for number in 1..=ATTEMPTS {
        let reason = match attempt() {
            Ok(()) => return Outcome::Held,
            Err(Missed::Wrong(reason)) => {
                wrong.push(reason.clone());
                reason
            }
            Err(Missed::Disturbed(reason)) => format!("{reason}, on a machine that others use"),
        };
        say!("attempt {number} of {ATTEMPTS} of {test}: {reason}");
    }
    if wrong.len() == ATTEMPTS { Outcome::Wrong(wrong.join("; ")) } else { Outcome::Unknown }
}

/// Ends an attempt as wrong where a condition does not hold.
macro_rules! holds {
    ($condition:expr, $($measured:tt)+) => {
        let condition: bool = $condition;
        if !condition {
            let measured = format!($($measured)+);
            return Err($crate::live::alone::Missed::Wrong(format!("not {}: {measured}", stringify!($condition))));
        }
    };
}
pub(crate) use holds;

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

#[test]
fn what_holds_once_holds_and_what_is_always_wrong_fails() {
    let run = |outcomes: &[fn() -> Result<(), Missed>]| {
        let mut outcomes = outcomes.iter();
        attempts("a test of this helper", || outcomes.next().expect("at most three attempts")())
    };
    let held = || Ok(());
    let wrong = || {
        let sleeps = 0.41;
        holds!(sleeps > 0.8, "{sleeps} sleeps");
        Ok(())
    };
    let disturbed = || Err(Missed::Disturbed("a test".to_owned()));
    assert_eq!(run(&[held]), Outcome::Held);
    assert_eq!(run(&[wrong, disturbed, held]), Outcome::Held);
    assert_eq!(run(&[wrong, disturbed, wrong]), Outcome::Unknown);
    let reason = "not sleeps > 0.8: 0.41 sleeps";
    assert_eq!(run(&[wrong, wrong, wrong]), Outcome::Wrong([reason; 3].join("; ")));
}
