//! `pingpong`: two CPUs that wait for each other, the way pipes, locks and network peers do.
//!
//! The server thinks, sends a message and waits for the answer; the other side answers at once. A round trip holds two
//! wakes. The rows say who polls while waiting: two threads of the host (by futex, and spinning) frame what
//! two vCPUs can reach.

use super::run::{self, BlockRun, both, rounds_of_a_block};
use super::{KvmCounts, LabError, Rig};
use crate::gaps::Gaps;
use crate::guest::doorbell::DOORBELL;
use crate::guest::pingpong::{Exchange, reply, serve};
use crate::host::Tsc;
use crate::idle::{Halts, Idle};
use crate::sampled::{mean, quantile};
use crate::vm::{Machine, Vcpu};
use dwell_machine::threads::{Thread, Usage};
use dwell_policy::Nanos;
use dwell_stats::{Block, Figure, Trial, Unit};
use rustix::thread::futex;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How much was done in a block.
pub(super) const EXCHANGES_PER_S: &str = "exchanges_per_s";
/// The CPU time of both for it.
pub(super) const CPU_PER_EXCHANGE: &str = "cpu_ns_per_exchange";
/// Exchanges of each block that do not count.
pub const WARM_UP: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Participants {
    /// Two threads of the host that spin.
    Spin,
    /// Two threads of the host that sleep on a futex.
    Futex,
    Vcpus(Box<Idle>),
}

/// The figures of an arm, besides those of the round trip.
pub fn figures() -> Vec<Figure> {
    vec![
        mean().within(0.1),
        quantile(0.5).within(0.1),
        quantile(0.99),
        Figure::of_block(EXCHANGES_PER_S, Unit::PerSecond),
        Figure::of_block("cpu_share", Unit::Share),
        Figure::of_block(CPU_PER_EXCHANGE, Unit::Nanos),
        Figure::of_block("hlt_exits_per_exchange", Unit::Count),
        Figure::of_block("host_polls_per_exchange", Unit::Count),
        Figure::of_block("ipis_sent_per_exchange", Unit::Count),
        Figure::of_block("ipis_avoided_per_exchange", Unit::Count),
    ]
}

/// How many exchanges a block has, if one takes `guess` besides the thinking time.
pub fn exchanges_of_a_block(think: Nanos, guess: Nanos, block: Nanos) -> usize {
    rounds_of_a_block(think, guess, block, WARM_UP)
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
    trial: &Trial<'_, Participants>,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let think = think.sequence(seed, trial.sequence, WARM_UP + exchanges).gaps;
    match trial.setting {
        Participants::Spin => native(rig, &think, Wait::Spin, stop),
        Participants::Futex => native(rig, &think, Wait::Futex, stop),
        Participants::Vcpus(idle) => vcpus(rig, &think, idle, false, stop, |_| ()),
    }
}

/// What a participant counted itself: IPIs sent and avoided, if it is a vCPU.
type Ipis = (u64, u64);

fn block_of(rig: &Rig, round_trips: Vec<u64>, participants: &[BlockRun<Ipis>; 2]) -> Block {
    let exchanges = round_trips.len().max(1) as f64;
    let began = participants.iter().map(|participant| participant.began).min().unwrap_or_default();
    let ended = participants.iter().map(|participant| participant.ended).max().unwrap_or_default();
    let per = |number: u64| number as f64 / exchanges;
    let sum = |of: &dyn Fn(&BlockRun<Ipis>) -> u64| participants.iter().map(of).sum::<u64>();
    let cpu = sum(&|participant| participant.usage.cpu.get());
    let wall = rig.between(began, ended).get().max(1);
    let mut block = Block::new(round_trips)
        .figure(EXCHANGES_PER_S, exchanges * 1e9 / wall as f64)
        .figure("cpu_share", cpu as f64 / (2.0 * wall as f64))
        .figure(CPU_PER_EXCHANGE, per(cpu));
    if participants.iter().all(|participant| participant.kvm != KvmCounts::default()) {
        let kvm = |name: &'static str| per(sum(&|participant| participant.kvm.get(name).unwrap_or(0)));
        block = block
            .figure("hlt_exits_per_exchange", kvm("halt_exits"))
            .figure("host_polls_per_exchange", kvm("halt_attempted_poll"))
            .figure(
                "ipis_sent_per_exchange",
                per(sum(&|participant| participant.read[1].0 - participant.read[0].0)),
            )
            .figure(
                "ipis_avoided_per_exchange",
                per(sum(&|participant| participant.read[1].1 - participant.read[0].1)),
            );
    }
    block
}

