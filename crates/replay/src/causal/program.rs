//! Segments as a program to replay: without what the recorded setting added to them.

use super::delays::Delay;
use super::idling::{Around, Idling};
use super::{Constants, External, Idled};
use dwell_policy::Nanos;
use dwell_recording::{Cause, IdlePath, Segments, Way};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// The tasks of a recording as programs, made once and replayed under any number of rules.
#[derive(Clone, Debug)]
pub struct Program {
    pub(super) rows: Vec<Row>,
    /// All wakeups by tasks, those of a segment together and in order.
    pub(super) wakeups: Vec<Wakeup>,
    /// The first segment of each task.
    pub(super) firsts: Vec<u32>,
    pub(super) cpus: u32,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    pub(super) constants: Constants,
    pub(super) poll_step: Nanos,
    pub(super) residency_shorter_ns: u64,
    pub(super) idling: Arc<Idling>,
    /// By CPU.
    pub(super) around: Vec<Around>,
    /// By CPU, in order of time.
    pub(super) delays: Vec<Vec<Delay>>,
    leading: Vec<u32>,
}

/// A segment.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) cpu: u32,
    /// Of a leading task.
    pub(super) leads: bool,
    pub(super) run_ns: u64,
    /// Whether its CPU halted before in the recording.
    pub(super) halted: bool,
    /// What the hypervisor gave to others while it ran, after a halt: up to its first wakeup of another, and from then on \[ns\].
    pub(super) stolen_ns: [u64; 2],
    /// From runnable to running in the recording \[ns\].
    pub(super) late_ns: u64,
    /// From the end of the last segment of its CPU to runnable in the recording \[ns\].
    pub(super) gap_ns: u64,
    /// How its CPU idled before in the recording.
    pub(super) idle: Option<IdlePath>,
    pub(super) wakeups: Range<u32>,
    /// The next one of its task.
    pub(super) next: Option<u32>,
    arrival: Arrival,
}

/// When a segment becomes runnable.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// When another task wakes it.
    Woken,
    /// At this time \[ns\].
    At(u64),
    /// So long after the one before it of its task has ended \[ns\]; the first one at the time in the second field.
    After(u64, u64),
}

impl Row {
    /// Of the first segment of a task.
    pub(super) const fn arrival_ns(&self) -> Option<u64> {
        match self.arrival {
            Arrival::Woken => None,
            Arrival::At(at_ns) | Arrival::After(_, at_ns) => Some(at_ns),
        }
    }

    /// Of any other segment, when the one before it ended at `end_ns`.
    pub(super) fn arrival_after(&self, end_ns: u64) -> Option<u64> {
        match self.arrival {
            Arrival::Woken => None,
            Arrival::At(at_ns) => Some(at_ns.max(end_ns)),
            Arrival::After(ns, _) => Some(end_ns.saturating_add(ns)),
        }
    }
}

/// A task that so large a share of interrupts and timers wakes is not held back by one of them once in a while.
const SELDOM: f64 = 0.1;

