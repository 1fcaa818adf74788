//! The two ways of setting a host timer for a guest deadline.

use super::{GuestTsc, Revision};
use crate::Nanos;

/// The error with which the hv timer refuses a deadline.
const ERANGE: i32 = 34;

/// The largest value of the VMX preemption timer's 32-bit field.
const PREEMPTION_TIMER_MAX: u64 = u32::MAX as u64;

/// CPUID leaf 0x15: TSC frequency = crystal clock × `ebx` / `eax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpuid15 {
    /// Denominator; 0 if the leaf does not have it.
    pub eax: u32,
    /// Numerator; 0 if the leaf does not have it.
    pub ebx: u32,
}

/// The VMX preemption timer of a host: counts down once every 2^`rate_shift` TSC cycles while the guest runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HvTimer {
    /// log2 of the host TSC cycles per count, 0 to 31 (`IA32_VMX_MISC` bits 4:0).
    pub rate_shift: u8,
    /// The largest count that may be programmed; at most 2^32 − 1.
    pub max_value: u64,
}

impl HvTimer {
    /// The rate of every Intel CPU that the kernel's own sources mention.
    pub const USUAL_RATE_SHIFT: u8 = 5;

    /// The timer of a host whose CPU has this rate. `leaf` is `None` where CPUID has no leaf 0x15.
    ///
    /// The limit is 2^32 − 1, except in 7.3 on bare metal: there, because of an erratum, it is at most
    /// `ebx` × 2^25 / `eax` − 1. A quotient of 0 wraps and thus limits nothing.
    pub fn new(revision: Revision, rate_shift: u8, under_hypervisor: bool, leaf: Option<Cpuid15>) -> HvTimer {
        let limit = leaf
            .filter(|leaf| revision >= Revision::V7_3 && !under_hypervisor && leaf.ebx != 0)
            .and_then(|leaf| (u64::from(leaf.ebx) << 25).checked_div(u64::from(leaf.eax)))
            .map_or(PREEMPTION_TIMER_MAX, |counts| counts.wrapping_sub(1));
        HvTimer { rate_shift, max_value: limit.min(PREEMPTION_TIMER_MAX) }
    }

    /// Tries to set the timer so that it expires `advance_ns` before `tscdeadline`, at the guest TSC `guest_tsc`.
    pub fn set(
        &self,
        tsc: &GuestTsc,
        guest_tsc: u64,
        tscdeadline: u64,
        advance_ns: u32,
    ) -> Result<HvArmed, HvRefused> {
        let guest_cycles =
            tscdeadline.saturating_sub(guest_tsc).saturating_sub(tsc.cycles(Nanos(u64::from(advance_ns))));
        let delta_tsc = tsc.host_cycles(guest_cycles).ok_or(HvRefused::ScalingOverflow)?;
        if shift_right(delta_tsc, self.rate_shift) > self.max_value {
            return Err(HvRefused::TooFar);
        }
        Ok(HvArmed { delta_tsc })
    }
}

/// `value` / 2^`by`, for any `by`.
fn shift_right(value: u64, by: u8) -> u64 {
    value.checked_shr(u32::from(by)).unwrap_or(0)
}

/// An hv timer that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HvArmed {
    /// Until expiry \[host TSC cycles\].
    pub delta_tsc: u64,
}

impl HvArmed {
    /// Whether it expired as it was set. A timer that is not periodic is then delivered at once and cancelled.
    pub const fn expired(self) -> bool {
        self.delta_tsc == 0
    }
}

/// Why the hv timer did not take a deadline; the hrtimer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HvRefused {
    /// The time until expiry exceeds 64 bits in host cycles.
    ScalingOverflow,
    /// The time until expiry exceeds the timer's limit.
    TooFar,
}

impl HvRefused {
    /// What the kernel's function returns: −`ERANGE`, whatever the reason.
    pub const fn ret(self) -> i32 {
        -ERANGE
    }
}

