//! Events into segments of tasks and what woke them.
//!
//! A segment begins where a task is switched in, and ends where it is switched out (`sched:sched_switch`); what woke
//! its task (`sched:sched_waking`) happened before. The waker is the task on the CPU of the waking, unless
//! that CPU idles or has just taken an interrupt ([`IN_INTERRUPT_NS`]): most sources do not have whether an event is of
//! a task or of an interrupt above it. An interrupt from another CPU counts only where the CPU idles: what that CPU woke
//! it has woken itself.
//!
//! The switches of some tasks may have no events, as those of the idle task of some CPUs have none for perf. Where
//! an event is of another task than the one that was switched in last, a switch in between was not seen: the end of the
//! one is not known, and the other is taken to have begun with the event before on this CPU, or its waking or the last
//! segment of another CPU if that was later.

use crate::event::{Event, EventKind, Interrupt};
use crate::pairing::{ByNumber, Names};
use dwell_recording::{Cause, MOST_SEGMENTS, Segment, Segments};
use serde_json::Value;
use std::collections::BTreeMap;

/// A waking so soon after an interrupt on its CPU is the interrupt's \[ns\]. A handler that wakes a task does so within
/// a few microseconds; a task is interrupted right before its own waking seldom: at 250 ticks a second, in 0.25 % of the
/// time.
pub const IN_INTERRUPT_NS: u64 = 10_000;

/// The key of a recording's metadata with the number of segments that were left out: from when there are too many.
const LEFT_OUT: &str = "segments_left_out";

/// A segment that has begun.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    pub(crate) start_ns: u64,
    cause: Cause,
    halted: Option<bool>,
    /// The number that it will have.
    pub(crate) number: u32,
}

#[derive(Default)]
struct Cpu {
    /// The task that runs.
    running: Option<(i32, Running)>,
    /// The last one since the last switch.
    interrupt: Option<(u64, Interrupt)>,
    /// The idle state that was entered last, since the last switch.
    state: Option<u32>,
    /// When its last event was \[ns\].
    seen_ns: u64,
}

/// Segments in the order in which they began, which is that of their numbers; those that run are not yet there.
#[derive(Default)]
pub(crate) struct Rows {
    rows: Vec<Option<Segment>>,
    left_out: u64,
}

impl Rows {
    /// A segment begins; `None` where there are too many.
    pub(crate) fn begin(&mut self, start_ns: u64, cause: Cause, halted: Option<bool>) -> Option<Running> {
        if self.rows.len() >= MOST_SEGMENTS {
            self.left_out += 1;
            return None;
        }
        let number = u32::try_from(self.rows.len()).ok()?;
        self.rows.push(None);
        Some(Running { start_ns, cause, halted, number })
    }

    /// The segment of this task, on this CPU, is over.
    pub(crate) fn end(&mut self, running: Running, (task, cpu): (u32, u32), end_ns: u64) {
        let Running { start_ns, cause, halted, number } = running;
        let run_ns = end_ns.saturating_sub(start_ns);
        if let Some(row) = self.rows.get_mut(number as usize) {
            *row = Some(Segment { task, cpu, start_ns, run_ns, cause, halted, idle: None });
        }
    }

    /// Those whose end was seen, with wakers by their new numbers. Of those that still run, the ones that woke another are there,
    /// up to the last that they woke: one that never waits may wake all others. `place` is the task and the CPU of such a one.
    pub(crate) fn finish<P>(
        &mut self,
        running: impl IntoIterator<Item = (Running, P)>,
        mut place: impl FnMut(P) -> (u32, u32),
    ) -> Vec<Segment> {
        let mut woke = ByNumber::<u32, u64>::default();
        for row in self.rows.iter().flatten() {
            if let Cause::Task { waker, offset_ns } = row.cause {
                let last_ns = woke.entry(waker).or_default();
                *last_ns = offset_ns.max(*last_ns);
            }
        }
        for (running, of) in running {
            if let Some(offset_ns) = woke.get(&running.number) {
                self.end(running, place(of), running.start_ns.saturating_add(*offset_ns));
            }
        }
        let mut new_number = vec![None; self.rows.len()];
        let mut rows: Vec<Segment> = vec![];
        for (number, row) in std::mem::take(&mut self.rows).into_iter().enumerate() {
            let Some(mut row) = row else { continue };
            if let Cause::Task { waker, offset_ns } = row.cause {
                row.cause = match new_number.get(waker as usize).copied().flatten() {
                    Some(waker) => Cause::Task { waker, offset_ns },
                    None => Cause::Unknown,
                };
            }
            new_number[number] = u32::try_from(rows.len()).ok();
            rows.push(row);
        }
        rows
    }

