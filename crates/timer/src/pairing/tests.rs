//! Against a small simulation of KVM, which knows what it does, and against any events.

use super::*;
use dwell_recording::timer::{ExitRow, Fire, Mechanism, TimerPart, TimerRow, VcpuState};
use dwell_trace::exits::ExitCounter;
use proptest::prelude::*;
use proptest::sample::select;

struct Threads;

impl Names for Threads {
    fn process(&mut self, _: i32) -> Option<String> {
        Some("vm".to_owned())
    }
    fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
        Some(format!("CPU {}/KVM", tid - 101))
    }
}

/// What happens to one timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Fires on its CPU while the vCPU is blocked.
    Blocked,
    /// Fires while the guest runs; the exit is traced before the interrupt.
    RunsHere,
    /// The same, and the exit is traced after it, as older kernels do.
    RunsHereOld,
    /// Fires elsewhere, and the vCPU is kicked.
    RunsElsewhere,
    /// Fires elsewhere shortly before an entry that does not see it.
    EntersElsewhere,
    /// Fires elsewhere and is posted.
    Posted,
    /// The same, and KVM waits for the deadline before it posts.
    PostedLate,
    /// Fires on its CPU in an exit of another kind.
    Outside,
    /// Fires after another interrupt of the same exit.
    SecondInterrupt,
    /// Is armed anew before.
    ArmedAnew,
    /// Is switched off before.
    SwitchedOff,
    /// Is due when it is armed.
    Passed,
    /// The vCPU moves to another CPU before.
    Moved,
    /// The preemption timer, in the guest.
    Hv,
    /// The preemption timer, which an hrtimer replaces while the vCPU is blocked.
    HvBlocked,
    /// Fires elsewhere while KVM still handles the write.
    WhileArming,
    /// Fires in the guest, and again a period later.
    Periodic,
}

const FATES: [Fate; 17] = [
    Fate::Blocked,
    Fate::RunsHere,
    Fate::RunsHereOld,
    Fate::RunsElsewhere,
    Fate::EntersElsewhere,
    Fate::Posted,
    Fate::PostedLate,
    Fate::Outside,
    Fate::SecondInterrupt,
    Fate::ArmedAnew,
    Fate::SwitchedOff,
    Fate::Passed,
    Fate::Moved,
    Fate::Hv,
    Fate::HvBlocked,
    Fate::WhileArming,
    Fate::Periodic,
];

/// CPUs on which no vCPU runs; interrupts of one CPU do not overlap.
const ELSEWHERE: [u32; 2] = [8, 9];
const FUNCTION: u64 = 0xf00;

/// One vCPU: its events, and what they mean.
struct Simulated {
    number: u32,
    cpu: u32,
    now_ns: u64,
    step_ns: u64,
    reasons: ReasonNames,
    events: Vec<Event>,
    timers: Vec<TimerRow>,
    exits: Vec<ExitRow>,
    /// By number, the names in the order of their first exit.
    exit: Option<(u64, &'static str, Option<TimerPart>)>,
}

impl Simulated {
    fn new(number: u32, step_ns: u64, reasons: &ReasonNames) -> Simulated {
        let mut vcpu = Simulated {
            number,
            cpu: number,
            now_ns: u64::from(number),
            step_ns,
            reasons: reasons.clone(),
            events: vec![],
            timers: vec![],
            exits: vec![],
            exit: None,
        };
        // So that the trace is known to have these events.
        vcpu.accept();
        vcpu.enter();
        vcpu
    }

    fn tid(&self) -> i32 {
        101 + self.number.cast_signed()
    }

    fn timer(&self) -> u64 {
        0x1000 + u64::from(self.number)
    }

    fn push(&mut self, cpu: u32, tid: i32, kind: EventKind) -> u64 {
        self.now_ns += self.step_ns;
        self.events.push(Event {
            time_ns: self.now_ns,
            cpu,
            pid: if tid > 100 { 100 } else { tid },
            tid,
            kind,
        });
        self.now_ns
    }

