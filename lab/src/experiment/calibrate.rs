//! `calibrate`: the cost of a halt and its wakeup.
//!
//! Of this system's own CPUs: a thread sleeps, and another one wakes it ([`Halt::measure`]). If the system is a guest,
//! what its host spends on the exit cannot be seen from here and is not in it.
//!
//! Of a vCPU of this machine's KVM: the same vCPU is woken after the same gaps under two settings: one under which it always halts, and one
//! under which its host polls until the wake. The difference is what a halt costs: in CPU time, once the
//! polling itself is taken off, and in latency.

use super::waking::{self, WARM_UP, WakeupBlock};
use super::{LabError, Rig, wake};
use crate::idle::Idle;
use crate::sampled::{mean, quantile};
use dwell_idle::halt::Sleep;
use dwell_idle::{Clock, Halt, Monotonic, Price};
use dwell_machine::{DwellIdle, Facts, Machine};
use dwell_policy::Nanos;
use dwell_replay::calibration::HaltCost;
use dwell_stats::{
    Arms, Block, Campaign, CampaignError, CampaignOptions, Environment, Figure, Interval, Measurements,
    Progress, Unit,
};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::sync::atomic::AtomicBool;

/// Longer than every gap, so that the host polls until the wake.
const ALWAYS: u32 = 20_000_000;
/// The gaps: on either side of what an outer hypervisor may poll itself, and far beyond.
pub const GAPS_US: [u64; 3] = [50, 150, 1_000];
/// Time of a block.
const BLOCK: Nanos = Nanos::from_micros(100_000);

const HALTS: &str = "halts_per_wakeup";
const HALT: &str = "halt";
const POLL: &str = "poll";

/// Measures the cost of a halt for one length of gap.
///
/// # Errors
/// [`CampaignError`] with what was measured before a block failed.
pub fn measure(
    rig: &Rig,
    gap: Nanos,
    plan: CampaignOptions,
    surroundings: &mut dyn Environment,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress<'_>),
) -> Result<Measurements, CampaignError<LabError>> {
    let gaps = vec![gap; WARM_UP + wake::wakes_of_a_block(gap, BLOCK)];
    let figures = [
        Figure::of_block("cpu_ns_per_wakeup", Unit::Nanos),
        Figure::of_block("cpu_less_polling_ns_per_wakeup", Unit::Nanos),
        Figure::of_block("idle_ns_per_wakeup", Unit::Nanos),
        Figure::of_block(HALTS, Unit::Count),
        quantile(0.5),
        mean(),
    ];
    let arms = Arms::new(POLL, Idle::host(ALWAYS)).arm(HALT, Idle::host(0));
    let campaign =
        Campaign::new("calibrate", arms, figures, plan).unwrap_or_else(|twice| unreachable!("{twice}"));
    campaign
        .run(surroundings, stop, progress, |turn| Ok(told(&waking::wake(rig, turn.setting, &gaps, stop)?)))
}

fn told(waking: &WakeupBlock) -> Block {
    let counters = &waking.counters;
    let polled = waking.host_polled_ns();
    let cpu = waking.usage.cpu.get();
    let mut block = Block::new(waking.latency_ns.clone())
        .figure("cpu_ns_per_wakeup", waking.per_wake(cpu))
        .figure("cpu_less_polling_ns_per_wakeup", waking.per_wake(cpu.saturating_sub(polled)))
        .figure("idle_ns_per_wakeup", waking.per_wake(polled + counters.halt_wait_ns.unwrap_or(0)));
    if let Some(halts) = waking.slept() {
        block = block.figure(HALTS, waking.per_wake(halts));
    }
    block
}

/// The result; `None` if the measurement was stopped too early.
pub fn cost(gap: Nanos, record: &Measurements) -> Option<HaltCost> {
    let findings = record.results();
    let difference = |figure: &str| Some(findings.row(HALT, figure)?.comparison?.difference);
    Some(HaltCost {
        gap_ns: gap.get(),
        cpu_ns: difference("cpu_less_polling_ns_per_wakeup")?,
        latency_ns: difference("p50")?,
        idle_excess_ns: Some(difference("idle_ns_per_wakeup")?),
        waker_ns: None,
    })
}

/// The share of wakeups before which the vCPU halted though its host was to poll until then; `None` where KVM does not tell.
/// KVM does not poll where another task waits for the CPU.
pub fn halted_for_polling(record: &Measurements) -> Option<f64> {
    Some(record.results().row(POLL, HALTS)?.value?.value)
}

/// How often own halts are measured: the least and the highest of six are the ends of a 97 % interval of the median.
pub const OWN_ROUNDS: usize = 6;

/// Measures halts of this system's own CPUs, in a quarter of a second a round; on a busy machine in up to five seconds.
/// Also returns in how many rounds other programs used more than `foreign_limit` of a CPU.
///
/// # Errors
/// With one CPU only, or after an error of the system.
pub fn measure_own(
    surroundings: &mut dyn Environment,
    foreign_limit: f64,
    mut progress: impl FnMut(usize),
) -> Result<([Halt; OWN_ROUNDS], usize), LabError> {
    let mut disturbed = 0;
    let mut rounds = vec![];
    for round in 0..OWN_ROUNDS {
        progress(round);
        surroundings.begin();
        rounds.push(Halt::measure().map_err(LabError::Halt)?);
        disturbed += usize::from(surroundings.end().is_some_and(|load| load.exceeds(foreign_limit)));
    }
    Ok((std::array::from_fn(|round| rounds[round]), disturbed))
}

