//! The CPUs of this machine: when they idle, until which event, and what that event was.
//!
//! # Two sources
//! `power:cpu_idle` tells when a CPU enters an idle state and when it leaves it. On some kernels perf gets nothing from the
//! idle task of some CPUs, neither this nor `sched:sched_switch`. There perf's own record of context switches tells when the
//! idle task gets the CPU and when it gives it away. [`GuestSource::Auto`] makes every CPU idle once and takes the first if
//! all of them speak. What a silent idle task is interrupted by remains unknown: episodes that its own timer or a device
//! ends then include the wake.
//!
//! # The end of an episode
//! An episode is to end at the event, not when the CPU runs again. The event is, whichever is first: a `sched:sched_waking`
//! for this CPU (with `cpu_idle`) or for the task that runs next (with `sched_switch`); an interrupt that this CPU handles
//! no more than [`SAME_WAKE_NS`] before it leaves idle. From there to the end of idling is the wake latency. Where neither
//! was seen the episode ends when idling does, and has no wake latency.
//!
//! # The kind of wake
//! An interrupt of this CPU tells it: its timer, another CPU, a device. A waking on another CPU without one is another
//! CPU's too (a polling CPU is woken without an interrupt). A waking on this CPU without a traced interrupt is a task's.
//!
//! # Polling
//! State 0 of x86 is the polling state. If it is left without anything having come, and another state follows within
//! [`CONTINUES_NS`], both are one episode: the window ran out and the CPU halted. The window is told where the haltpoll
//! governor has (`power:guest_halt_poll_ns`).

use crate::event::{Event, Interrupt, What};
use crate::pairing::{ByNumber, Found, Pairing};
use dwell_recording::WakeCause;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What tells that a CPU idles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestSource {
    /// [`GuestSource::CpuIdle`] if every CPU emits it, else [`GuestSource::Switch`].
    #[default]
    Auto,
    /// `power:cpu_idle`.
    CpuIdle,
    /// Context switches to and from the idle task, as perf records them.
    Switch,
}

impl GuestSource {
    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            GuestSource::Auto => "auto",
            GuestSource::CpuIdle => "cpu_idle",
            GuestSource::Switch => "switch",
        }
    }
}

/// An interrupt or a waking this long before the end of idling still belongs to it \[ns\]: more than any wake-up takes
/// except on a host that has taken the CPU away, less than a tick.
pub const SAME_WAKE_NS: u64 = 1_000_000;

/// A state entered so soon after polling continues the same episode \[ns\]: the idle loop turns in about a microsecond, a
/// task that runs in between takes longer.
pub const CONTINUES_NS: u64 = 10_000;

/// Makes episodes of CPUs, from whichever of the two sources there is.
pub struct GuestPairing {
    cpus: ByNumber<u32, Cpu>,
    names: Vec<String>,
    /// Of each thread, when and on which CPU it was woken last.
    wakings: ByNumber<i32, Waking>,
    incomplete: u64,
    silent: Vec<u32>,
    source: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Waking {
    time_ns: u64,
    on_cpu: u32,
}

#[derive(Debug)]
struct Cpu {
    idler: u32,
    idle: Option<Idle>,
    /// An episode that is over but for what the next event may say of it.
    held: Option<Held>,
    interrupt: Option<(u64, Interrupt)>,
    waking: Option<Waking>,
    window_ns: Option<u32>,
}

/// A period of idling that has begun.
#[derive(Clone, Copy, Debug)]
struct Idle {
    start_ns: u64,
    /// Whether a state other than polling was entered; `None` where states are not traced.
    halted: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    idle: Idle,
    end_ns: u64,
    found: Found,
}

/// Only x86 has a polling state 0; elsewhere it is the shallowest halt.
const POLL_STATE: Option<u32> = if cfg!(target_arch = "x86_64") { Some(0) } else { None };

impl Default for GuestPairing {
    fn default() -> Self {
        GuestPairing::new()
    }
}

impl GuestPairing {
    /// No CPU is known to idle. `source` is where the events come from and `silent` are the CPUs whose idle task emits
    /// none, for the notes.
    pub fn of(source: GuestSource, silent: Vec<u32>) -> GuestPairing {
        GuestPairing { silent, source: source.name(), ..GuestPairing::new() }
    }

    /// No CPU is known to idle.
    pub fn new() -> GuestPairing {
        GuestPairing {
            cpus: ByNumber::default(),
            names: vec![],
            wakings: ByNumber::default(),
            incomplete: 0,
            silent: vec![],
            source: "",
        }
    }

