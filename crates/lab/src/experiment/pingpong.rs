//! `pingpong`: two CPUs that wait for each other, the way pipes, locks and network peers do.
//!
//! The server thinks, sends a message and waits for the answer; the other side answers at once. A round trip holds two
//! wakes. The rows say who polls while waiting: two threads of the host (by futex, and spinning) frame what two vCPUs can
//! reach.

use super::{LabError, Rig, Usage};
use crate::guest::pingpong::{MOST_EXCHANGES, Table, reply, serve};
use crate::host::{Thread, Tsc};
use crate::idle::{Halts, Idle};
use crate::method::{Block, Figure, Gaps, Turn, Unit};
use crate::vm::{Kicker, Machine, Options, Vcpu, VmError};
use dwell_policy::Nanos;
use rustix::thread::futex;
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Exchanges of each block that do not count.
pub const WARM_UP: usize = 50;

/// Who plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Players {
    /// Two threads of the host that spin.
    Spin,
    /// Two threads of the host that sleep on a futex.
    Futex,
    /// Two vCPUs.
    Vcpus(Box<Idle>),
}

/// The figures of an arm, besides those of the round trip.
pub fn figures() -> Vec<Figure> {
    vec![
        Figure::mean().named("mean").within(0.1),
        Figure::quantile(0.5).within(0.1),
        Figure::quantile(0.99),
        Figure::of_block("cpu_share", Unit::Share),
        Figure::of_block("cpu_ns_per_exchange", Unit::Nanos),
        Figure::of_block("hlt_exits_per_exchange", Unit::Count),
        Figure::of_block("host_polls_per_exchange", Unit::Count),
        Figure::of_block("ipis_sent_per_exchange", Unit::Count),
        Figure::of_block("ipis_avoided_per_exchange", Unit::Count),
    ]
}

/// How many exchanges a block has, if one takes `guess` besides the thinking time.
pub fn exchanges_of_a_block(think: Nanos, guess: Nanos, block: Nanos) -> usize {
    let one = (think.get() + guess.get()).max(1_000);
    let exchanges = block.get().min(500_000_000) / one;
    usize::try_from(exchanges).unwrap_or(0).clamp(20, MOST_EXCHANGES - WARM_UP)
}

/// Measures one block.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    think: &Gaps,
    seed: u64,
    exchanges: usize,
    turn: &Turn<'_, Players>,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let think = think.sequence(seed, turn.sequence, WARM_UP + exchanges).gaps;
    match turn.setting {
        Players::Spin => native(rig, &think, Wait::Spin, stop),
        Players::Futex => native(rig, &think, Wait::Futex, stop),
        Players::Vcpus(idle) => vcpus(rig, &think, idle, stop),
    }
}

/// What one player used, and when it began and ended.
struct Share {
    usage: Usage,
    began: Tsc,
    ended: Tsc,
    kvm: Option<OfKvm>,
}

/// What there is to count of a player that is a vCPU.
#[derive(Clone, Copy)]
struct OfKvm {
    hlt_exits: u64,
    host_polls: u64,
    ipis_sent: u64,
    ipis_avoided: u64,
}

fn told(rig: &Rig, round_trips: Vec<u64>, shares: &[Share; 2]) -> Block {
    let exchanges = round_trips.len().max(1) as f64;
    let began = shares.iter().map(|share| share.began).min().unwrap_or_default();
    let ended = shares.iter().map(|share| share.ended).max().unwrap_or_default();
    let cpu: u64 = shares.iter().map(|share| share.usage.cpu.get()).sum();
    let per = |number: u64| number as f64 / exchanges;
    let wall = rig.between(began, ended).get().max(1);
    let mut block = Block::new(round_trips)
        .figure("cpu_share", cpu as f64 / (2.0 * wall as f64))
        .figure("cpu_ns_per_exchange", per(cpu));
    if let [Some(a), Some(b)] = shares.each_ref().map(|share| share.kvm) {
        block = block
            .figure("hlt_exits_per_exchange", per(a.hlt_exits + b.hlt_exits))
            .figure("host_polls_per_exchange", per(a.host_polls + b.host_polls))
            .figure("ipis_sent_per_exchange", per(a.ipis_sent + b.ipis_sent))
            .figure("ipis_avoided_per_exchange", per(a.ipis_avoided + b.ipis_avoided));
    }
    block
}