    fn own(&mut self, kind: EventKind) -> u64 {
        self.push(self.cpu, self.tid(), kind)
    }

    fn exit(&mut self, reason: &'static str, cause: Option<TimerPart>) -> u64 {
        let (vcpu, number) = (Some(self.number), self.reasons.number(reason));
        let at = self.own(EventKind::Exit { vcpu, reason: number });
        self.exit = Some((at, reason, cause));
        at
    }

    fn enter(&mut self) -> u64 {
        let at = self.own(EventKind::Entry { vcpu: Some(self.number) });
        if let Some((start_ns, reason, cause)) = self.exit.take() {
            let (duration_ns, reason) = (at - start_ns, self.reasons.number(reason));
            self.exits.push(ExitRow { vcpu: self.number, start_ns, duration_ns, reason, cause });
        }
        at
    }

    fn accept(&mut self) {
        self.own(EventKind::ApicAccept { apic: self.number });
    }

    fn start(&mut self, cpu: u32, tid: i32, expires_ns: u64) -> u64 {
        let (timer, function) = (self.timer(), FUNCTION);
        self.push(cpu, tid, EventKind::HrtimerStart { timer, function, expires_ns })
    }

    fn expire(&mut self, cpu: u32, tid: i32) -> u64 {
        let (timer, function) = (self.timer(), FUNCTION);
        self.push(cpu, tid, EventKind::HrtimerExpire { timer, function })
    }

    /// Another hrtimer of the same thread.
    fn noise(&mut self) {
        let timer = 0x9999;
        self.own(EventKind::HrtimerStart { timer, function: 0xbad, expires_ns: 5 });
        self.own(EventKind::HrtimerExpire { timer, function: 0xbad });
    }

    /// The guest writes a register; returns the timer that this arms.
    fn arm(&mut self, hv: bool, count: bool, value: u64) -> TimerRow {
        let (reason, cause) = (if count { "npf" } else { "msr" }, Some(TimerPart::Arm));
        self.exit(reason, cause);
        if count {
            self.own(EventKind::CountWritten { value });
        }
        let expires_ns = self.now_ns + 5_000;
        let started = (!hv && value > 1).then(|| self.start(self.cpu, self.tid(), expires_ns));
        let state = self.own(EventKind::HvTimerState { in_use: hv });
        if !count {
            self.own(EventKind::DeadlineWritten { value });
        }
        let armed_ns = started.unwrap_or(state);
        TimerRow {
            armed_on: Some(self.cpu),
            mechanism: if hv { Some(Mechanism::HvTimer) } else { started.map(|_| Mechanism::Hrtimer) },
            expires_ns: started.map(|_| expires_ns),
            ..TimerRow::new(self.number, armed_ns)
        }
    }

    fn fired(&mut self, row: TimerRow, at: u64, on: u32, state: VcpuState, fire: Fire, entered: Option<u64>) {
        self.timers.push(TimerRow {
            fired_ns: Some(at),
            fired_on: Some(on),
            vcpu_on: Some(self.cpu),
            state: Some(state),
            fire: Some(fire),
            entered_ns: entered,
            ..row
        });
    }

    fn wait(&mut self, late_tsc: i64) {
        self.own(EventKind::LapicWait { delta: late_tsc });
        if let Some(row) = self.timers.last_mut() {
            row.late_tsc = Some(late_tsc);
        }
    }

