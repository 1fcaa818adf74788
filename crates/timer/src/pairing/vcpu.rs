//! One vCPU, its exit and its timer.

use super::reasons::Class;
use dwell_recording::timer::{ExitRow, Fire, Mechanism, TimerPart, TimerRow, TimerRows, VcpuState};
use dwell_trace::event::{Event, EventKind};

/// Steps and timers that are kept at most; the oldest are read first. Only a vCPU that is not entered for
/// long has as many.
const MOST_KEPT: usize = 64;

/// What is known of one vCPU.
#[derive(Debug, Default)]
pub(super) struct Vcpu {
    name: u32,
    pub(super) number: Option<u32>,
    /// Where its thread was last seen.
    cpu: Option<u32>,
    place: Place,
    /// Whether it has been seen to enter the guest.
    entered: bool,
    /// What happened to its timer since the exit.
    steps: Vec<Step>,
    /// The timer that is armed.
    armed: Option<TimerRow>,
    /// Timers that have fired and are not complete, with what is left to find out.
    fired: Vec<(TimerRow, Missing)>,
    /// Whether its hrtimer is known.
    pub(super) has_hrtimer: bool,
}

/// Where it is, by its last events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Unknown,
    Guest,
    Host(Exit),
}

/// The exit that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Exit {
    start_ns: u64,
    reason: u32,
    class: Class,
    cause: Option<TimerPart>,
    /// Interrupts taken by its thread since.
    interrupts: u32,
    /// Whether its thread has done anything since but take interrupts.
    went_on: bool,
    /// Whether its halt is over.
    awake: bool,
}

/// What is not known yet of a timer that has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// By what exit the vCPU notices; on its own CPU or not.
    Exit { own_cpu: bool },
    /// When the guest is entered; whether the interrupt has been accepted.
    Entry { accepted: bool },
    /// The end of KVM's wait, which comes after the entry.
    Wait,
}

/// A thing that happened to the timer.
#[derive(Clone, Copy, Debug)]
struct Step {
    time_ns: u64,
    cpu: u32,
    kind: StepKind,
}

#[derive(Clone, Copy, Debug)]
enum StepKind {
    /// An hrtimer of its thread, or its own.
    Start(Start),
    State {
        in_use: bool,
    },
    Deadline {
        value: u64,
    },
    Count {
        value: u64,
    },
    Fired {
        vcpu_on: Option<u32>,
        state: Option<VcpuState>,
        fire: Option<Fire>,
        missing: Missing,
    },
}

/// An hrtimer was started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Its address and function.
    pub(super) hrtimer: (u64, u64),
    pub(super) expires_ns: u64,
    /// It is known to be the vCPU's.
    pub(super) known: bool,
}

impl Vcpu {
    pub(super) fn new(name: u32, number: Option<u32>) -> Vcpu {
        Vcpu { name, number, ..Vcpu::default() }
    }

    pub(super) fn is_in_guest(&self) -> bool {
        self.place == Place::Guest
    }

    pub(super) fn moves(&mut self, cpu: u32) {
        self.cpu = Some(cpu);
    }

    /// Leaves the guest; returns how many exits are incomplete for it.
    pub(super) fn exit(
        &mut self,
        event: &Event,
        (reason, class): (u32, Class),
        accepts_seen: bool,
        found: &mut TimerRows,
    ) -> u64 {
        self.cpu = Some(event.cpu);
        self.read_steps(found);
        // The wait before an entry is over with the next exit.
        self.emit(found, |missing| missing == Missing::Wait);
        let mut cause = None;
        for (row, missing) in &mut self.fired {
            let Missing::Exit { own_cpu } = *missing else { continue };
            *missing = Missing::Entry { accepted: true };
            (row.state, row.fire) = match class {
                Class::Interrupt => {
                    cause = Some(TimerPart::Fire);
                    let fire = if own_cpu { Fire::HostInterrupt } else { Fire::RescheduleIpi };
                    (Some(VcpuState::InGuestMode), Some(fire))
                }
                // Without the event that shows it, it may have been posted.
                _ if !own_cpu && !accepts_seen => (None, None),
                _ => (Some(VcpuState::OutsideGuestMode), Some(Fire::AlreadyOutside)),
            };
        }
        if class == Class::HvTimer {
            cause = Some(TimerPart::Fire);
            let by_hv = |row: &TimerRow| row.mechanism != Some(Mechanism::Hrtimer);
            if let Some(row) = self.armed.take_if(|row| by_hv(row)) {
                let row = TimerRow {
                    mechanism: Some(Mechanism::HvTimer),
                    fired_on: Some(event.cpu),
                    vcpu_on: Some(event.cpu),
                    state: Some(VcpuState::InGuestMode),
                    fire: Some(Fire::HvTimerExit),
                    ..row
                };
                self.fires(row, event.time_ns, Missing::Entry { accepted: true }, found);
            }
        }
        let exit = Exit {
            start_ns: event.time_ns,
            reason,
            class,
            cause,
            interrupts: 0,
            went_on: false,
            awake: false,
        };
        let before = std::mem::replace(&mut self.place, Place::Host(exit));
        u64::from(matches!(before, Place::Host(_)))
    }

