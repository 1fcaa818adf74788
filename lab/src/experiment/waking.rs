//! A vCPU that is woken again and again: the block that several experiments measure.
//!
//! The vCPU's thread runs on one core and the stimulus, this thread, on another. For each gap the stimulus
//! waits until the guest has seen the event before, spins for the gap, posts the next event and wakes the
//! guest as the guest's way to idle asks for. So each idle period is as long as its gap less the time in
//! which the guest comes to rest, whatever the setting: a setting changes what a wake costs, not when it
//! comes.

use super::{LabError, Rig, os};
use crate::guest::{IdleCounters, IdleCounts, Looks, Sleeper, sleeper, tsc};
use crate::host::{Tsc, monotonic};
use crate::idle::{Halts, Idle};
use crate::vm::{Kicker, Machine};
use dwell_capture::kvm_stats::{Counters, StatsFile};
use dwell_machine::threads::Usage;
use dwell_policy::{Any, Nanos, Outcome, Policy};
use rustix::thread::futex;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// Wakeups before the first that counts: the window of every rule has settled and every page has been touched.
pub const WARM_UP: usize = 50;
/// The stimulus and the vCPU rest after so long, for so long, within a gap: they are real-time threads, which
/// the kernel stops when they run for 950 ms of a second (`sched_rt_runtime_us`).
pub(super) const STRETCH: Nanos = Nanos::from_micros(400_000);
pub(super) const REST: Duration = Duration::from_millis(60);
/// A wake that has not been seen after so long is lost: longer than an overcommitted host keeps a vCPU waiting.
pub(super) const LOST: Nanos = Nanos::from_micros(5_000_000);

/// The measurements of a block, without the warm-up.
#[derive(Clone, Debug, Default)]
pub struct WakeupBlock {
    /// From the wake to the guest's first instruction after its halt or poll \[ns\], in order.
    pub latency_ns: Vec<u64>,
    /// Time that it took \[ns\].
    pub wall_ns: u64,
    /// When, by CLOCK_MONOTONIC \[ns\].
    pub counted: Range<u64>,
    /// What the vCPU's thread used.
    pub usage: Usage,
    /// What KVM counted for the vCPU.
    pub counters: Counters,
    /// What the guest counted.
    pub guest: IdleCounts,
    /// What the VMM's thread counted, where halts come to user space.
    pub user: IdleCounts,
    /// Wakeups that needed an interrupt or a system call.
    pub signalled: u64,
    /// Wakeups that needed neither, because the idler was polling.
    pub avoided: u64,
}

impl WakeupBlock {
    pub fn wakes(&self) -> u64 {
        self.latency_ns.len() as u64
    }

    /// Time that the host polled \[ns\].
    pub fn host_polled_ns(&self) -> u64 {
        let Counters { halt_poll_success_ns, halt_poll_fail_ns, .. } = self.counters;
        halt_poll_success_ns.unwrap_or(0) + halt_poll_fail_ns.unwrap_or(0)
    }

    /// Halts in which the vCPU's thread slept; `None`: this kernel does not report them.
    pub fn slept(&self) -> Option<u64> {
        self.counters.halt_wait_hist.as_ref().map(|hist| hist.iter().sum())
    }

    /// Something of the block for each wake.
    pub fn per_wake(&self, number: u64) -> f64 {
        number as f64 / self.latency_ns.len().max(1) as f64
    }
}

/// Wakes a fresh vCPU after each of the gaps, the first [`WARM_UP`] of which do not count.
///
/// # Errors
/// [`LabError`]: the error of KVM, a wake that was lost, or [`LabError::Stopped`].
pub fn wake(rig: &Rig, idle: &Idle, gaps: &[Nanos], stop: &AtomicBool) -> Result<WakeupBlock, LabError> {
    wake_within(rig, idle, gaps, stop, |drive| drive())
}

/// A VM that runs, to whom controls it.
#[derive(Clone, Copy)]
pub struct RunningVm<'m> {
    machine: &'m Machine,
    stats: &'m StatsFile,
}

