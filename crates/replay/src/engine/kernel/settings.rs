//! What the lanes of a vector do with a window: grow it, shrink it, or take any episode at all.

use super::super::group::LaneGroup;
use super::super::lane::{Growth, Kind, reciprocal};
use super::super::lanes::Lanes;
use super::super::segment::Way;
use crate::idle_loop::IdleLoop;
use std::marker::PhantomData;

/// The settings of a group, where they lie in memory: vectors of them are operands of instructions, and registers are
/// left to windows and counts.
#[derive(Clone, Copy)]
pub(super) struct Settings<L> {
    max: *const i32,
    grow: *const i32,
    grow_shift: *const i32,
    start: *const i32,
    below_floor: *const i32,
    shift: *const i32,
    factor: *const i32,
    factor_bits: *const i32,
    lanes: PhantomData<L>,
}

/// What an episode that may be of any length did to a vector of windows.
pub(super) struct Step<L: Lanes> {
    pub(super) window: L,
    pub(super) polled: L,
    pub(super) halted: L::Mask,
    /// Where the window is above zero.
    pub(super) kept: L::Mask,
}

/// Looks at the clock, at the first of which after its window a poll ends.
#[derive(Clone, Copy)]
pub(super) struct Looks<L> {
    step: L,
    /// Divide by the step.
    factor: L,
    bits: L,
    /// From the end of a poll, or from where one would begin, to the halt \[ns\].
    halt_entry: L,
}

impl<L: Lanes> Looks<L> {
    /// As an idle loop takes them.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    pub(super) unsafe fn of(idle_loop: IdleLoop) -> Self {
        let [step, halt_entry] = [idle_loop.poll_step_ns(), idle_loop.halt_entry_ns()];
        let (factor, bits) = reciprocal(step);
        // SAFETY: the caller vouches for it.
        unsafe {
            Looks {
                step: L::splat(step.cast_signed()),
                factor: L::splat(factor.cast_signed()),
                bits: L::splat(bits.cast_signed()),
                halt_entry: L::splat(halt_entry.cast_signed()),
            }
        }
    }

    /// How long a poll of a window lasts; of one below zero, nothing.
    ///
    /// # Safety
    /// As [`Looks::of`].
    #[inline(always)]
    unsafe fn poll(self, window: L) -> L {
        let whole = window.mul_shr(self.factor, self.bits).mul(self.step);
        // SAFETY: the caller vouches for it.
        let zero = unsafe { L::splat(0) };
        whole.add(self.step).replace(self.step.is_zero(), window).keep(window.gt(zero))
    }
}

impl<L: Lanes> Settings<L> {
    /// The settings from lane `at` on.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`, `lanes` settings follow in the group, and the value is not used for longer
    /// than the group lives.
    #[inline(always)]
    pub(super) unsafe fn of(group: &LaneGroup, at: usize, lanes: usize) -> Self {
        assert!(at + lanes <= group.capacity() && group.capacity() <= group.max.capacity());
        let from = |column: &super::Column| column.as_ptr().wrapping_add(at);
        Settings {
            max: from(&group.max),
            grow: from(&group.grow),
            grow_shift: from(&group.grow_shift),
            start: from(&group.start),
            below_floor: from(&group.below_floor),
            shift: from(&group.shift),
            factor: from(&group.factor),
            factor_bits: from(&group.factor_bits),
            lanes: PhantomData,
        }
    }

    /// See [`Lanes::forget`].
    #[inline(always)]
    pub(super) fn forget(self) {
        L::forget(self.max);
    }

    /// Vector `v` of a column.
    ///
    /// # Safety
    /// The column is one of this, and has so many vectors.
    #[inline(always)]
    unsafe fn vector(column: *const i32, v: usize) -> L {
        // SAFETY: the caller vouches for the place, and who made this for the CPU.
        unsafe { L::load(column.add(v * L::WIDTH)) }
    }

    /// # Safety
    /// There are so many vectors, as for all below.
    #[inline(always)]
    pub(super) unsafe fn max(self, v: usize) -> L {
        // SAFETY: the caller vouches for it.
        unsafe { Self::vector(self.max, v) }
    }

    /// # Safety
    /// See [`Settings::max`].
    #[inline(always)]
    pub(super) unsafe fn start(self, v: usize) -> L {
        // SAFETY: the caller vouches for it.
        unsafe { Self::vector(self.start, v) }
    }

    /// A window grown by its factor, which is at least 1, where `at` holds.
    ///
    /// # Safety
    /// See [`Settings::max`].
    #[inline(always)]
    pub(super) unsafe fn grown_where<const GROWTH: u8, const LIFTS: bool>(
        self,
        v: usize,
        window: L,
        at: L::Mask,
    ) -> L {
        // SAFETY: the caller vouches for it.
        unsafe {
            if GROWTH == Growth::Shift as u8 && !LIFTS {
                window.shl_where(at, Self::vector(self.grow_shift, v))
            } else {
                let grown = window.mul(Self::vector(self.grow, v));
                window.raise_where(at, if LIFTS { grown.max(self.start(v)) } else { grown })
            }
        }
    }

