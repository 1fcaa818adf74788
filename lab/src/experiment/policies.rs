//! `policies`: learning policies, run live, against the kernel's rules, all at one halt cost.
//!
//! A live policy is judged as in a replay: by the time polled, as measured, plus its halts, as counted, at
//! one halt cost. CPU time and latency are measured as well, but are not part of the cost. A kernel's rule
//! runs in the same place as the policy that it is compared with (in user space or in the guest), since a
//! halt there has another cost and another latency than one in the kernel. The kernel's own halt polling is
//! one more arm.

use super::wake::{self, Polling};
use super::waking::{RunningVm, WARM_UP, WakeupBlock, wake, wake_controlled};
use super::{LabError, Rig};
use crate::host::Tsc;
use crate::idle::Idle;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::{Rule, Terms};
use dwell_stats::{Arms, Block, Figure, Unit};
use std::sync::atomic::AtomicBool;

/// The figure by which policies are judged: time polled plus halts x halt cost, per wakeup.
pub const COST: &str = "cost_ns_per_wakeup";

/// Where the policy polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poller {
    /// The VMM's thread, which handles the halts.
    UserSpace,
    /// The guest, above a kernel that does not poll.
    Guest,
}

impl Poller {
    /// Both.
    pub const ALL: [Poller; 2] = [Poller::UserSpace, Poller::Guest];

    fn idle(self, rule: Rule) -> Idle {
        match self {
            Poller::UserSpace => Idle::user(rule),
            Poller::Guest => Idle::guest(rule),
        }
    }

    /// The rule of today's kernels here, with its defaults in a version.
    fn rule(self, version: Version) -> Rule {
        Rule::Layer(Setting::defaults(
            if self == Poller::Guest { Layer::Guest } else { Layer::Host },
            version,
        ))
    }

    pub fn leader(self, terms: Terms) -> Idle {
        self.idle(Rule::leader(terms))
    }

    /// The arms: today's rule, which is the baseline, policies that do not learn, those that do, and the kernel's own
    /// polling with its default of 200 us.
    pub fn arms(self, version: Version, terms: Terms) -> Arms<Idle> {
        let others =
            [Rule::NEVER, Rule::ski_rental(terms.halt_cost), Rule::savings(terms), Rule::leader(terms)];
        let kernel = (self == Poller::UserSpace).then(|| Idle::host(200_000));
        let others = others.into_iter().map(|rule| self.idle(rule)).chain(kernel);
        let first = self.idle(self.rule(version));
        let arms = Arms::new(&first.to_string(), first);
        others.fold(arms, |arms, idle| arms.arm(&idle.to_string(), idle))
    }

    /// The wakeup latency of a halt in this place: by how much longer measured idle times are if it never
    /// polls than if it always polls.
    ///
    /// # Errors
    /// [`LabError`].
    pub fn late(self, rig: &Rig, stop: &AtomicBool) -> Result<Nanos, LabError> {
        let mean = |rule: Rule| -> Result<Nanos, LabError> {
            let waking = wake(rig, &self.idle(rule), &LATE_GAPS, stop)?;
            let idling = if self == Poller::Guest { waking.guest } else { waking.user };
            Ok(Nanos(rig.nanos(idling.idled_cycles) / waking.wakes().max(1)))
        };
        late(|| Ok(mean(Rule::NEVER)?.saturating_sub(mean(Rule::ALWAYS)?)))
    }
}

/// Gaps between which a wakeup latency is measured.
const LATE_GAPS: [Nanos; WARM_UP + 200] = [Nanos::from_micros(100); WARM_UP + 200];

/// A latency that is measured as a difference of means: the median of five, as a vCPU that the host stops for
/// 20 ms once makes a mean of 200 wakeups 100 us longer.
fn late(mut measure: impl FnMut() -> Result<Nanos, LabError>) -> Result<Nanos, LabError> {
    let mut all = [Nanos::ZERO; 5];
    for one in &mut all {
        *one = measure()?;
    }
    all.sort_unstable();
    Ok(all[all.len() / 2])
}

/// The figures of an arm: those of [`wake::figures`], and [`COST`].
pub fn figures() -> Vec<Figure> {
    let mut figures = wake::figures();
    figures.push(Figure::of_block(COST, Unit::Nanos).within(0.05));
    figures
}

/// Measures one block, at this halt cost; the first [`WARM_UP`] gaps do not count.
///
/// # Errors
/// [`LabError`].
pub fn block(
    rig: &Rig,
    idle: &Idle,
    gaps: &[Nanos],
    halt_cost: Nanos,
    stop: &AtomicBool,
) -> Result<Block, LabError> {
    Ok(priced(rig, idle, &wake(rig, idle, gaps, stop)?, halt_cost))
}