/// What setting an hrtimer came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwArmed {
    /// There is no deadline, or the guest's TSC has no frequency yet.
    Nothing,
    /// The deadline is nearer than the advance, or has passed: delivered at once.
    Expired,
    /// An hrtimer runs: absolute, in hard interrupt context, not pinned to its CPU.
    Hrtimer {
        /// When it fires \[ns, CLOCK_MONOTONIC\].
        expires: Nanos,
    },
}

/// Sets an hrtimer `advance_ns` before `tscdeadline`, with the guest TSC at `guest_tsc` and CLOCK_MONOTONIC at `now`.
///
/// The conversion to nanoseconds wraps (see [`GuestTsc::nanos`]): a deadline more than 1.8 × 10^13 cycles ahead fires
/// far too early, possibly at once.
pub fn start_sw_tscdeadline(
    tsc: &GuestTsc,
    guest_tsc: u64,
    tscdeadline: u64,
    advance_ns: u32,
    now: Nanos,
) -> SwArmed {
    if tscdeadline == 0 {
        return SwArmed::Nothing;
    }
    let Some(until) = tsc.nanos(tscdeadline.wrapping_sub(guest_tsc)) else {
        return SwArmed::Nothing;
    };
    let advance = u64::from(advance_ns);
    if tscdeadline > guest_tsc && until.get() > advance {
        SwArmed::Hrtimer { expires: Nanos(now.get().wrapping_add(until.get() - advance)) }
    } else {
        SwArmed::Expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GHZ: GuestTsc = GuestTsc::new(1_000_000);
    const HV: HvTimer = HvTimer { rate_shift: 5, max_value: PREEMPTION_TIMER_MAX };

    #[test]
    fn hv_timer_expires_at_once_within_the_advance() {
        assert_eq!(HV.set(&GHZ, 100, 1_100, 999), Ok(HvArmed { delta_tsc: 1 }));
        assert!(HV.set(&GHZ, 100, 1_100, 1_000).unwrap().expired());
        assert!(HV.set(&GHZ, 1_100, 100, 0).unwrap().expired());
    }

    #[test]
    fn hv_timer_takes_its_limit_and_refuses_one_more() {
        let longest = (PREEMPTION_TIMER_MAX << 5) + 31;
        assert_eq!(HV.set(&GHZ, 0, longest, 0), Ok(HvArmed { delta_tsc: longest }));
        assert_eq!(HV.set(&GHZ, 0, longest + 1, 0), Err(HvRefused::TooFar));
        assert_eq!(HvRefused::TooFar.ret(), -34);
    }

    #[test]
    fn hv_timer_refuses_what_overflows_in_host_cycles() {
        let slow = GuestTsc::scaled(1_000_000, GuestTsc::RATIO_ONE / 4);
        assert_eq!(HV.set(&slow, 0, 1_000, 0), Ok(HvArmed { delta_tsc: 4_000 }));
        assert_eq!(HV.set(&slow, 0, u64::MAX, 0), Err(HvRefused::ScalingOverflow));
    }

    #[test]
    fn leaf_15_limits_7_3_on_bare_metal_only() {
        let leaf = Some(Cpuid15 { eax: 1, ebx: 2 });
        let max = |revision, hypervisor, leaf| HvTimer::new(revision, 5, hypervisor, leaf).max_value;
        assert_eq!(max(Revision::V7_3, false, leaf), (2 << 25) - 1);
        assert_eq!(max(Revision::V7_3, true, leaf), PREEMPTION_TIMER_MAX);
        assert_eq!(max(Revision::V7_2, false, leaf), PREEMPTION_TIMER_MAX);
        assert_eq!(max(Revision::V7_3, false, None), PREEMPTION_TIMER_MAX);
        for leaf in [Cpuid15 { eax: 0, ebx: 2 }, Cpuid15 { eax: 1, ebx: 0 }, Cpuid15 { eax: 1, ebx: 1 << 30 }]
        {
            assert_eq!(max(Revision::V7_3, false, Some(leaf)), PREEMPTION_TIMER_MAX, "{leaf:?}");
        }
    }

    #[test]
    fn hrtimer_needs_a_deadline_and_a_frequency() {
        assert_eq!(start_sw_tscdeadline(&GHZ, 0, 0, 0, Nanos(7)), SwArmed::Nothing);
        assert_eq!(start_sw_tscdeadline(&GuestTsc::new(0), 0, 9, 0, Nanos(7)), SwArmed::Nothing);
    }

    #[test]
    fn hrtimer_is_early_by_the_advance() {
        let arm = |deadline| start_sw_tscdeadline(&GHZ, 1_000, deadline, 500, Nanos(7));
        assert_eq!(arm(3_000), SwArmed::Hrtimer { expires: Nanos(7 + 1_500) });
        assert_eq!(arm(1_501), SwArmed::Hrtimer { expires: Nanos(8) });
        assert_eq!(arm(1_500), SwArmed::Expired);
        assert_eq!(arm(999), SwArmed::Expired);
    }

    #[test]
    fn far_deadline_wraps_to_a_near_hrtimer() {
        let far = u64::MAX / 1_000_000 + 2;
        assert_eq!(start_sw_tscdeadline(&GHZ, 0, far, 0, Nanos(0)), SwArmed::Hrtimer { expires: Nanos(1) });
    }

    proptest! {
        #[test]
        fn hv_limit_agrees_with_the_shift_of_older_kernels(deadline: u64, rate_shift in 0u8..32) {
            let hv = HvTimer { rate_shift, max_value: PREEMPTION_TIMER_MAX };
            let refused = deadline >> (rate_shift + 32) != 0;
            prop_assert_eq!(hv.set(&GHZ, 0, deadline, 0).is_err(), refused);
        }

        #[test]
        fn hv_timer_agrees_with_128_bits(
            khz in 1u32..10_000_000,
            guest_tsc: u64,
            ahead in 0u64..1 << 45,
            advance_ns in 0u32..=5_000,
            ratio in 1u64..1 << 52,
        ) {
            let tsc = GuestTsc::scaled(khz, ratio);
            let deadline = guest_tsc.saturating_add(ahead);
            let early = i128::from(tsc.cycles(Nanos(u64::from(advance_ns))));
            let d = (i128::from(deadline) - i128::from(guest_tsc) - early).max(0);
            let host = (d << 48) / i128::from(ratio);
            let expected = if host > i128::from(u64::MAX) {
                Err(HvRefused::ScalingOverflow)
            } else if host >> 5 > i128::from(u32::MAX) {
                Err(HvRefused::TooFar)
            } else {
                Ok(host)
            };
            let set = HV.set(&tsc, guest_tsc, deadline, advance_ns);
            prop_assert_eq!(set.map(|armed| i128::from(armed.delta_tsc)), expected);
        }

        #[test]
        fn hrtimer_agrees_with_128_bits(
            khz in 1u32..,
            guest_tsc: u64,
            deadline in 1u64..,
            advance_ns: u32,
            now in 0u64..1 << 60,
        ) {
            let wrap = 1i128 << 64;
            let d = i128::from(deadline) - i128::from(guest_tsc);
            let until = (d * 1_000_000).rem_euclid(wrap) / i128::from(khz);
            let early = i128::from(advance_ns);
            let expected = (d > 0 && until > early).then(|| (i128::from(now) + until - early).rem_euclid(wrap));
            let expires = match start_sw_tscdeadline(&GuestTsc::new(khz), guest_tsc, deadline, advance_ns, Nanos(now)) {
                SwArmed::Nothing => panic!("a deadline and a frequency were given"),
                SwArmed::Expired => None,
                SwArmed::Hrtimer { expires } => Some(i128::from(expires.get())),
            };
            prop_assert_eq!(expires, expected);
        }
    }
}