impl RunningVm<'_> {
    /// What KVM has counted of its vCPU.
    ///
    /// # Errors
    /// [`LabError`]: the statistics cannot be read.
    pub fn counters(&self) -> Result<Counters, LabError> {
        self.stats.counters().map_err(os("KVM statistics"))
    }

    /// Sets the longest poll of KVM for it.
    ///
    /// # Errors
    /// [`LabError`]: the error of KVM.
    pub fn set_halt_poll_ns(&self, ns: u32) -> Result<(), LabError> {
        Ok(self.machine.set_halt_poll_ns(ns)?)
    }
}

/// What is done to a VM while its vCPU is woken.
pub type Beside<'b> = &'b mut dyn FnMut(RunningVm<'_>) -> Result<(), LabError>;

/// As [`wake`], and calls `beside` at the beginning of every gap. The time that it takes is part of the gap,
/// which becomes longer if that is not enough.
///
/// # Errors
/// As [`wake`], and those of `beside`.
pub fn wake_controlled(
    rig: &Rig,
    idle: &Idle,
    gaps: &[Nanos],
    stop: &AtomicBool,
    beside: Beside<'_>,
) -> Result<WakeupBlock, LabError> {
    run(rig, idle, gaps, stop, Some(beside), |drive| drive())
}

/// As [`wake`], but hands the waking to `around` once the vCPU's thread is there and rests, which does it
/// when it likes.
///
/// # Errors
/// As [`wake`], and those of `around`.
pub fn wake_within<R>(
    rig: &Rig,
    idle: &Idle,
    gaps: &[Nanos],
    stop: &AtomicBool,
    around: impl FnOnce(&mut dyn FnMut() -> Result<WakeupBlock, LabError>) -> Result<R, LabError>,
) -> Result<R, LabError> {
    run(rig, idle, gaps, stop, None, around)
}

fn run<R>(
    rig: &Rig,
    idle: &Idle,
    gaps: &[Nanos],
    stop: &AtomicBool,
    mut beside: Option<Beside<'_>>,
    around: impl FnOnce(&mut dyn FnMut() -> Result<WakeupBlock, LabError>) -> Result<R, LabError>,
) -> Result<R, LabError> {
    let machine = Machine::new(idle.machine(), 1)?;
    let shared: &Sleeper = machine.place()?;
    rig.set_policy(&shared.idle_state, idle)?;
    let waker = match (&idle.halts, &idle.guest) {
        (Halts::InUserSpace(rule), _) => Waker::User(Box::new(UserIdle::new(rule.policy()?, rig))),
        (Halts::InKernel(_), Some(_)) => Waker::Watched(machine.irqfd(0)?),
        (Halts::InKernel(_), None) => {
            shared.always_interrupts();
            Waker::Interrupt(machine.irqfd(0)?)
        }
    };
    shared.poll_control.set(idle.poll_control);
    let mut vcpu = machine.vcpu(0, sleeper, shared)?;
    let stats = vcpu.stats()?;
    let kicker = vcpu.kicker();
    std::thread::scope(|scope| {
        let user = waker.user();
        let thread = std::thread::Builder::new().name("CPU 0/KVM".to_owned());
        let running = thread
            .spawn_scoped(scope, move || {
                let _place = rig.vcpu_thread(0)?;
                vcpu.run(|| user.map_or(ControlFlow::Break(()), |user| user.idle(shared)))
                    .map_err(LabError::from)
            })
            .map_err(LabError::Thread)?;
        let vm = RunningVm { machine: &machine, stats: &stats };
        let driven = Driven { vm, shared, waker: &waker, kicker: &kicker, stop };
        let driven = rest(rig, &kicker).and_then(|()| around(&mut || drive(rig, &driven, gaps, &mut beside)));
        if driven.is_err() {
            if let Some(idle_state) = user {
                idle_state.abandon();
            }
            kicker.kick();
        }
        let ran = running.join().map_err(|_| LabError::Panicked)?;
        // If the guest failed, that is why the stimulus did.
        ran.and(driven)
    })
}

/// How an event reaches the idler.
enum Waker<'r> {
    /// Always by an interrupt.
    Interrupt(EventFd),
    /// By memory while the guest polls, else by an interrupt.
    Watched(EventFd),
    /// By memory while the VMM's thread polls, else by a futex.
    User(Box<UserIdle<'r>>),
}

impl<'r> Waker<'r> {
    fn user(&self) -> Option<&UserIdle<'r>> {
        if let Waker::User(idle_state) = self { Some(idle_state) } else { None }
    }

    /// Wakes the idler after an event was posted; returns whether that took a signal.
    #[inline]
    fn wake(&self, shared: &Sleeper) -> Result<bool, LabError> {
        match self {
            Waker::Watched(_) if shared.idle_state.watches() => Ok(false),
            Waker::Watched(irqfd) | Waker::Interrupt(irqfd) => {
                irqfd.write(1).map_err(os("writing to an irqfd"))?;
                Ok(true)
            }
            Waker::User(_) if shared.idle_state.watches() => Ok(false),
            Waker::User(idle_state) => Ok(idle_state.sleeping.wake()),
        }
    }
}

