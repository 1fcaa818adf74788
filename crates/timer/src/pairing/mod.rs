//! The timers of vCPUs and their exits: events of KVM and of hrtimers into the rows of a [recording of
//! timers](dwell_recording::timer).
//!
//! # Exits
//! An exit is from `kvm_exit` to the next `kvm_entry` of the same thread, as [`dwell_trace::exits`] and
//! `perf kvm stat` count it; a thread counts from its first `kvm_entry` on.
//!
//! # Timers
//! Everything that KVM does for a guest's timer happens between an exit and the next entry, but for the
//! firing of an hrtimer. The events of a vCPU's timer between the two are kept and read together at the
//! entry:
//!
//! * `kvm_msr` of `IA32_TSC_DEADLINE` comes after what it started, `kvm_apic` of the initial count before it.
//!   What one of them started is a timer that the guest armed; the exit is that of arming.
//! * `kvm_hv_timer_state` tells which mechanism KVM has chosen. An `hrtimer_start` of the same thread just
//!   before it is that of the vCPU's own hrtimer, which is known by its address and function from then on.
//! * A start without a register written continues the timer: the vCPU has moved, or blocks, or goes on. Where none is
//!   armed, it begins a period.
//! * A register written while neither mechanism is started is a timer whose time has come already, or that is
//!   switched off.
//!
//! # Firing
//! An hrtimer fires in an interrupt, on the CPU and in the thread that it interrupts. Where the vCPU is at that moment:
//!
//! | last event of the vCPU | what follows | state | how it notices |
//! |---|---|---|---|
//! | exit by HLT, no wakeup | | blocked | woken up |
//! | exit by an interrupt, this one | | in guest mode | host interrupt |
//! | any other exit | | outside of guest mode | already outside |
//! | entry | `kvm_apic_accept_irq` in the same interrupt, after `kvm_wait_lapic_expire` if it waits | in guest mode | posted |
//! | entry | exit by an interrupt, fired on the vCPU's CPU | in guest mode | host interrupt |
//! | entry | exit by an interrupt, fired on another CPU | in guest mode | reschedule IPI |
//! | entry | exit by another reason | outside of guest mode | already outside |
//!
//! The last row is an exit that had begun when the timer fired, before its event was traced. Conversely the
//! vCPU can be in guest mode shortly before `kvm_entry` is traced: what fires then on another CPU, and is not
//! accepted before the entry, counts as fired after it.
//!
//! After lost events nothing is paired across the gap; what was open is counted as incomplete.

mod reasons;
#[cfg(test)]
mod tests;
mod vcpu;

pub(crate) use reasons::OTHER;
pub use reasons::ReasonNames;

use dwell_recording::timer::TimerRows;
use dwell_trace::event::{Event, EventKind, TracepointKind};
use dwell_trace::host::name_vcpu;
use dwell_trace::pairing::{ByNumber, Idlers, Names};
pub(crate) use reasons::Class;
use std::collections::HashMap;
use vcpu::{Start, Vcpu};

/// The tracepoints without which no timers and exits are made.
pub(crate) const REQUIRED: [TracepointKind; 6] = [
    TracepointKind::Exit,
    TracepointKind::Entry,
    TracepointKind::Msr,
    TracepointKind::HvTimerState,
    // An hrtimer fires in whichever thread it interrupts.
    TracepointKind::HrtimerStart,
    TracepointKind::HrtimerExpire,
];

/// Those that show more of them. The guest's own interrupts end the firing of an hrtimer.
pub(crate) const OPTIONAL: [TracepointKind; 9] = [
    TracepointKind::Apic,
    TracepointKind::ApicAccept,
    TracepointKind::LapicWait,
    TracepointKind::VcpuWakeup,
    TracepointKind::Migrate,
    TracepointKind::TimerInterrupt,
    TracepointKind::RescheduleInterrupt,
    TracepointKind::CallInterrupt,
    TracepointKind::DeviceInterrupt,
];

/// Makes timers and exits out of events that come in order of time.
#[derive(Default)]
pub struct TimerPairing {
    names: Box<dyn Names>,
    only_pid: Option<i32>,
    vcpus: Vec<Vcpu>,
    vcpu_names: Idlers,
    /// The vCPU that a thread runs, by process and thread.
    current: ByNumber<(i32, i32), usize>,
    /// Whose hrtimer this is, by its address and function.
    hrtimers: HashMap<(u64, u64), usize>,
    /// By CPU: the vCPU whose hrtimer is firing there, until its next event.
    firing: ByNumber<u32, usize>,
    source: ReasonNames,
    /// By the source's number: ours, and the class.
    reasons: HashMap<u32, (u32, Class)>,
    reason_names: Vec<String>,
    accepts_seen: bool,
    incomplete: u64,
    entries: u64,
    others: u64,
}

impl TimerPairing {
    /// For the VM of process `only_pid` or for all; `reasons` has the names of the exit reasons in the events.
    pub fn new(only_pid: Option<i32>, names: Box<dyn Names>, reasons: ReasonNames) -> TimerPairing {
        TimerPairing { names, only_pid, source: reasons, ..TimerPairing::default() }
    }

    /// The names of the vCPUs so far; the list only grows.
    pub fn vcpus(&self) -> &[String] {
        self.vcpu_names.names()
    }

    /// Timers and exits whose beginning or end was not seen, so far.
    pub fn incomplete(&self) -> u64 {
        self.incomplete
    }

    /// Whether vCPUs were seen to run, and neither `kvm_exit` nor `kvm_entry`: some flavours of KVM do not emit them.
    pub fn runs_without_exits(&self) -> bool {
        self.entries == 0 && self.others > 0
    }

