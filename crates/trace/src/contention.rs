//! Which tasks are runnable on a CPU, and since when a vCPU's CPU has others than its own.
//!
//! KVM polls while its thread is the only runnable task of the CPU (`single_task_running()`). How many there are is not
//! traced, but every change is: a task becomes runnable on a CPU with `sched_wakeup` or `sched_wakeup_new`, moves with
//! `sched_migrate_task`, and ceases to be runnable with the `sched_switch` that takes it off a CPU in any
//! state but R. A task that a switch shows in state R, or puts on a CPU, is runnable there.
//!
//! # From when on it is known
//! A task that is seen is runnable. That there is no other is known once a CPU was idle, or [`SETTLED_NS`]
//! after the first event: a task that waits gets its turn within that time. Lost events begin all anew.
//!
//! # One halt
//! Its start is known only at its end, from its length. So for each vCPU the changes between "no other task"
//! and "another task" are kept for a while. The CPU is that on which the vCPU's thread ran last: while it
//! sleeps, tasks that become runnable there are those that would have ended its poll.
//!
//! # Limits
//! * Since 6.12 the scheduler keeps a task that goes to sleep on the queue until its lag is made up (delayed
//!   dequeue), and counts it in `nr_running`; no event shows it. A poll that begins in that time is ended at
//!   once though no other task is runnable.
//! * Whether the scheduler would have put a woken task on a CPU on which a vCPU polls is not known for one that slept.
//! * Throttled, frozen and offline CPUs are not modelled.

use crate::event::{Event, EventKind, TracepointKind};
use crate::pairing::ByNumber;
use std::collections::{BTreeSet, VecDeque};

/// The tracepoints that show which tasks are runnable.
pub const TRACEPOINTS: [TracepointKind; 4] =
    [TracepointKind::Switch, TracepointKind::Wakeup, TracepointKind::WakeupNew, TracepointKind::Migrate];

/// How long after the first event every runnable task is taken to have been seen \[ns\].
pub const SETTLED_NS: u64 = 1_000_000_000;

/// Changes that are kept for one vCPU. A poll lasts a millisecond at most in practice; what is forgotten
/// makes a time alone unknown, never wrong.
const KEPT: usize = 256;

/// Whether a vCPU's CPU has other runnable tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not known.
    Unknown,
    /// None.
    Alone,
    Contended,
}

/// The runnable tasks of the CPUs that are watched.
#[derive(Debug, Default)]
pub struct Contention {
    /// The CPUs whose events come; `None`: all.
    watched: Option<BTreeSet<u32>>,
    cpus: ByNumber<u32, Cpu>,
    /// Where each runnable task is.
    places: ByNumber<i32, u32>,
    vcpus: ByNumber<i32, Vcpu>,
    /// When the first event came after the start or after a loss.
    begun_ns: Option<u64>,
    /// Until when events of some CPU may be missing \[ns\].
    gap_until_ns: u64,
}

#[derive(Debug, Default)]
struct Cpu {
    /// Runnable tasks, the current one included and the idle task not.
    tasks: BTreeSet<i32>,
    was_idle: bool,
    /// vCPU threads that ran here last.
    vcpus: Vec<i32>,
}

/// What is known of the CPU of one vCPU's thread.
#[derive(Debug)]
struct Vcpu {
    cpu: u32,
    /// Changes and when they came \[ns\], the oldest first.
    changes: VecDeque<(u64, State)>,
}

impl Vcpu {
    fn state(&self) -> State {
        self.changes.back().map_or(State::Unknown, |(_, state)| *state)
    }

    fn set(&mut self, time_ns: u64, state: State) {
        if self.state() == state && !self.changes.is_empty() {
            return;
        }
        if self.changes.len() == KEPT {
            self.changes.pop_front();
        }
        self.changes.push_back((time_ns, state));
    }

