//! Runs vCPUs whose programs drive themselves: first the warm-up, then the measured part.

use super::{KvmCounts, LONGEST_RUN, LabError, Placed, repeats_of_a_block};
use crate::guest::MOST_ROUNDS;
use crate::host::Tsc;
use crate::vm::{Kicker, Vcpu};
use dwell_machine::threads::{Thread, Usage};
use dwell_policy::Nanos;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The number of rounds of a block of about this length, half a second at most, if a round takes `guess` in
/// addition to its given length.
pub fn rounds_of_a_block(given: Nanos, guess: Nanos, block: Nanos, warm_up: usize) -> usize {
    repeats_of_a_block(Nanos(given.get() + guess.get()), block.min(LONGEST_RUN), MOST_ROUNDS - warm_up)
}

/// The measured part of one participant's block.
pub(super) struct BlockRun<T> {
    /// CPU time and switches of its thread.
    pub(super) usage: Usage,
    /// End of the warm-up.
    pub(super) began: Tsc,
    /// End of the block.
    pub(super) ended: Tsc,
    /// KVM's counters, if it is a vCPU.
    pub(super) kvm: KvmCounts,
    /// Further counters, before and after.
    pub(super) read: [T; 2],
}

/// Runs a vCPU's program through its warm-up and its measured part, in the calling thread, which has been
/// placed. `warmed` is called between the two, also after an error, so that participants can wait for each
/// other; `read` once before the measured part and once after it.
pub(super) fn run<T>(
    vcpu: &mut Vcpu<'_>,
    place: Result<Placed, LabError>,
    warmed: impl FnOnce(),
    read: impl Fn() -> Result<T, LabError>,
) -> Result<BlockRun<T>, LabError> {
    let stats = vcpu.stats();
    let ran = vcpu.run(|| ControlFlow::Break(()));
    warmed();
    let (_place, stats) = (place?, stats?);
    ran?;
    let before = (KvmCounts::read(&stats)?, read()?);
    let (usage, began) = (Usage::of(Thread::current()).map_err(LabError::Usage)?, Tsc::now());
    vcpu.run(|| ControlFlow::Break(()))?;
    let (ended, usage) = (Tsc::now(), Usage::of(Thread::current()).map_err(LabError::Usage)? - usage);
    let after = (read()?, KvmCounts::read(&stats)?);
    Ok(BlockRun { usage, began, ended, kvm: after.1 - &before.0, read: [before.1, after.0] })
}

/// Held by each participant while it runs.
pub(super) type Running = Sender<Infallible>;

/// Starts participants by `start`, each with a [`Running`] to hold, and waits until all of them have ended.
/// Kicks the vCPUs if they take too long or the stop flag is set.
///
/// # Errors
/// Those of `start`, [`LabError::Stuck`] or [`LabError::Stopped`]; participants have to be joined all the same.
pub(super) fn watch<T>(
    kickers: &[Kicker],
    stop: &AtomicBool,
    start: impl FnOnce(Running) -> Result<T, LabError>,
) -> Result<T, LabError> {
    /// A block takes half a second; beyond this an interrupt was lost.
    const LONGEST: Duration = Duration::from_secs(5);
    /// How often the stop flag is read.
    const LOOK: Duration = Duration::from_millis(50);
    let (running, ended) = channel::<Infallible>();
    let started = start(running)?;
    let began = Instant::now();
    let mut outcome = Ok(());
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
        if began.elapsed() > LONGEST {
            outcome = Err(LabError::Stuck);
        }
        if outcome.is_err() || stop.load(Ordering::Relaxed) {
            kickers.iter().for_each(Kicker::kick);
        }
    }
    // It may have been too late to be seen.
    if stop.load(Ordering::Relaxed) { Err(LabError::Stopped) } else { outcome.map(|()| started) }
}

/// Starts the thread of a participant.
pub(super) fn spawn<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    name: String,
    running: Running,
    run: impl FnOnce() -> Result<T, LabError> + Send + 's,
) -> Result<ScopedJoinHandle<'s, Result<T, LabError>>, LabError> {
    let thread = std::thread::Builder::new().name(name);
    let body = move || {
        let _running = running;
        run()
    };
    thread.spawn_scoped(scope, body).map_err(LabError::Thread)
}

/// Waits for a participant.
pub(super) fn join<T>(participant: ScopedJoinHandle<'_, Result<T, LabError>>) -> Result<T, LabError> {
    participant.join().map_err(|_| LabError::Panicked)?
}

/// Runs two sides that wait for each other on threads of these names. Where one fails, `failed` is set, so that the
/// other does not wait for ever.
pub(super) fn both<A: Send, B: Send>(
    [name, other_name]: [&str; 2],
    failed: &AtomicBool,
    side: impl FnOnce() -> Result<A, LabError> + Send,
    other: impl FnOnce() -> Result<B, LabError> + Send,
) -> Result<(A, B), LabError> {
    let fails = |_: &LabError| failed.store(true, Ordering::Relaxed);
    let named = |name: &str| thread::Builder::new().name(name.to_owned());
    thread::scope(|scope| {
        let other =
            named(other_name).spawn_scoped(scope, || other().inspect_err(fails)).map_err(LabError::Thread)?;
        let side = named(name)
            .spawn_scoped(scope, || side().inspect_err(fails))
            .map_err(LabError::Thread)
            .inspect_err(fails)?;
        let side = side.join().map_err(|_| LabError::Panicked).inspect_err(fails)?;
        let other = other.join().map_err(|_| LabError::Panicked)?;
        Ok((side?, other?))
    })
}