    /// Takes the next event and appends the rows that it completes.
    pub fn observe(&mut self, event: &Event, found: &mut TimerRows) {
        match event.kind {
            EventKind::Lost { .. } | EventKind::Gap { .. } => return self.forget(),
            EventKind::HrtimerExpire { timer, function } => {
                self.firing.remove(&event.cpu);
                if let Some(&place) = self.hrtimers.get(&(timer, function)) {
                    self.firing.insert(event.cpu, place);
                    self.incomplete += self.vcpus[place].expire(event, found);
                }
                return;
            }
            EventKind::HrtimerStart { timer, function, expires_ns } => {
                self.firing.remove(&event.cpu);
                let own = self.current.get(&(event.pid, event.tid)).copied();
                let known = self.hrtimers.get(&(timer, function)).copied();
                // Interrupts of the thread start other hrtimers, also between a start and the state that it is of.
                // A known one may be gone, and its memory that of the thread's vCPU.
                let unknown = own.filter(|&place| !self.vcpus[place].has_hrtimer && known != own);
                for place in known.into_iter().chain(unknown) {
                    let start = Start { hrtimer: (timer, function), expires_ns, known: known == Some(place) };
                    self.vcpus[place].start(event, start, found);
                }
                return;
            }
            EventKind::Migrate { task, to, .. } => {
                // A task is known by its number alone here.
                for (&(_, tid), &place) in &self.current {
                    if tid == task {
                        self.vcpus[place].moves(to);
                    }
                }
                return;
            }
            _ => {}
        }
        let firing = self.firing.remove(&event.cpu);
        if firing.is_some_and(|place| self.posts(event, place, found)) || !event.is_of(self.only_pid) {
            return;
        }
        match event.kind {
            EventKind::Entry { vcpu } => {
                self.entries += 1;
                let place = self.place(event, vcpu, found);
                self.vcpus[place].enter(event, self.accepts_seen, found);
            }
            EventKind::Exit { vcpu, reason } => {
                self.entries += 1;
                let reason = self.reason(reason, found);
                let place = self.place(event, vcpu, found);
                self.incomplete += self.vcpus[place].exit(event, reason, self.accepts_seen, found);
            }
            EventKind::ApicAccept { .. } => {
                self.accepts_seen = true;
                let own = self.current.get(&(event.pid, event.tid)).copied();
                own.into_iter().for_each(|place| self.vcpus[place].accept());
            }
            _ => {
                let Some(&place) = self.current.get(&(event.pid, event.tid)) else {
                    self.others += u64::from(matches!(
                        event.kind,
                        EventKind::VcpuWakeup { .. }
                            | EventKind::HvTimerState { .. }
                            | EventKind::DeadlineWritten { .. }
                    ));
                    return;
                };
                if let Some(hrtimer) = self.vcpus[place].observe(event, found) {
                    self.hrtimers.insert(hrtimer, place);
                }
            }
        }
    }

    /// No event follows: appends the timers that have fired and lack only what would have come later, and
    /// counts what is open as incomplete.
    pub fn finish(&mut self, found: &mut TimerRows) {
        for vcpu in &mut self.vcpus {
            self.incomplete += vcpu.finish(found);
        }
    }

    /// Whether the event is one of posting the timer that is firing on its CPU: KVM's wait for the deadline, or that the
    /// guest's APIC accepts the interrupt. It is of whichever thread the hrtimer interrupted.
    fn posts(&mut self, event: &Event, place: usize, found: &mut TimerRows) -> bool {
        let vcpu = &mut self.vcpus[place];
        match event.kind {
            EventKind::LapicWait { delta } if vcpu.is_in_guest() => {
                vcpu.waits_to_post(delta, found);
                self.firing.insert(event.cpu, place);
                true
            }
            EventKind::ApicAccept { apic }
                if vcpu.is_in_guest() && vcpu.number.is_none_or(|number| number == apic) =>
            {
                self.accepts_seen = true;
                vcpu.posted(found);
                true
            }
            _ => false,
        }
    }

    /// The vCPU that this thread runs.
    fn place(&mut self, event: &Event, number: Option<u32>, found: &mut TimerRows) -> usize {
        let known = self.current.get(&(event.pid, event.tid)).copied();
        // Before Linux 5.10 exits have no number, and entries have.
        let is_it = |place: &usize| {
            let own = self.vcpus[*place].number;
            number.is_none() || own.is_none() || own == number
        };
        if let Some(place) = known.filter(is_it) {
            let own = &mut self.vcpus[place].number;
            *own = own.or(number);
            return place;
        }
        // Another one than before: the thread has ended, and its number was used again.
        let (name, _) = name_vcpu(&mut self.vcpu_names, &mut *self.names, event, number);
        found.vcpus.extend(self.vcpu_names.names().last().cloned());
        self.vcpus.push(Vcpu::new(name, number));
        let place = self.vcpus.len() - 1;
        self.current.insert((event.pid, event.tid), place);
        place
    }

    fn reason(&mut self, number: u32, found: &mut TimerRows) -> (u32, Class) {
        let TimerPairing { source, reasons, reason_names, .. } = self;
        *reasons.entry(number).or_insert_with(|| {
            let name = source.name(number);
            let class = Class::of(&name);
            let known = reason_names.iter().position(|known| *known == name);
            let at = known.unwrap_or_else(|| {
                found.reasons.push(name.clone());
                reason_names.push(name);
                reason_names.len() - 1
            });
            (u32::try_from(at).unwrap_or(u32::MAX), class)
        })
    }

    /// Any event may be missing.
    fn forget(&mut self) {
        self.firing.clear();
        for vcpu in &mut self.vcpus {
            self.incomplete += vcpu.forget();
        }
    }
}
