//! Measures one block: a recording of CPUs or vCPUs, or the counters of a thread.

use super::WAKEUPS;
use crate::command::iothread::{kernel_thread, usage};
use anyhow::Context;
use dwell_capture::{GuestSource, Recorder, Target, Until};
use dwell_knobs::iothread;
use dwell_knobs::journal::Change;
use dwell_knobs::verification::Figure;
use dwell_machine::Writable;
use dwell_machine::threads::Thread;
use dwell_policy::{Layer, Owner};
use dwell_recording::accounting::{self, Account};
use dwell_recording::{Chunk, Reader};
use dwell_stats::Block;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The source of measurements.
pub(super) struct Sides {
    measured: Source,
    halt_cost_ns: f64,
    /// Whether the recording shows polls.
    shows_polls: bool,
}

enum Source {
    Recorder(Target),
    Thread(Thread),
}

impl Sides {
    /// Opens the source.
    pub(super) fn open(machine: &dyn Writable, change: &Change) -> anyhow::Result<Sides> {
        let measured = match (change.plan.owner, &change.plan.iothread) {
            (Owner::Layer(Layer::Iothread), Some(target)) => {
                let mut monitor = iothread::connect(machine, &target.socket)?;
                let thread = iothread::find(&mut monitor, &target.id)?;
                let (pid, tid) = kernel_thread(&monitor, &thread, None)?;
                Source::Thread(Thread::of(pid, tid))
            }
            (Owner::Layer(Layer::Guest | Layer::Driver), _) => {
                Source::Recorder(Target::Guest { source: GuestSource::Auto })
            }
            _ => Source::Recorder(Target::Host { pid: None, exits: false, contention: false }),
        };
        let measured = match measured {
            Source::Recorder(target) => Source::Recorder(with_source(target)?),
            thread @ Source::Thread(_) => thread,
        };
        let halt_cost_ns = change.plan.conditions.halt_cost_ns as f64;
        Ok(Sides { measured, halt_cost_ns, shows_polls: false })
    }

    /// Measures for this time.
    pub(super) fn block(&mut self, length: Duration, stop: &AtomicBool) -> anyhow::Result<Block> {
        match &self.measured {
            Source::Thread(thread) => counted(thread, length, self.halt_cost_ns),
            Source::Recorder(target) => {
                let until = Until { duration: Some(length), stop };
                let (summary, bytes) = Recorder::open(target.clone(), None)?.to_memory(&until, &mut ())?;
                let account = account(&Reader::from_bytes("block", bytes)?)?;
                self.shows_polls |= account.polls > 0;
                Ok(self.figures(&account, summary.status.elapsed))
            }
        }
    }

    fn figures(&self, account: &Account, elapsed: Duration) -> Block {
        let per_second = |sum: f64| sum / elapsed.as_secs_f64();
        let polled_ns = account.polled_ns as f64;
        let halts = account.halts_at_most() as f64;
        let cost_ns = polled_ns + halts * self.halt_cost_ns;
        Block::default()
            .figure(Figure::Cost.name(), per_second(cost_ns))
            .figure(Figure::PollingCpu.name(), per_second(polled_ns))
            .figure(Figure::Halts.name(), per_second(halts))
            .figure(WAKEUPS, per_second(account.episodes as f64))
    }

    /// A note on the limits of the figures.
    pub(super) fn notes(&self) -> Option<String> {
        match self.measured {
            Source::Thread(_) => Some(
                "all CPU time of the thread was measured, including its work; compare only the difference with the \
                 prediction"
                    .to_owned(),
            ),
            Source::Recorder(_) if !self.shows_polls => {
                Some("the recording shows no polls: every episode counts as a halt".to_owned())
            }
            Source::Recorder(_) => None,
        }
    }
}

/// The target with the source that works here: finding it in every block would take longer than the block.
fn with_source(target: Target) -> anyhow::Result<Target> {
    let recorder =
        Recorder::open(target.clone(), None).context("cannot verify the change; no value was switched")?;
    Ok(recorder.target().clone())
}

/// All CPU time of a thread: polling and work cannot be separated from outside, and work cancels out in the difference.
fn counted(thread: &Thread, length: Duration, halt_cost_ns: f64) -> anyhow::Result<Block> {
    let (begun, before) = (Instant::now(), usage(*thread)?);
    std::thread::sleep(length);
    let used = usage(*thread)? - before;
    let seconds = begun.elapsed().as_secs_f64();
    let sleeps = used.switches.voluntary as f64 / seconds;
    let cpu_ns = used.cpu.get() as f64 / seconds;
    Ok(Block::default()
        .figure(Figure::Cost.name(), cpu_ns + sleeps * halt_cost_ns)
        .figure(Figure::PollingCpu.name(), cpu_ns)
        .figure(Figure::Halts.name(), sleeps)
        .figure(WAKEUPS, sleeps))
}

/// The figures of a recorded block.
fn account(reader: &Reader) -> anyhow::Result<Account> {
    let mut account = Account::default();
    let mut chunk = Chunk::default();
    for group in 0..reader.row_groups() {
        reader.read(group, accounting::COLUMNS, &mut chunk)?;
        account.add_chunk(&chunk);
    }
    Ok(account)
}
