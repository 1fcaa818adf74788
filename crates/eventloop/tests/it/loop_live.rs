//! The loop as it is used: threads ring, timers expire, sockets become readable.

use dwell_eventloop::{Bell, Doorbell, Epoll, Idler, Loop, Nanos, SourceId, Uring, Wait, Watch};
use dwell_idle::policy::reference::{Always, Fixed, Never};
use dwell_idle::{Policy, Record, Row};
use dwell_stats::SplitMix64;
use rustix::fd::AsFd;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rings of a thread that waits until each was heard; how many sleeps that took.
fn rings(policy: impl Policy, wait: impl Watch, pause: Duration) -> u64 {
    const RINGS: u64 = 2_000;
    let (asked, heard) = (AtomicU64::new(0), AtomicU64::new(0));
    let begin = Instant::now();
    let (bell, doorbell) =
        Bell::new(|| heard.store(asked.load(Ordering::Relaxed), Ordering::Release)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let doorbell: Doorbell = doorbell.clone();
            for ring in 1..=RINGS {
                asked.store(ring, Ordering::Relaxed);
                doorbell.ring();
                while heard.load(Ordering::Acquire) < ring && begin.elapsed() < Duration::from_secs(30) {
                    std::thread::yield_now();
                }
                std::thread::sleep(pause);
            }
        });
        let mut looped = Loop::over(Idler::new(policy), wait);
        looped.add(bell).unwrap();
        // If a ring is lost, the timer makes the loop look at the time.
        looped.after(Duration::from_millis(100), || Some(Duration::from_millis(100)));
        looped
            .run_until(|| {
                assert!(begin.elapsed() < Duration::from_secs(30), "a ring was lost");
                heard.load(Ordering::Relaxed) == RINGS
            })
            .unwrap();
        looped.idler().totals().halts
    })
}

/// A ring, where there is io_uring.
fn uring() -> Option<Uring> {
    Uring::new()
        .inspect_err(|error| dwell_testing::skip!("machine", "the loop over io_uring", "{error}"))
        .ok()
}

#[test]
fn every_ring_is_heard() {
    fn all<W: Watch>(wait: impl Fn() -> W) {
        rings(Never, wait(), Duration::ZERO);
        rings(Always, wait(), Duration::ZERO);
        rings(Fixed(Nanos(5_000)), wait(), Duration::ZERO);
        rings(Fixed(Nanos(5_000)), wait(), Duration::from_micros(1));
    }
    all(|| Epoll::new().unwrap());
    if uring().is_some() {
        all(|| Uring::new().unwrap());
    }
}

/// Counts the waits in which the loop halted.
struct Halts<'a>(&'a Cell<u32>);
impl Record for Halts<'_> {
    fn row(&mut self, row: &Row) {
        self.0.set(self.0.get() + u32::from(row.halted));
    }
}

#[test]
fn timers_are_run_at_their_times_and_can_be_cancelled() {
    timers(Epoll::new().unwrap());
    uring().into_iter().for_each(timers);
}

fn timers(wait: impl Watch) {
    let (runs, halts) = (Cell::new(0), Cell::new(0));
    let begin = Instant::now();
    let mut looped = Loop::over(Idler::new(Never).recording(Halts(&halts)), wait);
    looped.after(Duration::from_millis(5), || {
        runs.set(runs.get() + 1);
        (runs.get() < 3).then_some(Duration::from_millis(5))
    });
    let never = looped.after(Duration::from_millis(1), || panic!("cancelled"));
    assert!(looped.cancel(never) && !looped.cancel(never));
    looped.run_until(|| runs.get() == 3 || begin.elapsed() > Duration::from_secs(10)).unwrap();
    assert_eq!(runs.get(), 3);
    assert!(begin.elapsed() >= Duration::from_millis(15));
    assert!(halts.get() >= 3, "it slept until each");
}

/// A source that had panicked was never run again, and timers that were due beside one that panicked were lost.
#[test]
fn panic_in_a_callback_loses_no_other_event() {
    panics(Epoll::new().unwrap());
    uring().into_iter().for_each(panics);
}

