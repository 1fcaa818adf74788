//! The loop in an adversarial world: events come between any two of its calls, and it must not sleep over
//! one. And how long who waits for whom.

use dwell_eventloop::{BUDGET, FD_STEPS, Loop, Source, SourceId, Step, Wait};
use dwell_idle::policy::reference::{Always, Fixed, Never};
use dwell_idle::{Clock, Halt, Idler, Nanos, Policy, Price};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

/// What the adversary has, and what became of it.
#[derive(Default)]
struct World {
    now: u64,
    /// Before each call of the loop: a source that gets an event, if any.
    script: VecDeque<Option<usize>>,
    /// Events that were not served, by source.
    pending: Vec<u32>,
    /// Whether an event makes the file descriptor readable, by source.
    loud: Vec<bool>,
    /// Edges of file descriptors that no wait has reported.
    edges: Vec<bool>,
    /// Sources that have only a file descriptor: by level, and always loud.
    blind: Vec<bool>,
    served: u32,
    /// How often the loop slept to the end with an event pending that did not wake it.
    slept_over: u32,
    over: bool,
}

impl World {
    /// A call of the loop: time passes, and an event may come.
    fn call(&mut self) {
        self.now += 20;
        match self.script.pop_front() {
            Some(Some(source)) => self.event(source),
            Some(None) => {}
            None => self.over = true,
        }
    }

    fn event(&mut self, source: usize) {
        let source = source % self.pending.len();
        self.pending[source] += 1;
        self.edges[source] |= self.loud[source];
    }

    fn readable(&self, source: usize) -> bool {
        if self.blind[source] { self.pending[source] > 0 } else { self.edges[source] }
    }
}

type Shared = Rc<RefCell<World>>;

struct Time(Shared);
impl Clock for Time {
    fn now(&self) -> Nanos {
        self.0.borrow_mut().call();
        Nanos(self.0.borrow().now)
    }
}

struct Queue {
    world: Shared,
    number: usize,
    /// Whether `loud` does what it should.
    works: bool,
}

impl Source for Queue {
    fn look(&mut self) -> bool {
        self.world.borrow_mut().call();
        self.world.borrow().pending[self.number] > 0
    }
    fn quiet(&mut self) {
        self.world.borrow_mut().call();
        self.world.borrow_mut().loud[self.number] = false;
    }
    fn loud(&mut self) {
        self.world.borrow_mut().call();
        self.world.borrow_mut().loud[self.number] = self.works;
    }
    fn run(&mut self, budget: u32) -> bool {
        self.world.borrow_mut().call();
        let world = &mut *self.world.borrow_mut();
        let served = world.pending[self.number].min(budget);
        world.served += served;
        world.pending[self.number] -= served;
        world.pending[self.number] > 0
    }
}

struct Sleep(Shared);
impl Wait for Sleep {
    fn wait(&mut self, timeout: Option<Duration>, mut ready: impl FnMut(SourceId)) -> io::Result<()> {
        self.0.borrow_mut().call();
        let world = &mut *self.0.borrow_mut();
        let any = |world: &World| (0..world.pending.len()).any(|source| world.readable(source));
        if timeout.is_none() && !any(world) {
            // The next events come while it sleeps, until one wakes it.
            while !any(world) && !world.over {
                world.call();
            }
            let pending = world.pending.iter().any(|pending| *pending > 0);
            world.slept_over += u32::from(pending && !any(world));
        }
        for source in 0..world.pending.len() {
            if world.readable(source) {
                world.edges[source] = false;
                ready(SourceId::of(u32::try_from(source).unwrap()));
            }
        }
        Ok(())
    }
}

/// Runs the loop under a policy to the end of the script: events that were not served, and sleeps over events.
fn run(
    policy: impl Policy,
    script: &[Option<usize>],
    queues: usize,
    blind: usize,
    works: bool,
) -> (u32, u32) {
    let all = queues + blind;
    let mut world = World { script: script.iter().copied().collect(), ..World::default() };
    (world.pending, world.edges) = (vec![0; all], vec![false; all]);
    world.blind = (0..all).map(|number| number >= queues).collect();
    world.loud = world.blind.clone();
    let world = Rc::new(RefCell::new(world));
    let mut looped = Loop::over(Idler::with_clock(policy, Time(world.clone())), Sleep(world.clone()));
    for number in 0..all {
        let queue = Queue { world: world.clone(), number, works };
        if number < queues {
            looped.push(queue)
        } else {
            looped.push_blind(queue)
        };
    }
    while !world.borrow().over {
        looped.step().unwrap();
    }
    // What came at the very end is served in the steps that follow.
    for _ in 0..2 * FD_STEPS {
        if world.borrow().pending.iter().all(|pending| *pending == 0) {
            break;
        }
        looped.step().unwrap();
    }
    let world = world.borrow();
    (world.pending.iter().sum(), world.slept_over)
}

