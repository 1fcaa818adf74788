//! Replays causes: what a load that reacts does under another setting.
//!
//! [`replay`](crate::replay()) keeps the idle times of a recording. That is exact where wakeups come at their own times, and
//! wrong by a factor where they wait for this machine itself: a client and a server that wake each other do less
//! in a second when every wakeup is late, and idle for longer because of it.
//!
//! Here the segments of tasks keep their lengths and their causes, and the idle times follow. It is a simulation of
//! discrete events: each task has a list of [segments](dwell_recording::Segment), each CPU a queue in the order in
//! which tasks became runnable, and a CPU with an empty queue idles. The length of an idle time goes through the
//! rule of the layer, the same code as everywhere, which says whether the CPU polled or halted. The next segment starts
//! a latency later ([`Constants`]). As in a kernel, the rule is fed the time in the idle state, without
//! what the CPU takes to enter and to leave it ([`IdlePath`](dwell_recording::IdlePath)).
//!
//! # Limits
//! A task stays on its CPUs, and a queue is first come, first served: the scheduler's own reaction is not in the model.
//! What runs in interrupts has no time. The order of segments on a CPU is not kept; that of a task is.

mod advise;
mod constants;
mod delays;
mod estimates;
mod idling;
mod predict;
mod program;
mod queue;
mod space;
#[cfg(test)]
mod tests;

pub use advise::{AdviceByWork, RowByWork, STEPS, Task, advise, distinct, rows};
pub use constants::{Constants, External};
pub(crate) use estimates::halt_latency;
pub use estimates::{Calibrated, Estimate, Estimates};
pub use predict::{Judged, Other, OtherWork, Predictor, Range, Work};
pub use program::Program;
pub use space::{maximum, references, with_maximum};

use crate::counts::Counts;
use crate::idle_loop::IdleLoop;
use crate::priced::Figure;
use crate::rule::{Player, Rule, RuleError};
use crate::tune::Valuation;
use dwell_policy::{Layer, Nanos};
use idling::{Around, Idle, Path};
use program::Wakeup;
use queue::{Event, Queue};
use std::collections::VecDeque;
use std::ops::AddAssign;

/// What happened under a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Idle times that began within the time replayed, and what the rule did in them.
    pub counts: Counts,
    /// Segments that ended.
    pub segments: u64,
    /// Of those, the ones of the [leading](Program::leading) tasks: the unit of work.
    pub work: u64,
    /// Time on CPUs of the segments that ended, what halts added included \[ns\].
    pub busy_ns: u128,
    /// From polls of the host to segments: CPU time that is polled no more, and in no segment \[ns\].
    pub from_host_ns: u128,
    /// From the first event to the end of the time replayed \[ns\].
    pub span_ns: u64,
}

impl Outcome {
    /// Segments of the leading tasks a second; `None` where no time passed.
    pub fn work_per_s(&self) -> Option<f64> {
        (self.span_ns > 0).then(|| self.work as f64 * 1e9 / self.span_ns as f64)
    }

    /// CPU time of segments, and [cost](Outcome::cost_ns) of polls and halts, for a unit of work \[ns\].
    pub fn cpu_per_work(&self, halt_cost: Nanos) -> f64 {
        self.per_work((self.busy_ns + self.cost_ns(halt_cost)) as f64)
    }

    /// CPU time polled and, where the host polled, up to the segment, and halts at their cost \[ns\].
    pub fn cost_ns(&self, halt_cost: Nanos) -> u128 {
        self.from_host_ns + self.counts.cost_ns(halt_cost)
    }

    /// A figure of a unit of work under a goal: less is better.
    fn value(&self, of: Valuation) -> f64 {
        self.per_work(match of.goal.figure() {
            Figure::Cost => self.cost_ns(of.halt_cost) as f64,
            Figure::Halts | Figure::PollingCpu => of.of(&self.counts),
        })
    }

    /// A sum over the time replayed, for a unit of work.
    pub(crate) fn per_work(&self, sum: f64) -> f64 {
        sum / self.work.max(1) as f64
    }
}

impl AddAssign for Outcome {
    fn add_assign(&mut self, other: Outcome) {
        self.counts += other.counts;
        self.segments += other.segments;
        self.work += other.work;
        self.busy_ns += other.busy_ns;
        self.from_host_ns += other.from_host_ns;
        self.span_ns += other.span_ns;
    }
}

