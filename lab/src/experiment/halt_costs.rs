//! What was calibrated of halts, for idle periods of any length: between measured lengths by linear interpolation,
//! beyond them as at the nearest.

use dwell_policy::Nanos;
use dwell_replay::calibration::{HaltCost, HaltCosts};

/// By how much a recorded idle period of this length that halted is too long.
pub(super) fn idle_excess(costs: &HaltCosts, idle: Nanos) -> Nanos {
    between(costs, idle, |cost| cost.idle_excess_ns.map_or(0.0, |excess| excess.value))
}

/// CPU time of one halt and wakeup after an idle period of this length.
pub(super) fn halt_cpu_after(costs: &HaltCosts, idle: Nanos) -> Nanos {
    between(costs, idle, |cost| cost.cpu_ns.value)
}

fn between(HaltCosts { costs, .. }: &HaltCosts, idle: Nanos, of: impl Fn(&HaltCost) -> f64) -> Nanos {
    let at = idle.get();
    let next = costs.iter().position(|cost| cost.gap_ns >= at).unwrap_or(costs.len());
    let value = match (next.checked_sub(1).and_then(|before| costs.get(before)), costs.get(next)) {
        (None, None) => 0.0,
        (Some(only), None) | (None, Some(only)) => of(only),
        (Some(before), Some(after)) => {
            let share = (at - before.gap_ns) as f64 / (after.gap_ns - before.gap_ns).max(1) as f64;
            of(before) + share * (of(after) - of(before))
        }
    };
    // What is below zero is noise around it.
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
    use dwell_replay::calibration::HaltOf;
    use dwell_stats::Interval;

    fn costs(costs: &[(u64, f64)]) -> HaltCosts {
        let cost = |&(gap_ns, value): &(u64, f64)| HaltCost {
            gap_ns,
            cpu_ns: Interval::unknown(value),
            latency_ns: Interval::unknown(2.0 * value),
            idle_excess_ns: Some(Interval::unknown(3.0 * value)),
            waker_ns: None,
        };
        HaltCosts { halt_of: HaltOf::Vcpu, costs: costs.iter().map(cost).collect() }
    }

    #[test]
    fn between_lengths_it_is_interpolated_and_beyond_them_constant() {
        let costs = costs(&[(100, 10.0), (200, 20.0), (400, 0.0)]);
        for (idle, cpu) in [(0, 10), (100, 10), (150, 15), (200, 20), (300, 10), (400, 0), (9_999, 0)] {
            assert_eq!(halt_cpu_after(&costs, Nanos(idle)), Nanos(cpu), "{idle}");
        }
        assert_eq!(idle_excess(&costs, Nanos(150)), Nanos(45));
    }

    #[test]
    fn nothing_measured_costs_nothing_and_noise_below_zero_is_zero() {
        assert_eq!(halt_cpu_after(&costs(&[]), Nanos(5)), Nanos(0));
        assert_eq!(halt_cpu_after(&costs(&[(100, -3.0)]), Nanos(5)), Nanos(0));
    }
}
