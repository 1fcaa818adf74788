//! What does a round of looks cost?
//!
//! Question: how long does the loop take to look at its sources once while it polls, for one source and for eight whose look is a load of
//! a word that another thread would write? A round should take less than 10 ns and 10 ns for each source, besides the pause
//! that every look of a guard has (its own baseline, here and in `guard` of `dwell-idle`). It would be surprising if eight sources
//! took more than eight times as long as one.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use dwell_eventloop::{Idler, Loop, Source, SourceId, Wait};
use dwell_idle::policy::reference::Always;
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Rounds of one wait.
const ROUNDS: u32 = 10_000;

/// As a virtqueue: an index that has not changed.
struct Word(AtomicU16);
impl Source for Word {
    fn look(&mut self) -> bool {
        self.0.load(Ordering::Acquire) != 0
    }
    fn run(&mut self, _: u32) -> bool {
        false
    }
}

/// Has an event after so many looks.
struct Ends(u32);
impl Source for Ends {
    fn look(&mut self) -> bool {
        self.0 += 1;
        self.0 > ROUNDS
    }
    fn run(&mut self, _: u32) -> bool {
        self.0 = 0;
        false
    }
}

/// Never asked: the policy polls for ever.
struct Nothing;
impl Wait for Nothing {
    fn wait(&mut self, _: Option<Duration>, _: impl FnMut(SourceId)) -> io::Result<()> {
        Ok(())
    }
}

fn round(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a round of looks");
    group.throughput(Throughput::Elements(ROUNDS.into()));
    group.bench_function("baseline: a pause", |b| {
        b.iter(|| (0..ROUNDS).for_each(|_| std::hint::spin_loop()));
    });
    for sources in [0, 1, 8] {
        let mut looped = Loop::over(Idler::new(Always), Nothing);
        looped.push(Ends(0));
        (0..sources).for_each(|_| {
            looped.push(Word(AtomicU16::new(0)));
        });
        group.bench_function(format!("one that ends it, and {sources}"), |b| {
            b.iter(|| black_box(looped.step().map(|step| step.ran)));
        });
    }
    group.finish();
}

criterion_group!(benches, round);
criterion_main!(benches);