    pub(super) fn enter(&mut self, event: &Event, accepts_seen: bool, found: &mut TimerRows) {
        self.cpu = Some(event.cpu);
        self.read_steps(found);
        for (row, missing) in &mut self.fired {
            let Missing::Entry { accepted } = *missing else { continue };
            let elsewhere = row.fired_on != Some(event.cpu);
            if row.fire == Some(Fire::AlreadyOutside) && elsewhere && accepts_seen && !accepted {
                *missing = Missing::Exit { own_cpu: false };
                continue;
            }
            row.entered_ns = Some(event.time_ns);
            *missing = Missing::Wait;
        }
        if let Place::Host(exit) = self.place
            && self.entered
            && let Some(duration_ns) = event.time_ns.checked_sub(exit.start_ns)
        {
            let Exit { start_ns, reason, cause, .. } = exit;
            found.exits.push(ExitRow { vcpu: self.name, start_ns, duration_ns, reason, cause });
        }
        (self.place, self.entered) = (Place::Guest, true);
    }

    /// Another event of its thread; returns its hrtimer where it shows itself.
    pub(super) fn observe(&mut self, event: &Event, found: &mut TimerRows) -> Option<(u64, u64)> {
        self.cpu = Some(event.cpu);
        let mut own = None;
        let kind = match event.kind {
            EventKind::HvTimerState { in_use } => {
                own = self.steps.last().and_then(|step| match step.kind {
                    StepKind::Start(start) if !in_use => Some(start.hrtimer),
                    _ => None,
                });
                StepKind::State { in_use }
            }
            EventKind::DeadlineWritten { value } => StepKind::Deadline { value },
            EventKind::CountWritten { value } => StepKind::Count { value },
            EventKind::LapicWait { delta } => {
                let waits = self.fired.iter_mut().filter(|(_, missing)| *missing == Missing::Wait);
                if let Some((row, _)) = waits.last() {
                    row.late_tsc = Some(delta);
                }
                return None;
            }
            kind => {
                if let Place::Host(exit) = &mut self.place {
                    match kind {
                        EventKind::Interrupt(_) => exit.interrupts = exit.interrupts.saturating_add(1),
                        EventKind::VcpuWakeup { .. } => (exit.awake, exit.went_on) = (true, true),
                        _ => {}
                    }
                }
                return None;
            }
        };
        if let Place::Host(exit) = &mut self.place {
            exit.went_on = true;
            if matches!(kind, StepKind::Deadline { .. } | StepKind::Count { .. }) {
                exit.cause = Some(TimerPart::Arm);
            }
        }
        self.step(event, kind, found);
        self.has_hrtimer |= own.is_some();
        own
    }

    /// An hrtimer is started, by its thread or its own.
    pub(super) fn start(&mut self, event: &Event, start: Start, found: &mut TimerRows) {
        self.step(event, StepKind::Start(start), found);
    }

