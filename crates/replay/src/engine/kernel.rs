//! The inner loops: a strip of episodes through the lanes of a lot.
//!
//! With *x* the length of an episode and *q* the window, both kernels count, per lane, *x* > *q* (halts), min(*x*, *q*)
//! (time polled) and *q* = 0 (episodes that began without a poll), in 32 bits; the caller keeps strips so short that
//! the sum cannot leave them.
//!
//! Then the window changes. The host shrinks it if *x* > max, and grows it if *q* < *x* < max. The guest counts only
//! *t* = *x* - *q*, and shrinks if *t* > max, and grows if *q* < *t* ≤ max.

// `v` numbers vectors in registers and in memory alike.
#![allow(clippy::needless_range_loop)]

use super::lane::reciprocal;
use super::lanes::Lanes;
use super::lot::{Column, Lot};
use super::strip::{BLOCK, Strip, Turns};

/// `V` vectors of a column.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn vectors<L: Lanes, const V: usize>(column: &Column) -> [L; V] {
    assert!(column.capacity() >= V * L::WIDTH);
    // SAFETY: the column is long enough, as asserted.
    std::array::from_fn(|v| unsafe { L::load(column.as_ptr().add(v * L::WIDTH)) })
}

/// Adds `V` vectors, read as unsigned numbers, and `common` to what was counted.
#[inline(always)]
fn add_up<L: Lanes, const V: usize>(counts: &mut [u64], vectors: [L; V], common: u64) {
    for (counts, vector) in counts.chunks_exact_mut(L::WIDTH).zip(vectors) {
        let mut numbers = [0u32; 16];
        const { assert!(L::WIDTH <= 16) }
        // SAFETY: there is room for sixteen.
        unsafe { vector.store(numbers.as_mut_ptr().cast()) };
        for (count, number) in counts.iter_mut().zip(numbers) {
            *count += common + u64::from(number);
        }
    }
}

/// The lanes may have any maximum each. About 18 vector operations for an episode and a vector of settings.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn apart<
    L: Lanes,
    const V: usize,
    const GUEST: bool,
    const MICROS: bool,
    const GROWS_BY_SHIFT: bool,
    const SHIFTS: bool,
>(
    strip: Strip<'_>,
    idler: usize,
    lot: &mut Lot,
) {
    let capacity = V * L::WIDTH;
    assert!(lot.capacity() == capacity && lot.max.capacity() >= capacity);
    // SAFETY: the caller vouches for the CPU. All columns of a lot are of one length, which is asserted above.
    unsafe {
        let mut q: [L; V] = vectors(lot.windows(idler));
        let zero = L::splat(0);
        let (mut polled, mut halts, mut unpolled) = ([zero; V], [zero; V], [zero; V]);
        let (max, grow, start) = (lot.max.as_ptr(), lot.grow.as_ptr(), lot.start.as_ptr());
        let (grow_shift, floor, shift) = (lot.grow_shift.as_ptr(), lot.floor.as_ptr(), lot.shift.as_ptr());
        let (factor, factor_bits) = (lot.factor.as_ptr(), lot.factor_bits.as_ptr());
        let (micros, micros_bits) = const { reciprocal(1_000) };
        for &length in strip.lengths {
            let x = L::splat(length);
            L::forget(max);
            L::forget(shift);
            for v in 0..V {
                let at = v * L::WIDTH;
                let max = L::load(max.add(at));
                let halted = x.gt(q[v]);
                halts[v] = halts[v].count(halted);
                polled[v] = polled[v].add(x.min(q[v]));
                unpolled[v] = unpolled[v].count(q[v].is_zero());
                // Where the window covers the episode `t` is negative, and it neither grows nor shrinks; with
                // microseconds `halted` sees to that, since the division takes `t` for a large number.
                let (t, grows, shrinks, stays);
                if MICROS {
                    let micros = x
                        .sub(q[v])
                        .mul_shr(L::splat(micros.cast_signed()), L::splat(micros_bits.cast_signed()));
                    t = micros.mul(L::splat(1_000));
                    shrinks = L::both(halted, t.gt(max));
                    grows = L::without(L::both(halted, t.gt(q[v])), shrinks);
                    stays = L::without(L::splat(0).is_zero(), shrinks);
                } else if GUEST {
                    t = x.sub(q[v]);
                    shrinks = t.gt(max);
                    stays = max.add(L::splat(1)).gt(t);
                    grows = L::both(t.gt(q[v]), stays);
                } else {
                    shrinks = x.gt(max);
                    stays = max.add(L::splat(1)).gt(x);
                    grows = L::both(halted, max.gt(x));
                }
                let grown = if GROWS_BY_SHIFT {
                    q[v].shl(L::load(grow_shift.add(at)))
                } else {
                    q[v].mul(L::load(grow.add(at)))
                };
                let grown = grown.max(L::load(start.add(at))).min(max);
                let shrunk = if SHIFTS {
                    q[v].shr(L::load(shift.add(at)))
                } else {
                    q[v].mul_shr(L::load(factor.add(at)), L::load(factor_bits.add(at)))
                };
                let shrunk = shrunk.clear(L::load(floor.add(at)).gt(shrunk));
                q[v] = if GROWS_BY_SHIFT {
                    q[v].raise_where(grows, grown).lower_unless(stays, shrunk)
                } else {
                    q[v].replace(grows, grown).replace(shrinks, shrunk)
                };
            }
        }
        store(lot.windows(idler), q);
        add_up(&mut lot.polled_ns, polled, 0);
        add_up(&mut lot.halts, halts, 0);
        add_up(&mut lot.unpolled, unpolled, 0);
    }
}

