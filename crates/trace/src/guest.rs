//! The CPUs of a machine: when they idle, until which event, and what that event was.
//!
//! # Two sources
//! `power:cpu_idle` reports when a CPU enters an idle state and when it leaves it. On some kernels perf gets
//! nothing from the idle task of some CPUs, neither this nor `sched:sched_switch`. There perf's own record of
//! context switches shows when the idle task gets the CPU and when another task does. [`GuestSource::Auto`]
//! is `cpu_idle` if every CPU emits it. With switches, an interrupt of a CPU whose idle task emits nothing is
//! not seen either: an episode that it ends includes the wakeup latency. A trace may have both; then the
//! events of the other source begin and end no episode.
//!
//! # The end of an episode
//! An episode ends at the event, not when the CPU runs again. From there to the end of idling is the wakeup latency.
//! Where no event was seen the episode ends when idling does, and has no wakeup latency. Which events end one depends
//! on what the CPU does:
//!
//! * It halts: any interrupt ends the halt, whether or not it wakes a task, and so the episode; where nothing runs the
//!   next state begins another one. The event is the first interrupt that this CPU handles no more than
//!   [`SAME_WAKE_NS`] before it leaves the state, or a `sched:sched_waking` for it on another CPU before that.
//! * It polls (the polling state, or the driver dwell_idle in its window): only what makes it look for another task
//!   does. The event is the waking of a task, or the interrupt that does the waking. An interrupt that wakes nobody, or
//!   a task of another CPU, ends nothing. A poll may also be ended by a function that another CPU asks for, of which no
//!   event is seen: it is shorter than the window, the event is not known, and the next poll is another episode.
//! * With switches, where states are not known: the waking of the task that runs next, or the interrupt that does it.
//!   Interrupts that wake nobody end nothing, though the CPU may have halted several times.
//!
//! Of several wakings of one task the last counts. The kernel emits no other while one is under way, so that an earlier
//! one belongs to an earlier run of the task, on a CPU whose switches are not in the trace. Of several wakings for one
//! polling CPU the first counts of those that are no more than [`POLL_ENDS_NS`] apart: one that did not end the poll
//! within that time was of a task that went to another CPU (`target_cpu` is where it ran last).
//!
//! # The wake cause
//! An interrupt of this CPU decides it: its timer, another CPU, a device. A waking on another CPU without one
//! is another CPU's too (a polling CPU is woken without an interrupt). A waking on this CPU without a traced
//! interrupt is a task's.
//!
//! # Polling
//! Which state polls is the architecture's: [`polling_state`]. If it is left and another state follows within
//! [`CONTINUES_NS`], both are one episode if the window ran out: the poll was as long as the governor's window, or,
//! where that is not known or the other state is no halt, no event is seen that can have ended it. A halt may follow as
//! late as [`HALTS_NS`] where wakings are traced and none for this CPU is seen in between.
//!
//! # The window
//! The haltpoll governor reports every change of its window (`power:guest_halt_poll_ns`), right after the episode that
//! caused it: `old` was the window of that episode, `new` is that of those that follow. An episode that did
//! not begin with the polling state had no window in force, whatever the governor's was, unless that was 0.
//! Where the governor has reported nothing, a poll that ran out has shown the window by its length.
//!
//! The driver dwell_idle polls and halts in one state, number 1. It reports the window of an episode and
//! whether the CPU halted at the end of each (`dwell_idle:dwell_idle_episode`), just before the state is
//! left.

use crate::causes::SegmentPairing;
use crate::event::{Event, EventKind, Interrupt};
use crate::full_polls::FullPolls;
use crate::halts::{Entries, Residencies};
use crate::pairing::{ByNumber, Idlers, Names, PairedEpisode, Pairing};
use dwell_policy::arch::Arch;
use dwell_recording::{IdleIncludes, Segments, WakeCause};
use serde_json::{Value, json};
use std::collections::BTreeMap;

dwell_policy::named! {
    /// What shows that a CPU idles.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum GuestSource {
        /// [`GuestSource::CpuIdle`] if every CPU emits it, else [`GuestSource::Switch`]. A recorder prefers
        /// [`GuestSource::Bpf`] to switches where it can be had.
        #[default]
        Auto = "auto",
        /// [`GuestSource::CpuIdle`], which a recorder reads through BPF.
        Bpf = "bpf",
        /// [`GuestSource::Auto`] without BPF.
        Perf = "perf",
        /// `power:cpu_idle`.
        CpuIdle = "cpu_idle",
        /// Context switches to and from the idle task: perf's own records of them, or `sched:sched_switch`.
        Switch = "switch",
    }

    /// The name used on the command line.
    pub fn name
}

/// An interrupt or a waking this long before the end of idling still belongs to it \[ns\]: more than any wakeup takes
/// except on a host that has taken the CPU away, less than a tick.
pub const SAME_WAKE_NS: u64 = 1_000_000;

/// A state entered so soon after polling continues the same episode \[ns\]. The idle loop takes about a
/// microsecond from one to the other, several on a slow machine under tracing. That no task ran in between
/// shows in the events where wakings are traced, so that this need not be tighter; in a trace of `cpu_idle`
/// alone a task of a few microseconds is missed.
pub const CONTINUES_NS: u64 = 10_000;

/// How long a CPU takes from a poll that ran out to the halt \[ns\], at most. In between the idle loop stops the tick,
/// which in a nested guest is an exit to program the timer: 10 to 35 us were measured. No task runs so soon without a
/// waking, but for one that the scheduler moves to this CPU.
pub const HALTS_NS: u64 = 100_000;

/// How long a poll goes on after the waking of a task for its CPU \[ns\]. It tests for that in each pass of its loop;
/// what takes microseconds is the way from `sched:sched_waking` to the CPU's flag, and a trace makes it longer.
pub const POLL_ENDS_NS: u64 = 10_000;

/// The idle state that polls: 0 of x86, and of POWER (`snooze`). Elsewhere state 0 is the shallowest halt, but the
/// driver haltpoll has a polling state 0 on every architecture.
pub fn polling_state(arch: Option<Arch>, has_haltpoll: bool) -> Option<u32> {
    (has_haltpoll || matches!(arch, Some(Arch::X86_64 | Arch::Power))).then_some(0)
}

/// Makes episodes of CPUs.
#[derive(Default)]
pub struct GuestPairing {
    source: GuestSource,
    polling_state: Option<u32>,
    silent: Vec<u32>,
    idlers: Idlers,
    cpus: ByNumber<u32, Cpu>,
    /// Of each thread, when and on which CPU it was woken last.
    wakings: ByNumber<i32, Waking>,
    incomplete: u64,
    /// Until when events of some CPU may be missing \[ns\].
    gap_until_ns: u64,
    /// Whether anything was seen that an episode can end at, and whether wakings were.
    wakes_seen: bool,
    wakings_seen: bool,
    /// Interrupts in polls that went on.
    polled_through: u64,
    full_polls: FullPolls,
    entries: Entries,
    residencies: Residencies,
    /// What runs between the episodes.
    segments: Option<SegmentPairing>,
}

