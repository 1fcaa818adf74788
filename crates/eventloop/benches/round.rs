//! What does a round of looks cost?
//!
//! Question: how long does the loop take to look at its sources once while it polls, for one source and for eight whose look is a load of
//! a word that another thread would write? A round should take less than 10 ns and 10 ns for each source, besides the pause
//! that every look of a guard has (its own baseline, here and in `guard` of `dwell-idle`). It would be surprising if eight sources
//! took more than eight times as long as one.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dwell_eventloop::{Idler, Loop};
use dwell_idle::policy::reference::Always;
use dwell_testing::waits::{Ends, Nothing, Word};
use std::hint::black_box;

/// Rounds of one wait.
const ROUNDS: u32 = 10_000;

fn round(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a round of looks");
    group.throughput(Throughput::Elements(ROUNDS.into()));
    group.bench_function("baseline: a pause", |b| {
        b.iter(|| (0..ROUNDS).for_each(|_| std::hint::spin_loop()));
    });
    for sources in [0, 1, 8] {
        let mut looped = Loop::over(Idler::new(Always), Nothing);
        looped.push(Ends::after(ROUNDS.into()));
        (0..sources).for_each(|_| {
            looped.push(Word::default());
        });
        group.bench_function(format!("one that ends it, and {sources}"), |b| {
            b.iter(|| black_box(looped.step().map(|step| step.ran)));
        });
    }
    group.finish();
}

criterion_group!(benches, round);
criterion_main!(benches);
