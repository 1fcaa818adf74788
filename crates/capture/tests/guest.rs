//! The CPUs of this machine, recorded live.

use dwell_capture::{GuestSource, Recorder, Target, Until};
use dwell_recording::{Chunk, Columns, IdleIncludes, Reader};
use dwell_testing::say;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

#[test]
fn a_sleeping_thread_shows_its_cpu_idle() {
    const TEST: &str = "a_sleeping_thread_shows_its_cpu_idle";
    for source in [GuestSource::Switch, GuestSource::Auto] {
        let recorder = match Recorder::open(Target::Guest { source }, None) {
            Ok(recorder) => recorder,
            Err(error) => return say!("SKIP {error}: {TEST}"),
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
            say!("SKIP other work kept every CPU busy: {TEST}");
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