/// What the windows of a rule are at the start. A load that waits for itself may be able to run in halts or in polls under one
/// setting, and goes on with what it starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Those of a CPU that has not idled.
    Zero,
    /// The same, and every CPU has halted until its first segment, so that nothing at the beginning lets them grow.
    AfterHalts,
    /// As long as they get.
    Full,
}

impl Windows {
    /// Lets the windows of a layer's rule grow.
    fn prepare(self, player: &mut Player, rule: &Rule) {
        // Of a guest above its host, the windows of the one that polls first.
        let setting = match rule {
            Rule::Layer(setting) => setting,
            Rule::Stacked { guest, host, .. } => {
                if maximum(guest) > 0 {
                    guest
                } else {
                    host
                }
            }
            Rule::Policy(..) => return,
        };
        if self != Windows::Full || setting.layer() == Layer::Driver {
            return;
        }
        let max_ns = u64::try_from(maximum(setting)).unwrap_or(0);
        for step in 0..GROWS {
            // KVM's and QEMU's windows grow where an idle time is longer than they are and shorter than the maximum; haltpoll's
            // where what is left of it after the poll is. Ones this long never make it shrink.
            let idle_ns = match setting.layer() {
                Layer::Guest => max_ns.saturating_add(max_ns / 8 * u64::from(step % 8)),
                _ => max_ns.saturating_sub(1),
            };
            player.play_one(None, idle_ns, 0, u64::MAX);
        }
    }
}

/// A window has its maximum after so many steps, at the latest; haltpoll's at least 15 sixteenths of it.
const GROWS: u32 = 64;

/// What a CPU did in an idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idled {
    /// It polled until the wakeup.
    Polled,
    /// It halted, and its host polled for it until the wakeup.
    HostPolled,
    /// It halted, and its host, if it has one, ran something else.
    Halted,
}

impl Idled {
    /// Under a rule, of one idle time.
    fn under(counts: &Counts) -> Idled {
        match (counts.exits, counts.halts) {
            (0, _) => Idled::Polled,
            (_, 0) => Idled::HostPolled,
            _ => Idled::Halted,
        }
    }

    /// Whether its waker sends an interrupt.
    fn needs_interrupt(self) -> bool {
        self != Idled::Polled
    }

    /// As recorded: whether the CPU halted, and whether its host polled then.
    fn recorded(halted: Option<bool>, by_host: Option<bool>) -> Option<Idled> {
        match (halted, by_host) {
            (Some(false), _) => Some(Idled::Polled),
            (_, Some(true)) => Some(Idled::HostPolled),
            (Some(true), _) | (_, Some(false)) => Some(Idled::Halted),
            (None, None) => None,
        }
    }
}

/// How long after a wakeup a segment starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Latency {
    /// As long as in the recording, the time in queues included, whatever the rule does.
    Recorded,
    /// As the constants have it, after the queue of the CPU.
    Modelled,
}

impl Program {
    /// Replays under `rule`, up to the time when the first of the leading tasks has no segments left, or the recording
    /// ended: from then on the load is no longer the recorded one.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn replay(&self, rule: &Rule, windows: Windows) -> Result<Outcome, RuleError> {
        self.run(rule, windows, Latency::Modelled, Some(self.end_ns), |_, _, _| ())
    }

    /// What the CPU of each segment does right before it under `rule`, all idle times being those recorded; `None`
    /// where it does not idle. And what the rule does in them, as an open-loop replay has it.
    ///
    /// # Errors
    /// [`RuleError`] for versions and layers that cannot be replayed.
    pub fn as_recorded(&self, rule: &Rule) -> Result<(Vec<Option<Idled>>, Counts), RuleError> {
        let mut idled = vec![None; self.rows.len()];
        let outcome = self.run(rule, Windows::Zero, Latency::Recorded, None, |segment, _, before| {
            idled[segment as usize] = before
        })?;
        Ok((idled, outcome.counts))
    }

    /// Calls `see` for each segment that starts with its time, and what its CPU did before, if it idled.
    fn run(
        &self,
        rule: &Rule,
        windows: Windows,
        latency: Latency,
        until_ns: Option<u64>,
        see: impl FnMut(u32, u64, Option<Idled>),
    ) -> Result<Outcome, RuleError> {
        let mut player = rule.start_late(1)?;
        windows.prepare(&mut player, rule);
        let halted = windows == Windows::AfterHalts;
        Ok(Run::new(self, &player, latency, halted, see).to(until_ns))
    }
}

