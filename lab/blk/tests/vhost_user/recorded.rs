//! The I/O thread records its waits; the recording replays without a deviation.

use crate::rig::{IN, PATIENCE};
use dwell_blk::driver::{Driver, Setup};
use dwell_blk::{Disk, Options, Shape, Worker, serve};
use dwell_idle::Recorder;
use dwell_policy::catalogue::Any;
use dwell_policy::iothread::{Aio, Handler, Kind, Params, Revision};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Unreported, version::Version};
use dwell_recording::Reader;
use dwell_replay::Rule;
use dwell_testing::{say, windows};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// Waits to record with each policy: `DWELL_DECISIONS`, else enough for each to decide in every way that it has.
fn wanted() -> u64 {
    std::env::var("DWELL_DECISIONS").map_or(10_000, |text| text.parse().unwrap())
}

/// Requests with pauses, until the device has waited so often; the windows that it recorded and those of a replay.
fn recorded_and_replayed(policy: Any, rule: &Rule) -> (Vec<u64>, Vec<u64>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("waits.parquet");
    let recorder = Recorder::create(&path).unwrap();
    let disk = Arc::new(Disk::null(1 << 20));
    let options = Options { queues: 1, cpu: None, policy, disk_policy: None, record: recorder.sink("disk") };
    let worker = Worker::start(Arc::clone(&disk), options).unwrap();
    std::thread::scope(|scope| {
        let (frontend, stream) = UnixStream::pair().unwrap();
        let served = scope.spawn(|| serve(stream, &worker, &disk, Shape { queues: 1, queue_size: 128 }));
        let mut driver = Driver::over(frontend, Setup::default()).unwrap();
        let begin = Instant::now();
        for round in 0u32.. {
            let (queue, memory) = driver.queue(0);
            for burst in 0..1_000u32 {
                // Phases with think times, and ones without.
                if round % 4 == 0 && burst % 8 == 0 {
                    let pause = begin.elapsed() + std::time::Duration::from_micros(u64::from(burst % 64));
                    while begin.elapsed() < pause {
                        std::hint::spin_loop();
                    }
                }
                queue.submit(memory, 0, IN, 0, 512, false);
                queue.publish(memory).unwrap();
                assert_eq!(queue.wait(memory, PATIENCE).unwrap(), Some((0, 0)));
            }
            if worker.statistics().unwrap().waits >= wanted() {
                break;
            }
        }
        drop(driver);
        served.join().unwrap().unwrap();
    });
    let statistics = worker.end().unwrap();
    let contents = recorder.finish().unwrap();
    let reader = Arc::new(Reader::open(&path).unwrap());
    assert_eq!(reader.metadata().lost.events, Some(0));
    assert_eq!(contents.episodes, statistics.waits);
    windows::recorded_and_replayed(&reader, rule)
}

fn replays_without_deviation(name: &str, policy: Any, rule: Rule) {
    let begin = Instant::now();
    // A recording has no times lost, so that a replay cannot give way.
    let (recorded, replayed) = recorded_and_replayed(Any::other(Unreported(policy)), &rule);
    assert_eq!(recorded.len(), replayed.len());
    let deviations = recorded.iter().zip(&replayed).filter(|(a, b)| a != b).count();
    let mut different = recorded.clone();
    different.sort_unstable();
    different.dedup();
    say!(
        "{name}: {} decisions of the I/O thread, {} different windows, {deviations} deviations in the replay; {:.1} s",
        recorded.len(),
        different.len(),
        begin.elapsed().as_secs_f64()
    );
    assert_eq!(deviations, 0, "{name}");
    assert!(different.len() > 1, "{name}: nothing was decided");
}

#[test]
fn decisions_of_the_device_replay_without_deviation() {
    let learner: Rule = "leader@40us,late=10us".parse().unwrap();
    replays_without_deviation("leader", learner.policy().unwrap(), learner);
    // The doorbell, the completions and the queue are its handlers.
    let version = Version::new(11, 1);
    let handlers = vec![Handler::new(Kind::Polled); 3];
    let aio = Aio::new(Revision::Weighted, Params::default_for(Revision::Weighted), handlers);
    let rule = Rule::Layer(Setting::defaults(Layer::Iothread, version));
    replays_without_deviation("aio@11.1", Any::other(aio), rule);
}
