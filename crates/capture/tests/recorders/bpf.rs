//! BPF programs against the running kernel.

use dwell_capture::{GuestSource, Observer, Recorder, Status, Target, Until};
use dwell_machine::{Sysroot, cpu};
use dwell_testing::say;
use dwell_trace::event::{Event, EventKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// How many events of each kind came from each CPU.
struct Tap {
    seen: BTreeMap<(u32, &'static str), u64>,
    started: Option<Sender<()>>,
}

impl Observer for Tap {
    fn status(&mut self, _: &Status) {
        // Whoever waits for this may be gone.
        let _ = self.started.take().map(|started| started.send(()));
    }

    fn event(&mut self, event: &Event) {
        let name = match event.kind {
            EventKind::CpuIdle { cpu, .. } => {
                assert_eq!(cpu, event.cpu);
                "cpu_idle"
            }
            EventKind::Waking { .. } => "waking",
            EventKind::Interrupt(_) => "interrupt",
            EventKind::Reflect { .. } => "reflect",
            _ => "other",
        };
        *self.seen.entry((event.cpu, name)).or_default() += 1;
    }
}

/// Sleeps on every CPU in turn.
fn visit(cpus: &[u32], times: u32) {
    for &cpu in cpus {
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu as usize);
        rustix::thread::sched_setaffinity(None, &set).unwrap();
        for _ in 0..times {
            std::thread::sleep(Duration::from_micros(700));
        }
    }
}

#[test]
fn programs_see_every_cpu_idle() {
    const TEST: &str = "programs_see_every_cpu_idle";
    let _alone = crate::alone();
    let recorder = match Recorder::open(Target::Guest { source: GuestSource::Bpf, causes: true }, None) {
        Ok(recorder) => recorder,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
    };
    assert_eq!(recorder.metadata().other["dwell.tracing"]["by"], "bpf");
    let cpus = cpu::online(&Sysroot::of_this_machine());
    let (started, ready) = channel();
    let mut tap = Tap { seen: BTreeMap::new(), started: Some(started) };
    let stop = AtomicBool::new(false);
    let summary = std::thread::scope(|scope| {
        let (cpus, stop) = (&cpus, &stop);
        scope.spawn(move || {
            ready.recv().unwrap();
            visit(cpus, 200);
            stop.store(true, Ordering::Relaxed);
        });
        recorder.to_memory(&Until { duration: None, stop }, &mut tap).unwrap().0
    });
    say!("{:?}; events of each CPU: {:?}", summary.status, tap.seen);
    assert_eq!((summary.status.lost, summary.metadata.lost.events), (0, Some(0)));
    // Every sleep wakes its thread, whoever else is running; which CPU's timer does it is the kernel's choice.
    let of = |cpu: &u32| tap.seen.get(&(*cpu, "waking")).copied().unwrap_or(0);
    assert!(cpus.iter().map(of).sum::<u64>() >= 200 * cpus.len() as u64);
    assert!(cpus.iter().all(|cpu| of(cpu) > 0), "no event of some CPU");
}

/// The times of the events of one call; it stops when there are enough.
struct Seen<'a> {
    at_ns: Vec<u64>,
    enough: &'a AtomicBool,
}

impl Observer for Seen<'_> {
    fn event(&mut self, event: &Event) {
        self.at_ns.push(event.time_ns);
        self.enough.store(self.at_ns.len() > 20, Ordering::Relaxed);
    }
}

/// Sets the flag when dropped, after a failed assertion too, so that the scope's thread ends.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Programs that stay attached write while it is recorded, and not in between.
#[test]
fn a_recorder_that_stays_ready_sees_nothing_in_between() {
    const TEST: &str = "a_recorder_that_stays_ready_sees_nothing_in_between";
    let _alone = crate::alone();
    let mut recorder = match Recorder::open(Target::Guest { source: GuestSource::Bpf, causes: false }, None) {
        Ok(recorder) => recorder,
        Err(error) => return dwell_testing::skip!("tracing", TEST, "{error}"),
    };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&ended);
        // Whatever else runs, there is something to see, on a busy machine after a while.
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        recorder.stay(true);
        for number in 0..3 {
            let stop = AtomicBool::new(false);
            let mut seen = Seen { at_ns: vec![], enough: &stop };
            let from_ns = dwell_capture::now_ns();
            recorder
                .watch(&Until { duration: Some(Duration::from_secs(60)), stop: &stop }, &mut seen)
                .unwrap();
            assert!(seen.at_ns.len() > 20, "call {number}: {}", seen.at_ns.len());
            assert!(seen.at_ns.iter().all(|at_ns| *at_ns >= from_ns), "call {number} has what was before it");
            std::thread::sleep(Duration::from_millis(10));
        }
        recorder.stay(false);
    });
}