/// A CPU of the simulation.
struct Cpu {
    player: Player,
    idle_loop: IdleLoop,
    /// Runnable segments, the one that runs next first; a segment that runs is not in it.
    queue: VecDeque<u32>,
    /// The segment that runs, or will when the CPU is awake.
    running: Option<u32>,
    /// Where the segment's offsets count from \[ns\]: its start, and what it was held up since.
    origin_ns: u64,
    /// When the segment started \[ns\].
    begun_ns: u64,
    /// Whether the CPU halted before it.
    is_cold: bool,
    /// The next of the segment's wakeups, as an index into [`Program::wakeups`].
    next_wakeup: u32,
    /// Since when it idles \[ns\]; `None` before its first segment.
    idle_since_ns: Option<u64>,
    /// Since when it is busy \[ns\]: the last wakeup that ended an idle time.
    busy_since_ns: Option<u64>,
    /// Woken, though what woke it does not run yet.
    woken: bool,
    /// How often it has halted.
    halts: usize,
    /// The next of what holds up its segments, as an index into [`Program::delays`].
    next_delay: usize,
}

/// What of its two conditions a segment has: that the one before it of its task ended, and that it was woken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Neither,
    Ended,
    Woken,
}

struct Run<'a, S> {
    program: &'a Program,
    latency: Latency,
    /// Whether CPUs have halted until their first segments.
    halted: bool,
    see: S,
    cpus: Vec<Cpu>,
    halves: Vec<Half>,
    events: Queue,
    outcome: Outcome,
    leader_ended: bool,
}

impl<'a, S: FnMut(u32, u64, Option<Idled>)> Run<'a, S> {
    fn new(program: &'a Program, player: &Player, latency: Latency, halted: bool, see: S) -> Self {
        let cpu = |around: &Around| {
            let mut player = player.clone();
            let [poll_ns, halt_ns] = around.entry_ns;
            let idle_loop = IdleLoop::new(program.poll_step, Nanos(halt_ns.saturating_sub(poll_ns)));
            player.set_idle_loop(idle_loop);
            Cpu {
                player,
                idle_loop,
                queue: VecDeque::new(),
                running: None,
                origin_ns: 0,
                begun_ns: 0,
                is_cold: false,
                next_wakeup: 0,
                idle_since_ns: None,
                busy_since_ns: None,
                woken: false,
                halts: 0,
                next_delay: 0,
            }
        };
        let mut run = Run {
            program,
            latency,
            halted,
            see,
            cpus: program.around.iter().map(cpu).collect(),
            halves: vec![Half::Neither; program.rows.len()],
            events: Queue::default(),
            outcome: Outcome::default(),
            leader_ended: false,
        };
        for &first in &program.firsts {
            match program.rows[first as usize].arrival_ns() {
                Some(at_ns) => run.events.push(at_ns, Event::Arrival(first)),
                None => run.halves[first as usize] = Half::Ended,
            }
        }
        run
    }

    /// Runs up to `until_ns` or until a leading task has no segment left; where that is `None`, to the last event.
    fn to(mut self, until_ns: Option<u64>) -> Outcome {
        let mut now_ns = self.program.begin_ns;
        while let Some((at_ns, event)) = self.events.pop() {
            if until_ns.is_some_and(|until_ns| at_ns > until_ns || self.leader_ended) {
                break;
            }
            now_ns = at_ns;
            match event {
                Event::Step(cpu) => self.step(cpu, at_ns),
                Event::Arrival(segment) => {
                    self.ready(segment, at_ns, true);
                }
                Event::Wake(segment) => {
                    self.wake(segment, at_ns);
                }
                Event::Start(segment) => self.start_recorded(segment, at_ns),
            }
        }
        let end_ns = until_ns.filter(|_| !self.leader_ended).unwrap_or(now_ns);
        self.outcome.span_ns = end_ns.saturating_sub(self.program.begin_ns);
        self.outcome
    }

