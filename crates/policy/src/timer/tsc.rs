//! The guest's clock, and the two conversions between its cycles and nanoseconds.
//!
//! They are not inverse to each other: cycles → ns is an exact division, ns → cycles goes through a 32-bit
//! multiplier and rounds down twice.

use crate::Nanos;

/// Nanoseconds in a second: the frequency of the clock from which [`Scale`] converts \[Hz\].
const NSEC_PER_SEC: u64 = 1_000_000_000;

/// The multiplier and shift that convert nanoseconds to guest cycles: `virtual_tsc_mult` and `virtual_tsc_shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scale {
    shift: i8,
    mult: u32,
}

impl Scale {
    /// The scale of a guest TSC of `khz` kHz. Of 0 kHz, a frequency KVM has not set yet, every span is 0 cycles.
    ///
    /// cycles = ns × 2^shift × mult / 2^32, with mult in \[2^31, 2^32). The rounding is part of the result: both
    /// frequencies are halved where that is what makes them fit, losing their lowest bits.
    pub const fn from_khz(khz: u32) -> Scale {
        if khz == 0 {
            return Scale { shift: 0, mult: 0 };
        }
        let mut scaled_hz = khz as u64 * 1_000;
        let mut base_hz = NSEC_PER_SEC;
        let mut shift = 0;
        while base_hz > 2 * scaled_hz {
            base_hz >>= 1;
            shift -= 1;
        }
        while scaled_hz > u32::MAX as u64 {
            scaled_hz >>= 1;
            shift += 1;
        }
        while base_hz <= scaled_hz && base_hz < 1 << 31 {
            base_hz <<= 1;
            shift += 1;
        }
        if base_hz <= scaled_hz {
            scaled_hz >>= 1;
            shift += 1;
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "scaled_hz < base_hz < 2^32: 32 bits hold the quotient"
        )]
        let mult = ((scaled_hz << 32) / base_hz) as u32;
        Scale { shift, mult }
    }

    /// `virtual_tsc_shift`: left if positive, right if negative; −19 to 13.
    pub const fn shift(self) -> i8 {
        self.shift
    }

    /// `virtual_tsc_mult`: a fraction of 2^32; at least 2^31, or 0 for a clock of 0 kHz.
    pub const fn mult(self) -> u32 {
        self.mult
    }

    /// How many guest cycles `ns` are. Bits shifted out above bit 63 are lost, as in the kernel.
    pub const fn cycles(self, ns: Nanos) -> u64 {
        let by = self.shift.unsigned_abs();
        let shifted = if self.shift < 0 { ns.get() >> by } else { ns.get() << by };
        // (shifted × mult) >> 32 by halves, without 128-bit arithmetic; the sum cannot overflow.
        let mult = self.mult as u64;
        (shifted >> 32) * mult + (((shifted & u32::MAX as u64) * mult) >> 32)
    }
}

/// The time stamp counter that a guest sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuestTsc {
    khz: u32,
    ratio: u64,
    scale: Scale,
}

impl GuestTsc {
    /// Fractional bits of a scaling ratio: those of the VMX TSC multiplier (Intel SDM vol. 3, "TSC scaling").
    pub const RATIO_FRAC_BITS: u32 = 48;
    /// The ratio of a guest whose TSC runs as fast as the host's.
    pub const RATIO_ONE: u64 = 1 << Self::RATIO_FRAC_BITS;

    /// A TSC of `khz` kHz (`virtual_tsc_khz`) that is not scaled.
    pub const fn new(khz: u32) -> GuestTsc {
        GuestTsc::scaled(khz, Self::RATIO_ONE)
    }

    /// A TSC of `khz` kHz that runs `ratio` / 2^48 times as fast as the host's (`tsc_scaling_ratio`). An SVM ratio has
    /// 32 fractional bits: shift it left by 16.
    pub const fn scaled(khz: u32, ratio: u64) -> GuestTsc {
        GuestTsc { khz, ratio, scale: Scale::from_khz(khz) }
    }

