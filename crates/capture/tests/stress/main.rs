//! Recorded under load, nothing is lost, or it is said how much.

mod pingpong;

use dwell_capture::{Observer, Recorder, Status, Target, Until};
use dwell_recording::Reader;
use dwell_testing::say;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

struct Started(Option<Sender<()>>);

impl Observer for Started {
    fn status(&mut self, _: &Status) {
        if let Some(started) = self.0.take() {
            let _ = started.send(());
        }
    }
}

#[test]
fn every_wait_is_an_episode_or_counted_as_lost() {
    const TEST: &str = "every_wait_is_an_episode_or_counted_as_lost";
    let seconds = std::env::var("DWELL_STRESS_S").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let target = Target::Thread { pid: None, comm: vec![pingpong::COMM.to_owned()], causes: false };
    let recorder = match Recorder::open(target, None) {
        Ok(recorder) => recorder,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
    };
    let (started, ready) = channel();
    let (stop, mut observer) = (AtomicBool::new(false), Started(Some(started)));
    let (summary, bytes, waits) = std::thread::scope(|scope| {
        let recording =
            scope.spawn(|| recorder.to_memory(&Until { duration: None, stop: &stop }, &mut observer));
        ready.recv().unwrap();
        let load = pingpong::PingPong::start(200_000);
        std::thread::sleep(Duration::from_secs(seconds));
        let waits = load.stop();
        stop.store(true, Ordering::Relaxed);
        let (summary, bytes) = recording.join().unwrap().unwrap();
        (summary, bytes, waits)
    });
    let status = summary.status;
    say!(
        "{waits} waits ({} a second), {} episodes, {} events, {} lost, {} incomplete, peak memory {} kB",
        waits / seconds,
        status.episodes,
        status.events,
        status.lost,
        status.incomplete,
        pingpong::peak_memory_kb()
    );
    if status.lost == 0 {
        assert_eq!(status.episodes, waits);
    } else {
        assert!(status.episodes + status.lost >= waits);
    }
    assert!(pingpong::peak_memory_kb() < 200_000);
    let reader = Reader::from_bytes("stress", bytes).unwrap();
    assert_eq!(reader.episodes(), status.episodes);
    assert_eq!(reader.metadata().lost.events, Some(status.lost));
}
