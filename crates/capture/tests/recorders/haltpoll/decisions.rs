//! Whether the haltpoll governor of a traced machine decides as the policy of this workspace does, decision
//! by decision.
//!
//! # What is compared
//! A CPU that has nothing to run makes a decision each time it enters an idle state: poll or halt. An
//! interrupt that wakes no task ends a halt, and another decision follows; a poll that ran out is followed by
//! a halt at once. Both, and every change of the window after a halt, are compared with [`guest::Cpu`].
//!
//! # How long a state lasted
//! Where the governor itself can be seen ([`EventKind::Reflect`]), its own figure is taken, and nothing has
//! to be allowed for. Otherwise it is the time between the two events of `power:cpu_idle`. The governor reads
//! its clock after the first and before the second of them, so that its time is shorter, by less than
//! [`MARGIN_NS`] unless a hypervisor took the CPU away in between. Where the outcome changes within this
//! margin either outcome is taken.
//!
//! # What is explained and counted
//! See [`Explained`].

use dwell_policy::guest::{self, Params, Revision, State};
use dwell_trace::event::{Event, EventKind};
use dwell_trace::pairing::ByNumber;

/// By how much the time between two events of `power:cpu_idle` may exceed the governor's \[ns\]: two programs
/// or samples of a microsecond or two.
pub(crate) const MARGIN_NS: u64 = 5_000;

/// Decisions that the policy alone does not have, by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Explained {
    /// A poll that lasted longer than its window, and after which the CPU polled again: its wakeup came
    /// before the governor looked at the clock, which it does once in 201 pauses.
    pub(crate) woken_past_the_window: u64,
    /// The outcome is that of a time shorter by less than [`MARGIN_NS`]; 0 where the governor's own figure is known.
    pub(crate) near_a_threshold: u64,
    /// The outcome is that of a setting that was in force earlier or later.
    pub(crate) setting_changed: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Idle states entered of which the governor's state before is known.
    pub(crate) decisions: u64,
    /// Halts after which the window could change.
    pub(crate) halts: u64,
    /// Changes of the window, those that left it as it was included.
    pub(crate) changes: u64,
    /// Decisions and changes that are explained, by the reason.
    pub(crate) explained: Explained,
    /// Decisions and changes that are not.
    pub(crate) deviations: u64,
    /// Times that a CPU had to be followed anew, after lost events.
    pub(crate) resumed: u64,
    /// Halts whose time by `power:cpu_idle` leads to another outcome than the governor's own figure; 0 where
    /// that is not known.
    pub(crate) clock_differs: u64,
    /// The first deviations.
    pub(crate) first: Vec<String>,
}

/// How many deviations are described.
const DESCRIBED: usize = 10;

/// Follows the governor of every CPU.
pub(crate) struct Follower {
    revision: Revision,
    params: Params,
    /// Settings that were in force at other times of the trace.
    others: Vec<Params>,
    /// Whether the governor's own figures are in the trace.
    exact: bool,
    cpus: ByNumber<u32, Following>,
    counts: Counts,
}

/// What is known of one CPU.
#[derive(Debug, Default)]
struct Following {
    /// The governor's window \[ns\].
    limit: Option<u64>,
    /// The state that is entered, and when.
    entered: Option<(u64, u32)>,
    /// How long the last state lasted by `power:cpu_idle` \[ns\].
    traced_ns: u64,
    /// The state that was left last, and the longest that it can have lasted \[ns\].
    left: Option<(State, u64)>,
    /// A halt after which the window may change: the shortest and the longest that it can have lasted \[ns\].
    halt: Option<(u64, u64)>,
}

const fn state_of(number: u32) -> State {
    if number == 0 { State::Poll } else { State::Halt }
}

/// A change of the window: before and after.
type Change = Option<(u32, u32)>;

impl Follower {
    /// Of a kernel whose governor has these parameters. `exact`: the trace has the governor's own figures.
    pub(crate) fn new(revision: Revision, params: Params, exact: bool) -> Follower {
        Follower {
            revision,
            params,
            others: vec![],
            exact,
            cpus: ByNumber::default(),
            counts: Counts::default(),
        }
    }

    /// Another setting was in force at some time of the trace.
    #[must_use]
    pub(crate) fn with_other(mut self, params: Params) -> Follower {
        self.others.push(params);
        self
    }

    /// What was compared so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes the next event; they come in order of time.
    pub(crate) fn observe(&mut self, event: &Event) {
        match event.kind {
            EventKind::CpuIdle { cpu, state: Some(state) } => self.enter(cpu, event.time_ns, state),
            EventKind::CpuIdle { cpu, state: None } => self.leave(cpu, event.time_ns),
            EventKind::Reflect { state, residency_ns, limit_ns } => {
                self.reflect(event.cpu, state, residency_ns, limit_ns);
            }
            EventKind::GuestHaltPoll { new, old } => self.settle(event.cpu, Some((old, new))),
            EventKind::Lost { cpu, .. } => {
                let of = |number: &u32| cpu.is_none_or(|cpu| cpu == *number);
                let lost = self.cpus.iter_mut().filter(|(number, _)| of(number));
                let resumed = lost.map(|(_, following)| *following = Following::default()).count();
                self.counts.resumed += resumed as u64;
            }
            _ => {}
        }
    }

