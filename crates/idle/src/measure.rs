//! What a sleep costs on this machine: a thread that sleeps in epoll, and one that wakes it.

use crate::clock::nanos;
use crate::halt::{Halt, LENGTHS, Sleep};
use crate::{Clock, Monotonic, Nanos};
use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::vec::Vec;

/// Lengths and how many sleeps of each: 150 to 250 ms together, and of each enough that a few disturbed ones
/// do not move the median.
const PLAN: [(Nanos, usize); LENGTHS] = [
    (Nanos::from_micros(10), 401),
    (Nanos::from_micros(50), 301),
    (Nanos::from_micros(200), 151),
    (Nanos::from_micros(1_000), 41),
    (Nanos::from_micros(10_000), 7),
];

/// After this long, twenty times what a quiet machine takes, no length gets more sleeps than [`FEWEST`].
const LIMIT: Duration = Duration::from_secs(4);
/// The median of so many is one of a busy machine anyway.
const FEWEST: usize = 5;

/// A sleep without a wakeup is an error after this long.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// Why the cost of a sleep could not be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeasureHaltError {
    /// The process may run on one CPU only: who polls there keeps the waker from running.
    OneCpu,
    /// A system call failed, or the start of a thread.
    System(Errno),
    /// The sleeping thread was not woken within ten seconds.
    NotWoken,
}

impl fmt::Display for MeasureHaltError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot measure what a sleep costs: ")?;
        match self {
            MeasureHaltError::OneCpu => f.write_str(
                "the process may run on one CPU only, where polling keeps others from running; use a policy that never polls",
            ),
            MeasureHaltError::System(errno) => write!(f, "{errno}"),
            MeasureHaltError::NotWoken => f.write_str("the sleeping thread was not woken within 10 s"),
        }
    }
}

impl core::error::Error for MeasureHaltError {}

impl From<Errno> for MeasureHaltError {
    fn from(errno: Errno) -> MeasureHaltError {
        MeasureHaltError::System(errno)
    }
}

impl Halt {
    /// The lengths of the sleeps that [`measure`](Halt::measure) measures.
    pub const LENGTHS: [Nanos; LENGTHS] = [PLAN[0].0, PLAN[1].0, PLAN[2].0, PLAN[3].0, PLAN[4].0];

    /// Measures what sleeps of 10 us to 10 ms cost here, with two threads, in about 0.2 s. Medians; a busy
    /// machine makes them higher, and fewer: after 4 s only five sleeps of each length are waited for. The
    /// threads run on two different CPUs, the first two of the caller's: a peer on the CPU of a thread that
    /// polls cannot run anyway, and where the scheduler puts both on one, as it does on a busy machine, a
    /// sleep seems to cost a tenth.
    ///
    /// # Errors
    /// [`MeasureHaltError`]; none of them is a reason not to run: [`Halt::constant`] takes a guess.
    pub fn measure() -> Result<Halt, MeasureHaltError> {
        let affinity = sched_getaffinity(None)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| affinity.is_set(*cpu));
        let (Some(one), Some(other)) = (cpus.next(), cpus.next()) else {
            return Err(MeasureHaltError::OneCpu);
        };
        Halt::measure_on([one, other], LIMIT)
    }

    fn measure_on([one, other]: [usize; 2], limit: Duration) -> Result<Halt, MeasureHaltError> {
        let pair = Pair::new()?;
        thread::scope(|scope| {
            let waker = spawn(scope, || on(other, || pair.wakes()))?;
            let sleeper = spawn(scope, || on(one, || pair.sleeps(limit)))
                .inspect_err(|_| pair.rung.store(GONE, Ordering::Release))?;
            let slept = sleeper.join().unwrap_or(Err(MeasureHaltError::NotWoken))?;
            let wakers = waker.join().map_err(|_| MeasureHaltError::NotWoken)?;
            let mut sleeps = [Sleep::default(); LENGTHS];
            for (place, sleep) in sleeps.iter_mut().enumerate() {
                let (after, _) = PLAN[place];
                let column = |of: fn(&Slept) -> u64| median(slept[place].iter().map(of).collect());
                *sleep = Sleep {
                    after,
                    sleeper: column(|slept| slept.cpu),
                    latency: column(|slept| slept.latency),
                    waker: median(wakers[place].clone()),
                };
            }
            Ok(Halt::new(sleeps))
        })
    }
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    what: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Errno> {
    let started = Builder::new().spawn_scoped(scope, what);
    started.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
}