    /// Its hrtimer fires; returns how many timers are incomplete for it.
    pub(super) fn expire(&mut self, event: &Event, found: &mut TimerRows) -> u64 {
        let own_cpu = self.cpu == Some(event.cpu);
        let entry = Missing::Entry { accepted: false };
        let (state, fire, missing) = match &mut self.place {
            Place::Unknown => (None, None, Missing::Entry { accepted: true }),
            Place::Guest => (Some(VcpuState::InGuestMode), None, Missing::Exit { own_cpu }),
            Place::Host(exit) if exit.class == Class::Halt && !exit.awake => {
                (Some(VcpuState::Blocked), Some(Fire::WokenUp), entry)
            }
            Place::Host(exit)
                if exit.class == Class::Interrupt && own_cpu && !exit.went_on && exit.interrupts <= 1 =>
            {
                exit.cause = Some(TimerPart::Fire);
                exit.went_on = true;
                (Some(VcpuState::InGuestMode), Some(Fire::HostInterrupt), entry)
            }
            Place::Host(_) => (Some(VcpuState::OutsideGuestMode), Some(Fire::AlreadyOutside), entry),
        };
        let armed = self.armed.is_some()
            || self.steps.iter().any(|step| !matches!(step.kind, StepKind::Fired { .. }));
        self.step(event, StepKind::Fired { vcpu_on: self.cpu, state, fire, missing }, found);
        u64::from(!armed)
    }

    /// The timer that fires was put into the running guest.
    pub(super) fn posted(&mut self, found: &mut TimerRows) {
        if let Some((row, missing)) = self.fired_in_guest(found) {
            (row.fire, *missing) = (Some(Fire::Posted), Missing::Wait);
        }
    }

    /// KVM waits for the deadline before it puts the timer that fires into the running guest.
    pub(super) fn waits_to_post(&mut self, late_tsc: i64, found: &mut TimerRows) {
        if let Some((row, _)) = self.fired_in_guest(found) {
            row.late_tsc = Some(late_tsc);
        }
    }

    /// The timer that fired last while the guest ran.
    fn fired_in_guest(&mut self, found: &mut TimerRows) -> Option<&mut (TimerRow, Missing)> {
        self.read_steps(found);
        self.fired.iter_mut().rfind(|(_, missing)| matches!(missing, Missing::Exit { .. }))
    }

    /// Its thread has put an interrupt into its local APIC.
    pub(super) fn accept(&mut self) {
        for (_, missing) in &mut self.fired {
            if let Missing::Entry { accepted } = missing {
                *accepted = true;
            }
        }
        for step in &mut self.steps {
            if let StepKind::Fired { missing: Missing::Entry { accepted }, .. } = &mut step.kind {
                *accepted = true;
            }
        }
    }

    /// Appends the timers that have fired; returns what is open.
    pub(super) fn finish(&mut self, found: &mut TimerRows) -> u64 {
        self.read_steps(found);
        self.emit(found, |missing| missing == Missing::Wait);
        self.forget()
    }

    /// Any event may be missing; returns how many timers and exits are incomplete for it.
    pub(super) fn forget(&mut self) -> u64 {
        let exit = matches!(self.place, Place::Host(_)) && self.entered;
        let open = u64::from(exit) + u64::from(self.armed.is_some()) + self.fired.len() as u64;
        self.place = Place::Unknown;
        self.steps.clear();
        self.armed = None;
        self.fired.clear();
        open
    }

    fn step(&mut self, event: &Event, kind: StepKind, found: &mut TimerRows) {
        self.steps.push(Step { time_ns: event.time_ns, cpu: event.cpu, kind });
        // Nothing that needs a look at what follows happens while the guest runs.
        if self.place == Place::Guest || self.steps.len() >= MOST_KEPT {
            self.read_steps(found);
        }
    }

    /// Reads what was kept.
    fn read_steps(&mut self, found: &mut TimerRows) {
        if self.steps.is_empty() {
            return;
        }
        let mut steps = std::mem::take(&mut self.steps);
        together(&mut steps);
        let arms = arms(&steps);
        // An hrtimer that was started, while it is not known by whom and what for.
        let mut start: Option<(&Step, Start)> = None;
        for (at, step) in steps.iter().enumerate() {
            match step.kind {
                StepKind::Start(another) => self.goes_on(start.replace((step, another))),
                StepKind::State { in_use } => {
                    let carried = match (in_use, start.take()) {
                        (true, _) => Some((Mechanism::HvTimer, *step, None)),
                        (false, Some((begun, start))) => {
                            Some((Mechanism::Hrtimer, *begun, Some(start.expires_ns)))
                        }
                        (false, None) => None,
                    };
                    let value = arms.iter().find(|(state, _)| *state == at).map(|(_, value)| *value);
                    self.state(step, value, carried, found);
                }
                StepKind::Fired { vcpu_on, state, fire, missing } => {
                    self.goes_on(start.take());
                    if let Some(row) = self.armed.take() {
                        let fired_on = Some(step.cpu);
                        let row = TimerRow { fired_on, vcpu_on, state, fire, ..row };
                        self.fires(row, step.time_ns, missing, found);
                    }
                }
                StepKind::Deadline { .. } | StepKind::Count { .. } => {}
            }
        }
        self.goes_on(start);
    }