/// Which tasks have wakeups by interrupts and timers that come so long after their own segments: those that hardly have
/// any, and those where it shows.
///
/// It shows by the variances of what passes between two such wakeups. Of that is x up to the end of the task's last segment,
/// and g from there on. Where g is the same whatever x is, their sum varies by both; where the wakeup has its own time, g makes
/// up for x and the sum varies less. Only where g itself varies much less than its mean: wakeups that are
/// exponentially far apart have no memory, and come so long after anything.
fn relative_tasks(segments: &Segments) -> Vec<bool> {
    const FEWEST: usize = 40;
    let tasks = segments.tasks.len();
    let mut external = vec![vec![]; tasks];
    let mut coupled = vec![0usize; tasks];
    let mut before: Vec<[Option<u64>; 2]> = vec![[None; 2]; tasks];
    for row in &segments.rows {
        let [ended_ns, woken_before_ns] = &mut before[row.task as usize];
        match row.cause {
            Cause::Task { .. } => coupled[row.task as usize] += 1,
            Cause::Timer { woken_ns } | Cause::Interrupt { woken_ns } => {
                if let (Some(ended_ns), Some(before_ns)) = (*ended_ns, *woken_before_ns) {
                    let x = ended_ns.saturating_sub(before_ns) as f64;
                    external[row.task as usize].push((x, woken_ns.saturating_sub(ended_ns) as f64));
                }
                *woken_before_ns = Some(woken_ns);
            }
            Cause::Preempted | Cause::Unknown => {}
        }
        *ended_ns = Some(row.end_ns());
    }
    let shows = |pairs: &mut Vec<(f64, f64)>| {
        // Without the longest twentieth of either: one pause of a second would be all that is seen.
        for of in [|pair: &(f64, f64)| pair.0, |pair: &(f64, f64)| pair.1] {
            pairs.sort_by(|a, b| of(a).total_cmp(&of(b)));
            pairs.truncate(pairs.len() - pairs.len() / 20);
        }
        let n = pairs.len() as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>() / n;
        let (x, g) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
        let (xx, gg) = (mean(&|pair| (pair.0 - x).powi(2)), mean(&|pair| (pair.1 - g).powi(2)));
        // By how much g falls where x rises by 1: 0 of relative ones, 1 of absolute ones.
        let falls = -mean(&|pair| (pair.0 - x) * (pair.1 - g)) / xx.max(1.0);
        let uncertain = 2.0 * (gg / xx.max(1.0) / n).sqrt();
        pairs.len() >= FEWEST && gg.sqrt() < 0.5 * g && falls.abs() + uncertain < 0.5
    };
    let is_relative = |(pairs, coupled): (&mut Vec<(f64, f64)>, &usize)| {
        let externals = pairs.len() as f64;
        externals < SELDOM * (externals + *coupled as f64) || shows(pairs)
    };
    external.iter_mut().zip(&coupled).map(is_relative).collect()
}

/// A segment wakes the task of another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wakeup {
    pub(super) offset_ns: u64,
    /// How long after its end, where the task has only caused that something else wakes \[ns\].
    pub(super) later_ns: u64,
    pub(super) woken: u32,
}

/// A task with fewer segments than this share of the busiest one's does not lead.
const LEADS: f64 = 0.1;
/// Nor does a task without a segment in the last of so many equal parts of the time: a replay ends where the first of the
/// leading tasks has none left.
const PARTS: u64 = 10;

impl Program {
    /// The segments as recorded.
    pub fn new(segments: &Segments, external: External) -> Program {
        Program::without(segments, external, Constants::default(), &[])
    }

    /// The same with idle times and halts as these segments' recording has them, in place of the constants. A rule compares each
    /// length with a limit: with a median latency of 18 us no idle time of 8 us stays within 20 us, though one latency in a
    /// hundred is that short, after which a window has grown and every later poll succeeds.
    #[must_use]
    pub fn with_idling(self, segments: &Segments, idling: &Arc<Idling>) -> Program {
        let mut around = vec![Around::default(); self.around.len()];
        for (row, segment) in self.rows.iter().zip(&segments.rows) {
            around[row.cpu as usize] = idling.around(segment.cpu);
        }
        Program { idling: Arc::clone(idling), around, ..self }
    }