    fn cpu(&mut self, number: u32) -> &mut Following {
        self.cpus.entry(number).or_default()
    }

    fn deviates(&mut self, what: impl FnOnce() -> String) {
        self.counts.deviations += 1;
        if self.counts.first.len() < DESCRIBED {
            self.counts.first.push(what());
        }
    }

    /// A state is entered: which one, follows from the window and the state before.
    fn enter(&mut self, number: u32, time_ns: u64, state: u32) {
        self.settle(number, None);
        let cpu = self.cpu(number);
        cpu.entered = Some((time_ns, state));
        let (Some(limit), Some((left, longest_ns))) = (cpu.limit, cpu.left) else { return };
        self.counts.decisions += 1;
        let state = state_of(state);
        let ran_out = left == State::Poll && longest_ns > limit;
        match (limit, left, state) {
            (0, _, State::Halt) | (1.., State::Halt, State::Poll) => {}
            (1.., State::Poll, State::Poll) if ran_out => self.counts.explained.woken_past_the_window += 1,
            (1.., State::Poll, State::Poll) => {}
            (1.., State::Poll, State::Halt) if ran_out => {}
            _ => self.deviates(|| {
                format!("CPU {number} at {time_ns}: {state:?} entered after {left:?} of at most {longest_ns} ns, window {limit}")
            }),
        }
    }

    fn leave(&mut self, number: u32, time_ns: u64) {
        let exact = self.exact;
        let cpu = self.cpu(number);
        let Some((entered_ns, state)) = cpu.entered.take() else { return };
        cpu.traced_ns = time_ns.saturating_sub(entered_ns);
        if !exact {
            let longest_ns = cpu.traced_ns;
            cpu.left = Some((state_of(state), longest_ns));
            cpu.halt = (state != 0).then(|| (longest_ns.saturating_sub(MARGIN_NS), longest_ns));
        }
    }

    fn reflect(&mut self, number: u32, state: u32, residency_ns: u64, limit_ns: u64) {
        if !self.exact {
            return;
        }
        self.settle(number, None);
        let cpu = self.cpu(number);
        let known = cpu.limit.replace(limit_ns);
        cpu.left = Some((state_of(state), residency_ns));
        cpu.halt = (state != 0).then_some((residency_ns, residency_ns));
        let traced_ns = std::mem::take(&mut cpu.traced_ns);
        if known.is_some_and(|known| known != limit_ns) {
            self.deviates(|| format!("CPU {number}: the window is {limit_ns}, the policy's {known:?}"));
        }
        let by = |ns| outcome(self.revision, &self.params, limit_ns, ns);
        self.counts.clock_differs +=
            u64::from(state != 0 && traced_ns > 0 && by(traced_ns) != by(residency_ns));
    }

    /// The halt before had this outcome.
    fn settle(&mut self, number: u32, actual: Change) {
        let (revision, params) = (self.revision, self.params);
        let cpu = self.cpus.entry(number).or_default();
        let halt = cpu.halt.take();
        let before = cpu.limit;
        if let Some((_, new)) = actual {
            cpu.limit = Some(new.into());
        }
        let (Some((shortest_ns, longest_ns)), Some(limit)) = (halt, before) else {
            // A change without a halt, though every halt is seen.
            if actual.is_some() && before.is_some() && self.exact {
                self.deviates(|| format!("CPU {number}: {actual:?} after no halt"));
            }
            return;
        };
        self.counts.halts += 1;
        self.counts.changes += u64::from(actual.is_some());
        if outcome(revision, &params, limit, longest_ns) == actual {
            return;
        }
        // The outcome depends on the time only at the window and at the maximum.
        let max = u64::from(params.guest_halt_poll_ns);
        let mut times = [shortest_ns, limit, limit + 1, max, max + 1].into_iter();
        let within = shortest_ns..=longest_ns;
        if times.any(|ns| within.contains(&ns) && outcome(revision, &params, limit, ns) == actual) {
            self.counts.explained.near_a_threshold += 1;
        } else if self.others.iter().any(|other| outcome(revision, other, limit, longest_ns) == actual) {
            self.counts.explained.setting_changed += 1;
        } else {
            self.deviates(|| {
                format!(
                    "CPU {number}: {actual:?} after a halt of {shortest_ns} to {longest_ns} ns, window {limit}; the policy: {:?}",
                    outcome(revision, &params, limit, longest_ns)
                )
            });
        }
    }
}

/// What the policy makes of a halt.
fn outcome(revision: Revision, params: &Params, limit_ns: u64, halt_ns: u64) -> Change {
    let mut cpu = guest::Cpu::with_state(revision, limit_ns, State::Halt);
    cpu.reflect(params, State::Halt, halt_ns).map(|change| (change.old, change.new))
}

mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params(max: u32) -> Params {
        Params { guest_halt_poll_ns: max, ..Params::default() }
    }

    /// The trace of a CPU that idles for these times, made by the policy: with the governor's figures if
    /// `exact`, and each state as much longer by its events as `late_ns` says.
    fn trace(idle: &[u64], max: u32, exact: bool, late_ns: u64) -> Vec<Event> {
        let mut events = vec![];
        let mut now = 1_000;
        let mut cpu = guest::Cpu::new(Revision::V6_9);
        let mut push = |time_ns, kind| events.push(Event { time_ns, cpu: 0, pid: 0, tid: 0, kind });
        for &idle in idle {
            let mut left = idle;
            loop {
                // A poll that ran out is the only thing that this knows of `expired`.
                let state = cpu.select(i64::MAX).state;
                let limit = cpu.poll_limit_ns();
                let number = u32::from(state == State::Halt);
                push(now, EventKind::CpuIdle { cpu: 0, state: Some(number) });
                let ns = if state == State::Poll { left.min(limit + 100) } else { left };
                now += ns + late_ns;
                push(now, EventKind::CpuIdle { cpu: 0, state: None });
                if exact {
                    push(now + 1, EventKind::Reflect { state: number, residency_ns: ns, limit_ns: limit });
                }
                if state == State::Poll && ns > limit {
                    // As `Cpu::poll` with a clock that stands at the end.
                    struct Over(u64, u64);
                    impl guest::Environment for Over {
                        fn clock(&mut self) -> u64 {
                            std::mem::replace(&mut self.0, self.1)
                        }
                        fn relax(&mut self) {}
                        fn need_resched(&mut self) -> bool {
                            false
                        }
                    }
                    cpu.poll(&mut Over(0, ns), 4_000_000);
                } else if state == State::Poll {
                    cpu = guest::Cpu::with_state(Revision::V6_9, limit, State::Poll);
                }
                if let Some(change) = cpu.reflect(&params(max), state, ns) {
                    push(now + 2, EventKind::GuestHaltPoll { new: change.new, old: change.old });
                }
                now += 500;
                left -= ns.min(left);
                if left == 0 {
                    break;
                }
            }
            now += 20_000;
        }
        events
    }

    fn follow(events: &[Event], max: u32, exact: bool) -> Counts {
        let mut decisions = Follower::new(Revision::V6_9, params(max), exact);
        events.iter().for_each(|event| decisions.observe(event));
        decisions.counts().clone()
    }

    fn lengths() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![1u64..100_000, 1u64..400_000], 0..200)
    }

    proptest! {
        #[test]
        fn the_policy_does_not_deviate_from_itself(idle in lengths(), exact: bool, late in 0u64..3_000) {
            let counts = follow(&trace(&idle, 200_000, exact, late), 200_000, exact);
            prop_assert_eq!((counts.deviations, &counts.first), (0, &vec![]));
            prop_assert!(!exact || counts.explained.near_a_threshold == 0);
        }
    }

    fn many() -> Vec<u64> {
        (0..2_000u64).map(|number| number * 7_919 % 900_000 + 1).collect()
    }

    #[test]
    fn another_setting_deviates_or_is_explained_by_a_change() {
        let events = trace(&many(), 200_000, true, 0);
        let counts = follow(&events, 100_000, true);
        assert!(counts.deviations > 100, "{counts:?}");
        assert_eq!(counts.first.len(), DESCRIBED);
        let mut both = Follower::new(Revision::V6_9, params(100_000), true).with_other(params(200_000));
        events.iter().for_each(|event| both.observe(event));
        assert_eq!(
            (both.counts().deviations, both.counts().explained.setting_changed),
            (0, counts.deviations)
        );
    }

    #[test]
    fn a_missing_change_and_a_missing_halt_deviate() {
        let mut events = trace(&many(), 200_000, true, 0);
        let change = events.iter().position(|event| matches!(event.kind, EventKind::GuestHaltPoll { .. }));
        let change = events.remove(change.unwrap());
        assert!(follow(&events, 200_000, true).deviations > 0);
        let mut events = trace(&many(), 200_000, true, 0);
        events.insert(1, change);
        events.insert(0, change);
        assert!(follow(&events, 200_000, true).deviations > 0);
    }

    #[test]
    fn after_a_loss_a_cpu_is_followed_anew() {
        let mut events = trace(&many(), 200_000, true, 0);
        let half = events.len() / 2;
        events.drain(half..half + 31);
        let time_ns = events[half].time_ns;
        let kind = EventKind::Lost { cpu: Some(0), count: 31 };
        events.insert(half, Event { time_ns, cpu: 0, pid: 0, tid: 0, kind });
        let counts = follow(&events, 200_000, true);
        assert_eq!((counts.deviations, counts.resumed), (0, 1), "{:?}", counts.first);
        assert!(counts.decisions > 1_000);
    }
}
