//! Bills of made-up CPUs.

use super::*;
use dwell_policy::Nanos;
use dwell_testing::machine::Fake;
use dwell_trace::event::{Event, EventKind, Interrupt};
use proptest::prelude::*;
use std::collections::BTreeMap;

const TICK: u64 = 0x100;
const WAKEUP: u64 = 0x200;
const VMSTAT: u64 = 0x300;
const DAEMON: i32 = 70;

fn event(time_ns: u64, kind: EventKind) -> Event {
    Event { time_ns, cpu: 0, pid: 0, tid: 0, kind }
}

fn switch(prev: i32, next: i32) -> EventKind {
    EventKind::Switch { prev, prev_runnable: Some(false), next }
}

fn idle(state: Option<u32>) -> EventKind {
    EventKind::CpuIdle { cpu: 0, state }
}

fn hrtimer(function: u64) -> EventKind {
    EventKind::HrtimerExpire { timer: 1, function }
}

const TIMER: EventKind = EventKind::Interrupt(Interrupt::Timer);
const END: EventKind = EventKind::HandlerEnd { line: None };

fn finish(events: &[Event], end_ns: u64, busy_ns: Option<u64>) -> Bill {
    let mut cpus = Cpus::new(Some(0), 0, Box::new(|tid| (tid == DAEMON).then(|| "daemon".to_owned())));
    for event in events {
        cpus.observe(event);
        cpus.cut();
    }
    let slices = cpus.slices(&Numbers::default());
    assert_eq!(slices.len(), events.len());
    let in_slices: u64 = slices.iter().map(|slice| slice.cpu_ns).sum();
    let names = [(TICK, "tick_nohz_handler"), (WAKEUP, "hrtimer_wakeup"), (VMSTAT, "vmstat_update")];
    let functions = names.map(|(at, name)| (at, name.to_owned())).into();
    let lines = [(24, "virtio0-req".to_owned())].into();
    let bill = cpus.finish(end_ns, busy_ns, 0, &Numbers { functions, lines });
    // What is charged later, as interrupts that end after the last slice, is in none.
    let seen: u64 = bill.lines.iter().filter(|line| line.cause != Cause::Rest).map(|line| line.cpu_ns).sum();
    assert!(in_slices <= seen, "{in_slices} of {seen}");
    bill
}

fn of(bill: &Bill, cause: &Cause) -> (u64, u64, u64) {
    let lines = bill.lines.iter().filter(|line| line.cause == *cause);
    lines.fold((0, 0, 0), |(ns, count, wakeups), line| {
        (ns + line.cpu_ns, count + line.count, wakeups + line.wakeups)
    })
}

fn timer(function: &str, wakes: Option<&str>) -> Cause {
    Cause::Timer { function: function.to_owned(), wakes: wakes.map(str::to_owned) }
}

#[test]
fn a_task_that_its_timer_wakes_is_with_its_interrupt_and_its_wakeup() {
    let bill = finish(
        &[
            event(0, switch(9, 0)),
            event(100, idle(Some(1))),
            event(1_000, TIMER),
            event(1_010, hrtimer(WAKEUP)),
            event(1_020, EventKind::Waking { woken: DAEMON, target: 0 }),
            event(1_050, END),
            event(1_080, idle(None)),
            event(1_100, switch(0, DAEMON)),
            event(1_600, switch(DAEMON, 0)),
            event(1_700, idle(Some(1))),
        ],
        3_000,
        Some(1_000),
    );
    assert_eq!(of(&bill, &timer("hrtimer_wakeup", Some("daemon"))), (50, 1, 1));
    let woken_by = Some("timer hrtimer_wakeup".to_owned());
    assert_eq!(of(&bill, &Cause::Task { woken_by }), (500, 1, 0));
    assert_eq!(of(&bill, &Cause::IdleTask), (100 + 20 + 100, 2, 0));
    // As much as /proc/stat counts.
    assert_eq!((bill.cpu_ns, of(&bill, &Cause::Rest).0), (1_000, 1_000 - 770));
}

#[test]
fn a_tick_that_comes_for_a_timer_of_the_wheel_is_its_wakeup() {
    let tick = [
        event(1_000, TIMER),
        event(1_010, hrtimer(TICK)),
        event(1_050, END),
        event(1_060, EventKind::Softirq { vector: 1 }),
        event(1_070, EventKind::Callback { function: VMSTAT, is_work: false }),
        event(1_090, END),
    ];
    let begin = [event(0, switch(9, 0)), event(100, idle(Some(1)))];
    let bill = finish(&[&begin[..], &tick].concat(), 2_000, None);
    assert_eq!(of(&bill, &timer("vmstat_update", None)), (30, 1, 1));
    assert_eq!(of(&bill, &timer("tick_nohz_handler", None)), (50, 1, 0));
    let bill = finish(&[&begin[..], &tick[..3]].concat(), 2_000, None);
    assert_eq!(of(&bill, &timer("tick_nohz_handler", None)), (50, 1, 1));
}