/// What own halts cost after the lengths that this system does not poll through; `write` is what [`eventfd_write`] measured.
pub fn own_costs(rounds: &[Halt; OWN_ROUNDS], longest_poll: Nanos, write: Nanos) -> Vec<HaltCost> {
    // A poll may still meet a length near its own limit.
    let halted = |length: &(usize, Nanos)| length.1.get() > longest_poll.get().saturating_mul(2);
    let cost = |(place, length): (usize, Nanos)| {
        let interval = |of: fn(&Sleep) -> Nanos| {
            let mut all = rounds.map(|round| of(&round.sleeps()[place]).get() as f64);
            all.sort_by(f64::total_cmp);
            let [low, .., high] = all;
            Interval { low, value: dwell_stats::median(all.to_vec()).unwrap_or(low), high }
        };
        HaltCost {
            gap_ns: length.get(),
            cpu_ns: interval(|sleep| sleep.cost(Price::FREE)),
            latency_ns: interval(|sleep| sleep.latency),
            idle_excess_ns: None,
            waker_ns: Some(interval(|sleep| sleep.waker).map(|ns| (ns - write.get() as f64).max(0.0))),
        }
    };
    Halt::LENGTHS.into_iter().enumerate().filter(halted).map(cost).collect()
}

/// How long a write to an eventfd takes on which no thread waits: the median of a thousand.
///
/// # Errors
/// An error of the system.
pub fn eventfd_write() -> io::Result<Nanos> {
    let file = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
    let mut took = vec![];
    for _ in 0..1_000 {
        let begin = Monotonic.now();
        rustix::io::write(&file, &1u64.to_ne_bytes())?;
        took.push(Monotonic.now().saturating_sub(begin).get());
        rustix::io::read(&file, &mut [0; 8])?;
    }
    took.sort_unstable();
    Ok(Nanos(took[took.len() / 2]))
}

/// How long the CPUs of this system poll at most before they halt, as its parameters have it; `None`: they never halt.
pub fn longest_poll(machine: &dyn Machine) -> Option<Nanos> {
    let Facts { guest, .. } = Facts::read(machine);
    let ns = |ns: i64| Nanos(ns.max(0).unsigned_abs());
    if guest.idle_override.as_deref() == Some("poll") {
        return None;
    }
    let haltpoll = guest.parameters.iter().find(|parameter| parameter.param.name == "guest_halt_poll_ns");
    let haltpoll = haltpoll.filter(|_| guest.cpuidle.haltpoll_decides()).and_then(|found| found.value);
    let driver = guest.dwell_idle.filter(DwellIdle::polls).map(|driver| driver.max_window_ns);
    Some(ns(haltpoll.unwrap_or(0)).max(ns(driver.unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_testing::machine::Fake;
    use std::time::Instant;

    #[test]
    fn own_halts_are_measured_without_kvm() {
        let begun = Instant::now();
        let rounds = match measure_own(&mut || begun.elapsed(), 0.0, |_| ()) {
            Err(LabError::Halt(dwell_idle::MeasureHaltError::OneCpu)) => {
                return dwell_testing::skip!("machine", "own_halts_are_measured_without_kvm", "one CPU");
            }
            measured => measured.unwrap().0,
        };
        let write = eventfd_write().unwrap();
        assert!(write > Nanos::ZERO);
        let lengths = |longest_poll| -> Vec<u64> {
            let costs = own_costs(&rounds, Nanos(longest_poll), write);
            assert!(costs.iter().all(|cost| cost.cpu_ns.low > 100.0 && cost.latency_ns.low > 100.0));
            let waker = |cost: &HaltCost| cost.waker_ns.map_or(f64::NAN, |waker| waker.value);
            assert!(costs.iter().all(|cost| waker(cost) >= 0.0 && waker(cost) < cost.cpu_ns.value));
            costs.iter().map(|cost| cost.gap_ns).collect()
        };
        assert_eq!(lengths(0), Halt::LENGTHS.map(Nanos::get));
        // Under haltpoll's default a sleep of 200 us is a poll.
        assert_eq!(lengths(200_000), [1_000_000, 10_000_000]);
    }

    #[test]
    fn a_system_polls_as_long_as_its_governor_or_its_driver_may() {
        const CPUIDLE: &str = "/sys/devices/system/cpu/cpuidle";
        let haltpoll = |governor: &str| {
            Fake::new()
                .file("/proc/sys/kernel/osrelease", "6.18.44\n")
                .file(&format!("{CPUIDLE}/current_driver"), "haltpoll\n")
                .file(&format!("{CPUIDLE}/current_governor"), governor)
                .file("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000\n")
        };
        assert_eq!(longest_poll(&haltpoll("haltpoll\n")), Some(Nanos(200_000)));
        assert_eq!(longest_poll(&haltpoll("menu\n")), Some(Nanos::ZERO));
        assert_eq!(longest_poll(&Fake::new().file("/proc/cmdline", "quiet idle=poll\n")), None);
    }
}
