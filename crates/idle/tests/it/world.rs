//! The guard in a simulated world: time passes only in looks, sleeps and readings of the clock, and the world
//! knows when the event was. What the guard did is compared with what the policy alone would do, and what it
//! cost with the offline optimum.

use dwell_idle::park::Parker;
use dwell_idle::policy::account::LIMIT;
use dwell_idle::policy::guest::{self, Haltpoll};
use dwell_idle::policy::iothread::{Aio, Handler, Kind, Params, Revision};
use dwell_idle::policy::late::Late;
use dwell_idle::policy::leader::Leader;
use dwell_idle::policy::reference::{Always, Fixed, Never, Optimum};
use dwell_idle::policy::savings::Savings;
use dwell_idle::policy::trial::Trial;
use dwell_idle::policy::{Outcome, Policy};
use dwell_idle::{Clock, Idler, Nanos, Record, Row};
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;

const K: u64 = 20_000;
const LATENCY: u64 = 8_000;
const LOOK: u64 = 30;

/// A clock that the test moves.
#[derive(Default)]
struct Time(Cell<u64>);

impl Time {
    fn pass(&self, ns: u64) {
        self.0.set(self.0.get() + ns);
    }
}

impl Clock for Time {
    fn now(&self) -> Nanos {
        Nanos(self.0.get())
    }
}

/// Keeps every row.
#[derive(Default)]
struct Rows(Vec<Row>);

impl Record for Rows {
    fn row(&mut self, row: &Row) {
        self.0.push(*row);
    }
}

/// What a wait was like, for who sees everything.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    polled: u64,
    slept: bool,
    /// Whether the event came, and not the end of the time-out.
    event: bool,
}

/// One wait: busy for `busy`, then the event comes `idle` later. A sleeper sees it `LATENCY` late.
fn wait<P: Policy, R: Record>(
    idler: &mut Idler<P, &Time, R>,
    time: &Time,
    busy: u64,
    idle: impl Fn(bool) -> u64,
    timeout: Option<u64>,
    look: u64,
    ready: &[u32],
) -> Wait {
    time.pass(busy);
    let start = time.0.get();
    let mut guard = idler.idle(timeout.map(Duration::from_nanos));
    let mut polls = 0;
    while guard.polls() {
        polls += 1;
        time.pass(look);
        if time.0.get() - start >= idle(true) {
            let polled = time.0.get() - start;
            guard.wakes(ready);
            return Wait { polled, slept: false, event: true };
        }
    }
    let polled = time.0.get() - start;
    let left = guard.halts();
    assert_eq!(left.is_none(), timeout.is_none());
    let slept = left != Some(Duration::ZERO);
    let until = left.map_or(u64::MAX, |left| time.0.get() + u64::try_from(left.as_nanos()).unwrap());
    let event = start.saturating_add(idle(polls > 0));
    let end = event.min(until).max(time.0.get());
    time.0.set(end + if slept { LATENCY } else { 0 });
    guard.wakes(if event <= until { ready } else { &[] });
    Wait { polled, slept, event: event <= until }
}

/// A busy time, an idle time and a time-out.
type Episode = (u64, u64, Option<u64>);

/// The windows of every policy are those that it has without a guard, and what is recorded replays.
fn is_transparent<P: Policy + Clone>(policy: P, episodes: &[Episode], ready: &[u32]) {
    let time = Time::default();
    let mut rows = Rows::default();
    let mut idler = Idler::with_clock(policy.clone(), &time).recording(&mut rows);
    let mut alone = policy.clone();
    let (mut ended, mut expected) = (None::<u64>, vec![]);
    for &(busy, idle, timeout) in episodes {
        let start = time.0.get() + busy;
        let window = match ended {
            Some(ended) => alone.window_after(Nanos(start - ended)),
            None => alone.window(),
        };
        let done = wait(&mut idler, &time, busy, |_| idle, timeout, LOOK, ready);
        // How long it polls: up to the event, the window or the end of the time-out, and what 8 looks may add.
        let most = idle.min(window.get()).min(timeout.unwrap_or(u64::MAX));
        if window == Nanos::ZERO || timeout == Some(0) {
            assert_eq!(done.polled, 0);
        } else {
            assert!((most..=most.saturating_add(8 * LOOK)).contains(&done.polled), "{done:?} {most}");
        }
        // It sleeps unless it has polled until the event or the end of the time-out.
        assert!(done.slept || done.polled >= idle.min(timeout.unwrap_or(u64::MAX)), "{done:?}");
        let measured = time.0.get() - start;
        alone.observe(Outcome::with_ready(Nanos(measured), if done.event { ready } else { &[] }));
        expected.push((start, measured, window.get(), done.slept));
        ended = Some(time.0.get());
    }
    let totals = idler.totals();
    assert_eq!(totals.episodes, episodes.len() as u64);
    assert_eq!(totals.halts, expected.iter().filter(|(_, _, _, slept)| *slept).count() as u64);
    assert_eq!(rows.0.len(), episodes.len());
    let mut replayed = policy;
    let mut last: Option<Nanos> = None;
    for (row, expected) in rows.0.iter().zip(expected) {
        assert_eq!((row.start.get(), row.idle.get(), row.window.get(), row.halted), expected);
        assert_eq!(row.alone, None);
        let again = match last {
            Some(end) => replayed.window_after(row.start.saturating_sub(end)),
            None => replayed.window(),
        };
        assert_eq!(again, row.window);
        let ready: Vec<u32> = (0..64).filter(|bit| row.ready >> bit & 1 == 1).collect();
        replayed.observe(Outcome::with_ready(row.idle, &ready));
        last = Some(Nanos(row.start.get() + row.idle.get()));
    }
}