#[derive(Clone, Copy, Debug)]
struct Waking {
    time_ns: u64,
    on_cpu: u32,
    /// The interrupt of that CPU that does it, where the CPU was idle.
    by: Option<(u64, Interrupt)>,
}

impl Waking {
    /// When the CPU `number` learned of it, and by what, if nothing came in between.
    fn event(self, number: u32) -> (u64, WakeCause) {
        match self.by.filter(|_| self.on_cpu == number) {
            Some((at, interrupt)) => (at, wake_of(interrupt)),
            None if self.on_cpu == number => (self.time_ns, WakeCause::Task),
            None => (self.time_ns, WakeCause::Ipi),
        }
    }
}

#[derive(Debug, Default)]
struct Cpu {
    idler: u32,
    idle: Option<Idle>,
    /// An episode that is over but for what the next event may add to it.
    held: Option<Held>,
    /// The first interrupt of those that can have ended a halt, and the last one.
    interrupt: Option<(u64, Interrupt)>,
    last_interrupt: Option<(u64, Interrupt)>,
    waking: Option<Waking>,
    /// The last waking on this CPU of a task that ran on another one last.
    moved: Option<Waking>,
    /// The window that the governor reported last \[ns\].
    window_ns: Option<u32>,
    /// When its last task left it, if it was in no idle state since \[ns\].
    left_by_task_ns: Option<u64>,
    /// Whether its last episode ended in a halt, after which everything up to the next idle state runs slower.
    halted_before: bool,
}

impl Cpu {
    fn forget_events(&mut self) {
        (self.interrupt, self.last_interrupt) = (None, None);
        (self.waking, self.moved) = (None, None);
    }
}

/// A period of idling that has begun.
#[derive(Clone, Copy, Debug)]
struct Idle {
    start_ns: u64,
    /// Whether it began with the polling state; `None` where states are not traced.
    polled: Option<bool>,
    /// Whether a state other than polling was entered; `None` where states are not traced.
    halted: Option<bool>,
    /// The governor's window in this period \[ns\].
    window_ns: Option<u32>,
    /// How long it polled until it halted \[ns\].
    ran_out_after_ns: Option<u64>,
    /// What the driver dwell_idle reported.
    reported: Option<Reported>,
    /// When the state began that the CPU is in \[ns\].
    state_ns: u64,
    /// Interrupts in that state, if it polls.
    interrupts: u64,
}

/// The window of an episode \[ns\] and whether the CPU halted. With switches, in the first of the episodes that the
/// driver sees in one, and in any.
#[derive(Clone, Copy, Debug)]
struct Reported {
    window_ns: u64,
    halted: bool,
}

impl Idle {
    fn window_ns(&self) -> Option<u64> {
        if let Some(reported) = self.reported {
            return Some(reported.window_ns);
        }
        match (self.window_ns, self.polled) {
            // After a poll that ran out, without a halt, the governor halts at once.
            (Some(1..), Some(false)) => Some(0),
            (Some(window_ns), _) => Some(window_ns.into()),
            (None, _) => self.ran_out_after_ns,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    idle: Idle,
    end_ns: u64,
    episode: PairedEpisode,
    /// Whether it is known that no task was woken since for this CPU.
    quiet: bool,
    /// The first waking for this CPU since then.
    waking: Option<Waking>,
}

impl Held {
    /// How long the poll was that ended it \[ns\].
    fn polled_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.idle.state_ns)
    }

    /// Whether that was at least its window; `None`: the window is not known.
    fn whole_window(&self) -> Option<bool> {
        self.idle.window_ns.map(|window_ns| self.polled_ns() >= window_ns.into())
    }

    /// Whether the window of its poll ran out, seen from the state that follows at `time_ns` and polls or halts: idling
    /// goes on.
    fn ran_out(&self, time_ns: u64, polls: bool) -> bool {
        let patience_ns = if self.quiet && !polls { HALTS_NS } else { CONTINUES_NS };
        if self.idle.halted != Some(false) || time_ns.saturating_sub(self.end_ns) > patience_ns {
            return false;
        }
        match (self.episode.wake_latency_ns, self.whole_window()) {
            (None, Some(false)) => !polls,
            (None, _) => true,
            (Some(_), Some(whole)) => whole && !polls,
            (Some(latency_ns), None) => !polls && latency_ns > POLL_ENDS_NS,
        }
    }

    /// The episode of CPU `number`, which runs a task from `time_ns` on. Where its poll had run out and another CPU woke the task
    /// before a halt was entered, it has idled until then.
    fn ended_by_task(mut self, number: u32, time_ns: u64) -> PairedEpisode {
        let ran_out = self.idle.halted == Some(false)
            && self.episode.wake_latency_ns.is_none()
            && self.whole_window() != Some(false);
        let soon = ran_out && time_ns.saturating_sub(self.end_ns) <= HALTS_NS;
        if let Some(waking) = self.waking.filter(|waking| soon && waking.on_cpu != number) {
            self.episode.idle_ns = waking.time_ns.saturating_sub(self.idle.start_ns);
            self.episode.wake = Some(WakeCause::Ipi);
            self.episode.wake_latency_ns = Some(time_ns.saturating_sub(waking.time_ns));
        }
        self.episode
    }
}

impl GuestPairing {
    /// For events of `source`: with [`GuestSource::CpuIdle`] and [`GuestSource::Bpf`] `power:cpu_idle` is used, with
    /// anything else switches.
    /// `silent` are the CPUs whose idle task emits no events, for the notes.
    pub fn new(source: GuestSource, silent: Vec<u32>) -> GuestPairing {
        let source = match source {
            GuestSource::CpuIdle | GuestSource::Bpf => GuestSource::CpuIdle,
            _ => GuestSource::Switch,
        };
        let polling_state = polling_state(Arch::HERE, false);
        GuestPairing { source, polling_state, silent, ..GuestPairing::default() }
    }

    /// Of a machine whose idle states are not numbered as on this one.
    #[must_use]
    pub fn with_polling_state(mut self, state: Option<u32>) -> GuestPairing {
        self.polling_state = state;
        self
    }

    /// The same, with the segments of tasks between the episodes.
    #[must_use]
    pub fn with_segments(mut self, names: Box<dyn Names>) -> GuestPairing {
        self.segments = Some(SegmentPairing::new(self.polling_state, names));
        self
    }

