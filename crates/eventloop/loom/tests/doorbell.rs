//! Every order in which a thread rings and a loop goes to sleep, by loom, of the very source of the doorbell:
//! no ring is lost. And every order of two threads that ring with at most two preemptions.

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, Ordering};
}
#[path = "../../src/doorbell.rs"]
#[allow(dead_code)]
mod doorbell;

use doorbell::Word;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};

/// The file descriptor that a waker writes to: level-triggered.
#[derive(Default)]
struct Eventfd(Mutex<bool>, Condvar);

impl Eventfd {
    fn write(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_one();
    }

    fn sleep(&self) {
        let mut written = self.0.lock().unwrap();
        while !*written {
            written = self.1.wait(written).unwrap();
        }
        *written = false;
    }
}

fn all_rings_are_heard(ringers: usize, preemptions: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let (word, eventfd) = (Arc::new(Word::new()), Arc::new(Eventfd::default()));
        let work: Arc<Vec<AtomicU32>> = Arc::new((0..ringers).map(|_| AtomicU32::new(0)).collect());
        let threads: Vec<_> = (0..ringers)
            .map(|ringer| {
                let (word, eventfd, work) = (word.clone(), eventfd.clone(), work.clone());
                loom::thread::spawn(move || {
                    // Relaxed: the doorbell alone orders it.
                    work[ringer].store(1, Ordering::Relaxed);
                    if word.ring() {
                        eventfd.write();
                    }
                })
            })
            .collect();
        // If a ring were lost, this would sleep for ever, which loom reports as a deadlock.
        let done = |work: &[AtomicU32]| work.iter().all(|work| work.load(Ordering::Relaxed) == 1);
        let mut heard = 0;
        while heard < ringers {
            if word.look() && word.answer() {
                heard = work.iter().filter(|work| work.load(Ordering::Relaxed) == 1).count();
                continue;
            }
            if word.sleeps() {
                eventfd.sleep();
            }
            word.wakes();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(done(&work));
    });
}

#[test]
fn ring_of_one_thread_is_never_lost() {
    all_rings_are_heard(1, None);
}

#[test]
fn rings_of_two_threads_are_never_lost() {
    // Without a bound this takes longer than minutes.
    all_rings_are_heard(2, Some(2));
}
