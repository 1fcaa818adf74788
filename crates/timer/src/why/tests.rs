//! Bills of made-up threads.

use super::*;
use crate::pairing::ReasonNames;
use dwell_machine::{Facts, Vmm};
use dwell_policy::Nanos;
use dwell_testing::machine::Fake;
use dwell_trace::event::{Event, EventKind, SystemCall, Timeout};
use proptest::prelude::*;
use std::collections::BTreeMap;

const VCPU: i32 = 12;
const LOOP: i32 = 10;
const PIT: i32 = 20;

fn task(tid: i32, class: Class, vcpu: Option<u32>) -> Task {
    Task { tid, name: format!("thread {tid}"), class, vcpu, own: class != Class::Kernel }
}

fn watch() -> Watch {
    let tasks = vec![
        task(LOOP, Class::MainLoop, None),
        task(VCPU, Class::Vcpu, Some(0)),
        task(PIT, Class::Kernel, None),
    ];
    let describe: Describe = Box::new(|fd| (fd == 5).then(|| "socket".to_owned()));
    Watch::new(tasks, ReasonNames::of([(1 << 16 | 30, "IO_INSTRUCTION".to_owned())]), describe)
}

fn event(time_ns: u64, tid: i32, kind: EventKind) -> Event {
    Event { time_ns, cpu: 0, pid: LOOP, tid, kind }
}

fn ran(time_ns: u64, task: i32, ns: u64) -> Event {
    event(time_ns, 0, EventKind::Ran { task, ns })
}

fn bill(events: &[Event], counted: &Counted) -> Bill {
    let mut watch = watch();
    for event in events {
        watch.observe(event);
        watch.cut();
    }
    let in_slices: u64 = watch.take_slices().iter().map(|slice| slice.cpu_ns).sum();
    let ran = |event: &Event| match event.kind {
        EventKind::Ran { task, ns } if [LOOP, VCPU, PIT].contains(&task) => ns,
        _ => 0,
    };
    assert!(in_slices <= events.iter().map(ran).sum(), "{in_slices}");
    watch.finish(counted)
}

fn of(bill: &Bill, cause: &Cause) -> (u64, u64) {
    let lines = bill.lines.iter().filter(|line| line.cause == *cause);
    lines.fold((0, 0), |(ns, count), line| (ns + line.cpu_ns, count + line.count))
}

fn wakeup(time_ns: u64, ns: u64, waited: bool) -> Event {
    event(time_ns, VCPU, EventKind::VcpuWakeup { ns, waited, valid: true })
}

#[test]
fn a_burst_is_of_what_woke_it_and_polls_are_taken_out() {
    let events = [
        // Runs until 1,000, polls until 1,200, sleeps, is woken at 9,000, and runs until 9,700.
        ran(1_200, VCPU, 700),
        wakeup(9_000, 8_000, true),
        event(9_100, VCPU, EventKind::ApicAccept { apic: 0 }),
        ran(9_800, VCPU, 850),
        // The next halt began at 9,700.
        wakeup(20_000, 10_300, true),
        ran(20_400, VCPU, 500),
    ];
    let counted =
        Counted { polls: Some(Polls { success_ns: 0, success: 0, fail_ns: 250 }), ..Counted::default() };
    let bill = bill(&events, &counted);
    assert_eq!(of(&bill, &Cause::Run { wake: Wake::LocalTimer }), (700, 1));
    assert_eq!(of(&bill, &Cause::Run { wake: Wake::Unknown }).0, 500 + 400);
    // 200 and 100 before the sleeps, of which KVM says that 250 were polls.
    assert_eq!(of(&bill, &Cause::FailedPoll).0, 250);
    assert_eq!(of(&bill, &Cause::Halt), (50 + 50 + 100, 2));
    assert_eq!(bill.cpu_ns, 700 + 850 + 500);
}