    fn cpu(&mut self, number: u32) -> &mut Cpu {
        let idlers = &mut self.idlers;
        let new = || Cpu { idler: idlers.add(format!("cpu{number}")), ..Cpu::default() };
        self.cpus.entry(number).or_insert_with(new)
    }

    fn begin(&mut self, number: u32, time_ns: u64, state: Option<u32>, found: &mut Vec<PairedEpisode>) {
        let polling_state = self.polling_state;
        let mut full_poll = None;
        let cpu = self.cpu(number);
        let polls = state.map(|state| Some(state) == polling_state);
        let mut idle = Idle {
            start_ns: time_ns,
            polled: polls,
            halted: polls.map(|polls| !polls),
            window_ns: cpu.window_ns,
            ran_out_after_ns: None,
            reported: None,
            state_ns: time_ns,
            interrupts: 0,
        };
        cpu.forget_events();
        if let Some(held) = cpu.held.take() {
            if held.ran_out(time_ns, polls == Some(true)) {
                idle = Idle { halted: idle.halted, state_ns: time_ns, interrupts: 0, ..held.idle };
                if idle.halted == Some(true) {
                    full_poll = held.idle.window_ns.map(|window_ns| (window_ns, held.polled_ns()));
                    idle.ran_out_after_ns = Some(held.end_ns.saturating_sub(idle.start_ns));
                }
            } else {
                found.push(held.episode);
            }
        }
        let left_by_task_ns = cpu.left_by_task_ns.take().filter(|_| cpu.halted_before);
        let unfinished = cpu.idle.replace(idle).is_some();
        if let (Some(left_by_task_ns), Some(polls), None) = (left_by_task_ns, polls, full_poll) {
            self.entries.add(polls, time_ns.saturating_sub(left_by_task_ns));
        }
        if let Some((window_ns, polled_ns)) = full_poll {
            self.full_polls.add(window_ns, polled_ns);
        }
        self.incomplete += u64::from(unfinished);
    }

    /// The end of idling at `time_ns`, by `waking` where one is known. It is held back until the next event
    /// of this CPU.
    fn end(&mut self, number: u32, time_ns: u64, waking: Option<Waking>, found: &mut Vec<PairedEpisode>) {
        let (by_switches, wakings_seen) = (self.source != GuestSource::CpuIdle, self.wakings_seen);
        let cpu = self.cpu(number);
        found.extend(cpu.held.take().map(|held| held.episode));
        let Some(idle) = cpu.idle.take() else {
            self.incomplete += 1;
            return;
        };
        let recent = |at: u64| at >= idle.state_ns && time_ns.saturating_sub(at) <= SAME_WAKE_NS;
        let waking = waking.filter(|waking| recent(waking.time_ns));
        let [first, last] = [cpu.interrupt.take(), cpu.last_interrupt.take()]
            .map(|interrupt| interrupt.filter(|(at, _)| recent(*at)));
        let moved = cpu.moved.take().filter(|moved| recent(moved.time_ns));
        let halted = idle.reported.map(|reported| reported.halted).or(idle.halted);
        cpu.halted_before = halted == Some(true);
        let event = if by_switches || halted == Some(false) {
            let by_interrupt = last.filter(|(at, _)| {
                by_switches || (!wakings_seen && time_ns.saturating_sub(*at) <= POLL_ENDS_NS)
            });
            let by_interrupt = by_interrupt.map(|(at, interrupt)| (at, wake_of(interrupt)));
            let moved = moved.filter(|moved| time_ns.saturating_sub(moved.time_ns) <= POLL_ENDS_NS);
            waking.or(moved).map(|waking| waking.event(number)).or(by_interrupt)
        } else {
            // The driver dwell_idle has polled first.
            let polled = |(at, _): &(u64, _)| {
                idle.reported.is_some_and(|reported| *at < idle.start_ns.saturating_add(reported.window_ns))
            };
            let interrupt = [first, last].into_iter().flatten().find(|interrupt| !polled(interrupt));
            match (interrupt, waking.filter(|waking| waking.on_cpu != number)) {
                // The interrupt that another CPU sent follows what made it send.
                (Some((at, _)), Some(waking)) if waking.time_ns <= at => {
                    Some((waking.time_ns, WakeCause::Ipi))
                }
                (Some((at, interrupt)), _) => Some((at, wake_of(interrupt))),
                (None, _) => waking.map(|waking| waking.event(number)),
            }
        };
        let event_ns = event.map(|(at, _)| at);
        let went_on =
            idle.interrupts.saturating_sub(u64::from(last.is_some_and(|(at, _)| event_ns == Some(at))));
        let idle_ns = event_ns.unwrap_or(time_ns).saturating_sub(idle.start_ns);
        let episode = PairedEpisode {
            window_ns: idle.window_ns(),
            halted,
            wake: Some(event.map_or(WakeCause::Unknown, |(_, wake)| wake)),
            wake_latency_ns: event_ns.map(|at| time_ns.saturating_sub(at)),
            ..PairedEpisode::new(cpu.idler, idle.start_ns, idle_ns)
        };
        cpu.held =
            Some(Held { idle, end_ns: time_ns, episode, quiet: wakings_seen && !by_switches, waking: None });
        self.polled_through += went_on;
    }

    /// An interrupt belongs to the period of idling that goes on, or, where it could be taken only after it
    /// (the idle state was left with interrupts off), shows what ended the one before.
    fn interrupt(&mut self, event: &Event, interrupt: Interrupt) {
        self.wakes_seen = true;
        let cpu = self.cpu(event.cpu);
        if let Some(idle) = &mut cpu.idle {
            idle.interrupts += u64::from(idle.halted == Some(false));
            // The first one since the CPU was last woken is what woke it.
            let fresh = |at: u64| event.time_ns.saturating_sub(at) > SAME_WAKE_NS;
            if cpu.interrupt.is_none_or(|(at, _)| fresh(at)) {
                cpu.interrupt = Some((event.time_ns, interrupt));
            }
            cpu.last_interrupt = Some((event.time_ns, interrupt));
        } else if let Some(held) = &mut cpu.held
            && held.idle.halted != Some(false)
            && held.episode.wake == Some(WakeCause::Unknown)
            && event.time_ns.saturating_sub(held.end_ns) <= SAME_WAKE_NS
        {
            held.episode.wake = Some(wake_of(interrupt));
        }
    }