struct Driven<'d> {
    vm: RunningVm<'d>,
    shared: &'d Sleeper,
    waker: &'d Waker<'d>,
    kicker: &'d Kicker,
    stop: &'d AtomicBool,
}

/// Everything that is read before and after.
struct Reading {
    at: Tsc,
    monotonic_ns: u64,
    usage: Usage,
    counters: Counters,
    guest: IdleCounts,
    user: IdleCounts,
}

impl Driven<'_> {
    fn read(&self) -> Result<Reading, LabError> {
        let thread = self.kicker.thread().ok_or(LabError::Gone)?;
        Ok(Reading {
            counters: self.vm.counters()?,
            guest: self.shared.idle_state.idling(),
            user: self.waker.user().map(|user| user.counters.read()).unwrap_or_default(),
            usage: Usage::of(thread).map_err(LabError::Usage)?,
            monotonic_ns: monotonic().get(),
            at: Tsc::now(),
        })
    }
}

/// Waits until the vCPU runs and has come to rest: the first halt of a fresh guest takes the longest.
fn rest(rig: &Rig, kicker: &Kicker) -> Result<(), LabError> {
    let began = Tsc::now();
    while kicker.thread().is_none() {
        if rig.since(began) > LOST {
            return Err(LabError::Gone);
        }
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(5));
    Ok(())
}

fn drive(
    rig: &Rig,
    driven: &Driven,
    gaps: &[Nanos],
    beside: &mut Option<Beside<'_>>,
) -> Result<WakeupBlock, LabError> {
    let _place = rig.stimulus_thread()?;
    let mut waking = WakeupBlock::default();
    let mut before = None;
    let mut rested = Tsc::now();
    let warm_up = WARM_UP.min(gaps.len().saturating_sub(1));
    for (number, gap) in gaps.iter().enumerate() {
        if driven.stop.load(Ordering::Relaxed) {
            return Err(LabError::Stopped);
        }
        if number == warm_up {
            before = Some(driven.read()?);
        }
        if rig.since(rested) > STRETCH {
            std::thread::sleep(REST);
            rested = Tsc::now();
        }
        match beside {
            None => rig.spin(*gap),
            Some(beside) => {
                let began = Tsc::now();
                beside(driven.vm)?;
                rig.spin(gap.saturating_sub(rig.since(began)));
            }
        }
        let event = number as u64 + 1;
        let at = tsc();
        driven.shared.post(event);
        let signalled = driven.waker.wake(driven.shared)?;
        let seen = see(rig, driven, event)?;
        if number >= warm_up {
            waking.latency_ns.push(rig.nanos(seen.saturating_sub(at)));
            waking.signalled += u64::from(signalled);
            waking.avoided += u64::from(!signalled);
        }
    }
    let after = driven.read()?;
    let before = before.ok_or(LabError::Gone)?;
    waking.wall_ns = rig.between(before.at, after.at).get();
    waking.counted = before.monotonic_ns..after.monotonic_ns;
    waking.usage = after.usage - before.usage;
    waking.counters = after.counters.since(before.counters);
    waking.guest = after.guest - before.guest;
    waking.user = after.user - before.user;
    driven.shared.stop();
    driven.shared.post(gaps.len() as u64 + 1);
    driven.waker.wake(driven.shared)?;
    see(rig, driven, gaps.len() as u64 + 1)?;
    Ok(waking)
}