    /// The segments without what halts added to them: `idled` has for each what its CPU did right before it
    /// ([`Program::as_recorded`]). Whether it halted is that of the segment itself, where it has it.
    pub fn without(
        segments: &Segments,
        external: External,
        constants: Constants,
        idled: &[Option<Idled>],
    ) -> Program {
        let rows = &segments.rows;
        let before = |row: usize| {
            let idled = idled.get(row).copied().flatten();
            let by_host = (idled == Some(Idled::HostPolled)).then_some(true);
            rows[row].halted.and_then(|halted| Idled::recorded(Some(halted), by_host)).or(idled)
        };
        let before: Vec<Option<Idled>> = (0..rows.len()).map(before).collect();
        let mut cpus = HashMap::new();
        let mut last: Vec<Option<u32>> = vec![None; segments.tasks.len()];
        let mut left_ns: BTreeMap<u32, u64> = BTreeMap::new();
        let begin_ns = rows.iter().map(|row| row.start_ns).min().unwrap_or(0);
        // Up to the start of the last one: a task that never waits may have run far beyond the rows of a part.
        let end_ns = rows.iter().map(|row| row.start_ns).max().unwrap_or(0);
        let last_part_ns = end_ns - (end_ns - begin_ns) / PARTS;
        // How many segments a task has, and when the last of them ended.
        let mut of_task = vec![(0u64, 0u64); segments.tasks.len()];
        for row in rows {
            let (count, ended_ns) = &mut of_task[row.task as usize];
            (*count, *ended_ns) = (*count + 1, row.end_ns().max(*ended_ns));
        }
        let most = of_task.iter().map(|(count, _)| *count).max().unwrap_or(0) as f64;
        let leads = |task: usize| {
            let (count, ended_ns) = of_task[task];
            let is_recorder = u32::try_from(task).is_ok_and(|task| segments.is_recorder(task));
            !is_recorder && count > 0 && count as f64 >= LEADS * most && ended_ns >= last_part_ns
        };
        let is_helper = |waker: u32| {
            let by = &rows[waker as usize];
            let is_woken = matches!(by.cause, Cause::Task { .. } | Cause::Preempted);
            external.is_by_task() && !is_woken && !leads(by.task as usize)
        };
        let mut program = Program {
            rows: Vec::with_capacity(rows.len()),
            wakeups: vec![],
            firsts: vec![],
            cpus: 0,
            begin_ns,
            end_ns,
            constants,
            poll_step: Nanos(segments.poll_step_ns),
            residency_shorter_ns: segments.residency_shorter_ns,
            idling: Arc::default(),
            around: vec![],
            delays: vec![],
            leading: vec![],
        };
        let relative = if external.is_by_task() { relative_tasks(segments) } else { vec![] };
        let is_relative = |task: u32| match external {
            External::Absolute => false,
            External::Relative | External::ByTaskElseRelative => true,
            External::ByTask => relative[task as usize],
        };
        let mut wakeups: Vec<(u32, Wakeup)> = vec![];
        for (number, (row, &idled)) in (0u32..).zip(rows.iter().zip(&before)) {
            let count = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
            let cpu = *cpus.entry(row.cpu).or_insert(count);
            let before = last[row.task as usize].replace(number);
            let ended_ns = before.map(|before| rows[before as usize].end_ns());
            match before {
                Some(before) => program.rows[before as usize].next = Some(number),
                None => program.firsts.push(number),
            }
            let hidden_ns = if idled == Some(Idled::Halted) { constants.hidden } else { 0 };
            let woken_ns = segments.woken_ns(row).map(|woken_ns| woken_ns.min(row.start_ns));
            // What another task woke before this one had gone to sleep never slept.
            let ready_ns = woken_ns.or(ended_ns.filter(|_| row.cause == Cause::Preempted));
            let ready_ns = ready_ns.unwrap_or(row.start_ns).max(ended_ns.unwrap_or(0));
            // A CPU that has idled was in its idle state when the waking reached it, however long that had taken.
            let left_ns = left_ns.insert(row.cpu, row.end_ns());
            let idled_ns =
                left_ns.zip(row.idle).map_or(0, |(left_ns, path)| left_ns + u64::from(path.entry_ns) + 1);
            let idled_ns = idled_ns.min(row.start_ns);
            let woken_ns = woken_ns.map(|woken_ns| woken_ns.max(idled_ns));
            let ready_ns = ready_ns.max(idled_ns);
            let arrival = match (row.cause, ended_ns) {
                (Cause::Task { waker, offset_ns }, _) if waker < number && !is_helper(waker) => {
                    let offset_ns = offset_ns.max(idled_ns.saturating_sub(rows[waker as usize].start_ns));
                    wakeups.push((waker, Wakeup { offset_ns, later_ns: 0, woken: number }));
                    Arrival::Woken
                }
                (Cause::Preempted, Some(_)) => Arrival::After(0, ready_ns),
                (
                    Cause::Timer { .. } | Cause::Interrupt { .. } | Cause::Task { .. } | Cause::Unknown,
                    Some(ended_ns),
                ) if is_relative(row.task) => {
                    let ns = (ready_ns - ended_ns).saturating_sub(hidden_ns);
                    Arrival::After(ns, ready_ns)
                }
                (Cause::Timer { .. } | Cause::Interrupt { .. }, _) => {
                    Arrival::At(woken_ns.unwrap_or(ready_ns).saturating_sub(hidden_ns))
                }
                _ => Arrival::At(ready_ns),
            };
            program.rows.push(Row {
                cpu,
                leads: false,
                run_ns: row.run_ns,
                halted: idled == Some(Idled::Halted),
                stolen_ns: [0; 2],
                late_ns: row.start_ns.saturating_sub(ready_ns),
                gap_ns: ready_ns.saturating_sub(left_ns.unwrap_or(0)),
                // What ended a poll of the host says nothing of a halt.
                idle: match row.idle {
                    Some(path) if idled == Some(Idled::HostPolled) => {
                        (path.way != Way::Halted).then_some(IdlePath { way: Way::Polled, ..path })
                    }
                    idle => idle,
                },
                wakeups: 0..0,
                next: None,
                arrival,
            });
        }
        program.cpus = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
        program.around = vec![Around::default(); cpus.len()];
        program.delays = vec![vec![]; cpus.len()];
        program.take_off(wakeups, &before, rows.iter().map(|row| row.cpu).collect());
        program.leading = (0u32..).take(segments.tasks.len()).filter(|task| leads(*task as usize)).collect();
        for (row, segment) in program.rows.iter_mut().zip(rows) {
            row.leads = program.leading.binary_search(&segment.task).is_ok();
        }
        program
    }

