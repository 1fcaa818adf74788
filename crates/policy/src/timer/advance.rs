//! How early a timer is set, how that is learnt, and how the rest of the time is spun away.

use super::{GuestTsc, Revision};
use crate::Nanos;

/// The advance that tuning starts from, and returns to when it leaves its range \[ns\]
/// (`LAPIC_TIMER_ADVANCE_NS_INIT`, arch/x86/kvm/lapic.c).
pub const ADVANCE_NS_INIT: u32 = 1_000;
/// The largest advance that tuning keeps \[ns\] (`LAPIC_TIMER_ADVANCE_NS_MAX`).
pub const ADVANCE_NS_MAX: u32 = 5_000;
/// Smaller deviations change nothing \[guest cycles\] (`LAPIC_TIMER_ADVANCE_ADJUST_MIN`).
pub const ADJUST_MIN_CYCLES: u64 = 100;
/// Larger deviations change nothing \[guest cycles\] (`LAPIC_TIMER_ADVANCE_ADJUST_MAX`).
pub const ADJUST_MAX_CYCLES: u64 = 10_000;
/// An adjustment is this part of the deviation (`LAPIC_TIMER_ADVANCE_ADJUST_STEP`).
pub const ADJUST_STEP: u64 = 8;

/// Default of the module parameter `lapic_timer_advance_ns`, up to 6.9: adaptive (arch/x86/kvm/x86.c).
pub const LAPIC_TIMER_ADVANCE_NS_DEFAULT: i32 = -1;
/// Default of the module parameter `lapic_timer_advance`, from 6.10: on (arch/x86/kvm/lapic.c).
pub const LAPIC_TIMER_ADVANCE_DEFAULT: bool = true;

/// The advance after a timer that was delivered `delta_cycles` after its deadline (negative: before), for a guest TSC
/// of `khz` kHz.
///
/// An advance of 0 is adjusted like any other here; in the kernel it stays 0, because the routine around this is
/// not entered any more: see [`Advance::wait_lapic_expire`].
pub fn adjust_timer_advance(advance_ns: u32, delta_cycles: i64, khz: u32) -> u32 {
    let deviation = delta_cycles.unsigned_abs();
    if !(ADJUST_MIN_CYCLES..=ADJUST_MAX_CYCLES).contains(&deviation) {
        return advance_ns;
    }
    // At most 10^10 before the second division, so the step fits its 32 bits.
    let step = (deviation * 1_000_000).checked_div(u64::from(khz)).map(|ns| ns / ADJUST_STEP);
    let Some(step) = step.and_then(|ns| u32::try_from(ns).ok()) else {
        return advance_ns;
    };
    let adjusted =
        if delta_cycles < 0 { advance_ns.wrapping_sub(step) } else { advance_ns.wrapping_add(step) };
    if adjusted > ADVANCE_NS_MAX { ADVANCE_NS_INIT } else { adjusted }
}

/// How KVM waits for a deadline that the guest is early for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delay {
    /// Spins for so many TSC cycles; a guest whose TSC is not scaled.
    Cycles(u64),
    /// Spins for so many nanoseconds; a guest whose TSC is scaled.
    Nanos(u32),
}

/// How long KVM waits `guest_cycles` before the deadline: never longer than the advance.
pub fn wait(tsc: &GuestTsc, advance_ns: u32, guest_cycles: u64) -> Delay {
    if !tsc.is_scaled() {
        let advance = tsc.cycles(Nanos(u64::from(advance_ns)));
        return Delay::Cycles(guest_cycles.min(advance));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the kernel compares the lower 32 bits of the remaining time"
    )]
    let remaining_ns = tsc.nanos(guest_cycles).unwrap_or_default().get() as u32;
    Delay::Nanos(remaining_ns.min(advance_ns))
}

/// The module parameter from which the advance starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AdvanceParameter {
    /// `lapic_timer_advance_ns`, up to 6.9: −1 adaptive, 0 off, else a fixed advance \[ns\].
    LapicTimerAdvanceNs(i32),
    /// `lapic_timer_advance`, from 6.10: adaptive or off. Read-only after load (mode 0444).
    LapicTimerAdvance(bool),
}

impl AdvanceParameter {
    /// The parameter as a revision's kernel has it when nothing was set.
    pub fn default_of(revision: Revision) -> AdvanceParameter {
        if revision < Revision::V6_12 {
            AdvanceParameter::LapicTimerAdvanceNs(LAPIC_TIMER_ADVANCE_NS_DEFAULT)
        } else {
            AdvanceParameter::LapicTimerAdvance(LAPIC_TIMER_ADVANCE_DEFAULT)
        }
    }
}

/// How early one vCPU's timers are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Advance {
    ns: u32,
    adaptive: bool,
}