    /// Notes how many were left out.
    pub(crate) fn note(&self, notes: &mut BTreeMap<String, Value>) {
        if self.left_out > 0 {
            notes.insert(LEFT_OUT.to_owned(), self.left_out.into());
        }
    }
}

/// Makes segments out of events that come in order of time.
#[derive(Default)]
pub(crate) struct SegmentPairing {
    polling_state: Option<u32>,
    names_of: Box<dyn Names>,
    cpus: ByNumber<u32, Cpu>,
    /// What woke a task that does not run yet, and when \[ns\].
    woken: ByNumber<i32, (Cause, u64)>,
    /// Tasks that were switched out while runnable.
    preempted: ByNumber<i32, ()>,
    tasks: ByNumber<i32, u32>,
    /// The number of each task, and its name where it was known when its first segment ended: it may be gone later.
    names: Vec<(i32, Option<String>)>,
    pub(crate) rows: Rows,
    /// When the last one began \[ns\].
    started_ns: u64,
}

impl SegmentPairing {
    pub(crate) fn new(polling_state: Option<u32>, names_of: Box<dyn Names>) -> SegmentPairing {
        SegmentPairing { polling_state, names_of, ..SegmentPairing::default() }
    }

    pub(crate) fn observe(&mut self, event: &Event) {
        self.observe_kind(event);
        self.cpus.entry(event.cpu).or_default().seen_ns = event.time_ns;
    }

    fn observe_kind(&mut self, event: &Event) {
        match event.kind {
            EventKind::Switch { prev, prev_runnable, next } => {
                self.correct(event.cpu, prev);
                self.out(event.cpu, prev, event.time_ns, prev_runnable == Some(true));
                let cpu = self.cpus.entry(event.cpu).or_default();
                cpu.interrupt = None;
                let state = cpu.state.take();
                let halted = match prev {
                    0 => state.map(|state| Some(state) != self.polling_state),
                    _ => Some(false),
                };
                if next > 0 {
                    self.switched_in(event.cpu, next, event.time_ns, halted);
                }
            }
            EventKind::CpuIdle { cpu, state: Some(state) } => {
                self.cpus.entry(cpu).or_default().state = Some(state);
            }
            EventKind::Waking { woken, .. } => {
                self.correct(event.cpu, event.tid);
                self.running_since_before(event);
                self.waking(woken, event);
            }
            EventKind::Interrupt(kind) => {
                self.cpus.entry(event.cpu).or_default().interrupt = Some((event.time_ns, kind));
            }
            EventKind::Lost { cpu, .. } => self.lost(cpu),
            EventKind::Gap { cpu, .. } => self.lost(Some(cpu)),
            _ => {}
        }
    }

    /// The task `tid` runs on `cpu`, whatever was switched in last.
    fn correct(&mut self, cpu: u32, tid: i32) {
        let state = self.cpus.entry(cpu).or_default();
        if tid <= 0 || state.running.is_none_or(|(runs, _)| runs == tid) {
            return;
        }
        let seen_ns = state.seen_ns;
        (state.running, state.interrupt, state.state) = (None, None, None);
        self.unseen_in(cpu, tid, seen_ns);
    }

    /// A task was switched in without an event, not before `seen_ns`.
    fn unseen_in(&mut self, cpu: u32, tid: i32, seen_ns: u64) {
        let woken_ns = self.woken.get(&tid).map_or(0, |(_, woken_ns)| *woken_ns);
        // Segments are in order of their start.
        self.switched_in(cpu, tid, seen_ns.max(woken_ns).max(self.started_ns), None);
    }

    /// A task whose switch was not recorded wakes another one; it may be one that never waits. It has run since the last event of
    /// its CPU at least.
    fn running_since_before(&mut self, event: &Event) {
        let cpu = self.cpus.entry(event.cpu).or_default();
        if event.tid > 0 && cpu.running.is_none() {
            let seen_ns = if cpu.seen_ns > 0 { cpu.seen_ns } else { event.time_ns };
            self.unseen_in(event.cpu, event.tid, seen_ns);
        }
    }

    fn waking(&mut self, woken: i32, event: &Event) {
        let cpu = self.cpus.entry(event.cpu).or_default();
        let recent =
            cpu.interrupt.filter(|(at_ns, _)| event.time_ns.saturating_sub(*at_ns) <= IN_INTERRUPT_NS);
        let woken_ns = event.time_ns;
        let cause = match (cpu.running, recent) {
            (Some((_, running)), None | Some((_, Interrupt::Ipi))) => {
                Cause::Task { waker: running.number, offset_ns: woken_ns.saturating_sub(running.start_ns) }
            }
            (_, Some((_, Interrupt::Timer))) => Cause::Timer { woken_ns },
            _ => Cause::Interrupt { woken_ns },
        };
        self.woken.insert(woken, (cause, woken_ns));
    }