fn adaptive() -> Late<Trial<Leader>> {
    Late::new(Trial::leader(Nanos(K)), Nanos(LATENCY))
}

fn episodes() -> impl Strategy<Value = Vec<Episode>> {
    let length = prop_oneof![Just(0), Just(1), Just(LOOK), 0..2 * K, 0..20 * K, Just(1_000_000_000)];
    let timeout = prop_oneof![4 => Just(None), 1 => Just(Some(0)), 1 => (0..3 * K).prop_map(Some)];
    let spell = (length.clone(), length, timeout, 1usize..40);
    prop::collection::vec(spell, 1..20).prop_map(|spells| {
        let repeat = |&(busy, idle, timeout, times): &(u64, u64, Option<u64>, usize)| {
            vec![(busy, idle, timeout); times]
        };
        spells.iter().flat_map(repeat).collect()
    })
}

proptest! {
    #[test]
    fn guard_adds_nothing_to_a_policy(waits in episodes(), ready in prop::sample::subsequence(vec![0u32, 1, 2, 3], 1..4)) {
        is_transparent(Never, &waits, &ready);
        is_transparent(Fixed(Nanos(K)), &waits, &ready);
        is_transparent(Savings::new(Nanos(K)), &waits, &ready);
        is_transparent(adaptive(), &waits, &ready);
        is_transparent(Haltpoll::new(guest::Revision::V6_9, guest::Params::default()), &waits, &ready);
        for revision in Revision::ALL {
            for poll_weight in [1, 3] {
                let params = Params { poll_weight, ..Params::default_for(revision) };
                let handlers = [Handler::new(Kind::Polled); 4];
                is_transparent(Aio::new(revision, params, handlers), &waits, &ready);
            }
        }
    }

    /// A wait that begins in one call and ends in another is the guard's, decision by decision.
    #[test]
    fn parker_decides_as_the_guard(waits in episodes(), look in 1u64..200) {
        let clocks = [Time::default(), Time::default()];
        let (mut guarded, mut parked) = (Rows::default(), Rows::default());
        let mut idler = Idler::with_clock(adaptive(), &clocks[0]).recording(&mut guarded);
        let mut parker = Parker::new(Idler::with_clock(adaptive(), &clocks[1]).recording(&mut parked));
        let time = &clocks[1];
        for &(busy, idle, _) in &waits {
            wait(&mut idler, &clocks[0], busy, |_| idle, None, look, &[]);
            time.pass(busy);
            let start = time.0.get();
            let event = || time.0.get() - start >= idle;
            let caught = loop {
                if !parker.parks() {
                    break false;
                }
                time.pass(look);
                if event() {
                    break true;
                }
            };
            if !caught {
                time.0.set(time.0.get().max(start + idle) + LATENCY);
            }
            parker.works();
            parker.works();
            prop_assert_eq!(clocks[0].0.get(), time.0.get());
        }
        prop_assert_eq!(idler.totals(), parker.idler().totals());
        prop_assert_eq!(guarded.0, parked.0);
    }

    /// Bursts included: in any stretch of waits the thread spends at most twice the offline optimum's cost
    /// and four halts, and for each wait the looks between two readings of the clock.
    #[test]
    fn cost_is_bounded_by_the_optimum(
        spells in prop::collection::vec(
            (0..2 * K, prop_oneof![Just(0), Just(1), Just(K), Just(K + 1), 0..4 * K, Just(100 * K)],
             prop_oneof![4 => 1usize..40, 1 => 500usize..700]), 1..20),
    ) {
        let time = Time::default();
        let mut idler = Idler::with_clock(adaptive(), &time);
        let optimum = Optimum { halt_cost: Nanos(K) };
        let (mut stretch, mut worst) = (0i64, 0);
        for (busy, idle, times) in spells {
            for _ in 0..times {
                let done = wait(&mut idler, &time, busy, |_| idle, None, LOOK, &[]);
                let cost = done.polled + if done.slept { K } else { 0 };
                let most = 2 * optimum.cost(Nanos(idle)).get() + 8 * LOOK;
                stretch = stretch.max(0) + cost as i64 - most as i64;
                worst = worst.max(stretch);
            }
        }
        prop_assert!(worst <= (LIMIT * K) as i64, "{worst}");
    }
}