/// What [`Advance::wait_lapic_expire`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waited {
    /// Guest TSC minus deadline on arrival \[cycles\], as in the tracepoint `kvm_wait_lapic_expire`; negative is early.
    pub delta_cycles: i64,
    /// The wait, if the guest was still early.
    pub delay: Option<Delay>,
}

impl Advance {
    /// Tunes itself, from [`ADVANCE_NS_INIT`].
    pub const ADAPTIVE: Advance = Advance { ns: ADVANCE_NS_INIT, adaptive: true };
    /// No advance, no wait.
    pub const OFF: Advance = Advance::fixed(0);

    /// Always `ns` nanoseconds, without the bounds of tuning.
    pub const fn fixed(ns: u32) -> Advance {
        Advance { ns, adaptive: false }
    }

    /// The advance of a new vCPU. `None` where this revision's kernels do not have the parameter or not this
    /// value of it (below −1).
    pub fn of(revision: Revision, parameter: AdvanceParameter) -> Option<Advance> {
        match parameter {
            AdvanceParameter::LapicTimerAdvanceNs(ns) if revision < Revision::V6_12 => match ns {
                LAPIC_TIMER_ADVANCE_NS_DEFAULT => Some(Advance::ADAPTIVE),
                ns => u32::try_from(ns).ok().map(Advance::fixed),
            },
            AdvanceParameter::LapicTimerAdvance(on) if revision >= Revision::V6_12 => {
                Some(if on { Advance::ADAPTIVE } else { Advance::OFF })
            }
            _ => None,
        }
    }

    /// The present advance (`timer_advance_ns`) \[ns\].
    pub const fn ns(self) -> u32 {
        self.ns
    }

    /// Whether it tunes itself.
    pub const fn is_adaptive(self) -> bool {
        self.adaptive
    }

