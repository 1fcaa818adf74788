//! The loop as it is used: threads ring, timers expire, sockets become readable.

use dwell_eventloop::{Bell, Doorbell, Idler, Loop, Nanos};
use dwell_idle::policy::reference::{Always, Fixed, Never};
use dwell_idle::{Policy, Record, Row};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rings of several threads, each of which waits until it was heard; how many sleeps that took.
fn rings(policy: impl Policy, pause: Duration) -> u64 {
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
        let mut looped = Loop::new(Idler::new(policy)).unwrap();
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

#[test]
fn every_ring_is_heard() {
    rings(Never, Duration::ZERO);
    rings(Always, Duration::ZERO);
    rings(Fixed(Nanos(5_000)), Duration::ZERO);
    rings(Fixed(Nanos(5_000)), Duration::from_micros(1));
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
    let (runs, halts) = (Cell::new(0), Cell::new(0));
    let begin = Instant::now();
    let mut looped = Loop::new(Idler::new(Never).recording(Halts(&halts))).unwrap();
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

/// Sources come and go while the loop runs: the number of one that is gone is given to the next, and nobody hears its rings.
#[test]
fn removed_source_is_neither_run_nor_watched() {
    let (first, second) = (Cell::new(0), Cell::new(0));
    let mut looped = Loop::new(Idler::new(Never)).unwrap();
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
