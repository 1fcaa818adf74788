//! What do the events cost that a recording of vCPUs has for the time alone (`alone_ns`), and for what woke them?
//!
//! ```text
//! cargo bench -p dwell-capture --bench contention
//! ```
//! A vCPU halts on a core of its own, and on one that it shares with a task that always wants it, and is
//! woken after 5 us to 300 us. Each round runs it without a recorder, under a recording of its halts,
//! under one with the scheduler's events, and under one with causes too, in an order that turns around from round to
//! round. Per wakeup, as medians over the rounds with their range:
//!
//! * events: what was read from the kernel;
//! * in the vCPU's thread: its CPU time, in which the kernel writes the events of its core;
//! * in the recorder: the CPU time of its thread.
//!
//! It would be surprising if the events of a core that nobody shares cost much: there is one of each kind in a halt.

mod common;

use common::{pin, range, recorded, rounds};
use dwell_capture::{Recorder, Target};
use dwell_stats::SplitMix64;
use dwell_testing::vcpu::HaltingVcpu;
use rustix::thread::{Pid, sched_getaffinity};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WAKES: usize = 1_000;
/// The VM's maximum \[ns\].
const MAXIMUM: u32 = 200_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Nothing,
    Halts,
    HaltsAndScheduler,
    HaltsSchedulerAndCauses,
}

/// Per wakeup.
#[derive(Clone, Copy, Debug)]
struct Cost {
    events: f64,
    vcpu_ns: f64,
    recorder_ns: f64,
}

fn main() {
    let cores = sched_getaffinity(None).expect("the affinity is known");
    if !(cores.is_set(0) && cores.is_set(1)) {
        return println!("SKIP needs CPUs 0 and 1: contention");
    }
    let rounds = rounds();
    let forms =
        [Recorded::Nothing, Recorded::Halts, Recorded::HaltsAndScheduler, Recorded::HaltsSchedulerAndCauses];
    pin(None, 0);
    println!("{WAKES} wakeups each; medians of {rounds} rounds, with their range");
    println!(
        "| tasks on the core | recorded | events/wakeup | in the vCPU's thread, ns/wakeup | in the recorder, ns/wakeup |"
    );
    println!("|---|---|---|---|---|");
    for tasks in [0, 1] {
        let mut costs: Vec<(Recorded, Cost)> = vec![];
        for round in 0..rounds {
            let mut order = forms;
            if round % 2 == 1 {
                order.reverse();
            }
            for recorded in order {
                match measure(recorded, tasks) {
                    Ok(cost) => costs.push((recorded, cost)),
                    Err(error) => return println!("SKIP {error}: contention"),
                }
            }
        }
        for form in forms {
            let of = |value: fn(&Cost) -> f64, digits| {
                let values =
                    costs.iter().filter(|(recorded, _)| *recorded == form).map(|(_, cost)| value(cost));
                range(values.collect(), digits)
            };
            let name = match form {
                Recorded::Nothing => "nothing",
                Recorded::Halts => "halts",
                Recorded::HaltsAndScheduler => "halts and the scheduler's events",
                Recorded::HaltsSchedulerAndCauses => "these and causes",
            };
            let (events, vcpu) = (of(|cost| cost.events, 1), of(|cost| cost.vcpu_ns, 0));
            println!("| {tasks} | {name} | {events} | {vcpu} | {} |", of(|cost| cost.recorder_ns, 0));
        }
    }
}

fn measure(what: Recorded, tasks: usize) -> Result<Cost, String> {
    let mut random = SplitMix64::new(1);
    let gaps: Vec<u64> = (0..WAKES).map(|_| 5_000 + random.below(295_000)).collect();
    let mut vcpu = HaltingVcpu::new(Some(MAXIMUM))?;
    pin(Some(vcpu_thread()), 1);
    let target = |contention, causes| {
        let pid = i32::try_from(std::process::id()).ok();
        Recorder::open(Target::Host { pid, exits: false, contention, causes }, None)
            .map_err(|error| error.to_string())
    };
    let recorder = match what {
        Recorded::Nothing => None,
        Recorded::Halts => Some(target(false, false)?),
        Recorded::HaltsAndScheduler => Some(target(true, false)?),
        Recorded::HaltsSchedulerAndCauses => Some(target(true, true)?),
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..tasks {
            scope.spawn(|| {
                pin(None, 1);
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (_, events, recorder_ns) = recorded(recorder, &stop, || drop(vcpu.run_on(&gaps)));
        let each = |number: u64| number as f64 / WAKES as f64;
        Ok(Cost { events: each(events), vcpu_ns: each(vcpu.cpu_ns), recorder_ns: each(recorder_ns) })
    })
}

/// The vCPU's thread, by the name that it gives itself when it begins.
fn vcpu_thread() -> Pid {
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("the threads are listed").flatten();
        let named = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim() == "CPU 0/KVM")
        };
        let thread = tasks.map(|task| task.path()).find(named);
        let tid = thread.and_then(|path| path.file_name()?.to_str()?.parse().ok()).and_then(Pid::from_raw);
        if let Some(tid) = tid {
            return tid;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