#[test]
fn a_poll_failed_where_a_halt_follows_and_not_where_a_task_does() {
    let bill = finish(
        &[
            event(0, switch(9, 0)),
            event(100, idle(Some(0))),
            event(300, idle(None)),
            event(310, idle(Some(1))),
            event(900, EventKind::Interrupt(Interrupt::Device)),
            event(940, EventKind::HandlerEnd { line: Some(24) }),
            event(950, idle(None)),
            event(960, switch(0, 5)),
            event(1_000, switch(5, 0)),
            event(1_000, idle(Some(0))),
            event(1_070, idle(None)),
            event(1_075, switch(0, 5)),
        ],
        1_100,
        Some(80),
    );
    assert_eq!(of(&bill, &Cause::FailedPoll), (200, 1, 0));
    assert_eq!(of(&bill, &Cause::SuccessfulPoll), (70, 1, 0));
    assert_eq!(of(&bill, &Cause::Interrupt { name: "interrupt 24 virtio0-req".to_owned() }), (40, 1, 1));
    // What is polled is idle for /proc/stat, and what events show beyond its sum is there.
    assert_eq!(bill.cpu_ns, bill.lines.iter().map(|line| line.cpu_ns).sum::<u64>());
    assert_eq!(bill.cpu_ns, 270 + 40 + (100 + 10 + 10 + 5) + (40 + 25));
}

#[test]
fn what_removes_a_wakeup_is_named_with_its_unit_and_what_it_saves_the_host() {
    let line = |thread: Option<&str>, cause, cpu_ns, count, wakeups| Line {
        class: Class::Cpu,
        thread: thread.map(str::to_owned),
        cause,
        cpu_ns,
        count,
        wakeups,
    };
    let woken_by = Some("timer hrtimer_wakeup".to_owned());
    let lines = vec![
        line(Some("daemon"), Cause::Task { woken_by }, 5_000_000, 100, 0),
        line(None, timer("hrtimer_wakeup", Some("daemon")), 1_000_000, 100, 100),
        line(None, timer("tick_nohz_handler", None), 2_000_000, 300, 300),
        line(None, Cause::IdleTask, 4_000_000, 400, 0),
        line(Some("dwell"), Cause::Task { woken_by: Some("timer x".to_owned()) }, 90_000_000, 10, 0),
    ];
    let bill = CpusBill {
        bill: Bill { cpu_ns: 12_000_000, lines },
        slices: vec![],
        busy_ns: None,
        steal_ns: 0,
        seen: Report { span_ns: 1_000_000_000, ..Report::default() },
        tasks: [("daemon".to_owned(), DAEMON)].into(),
    };
    let machine = Fake::new().file("/proc/70/cgroup", "0::/system.slice/metrics.service\n");
    let found = removals_of_cpus(&bill, &machine, Some(Nanos::from_micros(20)));
    let [daemon] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(daemon.what, "timers of task daemon of metrics.service: 100 runs a second");
    assert_eq!((daemon.saves_ns, daemon.saves_on_host_ns), (6_000_000 + 1_000_000, Some(2_000_000)));
    // The tick can be removed where the command line is what keeps it.
    let machine = machine.file("/proc/cmdline", "root=/dev/vda nohz=off quiet");
    let found = removals_of_cpus(&bill, &machine, None);
    assert!(found.iter().any(|removal| removal.how == "take nohz=off off the kernel's command line"
        && removal.saves_ns == 2_000_000 + 3_000_000));
}

fn kinds() -> impl Strategy<Value = EventKind> {
    let task = || prop::sample::select(vec![0, 5, DAEMON]);
    prop_oneof![
        3 => (task(), task()).prop_map(|(prev, next)| switch(prev, next)),
        3 => prop::sample::select(vec![None, Some(0), Some(1)]).prop_map(idle),
        2 => prop::sample::select(vec![Interrupt::Timer, Interrupt::Ipi, Interrupt::Device]).prop_map(EventKind::Interrupt),
        3 => prop::option::of(20u32..26).prop_map(|line| EventKind::HandlerEnd { line }),
        1 => (0u32..12).prop_map(|vector| EventKind::Softirq { vector }),
        1 => prop::sample::select(vec![TICK, WAKEUP]).prop_map(hrtimer),
        1 => any::<bool>().prop_map(|is_work| EventKind::Callback { function: VMSTAT, is_work }),
        1 => task().prop_map(|woken| EventKind::Waking { woken, target: 0 }),
        1 => Just(EventKind::Lost { cpu: Some(0), count: 1 }),
    ]
}

