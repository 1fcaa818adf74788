//! `neighbour`: what a way to idle costs whoever shares the core.
//!
//! An idler, a vCPU or a thread, and a neighbour are on one core under the fair scheduler; the stimulus, this thread, is
//! on another and wakes the idler a gap after it has seen the event before. After [`SHARED`] the neighbour leaves, and
//! the stimulus measures when the idler polls again.

use super::waking::{LOST, REST, STRETCH, Sleeping};
use super::{LabError, Rig};
use crate::guest::{IdleCounts, Sleeper, sleeper, tsc};
use crate::host::Tsc;
use crate::idle::Idle;
use crate::sampled::{mean, quantile};
use crate::vm::{Kicker, Machine};
use dwell_idle::{Idler, Policy};
use dwell_machine::threads::{Thread, Usage};
use dwell_policy::param::Setting;
use dwell_policy::version::NEWEST_KERNEL;
use dwell_policy::{Nanos, Unreported};
use dwell_replay::{Rule, Terms};
use dwell_stats::{Block, Figure, Unit};
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// How long the idler and its neighbour settle, and how long they are measured then: some tries of a policy
/// that gives way for a third of a second.
const SETTLING: Nanos = Nanos::from_micros(200_000);
pub const SHARED: Nanos = Nanos::from_micros(1_000_000);
/// How long the stimulus waits after the neighbour has left until the idler polls.
pub const ALONE: Nanos = Nanos::from_micros(1_200_000);
/// Steps of a unit of the neighbour's work: about 2 us.
const STEPS: u32 = 2_000;
/// Units of a burst, and how long a bursty neighbour sleeps after one.
const BURST: u32 = 150;
const PAUSE: Duration = Duration::from_micros(700);

/// The work of the neighbour in a second: units of computing, or of a vCPU the events that it saw.
pub const WORK: &str = "neighbour_work_per_s";
/// From the neighbour's leaving to the idler's next poll.
pub const RECOVERY: &str = "recovery_ns";
/// CPU time of the idler for each event.
pub const CPU: &str = "cpu_ns_per_wakeup";

/// Who idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A vCPU of the lab's machine.
    Vcpu,
    /// A thread under [`dwell_idle::Idler`].
    Thread,
}

impl Subject {
    /// Both.
    pub const ALL: [Subject; 2] = [Subject::Vcpu, Subject::Thread];

    /// The ways to idle that are compared; the first is the baseline. KVM polls for vCPUs only.
    pub fn ways(self) -> &'static [Way] {
        match self {
            Subject::Vcpu => &[Way::Never, Way::Haltpoll, Way::Kvm, Way::Unreported, Way::Leader],
            Subject::Thread => &[Way::Never, Way::Haltpoll, Way::Unreported, Way::Leader],
        }
    }

    /// The neighbours that it can have.
    pub fn neighbours(self) -> &'static [Neighbour] {
        match self {
            Subject::Vcpu => &[Neighbour::Busy, Neighbour::Bursty, Neighbour::Vcpu],
            Subject::Thread => &[Neighbour::Busy, Neighbour::Bursty],
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if *self == Subject::Vcpu { "vcpu" } else { "thread" })
    }
}

/// Who else is on the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// A thread that always computes.
    Busy,
    /// A thread that computes for about 0.3 ms and sleeps for 0.7 ms.
    Bursty,
    /// A second vCPU of the same VM, which idles in the same way.
    Vcpu,
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Neighbour::Busy => "busy",
            Neighbour::Bursty => "bursty",
            Neighbour::Vcpu => "vcpu",
        })
    }
}

impl FromStr for Neighbour {
    type Err = ParseNeighbourError;

    fn from_str(text: &str) -> Result<Neighbour, ParseNeighbourError> {
        let all = Subject::Vcpu.neighbours().iter().copied();
        all.into_iter()
            .find(|one| one.to_string() == text)
            .ok_or_else(|| ParseNeighbourError(text.to_owned()))
    }
}

/// Not a neighbour.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a neighbour; write busy, bursty or vcpu")]
pub struct ParseNeighbourError(String);

/// How the idler idles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It halts at once.
    Never,
    /// By haltpoll's rule with its defaults.
    Haltpoll,
    /// The kernel polls, up to its default of 200 us, while no other task is runnable.
    Kvm,
    /// By `leader`, to which preemptions are not reported.
    Unreported,
    /// By `leader`.
    Leader,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Never => "never",
            Way::Haltpoll => "haltpoll",
            Way::Kvm => "kvm",
            Way::Unreported => "leader, not told",
            Way::Leader => "leader",
        })
    }
}