    fn cpu(&mut self, number: u32) -> &mut Cpu {
        let names = &mut self.names;
        self.cpus.entry(number).or_insert_with(|| {
            let idler = u32::try_from(names.len()).unwrap_or(u32::MAX);
            names.push(format!("cpu{number}"));
            Cpu { idler, idle: None, held: None, interrupt: None, waking: None, window_ns: None }
        })
    }

    fn begin(&mut self, number: u32, time_ns: u64, halted: Option<bool>, found: &mut Vec<Found>) {
        let cpu = self.cpu(number);
        let mut idle = Idle { start_ns: time_ns, halted };
        if let Some(held) = cpu.held.take() {
            let ran_out = held.idle.halted == Some(false) && held.found.wake == Some(WakeCause::Unknown);
            if ran_out && time_ns.saturating_sub(held.end_ns) <= CONTINUES_NS {
                idle.start_ns = held.idle.start_ns;
            } else {
                found.push(held.found);
            }
        }
        let unfinished = cpu.idle.replace(idle).is_some();
        self.incomplete += u64::from(unfinished);
    }

    /// The end of idling at `time_ns`, by `waking` where one is known. It is held back until the next event of this CPU.
    fn end(&mut self, number: u32, time_ns: u64, waking: Option<Waking>, found: &mut Vec<Found>) {
        let cpu = self.cpu(number);
        found.extend(cpu.held.take().map(|held| held.found));
        let Some(idle) = cpu.idle.take() else {
            self.incomplete += 1;
            return;
        };
        let recent = |at: u64| at >= idle.start_ns && time_ns.saturating_sub(at) <= SAME_WAKE_NS;
        let interrupt = cpu.interrupt.take().filter(|(at, _)| recent(*at));
        let waking = waking.filter(|waking| waking.time_ns >= idle.start_ns);
        let (event_ns, wake) = match (interrupt, waking) {
            (Some((at, interrupt)), Some(waking)) if waking.on_cpu != number => {
                // The interrupt that another CPU sent follows what made it send.
                let wake = if waking.time_ns <= at { WakeCause::Ipi } else { wake_of(interrupt) };
                (Some(at.min(waking.time_ns)), wake)
            }
            (Some((at, interrupt)), _) => (Some(at), wake_of(interrupt)),
            (None, Some(waking)) if waking.on_cpu == number => (Some(waking.time_ns), WakeCause::Task),
            (None, Some(waking)) => (Some(waking.time_ns), WakeCause::Ipi),
            (None, None) => (None, WakeCause::Unknown),
        };
        let episode = Found {
            idler: cpu.idler,
            start_ns: idle.start_ns,
            idle_ns: event_ns.unwrap_or(time_ns).saturating_sub(idle.start_ns),
            window_ns: cpu.window_ns.map(u64::from),
            halted: idle.halted,
            wake: Some(wake),
            wake_latency_ns: event_ns.map(|at| time_ns.saturating_sub(at)),
            alone_ns: None,
        };
        cpu.held = Some(Held { idle, end_ns: time_ns, found: episode });
    }

    /// An interrupt is of the idling that is going on, or, where it could be taken only after it (the idle state was left
    /// with interrupts off), tells what ended the one before.
    fn interrupt(&mut self, event: &Event, interrupt: Interrupt) {
        let cpu = self.cpu(event.cpu);
        if cpu.idle.is_some() {
            // The first one since the CPU was last woken is what woke it.
            let fresh = |at: u64| event.time_ns.saturating_sub(at) > SAME_WAKE_NS;
            if cpu.interrupt.is_none_or(|(at, _)| fresh(at)) {
                cpu.interrupt = Some((event.time_ns, interrupt));
            }
        } else if let Some(held) = &mut cpu.held
            && held.found.wake == Some(WakeCause::Unknown)
            && event.time_ns.saturating_sub(held.end_ns) <= SAME_WAKE_NS
        {
            held.found.wake = Some(wake_of(interrupt));
        }
    }

    fn switch(&mut self, event: &Event, prev: i32, next: i32, found: &mut Vec<Found>) {
        if next == 0 {
            self.begin(event.cpu, event.time_ns, None, found);
        } else if prev == 0 {
            let waking = self.wakings.remove(&next);
            self.end(event.cpu, event.time_ns, waking, found);
        }
    }