proptest! {
    /// Against what is slow and obvious: a CPU is charged for all of its time but that in which it halts and no
    /// interrupt is handled, from when it is known what it does; and lines add up.
    #[test]
    fn a_cpu_is_charged_for_all_but_its_halts(
        steps in prop::collection::vec((0u64..1_000, kinds()), 0..60),
        busy_ns in prop::option::of(0u64..60_000),
    ) {
        let (mut now, mut expected, mut polled) = (0, 0, 0);
        let (mut known, mut state, mut depth) = (false, None, 0u32);
        let mut charge = |ns, known, state, depth| match (depth, state) {
            (0, Some(0)) => { expected += ns; polled += ns; }
            (0, Some(_)) => {}
            (0, None) => expected += if known { ns } else { 0 },
            _ => expected += ns,
        };
        let mut events = vec![];
        for (wait, kind) in steps {
            now += wait;
            charge(wait, known, state, depth);
            events.push(event(now, kind));
            match kind {
                EventKind::Switch { .. } => (known, state, depth) = (true, None, 0),
                EventKind::CpuIdle { state: entered, .. } => (known, state, depth) = (true, entered, 0),
                EventKind::Interrupt(_) | EventKind::Softirq { .. } => depth += 1,
                EventKind::HrtimerExpire { .. } => depth = depth.max(1),
                EventKind::Callback { is_work, .. } => if is_work { known = true } else { depth = depth.max(1) },
                EventKind::HandlerEnd { .. } => depth = depth.saturating_sub(1),
                EventKind::Lost { .. } => depth = 0,
                _ => {}
            }
        }
        charge(500, known, state, depth);
        let bill = finish(&events, now + 500, busy_ns);
        let lines: BTreeMap<bool, u64> = bill.lines.iter().fold(BTreeMap::new(), |mut sums, line| {
            *sums.entry(line.cause == Cause::Rest).or_default() += line.cpu_ns;
            sums
        });
        prop_assert_eq!(lines.get(&false).copied().unwrap_or(0), expected);
        prop_assert_eq!(bill.cpu_ns, expected.max(busy_ns.map_or(0, |busy| busy + polled)));
        prop_assert_eq!(lines.values().sum::<u64>(), bill.cpu_ns);
    }
}

/// A thread that sleeps again and again is found by its name, with the timer that wakes it.
#[test]
fn a_thread_that_sleeps_is_found_on_this_machine() {
    const TEST: &str = "a_thread_that_sleeps_is_found_on_this_machine";
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let sleeper = std::thread::Builder::new().name("why-sleeper".to_owned()).spawn({
        let ended = ended.clone();
        move || {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
    let system: std::sync::Arc<dyn dwell_capture::system::System> =
        std::sync::Arc::new(dwell_machine::Sysroot::of_this_machine());
    let stop = std::sync::atomic::AtomicBool::new(false);
    let until = dwell_capture::Until { duration: Some(std::time::Duration::from_millis(500)), stop: &stop };
    let found = watch_cpus(&system, &until, || ());
    ended.store(true, std::sync::atomic::Ordering::Relaxed);
    sleeper.unwrap().join().unwrap();
    if let Some(why) = &found.seen.untraced {
        return dwell_testing::skip!("tracing", TEST, "{why}");
    }
    if found.seen.lost_events > 0 {
        return dwell_testing::skip!("tracing", TEST, "{} events were lost", found.seen.lost_events);
    }
    assert_eq!(found.bill.lines.iter().map(|line| line.cpu_ns).sum::<u64>(), found.bill.cpu_ns);
    let is_timer = |by: &String| by.starts_with("timer ");
    let is_woken = |line: &&Line| {
        line.thread.as_deref() == Some("why-sleeper")
            && matches!(&line.cause, Cause::Task { woken_by: Some(by) } if is_timer(by))
    };
    let runs: u64 = found.bill.lines.iter().filter(is_woken).map(|line| line.count).sum();
    dwell_testing::say!("{runs} runs of a thread that sleeps 1 ms, in {} ns", found.seen.span_ns);
    assert!(runs > 0, "{:#?}", found.bill);
}