impl Way {
    fn rule(self, terms: Terms) -> Rule {
        match self {
            Way::Never | Way::Kvm => Rule::NEVER,
            Way::Haltpoll => Rule::Layer(Setting::defaults(dwell_policy::Layer::Guest, NEWEST_KERNEL)),
            Way::Unreported | Way::Leader => Rule::leader(terms),
        }
    }

    /// Whether the idler itself polls now and then.
    fn polls(self) -> bool {
        !matches!(self, Way::Never | Way::Kvm)
    }

    fn idle(self, terms: Terms) -> Idle {
        if self == Way::Kvm { Idle::host(200_000) } else { Idle::guest(self.rule(terms)) }
    }
}

/// The figures of an arm.
pub fn figures() -> Vec<Figure> {
    vec![
        quantile(0.5),
        quantile(0.99),
        mean(),
        Figure::of_block(WORK, Unit::PerSecond).within(0.02),
        Figure::of_block(CPU, Unit::Nanos).within(0.05),
        Figure::of_block("wakeups_per_s", Unit::PerSecond),
        Figure::of_block("cpu_share", Unit::Share),
        Figure::of_block("preemptions_per_s", Unit::PerSecond),
        Figure::of_block(RECOVERY, Unit::Nanos),
    ]
}

/// What a block is about.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'g> {
    pub subject: Subject,
    pub neighbour: Neighbour,
    /// What `leader` is given.
    pub terms: Terms,
    /// Between two events; taken from the beginning again at their end.
    pub gaps: &'g [Nanos],
}

/// Measures one block.
///
/// # Errors
/// [`LabError`].
pub fn block(rig: &Rig, cell: Cell<'_>, way: Way, stop: &AtomicBool) -> Result<Block, LabError> {
    match cell.subject {
        Subject::Vcpu => vcpus(rig, cell, way, stop),
        Subject::Thread => thread(rig, cell, way, stop),
    }
}

fn vcpus(rig: &Rig, cell: Cell<'_>, way: Way, stop: &AtomicBool) -> Result<Block, LabError> {
    let idle = way.idle(cell.terms);
    let count = if cell.neighbour == Neighbour::Vcpu { 2 } else { 1 };
    let machine = Machine::new(idle.machine(), count)?;
    let (mut vcpus, mut idlers) = (vec![], vec![]);
    for id in 0..count {
        let shared: &Sleeper = machine.place()?;
        rig.set_policy(&shared.idle_state, &idle)?;
        match way {
            Way::Kvm => shared.always_interrupts(),
            Way::Unreported => shared.idle_state.report_no_preemptions(),
            _ => {}
        }
        let vcpu = machine.vcpu(id, sleeper, shared)?;
        let watched = idle.guest.is_some();
        idlers.push(VcpuIdler { shared, irqfd: machine.irqfd(id)?, watched, kicker: vcpu.kicker() });
        vcpus.push(vcpu);
    }
    std::thread::scope(|scope| {
        let threads: Vec<_> = vcpus
            .into_iter()
            .map(|mut vcpu| {
                scope.spawn(move || {
                    let _place = rig.fair_thread(0)?;
                    vcpu.run(|| ControlFlow::Break(())).map_err(LabError::from)
                })
            })
            .collect();
        let idlers: Vec<&dyn Idles> = idlers.iter().map(|idler| idler as &dyn Idles).collect();
        let measured = measure(rig, cell, way, &idlers, stop);
        let ended = idlers.iter().try_for_each(|idler| idler.end());
        let ran = threads.into_iter().map(|thread| thread.join().map_err(|_| LabError::Panicked)?);
        let ran: Result<Vec<()>, LabError> = ran.collect();
        ran.and(ended).and(measured)
    })
}

fn thread(rig: &Rig, cell: Cell<'_>, way: Way, stop: &AtomicBool) -> Result<Block, LabError> {
    let policy = way.rule(cell.terms).policy()?;
    let idler = ThreadIdler::default();
    std::thread::scope(|scope| {
        let running = scope.spawn(|| match way {
            Way::Unreported => idler.run(rig, Unreported(policy)),
            _ => idler.run(rig, policy),
        });
        let measured = measure(rig, cell, way, &[&idler], stop);
        let ended = idler.end();
        let ran = running.join().map_err(|_| LabError::Panicked)?;
        ran.and(ended).and(measured)
    })
}

/// Whom the stimulus wakes.
trait Idles: Sync {
    /// Posts an event and wakes the idler if need be.
    fn wake(&self, event: u64) -> Result<(), LabError>;
    /// The last event that it saw, and when \[TSC\].
    fn seen(&self) -> (u64, u64);
    /// What it counted.
    fn counts(&self) -> IdleCounts;
    /// Its thread, once it runs.
    fn thread(&self) -> Option<Thread>;
    /// Ends it.
    fn end(&self) -> Result<(), LabError>;
}

