//! `timer`: what keeps a guest's timer, how late the guest runs, and what that costs on both sides.
//!
//! The guest sets a deadline, halts, and notes how late its next instruction is, again and again. Its timer
//! is kept by the local APIC in the kernel, or by a *housekeeping thread* of the VMM on another core, to
//! which the guest hands the deadline through memory and which injects an interrupt.

mod keeper;
mod predicted;

pub use keeper::{Inject, Keeper, Timer};
pub use predicted::{ExitCounts, Predicted, predicted};

use super::run::BlockRun;
use super::service::{Service, served};
use super::{KvmCountsByArm, LabError, Rig};
use crate::gaps::Gaps;
use crate::guest::timer::{DOORBELL, TimerChannel, TimerCounts, timer};
use crate::sampled::{latency, mean, quantile};
use crate::vm::Machine;
use dwell_machine::threads::Usage;
use dwell_stats::{Block, Figure, Trial, Unit};
use std::sync::atomic::AtomicBool;

/// Timers of each block that do not count.
pub const WARM_UP: usize = 50;

/// The figures of an arm.
pub fn figures() -> Vec<Figure> {
    let mut figures = latency().to_vec();
    figures[0] = quantile(0.5).within(0.05);
    figures.extend([
        mean(),
        Figure::of_block("vcpu_cpu_ns_per_timer", Unit::Nanos),
        Figure::of_block("vcpu_cpu_share", Unit::Share),
        Figure::of_block("housekeeper_cpu_ns_per_timer", Unit::Nanos),
        Figure::of_block("housekeeper_cpu_share", Unit::Share),
        Figure::of_block("early_share", Unit::Share),
        Figure::of_block("passed_share", Unit::Share),
        Figure::of_block("hlt_exits_per_timer", Unit::Count),
    ]);
    figures
}

/// Measures one block: `timers` timers, each set as far ahead as its gap says.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    ahead: &Gaps,
    seed: u64,
    timers: usize,
    trial: &Trial<'_, Timer>,
    kept: &mut KvmCountsByArm,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let Timer { keeper, inject, idle } = trial.setting;
    let machine = Machine::new(idle.machine(), 1)?;
    let channel: &TimerChannel = machine.place()?;
    let ahead = ahead.sequence(seed, trial.sequence, WARM_UP + timers).gaps;
    channel.rounds.lay(WARM_UP, ahead.iter().map(|ahead| rig.cycles(*ahead)));
    channel.keep(keeper.kept_by());
    channel.poll_control.set(idle.poll_control);
    let bell = machine.ioeventfd(DOORBELL)?;
    let injector = inject.open(&machine)?;
    let vcpu = machine.vcpu(0, timer, channel)?;
    let keep = |service: &Service<'_>| keeper.keep(rig, channel, &injector, service);
    let run = served(rig, vcpu, &bell, stop, keep, || channel.woke())?;
    let lateness: Vec<u64> = channel.rounds.measured().map(|cycles| rig.nanos(cycles)).collect();
    if !trial.warm_up {
        kept.add(trial.arm, &run.kvm, lateness.len());
    }
    Ok(block_of(rig, lateness, &run))
}

fn block_of(rig: &Rig, lateness_ns: Vec<u64>, run: &BlockRun<(Usage, TimerCounts)>) -> Block {
    let timers = lateness_ns.len().max(1) as f64;
    let [before, after] = &run.read;
    let housekeeper = (after.0 - before.0).cpu.get() as f64;
    let vcpu = run.usage.cpu.get() as f64;
    let wall = rig.between(run.began, run.ended).get().max(1) as f64;
    let mut block = Block::new(lateness_ns)
        .figure("vcpu_cpu_ns_per_timer", vcpu / timers)
        .figure("vcpu_cpu_share", vcpu / wall)
        .figure("housekeeper_cpu_ns_per_timer", housekeeper / timers)
        .figure("housekeeper_cpu_share", housekeeper / wall)
        .figure("early_share", (after.1.early - before.1.early) as f64 / timers)
        .figure("passed_share", (after.1.passed - before.1.passed) as f64 / timers);
    if let Some(exits) = run.kvm.get("halt_exits") {
        block = block.figure("hlt_exits_per_timer", exits as f64 / timers);
    }
    block
}