    fn out(&mut self, cpu: u32, tid: i32, at_ns: u64, is_runnable: bool) {
        let running = self.cpus.entry(cpu).or_default().running.take();
        let Some((_, running)) = running.filter(|(runs, _)| *runs == tid) else { return };
        if is_runnable {
            self.preempted.insert(tid, ());
        }
        let task = self.task(tid);
        self.rows.end(running, (task, cpu), at_ns);
    }

    /// The number of a task.
    fn task(&mut self, tid: i32) -> u32 {
        let count = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        *self.tasks.entry(tid).or_insert_with(|| {
            self.names.push((tid, self.names_of.thread(Event::UNKNOWN_ID, tid)));
            count
        })
    }

    fn switched_in(&mut self, cpu: u32, tid: i32, at_ns: u64, halted: Option<bool>) {
        let woken = self.woken.remove(&tid);
        let cause = match self.preempted.remove(&tid) {
            Some(()) => Cause::Preempted,
            None => woken.map_or(Cause::Unknown, |(cause, _)| cause),
        };
        self.started_ns = at_ns;
        let Some(running) = self.rows.begin(at_ns, cause, halted) else { return };
        self.cpus.entry(cpu).or_default().running = Some((tid, running));
    }

    /// What runs on the CPU, and what was woken, is not known from here on.
    fn lost(&mut self, cpu: Option<u32>) {
        for (number, state) in &mut self.cpus {
            if cpu.is_none_or(|cpu| cpu == *number) {
                state.running = None;
            }
        }
        self.woken.clear();
        self.preempted.clear();
    }

    /// The segments whose end was seen, and [wakers](Rows::finish) that still run. Later events are of a new pairing.
    pub(crate) fn finish(&mut self) -> Segments {
        let running: Vec<_> = self
            .cpus
            .iter()
            .filter_map(|(cpu, state)| state.running.map(|(tid, of)| (of, (tid, *cpu))))
            .collect();
        let rows = std::mem::take(&mut self.rows).finish(running, |(tid, cpu)| (self.task(tid), cpu));
        let mut tasks = vec![];
        for (tid, known) in std::mem::take(&mut self.names) {
            let name = known.or_else(|| self.names_of.thread(Event::UNKNOWN_ID, tid));
            tasks.push(name.map_or_else(|| tid.to_string(), |name| format!("{name}/{tid}")));
        }
        *self = SegmentPairing::new(self.polling_state, std::mem::take(&mut self.names_of));
        Segments { tasks, rows, ..Segments::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time_ns: u64, cpu: u32, tid: i32, kind: EventKind) -> Event {
        Event { time_ns, cpu, pid: tid, tid, kind }
    }

    fn switch(time_ns: u64, cpu: u32, prev: i32, next: i32, runnable: bool) -> Event {
        event(time_ns, cpu, prev, EventKind::Switch { prev, prev_runnable: Some(runnable), next })
    }

    fn waking(time_ns: u64, cpu: u32, tid: i32, woken: i32) -> Event {
        event(time_ns, cpu, tid, EventKind::Waking { woken, target: 0 })
    }

    struct Unnamed;
    impl Names for Unnamed {
        fn process(&mut self, _: i32) -> Option<String> {
            None
        }
        fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
            (tid == 7).then(|| "redis".to_owned())
        }
    }

    fn causes(events: &[Event]) -> Vec<(u32, u64, u64, Cause)> {
        let mut pairing = SegmentPairing::new(Some(0), Box::new(Unnamed));
        events.iter().for_each(|event| pairing.observe(event));
        let segments = pairing.finish();
        segments.rows.iter().map(|row| (row.task, row.start_ns, row.run_ns, row.cause)).collect()
    }

    /// It runs since before the recording, or since events were lost.
    #[test]
    fn a_task_that_was_not_seen_to_begin_wakes_another() {
        let ipi = EventKind::Interrupt(Interrupt::Ipi);
        for before in [None, Some(event(4_999_500, 1, 9, ipi))] {
            let mut events = vec![switch(1_000, 0, 0, 7, false), waking(3_000, 0, 7, 8)];
            events.extend(before);
            events.extend([
                waking(5_000_000, 1, 9, 8),
                switch(5_010_000, 2, 0, 8, false),
                switch(5_020_000, 2, 8, 0, false),
            ]);
            let offset_ns = before.map_or(0, |before| 5_000_000 - before.time_ns);
            let by_it = Cause::Task { waker: 0, offset_ns };
            let expected =
                [(1, 5_000_000 - offset_ns, offset_ns, Cause::Unknown), (0, 5_010_000, 10_000, by_it)];
            assert_eq!(causes(&events), expected);
        }
    }

