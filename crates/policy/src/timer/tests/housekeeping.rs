//! On which pCPU does an hrtimer land?
//!
//! With `kernel.timer_migration` on, Linux sends an unpinned timer to a busy housekeeping CPU, so that idle and
//! isolated ones are left alone; a posted guest timer then fires where the guest does not run. But the target must
//! not have to be reprogrammed: a timer that expires before the target's next event stays where it was started. With
//! housekeeping CPUs that are mostly idle, timers therefore stay local and cost the guest an exit after all.

use crate::Nanos;
use crate::timer::Revision;
use proptest::prelude::*;

/// A pCPU at the instant the timer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cpu {
    /// It is online.
    pub(crate) online: bool,
    /// It runs its idle task.
    pub(crate) idle: bool,
    /// `nohz_full=` left timers to it; true for every CPU where that was not given.
    pub(crate) housekeeping: bool,
    /// NUMA distance from the current CPU, in any unit that orders them; 5.10 and later ask.
    pub(crate) numa_distance: u32,
    /// Its next programmed event \[ns, CLOCK_MONOTONIC\]; [`Nanos::MAX`] if none.
    pub(crate) next_event: Nanos,
}

/// The host at the instant the timer starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    /// sysctl `kernel.timer_migration`.
    pub(crate) timer_migration: bool,
    /// Its CPUs, by number.
    pub(crate) cpus: &'a [Cpu],
    /// The number of the CPU on which the timer is started.
    pub(crate) current: usize,
    /// The scheduling domains of the current CPU from small to large, each the numbers of its CPUs in ascending
    /// order. Numbers that are not in `cpus` are passed over.
    pub(crate) domains: &'a [&'a [usize]],
}

/// The timer that is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Hrtimer {
    /// It must fire on the CPU that started it. KVM's is not.
    pub(crate) pinned: bool,
    /// When it expires \[ns, CLOCK_MONOTONIC\].
    pub(crate) expires: Nanos,
}

/// The number of the CPU on which `timer` fires.
pub(crate) fn target(revision: Revision, host: &Host<'_>, timer: &Hrtimer) -> usize {
    if !host.timer_migration || timer.pinned {
        return host.current;
    }
    let candidate = host.candidate(revision);
    match host.cpus.get(candidate) {
        Some(cpu) if timer.expires >= cpu.next_event => candidate,
        _ => host.current,
    }
}

impl Host<'_> {
    /// Where the timer would go if the target's next event did not matter.
    fn candidate(&self, revision: Revision) -> usize {
        let current_is_housekeeping = self.housekeeping(self.current).is_some();
        if current_is_housekeeping && self.is_busy_housekeeping(self.current) {
            return self.current;
        }
        let mut near_to_far = self.domains.iter().flat_map(|domain| domain.iter().copied());
        if let Some(busy) = near_to_far.find(|&cpu| cpu != self.current && self.is_busy_housekeeping(cpu)) {
            return busy;
        }
        if current_is_housekeeping {
            return self.current;
        }
        let online = || (0..self.cpus.len()).filter(|&cpu| self.cpus[cpu].online);
        let mut housekeeping = online().filter(|&cpu| self.cpus[cpu].housekeeping);
        let found = if revision < Revision::V5_10 {
            housekeeping.next()
        } else {
            housekeeping.min_by_key(|&cpu| self.cpus[cpu].numa_distance).or_else(|| online().next())
        };
        found.unwrap_or(self.current)
    }

    fn housekeeping(&self, cpu: usize) -> Option<&Cpu> {
        self.cpus.get(cpu).filter(|cpu| cpu.online && cpu.housekeeping)
    }

    fn is_busy_housekeeping(&self, cpu: usize) -> bool {
        self.housekeeping(cpu).is_some_and(|cpu| !cpu.idle)
    }
}

const BUSY: Cpu =
    Cpu { online: true, idle: false, housekeeping: true, numa_distance: 10, next_event: Nanos(0) };
