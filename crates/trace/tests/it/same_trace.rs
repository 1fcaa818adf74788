//! One trace gives one recording: events that are paired at once, as live capture does, and the same events
//! written as the text of `perf script` and imported.

use dwell_policy::host::Revision;
use dwell_policy::version::Version;
use dwell_recording::{
    Chunk, Columns, IdleIncludes, Layer, Metadata, Packing, Reader, Segment, Segments, Writer,
};
use dwell_testing::perf_text::PerfText;
use dwell_trace::contention::Contention;
use dwell_trace::event::{Event, EventKind, Interrupt, SystemCall, Timeout};
use dwell_trace::guest::{GuestPairing, GuestSource};
use dwell_trace::host::HostPairing;
use dwell_trace::import::perf::{self, PerfOptions};
use dwell_trace::import::{ImportError, Input};
use dwell_trace::pairing::{Names, Pairing};
use dwell_trace::thread::ThreadPairing;
use dwell_trace::write::EpisodeWriter;
use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeMap;

/// Some tasks have names as VMMs give them, others any, others none.
#[derive(Clone, Copy)]
struct ByNumber;

impl Names for ByNumber {
    fn process(&mut self, pid: i32) -> Option<String> {
        self.thread(pid, pid)
    }

    fn thread(&mut self, _: i32, tid: i32) -> Option<String> {
        match tid % 5 {
            0 => None,
            1 => Some(format!("CPU {}/KVM", tid / 5)),
            2 => Some(format!("a [{tid}] 1.5: b: {tid}/7")),
            _ => Some(format!("t{tid}")),
        }
    }
}

/// Everything that a recording has of a trace.
#[derive(Debug, PartialEq)]
struct Recorded {
    rows: Vec<String>,
    incomplete: u64,
    idle_includes: IdleIncludes,
    notes: BTreeMap<String, Value>,
    segments: Option<Segments>,
}

fn rows(bytes: Vec<u8>) -> (Vec<String>, Reader) {
    let reader = Reader::from_bytes("t", bytes).unwrap();
    let (mut chunk, mut rows) = (Chunk::default(), vec![]);
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::ALL, &mut chunk).unwrap();
        for row in 0..chunk.rows {
            rows.push(format!(
                "{} {} {} {:?} {:?} {:?} {:?} {:?}",
                reader.contents().idlers[chunk.idler[row] as usize].name,
                chunk.start_ns[row],
                chunk.idle_ns[row],
                chunk.window_ns[row],
                chunk.halted[row],
                chunk.wake[row],
                chunk.wake_latency_ns[row],
                chunk.alone_ns[row],
            ));
        }
    }
    (rows, reader)
}

fn pairing(
    layer: Layer,
    source: GuestSource,
    kernel: Option<&str>,
    [contention, causes]: [bool; 2],
) -> Box<dyn Pairing> {
    match layer {
        Layer::Host => {
            let revision = kernel.and_then(Version::parse).and_then(|version| Revision::of(version).ok());
            let host = HostPairing::new(revision, None, Box::new(ByNumber));
            let host = if contention { host.with_contention(Contention::new(None)) } else { host };
            Box::new(if causes { host.with_segments() } else { host })
        }
        Layer::Guest => {
            let guest = GuestPairing::new(source, vec![]);
            Box::new(if causes { guest.with_segments(Box::new(ByNumber)) } else { guest })
        }
        _ => {
            let threads = ThreadPairing::new(None, Box::new(ByNumber));
            Box::new(if causes { threads.with_segments() } else { threads })
        }
    }
}

fn at_once(events: &[Event], mut pairing: Box<dyn Pairing>, layer: Layer) -> Recorded {
    let mut found = vec![];
    events.iter().for_each(|event| pairing.observe(event, &mut found));
    pairing.finish(&mut found);
    let mut writer = Writer::new(vec![], Metadata::new(layer), Packing::default()).unwrap();
    let mut episodes = EpisodeWriter::default();
    episodes.push_all(&mut writer, pairing.idlers(), &mut found).unwrap();
    let (incomplete, idle_includes) = (pairing.incomplete(), pairing.idle_includes());
    let (notes, segments) = (pairing.notes(), pairing.take_segments());
    Recorded { rows: rows(writer.close().unwrap().1).0, incomplete, idle_includes, notes, segments }
}

