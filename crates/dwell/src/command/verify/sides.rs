//! What is measured of one turn: a recording of CPUs or vCPUs, or the counters of a thread.

use super::WAKES;
use crate::command::iothread::{kernel_thread, usage};
use anyhow::Context;
use dwell_capture::{GuestSource, Recorder, Target, Until};
use dwell_knobs::iothread;
use dwell_knobs::journal::Change;
use dwell_knobs::machine::Machine;
use dwell_knobs::verification::Figure;
use dwell_lab::host::thread::Thread;
use dwell_policy::Layer;
use dwell_recording::{Chunk, Columns, Reader};
use dwell_stats::Block;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What a change is measured with.
pub(super) struct Sides {
    measured: Source,
    halt_cost_ns: f64,
    /// Whether any episode told polling from halting.
    tells_polls: bool,
}

enum Source {
    Recorder(Target),
    Thread(Thread),
}

impl Sides {
    /// Sees whether it can be measured at all.
    pub(super) fn open(machine: &dyn Machine, change: &Change) -> anyhow::Result<Sides> {
        let measured = match (change.plan.layer, &change.plan.iothread) {
            (Layer::Iothread, Some(target)) => {
                let mut monitor = machine.monitor(&target.socket)?;
                let thread = iothread::find(&mut monitor, &target.id)?;
                let (pid, tid) = kernel_thread(&monitor, &thread, None)?;
                Source::Thread(Thread::of(pid, tid))
            }
            (Layer::Guest, _) => Source::Recorder(Target::Guest { source: GuestSource::Auto }),
            _ => Source::Recorder(Target::Host { pid: None, exits: false }),
        };
        let measured = match measured {
            Source::Recorder(target) => Source::Recorder(settled(target)?),
            thread @ Source::Thread(_) => thread,
        };
        let halt_cost_ns = change.plan.conditions.halt_cost_ns as f64;
        Ok(Sides { measured, halt_cost_ns, tells_polls: false })
    }

    /// Measures for so long.
    pub(super) fn block(&mut self, length: Duration, stop: &AtomicBool) -> anyhow::Result<Block> {
        match &self.measured {
            Source::Thread(thread) => counted(thread, length, self.halt_cost_ns),
            Source::Recorder(target) => {
                let until = Until { duration: Some(length), stop };
                let (summary, bytes) = Recorder::open(target.clone(), None)?.to_memory(&until, &mut ())?;
                let sums = Sums::of(&Reader::from_bytes("turn", bytes)?)?;
                self.tells_polls |= sums.tells_polls;
                Ok(self.figures(&sums, summary.status.elapsed))
            }
        }
    }

    fn figures(&self, sums: &Sums, elapsed: Duration) -> Block {
        let per_second = |sum: f64| sum / elapsed.as_secs_f64();
        let cost_ns = sums.polled_ns + sums.halts * self.halt_cost_ns;
        Block::default()
            .figure(Figure::CostNsPerS.name(), per_second(cost_ns))
            .figure(Figure::CpuBurntNsPerS.name(), per_second(sums.polled_ns))
            .figure(Figure::HaltsPerS.name(), per_second(sums.halts))
            .figure(WAKES, per_second(sums.wakes))
    }

    /// What the figures do not tell.
    pub(super) fn notes(&self) -> Option<String> {
        match self.measured {
            Source::Thread(_) => Some(
                "of the thread all CPU time was measured, work included; only the difference compares with the prediction"
                    .to_owned(),
            ),
            Source::Recorder(_) if !self.tells_polls => {
                Some("no episode was seen to poll: every one counts as a halt".to_owned())
            }
            Source::Recorder(_) => None,
        }
    }
}

/// What can be recorded, with the source that was found for it: looking for one in every turn would take longer than the
/// turn.
fn settled(target: Target) -> anyhow::Result<Target> {
    let recorder =
        Recorder::open(target.clone(), None).context("this cannot be verified; nothing was switched")?;
    let speaks = recorder.metadata().source.events.iter().any(|event| event == "power:cpu_idle");
    Ok(match target {
        Target::Guest { .. } if speaks => Target::Guest { source: GuestSource::CpuIdle },
        Target::Guest { .. } => Target::Guest { source: GuestSource::Switch },
        other => other,
    })
}

/// All CPU time of a thread: what polls and what works cannot be told apart from outside, and in the difference work cancels
/// out.
fn counted(thread: &Thread, length: Duration, halt_cost_ns: f64) -> anyhow::Result<Block> {
    let (begun, before) = (Instant::now(), usage(*thread)?);
    std::thread::sleep(length);
    let used = usage(*thread)? - before;
    let seconds = begun.elapsed().as_secs_f64();
    let sleeps = used.switches.voluntary as f64 / seconds;
    let cpu_ns = used.cpu.get() as f64 / seconds;
    Ok(Block::default()
        .figure(Figure::CostNsPerS.name(), cpu_ns + sleeps * halt_cost_ns)
        .figure(Figure::CpuBurntNsPerS.name(), cpu_ns)
        .figure(Figure::HaltsPerS.name(), sleeps)
        .figure(WAKES, sleeps))
}

/// Sums over the episodes of a turn.
#[derive(Default)]
struct Sums {
    wakes: f64,
    halts: f64,
    polled_ns: f64,
    tells_polls: bool,
}

impl Sums {
    fn of(reader: &Reader) -> anyhow::Result<Sums> {
        let mut sums = Sums::default();
        let mut chunk = Chunk::default();
        for group in 0..reader.row_groups() {
            reader.read(group, Columns::IDLE_NS | Columns::WINDOW_NS | Columns::HALTED, &mut chunk)?;
            let rows = chunk.idle_ns.iter().zip(&chunk.window_ns).zip(&chunk.halted);
            rows.for_each(|((idle_ns, window_ns), halted)| sums.add(*idle_ns, *window_ns, *halted));
        }
        Ok(sums)
    }

    fn add(&mut self, idle_ns: u64, window_ns: Option<u64>, halted: Option<bool>) {
        self.wakes += 1.0;
        if halted == Some(false) {
            self.polled_ns += idle_ns as f64;
        } else {
            self.halts += 1.0;
            self.polled_ns += window_ns.map_or(0.0, |window_ns| window_ns.min(idle_ns) as f64);
        }
        self.tells_polls |= halted == Some(false) || window_ns.is_some_and(|window_ns| window_ns > 0);
    }
}