/// Two vCPUs, which exchange a message after each of the thinking times: of one VM, or `apart`, in one each. `ended` sees what
/// they have left.
pub(super) fn vcpus(
    rig: &Rig,
    think: &[Nanos],
    idle: &Idle,
    apart: bool,
    stop: &AtomicBool,
    ended: impl FnOnce(&Exchange),
) -> Result<Block, LabError> {
    if matches!(idle.halts, Halts::InUserSpace(_)) {
        return Err(LabError::NeedsKernelHalts);
    }
    let [machine, other] = Machine::together(idle.machine(), 2)?;
    let exchange: &Exchange = machine.place()?;
    exchange.rounds.lay(WARM_UP, think.iter().map(|think| rig.cycles(*think)));
    for endpoint in &exchange.endpoints {
        rig.set_policy(&endpoint.idle_state, idle)?;
    }
    exchange.poll_control.set(idle.poll_control);
    // Closed, they would be interrupts no more.
    let bells = [machine.irqfd(0)?, other.irqfd(0)?];
    let replier = if apart {
        exchange.set_apart();
        machine.rings(DOORBELL, &bells[1])?;
        other.rings(DOORBELL, &bells[0])?;
        other.vcpu(0, reply, exchange)?
    } else {
        machine.vcpu(1, reply, exchange)?
    };
    let vcpus = [machine.vcpu(0, serve, exchange)?, replier];
    let kickers = vcpus.each_ref().map(Vcpu::kicker);
    let start = &Barrier::new(2);
    let participants = std::thread::scope(|scope| {
        let mut threads = vec![];
        let watched = run::watch(&kickers, stop, |running| {
            for (id, mut vcpu) in vcpus.into_iter().enumerate() {
                let ipis = move || Ok(exchange.endpoints[id].ipis());
                let body = move || run::run(&mut vcpu, rig.vcpu_thread(id), || _ = start.wait(), ipis);
                threads.push(run::spawn(scope, format!("CPU {id}/KVM"), running.clone(), body)?);
            }
            Ok(())
        });
        let participants: Result<Vec<_>, LabError> = threads.into_iter().map(run::join).collect();
        let participants = participants?;
        watched?;
        <[BlockRun<Ipis>; 2]>::try_from(participants).map_err(|_| LabError::Gone)
    })?;
    ended(exchange);
    let round_trips = exchange.rounds.measured().map(|cycles| rig.nanos(cycles)).collect();
    Ok(block_of(rig, round_trips, &participants))
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

    fn receive(&self, number: u32, wait: Wait, stop: &[&AtomicBool]) {
        loop {
            let there = self.0.load(Ordering::Acquire);
            if there == number || stop.iter().any(|stop| stop.load(Ordering::Relaxed)) {
                return;
            }
            match wait {
                Wait::Spin => std::hint::spin_loop(),
                Wait::Futex => drop(futex::wait(&self.0, futex::Flags::PRIVATE, there, Some(&STOP_LOOK))),
            }
        }
    }
}

/// How often a sleeping participant looks whether it shall stop.
const STOP_LOOK: rustix::fs::Timespec = rustix::fs::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

fn native(rig: &Rig, think: &[Nanos], wait: Wait, stop: &AtomicBool) -> Result<Block, LabError> {
    let mail: [Mail; 2] = Default::default();
    let [to_server, to_other] = &mail;
    let exchanges = u32::try_from(think.len()).unwrap_or(u32::MAX);
    let warm_up = u32::try_from(WARM_UP).unwrap_or(0);
    let share = |before: (Usage, Tsc)| -> Result<BlockRun<Ipis>, LabError> {
        let ended = Tsc::now();
        let usage = Usage::of(Thread::current()).map_err(LabError::Usage)? - before.0;
        Ok(BlockRun { usage, began: before.1, ended, kvm: KvmCounts::default(), read: [(0, 0); 2] })
    };
    let failed = AtomicBool::new(false);
    let stops = [stop, &failed];
    let other = || -> Result<BlockRun<Ipis>, LabError> {
        let _place = rig.vcpu_thread(1)?;
        let mut before = (Usage::of(Thread::current()).map_err(LabError::Usage)?, Tsc::now());
        for number in 1..=exchanges {
            to_other.receive(number, wait, &stops);
            to_server.post(number, wait);
            if number == warm_up {
                before = (Usage::of(Thread::current()).map_err(LabError::Usage)?, Tsc::now());
            }
        }
        share(before)
    };
    let server = || -> Result<(Vec<u64>, BlockRun<Ipis>), LabError> {
        let _place = rig.vcpu_thread(0)?;
        let mut round_trips = Vec::with_capacity(think.len());
        let mut before = (Usage::of(Thread::current()).map_err(LabError::Usage)?, Tsc::now());
        for (number, think) in (1..=exchanges).zip(think) {
            rig.spin(*think);
            let sent = Tsc::now();
            to_other.post(number, wait);
            to_server.receive(number, wait, &stops);
            if number > warm_up {
                round_trips.push(rig.since(sent).get());
            } else if number == warm_up {
                before = (Usage::of(Thread::current()).map_err(LabError::Usage)?, Tsc::now());
            }
        }
        Ok((round_trips, share(before)?))
    };
    let ((round_trips, server), other) = both(["server", "other"], &failed, server, other)?;
    if stop.load(Ordering::Relaxed) {
        return Err(LabError::Stopped);
    }
    Ok(block_of(rig, round_trips, &[server, other]))
}