fn as_text(events: &[Event], layer: Layer, source: GuestSource, kernel: Option<&str>) -> Option<Recorded> {
    let mut text = PerfText::new(vec![], kernel, Box::new(ByNumber)).unwrap();
    events.iter().for_each(|event| text.event(event).unwrap());
    let text = text.into_inner();
    let mut writer = Writer::new(vec![], Metadata::new(layer), Packing::default()).unwrap();
    let options = PerfOptions { layer: Some(layer), source, arch: None, skip_unparsable: false };
    let summary = match perf::import(Input::new("t", &text[..]).unwrap(), &options, &mut writer) {
        Ok(summary) => summary,
        Err(ImportError::NoEpisodes(_)) => return None,
        Err(error) => panic!("{error}\n{}", String::from_utf8_lossy(&text)),
    };
    assert_eq!(summary.out_of_order, 0);
    let (rows, reader) = rows(writer.close().unwrap().1);
    let metadata = reader.metadata();
    let mut notes = metadata.other.clone();
    notes.remove("dwell.overlaps");
    notes.remove("dwell.arch");
    notes.remove(dwell_trace::import::NOTES);
    // Live capture tries out which CPUs emit nothing; the importer has only the trace to go by.
    if let Some(guest) = notes.get_mut("dwell.guest") {
        guest["cpus_without_cpu_idle"] = Value::Array(vec![]);
    }
    let (incomplete, idle_includes) = (metadata.lost.incomplete_episodes, metadata.idle_includes);
    let segments = reader.segments().unwrap();
    Some(Recorded { rows, incomplete, idle_includes, notes, segments })
}

fn check(
    events: &[Event],
    layer: Layer,
    source: GuestSource,
    kernel: Option<&str>,
) -> Result<(), TestCaseError> {
    // As the importer decides it: where the events are there that show which tasks are runnable.
    let has = |what: fn(&EventKind) -> bool| events.iter().any(|event| what(&event.kind));
    let contention = has(|kind| matches!(kind, EventKind::Switch { .. }))
        && has(|kind| matches!(kind, EventKind::Wakeup { .. }))
        && has(|kind| matches!(kind, EventKind::Migrate { .. }));
    // And where those are there that show what woke whom.
    let causes = has(|kind| matches!(kind, EventKind::Waking { .. }))
        && match layer {
            Layer::Host => has(|kind| matches!(kind, EventKind::ApicAccept { .. })),
            Layer::Guest => has(|kind| matches!(kind, EventKind::Switch { .. })),
            _ => true,
        };
    let mut direct = at_once(events, pairing(layer, source, kernel, [contention, causes]), layer);
    match as_text(events, layer, source, kernel) {
        Some(imported) => {
            // A table keeps the tasks that have segments, and a text names of tasks that a guest's names do not have; how each
            // idled is from the episodes.
            let named = |segments: &mut Segments| -> Vec<(String, Segment)> {
                let rows = segments.rows.drain(..);
                let name =
                    |row: &Segment| segments.tasks[row.task as usize].rsplit('/').next().unwrap().to_owned();
                rows.map(|row| (name(&row), Segment { task: 0, idle: None, ..row })).collect()
            };
            let mut imported = imported;
            let [ours, direct_segments] = [&mut imported.segments, &mut direct.segments]
                .map(|segments| segments.take().as_mut().map(named).unwrap_or_default());
            prop_assert_eq!(ours, direct_segments);
            prop_assert_eq!(imported, direct);
        }
        None => prop_assert!(direct.rows.is_empty()),
    }
    Ok(())
}