/// Does something on this CPU, if the thread may still be there.
fn on<T>(cpu: usize, what: impl FnOnce() -> T) -> T {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    // It was among the caller's CPUs a moment ago; elsewhere the figures are those of where it is.
    let _ = sched_setaffinity(None, &cpus);
    what()
}

/// What both threads share.
struct Pair {
    bell: OwnedFd,
    epoll: OwnedFd,
    /// When the bell was rung; 0: the sleeper is about to sleep. [`GONE`]: it will not sleep any more.
    rung: AtomicU64,
    /// The length of the next sleep, as its place in [`PLAN`].
    place: AtomicUsize,
}

const GONE: u64 = u64::MAX;

/// One sleep, by the sleeper \[ns\].
struct Slept {
    cpu: u64,
    latency: u64,
}

impl Pair {
    fn new() -> Result<Pair, Errno> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Pair { bell, epoll, rung: AtomicU64::new(1), place: AtomicUsize::new(0) })
    }

    fn sleeps(&self, limit: Duration) -> Result<Vec<Vec<Slept>>, MeasureHaltError> {
        let begun = Instant::now();
        let of = |(place, &(_, times)): (usize, &(Nanos, usize))| {
            self.place.store(place, Ordering::Relaxed);
            let goes_on = |number: &usize| *number < FEWEST || begun.elapsed() < limit;
            (0..times).take_while(goes_on).map(|_| self.sleep()).collect()
        };
        let all = PLAN.iter().enumerate().map(of).collect();
        self.rung.store(GONE, Ordering::Release);
        all
    }

    fn sleep(&self) -> Result<Slept, MeasureHaltError> {
        let cpu = || nanos(clock_gettime(ClockId::ThreadCPUTime)).get();
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 1];
        let before = cpu();
        self.rung.store(0, Ordering::Release);
        let ready = loop {
            match epoll::wait(&self.epoll, &mut events, Some(&PATIENCE)) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let (now, after) = (Monotonic.now().get(), cpu());
        if ready == 0 {
            return Err(MeasureHaltError::NotWoken);
        }
        rustix::io::read(&self.bell, &mut [0; 8])?;
        Ok(Slept { cpu: after - before, latency: now.saturating_sub(self.rung.load(Ordering::Acquire)) })
    }

    /// How long the system call that wakes took, by length \[ns\].
    fn wakes(&self) -> [Vec<u64>; LENGTHS] {
        let mut all = [const { Vec::new() }; LENGTHS];
        while let Some((place, took_ns)) = self.wake() {
            all[place].push(took_ns);
        }
        all
    }

    fn wake(&self) -> Option<(usize, u64)> {
        let mut spins = 0u32;
        while self.rung.load(Ordering::Acquire) != 0 {
            if self.rung.load(Ordering::Acquire) == GONE {
                return None;
            }
            pause(&mut spins);
        }
        let place = self.place.load(Ordering::Relaxed);
        let (after, _) = PLAN[place];
        let end = Monotonic.now().get() + after.get();
        while Monotonic.now().get() < end {
            pause(&mut spins);
        }
        let begin = Monotonic.now().get();
        // It has given up meanwhile.
        self.rung.compare_exchange(0, begin, Ordering::Release, Ordering::Relaxed).ok()?;
        // A write of 1 to an eventfd that is read each time does not fail; if it did the sleeper would report it.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        Some((place, Monotonic.now().get() - begin))
    }
}

