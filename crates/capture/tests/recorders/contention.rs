//! A real vCPU that shares its core with tasks that always want it: the recording is compared with itself.
//!
//! Medians over `ROUNDS` recordings; the waker has another core, and everything else on the machine is part of what is
//! recorded.

use dwell_capture::{Observer, Recorder, Status, Target, Until};
use dwell_recording::accounting::KvmCounted;
use dwell_recording::{Chunk, Columns, Reader};
use dwell_replay::RecordingSource;
use dwell_replay::check::{AGREES, self_check};
use dwell_stats::SplitMix64;
use dwell_testing::say;
use dwell_testing::vcpu::HaltingVcpu;
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The VM's maximum \[ns\].
const MAXIMUM: u32 = 200_000;
const ROUNDS: usize = 3;

fn pin(thread: Option<Pid>, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(thread, &set).unwrap();
}

/// The vCPU's thread, by the name that it gives itself when it begins.
fn vcpu_thread() -> Pid {
    let named = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == "CPU 0/KVM")
    };
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        if let Some(path) = tasks.into_iter().find(named) {
            return Pid::from_raw(path.file_name().unwrap().to_str().unwrap().parse().unwrap()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Gaps of 5 us to 300 us, and long ones between.
fn gaps(count: usize) -> Vec<u64> {
    let mut random = SplitMix64::new(1);
    let mut gap = || if random.below(10) == 0 { 1_500_000 } else { 5_000 + random.below(295_000) };
    (0..count).map(|_| gap()).collect()
}

/// Runs a vCPU beside `tasks` tasks on core 1, and records it.
fn run(tasks: usize, count: usize) -> Result<Vec<u8>, String> {
    let mut vcpu = HaltingVcpu::new(Some(MAXIMUM))?;
    pin(Some(vcpu_thread()), 1);
    let pid = i32::try_from(std::process::id()).ok();
    let recorder = Recorder::open(Target::Host { pid, exits: false, contention: true, causes: false }, None)
        .map_err(|error| error.to_string())?;
    let (stop, ready) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..tasks {
            scope.spawn(|| {
                pin(Some(gettid()), 1);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let recording = scope.spawn(|| {
            recorder.to_memory(&Until { duration: None, stop: &stop }, &mut Ready(&ready)).unwrap().1
        });
        while !ready.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        vcpu.run_on(&gaps(count));
        stop.store(true, Ordering::Relaxed);
        Ok(recording.join().unwrap())
    })
}

/// Set once the recorder runs.
struct Ready<'a>(&'a AtomicBool);

impl Observer for Ready<'_> {
    fn status(&mut self, _: &Status) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[test]
#[ignore = "measures time; .ci/long runs it"]
fn a_recording_of_a_shared_core_agrees_with_itself() {
    const TEST: &str = "a_recording_of_a_shared_core_agrees_with_itself";
    let _alone = crate::alone();
    let cores = sched_getaffinity(None).unwrap();
    if !(cores.is_set(0) && cores.is_set(1)) {
        return dwell_testing::skip!("machine", TEST, "needs CPUs 0 and 1");
    }
    let count = std::env::var("DWELL_WAKES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    pin(Some(gettid()), 0);
    for tasks in [1, 2] {
        let (mut worst, mut known) = (vec![], vec![]);
        for _ in 0..ROUNDS {
            let bytes = match run(tasks, count) {
                Ok(bytes) => bytes,
                Err(error) => return dwell_testing::skip!("kvm", TEST, "{error}"),
            };
            let source = RecordingSource::new(Reader::from_bytes("live", bytes).unwrap(), false);
            let metadata = source.reader().metadata();
            if !metadata.source.events.iter().any(|event| event == "sched:sched_wakeup") {
                return dwell_testing::skip!(
                    "tracing",
                    TEST,
                    "the scheduler's tracepoints cannot be used here"
                );
            }
            let check = self_check(&source).unwrap();
            known.push(known_alone(source.reader()));
            say!(
                "{tasks} tasks: {check}; one pass {} ns; time alone known of {:.1} %; {:?}",
                check.poll_pass().get(),
                100.0 * known.last().unwrap(),
                KvmCounted::of(metadata)
            );
            assert!(KvmCounted::of(metadata).is_some(), "the VM was there from the start to the end");
            worst.push(check.checked().expect("outcomes and settings were recorded").worst);
        }
        assert!(median(known) > 0.9, "{tasks} tasks: the time alone is hardly known");
        let worst = median(worst);
        assert!(worst <= AGREES, "{tasks} tasks: {worst}");
    }
}

/// The share of episodes whose time alone is known.
fn known_alone(reader: &Reader) -> f64 {
    let (mut chunk, mut known, mut all) = (Chunk::default(), 0, 0);
    for group in 0..reader.row_groups() {
        reader.read(group, Columns::ALONE_NS, &mut chunk).unwrap();
        known += chunk.alone_ns.iter().flatten().count();
        all += chunk.rows;
    }
    known as f64 / all as f64
}
