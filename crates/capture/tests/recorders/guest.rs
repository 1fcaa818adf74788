//! The CPUs of this machine, recorded live.

use dwell_capture::{GuestSource, Observer, Recorder, Target, Until, now_ns};
use dwell_recording::{Chunk, Columns, IdleIncludes, Reader, TimeRecorded};
use dwell_testing::say;
use dwell_trace::event::Event;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn a_sleeping_thread_shows_its_cpu_idle() {
    const TEST: &str = "a_sleeping_thread_shows_its_cpu_idle";
    let _alone = crate::alone();
    for source in [GuestSource::Switch, GuestSource::Auto] {
        let recorder = match Recorder::open(Target::Guest { source, causes: false }, None) {
            Ok(recorder) => recorder,
            Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
        };
        let sleeper = std::thread::spawn(|| {
            for _ in 0..300 {
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let until = Until { duration: Some(Duration::from_secs(1)), stop: &AtomicBool::new(false) };
        let (summary, bytes) = recorder.to_memory(&until, &mut ()).unwrap();
        sleeper.join().unwrap();
        let reader = Reader::from_bytes("live", bytes).unwrap();
        say!(
            "{}: {} episodes of {} CPUs, {} events, {} lost, {} incomplete; {}",
            source.name(),
            summary.status.episodes,
            summary.status.idlers,
            summary.status.events,
            summary.status.lost,
            summary.status.incomplete,
            reader.metadata().other["dwell.guest"]
        );
        assert_eq!(reader.metadata().idle_includes, IdleIncludes::Event);
        if summary.status.episodes == 0 {
            say!("UNKNOWN {TEST}: other work kept every CPU busy");
            continue;
        }
        let mut chunk = Chunk::default();
        reader.read(0, Columns::IDLE_NS | Columns::WAKE_LATENCY_NS, &mut chunk).unwrap();
        let told = chunk.wake_latency_ns.iter().flatten().count();
        say!("  of {} episodes {told} end at a known event", chunk.rows);
        // An episode is at most as long as the recording.
        assert!(chunk.idle_ns.iter().all(|&ns| ns <= 2_000_000_000));
    }
}

/// Reads counters at the beginning and at the end, which takes long.
#[derive(Default)]
struct Slow {
    /// From the first reading to the second \[ns\].
    read_ns: [[u64; 2]; 2],
    events_ns: Vec<u64>,
}

impl Slow {
    fn read(&mut self, which: usize) {
        let from_ns = now_ns();
        std::thread::sleep(Duration::from_millis(100));
        self.read_ns[which] = [from_ns, now_ns()];
    }
}

impl Observer for Slow {
    fn begins(&mut self) {
        self.read(0);
    }

    fn ends(&mut self) {
        self.read(1);
    }

    fn event(&mut self, event: &Event) {
        self.events_ns.push(event.time_ns);
    }
}

#[test]
fn events_count_while_counters_are_read() {
    const TEST: &str = "events_count_while_counters_are_read";
    let _alone = crate::alone();
    let recorder = match Recorder::open(Target::Guest { source: GuestSource::Auto, causes: false }, None) {
        Ok(recorder) => recorder,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
    };
    let stop = AtomicBool::new(false);
    let (mut slow, duration) = (Slow::default(), Duration::from_millis(200));
    let summary = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let until = Until { duration: Some(duration), stop: &AtomicBool::new(false) };
        let recorded = recorder.to_memory(&until, &mut slow);
        stop.store(true, Ordering::Relaxed);
        recorded.unwrap().0
    });
    let TimeRecorded { start_ns, end_ns } = summary.metadata.recorded.unwrap();
    let [[begins, begun], [ends, ended]] = slow.read_ns;
    assert!(start_ns <= begins && ended <= end_ns);
    assert!(Duration::from_nanos(ends - begun) >= duration);
    assert!(slow.events_ns.iter().all(|ns| (start_ns..=end_ns).contains(ns)), "{start_ns} {end_ns}");
    // The thread above wakes up during both.
    for [from, to] in slow.read_ns {
        assert!(slow.events_ns.iter().any(|ns| (from..=to).contains(ns)), "{from} {to}");
    }
}