/// A peer that sleeps as long as the thread does: what would be 3/4 of a halt becomes 3/2 of one.
#[test]
fn peer_that_sleeps_does_not_lock_the_thread_in() {
    let caught = |idler: &mut Idler<Late<Trial<Leader>>, &Time>, time: &Time| {
        let length = |polling| if polling { K * 3 / 4 } else { K * 3 / 2 };
        for _ in 0..10_000 {
            wait(idler, time, 2_000, length, None, LOOK, &[]);
        }
        idler.totals().caught
    };
    let time = Time::default();
    assert!(caught(&mut Idler::with_clock(adaptive(), &time), &time) > 8_000);
    // The same without bursts: this test would pass with any policy if it did not.
    let mut locked = Idler::with_clock(Late::new(Leader::new(Nanos(K)), Nanos(LATENCY)), &time);
    for _ in 0..10_000 {
        wait(
            &mut locked,
            &time,
            2_000,
            |polling| if polling { K * 3 / 4 } else { K * 3 / 2 },
            None,
            LOOK,
            &[],
        );
    }
    assert_eq!(locked.totals().caught, 0);
}

/// A neighbour that takes the CPU for 3 ms once the thread has had it for as long, as a fair scheduler does. Whether a
/// look came after its slice.
struct Neighbour {
    ran: u64,
    leaves: u64,
}

impl Neighbour {
    const SLICE: u64 = 3_000_000;

    /// The thread runs for so long.
    fn beside(&mut self, time: &Time, ns: u64) {
        time.pass(ns);
        self.ran += ns;
        if self.ran >= Self::SLICE && time.0.get() < self.leaves {
            self.ran = 0;
            time.pass(Self::SLICE);
        }
    }

    /// One wait beside it. How long the thread has polled.
    fn wait<P: Policy, R: Record>(
        &mut self,
        idler: &mut Idler<P, &Time, R>,
        time: &Time,
        work: u64,
        idle: u64,
    ) -> u64 {
        self.beside(time, work);
        let start = time.0.get();
        let (mut guard, mut polled) = (idler.idle(None), 0);
        while guard.polls() {
            polled += LOOK;
            self.beside(time, LOOK);
            if time.0.get() - start >= idle {
                guard.wakes(&[]);
                return polled;
            }
        }
        guard.halts();
        // It sleeps, and a sleeper gets the CPU when it wakes up.
        self.ran = 0;
        time.0.set(time.0.get().max(start + idle) + LATENCY);
        guard.wakes(&[]);
        polled
    }
}