    /// In the guest before and after.
    fn live(&mut self, fate: Fate, count: bool, noisy: bool) {
        use Fire::{AlreadyOutside, HostInterrupt, HvTimerExit, RescheduleIpi, WokenUp};
        use VcpuState::{Blocked, InGuestMode, OutsideGuestMode};
        let (own, cpu, fire) = (self.tid(), self.cpu, Some(TimerPart::Fire));
        let elsewhere = ELSEWHERE[self.number as usize];
        let hv = matches!(fate, Fate::Hv | Fate::HvBlocked);
        if fate == Fate::WhileArming {
            self.exit("msr", Some(TimerPart::Arm));
            let expires_ns = self.now_ns + 1;
            let armed_ns = self.start(cpu, own, expires_ns);
            let at = self.expire(elsewhere, 0);
            self.own(EventKind::HvTimerState { in_use: false });
            self.own(EventKind::DeadlineWritten { value: 66_666 });
            self.accept();
            let entered = self.enter();
            let row = TimerRow {
                armed_on: Some(cpu),
                mechanism: Some(Mechanism::Hrtimer),
                expires_ns: Some(expires_ns),
                ..TimerRow::new(self.number, armed_ns)
            };
            return self.fired(row, at, elsewhere, OutsideGuestMode, AlreadyOutside, Some(entered));
        }
        let mut row = self.arm(hv, count, if fate == Fate::Passed { 1 } else { 77_777 });
        let halts = matches!(fate, Fate::Blocked | Fate::HvBlocked);
        if noisy {
            self.noise();
        }
        if fate == Fate::Passed {
            self.accept();
            let entered = self.enter();
            let at = row.armed_ns;
            return self.fired(row, at, cpu, OutsideGuestMode, AlreadyOutside, Some(entered));
        }
        self.enter();
        if halts {
            self.exit("hlt", None);
            if fate == Fate::HvBlocked {
                let expires_ns = self.now_ns + 9_000;
                self.start(cpu, own, expires_ns);
                self.own(EventKind::HvTimerState { in_use: false });
                row = TimerRow { mechanism: Some(Mechanism::Hrtimer), expires_ns: Some(expires_ns), ..row };
            }
            let at = self.expire(cpu, 0);
            self.own(EventKind::VcpuWakeup { ns: 5, waited: true, valid: true });
            self.accept();
            let entered = self.enter();
            self.fired(row, at, cpu, Blocked, WokenUp, Some(entered));
            return self.wait(-5);
        }
        match fate {
            Fate::RunsHere => {
                self.exit("interrupt", fire);
                self.own(EventKind::Interrupt(dwell_trace::event::Interrupt::Timer));
                let at = self.expire(cpu, own);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, cpu, InGuestMode, HostInterrupt, Some(entered));
                self.wait(700);
            }
            Fate::RunsHereOld => {
                let at = self.expire(cpu, own);
                self.exit("interrupt", fire);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, cpu, InGuestMode, HostInterrupt, Some(entered));
            }
            Fate::RunsElsewhere => {
                let at = self.expire(elsewhere, 0);
                self.exit("interrupt", fire);
                self.own(EventKind::Interrupt(dwell_trace::event::Interrupt::Ipi));
                self.accept();
                let entered = self.enter();
                self.fired(row, at, elsewhere, InGuestMode, RescheduleIpi, Some(entered));
            }
            Fate::EntersElsewhere => {
                self.exit("cpuid", None);
                let at = self.expire(elsewhere, 0);
                self.enter();
                self.exit("interrupt", fire);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, elsewhere, InGuestMode, RescheduleIpi, Some(entered));
            }
            Fate::Posted | Fate::PostedLate => {
                let at = self.expire(elsewhere, 0);
                if fate == Fate::PostedLate {
                    self.push(elsewhere, 0, EventKind::LapicWait { delta: -900 });
                    row.late_tsc = Some(-900);
                }
                self.push(elsewhere, 0, EventKind::ApicAccept { apic: self.number });
                self.fired(row, at, elsewhere, InGuestMode, Fire::Posted, None);
            }
            Fate::Outside => {
                self.exit("io", None);
                let at = self.expire(cpu, own);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, cpu, OutsideGuestMode, AlreadyOutside, Some(entered));
            }
            Fate::SecondInterrupt => {
                self.exit("interrupt", None);
                self.own(EventKind::Interrupt(dwell_trace::event::Interrupt::Device));
                self.own(EventKind::Interrupt(dwell_trace::event::Interrupt::Timer));
                let at = self.expire(cpu, own);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, cpu, OutsideGuestMode, AlreadyOutside, Some(entered));
            }
            Fate::ArmedAnew | Fate::SwitchedOff => {
                self.timers.push(row);
                let next = self.arm(false, count, if fate == Fate::ArmedAnew { 88_888 } else { 0 });
                self.enter();
                if fate == Fate::ArmedAnew {
                    self.exit("interrupt", fire);
                    let at = self.expire(cpu, own);
                    self.accept();
                    let entered = self.enter();
                    self.fired(next, at, cpu, InGuestMode, HostInterrupt, Some(entered));
                }
            }
            Fate::Moved => {
                self.exit("interrupt", None);
                self.cpu = cpu + 4;
                let task = self.tid();
                self.push(cpu, 0, EventKind::Migrate { task, from: cpu, to: cpu + 4 });
                self.start(self.cpu, own, row.expires_ns.unwrap_or(0));
                self.enter();
                self.exit("interrupt", fire);
                let at = self.expire(self.cpu, own);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, self.cpu, InGuestMode, HostInterrupt, Some(entered));
                self.exit("interrupt", None);
                self.cpu = cpu;
                self.enter();
            }
            Fate::Hv => {
                let at = self.exit("PREEMPTION_TIMER", fire);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, cpu, InGuestMode, HvTimerExit, Some(entered));
            }
            _ => {
                self.exit("interrupt", fire);
                let at = self.expire(cpu, own);
                let expires_ns = self.now_ns + 70;
                let armed_ns = self.start(cpu, own, expires_ns);
                self.accept();
                let entered = self.enter();
                self.fired(row, at, cpu, InGuestMode, HostInterrupt, Some(entered));
                let next = TimerRow {
                    armed_on: Some(cpu),
                    mechanism: Some(Mechanism::Hrtimer),
                    expires_ns: Some(expires_ns),
                    ..TimerRow::new(self.number, armed_ns)
                };
                self.exit("interrupt", fire);
                let at = self.expire(cpu, own);
                self.accept();
                let entered = self.enter();
                self.fired(next, at, cpu, InGuestMode, HostInterrupt, Some(entered));
            }
        }
    }
}