    /// The segment became runnable: by an interrupt, or by a task, which is held up for the time returned \[ns\].
    fn ready(&mut self, segment: u32, at_ns: u64, by_interrupt: bool) -> u64 {
        let row = &self.program.rows[segment as usize];
        let constants = &self.program.constants;
        let recorded = self.latency == Latency::Recorded;
        let cpu = &mut self.cpus[row.cpu as usize];
        let is_idle = cpu.running.is_none() && !cpu.woken;
        if !is_idle && !recorded {
            cpu.queue.push_back(segment);
            return 0;
        }
        let mut idled = None;
        let polls = cpu.player.polls();
        let path = if recorded {
            Path::of(row.idle, row.late_ns)
        } else {
            let around = self.program.around[row.cpu as usize];
            let gap_ns = cpu.idle_since_ns.map_or(u64::MAX, |since_ns| at_ns.saturating_sub(since_ns));
            let gaps_ns = [row.gap_ns, gap_ns];
            let idle =
                Idle { own: row.idle, late_ns: row.late_ns, gaps_ns, polls, by_interrupt, turn: cpu.halts };
            self.program.idling.path(constants, around, &idle)
        };
        let since_ns = cpu.idle_since_ns.map(|since_ns| since_ns.saturating_add(path.entry_ns));
        // An event before the idle state prevents its entry.
        if is_idle && let Some(since_ns) = since_ns.filter(|&since_ns| since_ns < at_ns) {
            let busy_ns = cpu.busy_since_ns.map(|began_ns| since_ns.saturating_sub(began_ns));
            let late_ns = path.halt_ns.saturating_sub(path.exit_ns + self.program.residency_shorter_ns);
            // The rule is given idle times as of a CPU that polls first.
            let entry_ns = if polls { 0 } else { cpu.idle_loop.halt_entry_ns().into() };
            let idle_ns = (at_ns - since_ns).saturating_add(entry_ns);
            let counts = cpu.player.play_one(busy_ns, idle_ns, late_ns, u64::MAX);
            self.outcome.counts += counts;
            idled = Some(Idled::under(&counts));
            cpu.halts += usize::from(counts.halts > 0);
            cpu.busy_since_ns = Some(at_ns);
        }
        if recorded {
            // Of several that are woken meanwhile, the first one to be woken has to do with the idle time.
            cpu.woken |= is_idle;
            (self.see)(segment, at_ns.saturating_add(row.late_ns), idled);
            self.events.push(at_ns.saturating_add(row.late_ns), Event::Start(segment));
            return 0;
        }
        let late_ns = match (since_ns, idled) {
            (None, _) if self.halted => path.halt_ns,
            (None, _) => 0,
            (Some(_), Some(Idled::Halted)) => path.halt_ns,
            (Some(_), Some(Idled::HostPolled)) => constants.after_host_poll,
            // The CPU has stopped the tick on its way to the halt, and restarts it.
            (Some(since_ns), None) if !polls => {
                let way_ns = since_ns.saturating_sub(at_ns).saturating_add(path.exit_ns);
                way_ns.max(constants.poll_ns(by_interrupt))
            }
            (Some(_), _) => constants.poll_ns(by_interrupt),
        };
        if idled == Some(Idled::HostPolled) {
            self.outcome.from_host_ns += u128::from(late_ns);
        }
        self.begin(segment, at_ns.saturating_add(late_ns), idled);
        if idled.is_some_and(Idled::needs_interrupt) && !by_interrupt { constants.ipi } else { 0 }
    }

    /// In a replay with the recorded latencies: the segment starts, or waits for the one before it to end.
    fn start_recorded(&mut self, segment: u32, at_ns: u64) {
        let row = &self.program.rows[segment as usize];
        let cpu = &mut self.cpus[row.cpu as usize];
        cpu.woken = false;
        if cpu.running.is_some() {
            cpu.queue.push_back(segment);
        } else {
            self.begin(segment, at_ns, None);
        }
    }