fn vcpus(rig: &Rig, think: &[Nanos], idle: &Idle, stop: &AtomicBool) -> Result<Block, LabError> {
    let Halts::InKernel(host) = &idle.halts else { return Err(LabError::NeedsKernelHalts) };
    let halt_poll_ns = Some(u32::try_from(host.get()).unwrap_or(u32::MAX));
    let machine = Machine::new(Options { halt_poll_ns, halts_in_user_space: false }, 2)?;
    let table: &Table = machine.place()?;
    table.lay(WARM_UP, think.iter().map(|think| rig.cycles(*think)));
    for seat in &table.seats {
        if let Some(rule) = &idle.guest {
            seat.bed.make(rule.policy()?, rig.hz());
        }
    }
    if let Some(allowed) = idle.poll_control {
        table.set_poll_control(allowed);
    }
    let players = [machine.vcpu(0, serve, table)?, machine.vcpu(1, reply, table)?];
    let kickers = [players[0].kicker(), players[1].kicker()];
    let start = Barrier::new(2);
    let ended = AtomicU32::new(0);
    let shares = std::thread::scope(|scope| {
        let mut threads = vec![];
        for (id, mut vcpu) in players.into_iter().enumerate() {
            let (start, ended, table) = (&start, &ended, table);
            let thread = std::thread::Builder::new().name(format!("CPU {id}/KVM"));
            let play = move || {
                let played = play(rig, id, &mut vcpu, start, table);
                ended.fetch_add(1, Ordering::SeqCst);
                played
            };
            threads.push(thread.spawn_scoped(scope, play).map_err(LabError::Thread)?);
        }
        watch(&ended, &kickers, stop);
        let mut shares = threads.into_iter().map(|thread| thread.join().map_err(|_| LabError::Panicked)?);
        let first = shares.next().ok_or(LabError::Gone)?;
        let second = shares.next().ok_or(LabError::Gone)?;
        Ok::<_, LabError>([first?, second?])
    })?;
    if stop.load(Ordering::Relaxed) {
        return Err(LabError::Stopped);
    }
    let round_trips = table.round_trips().map(|cycles| rig.nanos(cycles)).collect();
    Ok(told(rig, round_trips, &shares))
}

/// The vCPU's thread: the warm-up, then what counts.
fn play(
    rig: &Rig,
    id: usize,
    vcpu: &mut Vcpu<'_>,
    start: &Barrier,
    table: &Table,
) -> Result<Share, LabError> {
    let _place = rig.vcpu_thread(id);
    let stats = vcpu.stats();
    let warmed = vcpu.run(|| ControlFlow::Break(()));
    // Both come here whatever happened, or the other would wait for ever.
    start.wait();
    let (_place, stats) = (_place?, stats?);
    warmed?;
    let read = || stats.counters().map_err(|error| VmError::Os { what: "KVM statistics", error });
    let (sent, avoided) = table.seats[id].ipis();
    let (counters, usage, began) = (read()?, Usage::of(Thread::current())?, Tsc::now());
    vcpu.run(|| ControlFlow::Break(()))?;
    let (ended, usage) = (Tsc::now(), Usage::of(Thread::current())? - usage);
    let counters = read()?.since(counters);
    Ok(Share {
        usage,
        began,
        ended,
        kvm: Some(OfKvm {
            hlt_exits: counters.halt_exits.unwrap_or(0),
            host_polls: counters.halt_attempted_poll.unwrap_or(0),
            ipis_sent: table.seats[id].ipis().0 - sent,
            ipis_avoided: table.seats[id].ipis().1 - avoided,
        }),
    })
}