/// Rows in an order that does not depend on which vCPU's come first, their reasons by the source's number.
fn sorted(mut rows: TimerRows, numbers: &[u32]) -> TimerRows {
    for exit in &mut rows.exits {
        exit.reason = numbers[exit.reason as usize];
    }
    rows.timers.sort_by_key(|timer| (timer.vcpu, timer.armed_ns));
    rows.exits.sort_by_key(|exit| (exit.vcpu, exit.start_ns));
    rows
}

fn run(events: &[Event], reasons: &ReasonNames) -> (TimerPairing, TimerRows) {
    run_of(None, events, reasons)
}

fn run_of(pid: Option<i32>, events: &[Event], reasons: &ReasonNames) -> (TimerPairing, TimerRows) {
    let mut pairing = TimerPairing::new(pid, Box::new(Threads), reasons.clone());
    let mut found = TimerRows::default();
    events.iter().for_each(|event| pairing.observe(event, &mut found));
    pairing.finish(&mut found);
    (pairing, found)
}

/// A VM ends, and the vCPU of the next one has its hrtimer where the first one's was.
#[test]
fn an_hrtimer_in_the_memory_of_a_former_one_is_of_its_own_vcpu() {
    let reasons = ReasonNames::default();
    let mut vcpu = Simulated::new(0, 10, &reasons);
    vcpu.live(Fate::RunsHere, false, false);
    vcpu.live(Fate::Blocked, false, false);
    vcpu.exit("io", None);
    let next = vcpu.events.iter().map(|event| {
        let shift = |number: i32| if number >= 100 { number + 100 } else { number };
        let (pid, tid) = (shift(event.pid), shift(event.tid));
        Event { time_ns: event.time_ns + 1_000_000, pid, tid, ..*event }
    });
    let events: Vec<Event> = vcpu.events.iter().copied().chain(next).collect();
    let (_, found) = run(&events, &reasons);
    assert_eq!(found.vcpus, ["vm/100/vcpu0", "vm/200/vcpu0"]);
    let fires = |vcpu: u32| {
        let own = found.timers.iter().filter(|timer| timer.vcpu == vcpu && timer.fired_ns.is_some());
        own.map(|timer| (timer.mechanism, timer.fire)).collect::<Vec<_>>()
    };
    let hrtimer = Some(Mechanism::Hrtimer);
    assert_eq!(fires(0), [(hrtimer, Some(Fire::HostInterrupt)), (hrtimer, Some(Fire::WokenUp))]);
    assert_eq!(fires(1), fires(0));
}

