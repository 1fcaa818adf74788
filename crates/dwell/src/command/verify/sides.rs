//! Measures one block: a recording of CPUs or vCPUs, or the counters of a thread, and the work done meanwhile.

use super::record::{RecordArgs, target};
use super::watch::Watched;
use super::work::{Counters, WorkArgs};
use crate::command::iothread::kernel_thread;
use anyhow::Context;
use dwell_capture::{Recorder, Until};
use dwell_control::daemon::{Reading, Turn};
use dwell_knobs::change::Side;
use dwell_knobs::iothread;
use dwell_knobs::journal::Change;
use dwell_knobs::verification::{Figure, Unit, promised};
use dwell_machine::Writable;
use dwell_machine::threads::Thread;
use dwell_policy::{Layer, Owner};
use dwell_stats::Block;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The source of measurements.
pub(super) struct Sides {
    measured: Source,
    counters: Counters,
    promised: Figure,
    halt_cost_ns: f64,
    /// The longest window that a side allows \[ns\].
    longest_window_ns: [Option<u64>; 2],
    /// Blocks, and those of which the window of the other side did not go.
    blocks: u32,
    unsettled: u32,
    /// Whether the recording shows polls.
    shows_polls: bool,
    lost: u64,
}

enum Source {
    /// One for all blocks: to open one takes longer than a block.
    Recorder(Box<Recorder>),
    Thread {
        thread: Thread,
        socket: String,
    },
}

/// How often a block is measured again at most, because windows of the other side are still in it.
const AGAIN: u32 = 4;

impl Sides {
    pub(super) fn open(machine: &dyn Writable, change: &Change, work: &WorkArgs) -> anyhow::Result<Sides> {
        let owner = change.plan.owner;
        let measured = match (owner, &change.plan.iothread) {
            (Owner::Layer(Layer::Iothread), Some(target)) => {
                let mut monitor = iothread::connect(machine, &target.socket)?;
                let thread = iothread::find(&mut monitor, &target.id)?;
                let (pid, tid) = kernel_thread(&monitor, &thread, None)?;
                Source::Thread { thread: Thread::of(pid, tid), socket: target.socket.clone() }
            }
            (owner, _) => {
                let recorder = Recorder::open(target(owner), None);
                let mut recorder = recorder.context("cannot record; no value was switched")?;
                recorder.stay(true);
                Source::Recorder(Box::new(recorder))
            }
        };
        // A vCPU that halts is a switch of its host.
        let counters = Counters::new(work, matches!(owner, Owner::Layer(Layer::Guest | Layer::Driver)))?;
        Ok(Sides {
            measured,
            counters,
            promised: promised(&change.plan),
            halt_cost_ns: change.plan.conditions.halt_cost_ns as f64,
            longest_window_ns: [Side::Before, Side::After].map(|side| longest_window(change, side)),
            blocks: 0,
            unsettled: 0,
            shows_polls: false,
            lost: 0,
        })
    }

    /// What counts as work.
    pub(super) fn units(&self) -> Vec<Unit> {
        let own = match self.measured {
            Source::Thread { .. } => Unit::Request,
            Source::Recorder(_) => Unit::Wakeup,
        };
        self.counters.units().chain([own]).collect()
    }

    /// Of which figures the prediction can be compared with what is measured: of a thread, polling cannot be
    /// separated from work.
    pub(super) fn comparable(&self, figure: Figure) -> bool {
        match self.measured {
            Source::Thread { .. } => figure == Figure::Halts || figure == self.promised,
            Source::Recorder(_) => true,
        }
    }

    /// Records each side, as far as that was asked for.
    pub(super) fn record(
        &self,
        args: &RecordArgs,
        budget: Duration,
        stop: &AtomicBool,
        switch: &dyn Fn(Side) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let sides = [Side::Before, Side::After];
        match &self.measured {
            Source::Recorder(recorder) => {
                args.record(recorder.target(), budget, stop, |side| switch(sides[side]))
            }
            Source::Thread { .. } => args.refuse("an I/O thread is recorded by `dwell record thread`"),
        }
    }