/// The figures of what was measured, with its cost.
fn priced(rig: &Rig, idle: &Idle, waking: &WakeupBlock, halt_cost: Nanos) -> Block {
    let polling = Polling::of(rig, idle, waking);
    let block = wake::told(rig, idle, waking);
    let Some(halts) = polling.halts else { return block };
    let cost = waking.per_wake(polling.polled_ns) + waking.per_wake(halts) * halt_cost.get() as f64;
    block.figure(COST, cost)
}

/// By how much longer a halt of a vCPU in the kernel lasts by KVM's count than the idle time: what KVM's rule
/// learns from.
///
/// # Errors
/// [`LabError`].
pub fn late_in_kernel(rig: &Rig, stop: &AtomicBool) -> Result<Nanos, LabError> {
    let idled = |max: u32| -> Result<Nanos, LabError> {
        let waking = wake(rig, &Idle::host(max), &LATE_GAPS, stop)?;
        let waited_ns = waking.counters.halt_wait_ns.unwrap_or(0);
        Ok(Nanos((waking.host_polled_ns() + waited_ns) / waking.wakes().max(1)))
    };
    late(|| Ok(idled(0)?.saturating_sub(idled(10_000_000)?)))
}

/// Measures one block of a vCPU that begins with KVM polling for up to `first_max` and that `beside`
/// controls. `beside` gets the time since the vCPU came to rest.
///
/// # Errors
/// [`LabError`].
pub fn controlled_block(
    rig: &Rig,
    first_max: u32,
    gaps: &[Nanos],
    halt_cost: Nanos,
    stop: &AtomicBool,
    mut beside: impl FnMut(Nanos, RunningVm<'_>) -> Result<(), LabError>,
) -> Result<Block, LabError> {
    let idle = Idle::host(first_max);
    let mut began = None;
    let waking = wake_controlled(rig, &idle, gaps, stop, &mut |vm| {
        let began = *began.get_or_insert_with(Tsc::now);
        beside(rig.since(began), vm)
    })?;
    Ok(priced(rig, &idle, &waking, halt_cost))
}

/// Of KVM's rule with its defaults in a version, the maximum \[ns\] that costs least over these idle times in
/// a replay, where a halt lasts `late` longer: 0, the default, or a multiple of a sixteenth of the halt cost,
/// up to four halt costs.
///
/// # Errors
/// A rule that cannot be replayed.
pub fn best_maximum(
    version: Version,
    idle_times: &[Nanos],
    late: Nanos,
    halt_cost: Nanos,
) -> Result<u32, LabError> {
    let defaults = Setting::defaults(Layer::Host, version);
    let default = defaults.get("halt_poll_ns").unwrap_or(0);
    let sixteenths = (1..=64).map(|n| i64::try_from(halt_cost.get() * n / 16).unwrap_or(i64::MAX));
    let mut best = (u128::MAX, 0);
    for max in [0, default].into_iter().chain(sixteenths) {
        let mut setting = defaults;
        setting.set("halt_poll_ns", max)?;
        let mut player = Rule::Layer(setting).start(0)?;
        let cost_ns = |idle: &Nanos| player.play_late(*idle, late).cost_ns(halt_cost);
        let cost_ns = idle_times.iter().map(cost_ns).sum();
        if cost_ns < best.0 {
            best = (cost_ns, u32::try_from(max).unwrap_or(u32::MAX));
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::version::NEWEST_KERNEL;

    #[test]
    fn the_best_maximum_covers_short_idle_times_and_not_long_ones() {
        let best = |idle: u64| {
            let idle_times = [Nanos(idle); 1_000];
            best_maximum(NEWEST_KERNEL, &idle_times, Nanos(12_000), Nanos(20_000)).unwrap()
        };
        // KVM's first window is 10 us: each maximum from there on costs the same, and the default comes first.
        assert_eq!(best(8_000), 200_000);
        assert_eq!(best(150_000), 0);
    }

    #[test]
    fn a_disturbed_measurement_of_a_latency_does_not_count() {
        let mut measured = [7_000, 250_000, 6_000, 8_000, 90_000].map(Nanos).into_iter();
        assert_eq!(late(|| Ok(measured.next().unwrap())).unwrap(), Nanos(8_000));
        assert!(late(|| Err(LabError::NotAlone)).is_err());
    }
}