/// Events in order of time, with any number of them at one time.
fn stream(kind: impl Strategy<Value = EventKind>) -> impl Strategy<Value = Vec<Event>> {
    let gap = prop_oneof![Just(0u64), 1u64..2_000, 1u64..400_000, Just(40_000_000)];
    let pid = prop_oneof![4 => 1i32..4, 1 => Just(Event::UNKNOWN_ID), 1 => Just(0)];
    prop::collection::vec((gap, 0u32..3, pid, 1i32..8, kind), 0..200).prop_map(|steps| {
        let mut time_ns = 1_000_000_000;
        let event = |(gap, cpu, pid, tid, kind)| {
            time_ns += gap;
            let cpu = if let EventKind::Lost { cpu, .. } = kind { cpu.unwrap_or(0) } else { cpu };
            Event { time_ns, cpu, pid, tid, kind }
        };
        steps.into_iter().map(event).collect()
    })
}

fn lost() -> impl Strategy<Value = EventKind> {
    (prop::option::of(0u32..3), any::<u64>()).prop_map(|(cpu, count)| EventKind::Lost { cpu, count })
}

fn of_vcpus() -> impl Strategy<Value = EventKind> {
    let window = || prop_oneof![Just(0u32), Just(10_000), Just(20_000), Just(40_000), any::<u32>()];
    prop_oneof![
        10 => (prop_oneof![0u64..500_000, any::<u64>()], any::<bool>(), any::<bool>())
            .prop_map(|(ns, waited, valid)| EventKind::VcpuWakeup { ns, waited, valid }),
        6 => (0u32..3, any::<bool>(), window(), window())
            .prop_map(|(vcpu, grow, new, old)| EventKind::HaltPoll { vcpu, grow, new, old }),
        1 => (0u32..3).prop_map(|vcpu| EventKind::Exit { vcpu: Some(vcpu), reason: 0 }),
        4 => (0i32..8, any::<bool>(), 0i32..8).prop_map(|(prev, runnable, next)| EventKind::Switch {
            prev,
            prev_runnable: Some(runnable),
            next,
        }),
        3 => (1i32..8, 0u32..3).prop_map(|(woken, target)| EventKind::Wakeup { woken, target }),
        1 => (1i32..8, 0u32..3, 0u32..3).prop_map(|(task, from, to)| EventKind::Migrate { task, from, to }),
        3 => (1i32..8, 0u32..3).prop_map(|(woken, target)| EventKind::Waking { woken, target }),
        3 => (0u32..3).prop_map(|apic| EventKind::ApicAccept { apic }),
        1 => interrupt(),
        1 => lost(),
    ]
}

fn interrupt() -> impl Strategy<Value = EventKind> {
    prop_oneof![Just(Interrupt::Timer), Just(Interrupt::Device)].prop_map(EventKind::Interrupt)
}

fn of_cpus() -> impl Strategy<Value = EventKind> {
    let state = prop_oneof![Just(None), Just(Some(0u32)), Just(Some(1)), Just(Some(2))];
    let task = || prop_oneof![2 => Just(0i32), 3 => 1i32..6, 1 => Just(Event::UNKNOWN_ID)];
    let interrupt = prop_oneof![Just(Interrupt::Timer), Just(Interrupt::Ipi), Just(Interrupt::Device)];
    prop_oneof![
        6 => (0u32..3, state).prop_map(|(cpu, state)| EventKind::CpuIdle { cpu, state }),
        6 => (task(), prop::option::of(any::<bool>()), task())
            .prop_map(|(prev, prev_runnable, next)| EventKind::Switch { prev, prev_runnable, next }),
        4 => (task(), 0u32..3).prop_map(|(woken, target)| EventKind::Waking { woken, target }),
        2 => interrupt.prop_map(EventKind::Interrupt),
        2 => (0u32..3, 0u32..3)
            .prop_map(|(new, old)| EventKind::GuestHaltPoll { new: new * 10_000, old: old * 10_000 }),
        2 => (any::<u64>(), any::<bool>())
            .prop_map(|(window_ns, halted)| EventKind::DwellIdle { window_ns, halted }),
        1 => (0u32..2, any::<u64>(), any::<u64>())
            .prop_map(|(state, residency_ns, limit_ns)| EventKind::Reflect { state, residency_ns, limit_ns }),
        1 => lost(),
    ]
}

