//! The clock of all events, CLOCK_MONOTONIC.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// The time by the clock of all events, CLOCK_MONOTONIC \[ns\].
pub fn now_ns() -> u64 {
    ns(clock_gettime(ClockId::Monotonic)).unsigned_abs()
}

/// By how much CLOCK_REALTIME is ahead of it \[ns\]: the tightest of a few readings between two others.
pub(crate) fn realtime_offset_ns() -> i64 {
    let reading = || {
        let [before, day, after] =
            [ClockId::Monotonic, ClockId::Realtime, ClockId::Monotonic].map(|clock| ns(clock_gettime(clock)));
        (after - before, day - before - (after - before) / 2)
    };
    let tightest = (0..16).map(|_| reading()).min_by_key(|(width, _)| *width);
    tightest.map_or(0, |(_, offset)| offset)
}

const fn ns(time: Timespec) -> i64 {
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
