//! Which instructions the kernels use, and the kernels compiled for each.

use super::group::LaneGroup;
use super::kernel::{Ranges, apart, find_ranges, together};
use super::lanes::{Lanes, Plain};
use super::segment::Segment;

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

/// The kernels for one set of instructions; made by [`Isa::kernels`] alone, which asserts that the CPU has them.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    /// Lanes of a group.
    pub(super) lanes: usize,
    /// Without and with wakeup latencies, as all but `contended`, which takes either.
    find_ranges: [FindRanges; 2],
    /// By rule, by growth ([`LaneGroup::growth`]), and by whether all divisions are shifts.
    apart: [[[[Apart; 2]; 3]; 3]; 2],
    /// For the host's rule where other tasks cut polls short: by growth, and by whether all divisions are shifts.
    contended: [[Apart; 2]; 3],
    /// For the guest's rule where a poll ends at a look at the clock, with latencies or without: by whether it is that
    /// of 5.4, by growth, and by whether all divisions are shifts.
    stepped: [[[Apart; 2]; 3]; 2],
    /// By rule, by growth: of [`Growth::Shift`] and [`Growth::Raise`] whose windows above zero grow past `start`, and
    /// of all others; and by whether all divisions are shifts.
    together: [[[[Together; 2]; 3]; 2]; 2],
}

/// What a rule learns from: the index of its kernels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Learns {
    /// The whole episode: the host.
    Episode,
    /// The halt alone: the guest.
    Halt,
    /// The whole microseconds of the halt: the guest of 5.4.
    HaltMicros,
}

impl Kernels {
    /// Runs a group of any lanes.
    pub(super) fn apart(&self, learns: Learns, segment: Segment<'_>, idler: usize, group: &mut LaneGroup) {
        let kernels = &self.apart[usize::from(segment.is_late())];
        let kernel = kernels[learns as usize][group.growth as usize][usize::from(group.shifts)];
        // SAFETY: `Isa::kernels` has asserted that the CPU has the instructions.
        unsafe { kernel(segment, idler, group) }
    }

    /// Runs a group of any lanes of the host's rule over a segment in which other tasks cut polls short.
    pub(super) fn contended(&self, segment: Segment<'_>, idler: usize, group: &mut LaneGroup) {
        let kernel = self.contended[group.growth as usize][usize::from(group.shifts)];
        // SAFETY: as above.
        unsafe { kernel(segment, idler, group) }
    }

    /// Runs a group of any lanes of the guest's rule whose polls end at looks at the clock.
    pub(super) fn stepped(&self, learns: Learns, segment: Segment<'_>, idler: usize, group: &mut LaneGroup) {
        let kernels = &self.stepped[usize::from(learns == Learns::HaltMicros)];
        let kernel = kernels[group.growth as usize][usize::from(group.shifts)];
        // SAFETY: as above.
        unsafe { kernel(segment, idler, group) }
    }

    /// Finds where small episodes and others meet for maxima of a range.
    pub(super) fn find_ranges(
        &self,
        learns: Learns,
        segment: Segment<'_>,
        maxima: (i32, i32),
        ranges: &mut Ranges,
    ) {
        let kernel = self.find_ranges[usize::from(segment.is_late())];
        // SAFETY: as above.
        unsafe { kernel(segment, maxima, learns != Learns::Episode, ranges) }
    }

    /// Runs a group whose lanes can run together, with the ranges for its maxima.
    pub(super) fn together(
        &self,
        learns: Learns,
        segment: Segment<'_>,
        ranges: &Ranges,
        idler: usize,
        group: &mut LaneGroup,
    ) {
        let growth = if group.grows_past_start { group.growth as usize } else { 2 };
        let kernels = &self.together[usize::from(segment.is_late())];
        let kernel = kernels[usize::from(learns != Learns::Episode)][growth][usize::from(group.shifts)];
        // SAFETY: as above.
        unsafe { kernel(segment, ranges, idler, group) }
    }
}

/// A kernel of any divisor and one of shifts.
macro_rules! by_division {
    ($run:ident, $($of:tt),*) => {
        [$run::<$($of),*, false>, $run::<$($of),*, true>]
    };
}

/// The kernels of groups of any lanes by rule and growth, and of those that run together.
macro_rules! all_apart {
    ($late:tt) => {
        [
            [
                by_division!(run_apart, false, false, $late, false, false, true, true),
                by_division!(run_apart, false, false, $late, false, false, false, true),
                by_division!(run_apart, false, false, $late, false, false, false, false),
            ],
            [
                by_division!(run_apart, false, false, $late, true, false, true, true),
                by_division!(run_apart, false, false, $late, true, false, false, true),
                by_division!(run_apart, false, false, $late, true, false, false, false),
            ],
            // The division by a thousand dwarfs the growth.
            [by_division!(run_apart, false, false, $late, true, true, false, false); 3],
        ]
    };
}

macro_rules! all_together {
    ($late:tt) => {
        [
            [
                by_division!(run_together, $late, false, true, false),
                by_division!(run_together, $late, false, false, false),
                by_division!(run_together, $late, false, false, true),
            ],
            [
                by_division!(run_together, $late, true, true, false),
                by_division!(run_together, $late, true, false, false),
                by_division!(run_together, $late, true, false, true),
            ],
        ]
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
                find_ranges: [ranges::<false>, ranges::<true>],
                apart: [all_apart!(false), all_apart!(true)],
                contended: [
                    by_division!(run_apart, false, true, true, false, false, true, true),
                    by_division!(run_apart, false, true, true, false, false, false, true),
                    by_division!(run_apart, false, true, true, false, false, false, false),
                ],
                stepped: [
                    [
                        by_division!(run_apart, true, false, true, true, false, true, true),
                        by_division!(run_apart, true, false, true, true, false, false, true),
                        by_division!(run_apart, true, false, true, true, false, false, false),
                    ],
                    [by_division!(run_apart, true, false, true, true, true, false, false); 3],
                ],
                together: [all_together!(false), all_together!(true)],
            };

            $(#[$feature])?
            unsafe fn ranges<const LATE: bool>(
                segment: Segment<'_>,
                maxima: (i32, i32),
                guest: bool,
                ranges: &mut Ranges,
            ) {
                // SAFETY: the caller vouches for the CPU.
                unsafe { find_ranges::<$lanes, LATE>(segment, maxima, guest, ranges) }
            }

            $(#[$feature])?
            unsafe fn run_apart<const STEPPED: bool, const CONTENDED: bool, const LATE: bool, const GUEST: bool, const MICROS: bool, const GROWS_BY_SHIFT: bool, const RAISES: bool, const SHIFTS: bool>(
                segment: Segment<'_>,
                idler: usize,
                group: &mut LaneGroup,
            ) {
                // SAFETY: the caller vouches for the CPU.
                unsafe { apart::<$lanes, $apart, CONTENDED, LATE, GUEST, MICROS, GROWS_BY_SHIFT, RAISES, SHIFTS, STEPPED>(segment, idler, group) }
            }

            $(#[$feature])?
            unsafe fn run_together<const LATE: bool, const GUEST: bool, const GROWS_BY_SHIFT: bool, const LIFTS: bool, const SHIFTS: bool>(
                segment: Segment<'_>,
                ranges: &Ranges,
                idler: usize,
                group: &mut LaneGroup,
            ) {
                // SAFETY: the caller vouches for the CPU.
                unsafe { together::<$lanes, $together, LATE, GUEST, GROWS_BY_SHIFT, LIFTS, SHIFTS>(segment, ranges, idler, group) }
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