#[test]
fn gives_way_to_a_neighbour_and_polls_again_within_a_second() {
    let time = Time::default();
    let mut rows = Rows::default();
    let mut idler = Idler::with_clock(adaptive(), &time).recording(&mut rows);
    let leaves = 10_000_000_000;
    let mut neighbour = Neighbour { ran: 0, leaves };
    // Alone for a second it polls through everything.
    let mut polls = |until: u64, neighbour: &mut Neighbour| {
        let (mut polled, mut last) = (0, 0);
        while time.0.get() < until {
            let one = neighbour.wait(&mut idler, &time, 5_000, 15_000);
            polled += one;
            if one > 0 {
                last = time.0.get();
            }
        }
        (polled, last, idler.totals())
    };
    let mut nobody = Neighbour { ran: 0, leaves: 0 };
    let (alone, _, totals) = polls(1_000_000_000, &mut nobody);
    assert!(alone > 700_000_000 && totals.preempted == 0, "{alone} {totals:?}");
    // Beside the neighbour: one slice is polled in a try, and tries are 1 % of the time.
    let (beside, last, totals) = polls(leaves, &mut neighbour);
    assert!((10..40).contains(&totals.preempted), "{totals:?}");
    assert!(totals.lost.get() <= (leaves - 1_000_000_000) / 100 + Neighbour::SLICE + 4 * K, "{totals:?}");
    assert!(beside <= (leaves - 1_000_000_000) / 100 + Neighbour::SLICE, "{beside}");
    assert!(last > leaves / 2);
    // The neighbour has left. The policy gives way for 0.8 s and 500 halts after the last slice, and polls through the rest.
    let (after, ..) = polls(leaves + 1_000_000_000, &mut neighbour);
    assert!(after > 130_000_000, "{after}");
    let (after, ..) = polls(leaves + 2_000_000_000, &mut neighbour);
    assert!(after > 700_000_000, "{after}");
    let preempted: Vec<&Row> = rows.0.iter().filter(|row| row.alone.is_some()).collect();
    assert!(preempted.len() >= 10);
    // The others come within the window, and the episode lasts for their slice.
    assert!(preempted.iter().all(|row| row.alone <= Some(row.window) && row.idle.get() > Neighbour::SLICE));
}

/// Rules of others, and a fixed window, poll on.
#[test]
fn policy_without_an_account_does_not_give_way() {
    let time = Time::default();
    let mut idler = Idler::with_clock(Fixed(Nanos(K)), &time);
    let mut neighbour = Neighbour { ran: 0, leaves: u64::MAX };
    let polled: u64 = (0..10_000).map(|_| neighbour.wait(&mut idler, &time, 5_000, 15_000)).sum();
    assert!(polled > 100_000_000, "{polled}");
    assert_eq!(idler.totals().preempted, 0);
}

#[test]
fn slow_looks_are_followed_by_the_clock() {
    // Looks of 5 us within a window of 50 us: no more than one look too many.
    let time = Time::default();
    let mut idler = Idler::with_clock(Fixed(Nanos(50_000)), &time);
    for _ in 0..10 {
        wait(&mut idler, &time, 0, |_| 1_000_000, None, 5_000, &[]);
    }
    let done = wait(&mut idler, &time, 0, |_| 1_000_000, None, 5_000, &[]);
    assert!((50_000..=60_000).contains(&done.polled), "{done:?}");
    assert_eq!(idler.totals().preempted, 0);
}

#[test]
fn time_that_polling_took_is_not_waited_again() {
    let time = Time::default();
    let mut idler = Idler::with_clock(Fixed(Nanos(10_000)), &time);
    let mut guard = idler.idle(Some(Duration::from_micros(15)));
    while guard.polls() {
        time.pass(100);
    }
    let left = guard.halts().unwrap();
    assert!((4_000..=5_000).contains(&left.as_nanos()), "{left:?}");
    guard.wakes(&[]);
    // A window beyond the time-out ends with it, and there is nothing left to sleep for.
    let mut always = Idler::with_clock(Always, &time);
    let mut guard = always.idle(Some(Duration::from_micros(15)));
    let start = time.0.get();
    while guard.polls() {
        time.pass(100);
    }
    assert!((15_000..16_000).contains(&(time.0.get() - start)));
    assert_eq!(guard.halts(), Some(Duration::ZERO));
    guard.wakes(&[]);
    assert_eq!(always.totals().halts, 0);
}

/// Each retry after EINTR slept for the same rest, so that signals kept a wait from ever timing out.
#[test]
fn sleep_that_is_retried_ends_with_the_time_out() {
    let time = Time::default();
    let mut idler = Idler::with_clock(Never, &time);
    let mut guard = idler.idle(Some(Duration::from_micros(10)));
    let left = [0, 4_000, 4_000, 4_000].map(|slept| {
        time.pass(slept);
        guard.halts().unwrap().as_micros()
    });
    assert_eq!(left, [10, 6, 2, 0]);
    guard.wakes(&[]);
    assert_eq!(idler.totals().halts, 1);
}

#[test]
fn unfinished_wait_teaches_nothing() {
    let time = Time::default();
    let mut idler = Idler::with_clock(Fixed(Nanos(5)), &time);
    let _ = idler.idle(None);
    assert_eq!(idler.totals().episodes, 0);
}