#[test]
fn an_access_is_of_its_device_whether_that_shows_before_or_after() {
    let leave = |at, reason| event(at, VCPU, EventKind::UserspaceExit { reason: Some(reason) });
    let enter = |at| {
        event(
            at,
            VCPU,
            EventKind::Call {
                number: if cfg!(target_arch = "x86_64") { 16 } else { 29 },
                arguments: [9, 0xae80],
            },
        )
    };
    let events = [
        event(1_000, VCPU, EventKind::Mmio { address: 0xfed0_00f0, write: false }),
        leave(1_010, 6),
        enter(1_510),
        event(1_520, VCPU, EventKind::Mmio { address: 0xfed0_00f0, write: false }),
        // A read of a port shows its port when it is done.
        leave(40_000, 2),
        enter(40_300),
        event(40_310, VCPU, EventKind::Port { port: 0x71, write: false }),
        event(50_000, VCPU, EventKind::Port { port: 0x3f8, write: true }),
        leave(50_001, 2),
        enter(50_101),
        ran(51_000, VCPU, 51_000),
    ];
    let bill = bill(&events, &Counted::default());
    assert_eq!(of(&bill, &Cause::Device { device: Device::Hpet }), (500, 1));
    assert_eq!(of(&bill, &Cause::Device { device: Device::Rtc }), (300, 1));
    assert_eq!(of(&bill, &Cause::Device { device: Device::Serial }), (100, 1));
    assert_eq!(of(&bill, &Cause::Run { wake: Wake::Unknown }).0, 51_000 - 900);
}

#[test]
fn the_lines_of_timers_outside_of_the_apic_are_known_by_who_raises_them() {
    let events = [
        event(5_000, PIT, EventKind::LineRaised { gsi: 0 }),
        wakeup(5_100, 4_000, true),
        ran(5_500, VCPU, 400),
        event(9_000, LOOP, EventKind::LineRaised { gsi: 2 }),
        event(9_001, LOOP, EventKind::ApicAccept { apic: 0 }),
        wakeup(9_100, 3_000, true),
        ran(9_900, VCPU, 800),
    ];
    let bill = bill(&events, &Counted::default());
    assert_eq!(of(&bill, &Cause::Run { wake: Wake::Line { gsi: 0, by: Class::Kernel } }).0, 400);
    assert_eq!(of(&bill, &Cause::Run { wake: Wake::Line { gsi: 2, by: Class::MainLoop } }).0, 800);
    assert_eq!(Wake::Line { gsi: 2, by: Class::MainLoop }.pc_timer(), Some(Device::Hpet));
}

#[test]
fn an_event_loop_works_for_what_woke_it_and_polls_before_it_waits() {
    let call = SystemCall::Ppoll;
    let enter = |at| event(at, LOOP, EventKind::Enter { call, timeout: Timeout::Limited });
    let leave = |at, result| event(at, LOOP, EventKind::Leave { call, result });
    let read = if cfg!(target_arch = "x86_64") { 0 } else { 63 };
    let events = [
        enter(1_000),
        leave(2_000, 1),
        event(2_100, LOOP, EventKind::Call { number: read, arguments: [5, 0] }),
        event(2_200, LOOP, EventKind::Return),
        enter(3_000),
        leave(4_000, 0),
        event(4_006, LOOP, EventKind::Return),
        enter(4_010),
        ran(4_010, LOOP, 3_010),
    ];
    let bill = bill(&events, &Counted::default());
    assert_eq!(of(&bill, &Cause::Ready { descriptor: Some("socket".to_owned()), by: None }), (200, 1));
    assert_eq!(of(&bill, &Cause::BeforeWait).0, 800 + 4);
    assert_eq!(of(&bill, &Cause::Wait), (2_000, 3));
    assert_eq!(of(&bill, &Cause::Timeout { device: None }), (6, 1));
}

fn vmm(options: &[&str]) -> Vmm {
    let machine = Fake::quiet("6.18.44");
    machine.vm(100, &[&["qemu-system-x86_64", "-name", "guest=web,debug-threads=on"], options].concat());
    Facts::read(&machine).vmms.remove(0)
}