    #[test]
    fn each_segment_has_what_woke_its_task() {
        let timer = EventKind::Interrupt(Interrupt::Timer);
        let found = causes(&[
            switch(1_000, 0, 0, 7, false),
            waking(3_000, 0, 7, 8),
            switch(5_000, 1, 0, 8, false),
            switch(6_000, 0, 7, 0, false),
            waking(9_000, 1, 8, 7),
            switch(10_000, 0, 0, 7, false),
            switch(12_000, 1, 8, 9, true),
            switch(13_000, 1, 9, 8, false),
            switch(14_000, 1, 8, 0, false),
            event(50_000, 1, 0, timer),
            waking(50_500, 1, 0, 8),
            switch(51_000, 1, 0, 8, false),
            switch(52_000, 1, 8, 0, false),
            switch(60_000, 0, 7, 0, false),
        ]);
        assert_eq!(
            found,
            [
                (0, 1_000, 5_000, Cause::Unknown),
                (1, 5_000, 7_000, Cause::Task { waker: 0, offset_ns: 2_000 }),
                (0, 10_000, 50_000, Cause::Task { waker: 1, offset_ns: 4_000 }),
                (2, 12_000, 1_000, Cause::Unknown),
                (1, 13_000, 1_000, Cause::Preempted),
                (1, 51_000, 1_000, Cause::Timer { woken_ns: 50_500 }),
            ]
        );
    }

    /// Task 7 never waits; task 9 does not either, and wakes nothing.
    #[test]
    fn a_waker_that_still_runs_at_the_end_is_one() {
        let mut events = vec![switch(1_000, 0, 0, 7, false), switch(1_500, 2, 0, 9, false)];
        for begun_ns in [5_000, 9_000] {
            events.push(waking(begun_ns - 1_000, 0, 7, 8));
            events.push(switch(begun_ns, 1, 0, 8, false));
            events.push(switch(begun_ns + 2_000, 1, 8, 0, false));
        }
        let by_7 = |offset_ns| Cause::Task { waker: 0, offset_ns };
        assert_eq!(
            causes(&events),
            [
                (1, 1_000, 7_000, Cause::Unknown),
                (0, 5_000, 2_000, by_7(3_000)),
                (0, 9_000, 2_000, by_7(7_000)),
            ]
        );
    }

    #[test]
    fn a_waking_in_an_interrupt_is_not_by_the_task_below_it() {
        let disk = EventKind::Interrupt(Interrupt::Device);
        let found = causes(&[
            switch(1_000, 0, 0, 7, false),
            event(30_000, 0, 7, disk),
            waking(31_000, 0, 7, 8),
            waking(30_001 + IN_INTERRUPT_NS, 0, 7, 9),
            switch(45_000, 1, 0, 8, false),
            switch(46_000, 1, 8, 9, false),
            switch(47_000, 1, 9, 0, false),
            switch(48_000, 0, 7, 0, false),
        ]);
        let causes: Vec<Cause> = found.iter().map(|found| found.3).collect();
        let by_task = Cause::Task { waker: 0, offset_ns: 29_001 + IN_INTERRUPT_NS };
        assert_eq!(causes, [Cause::Unknown, Cause::Interrupt { woken_ns: 31_000 }, by_task]);
    }

    /// The task 9 emits no switch.
    #[test]
    fn a_switch_without_an_event_is_found_by_the_next_event() {
        let found = causes(&[
            switch(1_000, 0, 0, 7, false),
            switch(2_000, 1, 0, 9, false),
            waking(3_000, 0, 7, 8),
            waking(6_000, 1, 8, 7),
            switch(7_000, 0, 7, 0, false),
            switch(8_000, 1, 8, 0, false),
            switch(9_000, 0, 0, 7, false),
            switch(10_000, 0, 7, 0, false),
        ]);
        assert_eq!(
            found,
            [
                (0, 1_000, 6_000, Cause::Unknown),
                (1, 3_000, 5_000, Cause::Task { waker: 0, offset_ns: 2_000 }),
                (0, 9_000, 1_000, Cause::Task { waker: 1, offset_ns: 3_000 }),
            ]
        );
    }

    #[test]
    fn after_a_loss_nothing_of_before_is_a_cause() {
        let found = causes(&[
            switch(1_000, 0, 0, 7, false),
            waking(2_000, 0, 7, 8),
            event(2_500, 0, 0, EventKind::Lost { cpu: Some(0), count: 1 }),
            switch(3_000, 1, 0, 8, false),
            switch(4_000, 1, 8, 0, false),
            switch(5_000, 0, 7, 0, false),
        ]);
        assert_eq!(found, [(0, 3_000, 1_000, Cause::Unknown)]);
    }
}