    fn waking(&mut self, event: &Event, woken: i32, target: u32) {
        (self.wakes_seen, self.wakings_seen) = (true, true);
        let at = self.cpus.get(&event.cpu);
        let by = at.filter(|cpu| cpu.idle.is_some()).and_then(|cpu| cpu.last_interrupt);
        let by = by.filter(|(at, _)| event.time_ns.saturating_sub(*at) <= SAME_WAKE_NS);
        let waking = Waking { time_ns: event.time_ns, on_cpu: event.cpu, by };
        if self.source != GuestSource::CpuIdle {
            // In a gap another waking of the task may follow unseen.
            if event.time_ns >= self.gap_until_ns {
                self.wakings.insert(woken, waking);
            }
            return;
        }
        self.wakes(target, waking);
        if event.cpu != target
            && let Some(cpu) = self.cpus.get_mut(&event.cpu)
        {
            cpu.moved = Some(waking);
        }
    }

    /// With `cpu_idle`: the task may run on this CPU.
    fn wakes(&mut self, number: u32, waking: Waking) {
        let cpu = self.cpu(number);
        if let Some(held) = &mut cpu.held {
            held.quiet = false;
            held.waking.get_or_insert(waking);
        }
        let Some(idle) = &cpu.idle else { return };
        let polls = idle.halted == Some(false);
        // The first one since the CPU went idle, unless it led to nothing.
        let patience_ns = if polls { POLL_ENDS_NS } else { SAME_WAKE_NS };
        if cpu.waking.is_none_or(|old| waking.time_ns.saturating_sub(old.time_ns) > patience_ns) {
            cpu.waking = Some(waking);
        }
    }

    /// An interrupt on its way ends the halts of those that it goes to. A CPU that polls gets none.
    fn raised(&mut self, event: &Event, first: u32, mask: u64) {
        self.wakes_seen = true;
        if self.source != GuestSource::CpuIdle {
            return;
        }
        let waking = Waking { time_ns: event.time_ns, on_cpu: event.cpu, by: None };
        for bit in (0..u64::BITS).filter(|bit| mask >> bit & 1 == 1) {
            let number = first.saturating_add(bit);
            let halted = |cpu: &Cpu| cpu.idle.is_some_and(|idle| idle.halted != Some(false));
            if number != event.cpu && self.cpus.get(&number).is_some_and(halted) {
                self.wakes(number, waking);
            }
        }
    }

    fn switch(&mut self, event: &Event, prev: i32, next: i32, found: &mut Vec<PairedEpisode>) {
        if self.source == GuestSource::CpuIdle {
            if let Some(cpu) = self.cpus.get_mut(&event.cpu) {
                cpu.left_by_task_ns = (next == 0).then_some(event.time_ns);
                if prev == 0 && next != 0 {
                    let held = cpu.held.take();
                    found.extend(held.map(|held| held.ended_by_task(event.cpu, event.time_ns)));
                }
            }
            return;
        }
        if next == 0 {
            self.begin(event.cpu, event.time_ns, None, found);
        } else if prev == 0 {
            let waking = self.wakings.remove(&next);
            self.end(event.cpu, event.time_ns, waking, found);
        }
    }

    fn cpu_idle(&mut self, number: u32, time_ns: u64, state: Option<u32>, found: &mut Vec<PairedEpisode>) {
        if self.source != GuestSource::CpuIdle {
            let polls = state == self.polling_state;
            if let (Some(idle), Some(_)) = (&mut self.cpu(number).idle, state) {
                idle.polled.get_or_insert(polls);
                idle.halted = Some(idle.halted == Some(true) || !polls);
            }
            return;
        }
        match state {
            Some(state) => self.begin(number, time_ns, Some(state), found),
            None => {
                let waking = self.cpu(number).waking.take();
                let waking = waking.filter(|waking| time_ns.saturating_sub(waking.time_ns) <= SAME_WAKE_NS);
                self.end(number, time_ns, waking, found);
            }
        }
    }

    /// The governor changed the window, at the end of a period of idling: with `cpu_idle` that is over, with
    /// switches the idle task still runs.
    fn window(&mut self, number: u32, new: u32, old: u32) {
        let cpu = self.cpu(number);
        if let Some(idle) = &mut cpu.idle {
            idle.window_ns.get_or_insert(old);
        } else if let Some(held) = &mut cpu.held {
            held.idle.window_ns = Some(old);
            held.episode.window_ns = held.idle.window_ns();
        }
        cpu.window_ns = Some(new);
    }

    /// The governor has decided on a window, after a halt whose length shows on which side of the maximum it was.
    fn decided(&mut self, number: u32, old: u32, new: u32) {
        let held = self.cpus.get(&number).and_then(|cpu| cpu.held);
        if let Some(Held { idle, end_ns, .. }) = held.filter(|held| held.idle.halted == Some(true)) {
            self.residencies.add(end_ns.saturating_sub(idle.state_ns), old, new);
        }
    }

    /// The driver ends an episode of its own; the state is not left yet.
    fn reported(&mut self, number: u32, window_ns: u64, halted: bool) {
        if let Some(idle) = &mut self.cpu(number).idle {
            let reported = idle.reported.get_or_insert(Reported { window_ns, halted });
            reported.halted |= halted;
        }
    }

    /// Events were lost, of one CPU or of any: what was going on there is not to be trusted.
    fn lost(&mut self, number: Option<u32>, found: &mut Vec<PairedEpisode>) {
        // Any task may have run unseen since it was woken.
        self.wakings.clear();
        match number {
            Some(number) => self.forget(number, found),
            None => self.numbers().into_iter().for_each(|number| self.forget(number, found)),
        }
    }

    fn forget(&mut self, number: u32, found: &mut Vec<PairedEpisode>) {
        let cpu = self.cpu(number);
        found.extend(cpu.held.take().map(|held| held.episode));
        let unfinished = cpu.idle.take().is_some();
        cpu.forget_events();
        (cpu.window_ns, cpu.left_by_task_ns, cpu.halted_before) = (None, None, false);
        self.incomplete += u64::from(unfinished);
    }

    /// The CPUs in the order in which they appeared.
    fn numbers(&self) -> Vec<u32> {
        let mut numbers: Vec<(u32, u32)> =
            self.cpus.iter().map(|(number, cpu)| (cpu.idler, *number)).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|(_, number)| number).collect()
    }
}

const fn wake_of(interrupt: Interrupt) -> WakeCause {
    match interrupt {
        Interrupt::Timer => WakeCause::Timer,
        Interrupt::Ipi => WakeCause::Ipi,
        Interrupt::Device => WakeCause::Irq,
    }
}