    /// Waits for `expired_tscdeadline` and tunes; `None` if there is nothing to wait for or the advance is 0. An
    /// adaptive advance that reached exactly 0 therefore stays there for good.
    ///
    /// `guest_tsc` is the guest TSC on arrival. `reread` reads it again: from 6.1 the tuning comes first and takes
    /// time of its own. Up to 6.0 the wait comes first, under the advance that was.
    pub fn wait_lapic_expire(
        &mut self,
        revision: Revision,
        tsc: &GuestTsc,
        expired_tscdeadline: u64,
        guest_tsc: u64,
        reread: impl FnOnce() -> u64,
    ) -> Option<Waited> {
        if expired_tscdeadline == 0 || self.ns == 0 {
            return None;
        }
        let delta_cycles = guest_tsc.wrapping_sub(expired_tscdeadline) as i64;
        let early = |advance_ns, guest_tsc: u64| {
            let remaining = expired_tscdeadline.checked_sub(guest_tsc).filter(|&cycles| cycles != 0)?;
            Some(wait(tsc, advance_ns, remaining))
        };
        let advance_before = self.ns;
        if self.adaptive {
            self.ns = adjust_timer_advance(self.ns, delta_cycles, tsc.khz());
        }
        let delay = if revision < Revision::V6_1 {
            early(advance_before, guest_tsc)
        } else if guest_tsc < expired_tscdeadline {
            early(self.ns, reread())
        } else {
            None
        };
        Some(Waited { delta_cycles, delay })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GHZ: GuestTsc = GuestTsc::new(1_000_000);

    #[test]
    fn deviation_counts_from_100_to_10_000_cycles_inclusive() {
        let adjust = |delta| adjust_timer_advance(2_000, delta, 1_000_000);
        assert_eq!((adjust(99), adjust(100)), (2_000, 2_012));
        assert_eq!((adjust(10_000), adjust(10_001)), (3_250, 2_000));
        assert_eq!((adjust(-99), adjust(-100)), (2_000, 1_988));
        assert_eq!((adjust(i64::MIN), adjust(i64::MAX)), (2_000, 2_000));
    }

    #[test]
    fn leaving_the_range_on_either_side_resets_to_1000() {
        assert_eq!(adjust_timer_advance(4_988, 100, 1_000_000), 5_000);
        assert_eq!(adjust_timer_advance(4_989, 100, 1_000_000), 1_000);
        assert_eq!(adjust_timer_advance(12, -100, 1_000_000), 0);
        assert_eq!(adjust_timer_advance(11, -100, 1_000_000), 1_000);
    }

    #[test]
    fn zero_advance_is_absorbing() {
        let mut advance = Advance { ns: 12, adaptive: true };
        assert!(advance.wait_lapic_expire(Revision::V7_3, &GHZ, 1_000, 900, || 950).is_some());
        assert_eq!(advance.ns(), 0);
        assert_eq!(advance.wait_lapic_expire(Revision::V7_3, &GHZ, 1_000, 9_000, || 9_000), None);
        assert_eq!(advance.ns(), 0);
    }

    #[test]
    fn old_kernels_wait_first_and_new_ones_tune_first() {
        let run = |revision| {
            let mut advance = Advance { ns: 1_000, adaptive: true };
            let waited = advance.wait_lapic_expire(revision, &GHZ, 10_000, 8_000, || 8_100).unwrap();
            (waited.delta_cycles, waited.delay, advance.ns())
        };
        assert_eq!(run(Revision::V5_18), (-2_000, Some(Delay::Cycles(1_000)), 750));
        assert_eq!(run(Revision::V6_1), (-2_000, Some(Delay::Cycles(750)), 750));
    }

    #[test]
    fn tuning_that_outlasts_the_deadline_leaves_nothing_to_wait_for() {
        let mut advance = Advance::ADAPTIVE;
        let waited = advance.wait_lapic_expire(Revision::V7_3, &GHZ, 1_000, 990, || 1_000).unwrap();
        assert_eq!(waited, Waited { delta_cycles: -10, delay: None });
    }

    #[test]
    fn fixed_advance_waits_without_tuning() {
        let mut advance = Advance::fixed(9_000);
        let waited = advance.wait_lapic_expire(Revision::V5_4, &GHZ, 10_000, 2_000, || 0).unwrap();
        assert_eq!(waited.delay, Some(Delay::Cycles(8_000)));
        assert_eq!(advance, Advance::fixed(9_000));
    }

    #[test]
    fn late_expiry_does_not_wait() {
        let mut advance = Advance::ADAPTIVE;
        let waited = advance.wait_lapic_expire(Revision::V6_12, &GHZ, 1_000, 3_000, || 0).unwrap();
        assert_eq!((waited.delta_cycles, waited.delay, advance.ns()), (2_000, None, 1_250));
    }

    #[test]
    fn parameter_changed_its_meaning_in_6_12() {
        use AdvanceParameter::{LapicTimerAdvance, LapicTimerAdvanceNs};
        assert_eq!(Advance::of(Revision::V6_1, LapicTimerAdvanceNs(-1)), Some(Advance::ADAPTIVE));
        assert_eq!(Advance::of(Revision::V6_1, LapicTimerAdvanceNs(0)), Some(Advance::OFF));
        assert_eq!(Advance::of(Revision::V6_1, LapicTimerAdvanceNs(1_500)), Some(Advance::fixed(1_500)));
        assert_eq!(Advance::of(Revision::V6_1, LapicTimerAdvanceNs(-2)), None);
        assert_eq!(Advance::of(Revision::V6_1, LapicTimerAdvance(true)), None);
        assert_eq!(Advance::of(Revision::V6_12, LapicTimerAdvance(true)), Some(Advance::ADAPTIVE));
        assert_eq!(Advance::of(Revision::V6_12, LapicTimerAdvance(false)), Some(Advance::OFF));
        assert_eq!(Advance::of(Revision::V6_12, LapicTimerAdvanceNs(1_500)), None);
        for revision in Revision::ALL {
            assert_eq!(
                Advance::of(revision, AdvanceParameter::default_of(revision)),
                Some(Advance::ADAPTIVE),
                "{revision:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn adjusting_agrees_with_128_bits(advance_ns: u32, delta in -11_000i64..=11_000, khz in 1u32..) {
            let deviation = i128::from(delta.abs());
            let step = deviation * 1_000_000 / i128::from(khz) / 8 * i128::from(delta.signum());
            let adjusted = (i128::from(advance_ns) + step).rem_euclid(1 << 32);
            let expected = match deviation {
                100..=10_000 if adjusted > 5_000 => 1_000,
                100..=10_000 => adjusted,
                _ => i128::from(advance_ns),
            };
            prop_assert_eq!(i128::from(adjust_timer_advance(advance_ns, delta, khz)), expected);
        }

        #[test]
        fn scaled_wait_agrees_with_128_bits(khz in 1u32.., advance_ns: u32, cycles: u64) {
            let tsc = GuestTsc::scaled(khz, 1);
            let ns = u128::from(cycles) * 1_000_000 % (1 << 64) / u128::from(khz) % (1 << 32);
            let expected = ns.min(u128::from(advance_ns));
            match wait(&tsc, advance_ns, cycles) {
                Delay::Nanos(ns) => prop_assert_eq!(u128::from(ns), expected),
                Delay::Cycles(_) => prop_assert!(false, "a scaled TSC waits in nanoseconds"),
            }
        }

        #[test]
        fn nothing_panics(revision in 0usize..9, ns: u32, khz: u32, ratio: u64, deadline: u64, now: u64, later: u64) {
            let mut advance = Advance { ns, adaptive: true };
            let tsc = GuestTsc::scaled(khz, ratio);
            let _ = advance.wait_lapic_expire(Revision::ALL[revision], &tsc, deadline, now, || later);
        }
    }
}
