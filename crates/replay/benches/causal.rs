//! How fast is the replay of causes?
//!
//! Question: how many segments under how many settings does one core replay in a second? The goal is 10 million, for a
//! recording of 100,000 segments. Two loads: four pairs of tasks that wake each other, whose queue of events is as long
//! as that of a machine of eight CPUs, and timers alone. It would be surprising if the rule made a difference: an event
//! goes through a heap, a rule is a handful of compares.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Cause, Segment, Segments};
use dwell_replay::Rule;
use dwell_replay::causal::{Constants, External, Program, Windows};
use dwell_stats::SplitMix64;

const SEGMENTS: u32 = 100_000;
const TASKS: u32 = 8;

/// As measured in a nested guest of 2 vCPUs, with Linux 6.18.
const CONSTANTS: Constants = Constants {
    after_poll: 1_800,
    after_halt: 20_000,
    external_poll: 1_800,
    external_halt: 1_800,
    ipi: 7_000,
    longer_segment: 4_000,
    hidden: 3_000,
    after_host_poll: 0,
};

/// Eight tasks on a CPU each; each segment is woken by the one before it of the peer, or by a timer.
fn segments(coupled: bool) -> Segments {
    let mut random = SplitMix64::new(1);
    let mut rows: Vec<Segment> = vec![];
    for number in 0..SEGMENTS {
        let (round, task) = (number / TASKS, number % TASKS);
        let waker = match task % 2 {
            1 => number.checked_sub(1),
            _ => number.checked_sub(TASKS - 1),
        };
        let start_ns = u64::from(round) * 60_000 + u64::from(task % 2) * 30_000;
        let run_ns = 3_000 + random.below(4_000);
        let cause = match waker.filter(|_| coupled) {
            Some(waker) => Cause::Task { waker, offset_ns: rows[waker as usize].run_ns },
            None => Cause::Timer { woken_ns: start_ns },
        };
        rows.push(Segment { task, cpu: task, start_ns, run_ns, cause, halted: Some(false), idle: None });
    }
    Segments { tasks: (0..TASKS).map(|task| format!("task{task}")).collect(), rows, ..Segments::default() }
}

fn causal(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("causal replay, segments under a setting");
    group.throughput(Throughput::Elements(SEGMENTS.into()));
    let haltpoll = Rule::Layer(Setting::defaults(Layer::Guest, Version::new(6, 18)));
    for (load, coupled) in [("coupled", true), ("timers", false)] {
        let program = Program::without(&segments(coupled), External::Absolute, CONSTANTS, &[]);
        for (name, rule) in [("fixed window", Rule::fixed(Nanos(50_000))), ("haltpoll 6.18", haltpoll)] {
            group.bench_function(BenchmarkId::new(load, name), |bencher| {
                bencher.iter(|| {
                    program.replay(&rule, Windows::Zero).expect("the rule can be replayed").segments
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, causal);
criterion_main!(benches);
