//! Which instructions the kernels use, and the kernels compiled for each.

use super::group::LaneGroup;
use super::kernel::{Ranges, apart, find_ranges, together};
use super::lane::{Growth, Kind};
use super::lanes::{Lanes, Plain};
use super::segment::{Segment, Way};

dwell_policy::named! {
    /// Instructions that the engine can use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Isa {
        /// Those that the program was compiled for: plain loops, of which the compiler makes what vectors there are.
        Portable = "portable",
        /// AVX2 on x86-64, eight settings in a register.
        Avx2 = "AVX2",
        /// AVX-512F on x86-64, sixteen settings in a register.
        Avx512 = "AVX-512",
    }

    /// Name in tables.
    pub fn name
}

impl Isa {
    /// The fastest that this CPU has.
    pub fn best() -> Isa {
        Isa::available().last().copied().unwrap_or(Isa::Portable)
    }

    /// All that this CPU has, the fastest last.
    pub fn available() -> &'static [Isa] {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            if avx2 && is_x86_feature_detected!("avx512f") {
                return &[Isa::Portable, Isa::Avx2, Isa::Avx512];
            }
            if avx2 {
                return &[Isa::Portable, Isa::Avx2];
            }
        }
        &[Isa::Portable]
    }

    /// The kernels for this.
    ///
    /// # Panics
    /// If the CPU lacks it: what makes the calls through the result sound.
    pub(super) fn kernels(self) -> Kernels {
        assert!(Isa::available().contains(&self), "this CPU has no {}", self.name());
        match self {
            Isa::Portable => plain::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::KERNELS,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => plain::KERNELS,
        }
    }
}