/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
unsafe fn store<L: Lanes, const V: usize>(column: &mut Column, vectors: [L; V]) {
    assert!(column.capacity() >= V * L::WIDTH);
    let to = column.as_mut_ptr();
    for (v, vector) in vectors.into_iter().enumerate() {
        // SAFETY: the column is long enough, as asserted.
        unsafe { vector.store(to.add(v * L::WIDTH)) };
    }
}

/// The longest small episode, and the longest that is not big, under a maximum.
///
/// Small ones shrink no window, and big ones grow none and outlast all. Those between are, for the host, as long as
/// the maximum, and for the guest up to twice as long: a big one outlasts any window by more than the maximum.
pub(super) const fn limits(max: i32, guest: bool) -> (i32, i32) {
    if guest { (max, 2 * max) } else { (max - 1, max) }
}

/// Finds the runs of small episodes and of others.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn find_turns<L: Lanes>(lengths: &[i32], small: i32, between: i32, turns: &mut Turns) {
    turns.ends.clear();
    // SAFETY: the caller vouches for the CPU; each load reads `WIDTH` numbers of a slice of so many.
    unsafe {
        let (vector_small, vector_between) = (L::splat(small), L::splat(between));
        let (mut bits_before, mut between_or_big, mut big) = (0u64, 0u32, 0u32);
        for (word, lengths) in lengths.chunks(64).enumerate() {
            let mut bits = 0u64;
            if lengths.len() == 64 {
                for (vector, lengths) in lengths.chunks_exact(L::WIDTH).enumerate() {
                    let x = L::load(lengths.as_ptr());
                    bits |= L::bits(x.gt(vector_small)) << (vector * L::WIDTH);
                    big += L::bits(x.gt(vector_between)).count_ones();
                }
            } else {
                for (i, &length) in lengths.iter().enumerate() {
                    bits |= u64::from(length > small) << i;
                    big += u32::from(length > between);
                }
                // What is beyond the end is as the last one: no turn.
                if bits >> (lengths.len() - 1) & 1 == 1 {
                    bits |= u64::MAX << (lengths.len() - 1);
                }
            }
            let inside = if lengths.len() == 64 { u64::MAX } else { (1 << lengths.len()) - 1 };
            between_or_big += (bits & inside).count_ones();
            let mut turning = bits ^ (bits << 1 | bits_before);
            while turning != 0 {
                turns.ends.push(64 * as_u32(word) + turning.trailing_zeros());
                turning &= turning - 1;
            }
            bits_before = bits >> 63;
        }
        turns.ends.push(as_u32(lengths.len()));
        turns.any_between = between_or_big != big;
    }
}

