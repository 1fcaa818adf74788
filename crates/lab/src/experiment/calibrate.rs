//! `calibrate`: the cost of a halt and its wakeup on this host.
//!
//! The same vCPU is woken after the same gaps under two settings: one under which it always halts, and one
//! under which its host polls until the wake. The difference is what a halt costs: in CPU time, once the
//! polling itself is taken off, and in latency.

use super::waking::{self, WARM_UP, WakeupBlock};
use super::{LabError, Rig, wake};
use crate::idle::Idle;
use dwell_policy::Nanos;
use dwell_stats::{
    Arms, Block, Campaign, CampaignError, CampaignOptions, Environment, Figure, Interval, Measurements,
    Progress, Unit,
};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;

/// Longer than every gap, so that the host polls until the wake.
const ALWAYS: u32 = 20_000_000;
/// The gaps: on either side of what an outer hypervisor may poll itself, and far beyond.
pub const GAPS_US: [u64; 3] = [50, 150, 1_000];
/// Time of a block.
const BLOCK: Nanos = Nanos::from_micros(100_000);

/// What a halt costs after an idle period of one length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HaltCost {
    /// Length of the gap \[ns\].
    pub gap_ns: u64,
    /// CPU time of a halt and wake, beyond that of an idle period that polls \[ns\], with the ends of its interval.
    pub cpu_ns: Interval,
    /// How much later the guest runs after a halt than after a poll \[ns\].
    pub latency_ns: Interval,
    /// How much longer KVM takes an idle period to be that halts: by so much a recorded `idle_ns` is too long \[ns\].
    pub idle_excess_ns: Interval,
}

/// The two arms.
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
        Figure::quantile(0.5),
        Figure::mean(),
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
    Block::new(waking.latency_ns.clone())
        .figure("cpu_ns_per_wakeup", waking.per_wake(cpu))
        .figure("cpu_less_polling_ns_per_wakeup", waking.per_wake(cpu.saturating_sub(polled)))
        .figure("idle_ns_per_wakeup", waking.per_wake(polled + counters.halt_wait_ns.unwrap_or(0)))
}

/// The result; `None` if the measurement was stopped too early.
pub fn cost(gap: Nanos, record: &Measurements) -> Option<HaltCost> {
    let findings = record.results();
    let difference = |figure: &str| Some(findings.row(HALT, figure)?.comparison?.difference);
    Some(HaltCost {
        gap_ns: gap.get(),
        cpu_ns: difference("cpu_less_polling_ns_per_wakeup")?,
        latency_ns: difference("p50")?,
        idle_excess_ns: difference("idle_ns_per_wakeup")?,
    })
}

/// What halts cost on a host, measured for several lengths of gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of this form.
    pub format: u32,
    /// The CPU it holds for.
    pub cpu_model: String,
    /// The kernel it holds for.
    pub kernel: String,
    /// When it was measured, in seconds since 1970.
    pub measured_at_unix_s: u64,
    /// In order of the gap's length.
    pub costs: Vec<HaltCost>,
}

/// The version of [`Calibration`] that is written and read.
pub const FORMAT: u32 = 1;

impl Calibration {
    /// CPU time of one halt and wake: the median over the lengths of gap.
    pub fn halt_cpu(&self) -> Option<Nanos> {
        self.median(|cost| cost.cpu_ns.value)
    }

    /// Latency of one halt: the median over the lengths of gap.
    pub fn halt_latency(&self) -> Option<Nanos> {
        self.median(|cost| cost.latency_ns.value)
    }

    fn median(&self, of: impl Fn(&HaltCost) -> f64) -> Option<Nanos> {
        dwell_stats::median(self.costs.iter().map(of).collect()).map(nanos)
    }

    /// By how much a recorded idle period of this length that halted is too long: between measured lengths by linear
    /// interpolation, beyond them as at the nearest.
    pub fn idle_excess(&self, idle: Nanos) -> Nanos {
        self.between(idle, |cost| cost.idle_excess_ns.value)
    }

    /// CPU time of one halt and wake after an idle period of this length.
    pub fn halt_cpu_after(&self, idle: Nanos) -> Nanos {
        self.between(idle, |cost| cost.cpu_ns.value)
    }

    fn between(&self, idle: Nanos, of: impl Fn(&HaltCost) -> f64) -> Nanos {
        let at = idle.get();
        let next = self.costs.iter().position(|cost| cost.gap_ns >= at).unwrap_or(self.costs.len());
        let value =
            match (next.checked_sub(1).and_then(|before| self.costs.get(before)), self.costs.get(next)) {
                (None, None) => 0.0,
                (Some(only), None) | (None, Some(only)) => of(only),
                (Some(before), Some(after)) => {
                    let share = (at - before.gap_ns) as f64 / (after.gap_ns - before.gap_ns).max(1) as f64;
                    of(before) + share * (of(after) - of(before))
                }
            };
        nanos(value)
    }
}

/// Rounded; what is below zero is noise around it.
fn nanos(value: f64) -> Nanos {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is not negative"
    )]
    Nanos(value.round().max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(value: f64) -> Interval {
        Interval { value, low: value - 1.0, high: value + 1.0 }
    }

    fn calibration(costs: &[(u64, f64)]) -> Calibration {
        let cost = |&(gap_ns, value): &(u64, f64)| HaltCost {
            gap_ns,
            cpu_ns: spread(value),
            latency_ns: spread(2.0 * value),
            idle_excess_ns: spread(3.0 * value),
        };
        Calibration {
            format: FORMAT,
            cpu_model: "x".to_owned(),
            kernel: "y".to_owned(),
            measured_at_unix_s: 0,
            costs: costs.iter().map(cost).collect(),
        }
    }

    #[test]
    fn between_lengths_it_is_interpolated_and_beyond_them_constant() {
        let calibration = calibration(&[(100, 10.0), (200, 20.0), (400, 0.0)]);
        for (idle, cpu) in [(0, 10), (100, 10), (150, 15), (200, 20), (300, 10), (400, 0), (9_999, 0)] {
            assert_eq!(calibration.halt_cpu_after(Nanos(idle)), Nanos(cpu), "{idle}");
        }
        assert_eq!(calibration.idle_excess(Nanos(150)), Nanos(45));
        assert_eq!(calibration.halt_cpu(), Some(Nanos(10)));
        assert_eq!(calibration.halt_latency(), Some(Nanos(20)));
    }

    #[test]
    fn nothing_measured_costs_nothing_and_noise_below_zero_is_zero() {
        let none = calibration(&[]);
        assert_eq!((none.halt_cpu(), none.halt_cpu_after(Nanos(5))), (None, Nanos(0)));
        assert_eq!(calibration(&[(100, -3.0)]).halt_cpu(), Some(Nanos(0)));
    }
}
