//! What does the guard around a wait cost?
//!
//! Question: how long do `idle`, `polls`, `halts` and `wakes` take for a wait that halts at once, without the
//! wait itself? A sleep takes some microseconds; 100 ns are one or two in a hundred. Baseline in the same
//! run: the two readings of the clock that a guard with a constant needs as well. It would be surprising if
//! recording took more than 30 ns, or one look of a polling wait more than a pause and an eighth of the
//! clock.

use criterion::{Criterion, criterion_group, criterion_main};
use dwell_idle::policy::reference::{Always, Never};
use dwell_idle::ring::ring;
use dwell_idle::{Clock, Halt, Idler, Monotonic, Nanos, Policy, Price, Record};
use dwell_testing::waits::RealSteps;
use std::hint::black_box;

const HALT: Halt = Halt::constant(dwell_idle::halt::Sleep {
    after: Nanos(50_000),
    sleeper: Nanos(16_000),
    waker: Nanos(8_000),
    latency: Nanos(15_000),
});

/// One wait that is over at once.
#[inline(never)]
fn wait<P: Policy, R: Record>(idler: &mut Idler<P, Monotonic, R>) {
    let mut idle = idler.idle(None);
    if !idle.polls() {
        black_box(idle.halts());
    }
    idle.wakes(&[1]);
}

fn guard(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("idle and wakes");
    group.bench_function("baseline: two readings of the clock", |b| {
        b.iter(|| (black_box(Monotonic.now()), black_box(Monotonic.now())));
    });
    let mut never = Idler::new(Never);
    group.bench_function("never", |b| b.iter(|| wait(&mut never)));
    let mut leader = Idler::new(HALT.leader(Price::default()));
    group.bench_function("leader", |b| b.iter(|| wait(&mut leader)));
    let (sink, mut tap) = ring(1 << 10);
    let mut recorded = Idler::new(HALT.leader(Price::default())).recording(sink);
    group.bench_function("leader, recorded", |b| {
        b.iter(|| {
            wait(&mut recorded);
            tap.take()
        });
    });
    group.finish();

    // A wait that goes on, whatever interrupts the benchmark.
    let mut always = Idler::with_clock(Always, RealSteps::of(100));
    let mut idle = always.idle(None);
    let mut group = criterion.benchmark_group("a look");
    group.bench_function("baseline: a pause", |b| b.iter(std::hint::spin_loop));
    group.bench_function("polls", |b| b.iter(|| assert!(idle.polls(), "the wait is over")));
    group.finish();
}

criterion_group!(benches, guard);
criterion_main!(benches);
