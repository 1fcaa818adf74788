//! Lanes that have next to nothing in common.

use super::super::group::LaneGroup;
use super::super::lane::Kind;
use super::super::lanes::Lanes;
use super::super::segment::{Segment, TO_THE_END, Way};
use super::settings::{Looks, Settings};
use super::{Tallies, store, vectors};

/// The lanes may have any maximum each: every episode takes every operation in every lane. `V` vectors at a time.
///
/// Of the host's rule where polls are [`Way::Ended`], the time alone of each episode is known. One that another task cut
/// short halts in all lanes, and polls no longer than the time alone; what a lane learns from it does not change, as the
/// rule looks at the length of the episode.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(in super::super) unsafe fn apart<
    L: Lanes,
    const V: usize,
    const KIND: u8,
    const WAY: u8,
    const GROWTH: u8,
    const SHIFTS: bool,
>(
    segment: Segment<'_>,
    idler: usize,
    group: &mut LaneGroup,
) {
    let (ended, host) = (WAY == Way::Ended as u8, KIND == Kind::Host as u8);
    let (late, contended) = (WAY != Way::Plain as u8, ended && host);
    assert!(!contended || segment.alone.len() == segment.lengths.len());
    let learned = if segment.learned.is_empty() { segment.lengths } else { segment.learned };
    assert!(learned.len() == segment.lengths.len());
    let mut at = 0;
    // What is beyond the last setting only fills vectors.
    while at < group.lanes {
        // SAFETY: the caller vouches for the CPU. There are as many of each column as lengths, as asserted. The
        // settings are used up before the group is changed.
        unsafe {
            let mut q: [L; V] = vectors(group.windows(idler), at);
            let mut tallies = Tallies::new(&q);
            let settings = Settings::<L>::of(group, at, V * L::WIDTH);
            let looks = Looks::of(segment.idle_loop);
            for (episode, &length) in segment.lengths.iter().enumerate() {
                let x = L::splat(length);
                settings.forget();
                let alone = if contended { *segment.alone.get_unchecked(episode) } else { TO_THE_END };
                let cut_short = contended && alone != TO_THE_END;
                tallies.common_halts += u64::from(cut_short);
                let longest_poll = L::splat(alone);
                let y = if late { L::splat(*learned.get_unchecked(episode)) } else { x };
                // One that is cut short is always learned for the longer.
                let outlasting = if late && cut_short { y } else { x };
                for (v, q) in q.iter_mut().enumerate() {
                    let step = settings.step::<KIND, WAY, GROWTH, SHIFTS>(v, outlasting, y, *q, looks);
                    if cut_short {
                        tallies.polled[v] = tallies.polled[v].add(longest_poll.min(*q));
                    } else {
                        tallies.halts[v] = tallies.halts[v].count(step.halted);
                        tallies.polled[v] = tallies.polled[v].add(step.polled);
                    }
                    if ended && !host {
                        let neither = L::without(L::splat(1).gt(*q), step.halted);
                        tallies.neither[v] = tallies.neither[v].count(neither);
                    }
                    tallies.kept[v] = tallies.kept[v].count(step.kept);
                    *q = step.window;
                }
            }
            tallies.common_unpolled += segment.lengths.len() as u64;
            tallies.add_to(group, at, &q);
            store(group.windows(idler), at, q);
        }
        at += V * L::WIDTH;
    }
}