    /// How long from `start_ns` on there was no other task, for at most `idle_ns`.
    fn alone_ns(&self, start_ns: u64, idle_ns: u64) -> Option<u64> {
        let after = self.changes.partition_point(|(time_ns, _)| *time_ns <= start_ns);
        match self.changes.get(after.checked_sub(1)?)?.1 {
            State::Unknown => None,
            State::Contended => Some(0),
            State::Alone => match self.changes.get(after) {
                Some((time_ns, State::Contended)) => Some((time_ns - start_ns).min(idle_ns)),
                Some((time_ns, _)) if time_ns - start_ns < idle_ns => None,
                _ => Some(idle_ns),
            },
        }
    }

    /// Forgets what was before `time_ns`, but for the state then.
    fn forget_before(&mut self, time_ns: u64) {
        while self.changes.get(1).is_some_and(|(next_ns, _)| *next_ns <= time_ns) {
            self.changes.pop_front();
        }
    }
}

impl Contention {
    /// Of these CPUs, or of all (`None`).
    pub fn new(watched: Option<BTreeSet<u32>>) -> Contention {
        Contention { watched, ..Contention::default() }
    }

    /// Takes the next event.
    pub fn observe(&mut self, event: &Event) {
        let now = event.time_ns;
        match event.kind {
            EventKind::Gap { until_ns, .. } => {
                self.gap_until_ns = self.gap_until_ns.max(until_ns);
                self.begin_anew(now);
                self.begun_ns = Some(self.gap_until_ns);
            }
            EventKind::Lost { .. } => self.begin_anew(now),
            // Where a vCPU runs is known in a gap too, what else is runnable there is not.
            EventKind::Switch { next: next @ 1.., .. } if now < self.gap_until_ns => {
                self.follow(next, event.cpu)
            }
            _ if now < self.gap_until_ns => {}
            EventKind::Switch { prev, prev_runnable: Some(prev_runnable), next } => {
                self.begun_ns.get_or_insert(now);
                if prev != 0 {
                    if prev_runnable { self.place(prev, event.cpu, now) } else { self.remove(prev, now) }
                }
                if next == 0 {
                    self.idle(event.cpu);
                } else {
                    self.place(next, event.cpu, now);
                    self.follow(next, event.cpu);
                }
                self.update(event.cpu, now);
            }
            EventKind::Wakeup { woken, target } => {
                self.begun_ns.get_or_insert(now);
                self.place(woken, target, now);
                self.update(target, now);
            }
            EventKind::Migrate { task, to, .. } => {
                self.begun_ns.get_or_insert(now);
                // A task that is not runnable is moved right before it is woken.
                if self.places.contains_key(&task) {
                    self.place(task, to, now);
                    self.update(to, now);
                }
            }
            _ => {}
        }
    }

    /// How long after the start of a halt of `tid`, which ended now after `idle_ns`, its CPU had no other
    /// runnable task; `idle_ns` if to the end. A halt that never slept was not cut short. `None`: not known.
    pub fn alone_ns(&mut self, event: &Event, idle_ns: u64, slept: bool) -> Option<u64> {
        let start_ns = event.time_ns.saturating_sub(idle_ns);
        let Some(vcpu) = self.vcpus.get_mut(&event.tid) else {
            // From now on it is known for a vCPU's.
            self.vcpus.insert(event.tid, Vcpu { cpu: event.cpu, changes: VecDeque::new() });
            self.cpus.entry(event.cpu).or_default().vcpus.push(event.tid);
            self.update(event.cpu, event.time_ns);
            return None;
        };
        let alone_ns = vcpu.alone_ns(start_ns, idle_ns);
        vcpu.forget_before(event.time_ns);
        // What was not known may have become known by the passing of time.
        let cpu = vcpu.cpu;
        self.update(cpu, event.time_ns);
        if slept { alone_ns } else { alone_ns.map(|_| idle_ns) }
    }