    /// The tasks with the most segments: a segment of theirs is the unit of work.
    pub fn leading(&self) -> &[u32] {
        &self.leading
    }

    /// How many segments of leading tasks ended in the recording up to when the first of those tasks has its last, and in
    /// what time \[ns\]: as [`Program::replay`] counts.
    pub(super) fn recorded_work(&self, segments: &Segments) -> (u64, u64) {
        let ends = segments.rows.iter().zip(&self.rows).filter(|(_, row)| row.leads);
        let last = ends.clone().filter(|(_, row)| row.next.is_none()).map(|(row, _)| row.end_ns()).min();
        let until_ns = last.unwrap_or(self.end_ns);
        let work = ends.filter(|(row, _)| row.end_ns() <= until_ns).count() as u64;
        (work, until_ns.saturating_sub(self.begin_ns))
    }

    /// Takes off the segments what halts added: to the first one after a halt, and to the waker that ended it.
    fn take_off(&mut self, mut wakeups: Vec<(u32, Wakeup)>, before: &[Option<Idled>], cpus: Vec<u32>) {
        wakeups.sort_by_key(|(waker, wakeup)| (*waker, wakeup.offset_ns, wakeup.woken));
        let mut all = wakeups.into_iter().peekable();
        for (number, row) in (0u32..).zip(&mut self.rows) {
            let is_cold = before[number as usize] == Some(Idled::Halted);
            let mut added_ns = if is_cold { self.constants.longer_segment } else { 0 };
            let begin = u32::try_from(self.wakeups.len()).unwrap_or(u32::MAX);
            while let Some((_, wakeup)) = all.next_if(|(waker, _)| *waker == number) {
                let offset_ns = wakeup.offset_ns.saturating_sub(added_ns);
                let later_ns = wakeup.offset_ns.saturating_sub(row.run_ns);
                let is_other_cpu = cpus[wakeup.woken as usize] != cpus[number as usize];
                let slept = before[wakeup.woken as usize].is_some_and(Idled::needs_interrupt);
                let paid = slept && is_other_cpu && later_ns == 0;
                added_ns = added_ns.saturating_add(if paid { self.constants.ipi } else { 0 });
                self.wakeups.push(Wakeup { offset_ns, later_ns, ..wakeup });
            }
            let end = u32::try_from(self.wakeups.len()).unwrap_or(u32::MAX);
            row.run_ns = row.run_ns.saturating_sub(added_ns);
            row.wakeups = begin..end;
            for wakeup in &mut self.wakeups[begin as usize..end as usize] {
                wakeup.offset_ns = wakeup.offset_ns.min(row.run_ns);
            }
        }
    }
}