struct VcpuIdler<'m> {
    shared: &'m Sleeper,
    irqfd: EventFd,
    /// Whether it polls itself, so that it need not be interrupted.
    watched: bool,
    kicker: Kicker,
}

impl Idles for VcpuIdler<'_> {
    fn wake(&self, event: u64) -> Result<(), LabError> {
        self.shared.post(event);
        if self.watched && self.shared.idle_state.watches() {
            return Ok(());
        }
        self.irqfd.write(1).map_err(super::os("writing to an irqfd"))
    }

    fn seen(&self) -> (u64, u64) {
        self.shared.seen()
    }

    fn counts(&self) -> IdleCounts {
        self.shared.idle_state.idling()
    }

    fn thread(&self) -> Option<Thread> {
        self.kicker.thread()
    }

    fn end(&self) -> Result<(), LabError> {
        self.kicker.kick();
        Ok(())
    }
}

/// A thread that waits for events in memory.
#[derive(Default)]
struct ThreadIdler {
    posted: AtomicU64,
    seen: AtomicU64,
    at: AtomicU64,
    sleeping: Sleeping,
    over: AtomicBool,
    tid: AtomicI32,
    polls: AtomicU64,
    preemptions: AtomicU64,
}

impl ThreadIdler {
    fn run(&self, rig: &Rig, policy: impl Policy) -> Result<(), LabError> {
        let _place = rig.fair_thread(0)?;
        self.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        let (mut idler, mut last, mut polls) = (Idler::new(policy), 0, 0);
        while !self.over.load(Ordering::SeqCst) {
            let event = || self.posted.load(Ordering::Acquire) != last || self.over.load(Ordering::Relaxed);
            let mut idle = idler.idle(None);
            let (mut came, mut polled) = (event(), false);
            while !came && idle.polls() {
                polled = true;
                came = event();
            }
            polls += u64::from(polled);
            if !came {
                idle.halts();
                self.sleeping.sleep(event);
            }
            let at = tsc();
            idle.wakes(&[]);
            last = self.posted.load(Ordering::Acquire);
            self.polls.store(polls, Ordering::Relaxed);
            self.preemptions.store(idler.totals().preempted, Ordering::Relaxed);
            self.at.store(at, Ordering::Relaxed);
            self.seen.store(last, Ordering::Release);
        }
        Ok(())
    }
}

impl Idles for ThreadIdler {
    fn wake(&self, event: u64) -> Result<(), LabError> {
        self.posted.store(event, Ordering::Release);
        self.sleeping.wake();
        Ok(())
    }

    fn seen(&self) -> (u64, u64) {
        (self.seen.load(Ordering::Acquire), self.at.load(Ordering::Relaxed))
    }

    fn counts(&self) -> IdleCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IdleCounts { polls: of(&self.polls), preemptions: of(&self.preemptions), ..IdleCounts::default() }
    }

    fn thread(&self) -> Option<Thread> {
        let tid = Some(self.tid.load(Ordering::SeqCst)).filter(|tid| *tid != 0)?;
        Some(Thread::of(std::process::id(), tid.unsigned_abs()))
    }

    fn end(&self) -> Result<(), LabError> {
        self.over.store(true, Ordering::SeqCst);
        self.sleeping.wake();
        Ok(())
    }
}

/// The neighbour's thread, if it has one.
#[derive(Default)]
struct Worker {
    units: AtomicU64,
    over: AtomicBool,
}

