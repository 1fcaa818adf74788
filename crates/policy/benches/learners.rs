//! What does it cost to decide and to learn?
//!
//! Question: how long do `window()` and `observe()` take together, for one episode, under each policy? A
//! kernel or a VMM does this at every halt, which takes some microseconds: 60 ns are one in a hundred.
//! Baseline in the same run: a fixed window, which decides nothing and learns nothing, so it tells what the
//! loop and its memory take. It would be surprising if `savings`, a few sums and comparisons, took longer
//! than KVM's rule, which divides, and if `leader`, which compares eight sums and updates sixteen, took
//! longer than 60 ns.
//!
//! `.ci/instructions` counts the instructions of the same with callgrind.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use dwell_policy::Policy;
use dwell_testing::learners::{Measure, Stream, each};
use std::hint::black_box;

const EPISODES: usize = 1 << 14;

struct Timed<'c> {
    group: BenchmarkGroup<'c, WallTime>,
    stream: Stream,
}

impl Measure for Timed<'_> {
    fn measure(&mut self, name: &str, mut policy: impl Policy + Clone) {
        let Timed { group, stream } = self;
        group.bench_function(name, |bencher| bencher.iter(|| stream.live(black_box(&mut policy))));
    }
}

fn learners(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("window and observe, an episode");
    group.throughput(Throughput::Elements(EPISODES as u64));
    each(&mut Timed { group, stream: Stream::new(EPISODES) });
}

criterion_group!(benches, learners);
criterion_main!(benches);
