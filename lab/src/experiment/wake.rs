//! `wake`: the cost of a way to idle, and the latency of its wakeups.

use super::waking::{self, WARM_UP, WakeupBlock};
use super::{LabError, Rig, repeats_of_a_block};
use crate::gaps::Gaps;
use crate::guest::IdleCounts;
use crate::idle::{Halts, Idle};
use crate::sampled::latency;
use dwell_capture::kvm_stats::Counters;
use dwell_policy::Nanos;
use dwell_stats::{Block, Figure, Trial, Unit};
use std::sync::atomic::AtomicBool;

/// The figures of an arm, besides the quantiles of the wakeup latency.
pub fn figures() -> Vec<Figure> {
    let mut figures = latency().to_vec();
    figures.extend([
        Figure::of_block("cpu_ns_per_wakeup", Unit::Nanos).within(0.05),
        Figure::of_block("cpu_share", Unit::Share),
        Figure::of_block("switches_per_wakeup", Unit::Count),
        Figure::of_block("polls_per_wakeup", Unit::Count),
        Figure::of_block("polls_succeeded_per_wakeup", Unit::Count),
        Figure::of_block("polled_ns_per_wakeup", Unit::Nanos),
        Figure::of_block("halts_per_wakeup", Unit::Count),
        Figure::of_block("hlt_exits_per_wakeup", Unit::Count),
        Figure::of_block("signals_per_wakeup", Unit::Count),
    ]);
    figures
}

/// What the experiment keeps beside the figures: KVM's counters of each arm, histograms included, over all its blocks.
#[derive(Clone, Debug, Default)]
pub struct CountersByArm {
    counters: Vec<Option<Counters>>,
}

impl CountersByArm {
    /// KVM's counters of an arm, by its place among the arms.
    pub fn counters(&self, arm: usize) -> Option<&Counters> {
        self.counters.get(arm)?.as_ref()
    }

    fn add(&mut self, arm: usize, counters: &Counters) {
        if self.counters.len() <= arm {
            self.counters.resize(arm + 1, None);
        }
        let sum = &mut self.counters[arm];
        *sum = Some(match sum.take() {
            Some(sum) => sum.plus(counters.clone()),
            None => counters.clone(),
        });
    }
}

/// Most wakeups of a short block.
const MOST_WAKES: usize = 20_000;
/// A wakeup takes longer than this, however short the gap \[ns\].
const SHORTEST: u64 = 10_000;

/// How many wakes a block has that takes about so long.
pub fn wakes_of_a_block(mean_gap: Nanos, block: Nanos) -> usize {
    let most = usize::try_from(block.get() / SHORTEST).unwrap_or(MOST_WAKES);
    repeats_of_a_block(mean_gap, block, most.max(MOST_WAKES))
}

/// Measures one block.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    gaps: &Gaps,
    seed: u64,
    wakes: usize,
    trial: &Trial<'_, Idle>,
    kept: &mut CountersByArm,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    let sequence = gaps.sequence(seed, trial.sequence, WARM_UP + wakes);
    let waking = waking::wake(rig, trial.setting, &sequence.gaps, stop)?;
    if !trial.warm_up {
        kept.add(trial.arm, &waking.counters);
    }
    Ok(told(rig, trial.setting, &waking))
}

/// What whoever polls did in a block: the guest, user space, or the kernel.
pub(super) struct Polling {
    polls: u64,
    succeeded: u64,
    pub(super) polled_ns: u64,
    /// `None`: this kernel does not tell.
    pub(super) halts: Option<u64>,
}

impl Polling {
    pub(super) fn of(rig: &Rig, idle: &Idle, waking: &WakeupBlock) -> Polling {
        let of = |idler: &IdleCounts| Polling {
            polls: idler.polls,
            succeeded: idler.polls_succeeded,
            polled_ns: rig.nanos(idler.polled_cycles),
            halts: Some(idler.halts),
        };
        match (&idle.guest, &idle.halts) {
            (Some(_), _) => of(&waking.guest),
            (None, Halts::InUserSpace(_)) => of(&waking.user),
            (None, Halts::InKernel(_)) => Polling {
                polls: waking.counters.halt_attempted_poll.unwrap_or(0),
                succeeded: waking.counters.halt_successful_poll.unwrap_or(0),
                polled_ns: waking.host_polled_ns(),
                halts: waking.slept(),
            },
        }
    }
}

/// The figures of a block.
pub(super) fn told(rig: &Rig, idle: &Idle, waking: &WakeupBlock) -> Block {
    let counters = &waking.counters;
    let Polling { polls, succeeded, polled_ns, halts } = Polling::of(rig, idle, waking);
    let mut block = Block::new(waking.latency_ns.clone())
        .figure("cpu_ns_per_wakeup", waking.per_wake(waking.usage.cpu.get()))
        .figure("cpu_share", waking.usage.cpu.get() as f64 / waking.wall_ns.max(1) as f64)
        .figure(
            "switches_per_wakeup",
            waking.per_wake(waking.usage.switches.voluntary + waking.usage.switches.involuntary),
        )
        .figure("polls_per_wakeup", waking.per_wake(polls))
        .figure("polls_succeeded_per_wakeup", waking.per_wake(succeeded))
        .figure("polled_ns_per_wakeup", waking.per_wake(polled_ns))
        .figure("signals_per_wakeup", waking.per_wake(waking.signalled));
    if let Some(halts) = halts {
        block = block.figure("halts_per_wakeup", waking.per_wake(halts));
    }
    if let Some(exits) = counters.halt_exits {
        block = block.figure("hlt_exits_per_wakeup", waking.per_wake(exits));
    }
    block
}