impl Worker {
    fn run(&self, rig: &Rig, neighbour: Neighbour) -> Result<(), LabError> {
        let _place = rig.fair_thread(0)?;
        let (mut state, mut units) = (1u64, 0u32);
        while !self.over.load(Ordering::Relaxed) {
            for _ in 0..STEPS {
                state = std::hint::black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
            self.units.fetch_add(1, Ordering::Relaxed);
            units += 1;
            if neighbour == Neighbour::Bursty && units.is_multiple_of(BURST) {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }
}

/// An idler, as the stimulus drives it.
struct Driven<'i> {
    idler: &'i dyn Idles,
    /// The last event posted.
    event: u64,
    /// When it was posted, until it was seen \[TSC\].
    posted: Option<u64>,
    /// When the next is due.
    due: Tsc,
    seen: u64,
}

/// The stimulus.
struct Stimulus<'s> {
    rig: &'s Rig,
    gaps: std::iter::Cycle<std::slice::Iter<'s, Nanos>>,
    driven: Vec<Driven<'s>>,
    rested: Tsc,
    stop: &'s AtomicBool,
}

impl Stimulus<'_> {
    /// Drives the first `idlers` for so long, or until `over`; what the first of them saw is put to `latency_ns`.
    fn drive(
        &mut self,
        idlers: usize,
        time: Nanos,
        mut latency_ns: Option<&mut Vec<u64>>,
        over: impl Fn() -> bool,
    ) -> Result<(), LabError> {
        let begun = Tsc::now();
        while self.rig.since(begun) < time && !over() {
            if self.stop.load(Ordering::Relaxed) {
                return Err(LabError::Stopped);
            }
            if self.rig.since(self.rested) > STRETCH {
                std::thread::sleep(REST);
                self.rested = Tsc::now();
            }
            for (number, one) in self.driven.iter_mut().take(idlers).enumerate() {
                let Some(posted) = one.posted else {
                    if Tsc::now() >= one.due {
                        one.event += 1;
                        one.posted = Some(tsc());
                        one.idler.wake(one.event)?;
                    }
                    continue;
                };
                let (event, at) = one.idler.seen();
                if event == one.event {
                    one.posted = None;
                    one.seen += 1;
                    let gap = self.gaps.next().copied().unwrap_or_default();
                    one.due = Tsc(Tsc::now().0 + self.rig.cycles(gap));
                    if let (0, Some(latency_ns)) = (number, &mut latency_ns) {
                        latency_ns.push(self.rig.nanos(at.saturating_sub(posted)));
                    }
                } else if self.rig.since(Tsc(posted)) > LOST {
                    return Err(LabError::Lost { event: one.event });
                }
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

/// Both phases: the core is shared, then the neighbour leaves.
fn measure(
    rig: &Rig,
    cell: Cell<'_>,
    way: Way,
    idlers: &[&dyn Idles],
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let begun = Tsc::now();
    while idlers.iter().any(|idler| idler.thread().is_none()) {
        if rig.since(begun) > LOST {
            return Err(LabError::Gone);
        }
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(5));
    let worker = Worker::default();
    std::thread::scope(|scope| {
        let works = cell.neighbour != Neighbour::Vcpu;
        let working = works.then(|| scope.spawn(|| worker.run(rig, cell.neighbour)));
        let measured = both_phases(rig, cell, way, idlers, &worker, stop);
        worker.over.store(true, Ordering::Relaxed);
        let worked = working.map_or(Ok(()), |thread| thread.join().map_err(|_| LabError::Panicked)?);
        worked.and(measured)
    })
}

fn both_phases(
    rig: &Rig,
    cell: Cell<'_>,
    way: Way,
    idlers: &[&dyn Idles],
    worker: &Worker,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let _place = rig.stimulus_thread()?;
    let now = Tsc::now();
    let driven =
        idlers.iter().map(|idler| Driven { idler: *idler, event: 0, posted: None, due: now, seen: 0 });
    let (gaps, driven) = (cell.gaps.iter().cycle(), driven.collect());
    let mut stimulus = Stimulus { rig, gaps, driven, rested: now, stop };
    let first = *idlers.first().ok_or(LabError::Gone)?;
    let thread = first.thread().ok_or(LabError::Gone)?;
    stimulus.drive(idlers.len(), SETTLING, None, || false)?;

    let read = |stimulus: &Stimulus<'_>| -> Result<_, LabError> {
        let units = worker.units.load(Ordering::Relaxed);
        let work = units + stimulus.driven.get(1).map_or(0, |second| second.seen);
        Ok((Tsc::now(), work, Usage::of(thread).map_err(LabError::Usage)?, first.counts()))
    };
    let before = read(&stimulus)?;
    let mut latency_ns = vec![];
    stimulus.drive(idlers.len(), SHARED, Some(&mut latency_ns), || false)?;
    let after = read(&stimulus)?;

    worker.over.store(true, Ordering::Relaxed);
    let (left, polls) = (Tsc::now(), first.counts().polls);
    let polled = || first.counts().polls > polls;
    if way.polls() {
        stimulus.drive(1, ALONE, None, polled)?;
    }
    let recovered = polled();
    let recovery = rig.since(left);

    let seconds = rig.between(before.0, after.0).get() as f64 / 1e9;
    let wakeups = latency_ns.len() as f64;
    let cpu_ns = (after.2 - before.2).cpu.get() as f64;
    let counts = after.3 - before.3;
    let block = Block::new(latency_ns)
        .figure(WORK, (after.1 - before.1) as f64 / seconds)
        .figure(CPU, cpu_ns / wakeups.max(1.0))
        .figure("wakeups_per_s", wakeups / seconds)
        .figure("cpu_share", cpu_ns / seconds / 1e9)
        .figure("preemptions_per_s", counts.preemptions as f64 / seconds);
    // An idler that did not poll again counts with the time that was waited; else slow recoveries would lower the mean.
    let is_known = recovered || way.polls();
    Ok(if is_known { block.figure(RECOVERY, recovery.get() as f64) } else { block })
}