fn panics(wait: impl Watch) {
    let (rings, timers, begin) = (Cell::new(0), Cell::new(0), Instant::now());
    let mut looped = Loop::over(Idler::new(Never), wait);
    let (bell, doorbell) = Bell::new(|| {
        rings.set(rings.get() + 1);
        assert!(rings.get() > 1, "the first ring panics");
    })
    .unwrap();
    looped.add(bell).unwrap();
    doorbell.ring();
    assert!(catch_unwind(AssertUnwindSafe(|| looped.step())).is_err());
    doorbell.ring();
    looped.step().unwrap();
    assert_eq!(rings.get(), 2);
    looped.after(Duration::ZERO, || panic!("the first timer panics"));
    looped.after(Duration::ZERO, || {
        timers.set(timers.get() + 1);
        (timers.get() < 2).then_some(Duration::from_micros(1))
    });
    assert!(catch_unwind(AssertUnwindSafe(|| looped.step())).is_err());
    // Keeps the loop from sleeping for good where a timer is lost.
    looped.after(Duration::ZERO, || Some(Duration::from_millis(1)));
    looped.run_until(|| timers.get() == 2 || begin.elapsed() > Duration::from_secs(5)).unwrap();
    assert_eq!(timers.get(), 2);
}

/// The kernel cancels the polls of a thread that ends, and nothing of their descriptors was seen any more.
#[test]
fn descriptor_that_an_ended_thread_watched_is_reported() {
    let Some(mut wait) = uring() else { return };
    for (id, edge) in [(SourceId::of(0), true), (SourceId::of(1), false)] {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let watched = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| wait.watch(id, read.as_fd(), edge));
            watcher.join().unwrap()
        });
        watched.unwrap();
        let mut seen = None;
        // The kernel may still be about to end it.
        wait.wait(Some(Duration::from_millis(20)), |id| seen = Some(id)).unwrap();
        rustix::io::write(&write, b"x").unwrap();
        let begin = Instant::now();
        while seen.is_none() && begin.elapsed() < Duration::from_secs(5) {
            wait.wait(Some(Duration::from_millis(20)), |id| seen = Some(id)).unwrap();
        }
        assert_eq!(seen, Some(id), "by edges: {edge}");
        wait.forget(id, read.as_fd()).unwrap();
    }
}

/// Over epoll time-outs were rounded up to whole milliseconds.
#[test]
fn timer_of_100_us_is_run_within_a_millisecond() {
    fn fires(wait: impl Watch) {
        let fired = Cell::new(false);
        let mut looped = Loop::over(Idler::new(Never), wait);
        let in_time = (0..1_000).any(|_| {
            let begin = Instant::now();
            looped.after(Duration::from_micros(100), || {
                fired.set(true);
                None
            });
            if !looped.step().unwrap().timers {
                assert!(looped.step().unwrap().timers, "no sleep ends early");
            }
            assert!(fired.take());
            assert!(begin.elapsed() >= Duration::from_micros(100), "it is never too early");
            begin.elapsed() < Duration::from_millis(1)
        });
        assert!(in_time);
    }
    fires(Epoll::new().unwrap());
    uring().into_iter().for_each(fires);
}

/// Sources come and go while the loop runs: the number of one that is gone is given to the next, and nobody
/// hears its rings.
#[test]
fn removed_source_is_neither_run_nor_watched() {
    removed(Epoll::new().unwrap());
    uring().into_iter().for_each(removed);
}

fn removed(wait: impl Watch) {
    let (first, second) = (Cell::new(0), Cell::new(0));
    let mut looped = Loop::over(Idler::new(Never), wait);
    let (bell, doorbell) = Bell::new(|| first.set(first.get() + 1)).unwrap();
    let id = looped.add(bell).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let blind = looped.add_fd(read, |_| panic!("removed")).unwrap();
    doorbell.ring();
    looped.step().unwrap();
    assert_eq!(first.get(), 1);
    // Rung and written to, and then removed: neither is run.
    doorbell.ring();
    rustix::io::write(&write, b"x").unwrap();
    looped.remove(id).unwrap();
    looped.remove(blind).unwrap();
    assert!(looped.remove(id).is_err() && looped.remove(blind).is_err());
    let (bell, other) = Bell::new(|| second.set(second.get() + 1)).unwrap();
    assert_eq!(looped.add(bell).unwrap(), id);
    for _ in 0..100 {
        other.ring();
        looped.step().unwrap();
    }
    assert_eq!((first.get(), second.get()), (1, 100));
}

/// A descriptor that cannot be looked at is reported as long as there is something to read, whether its
/// source says so or not.
#[test]
fn what_is_left_to_read_is_reported_again() {
    left(Never, Epoll::new().unwrap());
    left(Always, Epoll::new().unwrap());
    if let (Some(sleeps), Some(polls)) = (uring(), uring()) {
        left(Never, sleeps);
        left(Always, polls);
    }
}