/// A place in a strip, which is far below 2^32.
#[inline(always)]
fn as_u32(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// All lanes have the same maximum, so that all agree which episodes are small and which are big.
///
/// Between two that are not small a window only grows, and need not be cut to the maximum, as no small episode can
/// tell; nor can `start` matter but for windows of zero, which the first small episode lifts to it (`LIFTS` is for
/// settings of which that is not true). Where the factor is a power of two a small
/// episode costs six vector operations.
///
/// Two things are skipped: a block that all windows cover, and what is left of a run of others once all windows are
/// zero, or stay as they are.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn together<
    L,
    const V: usize,
    const GUEST: bool,
    const GROWS_BY_SHIFT: bool,
    const LIFTS: bool,
    const SHIFTS: bool,
>(
    strip: Strip<'_>,
    turns: &Turns,
    max: i32,
    idler: usize,
    lot: &mut Lot,
) where
    L: Lanes,
{
    let capacity = V * L::WIDTH;
    assert!(lot.capacity() == capacity && lot.max.capacity() >= capacity);
    let (_, between) = limits(max, GUEST);
    let lengths = strip.lengths;
    let n = lengths.len();
    // SAFETY: the caller vouches for the CPU. All columns of a lot are of one length, which is asserted above.
    unsafe {
        let mut q: [L; V] = vectors(lot.windows(idler));
        let zero = L::splat(0);
        let (mut polled, mut halts) = ([zero; V], [zero; V]);
        let mut unpolled = Rare::<L, V>::new();
        let (mut common_polled, mut common_halts, mut common_unpolled) = (0u64, 0u64, 0u64);
        let (grow, start, floor) = (lot.grow.as_ptr(), lot.start.as_ptr(), lot.floor.as_ptr());
        let grow_shift = lot.grow_shift.as_ptr();
        let (shift, factor, factor_bits) =
            (lot.shift.as_ptr(), lot.factor.as_ptr(), lot.factor_bits.as_ptr());
        macro_rules! shrunk {
            ($v:expr, $p:expr) => {{
                let at = $v * L::WIDTH;
                let shrunk = if SHIFTS {
                    $p.shr(L::load(shift.add(at)))
                } else {
                    $p.mul_shr(L::load(factor.add(at)), L::load(factor_bits.add(at)))
                };
                shrunk.clear(L::load(floor.add(at)).gt(shrunk))
            }};
        }
        macro_rules! small {
            ($length:expr) => {{
                let x = L::splat($length);
                L::forget(grow);
                for v in 0..V {
                    let halted = x.gt(q[v]);
                    polled[v] = polled[v].add(x.min(q[v]));
                    halts[v] = halts[v].count(halted);
                    let at = v * L::WIDTH;
                    let grows = if GUEST { x.gt(q[v].add(q[v])) } else { halted };
                    q[v] = if GROWS_BY_SHIFT {
                        q[v].shl_where(grows, L::load(grow_shift.add(at)))
                    } else {
                        let grown = q[v].mul(L::load(grow.add(at)));
                        let grown = if LIFTS { grown.max(L::load(start.add(at))) } else { grown };
                        q[v].replace(grows, grown)
                    };
                }
            }};
        }
        let mut i = 0;
        let mut ends = turns.ends.iter();
        while i < n {
            let Some(&end) = ends.next() else { break };
            let end = (end as usize).min(n);
            if i < end {
                for v in 0..V {
                    unpolled.count(v, q[v].is_zero());
                }
                small!(*lengths.get_unchecked(i));
                i += 1;
                if !LIFTS {
                    for v in 0..V {
                        q[v] = q[v].max(L::load(start.add(v * L::WIDTH)));
                    }
                }
                while i < end {
                    let block_end = (i / BLOCK + 1) * BLOCK;
                    if i % BLOCK == 0 && block_end <= end {
                        let longest = L::splat(*strip.block_max.get_unchecked(i / BLOCK));
                        let mut uncovered = zero;
                        for v in 0..V {
                            uncovered = uncovered.count(longest.gt(q[v]));
                        }
                        if uncovered.all_zero() {
                            common_polled += u64::from(*strip.block_sum.get_unchecked(i / BLOCK));
                            i = block_end;
                            continue;
                        }
                    }
                    let stop = block_end.min(end);
                    while i < stop {
                        small!(*lengths.get_unchecked(i));
                        i += 1;
                    }
                }
            }
            let Some(&end) = ends.next() else { break };
            let end = (end as usize).min(n);
            let max = L::splat(max);
            while i < end {
                let length = *lengths.get_unchecked(i);
                i += 1;
                L::forget(shift);
                if length > between {
                    common_halts += 1;
                    let (mut any, mut changed) = (zero, zero);
                    for v in 0..V {
                        let p = q[v].min(max);
                        unpolled.count(v, p.is_zero());
                        polled[v] = polled[v].add(p);
                        let h = shrunk!(v, p);
                        any = any.or(h);
                        changed = changed.or(h.xor(p));
                        q[v] = h;
                    }
                    if i == end {
                        break;
                    }
                    let left = end - i;
                    if any.all_zero() {
                        common_halts += left as u64;
                        common_unpolled += left as u64;
                        i = end;
                    } else if !turns.any_between && changed.all_zero() {
                        common_halts += left as u64;
                        let times = L::splat(as_u32(left).cast_signed());
                        for v in 0..V {
                            polled[v] = polled[v].add(q[v].mul(times));
                            let so_far = unpolled.get(v);
                            unpolled.set(v, so_far.add_where(q[v].is_zero(), times));
                        }
                        i = end;
                    }
                } else {
                    let x = L::splat(length);
                    for v in 0..V {
                        let p = q[v].min(max);
                        unpolled.count(v, p.is_zero());
                        halts[v] = halts[v].count(x.gt(p));
                        polled[v] = polled[v].add(x.min(p));
                        q[v] = p;
                        if GUEST {
                            let at = v * L::WIDTH;
                            let t = x.sub(p);
                            let shrinks = t.gt(max);
                            let grows = L::without(t.gt(p), shrinks);
                            let grown = p.mul(L::load(grow.add(at))).max(L::load(start.add(at))).min(max);
                            q[v] = p.replace(grows, grown).replace(shrinks, shrunk!(v, p));
                        }
                    }
                }
            }
        }
        let max = L::splat(max);
        for v in 0..V {
            q[v] = q[v].min(max);
        }
        store(lot.windows(idler), q);
        add_up(&mut lot.polled_ns, polled, common_polled);
        add_up(&mut lot.halts, halts, common_halts);
        add_up(&mut lot.unpolled, unpolled.all(), common_unpolled);
    }
}

/// Counters that are seldom used, kept in memory, so that the registers are for the others.
struct Rare<L, const V: usize>([L; V]);

impl<L: Lanes, const V: usize> Rare<L, V> {
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn new() -> Self {
        // SAFETY: the caller vouches for the CPU.
        Rare([unsafe { L::splat(0) }; V])
    }
    #[inline(always)]
    fn count(&mut self, v: usize, at: L::Mask) {
        self.0[v] = self.0[v].count(at);
    }
    #[inline(always)]
    fn get(&self, v: usize) -> L {
        self.0[v]
    }
    #[inline(always)]
    fn set(&mut self, v: usize, to: L) {
        self.0[v] = to;
    }
    #[inline(always)]
    fn all(&self) -> [L; V] {
        self.0
    }
}