    fn begin(&mut self, segment: u32, at_ns: u64, idled: Option<Idled>) {
        let row = &self.program.rows[segment as usize];
        if self.latency == Latency::Modelled {
            (self.see)(segment, at_ns, idled);
        }
        let number = row.cpu;
        let cpu = &mut self.cpus[number as usize];
        cpu.running = Some(segment);
        cpu.begun_ns = at_ns;
        cpu.is_cold = idled == Some(Idled::Halted);
        let added_ns = self.program.constants.longer_segment.saturating_add(row.stolen_ns[0]);
        cpu.origin_ns = at_ns.saturating_add(if cpu.is_cold { added_ns } else { 0 });
        cpu.next_wakeup = row.wakeups.start;
        self.schedule(number);
    }

    /// The next thing that the segment on this CPU does.
    fn schedule(&mut self, number: u32) {
        let cpu = &mut self.cpus[number as usize];
        let Some(segment) = cpu.running else { return };
        let row = &self.program.rows[segment as usize];
        let offset_ns = match row.wakeups.contains(&cpu.next_wakeup) {
            true => self.program.wakeups[cpu.next_wakeup as usize].offset_ns,
            false => row.run_ns,
        };
        while let Some(delay) = self.program.delays[number as usize].get(cpu.next_delay) {
            if delay.at_ns > cpu.origin_ns.saturating_add(offset_ns) {
                break;
            }
            cpu.origin_ns = cpu.origin_ns.saturating_add(delay.rest_ns(cpu.begun_ns));
            cpu.next_delay += 1;
        }
        self.events.push(cpu.origin_ns.saturating_add(offset_ns), Event::Step(number));
    }

    fn step(&mut self, number: u32, at_ns: u64) {
        let cpu = &mut self.cpus[number as usize];
        let Some(segment) = cpu.running else { return };
        let row = &self.program.rows[segment as usize];
        if !row.wakeups.contains(&cpu.next_wakeup) {
            self.end(number, segment, at_ns);
            return;
        }
        let Wakeup { woken, later_ns, .. } = self.program.wakeups[cpu.next_wakeup as usize];
        if cpu.is_cold && cpu.next_wakeup == row.wakeups.start {
            cpu.origin_ns = cpu.origin_ns.saturating_add(row.stolen_ns[1]);
        }
        cpu.next_wakeup += 1;
        if later_ns > 0 {
            self.events.push(at_ns.saturating_add(later_ns), Event::Wake(woken));
        } else {
            let held_up_ns = self.wake(woken, at_ns);
            let cpu = &mut self.cpus[number as usize];
            cpu.origin_ns = cpu.origin_ns.saturating_add(held_up_ns);
        }
        self.schedule(number);
    }

    /// The segment is woken by a task, which is held up for the time returned \[ns\].
    fn wake(&mut self, woken: u32, at_ns: u64) -> u64 {
        if self.halves[woken as usize] == Half::Ended {
            return self.ready(woken, at_ns, false);
        }
        self.halves[woken as usize] = Half::Woken;
        0
    }

    fn end(&mut self, number: u32, segment: u32, at_ns: u64) {
        let row = &self.program.rows[segment as usize];
        self.outcome.segments += 1;
        self.outcome.work += u64::from(row.leads);
        let ran_ns = at_ns.saturating_sub(self.cpus[number as usize].begun_ns);
        self.outcome.busy_ns += u128::from(ran_ns);
        match row.next {
            Some(next) => self.after(next, at_ns),
            None => self.leader_ended |= row.leads,
        }
        let cpu = &mut self.cpus[number as usize];
        cpu.running = None;
        cpu.idle_since_ns = Some(at_ns);
        if let Some(next) = cpu.queue.pop_front() {
            self.begin(next, at_ns, None);
        }
    }

    /// The segment before this one of its task has ended.
    fn after(&mut self, segment: u32, at_ns: u64) {
        let row = &self.program.rows[segment as usize];
        match row.arrival_after(at_ns) {
            Some(arrival_ns) if arrival_ns > at_ns => {
                self.events.push(arrival_ns, Event::Arrival(segment));
            }
            Some(_) => {
                self.ready(segment, at_ns, true);
            }
            None if self.halves[segment as usize] == Half::Woken => {
                self.ready(segment, at_ns, true);
            }
            None => self.halves[segment as usize] = Half::Ended,
        }
    }
}