/// Linux 5.4: a vCPU that is first seen at an exit is the one that its entry has the number of.
#[test]
fn an_exit_without_a_number_is_of_the_vcpu_that_enters_next() {
    let reasons = ReasonNames::default();
    let reason = reasons.number("EXTERNAL_INTERRUPT");
    let event = |time_ns, kind| Event { time_ns, cpu: 0, pid: 100, tid: 101, kind };
    let once = [
        event(1_000, EventKind::Exit { vcpu: None, reason }),
        event(2_000, EventKind::Entry { vcpu: Some(0) }),
        event(3_000, EventKind::Exit { vcpu: None, reason }),
        event(4_000, EventKind::Entry { vcpu: Some(0) }),
    ];
    let (_, found) = run(&once, &reasons);
    assert_eq!(found.vcpus, ["vm/100/vcpu0"]);
}

proptest! {
    #[test]
    fn what_was_simulated_is_found(
        lives in prop::collection::vec((0..2usize, select(&FATES), any::<bool>(), any::<bool>()), 1..60),
        steps in (1..50u64, 1..50u64),
    ) {
        let reasons = ReasonNames::default();
        let mut vcpus = [Simulated::new(0, steps.0, &reasons), Simulated::new(1, steps.1, &reasons)];
        // The hrtimer of each becomes known with its first start.
        vcpus.iter_mut().for_each(|vcpu| vcpu.live(Fate::RunsHere, false, false));
        for (vcpu, fate, count, noisy) in lives {
            vcpus[vcpu].live(fate, count, noisy);
        }
        // What fired last is complete with the next exit.
        vcpus.iter_mut().for_each(|vcpu| { vcpu.exit("io", None); vcpu.enter(); });
        let mut events: Vec<Event> = vcpus.iter().flat_map(|vcpu| vcpu.events.clone()).collect();
        events.sort_by_key(|event| event.time_ns);
        let (pairing, found) = run(&events, &reasons);
        // The only VM, named: what its timers do to other threads is its own.
        prop_assert_eq!(&run_of(Some(100), &events, &reasons).1, &found);
        let numbers: Vec<u32> = found.reasons.iter().map(|name| reasons.number(name)).collect();
        let first = pairing.vcpus().iter().map(|name| name.ends_with("vcpu1")).next();
        let own = |number: u32| if first == Some(true) { 1 - number } else { number };
        let timers = vcpus.iter().flat_map(|vcpu| &vcpu.timers);
        let timers = timers.map(|row| TimerRow { vcpu: own(row.vcpu), ..*row }).collect();
        let exits = vcpus.iter().flat_map(|vcpu| &vcpu.exits);
        let exits = exits.map(|row| ExitRow { vcpu: own(row.vcpu), ..*row }).collect();
        let all: Vec<u32> = (0..100).collect();
        let (names, reason_names) = (found.vcpus.clone(), found.reasons.clone());
        prop_assert_eq!(&names, pairing.vcpus());
        let simulated = TimerRows { vcpus: names, reasons: reason_names, timers, exits };
        prop_assert_eq!(sorted(found, &numbers), sorted(simulated, &all));
        prop_assert_eq!(pairing.incomplete(), 0);
    }

    /// Any events give rows that can be written, and the exits that the table of exits counts.
    #[test]
    fn any_events_give_rows_that_can_be(events in prop::collection::vec(any_event(), 0..400)) {
        let reasons = ReasonNames::default();
        ["hlt", "interrupt", "PREEMPTION_TIMER", "msr"].iter().for_each(|name| { reasons.number(name); });
        let (_, found) = run(&events, &reasons);
        let packing = dwell_recording::Packing::default();
        let metadata = dwell_recording::Metadata::new(dwell_recording::Owner::Timer);
        let mut writer = dwell_recording::timer::TimerWriter::new(vec![], metadata, packing).unwrap();
        writer.push(&mut found.clone()).unwrap();

        let mut counter = ExitCounter::default();
        let is_gap = |event: &Event| matches!(event.kind, EventKind::Lost { .. });
        if !events.iter().any(is_gap) {
            for event in &events {
                match event.kind {
                    EventKind::Exit { reason, .. } => counter.exit(event.tid, event.time_ns, &reasons.name(reason)),
                    EventKind::Entry { .. } => counter.entry(event.tid, event.time_ns),
                    _ => {}
                }
            }
            let table = counter.finish();
            prop_assert_eq!(table.total_samples, found.exits.len() as u64);
            prop_assert_eq!(table.total_ns, found.exits.iter().map(|exit| exit.duration_ns).sum::<u64>());
        }
    }
}

