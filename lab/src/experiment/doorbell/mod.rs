//! `doorbell`: a guest's request to a thread of its VMM and back, as a virtual device serves it.
//!
//! The guest thinks, writes a request to memory, rings a doorbell (a port write that KVM turns into an
//! eventfd) and waits. An I/O thread serves the request for a while, posts the answer and interrupts the
//! guest by an irqfd, unless the guest watches. What is tried is the loop by which the I/O thread waits for
//! the next request.

mod server;

pub use server::{IoThreadSetting, Loop};

use super::run::BlockRun;
use super::service::{Service, served};
use super::{KvmCountsByArm, LabError, Rig};
use crate::gaps::Gaps;
use crate::guest::doorbell::{DOORBELL, DoorbellCounts, RequestChannel, doorbell};
use crate::sampled::{mean, quantile};
use crate::vm::Machine;
use dwell_machine::threads::Usage;
use dwell_policy::Nanos;
use dwell_stats::{Block, Figure, Trial, Unit};
use server::{Counts, Server};
use std::sync::atomic::AtomicBool;

/// Requests of each block that do not count.
pub const WARM_UP: usize = 50;

/// The figures of an arm.
pub fn figures() -> Vec<Figure> {
    vec![
        quantile(0.5).within(0.05),
        quantile(0.9),
        quantile(0.99),
        mean(),
        Figure::of_block("io_cpu_share", Unit::Share),
        Figure::of_block("io_cpu_ns_per_request", Unit::Nanos).within(0.05),
        Figure::of_block("vcpu_cpu_share", Unit::Share),
        Figure::of_block("vcpu_cpu_ns_per_request", Unit::Nanos),
        Figure::of_block("sleeps_per_request", Unit::Count),
        Figure::of_block("polls_per_request", Unit::Count),
        Figure::of_block("polls_succeeded_per_request", Unit::Count),
        Figure::of_block("doorbells_per_request", Unit::Count),
        Figure::of_block("doorbells_suppressed_per_request", Unit::Count),
        Figure::of_block("interrupts_per_request", Unit::Count),
        Figure::of_block("hlt_exits_per_request", Unit::Count),
    ]
}

/// What all arms of the experiment have in common.
#[derive(Clone, Debug)]
pub struct Work {
    /// How long the guest thinks before each request.
    pub think: Gaps,
    /// From which the thinking is drawn.
    pub seed: u64,
    /// Requests of a block, besides the warm-up.
    pub requests: usize,
    /// How long the I/O thread spins for each request.
    pub service: Nanos,
}

/// Measures one block.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    work: &Work,
    trial: &Trial<'_, IoThreadSetting>,
    kept: &mut KvmCountsByArm,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let IoThreadSetting { by, suppress, idle } = trial.setting;
    let machine = Machine::new(idle.machine(), 1)?;
    let channel: &RequestChannel = machine.place()?;
    let think = work.think.sequence(work.seed, trial.sequence, WARM_UP + work.requests).gaps;
    channel.rounds.lay(WARM_UP, think.iter().map(|think| rig.cycles(*think)));
    rig.set_policy(&channel.idle_state, idle)?;
    if idle.guest.is_none() {
        channel.always_interrupts();
    }
    channel.poll_control.set(idle.poll_control);
    if *suppress {
        channel.suppress();
    }
    let bell = machine.ioeventfd(DOORBELL)?;
    let vcpu = machine.vcpu(0, doorbell, channel)?;
    let counts = Counts::default();
    let server = Server {
        rig,
        channel,
        irqfd: machine.irqfd(0)?,
        service: work.service,
        always_interrupts: idle.guest.is_none(),
        suppress: *suppress,
        counts: &counts,
    };
    let serve = |service: &Service<'_>| server.serve(by, service);
    let run = served(rig, vcpu, &bell, stop, serve, || (channel.rung(), counts.read()))?;
    let round_trips: Vec<u64> = channel.rounds.measured().map(|cycles| rig.nanos(cycles)).collect();
    if !trial.warm_up {
        kept.add(trial.arm, &run.kvm, round_trips.len());
    }
    Ok(block_of(rig, round_trips, &run))
}

fn block_of(
    rig: &Rig,
    round_trips: Vec<u64>,
    run: &BlockRun<(Usage, (DoorbellCounts, server::Counted))>,
) -> Block {
    let requests = round_trips.len().max(1) as f64;
    let [(io_before, (rung_before, before)), (io_after, (rung, after))] = &run.read;
    let io = *io_after - *io_before;
    let wall = rig.between(run.began, run.ended).get().max(1) as f64;
    let per = |after: u64, before: u64| (after - before) as f64 / requests;
    let vcpu = run.usage.cpu.get() as f64;
    let mut block = Block::new(round_trips)
        .figure("io_cpu_share", io.cpu.get() as f64 / wall)
        .figure("io_cpu_ns_per_request", io.cpu.get() as f64 / requests)
        .figure("vcpu_cpu_share", vcpu / wall)
        .figure("vcpu_cpu_ns_per_request", vcpu / requests)
        .figure("sleeps_per_request", per(after.sleeps, before.sleeps))
        .figure("polls_per_request", per(after.polls, before.polls))
        .figure("polls_succeeded_per_request", per(after.succeeded, before.succeeded))
        .figure("doorbells_per_request", per(rung.rung, rung_before.rung))
        .figure("doorbells_suppressed_per_request", per(rung.suppressed, rung_before.suppressed))
        .figure("interrupts_per_request", per(after.interrupts, before.interrupts));
    if let Some(exits) = run.kvm.get("halt_exits") {
        block = block.figure("hlt_exits_per_request", exits as f64 / requests);
    }
    block
}
