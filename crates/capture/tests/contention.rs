//! A real vCPU that shares its core with tasks that always want it: the recording is compared with itself, and predictions
//! of other maxima with what KVM then counts.
//!
//! Medians over `ROUNDS` runs of each; the waker has another core, and everything else on the machine is part of what is
//! recorded.

mod common;
mod say;

use common::{HaltingVcpu, Numbers, Stats};
use dwell_capture::{Recorder, Target, Until};
use dwell_policy::param::Setting;
use dwell_policy::{Layer, Nanos};
use dwell_recording::accounting::KvmCounted;
use dwell_recording::{Chunk, Columns, Reader};
use dwell_replay::check::{self_check, setting_of};
use dwell_replay::{RecordingSource, Rule, Versions, replay};
use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use say::say;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The maxima that are predicted \[ns\]; the one recorded is the second.
const MAXIMA: [u32; 3] = [50_000, 200_000, 800_000];
const RECORDED: u32 = MAXIMA[1];
const ROUNDS: usize = 3;
/// By how much medians may differ.
const WITHIN: f64 = 0.1;

/// What a run did.
#[derive(Clone, Copy, Debug)]
struct Did {
    polls: f64,
    halts: f64,
    polled_ns: f64,
}

impl Did {
    fn of(stats: &Stats) -> Did {
        Did {
            polls: stats.get("halt_attempted_poll") as f64,
            halts: stats.get("halt_wait_hist") as f64,
            polled_ns: (stats.get("halt_poll_success_ns") + stats.get("halt_poll_fail_ns")) as f64,
        }
    }
}

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
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut gap = || if numbers.next() % 10 == 0 { 1_500_000 } else { 5_000 + numbers.next() % 295_000 };
    (0..count).map(|_| gap()).collect()
}

/// Runs a vCPU under this maximum beside `tasks` tasks on core 1; records it if asked to.
fn run(maximum: u32, tasks: usize, count: usize, record: bool) -> Result<(Did, Option<Vec<u8>>), String> {
    let vcpu = HaltingVcpu::new(Some(maximum))?;
    pin(Some(vcpu_thread()), 1);
    let pid = i32::try_from(std::process::id()).ok();
    let open = || Recorder::open(Target::Host { pid, exits: false, contention: true }, None);
    let recorder = record.then(open).transpose().map_err(|error| error.to_string())?;
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
        let recording = recorder.map(|recorder| {
            let (stop, ready) = (&stop, &ready);
            scope.spawn(move || {
                struct Ready<'a>(&'a AtomicBool);
                impl dwell_capture::Observer for Ready<'_> {
                    fn status(&mut self, _: &dwell_capture::Status) {
                        self.0.store(true, Ordering::Relaxed);
                    }
                }
                recorder.to_memory(&Until { duration: None, stop }, &mut Ready(ready)).unwrap().1
            })
        });
        while recording.is_some() && !ready.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let stats = vcpu.run(&gaps(count));
        stop.store(true, Ordering::Relaxed);
        let bytes = recording.map(|recording| recording.join().unwrap());
        Ok((Did::of(&stats), bytes))
    })
}

fn predicted(source: &RecordingSource, maximum: u32) -> Did {
    let metadata = source.reader().metadata();
    let version = Versions::of_recording(metadata).of(Layer::Host);
    let in_force = setting_of(Layer::Host, version, &metadata.settings);
    let mut setting = in_force.unwrap_or_else(|| Setting::defaults(Layer::Host, version));
    setting.set("halt_poll_ns", maximum.into()).unwrap();
    let counts = replay(source, &[Rule::Layer(setting)], Nanos(0), &|_| ()).unwrap().counts[0];
    Did { polls: counts.polls as f64, halts: counts.halts as f64, polled_ns: counts.polled_ns as f64 }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[test]
fn polls_on_a_shared_core_are_predicted() {
    const TEST: &str = "polls_on_a_shared_core_are_predicted";
    let cores = sched_getaffinity(None).unwrap();
    if !(cores.is_set(0) && cores.is_set(1)) {
        return say!("SKIP needs CPUs 0 and 1: {TEST}");
    }
    let count = std::env::var("DWELL_WAKES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    pin(Some(gettid()), 0);
    say!("tasks  maximum       polls: pred meas       halts: pred meas    polled us: pred meas");
    let mut wrong = vec![];
    for tasks in [1, 2] {
        let (mut predictions, mut measured) = (vec![vec![]; 3], vec![vec![]; 3]);
        let mut worst = vec![];
        for _ in 0..ROUNDS {
            let (_, bytes) = match run(RECORDED, tasks, count, true) {
                Ok(ran) => ran,
                Err(error) => return say!("SKIP {error}: {TEST}"),
            };
            let source = RecordingSource::new(Reader::from_bytes("live", bytes.unwrap()).unwrap(), false);
            if !source.reader().metadata().source.events.iter().any(|event| event == "sched:sched_wakeup") {
                return say!("SKIP the scheduler's tracepoints cannot be used here: {TEST}");
            }
            let check = self_check(&source).unwrap();
            let known = known_alone(source.reader());
            say!(
                "{tasks:>5}  self-check: {check}; time alone known of {:.1} %; pass {} ns",
                100.0 * known,
                check.poll_pass().get()
            );
            say!("       {:?}", KvmCounted::of(source.reader().metadata()));
            worst.push(check.checked().map_or(1.0, |checked| checked.worst));
            let source = source.with_poll_pass(check.poll_pass());
            for (place, &maximum) in MAXIMA.iter().enumerate() {
                predictions[place].push(predicted(&source, maximum));
                measured[place].push(run(maximum, tasks, count, false).unwrap().0);
            }
        }
        let worst = median(worst);
        if worst > 0.05 {
            wrong.push(format!("{tasks} tasks: self-check {worst}"));
        }
        for (place, maximum) in MAXIMA.iter().enumerate() {
            let of = |all: &[Did], figure: fn(&Did) -> f64| median(all.iter().map(figure).collect());
            let mut texts = vec![];
            for (name, figure) in [
                ("polls", (|d| d.polls) as fn(&Did) -> f64),
                ("halts", |d| d.halts),
                ("polled", |d| d.polled_ns / 1e3),
            ] {
                let (p, m) = (of(&predictions[place], figure), of(&measured[place], figure));
                texts.push(format!("{p:>10.0} {m:>10.0}"));
                if (p - m).abs() > WITHIN * p.max(m) {
                    wrong.push(format!("{tasks} tasks, {maximum} ns: {name} {p} predicted, {m} measured"));
                }
            }
            say!("{tasks:>5}  {maximum:>7}  {}", texts.join("  "));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
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