    /// A window divided, not yet zero where that is below the floor.
    ///
    /// # Safety
    /// See [`Settings::max`].
    #[inline(always)]
    unsafe fn divided<const BY_SHIFT: bool>(self, v: usize, window: L) -> L {
        // SAFETY: the caller vouches for it.
        unsafe {
            if BY_SHIFT {
                window.shr(Self::vector(self.shift, v))
            } else {
                window.mul_shr(Self::vector(self.factor, v), Self::vector(self.factor_bits, v))
            }
        }
    }

    /// A window below the floor is zero; all others that a rule gives are at least that long. Also returns where it
    /// is not zero.
    ///
    /// # Safety
    /// See [`Settings::max`].
    #[inline(always)]
    unsafe fn floored(self, v: usize, window: L) -> (L, L::Mask) {
        // SAFETY: the caller vouches for it.
        let kept = window.gt(unsafe { Self::vector(self.below_floor, v) });
        (window.keep(kept), kept)
    }

    /// A window that shrinks, and where it is not zero then.
    ///
    /// # Safety
    /// See [`Settings::max`].
    #[inline(always)]
    pub(super) unsafe fn shrunk<const BY_SHIFT: bool>(self, v: usize, window: L) -> (L, L::Mask) {
        // SAFETY: the caller vouches for it.
        unsafe { self.floored(v, self.divided::<BY_SHIFT>(v, window)) }
    }

    /// An episode of any length `x` under windows that are not longer than their maximum. But for [`Way::Plain`], it is
    /// learned for one of length `y` where it halts, which is no shorter; else `y` is `x`. A guest's poll ends at one of the
    /// `looks` with [`Way::Ended`]; its window is below zero where the last poll ran out and the CPU did not halt.
    ///
    /// # Safety
    /// See [`Settings::max`].
    #[inline(always)]
    pub(super) unsafe fn step<const KIND: u8, const WAY: u8, const GROWTH: u8, const SHIFTS: bool>(
        self,
        v: usize,
        x: L,
        y: L,
        window: L,
        looks: Looks<L>,
    ) -> Step<L> {
        let (late, host) = (WAY != Way::Plain as u8, KIND == Kind::Host as u8);
        // SAFETY: the caller vouches for it.
        unsafe {
            let max = self.max(v);
            let ends = WAY == Way::Ended as u8 && !host;
            let poll = if ends { looks.poll(window) } else { window };
            let halted_from = if ends { poll.add(looks.halt_entry) } else { poll };
            let halted = x.gt(halted_from);
            let zero = L::splat(0);
            let window = if ends { window.replace(zero.gt(window), zero.sub(window)) } else { window };
            // Where the window covers the episode `t` is negative, and it neither grows nor shrinks; with a latency
            // `halted` sees to that, and with microseconds, since the division takes `t` for a large number.
            let y = if late { y } else { x };
            // No closure: it would not be compiled for the CPU of the function that calls this.
            macro_rules! if_late {
                ($mask:expr) => {
                    if late { L::both(halted, $mask) } else { $mask }
                };
            }
            let (grows, shrinks);
            if KIND == Kind::GuestMicros as u8 {
                let (factor, bits) = const { reciprocal(1_000) };
                let micros =
                    y.sub(halted_from).mul_shr(L::splat(factor.cast_signed()), L::splat(bits.cast_signed()));
                let t = micros.mul(L::splat(1_000));
                shrinks = L::both(halted, t.gt(max));
                grows = L::without(L::both(halted, t.gt(window)), shrinks);
            } else if !host {
                let t = y.sub(halted_from);
                shrinks = if_late!(t.gt(max));
                grows = L::without(if_late!(t.gt(window)), shrinks);
            } else {
                shrinks = if_late!(y.gt(max));
                grows = L::both(halted, max.gt(y));
            }
            let grown = if GROWTH == Growth::Shift as u8 {
                window.shl(Self::vector(self.grow_shift, v))
            } else {
                window.mul(Self::vector(self.grow, v))
            };
            let grown = grown.max(self.start(v)).min(max);
            let divided = self.divided::<SHIFTS>(v, window);
            let next = if GROWTH == Growth::Any as u8 {
                window.replace(grows, grown).replace(shrinks, divided)
            } else {
                window.lower_where(shrinks, divided).raise_where(grows, grown)
            };
            let (next, kept) = self.floored(v, next);
            let step = Step { window: next, polled: x.min(poll), halted, kept };
            if !ends {
                return step;
            }
            let ran_out = L::without(x.gt(poll), halted);
            let window = next.replace(ran_out, zero.sub(next));
            Step { window, kept: L::without(kept, ran_out), ..step }
        }
    }
}