/// Spins, and sometimes lets others run, who may be on this CPU.
fn pause(spins: &mut u32) {
    *spins = spins.wrapping_add(1);
    if spins.is_multiple_of(4096) { thread::yield_now() } else { core::hint::spin_loop() }
}

/// The middle one; zero of none.
fn median(mut times: Vec<u64>) -> Nanos {
    times.sort_unstable();
    Nanos(times.get(times.len() / 2).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, setrlimit};

    #[test]
    fn sleeps_cost_more_than_nothing_and_less_than_forever() {
        match Halt::measure() {
            Err(MeasureHaltError::OneCpu) => {
                dwell_testing::skip!(
                    "machine",
                    "sleeps_cost_more_than_nothing_and_less_than_forever",
                    "one CPU"
                );
            }
            Err(error) => panic!("{error}"),
            Ok(halt) => {
                let mut longest = Nanos::ZERO;
                for sleep in halt.sleeps() {
                    assert!(sleep.after > longest, "{sleep:?}");
                    longest = sleep.after;
                    // Half a microsecond is a system call; ten milliseconds are a time slice.
                    let plausible = 500..10_000_000;
                    for part in [sleep.sleeper, sleep.latency] {
                        assert!(plausible.contains(&part.get()), "{sleep:?}");
                    }
                    assert!((100..10_000_000).contains(&sleep.waker.get()), "{sleep:?}");
                }
            }
        }
    }

    #[test]
    fn without_time_five_sleeps_of_each_length_are_enough() {
        let pair = Pair::new().unwrap();
        let (slept, woken) = thread::scope(|scope| {
            let waker = scope.spawn(|| pair.wakes());
            (pair.sleeps(Duration::ZERO).unwrap(), waker.join().unwrap())
        });
        assert_eq!(slept.iter().map(Vec::len).collect::<Vec<_>>(), [FEWEST; LENGTHS]);
        assert_eq!(woken.map(|of| of.len()), [FEWEST; LENGTHS]);
    }

    /// They were left to the scheduler, which put both on one CPU of a busy machine: 4 us in place of 35.
    #[test]
    fn threads_are_on_the_cpus_that_they_are_put_on() {
        let before = sched_getaffinity(None).unwrap();
        for cpu in (0..CpuSet::MAX_CPU).filter(|cpu| before.is_set(*cpu)).take(2) {
            let found = thread::scope(|scope| scope.spawn(|| on(cpu, || sched_getaffinity(None))).join());
            let found = found.unwrap().unwrap();
            assert!(found.is_set(cpu) && found.count() == 1);
        }
        let _ = Halt::measure();
        assert_eq!(
            sched_getaffinity(None).unwrap().count(),
            before.count(),
            "the caller's own are as before"
        );
    }

    /// It panicked. There is memory for the stack of one thread here, which has to end without the other.
    #[test]
    fn second_thread_that_cannot_be_started_is_an_error() {
        const NAME: &str = "measure::tests::second_thread_that_cannot_be_started_is_an_error";
        const STACK: &str = "1073741824";
        if std::env::var_os("RUST_MIN_STACK").is_some_and(|stack| stack == STACK) {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
            let memory = pages * rustix::param::page_size() as u64 + (3 << 29);
            for (what, limit) in [(Resource::As, memory), (Resource::Cpu, 10)] {
                setrlimit(what, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
            }
            assert!(matches!(Halt::measure(), Err(MeasureHaltError::System(_) | MeasureHaltError::OneCpu)));
            return;
        }
        let mut itself = std::process::Command::new(std::env::current_exe().unwrap());
        let itself = itself.args(["--exact", NAME, "--test-threads=1"]).env("RUST_MIN_STACK", STACK);
        let output = itself.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median(std::vec![9, 1, 5]), Nanos(5));
        assert_eq!(median(Vec::new()), Nanos::ZERO);
    }
}