    /// KVM has started a timer, or tried; `value` is what the guest wrote, if it armed one.
    fn state(
        &mut self,
        step: &Step,
        value: Option<u64>,
        carried: Option<(Mechanism, Step, Option<u64>)>,
        found: &mut TimerRows,
    ) {
        let armed_at =
            |step: &Step| TimerRow { armed_on: Some(step.cpu), ..TimerRow::new(self.name, step.time_ns) };
        let Some(value) = value else {
            // The same timer, carried by another mechanism; or a new period.
            if let Some((mechanism, begun, expires_ns)) = carried {
                let row = self.armed.unwrap_or_else(|| armed_at(&begun));
                self.armed = Some(TimerRow { mechanism: Some(mechanism), expires_ns, ..row });
            }
            return;
        };
        let new = carried.map(|(mechanism, begun, expires_ns)| TimerRow {
            mechanism: Some(mechanism),
            expires_ns,
            ..armed_at(&begun)
        });
        let passed = armed_at(step);
        // Armed anew before it fired.
        found.timers.extend(self.armed.take());
        if new.is_none() && value != 0 {
            // The time had come already.
            let row = TimerRow {
                fired_on: Some(step.cpu),
                vcpu_on: Some(step.cpu),
                state: Some(VcpuState::OutsideGuestMode),
                fire: Some(Fire::AlreadyOutside),
                ..passed
            };
            self.fires(row, step.time_ns, Missing::Entry { accepted: true }, found);
        }
        self.armed = new;
    }

    /// Its hrtimer was started without its guest: on another CPU, or for the next period.
    fn goes_on(&mut self, start: Option<(&Step, Start)>) {
        let Some((step, Start { expires_ns, .. })) = start.filter(|(_, start)| start.known) else { return };
        let name = self.name;
        let begun = || TimerRow { armed_on: Some(step.cpu), ..TimerRow::new(name, step.time_ns) };
        let row = self.armed.take().unwrap_or_else(begun);
        self.armed =
            Some(TimerRow { mechanism: Some(Mechanism::Hrtimer), expires_ns: Some(expires_ns), ..row });
    }

    fn fires(&mut self, row: TimerRow, time_ns: u64, missing: Missing, found: &mut TimerRows) {
        if self.fired.len() >= MOST_KEPT {
            self.emit(found, |_| true);
        }
        self.fired.push((TimerRow { fired_ns: Some(time_ns.max(row.armed_ns)), ..row }, missing));
    }

    fn emit(&mut self, found: &mut TimerRows, which: impl Fn(Missing) -> bool) {
        self.fired.retain(|(row, missing)| {
            let complete = which(*missing);
            found.timers.extend(complete.then_some(*row));
            !complete
        });
    }
}

/// Puts the state behind the start that it is of, where the timer has fired before KVM came to report the state.
fn together(steps: &mut [Step]) {
    for at in 1..steps.len() {
        let fired = |step: &&Step| matches!(step.kind, StepKind::Fired { .. });
        let begin = at - steps[..at].iter().rev().take_while(fired).count();
        let is_state = matches!(steps[at].kind, StepKind::State { .. });
        if is_state && begin > 0 && matches!(steps[begin - 1].kind, StepKind::Start(_)) {
            steps[begin..=at].rotate_right(1);
        }
    }
}

/// Which of the steps, all `State`, are arming by the guest, and what it wrote: the last one before a
/// deadline was written, and the first one after a count was.
fn arms(steps: &[Step]) -> Vec<(usize, u64)> {
    let is_state = |at: &usize| matches!(steps[*at].kind, StepKind::State { .. });
    let mut arms: Vec<(usize, u64)> = vec![];
    for (at, step) in steps.iter().enumerate() {
        let armed = match step.kind {
            StepKind::Deadline { value } => (0..at).rfind(is_state).zip(Some(value)),
            StepKind::Count { value } => (at..steps.len()).find(is_state).zip(Some(value)),
            _ => None,
        };
        arms.extend(armed);
    }
    arms
}
