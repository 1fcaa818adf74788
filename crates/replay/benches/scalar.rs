//! How fast is the scalar replay, which everything faster is held against?
//!
//! Question: how many interval-configurations per second does one core replay, for each rule? The unit is one episode
//! under one setting. Baseline in the same run: counting the same episodes under a fixed window, which has no state
//! from one episode to the next and so tells what of the time is the rule's. It would be surprising if a rule took
//! more than ten times as long as the baseline, since a decision is a handful of compares and at most one division.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Batch, Memory, Rule, Source};
use dwell_stats::SplitMix64;
use std::hint::black_box;

const EPISODES: usize = 1 << 16;

/// Exponential lengths with a mean of 100 us: what Poisson arrivals leave between them.
fn exponential() -> Vec<u64> {
    let mut random = SplitMix64::new(1);
    (0..EPISODES).map(|_| random.exponential(100_000.0)).collect()
}

fn batch(idle_ns: &[u64]) -> Batch {
    let mut all = Batch::default();
    Memory::of_one(idle_ns).visit(0..u64::MAX, &mut |batch| all = batch.clone()).expect("memory can be read");
    all
}

fn rules() -> [(&'static str, Rule); 7] {
    let layer = |layer, major, minor| Rule::Layer(Setting::defaults(layer, Version::new(major, minor)));
    [
        ("baseline: fixed window", Rule::fixed(Nanos(50_000))),
        ("kvm 6.18", layer(Layer::Host, 6, 18)),
        ("kvm 5.4", layer(Layer::Host, 5, 4)),
        ("haltpoll 6.18", layer(Layer::Guest, 6, 18)),
        ("aio-global 7.2", layer(Layer::Iothread, 7, 2)),
        ("aio-per-handler 10.0", layer(Layer::Iothread, 10, 0)),
        ("aio-weighted 11.1", layer(Layer::Iothread, 11, 1)),
    ]
}

fn scalar(criterion: &mut Criterion) {
    let batch = batch(&exponential());
    let mut group = criterion.benchmark_group("scalar replay, interval-configurations");
    group.throughput(Throughput::Elements(EPISODES as u64));
    for (name, rule) in rules() {
        let fresh = rule.start(1).expect("the rule can be replayed");
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                let mut player = fresh.clone();
                batch.runs().map(|run| player.play(black_box(run)).halts).sum::<u64>()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scalar);
criterion_main!(benches);