type FindRanges = unsafe fn(Segment<'_>, (i32, i32), bool, &mut Ranges);
type Apart = unsafe fn(Segment<'_>, usize, &mut LaneGroup);
type Together = unsafe fn(Segment<'_>, &Ranges, usize, &mut LaneGroup);
/// By growth ([`LaneGroup::growth`]), and by whether all divisions are shifts.
type ByGrowth<Kernel> = [[Kernel; 2]; 3];

/// The kernels for one set of instructions; made by [`Isa::kernels`] alone, which asserts that the CPU has them.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Lanes of a group.
    pub(super) lanes: usize,
    /// By [`Way`], without the last one, as those of `together`.
    find_ranges: [FindRanges; 2],
    /// By rule and by way.
    apart: [[ByGrowth<Apart>; 3]; 3],
    /// By rule, without that of 5.4, and by way. The growth is [`Growth::Shift`] or [`Growth::Raise`] where windows above
    /// zero grow past `start`, and the last one stands for both where they do not.
    together: [[ByGrowth<Together>; 2]; 2],
}

impl Kernels {
    /// Runs a group of any lanes.
    pub(super) fn apart(&self, kind: Kind, segment: Segment<'_>, idler: usize, group: &mut LaneGroup) {
        let kernels = &self.apart[kind as usize][segment.way(kind) as usize];
        let kernel = kernels[group.growth as usize][usize::from(group.shifts)];
        // SAFETY: `Isa::kernels` has asserted that the CPU has the instructions.
        unsafe { kernel(segment, idler, group) }
    }

    /// Finds where small episodes and others meet for maxima of a range.
    pub(super) fn find_ranges(
        &self,
        kind: Kind,
        segment: Segment<'_>,
        maxima: (i32, i32),
        ranges: &mut Ranges,
    ) {
        let kernel = self.find_ranges[segment.way(kind) as usize];
        // SAFETY: as above.
        unsafe { kernel(segment, maxima, kind != Kind::Host, ranges) }
    }

    /// Runs a group whose lanes can run together, with the ranges for its maxima.
    pub(super) fn together(
        &self,
        kind: Kind,
        segment: Segment<'_>,
        ranges: &Ranges,
        idler: usize,
        group: &mut LaneGroup,
    ) {
        let growth = if group.grows_past_start { group.growth as usize } else { 2 };
        let kernels = &self.together[kind as usize][segment.way(kind) as usize];
        let kernel = kernels[growth][usize::from(group.shifts)];
        // SAFETY: as above.
        unsafe { kernel(segment, ranges, idler, group) }
    }
}

/// A kernel of any divisor and one of shifts.
macro_rules! by_division {
    ($run:ident, $kind:ident, $way:ident, $growth:ident $(, $lifts:literal)?) => {
        [
            $run::<{ Kind::$kind as u8 }, { Way::$way as u8 }, { Growth::$growth as u8 }, $($lifts,)? false>,
            $run::<{ Kind::$kind as u8 }, { Way::$way as u8 }, { Growth::$growth as u8 }, $($lifts,)? true>,
        ]
    };
}

/// The kernels of groups of any lanes.
macro_rules! all_apart {
    ($kind:ident, $($way:ident)*) => {
        [$([
            by_division!(run_apart, $kind, $way, Shift),
            by_division!(run_apart, $kind, $way, Raise),
            by_division!(run_apart, $kind, $way, Any),
        ]),*]
    };
}

/// The kernels of groups whose lanes run together.
macro_rules! all_together {
    ($kind:ident, $($way:ident)*) => {
        [$([
            by_division!(run_together, $kind, $way, Shift, false),
            by_division!(run_together, $kind, $way, Raise, false),
            by_division!(run_together, $kind, $way, Raise, true),
        ]),*]
    };
}

/// A module with all kernels for one type of vector: how many of them are taken at a time apart and together (all of a
/// group), and the features that the functions are compiled with.
macro_rules! kernels {
    ($module:ident, $lanes:ty, $apart:literal, $together:literal $(, #[$feature:meta])?) => {
        mod $module {
            use super::*;

            pub(super) const KERNELS: Kernels = Kernels {
                lanes: $together * <$lanes>::WIDTH,
                find_ranges: [ranges::<{ Way::Plain as u8 }>, ranges::<{ Way::Late as u8 }>],
                apart: [
                    all_apart!(Host, Plain Late Ended),
                    all_apart!(Guest, Plain Late Ended),
                    // The division by a thousand dwarfs the growth.
                    [
                        [by_division!(run_apart, GuestMicros, Plain, Any); 3],
                        [by_division!(run_apart, GuestMicros, Late, Any); 3],
                        [by_division!(run_apart, GuestMicros, Ended, Any); 3],
                    ],
                ],
                together: [all_together!(Host, Plain Late), all_together!(Guest, Plain Late)],
            };

            $(#[$feature])?
            unsafe fn ranges<const WAY: u8>(
                segment: Segment<'_>,
                maxima: (i32, i32),
                guest: bool,
                ranges: &mut Ranges,
            ) {
                // SAFETY: the caller vouches for the CPU.
                unsafe { find_ranges::<$lanes, WAY>(segment, maxima, guest, ranges) }
            }

            $(#[$feature])?
            unsafe fn run_apart<const KIND: u8, const WAY: u8, const GROWTH: u8, const SHIFTS: bool>(
                segment: Segment<'_>,
                idler: usize,
                group: &mut LaneGroup,
            ) {
                // SAFETY: the caller vouches for the CPU.
                unsafe { apart::<$lanes, $apart, KIND, WAY, GROWTH, SHIFTS>(segment, idler, group) }
            }

            $(#[$feature])?
            unsafe fn run_together<const KIND: u8, const WAY: u8, const GROWTH: u8, const LIFTS: bool, const SHIFTS: bool>(
                segment: Segment<'_>,
                ranges: &Ranges,
                idler: usize,
                group: &mut LaneGroup,
            ) {
                // SAFETY: the caller vouches for the CPU.
                unsafe { together::<$lanes, $together, KIND, WAY, GROWTH, LIFTS, SHIFTS>(segment, ranges, idler, group) }
            }
        }
    };
}

kernels!(plain, Plain, 2, 2);
#[cfg(target_arch = "x86_64")]
kernels!(avx2, crate::engine::avx2::Avx2, 2, 4, #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]);
#[cfg(target_arch = "x86_64")]
kernels!(
    avx512,
    crate::engine::avx512::Avx512,
    4,
    4,
    #[target_feature(enable = "avx512f,avx2,bmi1,bmi2,lzcnt,popcnt")]
);
