//! Lanes with maxima close to each other.

use super::super::group::LaneGroup;
use super::super::lane::Kind;
use super::super::lanes::Lanes;
use super::super::segment::{BLOCK, Segment, Way};
use super::ranges::{Ranges, limits};
use super::settings::{Looks, Settings};
use super::{Tallies, store, vectors};
use crate::idle_loop::IdleLoop;

/// The lanes agree which episodes are small and which are big, and only those between, as long as one of the maxima,
/// take every operation.
///
/// Between two that are not small a window only grows, and need not be cut to the maximum, as no small episode can
/// tell; nor can `start` matter but for windows of zero, which the first small episode lifts to it (`LIFTS` is for
/// settings of which that is not true). Where the factor is a power of two a small episode costs six vector
/// operations.
///
/// Two things are skipped: a block that all windows cover, and what is left of a run of others once all windows are
/// zero, or stay as they are; where maxima differ, up to the next episode between.
///
/// With [`Way::Late`] an episode that halts is learned for a longer one, see [`Segment::learned`].
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(in super::super) unsafe fn together<
    L: Lanes,
    const V: usize,
    const KIND: u8,
    const WAY: u8,
    const GROWTH: u8,
    const LIFTS: bool,
    const SHIFTS: bool,
>(
    segment: Segment<'_>,
    ranges: &Ranges,
    idler: usize,
    group: &mut LaneGroup,
) {
    let (late, guest) = (WAY == Way::Late as u8, KIND == Kind::Guest as u8);
    assert!(group.capacity() == V * L::WIDTH);
    let (lowest, highest) = group.maxima;
    let (_, between) = limits(lowest, highest, guest);
    let is_big = |length: i32, learned: i32| learned > between && (!late || length > highest);
    let lengths = segment.lengths;
    let learned = if late { segment.learned } else { lengths };
    let n = lengths.len();
    assert!(learned.len() == n);
    // SAFETY: the caller vouches for the CPU. The settings are used up before the group is changed.
    unsafe {
        let mut q: [L; V] = vectors(group.windows(idler), 0);
        let mut tallies = Tallies::new(&q);
        let settings = Settings::<L>::of(group, 0, V * L::WIDTH);
        let zero = L::splat(0);
        macro_rules! small {
            ($episode:expr) => {{
                let x = L::splat(*lengths.get_unchecked($episode));
                let y = if late { L::splat(*learned.get_unchecked($episode)) } else { x };
                settings.forget();
                for v in 0..V {
                    let halted = x.gt(q[v]);
                    tallies.polled[v] = tallies.polled[v].add(x.min(q[v]));
                    tallies.halts[v] = tallies.halts[v].count(halted);
                    let mut grows = if guest { y.gt(q[v].add(q[v])) } else { halted };
                    if guest && late {
                        grows = L::both(halted, grows);
                    }
                    q[v] = settings.grown_where::<GROWTH, LIFTS>(v, q[v], grows);
                }
            }};
        }
        let mut i = 0;
        let mut ends = ranges.ends.iter();
        while i < n {
            let Some(&end) = ends.next() else { break };
            let end = (end as usize).min(n);
            if i < end {
                small!(i);
                i += 1;
                if !LIFTS {
                    for v in 0..V {
                        q[v] = q[v].max(settings.start(v));
                    }
                }
                while i < end {
                    let block_end = (i / BLOCK + 1) * BLOCK;
                    if i % BLOCK == 0 && block_end <= end {
                        let longest = L::splat(*segment.block_max.get_unchecked(i / BLOCK));
                        let mut uncovered = zero;
                        for v in 0..V {
                            uncovered = uncovered.count(longest.gt(q[v]));
                        }
                        if uncovered.all_zero() {
                            tallies.common_polled += u64::from(*segment.block_sum.get_unchecked(i / BLOCK));
                            i = block_end;
                            continue;
                        }
                    }
                    let stop = block_end.min(end);
                    while i < stop {
                        small!(i);
                        i += 1;
                    }
                }
            }
            let Some(&end) = ends.next() else { break };
            let end = (end as usize).min(n);
            while i < end {
                let (length, as_learned) = (*lengths.get_unchecked(i), *learned.get_unchecked(i));
                i += 1;
                tallies.common_unpolled += 1;
                settings.forget();
                if is_big(length, as_learned) {
                    tallies.common_halts += 1;
                    let (mut any, mut changed) = (zero, zero);
                    for v in 0..V {
                        let p = q[v].min(settings.max(v));
                        tallies.polled[v] = tallies.polled[v].add(p);
                        let (shrunk, kept) = settings.shrunk::<SHIFTS>(v, p);
                        tallies.kept[v] = tallies.kept[v].count(kept);
                        any = any.or(shrunk);
                        changed = changed.or(shrunk.xor(p));
                        q[v] = shrunk;
                    }
                    if i == end {
                        break;
                    }
                    let zeros = any.all_zero();
                    if !zeros && !changed.all_zero() {
                        continue;
                    }
                    // What is between grows no window of zero where all have the same maximum.
                    let to = if ranges.between == 0 || zeros && lowest == highest {
                        end
                    } else {
                        let rest = lengths[i..end].iter().zip(&learned[i..end]);
                        i + rest.take_while(|&(&length, &learned)| is_big(length, learned)).count()
                    };
                    let times = to - i;
                    tallies.common_halts += times as u64;
                    tallies.common_unpolled += times as u64;
                    if !zeros {
                        let times = L::splat(i32::try_from(times).unwrap_or(i32::MAX));
                        for v in 0..V {
                            tallies.polled[v] = tallies.polled[v].add(q[v].mul(times));
                            tallies.kept[v] = tallies.kept[v].add_where(q[v].gt(zero), times);
                        }
                    }
                    i = to;
                } else {
                    let (x, y) = (L::splat(length), L::splat(as_learned));
                    for v in 0..V {
                        let p = q[v].min(settings.max(v));
                        let step = settings.step::<KIND, WAY, GROWTH, SHIFTS>(
                            v,
                            x,
                            y,
                            p,
                            Looks::of(IdleLoop::UNKNOWN),
                        );
                        tallies.halts[v] = tallies.halts[v].count(step.halted);
                        tallies.polled[v] = tallies.polled[v].add(step.polled);
                        tallies.kept[v] = tallies.kept[v].count(step.kept);
                        q[v] = step.window;
                    }
                }
            }
        }
        for v in 0..V {
            q[v] = q[v].min(settings.max(v));
        }
        tallies.add_to(group, 0, &q);
        store(group.windows(idler), 0, q);
    }
}