const IDLE: Cpu = Cpu { idle: true, ..BUSY };
const ISOLATED: Cpu = Cpu { housekeeping: false, ..BUSY };
const TIMER: Hrtimer = Hrtimer { pinned: false, expires: Nanos(1_000) };

fn target_of(revision: Revision, cpus: &[Cpu], domains: &[&[usize]]) -> usize {
    target(revision, &Host { timer_migration: true, cpus, current: 0, domains }, &TIMER)
}

#[test]
fn busy_housekeeping_cpu_keeps_its_timer() {
    assert_eq!(target_of(Revision::V6_12, &[BUSY, BUSY], &[&[0, 1]]), 0);
}

#[test]
fn timer_of_an_isolated_cpu_goes_to_the_nearest_busy_housekeeping_cpu() {
    let cpus = [ISOLATED, IDLE, BUSY, BUSY];
    assert_eq!(target_of(Revision::V6_12, &cpus, &[&[0, 1], &[0, 1, 3], &[0, 1, 2, 3]]), 3);
}

#[test]
fn timer_stays_if_the_target_would_have_to_be_reprogrammed() {
    let later = Cpu { next_event: Nanos(1_001), ..BUSY };
    assert_eq!(target_of(Revision::V6_12, &[ISOLATED, later], &[&[0, 1]]), 0);
    let same = Cpu { next_event: Nanos(1_000), ..BUSY };
    assert_eq!(target_of(Revision::V6_12, &[ISOLATED, same], &[&[0, 1]]), 1);
}

#[test]
fn idle_housekeeping_cpu_keeps_its_timer_when_all_are_idle() {
    assert_eq!(target_of(Revision::V6_12, &[IDLE, IDLE], &[&[0, 1]]), 0);
}

#[test]
fn isolated_cpu_among_idle_ones_picks_the_numa_closest_from_5_10() {
    let cpus = [ISOLATED, Cpu { numa_distance: 20, ..IDLE }, IDLE];
    assert_eq!(target_of(Revision::V5_4, &cpus, &[&[0, 1, 2]]), 1);
    assert_eq!(target_of(Revision::V5_10, &cpus, &[&[0, 1, 2]]), 2);
}

#[test]
fn any_online_cpu_will_do_from_5_10_if_none_is_for_housekeeping() {
    let cpus = [Cpu { online: false, ..ISOLATED }, ISOLATED];
    assert_eq!(target_of(Revision::V5_4, &cpus, &[]), 0);
    assert_eq!(target_of(Revision::V5_10, &cpus, &[]), 1);
}

#[test]
fn pinned_timers_and_hosts_without_migration_stay_local() {
    let host = Host { timer_migration: true, cpus: &[ISOLATED, BUSY], current: 0, domains: &[&[0, 1]] };
    assert_eq!(target(Revision::V6_12, &host, &Hrtimer { pinned: true, ..TIMER }), 0);
    assert_eq!(target(Revision::V6_12, &Host { timer_migration: false, ..host }, &TIMER), 0);
}

fn cpu() -> impl Strategy<Value = Cpu> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 0u32..4, 0u64..4).prop_map(
        |(online, idle, housekeeping, numa_distance, next_event)| Cpu {
            online,
            idle,
            housekeeping,
            numa_distance,
            next_event: Nanos(next_event),
        },
    )
}

proptest! {
    #[test]
    fn timer_never_moves_where_it_would_be_first(
        revision in 0usize..9,
        cpus in prop::collection::vec(cpu(), 0..6),
        current in 0usize..8,
        domain in prop::collection::vec(0usize..8, 0..8),
        expires in 0u64..4,
    ) {
        let timer = Hrtimer { pinned: false, expires: Nanos(expires) };
        let host = Host { timer_migration: true, cpus: &cpus, current, domains: &[&domain] };
        let target = target(Revision::ALL[revision], &host, &timer);
        prop_assert!(target == current || cpus[target].online && timer.expires >= cpus[target].next_event);
    }
}