/// Waits for both to end; kicks them if they take too long or the user wants no more.
fn watch(ended: &AtomicU32, kickers: &[Kicker; 2], stop: &AtomicBool) {
    /// A block takes half a second; beyond this something is lost.
    const LONGEST: Duration = Duration::from_secs(5);
    let began = std::time::Instant::now();
    while ended.load(Ordering::SeqCst) < 2 {
        std::thread::sleep(Duration::from_millis(1));
        if stop.load(Ordering::Relaxed) || began.elapsed() > LONGEST {
            kickers.iter().for_each(Kicker::kick);
        }
    }
}

/// How a thread of the host waits.
#[derive(Clone, Copy)]
enum Wait {
    Spin,
    Futex,
}

/// A word on a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct Mail(AtomicU32);

impl Mail {
    fn post(&self, number: u32, wait: Wait) {
        self.0.store(number, Ordering::SeqCst);
        if let Wait::Futex = wait {
            let _ = futex::wake(&self.0, futex::Flags::PRIVATE, 1);
        }
    }

    fn receive(&self, number: u32, wait: Wait, stop: &AtomicBool) {
        loop {
            let there = self.0.load(Ordering::Acquire);
            if there == number || stop.load(Ordering::Relaxed) {
                return;
            }
            match wait {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Futex => drop(futex::wait(&self.0, futex::Flags::PRIVATE, there, Some(&STOP_LOOK))),
            }
        }
    }
}

/// How often a sleeping player looks whether it shall stop.
const STOP_LOOK: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

fn native(rig: &Rig, think: &[Nanos], wait: Wait, stop: &AtomicBool) -> Result<Block, LabError> {
    let mail: [Mail; 2] = Default::default();
    let [to_server, to_other] = &mail;
    let exchanges = u32::try_from(think.len()).unwrap_or(u32::MAX);
    let warm_up = u32::try_from(WARM_UP).unwrap_or(0);
    let share = |before: (Usage, Tsc)| -> Result<Share, LabError> {
        let ended = Tsc::now();
        let usage = Usage::of(Thread::current())? - before.0;
        Ok(Share { usage, began: before.1, ended, kvm: None })
    };
    let other = || -> Result<Share, LabError> {
        let _place = rig.vcpu_thread(1)?;
        let mut before = (Usage::of(Thread::current())?, Tsc::now());
        for number in 1..=exchanges {
            to_other.receive(number, wait, stop);
            to_server.post(number, wait);
            if number == warm_up {
                before = (Usage::of(Thread::current())?, Tsc::now());
            }
        }
        share(before)
    };
    let server = || -> Result<(Vec<u64>, Share), LabError> {
        let _place = rig.vcpu_thread(0)?;
        let mut round_trips = Vec::with_capacity(think.len());
        let mut before = (Usage::of(Thread::current())?, Tsc::now());
        for (number, think) in (1..=exchanges).zip(think) {
            rig.spin(*think);
            let sent = Tsc::now();
            to_other.post(number, wait);
            to_server.receive(number, wait, stop);
            if number > warm_up {
                round_trips.push(rig.since(sent).get());
            } else if number == warm_up {
                before = (Usage::of(Thread::current())?, Tsc::now());
            }
        }
        Ok((round_trips, share(before)?))
    };
    let (server, other) = std::thread::scope(|scope| {
        let other = std::thread::Builder::new().spawn_scoped(scope, other).map_err(LabError::Thread)?;
        let server = std::thread::Builder::new().spawn_scoped(scope, server).map_err(LabError::Thread)?;
        let server = server.join().map_err(|_| LabError::Panicked)?;
        let other = other.join().map_err(|_| LabError::Panicked)?;
        Ok::<_, LabError>((server, other))
    })?;
    if stop.load(Ordering::Relaxed) {
        return Err(LabError::Stopped);
    }
    let (round_trips, server) = server?;
    Ok(told(rig, round_trips, &[server, other?]))
}