    fn cpu_idle(&mut self, number: u32, time_ns: u64, state: Option<u32>, found: &mut Vec<Found>) {
        match state {
            Some(state) => self.begin(number, time_ns, Some(Some(state) != POLL_STATE), found),
            None => {
                let waking = self.cpu(number).waking.take();
                let waking = waking.filter(|waking| time_ns.saturating_sub(waking.time_ns) <= SAME_WAKE_NS);
                self.end(number, time_ns, waking, found);
            }
        }
    }

    /// Something of this CPU was lost: what was going on there is not to be trusted.
    fn forget(&mut self, number: u32, found: &mut Vec<Found>) {
        let cpu = self.cpu(number);
        found.extend(cpu.held.take().map(|held| held.found));
        let unfinished = cpu.idle.take().is_some();
        (cpu.interrupt, cpu.waking, cpu.window_ns) = (None, None, None);
        self.incomplete += u64::from(unfinished);
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
    fn observe(&mut self, event: &Event, found: &mut Vec<Found>) {
        match event.what {
            What::CpuIdle { cpu, state } => self.cpu_idle(cpu, event.time_ns, state, found),
            What::Switch { prev, next } => self.switch(event, prev, next, found),
            What::Waking { woken, target } => {
                let waking = Waking { time_ns: event.time_ns, on_cpu: event.cpu };
                self.wakings.insert(woken, waking);
                let cpu = self.cpu(target);
                // The first one since the CPU went idle, unless it led to nothing.
                let stale = |old: Waking| waking.time_ns.saturating_sub(old.time_ns) > SAME_WAKE_NS;
                if cpu.idle.is_some() && cpu.waking.is_none_or(stale) {
                    cpu.waking = Some(waking);
                }
            }
            What::Interrupt(interrupt) => self.interrupt(event, interrupt),
            What::GuestHaltPoll { new, .. } => self.cpu(event.cpu).window_ns = Some(new),
            What::Lost { .. } => self.forget(event.cpu, found),
            _ => {}
        }
    }

    fn finish(&mut self, found: &mut Vec<Found>) {
        let mut held: Vec<Found> =
            self.cpus.values_mut().filter_map(|cpu| cpu.held.take()).map(|held| held.found).collect();
        held.sort_by_key(|found| found.idler);
        found.extend(held);
    }

    fn idlers(&self) -> &[String] {
        &self.names
    }

    fn incomplete(&self) -> u64 {
        self.incomplete
    }

    fn notes(&self) -> BTreeMap<String, Value> {
        BTreeMap::from([(
            "dwell.guest".to_owned(),
            json!({
                "source": self.source,
                "cpus_without_cpu_idle": self.silent,
                "idle_ns": "to the event; where wake_latency_ns is null the event is not known and the wake is included",
            }),
        )])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(time_ns: u64, cpu: u32, what: What) -> Event {
        Event { time_ns, cpu, pid: 0, tid: 0, what }
    }

    fn run(events: &[Event]) -> (GuestPairing, Vec<Found>) {
        let (mut pairing, mut found) = (GuestPairing::new(), vec![]);
        events.iter().for_each(|event| pairing.observe(event, &mut found));
        pairing.finish(&mut found);
        (pairing, found)
    }

    fn idle(state: u32) -> What {
        What::CpuIdle { cpu: 0, state: Some(state) }
    }

    const LEFT: What = What::CpuIdle { cpu: 0, state: None };
    const TIMER: What = What::Interrupt(Interrupt::Timer);
    const IPI: What = What::Interrupt(Interrupt::Ipi);

    fn seen(found: &[Found]) -> Vec<(u64, u64, Option<WakeCause>, Option<u64>)> {
        found.iter().map(|f| (f.start_ns, f.idle_ns, f.wake, f.wake_latency_ns)).collect()
    }

    #[test]
    fn a_timer_ends_idling_when_it_fires() {
        let (_, found) = run(&[
            event(100, 0, idle(1)),
            event(900, 0, TIMER),
            event(950, 0, What::Waking { woken: 7, target: 0 }),
            event(1000, 0, LEFT),
        ]);
        assert_eq!(seen(&found), [(100, 800, Some(WakeCause::Timer), Some(100))]);
        assert_eq!(found[0].halted, Some(true));
    }

    #[test]
    fn another_cpu_ends_idling_when_it_wakes_a_task() {
        let (_, found) = run(&[
            event(100, 0, idle(1)),
            event(700, 1, What::Waking { woken: 7, target: 0 }),
            event(900, 0, IPI),
            event(1000, 0, LEFT),
        ]);
        assert_eq!(seen(&found), [(100, 600, Some(WakeCause::Ipi), Some(300))]);
    }

    #[test]
    fn an_interrupt_taken_after_the_state_was_left_tells_the_kind() {
        let (_, found) = run(&[
            event(100, 0, idle(1)),
            event(1000, 0, LEFT),
            event(1200, 0, What::Interrupt(Interrupt::Device)),
        ]);
        assert_eq!(seen(&found), [(100, 900, Some(WakeCause::Irq), None)]);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_poll_in_vain_and_the_halt_after_it_are_one_episode() {
        let (_, found) = run(&[
            event(100, 0, idle(0)),
            event(50_100, 0, LEFT),
            event(50_600, 0, idle(1)),
            event(90_000, 0, TIMER),
            event(90_100, 0, LEFT),
            event(95_000, 0, idle(0)),
            event(96_000, 1, What::Waking { woken: 7, target: 0 }),
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

    #[test]
    fn with_switches_the_task_that_runs_next_tells_the_event() {
        let (_, found) = run(&[
            event(100, 0, What::Switch { prev: 5, next: 0 }),
            event(300, 1, What::Waking { woken: 9, target: 0 }),
            event(400, 1, What::Waking { woken: 7, target: 1 }),
            event(450, 0, IPI),
            event(500, 0, What::Switch { prev: 0, next: 7 }),
            event(600, 0, What::Switch { prev: 7, next: 0 }),
            event(800, 0, TIMER),
            event(810, 0, What::Waking { woken: 8, target: 0 }),
            event(900, 0, What::Switch { prev: 0, next: 8 }),
        ]);
        assert_eq!(
            seen(&found),
            [(100, 300, Some(WakeCause::Ipi), Some(100)), (600, 200, Some(WakeCause::Timer), Some(100))]
        );
    }

    #[test]
    fn a_loss_ends_nothing() {
        let (pairing, found) = run(&[
            event(100, 0, idle(1)),
            event(500, 0, What::Lost { count: 3 }),
            event(600, 0, LEFT),
            event(700, 0, idle(1)),
            event(900, 0, LEFT),
        ]);
        assert_eq!(seen(&found), [(700, 200, Some(WakeCause::Unknown), None)]);
        assert_eq!(pairing.incomplete(), 2);
    }

    /// Slow and obvious: each switch to idle with the next switch of that CPU, if it is one from idle; the event is the
    /// last waking of the next task in between, or an interrupt of the CPU in between.
    fn oracle(events: &[Event]) -> Vec<(u32, u64, u64)> {
        let mut episodes = vec![];
        for (at, begin) in events.iter().enumerate() {
            let What::Switch { next: 0, .. } = begin.what else { continue };
            let of_cpu = |event: &&Event| event.cpu == begin.cpu && matches!(event.what, What::Switch { .. });
            let Some(end) = events[at + 1..].iter().find(of_cpu) else { continue };
            let What::Switch { prev: 0, next } = end.what else { continue };
            if next == 0 {
                continue;
            }
            let between = || events.iter().filter(|e| e.time_ns >= begin.time_ns && e.time_ns <= end.time_ns);
            let waking = between()
                .filter(|e| matches!(e.what, What::Waking { woken, .. } if woken == next))
                .map(|e| e.time_ns)
                .max();
            let interrupt = between()
                .filter(|e| e.cpu == begin.cpu && matches!(e.what, What::Interrupt(_)))
                .map(|e| e.time_ns)
                .min();
            let on_this = between()
                .rfind(|e| matches!(e.what, What::Waking { woken, .. } if woken == next))
                .is_some_and(|e| e.cpu == begin.cpu);
            let event = match (interrupt, waking) {
                (Some(interrupt), Some(_)) if on_this => interrupt,
                (Some(interrupt), Some(waking)) => interrupt.min(waking),
                (interrupt, waking) => interrupt.or(waking).unwrap_or(end.time_ns),
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
            for (gap, cpu, kind, from) in steps {
                time += gap;
                let at = cpu as usize;
                let what = match kind {
                    0 if !idle[at] => { idle[at] = true; What::Switch { prev: 1_000, next: 0 } }
                    1 if idle[at] => {
                        idle[at] = false;
                        thread += 1;
                        What::Switch { prev: 0, next: woken.take().unwrap_or(thread) }
                    }
                    2 => { thread += 1; woken = Some(thread); What::Waking { woken: thread, target: from } }
                    _ => What::Interrupt(Interrupt::Timer),
                };
                events.push(event(time, cpu, what));
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