    /// `virtual_tsc_khz` \[kHz\].
    pub const fn khz(&self) -> u32 {
        self.khz
    }

    /// Whether the guest's TSC runs at another rate than the host's.
    pub const fn is_scaled(&self) -> bool {
        self.ratio != Self::RATIO_ONE
    }

    /// The scale used by [`GuestTsc::cycles`].
    pub const fn scale(&self) -> Scale {
        self.scale
    }

    /// How many guest cycles `ns` are; KVM's `nsec_to_cycles`.
    pub const fn cycles(&self, ns: Nanos) -> u64 {
        self.scale.cycles(ns)
    }

    /// How long `cycles` guest cycles are, rounded down. The product with 10^6 wraps at 2^64, as in the kernel: more
    /// than 1.8 × 10^13 cycles (about two hours at 2.5 GHz) come out too short. `None` for a clock of 0 kHz.
    pub fn nanos(&self, cycles: u64) -> Option<Nanos> {
        cycles.wrapping_mul(1_000_000).checked_div(u64::from(self.khz)).map(Nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same normalisation one bit at a time with 128-bit values and no case distinction on the size of the base.
    fn slow_scale(khz: u32) -> (i32, u128) {
        let (mut scaled, mut base, mut shift) = (u128::from(khz) * 1_000, u128::from(NSEC_PER_SEC), 0);
        while base > 2 * scaled {
            (base, shift) = (base / 2, shift - 1);
        }
        while scaled >= 1 << 32 || base <= scaled {
            if scaled >= 1 << 32 || base >= 1 << 31 {
                scaled /= 2;
            } else {
                base *= 2;
            }
            shift += 1;
        }
        (shift, (scaled << 32) / base)
    }

    #[test]
    fn one_gigahertz_is_two_halves() {
        let scale = Scale::from_khz(1_000_000);
        assert_eq!((scale.shift(), scale.mult()), (1, 1 << 31));
        assert_eq!(scale.cycles(Nanos(12_345)), 12_345);
    }

    #[test]
    fn zero_khz_converts_to_nothing() {
        let tsc = GuestTsc::new(0);
        assert_eq!(tsc.cycles(Nanos::MAX), 0);
        assert_eq!(tsc.nanos(1), None);
    }

    #[test]
    fn shift_stays_within_its_documented_range() {
        assert_eq!(Scale::from_khz(1).shift(), -19);
        assert_eq!(Scale::from_khz(u32::MAX).shift(), 13);
    }

    #[test]
    fn long_spans_of_cycles_wrap() {
        let tsc = GuestTsc::new(1_000_000);
        let longest = u64::MAX / 1_000_000;
        assert_eq!(tsc.nanos(longest), Some(Nanos(longest)));
        assert_eq!(tsc.nanos(longest + 1), Some(Nanos(0)));
    }

    proptest! {
        #[test]
        fn scale_agrees_with_bit_by_bit(khz in prop_oneof![1u32..100_000, 1..=u32::MAX]) {
            let scale = Scale::from_khz(khz);
            prop_assert_eq!((i32::from(scale.shift()), u128::from(scale.mult())), slow_scale(khz));
            prop_assert!(scale.mult() >= 1 << 31);
        }

        #[test]
        fn cycles_agree_with_128_bits(khz: u32, ns: u64) {
            let scale = Scale::from_khz(khz);
            let by = scale.shift().unsigned_abs();
            let shifted = if scale.shift() < 0 { ns >> by } else { ns << by };
            let wide = (u128::from(shifted) * u128::from(scale.mult())) >> 32;
            prop_assert_eq!(u128::from(scale.cycles(Nanos(ns))), wide);
        }

        #[test]
        fn nanos_agree_with_128_bits(khz in 1u32.., cycles: u64) {
            let product = u128::from(cycles) * 1_000_000 % (1 << 64);
            let wide = product / u128::from(khz);
            prop_assert_eq!(GuestTsc::new(khz).nanos(cycles).map(|ns| u128::from(ns.get())), Some(wide));
        }
    }
}