/// In order of time, of two vCPUs on three CPUs.
fn any_event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        3 => (0..4u32).prop_map(|reason| EventKind::Exit { vcpu: None, reason }),
        3 => Just(EventKind::Entry { vcpu: None }),
        1 => (0..2u64).prop_map(|value| EventKind::DeadlineWritten { value }),
        1 => (0..2u64).prop_map(|value| EventKind::CountWritten { value }),
        2 => any::<bool>().prop_map(|in_use| EventKind::HvTimerState { in_use }),
        2 => (0..3u64).prop_map(|timer| EventKind::HrtimerStart { timer, function: 1, expires_ns: 9 }),
        2 => (0..3u64).prop_map(|timer| EventKind::HrtimerExpire { timer, function: 1 }),
        1 => (0..2u32).prop_map(|apic| EventKind::ApicAccept { apic }),
        1 => any::<i64>().prop_map(|delta| EventKind::LapicWait { delta }),
        1 => Just(EventKind::VcpuWakeup { ns: 1, waited: true, valid: true }),
        1 => (0..3u32).prop_map(|to| EventKind::Migrate { task: 101, from: 0, to }),
    ];
    let kind = prop_oneof![40 => kind, 1 => Just(EventKind::Lost { cpu: None, count: 1 })];
    static CLOCK: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    (kind, 0..3u32, 101..103i32).prop_map(|(kind, cpu, tid)| {
        let time_ns = CLOCK.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
        Event { time_ns, cpu, pid: 100, tid, kind }
    })
}

#[test]
fn after_a_loss_nothing_is_paired_across_it() {
    let reasons = ReasonNames::default();
    let mut vcpu = Simulated::new(0, 10, &reasons);
    vcpu.live(Fate::RunsHere, false, false);
    vcpu.arm(false, false, 55_555);
    let lost = EventKind::Lost { cpu: Some(0), count: 3 };
    vcpu.push(0, 0, lost);
    vcpu.enter();
    vcpu.expire(0, 0);
    vcpu.live(Fate::Blocked, false, false);
    let (pairing, found) = run(&vcpu.events, &reasons);
    assert_eq!(found.timers.len(), 2);
    // The exit that was open, and the timer that fired without a beginning.
    assert_eq!(pairing.incomplete(), 2);
    assert_eq!(pairing.vcpus(), ["vm/100/vcpu0"]);
}

#[test]
fn a_kvm_that_traces_neither_exits_nor_entries_is_noticed() {
    let reasons = ReasonNames::default();
    let wakeup = EventKind::VcpuWakeup { ns: 1, waited: true, valid: true };
    let event = |kind| Event { time_ns: 1, cpu: 0, pid: 100, tid: 101, kind };
    assert!(run(&[event(wakeup)], &reasons).0.runs_without_exits());
    assert!(!run(&[event(wakeup), event(EventKind::Entry { vcpu: None })], &reasons).0.runs_without_exits());
    assert!(!run(&[], &reasons).0.runs_without_exits());
}
