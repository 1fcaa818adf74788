//! vCPUs whose programs drive themselves: run through their warm-up, measured through the rest.

use super::{KvmCounts, LabError, Placed, Usage, repeats_of_a_block};
use crate::guest::MOST_ROUNDS;
use crate::host::{Thread, Tsc};
use crate::vm::{Kicker, Vcpu};
use dwell_policy::Nanos;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// How many rounds a block has that takes about so long, if one round takes `guess` besides the length that it is given.
pub fn rounds_of_a_block(given: Nanos, guess: Nanos, block: Nanos, warm_up: usize) -> usize {
    repeats_of_a_block(Nanos(given.get() + guess.get()), block, MOST_ROUNDS - warm_up)
}

/// What a player did and used after its warm-up.
pub(super) struct BlockRun<T> {
    /// What its thread used.
    pub(super) usage: Usage,
    /// When the warm-up had ended.
    pub(super) began: Tsc,
    /// When all had ended.
    pub(super) ended: Tsc,
    /// What KVM counted, if it is a vCPU.
    pub(super) kvm: KvmCounts,
    /// What else was read, before and after.
    pub(super) read: [T; 2],
}

/// Runs a vCPU's program through its warm-up and then through what counts, in the calling thread, which has been placed.
/// `warmed` is called between the two, whatever happened, so that players can wait for each other; `read` once before what
/// counts and once after.
pub(super) fn play<T>(
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
    let (usage, began) = (Usage::of(Thread::current())?, Tsc::now());
    vcpu.run(|| ControlFlow::Break(()))?;
    let (ended, usage) = (Tsc::now(), Usage::of(Thread::current())? - usage);
    let after = (read()?, KvmCounts::read(&stats)?);
    Ok(BlockRun { usage, began, ended, kvm: after.1 - &before.0, read: [before.1, after.0] })
}

/// Held by each player while it plays.
pub(super) type Playing = Sender<Infallible>;

/// Starts players by `start`, each with a [`Playing`] to hold, and waits until all of them have ended. Kicks the vCPUs if
/// they take too long or the user wants no more.
///
/// # Errors
/// What `start` answers, [`LabError::Stuck`] or [`LabError::Stopped`]; players have to be joined all the same.
pub(super) fn watch<T>(
    kickers: &[Kicker],
    stop: &AtomicBool,
    start: impl FnOnce(Playing) -> Result<T, LabError>,
) -> Result<T, LabError> {
    /// A block takes half a second; beyond this something is lost.
    const LONGEST: Duration = Duration::from_secs(5);
    /// How often to look whether the user wants no more.
    const LOOK: Duration = Duration::from_millis(50);
    let (playing, ended) = channel::<Infallible>();
    let started = start(playing)?;
    let began = Instant::now();
    let mut told = Ok(());
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(LOOK) {
        if began.elapsed() > LONGEST {
            told = Err(LabError::Stuck);
        }
        if told.is_err() || stop.load(Ordering::Relaxed) {
            kickers.iter().for_each(Kicker::kick);
        }
    }
    // It may have been too late to be seen.
    if stop.load(Ordering::Relaxed) { Err(LabError::Stopped) } else { told.map(|()| started) }
}

/// Starts a thread that plays.
pub(super) fn player<'s, T: Send + 's>(
    scope: &'s Scope<'s, '_>,
    name: String,
    playing: Playing,
    play: impl FnOnce() -> Result<T, LabError> + Send + 's,
) -> Result<ScopedJoinHandle<'s, Result<T, LabError>>, LabError> {
    let thread = std::thread::Builder::new().name(name);
    let play = move || {
        let _playing = playing;
        play()
    };
    thread.spawn_scoped(scope, play).map_err(LabError::Thread)
}

/// The end of a player's work.
pub(super) fn join<T>(player: ScopedJoinHandle<'_, Result<T, LabError>>) -> Result<T, LabError> {
    player.join().map_err(|_| LabError::Panicked)?
}