    /// A task is runnable on `cpu`, and nowhere else.
    fn place(&mut self, task: i32, cpu: u32, now: u64) {
        if let Some(before) = self.places.insert(task, cpu).filter(|before| *before != cpu) {
            if let Some(before) = self.cpus.get_mut(&before) {
                before.tasks.remove(&task);
            }
            self.update(before, now);
        }
        self.cpus.entry(cpu).or_default().tasks.insert(task);
    }

    fn remove(&mut self, task: i32, now: u64) {
        let Some(cpu) = self.places.remove(&task) else { return };
        if let Some(place) = self.cpus.get_mut(&cpu) {
            place.tasks.remove(&task);
        }
        self.update(cpu, now);
    }

    /// The idle task runs only where nothing else is runnable.
    fn idle(&mut self, cpu: u32) {
        let idle = self.cpus.entry(cpu).or_default();
        idle.was_idle = true;
        for task in std::mem::take(&mut idle.tasks) {
            self.places.remove(&task);
        }
    }

    /// A vCPU's thread runs on `cpu` now.
    fn follow(&mut self, task: i32, cpu: u32) {
        let Some(vcpu) = self.vcpus.get_mut(&task).filter(|vcpu| vcpu.cpu != cpu) else { return };
        let before = std::mem::replace(&mut vcpu.cpu, cpu);
        if let Some(before) = self.cpus.get_mut(&before) {
            before.vcpus.retain(|other| *other != task);
        }
        self.cpus.entry(cpu).or_default().vcpus.push(task);
    }

    /// Takes note of what changed for the vCPUs of `cpu`.
    fn update(&mut self, cpu: u32, now: u64) {
        let settled = self.begun_ns.is_some_and(|begun| now.saturating_sub(begun) >= SETTLED_NS);
        let watched = self.watched.as_ref().is_none_or(|watched| watched.contains(&cpu));
        let Contention { cpus, vcpus, .. } = self;
        let Some(place) = cpus.get(&cpu) else { return };
        for tid in &place.vcpus {
            let Some(vcpu) = vcpus.get_mut(tid) else { continue };
            let state = if !watched {
                State::Unknown
            } else if place.tasks.iter().any(|task| task != tid) {
                State::Contended
            } else if place.was_idle || settled {
                State::Alone
            } else {
                State::Unknown
            };
            // A sleeping vCPU's poll has ended: only the first task that comes then is of interest, and it must not be
            // forgotten for those that come after it.
            let sleeps = !place.tasks.contains(tid);
            if !(sleeps && vcpu.state() == State::Contended && state == State::Alone) {
                vcpu.set(now, state);
            }
        }
    }