fn of_threads() -> impl Strategy<Value = EventKind> {
    let call = || prop::sample::select(SystemCall::ALL);
    let timeout = prop_oneof![
        Just(0u64),
        Just(1),
        Just(u64::from(u32::MAX)),
        Just(u64::MAX),
        (0u64..5_000),
        Just(0x7fff_1234_5678)
    ];
    prop_oneof![
        8 => (call(), timeout).prop_map(|(call, argument)| EventKind::Enter { call, timeout: call.timeout(argument) }),
        8 => (call(), prop_oneof![-70i64..5, any::<i64>()])
            .prop_map(|(call, result)| EventKind::Leave { call, result }),
        4 => (1i32..8, 0u32..3).prop_map(|(woken, target)| EventKind::Waking { woken, target }),
        1 => interrupt(),
        1 => lost(),
    ]
}

proptest! {
    #[test]
    fn of_a_host(
        mut events in stream(of_vcpus()),
        kernel in prop::sample::select(vec![None, Some("5.10.0"), Some("5.17.2-a"), Some("6.1.0"), Some("6.18.44")]),
    ) {
        // A text without processes and with a thread of two vCPUs is refused.
        for event in events.iter_mut().filter(|event| event.pid == Event::UNKNOWN_ID) {
            let own = event.tid.cast_unsigned() % 3;
            match &mut event.kind {
                EventKind::HaltPoll { vcpu, .. } => *vcpu = own,
                EventKind::Exit { vcpu, .. } => *vcpu = Some(own),
                _ => {}
            }
        }
        check(&events, Layer::Host, GuestSource::Auto, kernel)?;
    }

    #[test]
    fn of_a_guest(events in stream(of_cpus())) {
        for source in [GuestSource::CpuIdle, GuestSource::Switch] {
            check(&events, Layer::Guest, source, None)?;
        }
    }

    #[test]
    fn of_threads_that_wait(events in stream(of_threads())) {
        check(&events, Layer::Iothread, GuestSource::Auto, None)?;
    }

    /// Of two threads and one call, so that most waits are whole, and threads that wait wake each other.
    #[test]
    fn of_loops_that_wake_each_other(mut events in stream(of_threads())) {
        let call = SystemCall::Ppoll;
        for event in &mut events {
            (event.pid, event.tid) = (1, 1 + event.tid % 2);
            match &mut event.kind {
                EventKind::Enter { call: of, timeout } => (*of, *timeout) = (call, Timeout::Limited),
                EventKind::Leave { call: of, .. } => *of = call,
                EventKind::Waking { woken, .. } => *woken = 1 + *woken % 2,
                _ => {}
            }
        }
        check(&events, Layer::Iothread, GuestSource::Auto, None)?;
    }
}

/// More events than are put in order at a time, and more text than is looked at before it is decided what it is.
#[test]
fn of_a_long_trace() {
    let events: Vec<Event> = (0..100_000u64)
        .map(|number| {
            let (time_ns, tid) =
                (1_000_000_000 + number * 7_000, 21 + i32::try_from(number / 2 % 3).unwrap());
            let call = SystemCall::Ppoll;
            let kind = match number % 2 {
                0 => EventKind::Enter { call, timeout: Timeout::Limited },
                _ => EventKind::Leave { call, result: i64::from(number % 5 == 0) },
            };
            Event { time_ns, cpu: 0, pid: 7, tid, kind }
        })
        .collect();
    let direct =
        at_once(&events, pairing(Layer::Iothread, GuestSource::Auto, None, [false; 2]), Layer::Iothread);
    assert_eq!(direct.rows.len(), 50_000);
    assert_eq!(as_text(&events, Layer::Iothread, GuestSource::Auto, None).unwrap(), direct);
}