fn known(vmm: &Vmm) -> Known<'_> {
    Known {
        vmm: Some(vmm),
        span_ns: 1_000_000,
        unwatched_ns_per_s: None,
        slices: &[],
        used_half_width: None,
        halt_cost: Nanos::from_micros(20),
    }
}

#[test]
fn an_hpet_is_removed_with_its_accesses_its_interrupts_and_what_serves_them() {
    let call = SystemCall::Ppoll;
    let enter = |at| event(at, LOOP, EventKind::Enter { call, timeout: Timeout::Limited });
    let leave = |at, result| event(at, LOOP, EventKind::Leave { call, result });
    let events = [
        enter(1_000),
        leave(100_000, 0),
        event(101_000, LOOP, EventKind::LineRaised { gsi: 2 }),
        event(101_001, LOOP, EventKind::ApicAccept { apic: 0 }),
        event(110_000, LOOP, EventKind::Return),
        ran(110_000, LOOP, 15_000),
        enter(110_000),
        wakeup(120_000, 90_000, true),
        event(150_000, VCPU, EventKind::Mmio { address: 0xfed0_0000, write: true }),
        event(151_000, VCPU, EventKind::UserspaceExit { reason: Some(6) }),
        ran(190_000, VCPU, 75_000),
        // Its own timer, once.
        wakeup(300_000, 110_000, true),
        event(301_000, VCPU, EventKind::ApicAccept { apic: 0 }),
        ran(310_000, VCPU, 10_000),
        wakeup(400_000, 90_000, true),
    ];
    let bill = bill(&events, &Counted::default());
    let on = vmm(&["-machine", "q35,hpet=on"]);
    let found = removals(&bill, &known(&on));
    // All but what the timer of the APIC is for, and half of the halts.
    assert_eq!(bill.cpu_ns, 100_000);
    assert_eq!(found[0].saves_ns, 10_000 + 5_000 + 31_000 + 39_000 + 5_000 / 2, "{found:#?}\n{bill:#?}");
    assert!(found[0].what.starts_with("HPET") && found[0].how == "QEMU: -machine …,hpet=off", "{found:?}");
    let windows = vmm(&["-machine", "q35,hpet=on", "-cpu", "host,hv-time=on"]);
    assert!(removals(&bill, &known(&windows))[0].how.contains("hv_stimer"));
    // Without an HPET the line is of something else.
    let off = vmm(&["-machine", "q35,hpet=off"]);
    assert!(!removals(&bill, &known(&off)).iter().any(|removal| removal.what.starts_with("HPET")));
}

