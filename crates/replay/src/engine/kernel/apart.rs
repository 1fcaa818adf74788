//! Lanes that have next to nothing in common.

use super::super::lanes::Lanes;
use super::super::lot::Lot;
use super::super::strip::Strip;
use super::settings::Settings;
use super::{Tallies, store, vectors};

/// The lanes may have any maximum each: every episode asks everything of every lane. `V` vectors at a time.
///
/// # Safety
/// The CPU has the instructions of `L`.
#[inline(always)]
pub(in super::super) unsafe fn apart<
    L: Lanes,
    const V: usize,
    const GUEST: bool,
    const MICROS: bool,
    const GROWS_BY_SHIFT: bool,
    const RAISES: bool,
    const SHIFTS: bool,
>(
    strip: Strip<'_>,
    idler: usize,
    lot: &mut Lot,
) {
    let mut at = 0;
    // What is beyond the last setting only fills vectors.
    while at < lot.lanes() {
        // SAFETY: the caller vouches for the CPU. The settings are used up before the lot is changed.
        unsafe {
            let mut q: [L; V] = vectors(lot.windows(idler), at);
            let mut tallies = Tallies::new(&q);
            let settings = Settings::<L>::of(lot, at, V * L::WIDTH);
            for &length in strip.lengths {
                let x = L::splat(length);
                settings.forget();
                for (v, q) in q.iter_mut().enumerate() {
                    let step = settings.step::<GUEST, MICROS, GROWS_BY_SHIFT, RAISES, SHIFTS>(v, x, *q);
                    tallies.halts[v] = tallies.halts[v].count(step.halted);
                    tallies.polled[v] = tallies.polled[v].add(step.polled);
                    tallies.kept[v] = tallies.kept[v].count(step.kept);
                    *q = step.window;
                }
            }
            tallies.common_unpolled += strip.lengths.len() as u64;
            tallies.add_to(lot, at, &q);
            store(lot.windows(idler), at, q);
        }
        at += V * L::WIDTH;
    }
}
