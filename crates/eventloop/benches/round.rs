//! What does a round of looks cost?
//!
//! Question: how long does the loop take to look at its sources once while it polls, for one source and for
//! eight whose look is a load of a word that another thread would write? A round should take less than 10 ns
//! and 10 ns for each source, besides the pause that every look of a guard has (its own baseline, here and in
//! `guard` of `dwell-idle`). It would be surprising if eight sources took more than eight times as long as
//! one.
//!
//! Question: what does io_uring save as the way to wait? A look at a file descriptor that is not readable,
//! and a byte through a pipe that the loop sees, reads and asks for again, by epoll and by io_uring. The look
//! should cost nothing like a system call; for the byte io_uring has one more to make.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use dwell_eventloop::{Epoll, Idler, Loop, SourceId, Uring, Watch};
use dwell_idle::policy::reference::{Always, Never};
use dwell_testing::waits::{Ends, Nothing, RealSteps, Word};
use std::cell::Cell;
use std::hint::black_box;
use std::os::fd::AsFd;
use std::time::Duration;

/// Rounds of one wait.
const ROUNDS: u32 = 10_000;

fn round(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a round of looks");
    group.throughput(Throughput::Elements(ROUNDS.into()));
    group.bench_function("baseline: a pause", |b| {
        b.iter(|| (0..ROUNDS).for_each(|_| std::hint::spin_loop()));
    });
    for sources in [0, 1, 8] {
        let mut looped = Loop::over(Idler::with_clock(Always, RealSteps::of(100)), Nothing);
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

fn fds(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a look at a file descriptor");
    look(&mut group, "baseline: epoll", Epoll::new().expect("an epoll instance"));
    match Uring::new() {
        Ok(uring) => look(&mut group, "io_uring", uring),
        Err(error) => println!("SKIP no io_uring here ({error}): a look over it"),
    }
    group.finish();
    let mut group = criterion.benchmark_group("a byte through a pipe");
    byte(&mut group, "baseline: epoll", Epoll::new().expect("an epoll instance"));
    if let Ok(uring) = Uring::new() {
        byte(&mut group, "io_uring", uring);
    }
    group.finish();
}

fn look(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, mut wait: impl Watch) {
    let (read, _write) = rustix::pipe::pipe().expect("a pipe");
    wait.watch(SourceId::of(0), read.as_fd(), false).expect("a watched pipe");
    group.bench_function(name, |b| {
        b.iter(|| wait.wait(Some(Duration::ZERO), |id| panic!("{id:?} is readable")));
    });
}

fn byte(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, wait: impl Watch) {
    let (read, write) = rustix::pipe::pipe().expect("a pipe");
    let seen = Cell::new(0u64);
    let mut looped = Loop::over(Idler::new(Never), wait);
    looped
        .add_fd(&read, |_| {
            seen.set(seen.get() + u64::from(rustix::io::read(&read, &mut [0u8; 1]) == Ok(1)));
            false
        })
        .expect("a watched pipe");
    group.bench_function(name, |b| {
        b.iter(|| {
            let before = seen.get();
            rustix::io::write(&write, b"x").expect("room in the pipe");
            looped.run_until(|| seen.get() > before)
        });
    });
}

criterion_group!(benches, round, fds);
criterion_main!(benches);