/// What a display that is open costs is on four lines: its client's requests, the timer that refreshes it, the thread that
/// encodes, and what the main loop does with that.
#[test]
fn a_display_is_removed_with_its_timer_and_what_its_thread_hands_over() {
    const ENCODER: i32 = 104;
    let number = |x86, generic| if cfg!(target_arch = "x86_64") { x86 } else { generic };
    let names: Describe = Box::new(|fd| Some(if fd == 5 { "socket" } else { "eventfd" }.to_owned()));
    let encoder = Task { name: "vnc_worker".to_owned(), ..task(ENCODER, Class::Other, None) };
    let mut watch =
        Watch::new(vec![task(LOOP, Class::MainLoop, None), encoder], ReasonNames::default(), names);
    let system_call = SystemCall::Ppoll;
    let enter = |at| event(at, LOOP, EventKind::Enter { call: system_call, timeout: Timeout::Limited });
    let leave = |at, result| event(at, LOOP, EventKind::Leave { call: system_call, result });
    let call = |at, tid, number, arguments| event(at, tid, EventKind::Call { number, arguments });
    let (futex, read, write, ioctl) = (number(202, 98), number(0, 63), number(1, 64), number(16, 29));
    let events = [
        enter(0),
        // A request.
        leave(10_000, 1),
        call(10_000, LOOP, read, [5, 0]),
        enter(20_000),
        // The timer, which wakes the encoder.
        leave(30_000, 0),
        call(31_000, LOOP, futex, [0, 129]),
        enter(40_000),
        // What it has encoded.
        call(44_000, ENCODER, write, [6, 0]),
        ran(45_000, ENCODER, 5_000),
        leave(50_000, 1),
        call(50_000, LOOP, read, [6, 0]),
        enter(60_000),
        // The timer again: which pages of the screen were written.
        leave(70_000, 0),
        call(72_000, LOOP, ioctl, [9, 0x4010_ae42]),
        call(75_000, LOOP, write, [7, 0]),
        enter(80_000),
        // What it wakes itself for is of the timer.
        leave(80_000, 1),
        call(81_000, LOOP, read, [7, 0]),
        enter(82_000),
        // The client takes more.
        leave(83_000, 1),
        call(84_000, LOOP, number(46, 211), [5, 0]),
        enter(88_000),
        // Another timer.
        leave(90_000, 0),
        call(90_000, LOOP, write, [7, 0]),
        enter(100_000),
        ran(100_000, LOOP, 100_000),
    ];
    events.iter().for_each(|event| watch.observe(event));
    let bill = watch.finish(&Counted::default());
    let display = Cause::Timeout { device: Some(Device::Display) };
    assert_eq!(of(&bill, &display), (22_000, 3), "{bill:#?}");
    let client = Cause::Ready { descriptor: Some("socket".to_owned()), by: None };
    assert_eq!(of(&bill, &client), (10_000 + 5_000, 2));
    assert_eq!(of(&bill, &Cause::Timeout { device: None }), (10_000, 1));
    let found = removals(&bill, &known(&vmm(&[])));
    // Six of seven waits, of 43 us together.
    let waits_ns = 43_000 * 6 / 7;
    assert_eq!(found[0].saves_ns, 22_000 + 15_000 + 10_000 + 5_000 + waits_ns, "{found:#?}");
}

fn kinds() -> impl Strategy<Value = EventKind> {
    let call = SystemCall::Ppoll;
    prop_oneof![
        4 => (prop::sample::select(vec![VCPU, LOOP, PIT, 99]), 0u64..3_000).prop_map(|(task, ns)| EventKind::Ran { task, ns }),
        2 => (0u64..3_000, any::<bool>()).prop_map(|(ns, waited)| EventKind::VcpuWakeup { ns, waited, valid: true }),
        1 => (0u32..2).prop_map(|apic| EventKind::ApicAccept { apic }),
        1 => (0u32..9).prop_map(|gsi| EventKind::LineRaised { gsi }),
        1 => any::<u8>().prop_map(|vector| EventKind::MessageSent { vector }),
        1 => prop::option::of(0u32..8).prop_map(|reason| EventKind::UserspaceExit { reason }),
        1 => (0u32..0x500, any::<bool>()).prop_map(|(port, write)| EventKind::Port { port, write }),
        1 => any::<u64>().prop_map(|address| EventKind::Mmio { address, write: true }),
        1 => Just(EventKind::Exit { vcpu: Some(0), reason: 1 << 16 | 30 }),
        1 => Just(EventKind::Entry { vcpu: Some(0) }),
        1 => (0i64..50, any::<u64>(), any::<bool>()).prop_map(|(number, first, run)| EventKind::Call {
            number, arguments: [first, if run { 0xae80 } else { 1 }] }),
        1 => Just(EventKind::Return),
        1 => any::<bool>().prop_map(move |zero| EventKind::Enter { call, timeout: if zero { Timeout::Zero } else { Timeout::Limited } }),
        1 => (-1i64..3).prop_map(move |result| EventKind::Leave { call, result }),
    ]
}