impl Pairing for GuestPairing {
    fn observe(&mut self, event: &Event, found: &mut Vec<PairedEpisode>) {
        self.segments.iter_mut().for_each(|segments| segments.observe(event));
        match event.kind {
            EventKind::CpuIdle { cpu, state } => self.cpu_idle(cpu, event.time_ns, state, found),
            EventKind::Switch { prev, next, .. } => self.switch(event, prev, next, found),
            EventKind::Waking { woken, target } => self.waking(event, woken, target),
            EventKind::Interrupt(interrupt) => self.interrupt(event, interrupt),
            EventKind::IpiRaise { first, mask } => self.raised(event, first, mask),
            EventKind::GuestHaltPoll { new, old } => {
                self.decided(event.cpu, old, new);
                self.window(event.cpu, new, old);
            }
            EventKind::DwellIdle { window_ns, halted } => self.reported(event.cpu, window_ns, halted),
            EventKind::Reflect { limit_ns, .. } => {
                let limit = u32::try_from(limit_ns).unwrap_or(u32::MAX);
                self.window(event.cpu, limit, limit);
            }
            EventKind::Gap { cpu, until_ns } => {
                self.gap_until_ns = self.gap_until_ns.max(until_ns);
                self.lost(Some(cpu), found);
            }
            EventKind::Lost { cpu, .. } => self.lost(cpu, found),
            _ => {}
        }
    }

    fn finish(&mut self, found: &mut Vec<PairedEpisode>) {
        self.lost(None, found);
    }

    fn idlers(&self) -> &[String] {
        self.idlers.names()
    }

    fn incomplete(&self) -> u64 {
        self.incomplete
    }

    fn idle_includes(&self) -> IdleIncludes {
        if self.wakes_seen { IdleIncludes::Event } else { IdleIncludes::Wake }
    }

    fn notes(&self) -> BTreeMap<String, Value> {
        let mut notes = BTreeMap::from([(
            "dwell.guest".to_owned(),
            json!({
                "source": self.source.name(),
                "cpus_without_cpu_idle": self.silent,
                "interrupts_polled_through": self.polled_through,
                "idle_ns": "to the event; where wake_latency_ns is null the event is not known and the wakeup latency is \
                    included",
            }),
        )]);
        self.segments.iter().for_each(|segments| segments.rows.note(&mut notes));
        notes
    }

    fn poll_step_ns(&self, about_ns: u64) -> Option<u64> {
        self.full_polls.step_ns(about_ns)
    }

    fn halt_entry_ns(&self) -> Option<u64> {
        self.entries.later_ns()
    }

    fn residency_shorter_ns(&self, max_ns: u64) -> u64 {
        self.residencies.shorter_ns(max_ns)
    }