    /// Measures for this time, when the windows of the other side have gone: a window that is longer than the values
    /// in force allow is from before they were written, and stays until some halts have shrunk it.
    pub(super) fn block(
        &mut self,
        machine: &dyn Writable,
        side: Side,
        length: Duration,
        stop: &AtomicBool,
    ) -> anyhow::Result<Block> {
        self.blocks += 1;
        for attempt in 0.. {
            let (block, stale) = match &mut self.measured {
                Source::Thread { thread, socket } => {
                    let (thread, socket) = (*thread, socket.clone());
                    (self.of_thread(machine, thread, &socket, length)?, false)
                }
                Source::Recorder(recorder) => {
                    let longest_ns = self.longest_window_ns[usize::from(side == Side::After)];
                    let until = Until { duration: Some(length), stop };
                    let watched = Watched::of(recorder, &self.counters, longest_ns, &until)?;
                    (self.recorded(&watched), watched.stale)
                }
            };
            if !stale {
                return Ok(block);
            }
            if attempt == AGAIN || stop.load(Ordering::Relaxed) {
                self.unsettled += 1;
                return Ok(block);
            }
        }
        unreachable!("a block is measured a few times at most")
    }

    fn recorded(&mut self, watched: &Watched) -> Block {
        let Watched { account, seconds, rates, lost, .. } = watched;
        self.lost = *lost;
        self.shows_polls |= account.polls > 0;
        let polled_ns = account.polled_ns as f64;
        let halts = account.halts_at_most() as f64;
        let wakeups = (Unit::Wakeup, account.episodes as f64 / seconds);
        self.with_work(
            [(polled_ns + halts * self.halt_cost_ns) / seconds, polled_ns / seconds, halts / seconds],
            rates.iter().copied().chain([wakeups]),
        )
    }

    /// All CPU time of a thread: polling and work cannot be separated from outside, and work cancels out in the
    /// difference.
    fn of_thread(
        &self,
        machine: &dyn Writable,
        thread: Thread,
        socket: &str,
        length: Duration,
    ) -> anyhow::Result<Block> {
        let read = || {
            // The monitor serves one client at a time, and a change is written through it too.
            let requests = iothread::requests(&mut iothread::connect(machine, socket)?, None)?;
            anyhow::Ok((Reading::of(thread, Some(requests))?, self.counters.read()?))
        };
        let (begin, counted) = read()?;
        std::thread::sleep(length);
        let (end, counted_then) = read()?;
        let Turn { seconds, cpu_ns, sleeps, requests } = end.since(&begin);
        let cost_ns = cpu_ns + sleeps * self.halt_cost_ns;
        Ok(self.with_work(
            [cost_ns / seconds, cpu_ns / seconds, sleeps / seconds],
            counted_then.rates_since(&counted).chain([(Unit::Request, requests / seconds)]),
        ))
    }

    /// A block of the figures, and of what is promised by unit of work.
    fn with_work(&self, figures: [f64; 3], rates: impl Iterator<Item = (Unit, f64)>) -> Block {
        let mut block = Block::default();
        let mut of_promised = f64::NAN;
        for (figure, value) in Figure::ALL.into_iter().zip(figures) {
            block = block.figure(figure.name(), value);
            if figure == self.promised {
                of_promised = value;
            }
        }
        rates.fold(block, |block, (unit, rate)| {
            // A rate of 0 is no work to divide by: not known.
            block.figure(unit.per_s(), rate).figure(unit.promised_per_unit(), of_promised / rate)
        })
    }

    /// Notes on the limits of the figures.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = vec![];
        match self.measured {
            Source::Thread { .. } => notes.push(
                "all CPU time of the thread was measured, including its work; compare only the difference with the \
                 prediction"
                    .to_owned(),
            ),
            Source::Recorder(_) if !self.shows_polls => {
                notes.push("the recording shows no polls: every episode counts as a halt".to_owned());
            }
            Source::Recorder(_) => {}
        }
        if self.unsettled > 0 {
            notes.push(format!(
                "in {} of {} blocks, idlers still polled for longer than the values in force allow: windows from \
                 before the switch were not gone after {AGAIN} more blocks; use a longer --settle",
                self.unsettled, self.blocks
            ));
        }
        if self.lost > 0 {
            notes.push(format!("{} events were lost: more was done than was counted", self.lost));
        }
        notes
    }
}

/// The longest window that a side of a change allows \[ns\]: its value where it was written, else the plan's.
fn longest_window(change: &Change, side: Side) -> Option<u64> {
    let name = match change.plan.owner {
        Owner::Layer(Layer::Guest) => "guest_halt_poll_ns",
        Owner::Layer(Layer::Host) => "halt_poll_ns",
        _ => return None,
    };
    let written = change.entries.iter().find(|entry| entry.knob.as_deref() == Some(name));
    let value = match written {
        Some(entry) => {
            let text = if side == Side::After { &entry.applied } else { &entry.original };
            text.as_ref()?.trim().parse().ok()?
        }
        None => change.plan.present.get(name)?,
    };
    u64::try_from(value).ok()
}