proptest! {
    /// Whatever happens and whatever is counted: the lines add up to what /proc counted, exactly.
    #[test]
    fn the_lines_are_what_proc_counted(
        steps in prop::collection::vec((0u64..2_000, prop::sample::select(vec![VCPU, LOOP, PIT, 99]), kinds()), 0..80),
        threads in prop::collection::btree_map(prop::sample::select(vec![VCPU, LOOP, PIT]), 0u64..50_000, 0..4),
        process_ns in 0u64..100_000,
        polls in prop::option::of((0u64..20_000, 0u64..9, 0u64..20_000)),
    ) {
        let mut now = 0;
        let events: Vec<Event> = steps.into_iter().map(|(wait, tid, kind)| {
            now += wait;
            event(now, tid, kind)
        }).collect();
        let ran: BTreeMap<i32, u64> = events.iter().fold(BTreeMap::new(), |mut all, one| {
            if let EventKind::Ran { task, ns } = one.kind {
                *all.entry(task).or_default() += ns;
            }
            all
        });
        let of_threads: u64 = [VCPU, LOOP, PIT].iter()
            .map(|tid| threads.get(tid).or(ran.get(tid)).copied().unwrap_or(0)).sum();
        let polls = polls.map(|(success_ns, success, fail_ns)| Polls { success_ns, success, fail_ns });
        let bill = bill(&events, &Counted { threads, process_ns, polls });
        prop_assert_eq!(bill.cpu_ns, process_ns.max(of_threads));
        let vmm = vmm(&["-machine", "q35,hpet=on"]);
        for removal in removals(&bill, &known(&vmm)) {
            prop_assert!(removal.saves_ns <= bill.cpu_ns, "{:?} of {}", removal, bill.cpu_ns);
        }
        prop_assert_eq!(bill.lines.iter().map(|line| line.cpu_ns).sum::<u64>(), bill.cpu_ns);
    }
}

#[test]
fn a_synthetic_timer_is_not_the_local_one_and_setting_it_is_an_exit_for_it() {
    const MSR_WRITE: u32 = 1 << 16 | 32;
    let exit = |at| event(at, VCPU, EventKind::Exit { vcpu: Some(0), reason: MSR_WRITE });
    let entry = |at| event(at, VCPU, EventKind::Entry { vcpu: Some(0) });
    let events = [
        wakeup(1_000, 900, true),
        event(1_010, VCPU, EventKind::ApicAccept { apic: 0 }),
        event(1_011, VCPU, EventKind::SyntheticTimer),
        exit(2_000),
        event(2_100, VCPU, EventKind::Msr { register: 0x4000_00b1 }),
        entry(2_500),
        exit(3_000),
        event(3_020, VCPU, EventKind::DeadlineWritten { value: 9 }),
        entry(3_030),
        // Of no device that is known.
        exit(4_000),
        event(4_010, VCPU, EventKind::Msr { register: 0x10 }),
        entry(4_050),
        ran(5_000, VCPU, 4_000),
        wakeup(9_000, 4_000, true),
    ];
    let bill = bill(&events, &Counted::default());
    let exit = |device| Cause::Exit { reason: ReasonNames::default().name(MSR_WRITE), device };
    assert_eq!(of(&bill, &exit(Some(Device::SyntheticTimer))), (500, 1));
    assert_eq!(of(&bill, &exit(Some(Device::LocalTimer))), (30, 1));
    assert_eq!(of(&bill, &exit(None)), (50, 1));
    assert_eq!(of(&bill, &Cause::Run { wake: Wake::SyntheticTimer }), (4_000 - 580, 1));
    let windows = vmm(&["-cpu", "host,hv-time=on,hv-synic=on,hv-stimer=on"]);
    let found = removals(&bill, &Known { span_ns: 10_000, ..known(&windows) });
    assert!(found[0].what.starts_with("Hyper-V synthetic timers: "), "{found:#?}");
    assert_eq!(
        (found[0].how.as_str(), found[0].saves_ns),
        ("in the guest: what asks for short timers (powercfg /energy)", 3_420 + 530)
    );
}