const HALT: Halt = Halt::constant(dwell_idle::halt::Sleep {
    after: Nanos(1_000),
    sleeper: Nanos(300),
    waker: Nanos(100),
    latency: Nanos(100),
});

fn scripts() -> impl Strategy<Value = Vec<Option<usize>>> {
    let call = prop_oneof![6 => Just(None), 1 => (0usize..8).prop_map(Some)];
    prop::collection::vec(call, 1..600)
}

proptest! {
    #[test]
    fn loop_never_sleeps_over_an_event(script in scripts(), queues in 1usize..4, blind in 0usize..3) {
        prop_assert_eq!(run(Never, &script, queues, blind, true), (0, 0));
        prop_assert_eq!(run(Fixed(Nanos(500)), &script, queues, blind, true), (0, 0));
        prop_assert_eq!(run(HALT.leader(Price::default()), &script, queues, blind, true), (0, 0));
    }
}

/// The adversary finds sources whose notifications stay off.
#[test]
fn broken_source_is_slept_over() {
    let script: Vec<_> = (0..400).map(|call| if call % 50 == 3 { Some(0) } else { None }).collect();
    assert!(run(Never, &script, 1, 0, false).1 > 0);
}

/// Always has more to do.
struct Greedy(Rc<RefCell<Vec<usize>>>, usize);
impl Source for Greedy {
    fn look(&mut self) -> bool {
        true
    }
    fn run(&mut self, budget: u32) -> bool {
        assert_eq!(budget, BUDGET);
        self.0.borrow_mut().push(self.1);
        true
    }
}

#[test]
fn step_that_polls_until_its_timer_does_not_sleep() {
    let world = Shared::default();
    let mut looped = Loop::over(Idler::with_clock(Always, Time(world.clone())), Sleep(world.clone()));
    looped.after(Duration::from_micros(1), || None);
    assert_eq!(looped.step().unwrap(), Step::default());
    assert_eq!(looped.idler().totals().halts, 0);
}

#[test]
fn timer_at_the_end_of_time_is_run() {
    struct Last;
    impl Clock for Last {
        fn now(&self) -> Nanos {
            Nanos(u64::MAX)
        }
    }
    let ran = Cell::new(false);
    let mut looped = Loop::over(Idler::with_clock(Never, Last), Sleep(Shared::default()));
    looped.after(Duration::ZERO, || {
        ran.set(true);
        None
    });
    assert!(looped.step().unwrap().timers && ran.get());
}

#[test]
fn greedy_sources_take_turns_and_let_others_in() {
    let log = Rc::new(RefCell::new(vec![]));
    let (read, write) = rustix::pipe::pipe().unwrap();
    let mut looped = Loop::new(Idler::new(Never)).unwrap();
    for number in 0..3 {
        looped.add(Greedy(log.clone(), number)).unwrap();
    }
    let seen = log.clone();
    let fd = looped
        .add_fd(read, move |_| {
            seen.borrow_mut().push(9);
            false
        })
        .unwrap();
    assert_eq!(fd.number(), 3);
    let timer = log.clone();
    looped.after(Duration::ZERO, move || {
        timer.borrow_mut().push(7);
        None
    });
    looped.step().unwrap();
    assert_eq!(log.take(), [7, 0, 1, 2]);
    rustix::io::write(&write, b"x").unwrap();
    for _ in 0..FD_STEPS {
        looped.step().unwrap();
    }
    let ran = log.take();
    assert!(ran.contains(&9), "the file descriptor waits for longer than stated");
    let turns: Vec<usize> = ran.into_iter().filter(|number| *number < 3).collect();
    assert!(turns.chunks(3).all(|turn| turn == [0, 1, 2]), "{turns:?}");
}