fn left(policy: impl Policy, wait: impl Watch) {
    const BYTES: usize = 100;
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (bytes, begin) = (Cell::new(0), Instant::now());
    let mut looped = Loop::over(Idler::new(policy), wait);
    looped
        .add_fd(&read, |_| {
            bytes.set(bytes.get() + rustix::io::read(&read, &mut [0u8; 1]).unwrap());
            false
        })
        .unwrap();
    looped.after(Duration::from_millis(100), || Some(Duration::from_millis(100)));
    for round in 1..=3 {
        rustix::io::write(&write, &[0; BYTES]).unwrap();
        looped
            .run_until(|| bytes.get() == round * BYTES || begin.elapsed() > Duration::from_secs(20))
            .unwrap();
        assert_eq!(bytes.get(), round * BYTES);
    }
}

/// Threads that ring and write, sources that come and go: for a second, or `DWELL_STRESS_SECONDS`.
#[test]
fn no_event_is_lost_under_stress() {
    let seconds = std::env::var("DWELL_STRESS_SECONDS").map_or(Ok(1), |seconds| seconds.parse());
    let seconds = Duration::from_secs(seconds.expect("DWELL_STRESS_SECONDS: whole seconds"));
    let four = seconds / if uring().is_some() { 4 } else { 2 };
    stress("epoll, never", Never, Epoll::new().unwrap(), four);
    stress("epoll, 5 us", Fixed(Nanos(5_000)), Epoll::new().unwrap(), four);
    if let (Some(sleeps), Some(polls)) = (uring(), uring()) {
        stress("io_uring, never", Never, sleeps, four);
        stress("io_uring, 5 us", Fixed(Nanos(5_000)), polls, four);
    }
}

fn stress(name: &str, policy: impl Policy, wait: impl Watch, time: Duration) {
    /// After this an event counts as lost.
    const LOST: Duration = Duration::from_secs(20);
    let (begin, over) = (Instant::now(), AtomicBool::new(false));
    let asked = [const { AtomicU64::new(0) }; 2];
    let heard = [const { AtomicU64::new(0) }; 2];
    let hears = |number: usize| {
        let (asked, heard) = (&asked[number], &heard[number]);
        move || heard.store(asked.load(Ordering::SeqCst), Ordering::SeqCst)
    };
    let (bell, doorbell) = Bell::new(hears(0)).unwrap();
    let (read, write) = rustix::pipe::pipe().unwrap();
    let (pipe, passes) = (&read, Cell::new(0u64));
    std::thread::scope(|scope| {
        // Each asks, and waits for a while that changes until it was heard.
        let asks = |number: usize, tell: Box<dyn Fn() + Send>| {
            let (asked, heard, over) = (&asked[number], &heard[number], &over);
            scope.spawn(move || {
                let mut random = SplitMix64::new(number as u64);
                while !over.load(Ordering::Relaxed) {
                    let ask = asked.fetch_add(1, Ordering::SeqCst) + 1;
                    tell();
                    let told = Instant::now();
                    while heard.load(Ordering::SeqCst) < ask && !over.load(Ordering::Relaxed) {
                        assert!(told.elapsed() < LOST, "event {ask} of {number} was lost");
                        std::thread::yield_now();
                    }
                    match random.below(8) {
                        0 => std::thread::sleep(Duration::from_micros(random.below(200))),
                        spins => (0..spins * 100).for_each(|_| std::hint::spin_loop()),
                    }
                }
            });
        };
        asks(0, Box::new(move || doorbell.ring()));
        asks(1, Box::new(move || assert_eq!(rustix::io::write(&write, b"x"), Ok(1))));
        let mut looped = Loop::over(Idler::new(policy), wait);
        looped.add(bell).unwrap();
        let hear = hears(1);
        looped
            .add_fd(&read, move |_| {
                let read = rustix::io::read(pipe, &mut [0u8; 8]).unwrap();
                hear();
                // What is left in the pipe is reported again, whatever this returns.
                read == 8
            })
            .unwrap();
        looped.after(Duration::from_millis(1), || Some(Duration::from_millis(1)));
        while begin.elapsed() < time {
            // A source that is rung just before it is removed; the next one gets its number.
            let (bell, doorbell) = Bell::new(|| passes.set(passes.get() + 1)).unwrap();
            let id = looped.add(bell).unwrap();
            doorbell.ring();
            (0..16).for_each(|_| assert!(looped.step().is_ok()));
            doorbell.ring();
            looped.remove(id).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    let [rings, writes] = heard.map(|heard| heard.load(Ordering::SeqCst));
    println!("{name}: {rings} rings, {writes} writes, {} sources came and went", passes.get());
    assert!(rings > 0 && writes > 0 && passes.get() > 0);
}