    fn begin_anew(&mut self, now: u64) {
        self.places.clear();
        self.begun_ns = Some(now);
        for cpu in self.cpus.values_mut() {
            cpu.tasks.clear();
            cpu.was_idle = false;
        }
        self.vcpus.values_mut().for_each(|vcpu| vcpu.set(now, State::Unknown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VCPU: i32 = 11;

    fn event(time_ns: u64, cpu: u32, kind: EventKind) -> Event {
        Event { time_ns, cpu, pid: 10, tid: VCPU, kind }
    }

    fn switch(prev: i32, prev_runnable: bool, next: i32) -> EventKind {
        EventKind::Switch { prev, prev_runnable: Some(prev_runnable), next }
    }

    fn wakeup(woken: i32, target: u32) -> EventKind {
        EventKind::Wakeup { woken, target }
    }

    /// A CPU 0 whose vCPU is known and runs at 100, after the CPU was idle.
    fn begun() -> Contention {
        let mut contention = Contention::new(None);
        for (time, kind) in [(1, switch(VCPU, false, 0)), (2, wakeup(VCPU, 0)), (3, switch(0, true, VCPU))] {
            contention.observe(&event(time, 0, kind));
        }
        assert_eq!(contention.alone_ns(&event(100, 0, wakeup(0, 0)), 50, true), None, "not known before");
        contention
    }

    /// What follows, and a halt that ends at `end_ns`.
    fn alone(
        mut contention: Contention,
        events: &[(u64, EventKind)],
        end_ns: u64,
        idle_ns: u64,
    ) -> Option<u64> {
        events.iter().for_each(|(time, kind)| contention.observe(&event(*time, 0, *kind)));
        contention.alone_ns(&event(end_ns, 0, wakeup(0, 0)), idle_ns, true)
    }

    #[test]
    fn a_task_that_is_woken_ends_the_time_alone() {
        let back = [(1_900, wakeup(VCPU, 0)), (1_950, switch(5, false, VCPU))];
        type Case<'a> = (&'a [(u64, EventKind)], Option<u64>);
        let cases: [Case<'_>; 6] = [
            // No task becomes runnable; the vCPU sleeps.
            (
                &[(1_200, switch(VCPU, false, 0)), (1_900, wakeup(VCPU, 0)), (1_950, switch(0, true, VCPU))],
                Some(1_000),
            ),
            // One comes while it polls.
            (&[(1_300, wakeup(5, 0)), (1_301, switch(VCPU, false, 5)), back[0], back[1]], Some(300)),
            // One was there before, preempted by the vCPU.
            (&[(500, wakeup(5, 0)), (1_001, switch(VCPU, false, 5)), back[0], back[1]], Some(0)),
            // One comes after the poll, when the vCPU sleeps; others after it do not matter.
            (
                &[
                    (1_200, switch(VCPU, false, 0)),
                    (1_400, wakeup(5, 0)),
                    (1_401, switch(0, true, 5)),
                    (1_500, switch(5, false, 0)),
                    (1_600, wakeup(6, 0)),
                    (1_601, switch(0, true, 6)),
                    (1_700, switch(6, false, 0)),
                    (1_900, wakeup(VCPU, 0)),
                    (1_950, switch(0, true, VCPU)),
                ],
                Some(400),
            ),
            // One comes and is moved away before the halt.
            (
                &[
                    (500, wakeup(5, 0)),
                    (600, EventKind::Migrate { task: 5, from: 0, to: 1 }),
                    (1_200, switch(VCPU, false, 0)),
                    (1_900, wakeup(VCPU, 0)),
                    (1_950, switch(0, true, VCPU)),
                ],
                Some(1_000),
            ),
            // One is pulled here.
            (
                &[
                    (500, wakeup(5, 1)),
                    (1_250, EventKind::Migrate { task: 5, from: 1, to: 0 }),
                    (1_251, switch(VCPU, false, 5)),
                    back[0],
                    back[1],
                ],
                Some(250),
            ),
        ];
        for (events, wanted) in cases {
            assert_eq!(alone(begun(), events, 2_000, 1_000), wanted, "{events:?}");
        }
    }

    #[test]
    fn losses_and_cpus_that_are_not_watched_make_it_unknown() {
        let lost = [(900, EventKind::Lost { cpu: None, count: 1 })];
        assert_eq!(alone(begun(), &lost, 2_000, 1_000), None);
        let lost = [(1_200, EventKind::Lost { cpu: None, count: 1 })];
        assert_eq!(alone(begun(), &lost, 2_000, 1_000), None);
        // Idle again: known again.
        let idle = [
            (1_200, EventKind::Lost { cpu: None, count: 1 }),
            (1_300, switch(VCPU, false, 0)),
            (1_400, switch(0, true, VCPU)),
        ];
        assert_eq!(alone(begun(), &idle, 2_000, 500), Some(500));
        let mut other = Contention::new(Some([7].into()));
        for time in [100, 3_000_000_000] {
            other.observe(&event(time, 0, switch(0, true, VCPU)));
            assert_eq!(other.alone_ns(&event(time, 0, wakeup(0, 0)), 10, true), None);
        }
    }

    #[test]
    fn a_core_that_is_never_idle_is_known_after_a_while_and_a_queued_task_at_once() {
        let mut contention = Contention::new(None);
        let halt =
            |contention: &mut Contention, time| contention.alone_ns(&event(time, 0, wakeup(0, 0)), 10, true);
        contention.observe(&event(1, 0, switch(5, true, VCPU)));
        assert_eq!(halt(&mut contention, 20), None);
        assert_eq!(halt(&mut contention, 40), Some(0), "5 was preempted");
        contention.observe(&event(50, 0, switch(VCPU, false, 5)));
        contention.observe(&event(60, 0, switch(5, false, VCPU)));
        assert_eq!(halt(&mut contention, 80), None, "others may be queued");
        halt(&mut contention, 2 + SETTLED_NS);
        assert_eq!(halt(&mut contention, 40 + SETTLED_NS), Some(10));
    }

    #[test]
    fn a_halt_that_never_slept_was_not_cut_short() {
        let mut contention = begun();
        contention.observe(&event(1_500, 0, wakeup(5, 0)));
        assert_eq!(contention.alone_ns(&event(1_501, 0, wakeup(0, 0)), 100, false), Some(100));
    }

    proptest! {
        /// Against a scheduler of one CPU, whose queue is looked at directly: whatever is known is right.
        #[test]
        fn what_is_known_is_right(steps in prop::collection::vec((1u64..2_000, 0u8..6, 0usize..4), 1..400)) {
            let mut contention = Contention::new(None);
            // Tasks by their state; the vCPU is task 0 here and thread 11 there.
            let tid = |task: usize| if task == 0 { VCPU } else { i32::try_from(20 + task).unwrap() };
            let (mut queue, mut current, mut now) = (vec![0usize], None::<usize>, 0u64);
            // The halt under way: when it began and when another task was first runnable since.
            let mut halt: Option<(u64, Option<u64>)> = None;
            let mut known = 0;
            for (by, step, task) in steps {
                now += by;
                let run_next = |queue: &mut Vec<usize>| (!queue.is_empty()).then(|| queue.remove(0));
                match step {
                    // A task is woken.
                    0 | 1 if !queue.contains(&task) && current != Some(task) && task != 0 => {
                        queue.push(task);
                        contention.observe(&event(now, 0, wakeup(tid(task), 0)));
                    }
                    // The vCPU is woken from its halt, or begins one.
                    2 if current == Some(0) && halt.is_none() => halt = Some((now, None)),
                    2 if halt.is_some() && current != Some(0) && !queue.contains(&0) => {
                        queue.insert(0, 0);
                        contention.observe(&event(now, 0, wakeup(VCPU, 0)));
                    }
                    // The current task sleeps, which the vCPU does only in a halt; or is preempted.
                    3 | 4 if current.is_some_and(|c| c != 0 || halt.is_some()) || current.is_none() => {
                        let before = current.take();
                        current = run_next(&mut queue);
                        if before != current {
                            let kind = switch(before.map_or(0, tid), before.is_none(), current.map_or(0, tid));
                            contention.observe(&event(now, 0, kind));
                        }
                    }
                    5 if !queue.is_empty() && current.is_some_and(|c| c != 0 || halt.is_none()) => {
                        let before = current.unwrap();
                        current = run_next(&mut queue);
                        queue.push(before);
                        contention.observe(&event(now, 0, switch(tid(before), true, current.map_or(0, tid))));
                    }
                    _ => {}
                }
                let others = queue.iter().any(|&t| t != 0) || current.is_some_and(|c| c != 0);
                if let Some((_, first)) = &mut halt
                    && others
                {
                    first.get_or_insert(now);
                }
                // The vCPU runs again: the halt is over.
                if let Some((start, first)) = halt.filter(|(start, _)| current == Some(0) && *start < now && step != 2) {
                    let idle = now - start;
                    let alone = contention.alone_ns(&event(now, 0, wakeup(0, 0)), idle, true);
                    if let Some(alone) = alone {
                        known += 1;
                        prop_assert_eq!(alone, first.map_or(idle, |first| first - start));
                    }
                    halt = None;
                }
            }
            let _ = known;
        }
    }
}