    fn take_segments(&mut self) -> Option<Segments> {
        self.segments.as_mut().map(SegmentPairing::finish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(time_ns: u64, cpu: u32, kind: EventKind) -> Event {
        Event { time_ns, cpu, pid: 0, tid: 0, kind }
    }

    fn run(events: &[Event]) -> (GuestPairing, Vec<PairedEpisode>) {
        let switches = events.iter().any(|event| matches!(event.kind, EventKind::Switch { .. }));
        let source = if switches { GuestSource::Switch } else { GuestSource::CpuIdle };
        let (mut pairing, mut found) =
            (GuestPairing::new(source, vec![]).with_polling_state(Some(0)), vec![]);
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        pairing.finish(&mut found);
        (pairing, found)
    }

    fn idle(state: u32) -> EventKind {
        EventKind::CpuIdle { cpu: 0, state: Some(state) }
    }

    fn switch(prev: i32, next: i32) -> EventKind {
        EventKind::Switch { prev, prev_runnable: None, next }
    }

    const LEFT: EventKind = EventKind::CpuIdle { cpu: 0, state: None };
    const TIMER: EventKind = EventKind::Interrupt(Interrupt::Timer);
    const IPI: EventKind = EventKind::Interrupt(Interrupt::Ipi);

    fn seen(found: &[PairedEpisode]) -> Vec<(u64, u64, Option<WakeCause>, Option<u64>)> {
        found.iter().map(|f| (f.start_ns, f.idle_ns, f.wake, f.wake_latency_ns)).collect()
    }

    /// The governor's own figure, before anything changed.
    #[test]
    fn the_window_is_known_from_the_first_decision_that_is_seen() {
        let reflect = |state| EventKind::Reflect { state, residency_ns: 1, limit_ns: 50_000 };
        let (_, found) = run(&[
            event(0, 0, idle(0)),
            event(50_100, 0, LEFT),
            event(50_200, 0, reflect(0)),
            event(50_300, 0, idle(1)),
            event(90_000, 0, LEFT),
            event(90_100, 0, reflect(1)),
            event(90_200, 0, EventKind::GuestHaltPoll { new: 100_000, old: 50_000 }),
            event(99_000, 0, idle(0)),
            event(99_500, 0, LEFT),
        ]);
        let windows: Vec<_> = found.iter().map(|f| (f.start_ns, f.idle_ns, f.window_ns)).collect();
        assert_eq!(windows, [(0, 90_000, Some(50_000)), (99_000, 500, Some(100_000))]);
    }

    /// After a poll that ran out; another CPU's waking ends the idle time where no halt was entered.
    #[test]
    fn an_event_on_the_way_to_a_halt_ends_the_idle_time() {
        let waking = |at, cpu| event(at, cpu, EventKind::Waking { woken: 7, target: 0 });
        let of = |window_ns: u32, waking, ran_ns| {
            let window = EventKind::GuestHaltPoll { new: window_ns, old: window_ns };
            let mut pairing = GuestPairing::new(GuestSource::CpuIdle, vec![]).with_polling_state(Some(0));
            let mut found = vec![];
            for event in [
                event(0, 0, window),
                event(1_000, 0, idle(0)),
                event(55_000, 0, LEFT),
                waking,
                event(ran_ns, 0, switch(0, 7)),
                // Halts at once, so soon that it might still idle.
                event(ran_ns + 1_000, 0, switch(7, 0)),
                event(ran_ns + 2_000, 0, idle(1)),
            ] {
                pairing.observe(&event, &mut found);
            }
            pairing.finish(&mut found);
            seen(&found)
        };
        let unknown = vec![(1_000, 54_000, Some(WakeCause::Unknown), None)];
        assert_eq!(
            of(50_000, waking(59_000, 1), 62_000),
            [(1_000, 58_000, Some(WakeCause::Ipi), Some(3_000))]
        );
        // A poll that something else ended, one by an interrupt of this CPU, and too late.
        assert_eq!(of(60_000, waking(59_000, 1), 62_000), unknown);
        assert_eq!(of(50_000, waking(59_000, 0), 62_000), unknown);
        assert_eq!(of(50_000, waking(56_000, 1), 56_000 + HALTS_NS), unknown);
    }

    /// Whether or not the governor's figures before each decision are recorded, too.
    #[test]
    fn decisions_show_the_time_between_a_halts_event_and_the_governors_clock() {
        for reflects in [false, true] {
            let mut pairing = GuestPairing::new(GuestSource::CpuIdle, vec![]).with_polling_state(Some(0));
            let mut see = |at_ns, kind| pairing.observe(&event(at_ns, 0, kind), &mut vec![]);
            for number in 0..2_000u64 {
                let (at_ns, halt_ns) = (number * 1_000_000, 14_000 + number);
                see(at_ns, idle(1));
                see(at_ns + halt_ns, LEFT);
                if reflects {
                    let residency_ns = halt_ns - 310;
                    see(at_ns + halt_ns + 10, EventKind::Reflect { state: 1, residency_ns, limit_ns: 0 });
                }
                let new = if halt_ns - 310 <= 15_000 { 3_750 } else { 0 };
                see(at_ns + halt_ns + 20, EventKind::GuestHaltPoll { new, old: 0 });
            }
            assert_eq!(pairing.residency_shorter_ns(15_000), 310, "{reflects}");
        }
    }

    /// Compared are CPUs that run a task after a halt, and then halt at once or poll first.
    #[test]
    fn a_cpu_that_halts_at_once_is_later_in_its_idle_state() {
        let mut events = vec![];
        for number in 0..100u64 {
            let (begun_ns, polls) = (number * 1_000_000, number % 2 == 0);
            // Two polls that succeed; the entry into the second one, after a poll, is faster.
            for (before_ns, entry_ns) in
                [(20_000, 700), (11_000, 100)].into_iter().filter(|_| polls && number > 0)
            {
                let left_ns = begun_ns - before_ns;
                events.push(event(left_ns, 0, switch(7, 0)));
                events.push(event(left_ns + entry_ns, 0, idle(0)));
                events.push(event(left_ns + 3_000, 0, LEFT));
                events.push(event(left_ns + 4_000, 0, switch(0, 7)));
            }
            let state = if polls { idle(0) } else { idle(1) };
            events.push(event(begun_ns, 0, switch(7, 0)));
            events.push(event(begun_ns + if polls { 700 } else { 6_900 }, 0, state));
            if polls {
                events.push(event(begun_ns + 100_700, 0, LEFT));
                events.push(event(begun_ns + 107_000, 0, idle(1)));
            }
            events.push(event(begun_ns + 300_000, 0, LEFT));
            // A tick, after which it idles on.
            events.push(event(begun_ns + 302_000, 0, idle(1)));
            events.push(event(begun_ns + 600_000, 0, LEFT));
            events.push(event(begun_ns + 601_000, 0, switch(0, 7)));
        }
        let mut pairing = GuestPairing::new(GuestSource::CpuIdle, vec![]).with_polling_state(Some(0));
        let few = events.len() / 4;
        events[..few].iter().for_each(|event| pairing.observe(event, &mut vec![]));
        assert_eq!(pairing.halt_entry_ns(), None);
        events[few..].iter().for_each(|event| pairing.observe(event, &mut vec![]));
        assert_eq!(pairing.halt_entry_ns(), Some(6_200));
    }

    /// The event is what made the other CPU send the interrupt, or else its sending, or else its arrival.
    #[test]
    fn an_interrupt_sent_by_another_cpu_ends_a_halt() {
        let raise = |at, mask| event(at, 1, EventKind::IpiRaise { first: 0, mask });
        let waking = event(880, 1, EventKind::Waking { woken: 7, target: 0 });
        for (events, idle_ns) in [
            (vec![raise(900, 1), event(950, 0, IPI)], 800),
            (vec![waking, raise(900, 1), event(950, 0, IPI)], 780),
            (vec![raise(900, 1)], 800),
            // Of others, and of itself.
            (vec![raise(900, 6), event(950, 0, IPI)], 850),
            (vec![event(900, 0, EventKind::IpiRaise { first: 0, mask: 1 }), event(950, 0, IPI)], 850),
        ] {
            let all = [vec![event(100, 0, idle(1))], events, vec![event(1000, 0, LEFT)]].concat();
            let wanted = (100, idle_ns, Some(WakeCause::Ipi), Some(900 - idle_ns));
            assert_eq!(seen(&run(&all).1), [wanted]);
        }
        // A poll goes on.
        let (_, found) = run(&[event(100, 0, idle(0)), raise(900, 1), event(1000, 0, LEFT)]);
        assert_eq!(seen(&found), [(100, 900, Some(WakeCause::Unknown), None)]);
    }

    #[test]
    fn a_timer_ends_idling_when_it_fires() {
        let (_, found) = run(&[
            event(100, 0, idle(1)),
            event(900, 0, TIMER),
            event(950, 0, EventKind::Waking { woken: 7, target: 0 }),
            event(1000, 0, LEFT),
        ]);
        assert_eq!(seen(&found), [(100, 800, Some(WakeCause::Timer), Some(100))]);
        assert_eq!(found[0].halted, Some(true));
    }

    #[test]
    fn another_cpu_ends_idling_when_it_wakes_a_task() {
        let (_, found) = run(&[
            event(100, 0, idle(1)),
            event(700, 1, EventKind::Waking { woken: 7, target: 0 }),
            event(900, 0, IPI),
            event(1000, 0, LEFT),
        ]);
        assert_eq!(seen(&found), [(100, 600, Some(WakeCause::Ipi), Some(300))]);
    }

    #[test]
    fn an_interrupt_taken_after_the_state_was_left_is_the_wake_cause() {
        let (_, found) = run(&[
            event(100, 0, idle(1)),
            event(1000, 0, LEFT),
            event(1200, 0, EventKind::Interrupt(Interrupt::Device)),
        ]);
        assert_eq!(seen(&found), [(100, 900, Some(WakeCause::Irq), None)]);
    }

    #[test]
    fn where_no_state_polls_every_period_is_an_episode_that_halted() {
        let trace =
            [event(0, 0, idle(0)), event(500, 0, LEFT), event(503, 0, idle(0)), event(1_100, 0, LEFT)];
        let (mut pairing, mut found) =
            (GuestPairing::new(GuestSource::CpuIdle, vec![]).with_polling_state(None), vec![]);
        trace.iter().for_each(|event| pairing.observe(event, &mut found));
        pairing.finish(&mut found);
        let seen: Vec<_> = found.iter().map(|f| (f.start_ns, f.idle_ns, f.halted)).collect();
        assert_eq!(seen, [(0, 500, Some(true)), (503, 597, Some(true))]);
    }

    #[test]
    fn a_poll_that_ran_out_and_the_halt_after_it_are_one_episode() {
        let (_, found) = run(&[
            event(100, 0, idle(0)),
            event(50_100, 0, LEFT),
            event(50_600, 0, idle(1)),
            event(90_000, 0, TIMER),
            event(90_100, 0, LEFT),
            event(95_000, 0, idle(0)),
            event(96_000, 1, EventKind::Waking { woken: 7, target: 0 }),
            event(96_050, 0, LEFT),
            event(96_500, 0, idle(0)),
        ]);
        assert_eq!(
            seen(&found),
            [
                (100, 89_900, Some(WakeCause::Timer), Some(100)),
                (95_000, 1_000, Some(WakeCause::Ipi), Some(50))
            ]
        );
        assert_eq!((found[0].halted, found[1].halted), (Some(true), Some(false)));
    }

    /// A nested guest takes 11 us to program the timer before it halts. A task that is woken meanwhile runs before that.
    #[test]
    fn a_halt_follows_late_where_the_tick_is_stopped_first() {
        let trace = |between: &[Event]| {
            let poll = [
                event(0, 0, EventKind::GuestHaltPoll { new: 50_000, old: 25_000 }),
                event(500, 1, EventKind::Waking { woken: 7, target: 1 }),
                event(1_000, 0, idle(0)),
                event(54_970, 0, LEFT),
            ];
            let halt = [event(66_056, 0, idle(1)), event(1_068_972, 0, TIMER), event(1_069_000, 0, LEFT)];
            seen(&run(&[&poll, between, &halt].concat()).1)
        };
        assert_eq!(trace(&[]), [(1_000, 1_067_972, Some(WakeCause::Timer), Some(28))]);
        let woken = trace(&[event(60_000, 1, EventKind::Waking { woken: 8, target: 0 })]);
        assert_eq!(woken.iter().map(|(start_ns, ..)| *start_ns).collect::<Vec<_>>(), [1_000, 66_056]);
    }

    /// fio on CPU 0, the disk's interrupt on CPU 1, which has nothing to run.
    #[test]
    fn an_interrupt_that_wakes_nobody_on_its_cpu_ends_a_halt_but_no_poll() {
        let disk = EventKind::Interrupt(Interrupt::Device);
        let limit = |ns| EventKind::Reflect { state: 0, residency_ns: 1, limit_ns: ns };
        let fio = EventKind::Waking { woken: 7, target: 0 };
        let (pairing, found) = run(&[
            event(0, 1, EventKind::CpuIdle { cpu: 1, state: Some(0) }),
            event(33_000, 1, disk),
            event(34_000, 1, fio),
            event(68_000, 1, disk),
            event(69_000, 1, fio),
            event(100_400, 1, EventKind::CpuIdle { cpu: 1, state: None }),
            event(100_500, 1, limit(100_000)),
            event(100_900, 1, EventKind::CpuIdle { cpu: 1, state: Some(1) }),
            event(112_000, 1, EventKind::CpuIdle { cpu: 1, state: None }),
            event(112_900, 1, disk),
            event(113_400, 1, fio),
            event(115_000, 1, EventKind::CpuIdle { cpu: 1, state: Some(0) }),
            event(148_000, 1, disk),
            event(149_000, 1, EventKind::Waking { woken: 9, target: 1 }),
            event(150_500, 1, EventKind::CpuIdle { cpu: 1, state: None }),
        ]);
        assert_eq!(
            seen(&found),
            [(0, 112_000, Some(WakeCause::Irq), None), (115_000, 33_000, Some(WakeCause::Irq), Some(2_500))]
        );
        let windows: Vec<_> = found.iter().map(|f| (f.halted, f.window_ns)).collect();
        assert_eq!(windows, [(Some(true), Some(100_000)), (Some(false), Some(100_000))]);
        assert_eq!(pairing.notes()["dwell.guest"]["interrupts_polled_through"], 2);
    }

    /// Another CPU asks for a function, to which a polling CPU is called without an interrupt.
    #[test]
    fn a_poll_that_ends_before_its_window_is_an_episode_though_no_event_is_seen() {
        let polls = [
            event(0, 0, EventKind::GuestHaltPoll { new: 50_000, old: 25_000 }),
            event(1_000, 0, idle(0)),
            event(9_000, 0, TIMER),
            event(31_000, 0, LEFT),
            event(31_800, 0, idle(0)),
            event(82_000, 0, LEFT),
            event(82_700, 0, idle(1)),
            event(90_000, 0, LEFT),
        ];
        let unknown = |start, idle| (start, idle, Some(WakeCause::Unknown), None);
        let (_, found) = run(&polls);
        assert_eq!(seen(&found), [unknown(1_000, 30_000), unknown(31_800, 58_200)]);
        // Where the window is not known it may have run out.
        let (_, found) = run(&polls[1..]);
        assert_eq!(seen(&found), [unknown(1_000, 89_000)]);
    }

    /// `target_cpu` is where the task ran last, and it may be sent elsewhere.
    #[test]
    fn a_waking_ends_a_poll_at_once_or_not_at_all() {
        let (_, found) = run(&[
            event(0, 0, idle(0)),
            event(20_000, 1, EventKind::Waking { woken: 7, target: 0 }),
            event(60_000, 1, EventKind::Waking { woken: 8, target: 0 }),
            event(62_000, 1, EventKind::Waking { woken: 9, target: 0 }),
            event(63_000, 0, LEFT),
            event(90_000, 0, idle(0)),
            event(95_000, 0, IPI),
            event(96_000, 0, EventKind::Waking { woken: 7, target: 1 }),
            event(99_000, 0, LEFT),
            event(200_000, 0, idle(0)),
            event(205_000, 1, EventKind::Waking { woken: 7, target: 0 }),
            event(250_000, 0, LEFT),
            event(250_800, 0, idle(1)),
            event(300_000, 0, LEFT),
        ]);
        assert_eq!(
            seen(&found),
            [
                (0, 60_000, Some(WakeCause::Ipi), Some(3_000)),
                (90_000, 5_000, Some(WakeCause::Ipi), Some(4_000)),
                (200_000, 100_000, Some(WakeCause::Unknown), None),
            ]
        );
        assert_eq!(found[2].halted, Some(true));
    }

    #[test]
    fn with_switches_the_task_that_runs_next_decides_the_event() {
        let (_, found) = run(&[
            event(100, 0, switch(5, 0)),
            event(300, 1, EventKind::Waking { woken: 9, target: 0 }),
            event(400, 1, EventKind::Waking { woken: 7, target: 1 }),
            event(450, 0, IPI),
            event(500, 0, switch(0, 7)),
            event(600, 0, switch(7, 0)),
            event(800, 0, TIMER),
            event(810, 0, EventKind::Waking { woken: 8, target: 0 }),
            event(900, 0, switch(0, 8)),
        ]);
        assert_eq!(
            seen(&found),
            [(100, 300, Some(WakeCause::Ipi), Some(100)), (600, 200, Some(WakeCause::Timer), Some(100))]
        );
    }

    #[test]
    fn the_window_is_the_governors_or_the_length_of_a_poll_that_ran_out() {
        let changed = |new, old| EventKind::GuestHaltPoll { new, old };
        let (_, found) = run(&[
            event(1_000, 0, idle(0)),
            event(2_700, 0, LEFT),
            event(2_800, 0, idle(1)),
            event(90_000, 0, LEFT),
            event(150_000, 0, idle(0)),
            event(151_000, 0, LEFT),
            event(151_100, 0, changed(8_000, 4_000)),
            event(200_000, 0, idle(0)),
            event(201_000, 0, LEFT),
            event(250_000, 0, idle(1)),
            event(251_000, 0, LEFT),
            event(251_100, 0, changed(0, 8_000)),
            event(300_000, 0, idle(1)),
            event(301_000, 0, LEFT),
        ]);
        let windows: Vec<_> = found.iter().map(|episode| episode.window_ns).collect();
        assert_eq!(windows, [Some(1_700), Some(4_000), Some(8_000), Some(0), Some(0)]);
        assert_eq!(found[0].idle_ns, 89_000);
    }

    #[test]
    fn the_driver_dwell_idle_reports_window_and_halt() {
        let ended = |window_ns, halted| EventKind::DwellIdle { window_ns, halted };
        let (_, found) = run(&[
            event(1_000, 0, idle(1)),
            event(4_000, 0, EventKind::Waking { woken: 7, target: 0 }),
            event(4_100, 0, ended(7_500, false)),
            event(4_200, 0, LEFT),
            event(20_000, 0, idle(1)),
            event(90_000, 0, TIMER),
            event(90_100, 0, ended(0, true)),
            event(90_200, 0, LEFT),
        ]);
        let seen: Vec<_> = found.iter().map(|f| (f.idle_ns, f.window_ns, f.halted)).collect();
        assert_eq!(seen, [(3_000, Some(7_500), Some(false)), (70_000, Some(0), Some(true))]);
    }

    #[test]
    fn the_other_source_begins_and_ends_nothing() {
        let trace = [
            event(100, 0, switch(5, 0)),
            event(150, 0, idle(1)),
            event(880, 0, LEFT),
            event(900, 0, switch(0, 5)),
        ];
        let by = |source| {
            let (mut pairing, mut found) = (GuestPairing::new(source, vec![]), vec![]);
            trace.iter().for_each(|event| pairing.observe(event, &mut found));
            pairing.finish(&mut found);
            assert_eq!((pairing.incomplete(), pairing.idle_includes()), (0, IdleIncludes::Wake));
            found.iter().map(|f| (f.start_ns, f.idle_ns, f.halted)).collect::<Vec<_>>()
        };
        assert_eq!(by(GuestSource::CpuIdle), [(150, 730, Some(true))]);
        assert_eq!(by(GuestSource::Switch), [(100, 800, Some(true))]);
    }

    #[test]
    fn a_loss_ends_nothing() {
        let (pairing, found) = run(&[
            event(100, 0, idle(1)),
            event(500, 0, EventKind::Lost { cpu: Some(0), count: 3 }),
            event(600, 0, LEFT),
            event(700, 0, idle(1)),
            event(900, 0, LEFT),
        ]);
        assert_eq!(seen(&found), [(700, 200, Some(WakeCause::Unknown), None)]);
        assert_eq!(pairing.incomplete(), 2);
    }

    /// Slow and obvious: each switch to idle with the next switch of that CPU, if it is one from idle; the event is the
    /// last waking of the next task in between, by the last interrupt before it if it is on this CPU; without a waking
    /// the last interrupt of the CPU in between.
    fn oracle(events: &[Event]) -> Vec<(u32, u64, u64)> {
        let mut episodes = vec![];
        for (at, begin) in events.iter().enumerate() {
            let EventKind::Switch { next: 0, .. } = begin.kind else { continue };
            let of_cpu =
                |event: &&Event| event.cpu == begin.cpu && matches!(event.kind, EventKind::Switch { .. });
            let Some(end) = events[at + 1..].iter().find(of_cpu) else { continue };
            let EventKind::Switch { prev: 0, next, .. } = end.kind else { continue };
            if next == 0 {
                continue;
            }
            let between = || events.iter().filter(|e| e.time_ns >= begin.time_ns && e.time_ns <= end.time_ns);
            let waking =
                between().rfind(|e| matches!(e.kind, EventKind::Waking { woken, .. } if woken == next));
            let until = waking.map_or(end.time_ns, |waking| waking.time_ns);
            let interrupt = between()
                .filter(|e| e.cpu == begin.cpu && matches!(e.kind, EventKind::Interrupt(_)))
                .rfind(|e| e.time_ns <= until);
            let event = match waking {
                Some(waking) if waking.cpu != begin.cpu => waking.time_ns,
                waking => interrupt.or(waking).map_or(end.time_ns, |event| event.time_ns),
            };
            episodes.push((begin.cpu, begin.time_ns, event - begin.time_ns));
        }
        episodes.sort_unstable();
        episodes
    }

    proptest! {
        /// Each thread wakes and runs at most once here, so that the oracle need not know which waking was used up.
        #[test]
        fn pairs_switches_as_the_oracle_does(
            steps in prop::collection::vec((1u64..100, 0u32..2, 0u32..4, 0u32..2), 0..150),
        ) {
            let (mut time, mut thread) = (0, 1);
            let mut idle = [false; 2];
            let mut woken: Option<i32> = None;
            let mut events = vec![];
            for (gap, cpu, step, from) in steps {
                time += gap;
                let at = cpu as usize;
                let kind = match step {
                    0 if !idle[at] => { idle[at] = true; EventKind::Switch { prev: 1_000, prev_runnable: None, next: 0 } }
                    1 if idle[at] => {
                        idle[at] = false;
                        thread += 1;
                        EventKind::Switch { prev: 0, prev_runnable: None, next: woken.take().unwrap_or(thread) }
                    }
                    2 => { thread += 1; woken = Some(thread); EventKind::Waking { woken: thread, target: from } }
                    _ => EventKind::Interrupt(Interrupt::Timer),
                };
                events.push(event(time, cpu, kind));
            }
            let (pairing, found) = run(&events);
            let mut pairs: Vec<_> = found.iter().map(|f| {
                let cpu: u32 = pairing.idlers()[f.idler as usize][3..].parse().unwrap();
                (cpu, f.start_ns, f.idle_ns)
            }).collect();
            pairs.sort_unstable();
            prop_assert_eq!(pairs, oracle(&events));
        }
    }
}