/// Waits until the guest has seen an event; returns when it did \[TSC\].
fn see(rig: &Rig, driven: &Driven, event: u64) -> Result<u64, LabError> {
    let began = Tsc::now();
    loop {
        let (number, at) = driven.shared.seen();
        if number == event {
            return Ok(at);
        }
        if rig.since(began) > LOST {
            return Err(LabError::Lost { event });
        }
        std::hint::spin_loop();
    }
}

/// The state of an idling VMM thread.
struct PolicyState {
    policy: Any,
    /// When it idled last: it has been busy since.
    ended: Tsc,
}

/// Where a VMM's thread idles when the halts of its vCPU come to it.
struct UserIdle<'r> {
    rig: &'r Rig,
    state: Mutex<PolicyState>,
    sleeping: Sleeping,
    /// Whether no further event will be posted.
    abandoned: AtomicBool,
    counters: IdleCounters,
}

impl<'r> UserIdle<'r> {
    fn new(policy: Any, rig: &'r Rig) -> UserIdle<'r> {
        UserIdle {
            rig,
            state: Mutex::new(PolicyState { policy, ended: Tsc::now() }),
            sleeping: Sleeping::default(),
            abandoned: AtomicBool::new(false),
            counters: IdleCounters::default(),
        }
    }

    /// The guest has halted: polls for the window of the policy, then sleeps, until there is an event that
    /// the guest has not seen.
    fn idle(&self, shared: &Sleeper) -> ControlFlow<()> {
        // Only this thread takes the lock; it keeps the policy where the closure can change it.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let PolicyState { policy, ended } = &mut *state;
        let seen = shared.seen().0;
        let event = || shared.posted() != seen || self.abandoned.load(Ordering::Relaxed);
        let start = Tsc::now();
        let window = policy.window_after(self.rig.between(*ended, start));
        let mut lost = 0;
        if window > Nanos::ZERO {
            let limit = self.rig.cycles(window);
            let mut looks = Looks::new(tsc(), self.rig.cycles(policy.longest_gap()));
            let (begin, mut came) = (looks.last(), event());
            while !came && looks.at(tsc()) - begin < limit {
                std::hint::spin_loop();
                came = event();
            }
            lost = looks.end(tsc(), &self.counters);
            self.counters.polled(looks.last() - begin - lost, came);
        }
        if !event() {
            self.counters.halted();
            self.sleeping.sleep(event);
        }
        *ended = Tsc::now();
        self.counters.idled(ended.since(start).0);
        let outcome = Outcome::of(self.rig.between(start, *ended));
        policy.observe(outcome.losing(Nanos(self.rig.nanos(lost))));
        if self.abandoned.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
        self.sleeping.wake();
    }
}

/// Where a thread sleeps: 1 while it does, or is about to.
#[derive(Debug, Default)]
pub(super) struct Sleeping(AtomicU32);

impl Sleeping {
    /// Sleeps until there is an event. Says that it sleeps before it looks for the last time; a waker posts before
    /// it looks whether it sleeps. Both orders are total (`SeqCst`), so one of them sees the other.
    pub(super) fn sleep(&self, event: impl Fn() -> bool) {
        loop {
            self.0.store(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if event() {
                self.0.store(0, Ordering::SeqCst);
                return;
            }
            // A wake between the look and the wait has changed the word, and the wait returns at once.
            // Whatever the wait answers, the event is looked for again.
            let _ = futex::wait(&self.0, futex::Flags::PRIVATE, 1, None);
        }
    }

    /// After an event was posted: wakes the thread if it sleeps, and returns whether it did.
    pub(super) fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        let slept = self.0.swap(0, Ordering::SeqCst) == 1;
        if slept {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
        slept
    }
}
