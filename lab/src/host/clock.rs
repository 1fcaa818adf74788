//! The time-stamp counter: read in 10 ns on every core, and by a guest as by its host.
//!
//! It is a clock only where it is invariant: of one rate whatever the CPU does, and the same on all cores.
//! [`TscClock::calibrate`] finds the rate and says how far both can be relied on.

use dwell_machine::{Machine, Sysroot};
use dwell_policy::Nanos;
use raw_cpuid::cpuid;
use rustix::time::{ClockId, Timespec};
use std::arch::x86_64::{_mm_lfence, _rdtsc};
use std::ops::{Add, Sub};
use std::time::Duration;

/// Cycles of the time-stamp counter since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tsc(pub u64);

/// A number of cycles of the time-stamp counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub u64);

impl Tsc {
    /// Now. The CPU may read it some instructions early or late.
    #[inline]
    #[allow(unsafe_code)]
    pub fn now() -> Tsc {
        // SAFETY: RDTSC reads a register. CR4.TSD, which would forbid it, is set only by prctl(PR_SET_TSC).
        Tsc(unsafe { _rdtsc() })
    }

    /// Now, after everything before it was done and before anything after it begins.
    #[inline]
    #[allow(unsafe_code)]
    pub fn now_in_order() -> Tsc {
        // SAFETY: LFENCE is of SSE2, which every x86-64 has; it orders and changes nothing.
        unsafe { _mm_lfence() };
        let now = Tsc::now();
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        now
    }

    /// From `earlier` until then; zero where that is later.
    #[must_use]
    pub const fn since(self, earlier: Tsc) -> Ticks {
        Ticks(self.0.saturating_sub(earlier.0))
    }

    /// Spins until then; returns the first time read that is not before it.
    #[inline]
    pub fn spin_until(self) -> Tsc {
        loop {
            let now = Tsc::now();
            if now >= self {
                return now;
            }
            std::hint::spin_loop();
        }
    }
}

impl Add<Ticks> for Tsc {
    type Output = Tsc;

    /// Saturates, at 4 GHz after 146 years.
    fn add(self, ticks: Ticks) -> Tsc {
        Tsc(self.0.saturating_add(ticks.0))
    }
}

impl Sub for Tsc {
    type Output = Ticks;

    /// As [`since`](Tsc::since).
    fn sub(self, earlier: Tsc) -> Ticks {
        self.since(earlier)
    }
}

/// A time that is not negative; beyond 584 years it saturates.
fn nanos(time: Timespec) -> Nanos {
    let (seconds, rest) = (time.tv_sec.max(0).unsigned_abs(), time.tv_nsec.max(0).unsigned_abs());
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

pub fn monotonic() -> Nanos {
    nanos(rustix::time::clock_gettime(ClockId::Monotonic))
}

/// Cycles of the time-stamp counter in a second; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TscHz(std::num::NonZeroU64);

impl TscHz {
    /// This rate; `None` for 0.
    pub const fn new(hz: u64) -> Option<TscHz> {
        match std::num::NonZeroU64::new(hz) {
            Some(hz) => Some(TscHz(hz)),
            None => None,
        }
    }

    /// The result of `KVM_GET_TSC_KHZ`; `None` for 0, which means not known.
    pub const fn from_khz(khz: u32) -> Option<TscHz> {
        TscHz::new(khz as u64 * 1_000)
    }

    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// So many cycles in time, rounded to the nearest ns; saturates.
    pub fn nanos(self, ticks: Ticks) -> Nanos {
        Nanos(scale(ticks.0, 1_000_000_000, self.get()))
    }

    /// So much time in cycles, rounded to the nearest; saturates.
    pub fn ticks(self, time: Nanos) -> Ticks {
        Ticks(scale(time.get(), self.get(), 1_000_000_000))
    }

    /// By which share two rates differ.
    pub fn difference(self, other: TscHz) -> f64 {
        (self.get() as f64 / other.get() as f64 - 1.0).abs()
    }
}

/// `value × up / down`, rounded; `down` is not 0.
fn scale(value: u64, up: u64, down: u64) -> u64 {
    let exact = (u128::from(value) * u128::from(up) + u128::from(down / 2)) / u128::from(down);
    u64::try_from(exact).unwrap_or(u64::MAX)
}

/// Why the time-stamp counter cannot be used as a clock here.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClockError {
    #[error(
        "the time-stamp counter is not invariant: {first} Hz, then {second} Hz against CLOCK_MONOTONIC_RAW; nothing can \
         be timed with it"
    )]
    Varies {
        /// Measured first.
        first: u64,
        second: u64,
    },
    /// KVM reports another rate than the one measured.
    #[error("KVM reports a time-stamp counter of {kvm} Hz, but {measured} Hz were measured")]
    Contradiction {
        /// From `KVM_GET_TSC_KHZ`.
        kvm: u64,
        measured: u64,
    },
}

/// From here on two measurements of one rate differ. Forty of a tenth of a second, on two cores with other work beside,
/// were within 0.1 ppm of each other, and one that is interrupted at the wrong moment may be off by a thousandfold; the
/// smallest step of a CPU's clock, 100 MHz of 4 GHz, is 2.5 %.
const TOLERANCE: f64 = 0.005;

/// The rate of the time-stamp counter and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TscClock {
    /// The rate to convert with: KVM's if it reports one, since guests are given that rate, else the one measured.
    pub hz: TscHz,
    /// The rate measured against CLOCK_MONOTONIC_RAW.
    pub measured: TscHz,
    /// The CPU says that its counter is invariant (CPUID 80000007h, EDX bit 8). Hypervisors may hide that.
    pub declared_invariant: bool,
    /// The kernel keeps time with it, and so found it to be the same on all cores.
    pub kernel_relies_on_it: bool,
}

impl TscClock {
    /// Measures the rate twice, each time for half of `span` (a tenth of a second is enough), and compares
    /// both with each other and with the rate that KVM reports.
    ///
    /// # Errors
    /// If these differ by more than 0.5 %.
    pub fn calibrate(kvm: Option<TscHz>, span: Duration) -> Result<TscClock, ClockError> {
        let marks = [Mark::now(), Mark::after(span / 2), Mark::after(span / 2)];
        let declared_invariant = invariant();
        let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let kernel_relies_on_it = Sysroot::of_this_machine().text(source).is_some_and(|name| name == "tsc");
        let (hz, measured) = judge(marks, kvm)?;
        Ok(TscClock { hz, measured, declared_invariant, kernel_relies_on_it })
    }

    /// Whether there is reason to believe that the counter is invariant and the same on all cores.
    pub fn reliable(&self) -> bool {
        self.declared_invariant || self.kernel_relies_on_it
    }

    /// From `begin` to `end`; zero where that is earlier.
    pub fn between(&self, begin: Tsc, end: Tsc) -> Nanos {
        self.hz.nanos(end.since(begin))
    }

    /// `time` after `begin`.
    pub fn after(&self, begin: Tsc, time: Nanos) -> Tsc {
        begin + self.hz.ticks(time)
    }
}

/// The rate to use and the one measured.
fn judge([begin, middle, end]: [Mark; 3], kvm: Option<TscHz>) -> Result<(TscHz, TscHz), ClockError> {
    let rate = |from: Mark, to: Mark| {
        let ns = to.raw.saturating_sub(from.raw).get().max(1);
        TscHz::new(scale(to.tsc.since(from.tsc).0, 1_000_000_000, ns))
            .unwrap_or(TscHz(std::num::NonZeroU64::MIN))
    };
    let (first, second, measured) = (rate(begin, middle), rate(middle, end), rate(begin, end));
    if first.difference(second) > TOLERANCE {
        return Err(ClockError::Varies { first: first.get(), second: second.get() });
    }
    match kvm {
        Some(kvm) if kvm.difference(measured) > TOLERANCE => {
            Err(ClockError::Contradiction { kvm: kvm.get(), measured: measured.get() })
        }
        _ => Ok((kvm.unwrap_or(measured), measured)),
    }
}

fn invariant() -> bool {
    const EXTENDED: u32 = 0x8000_0000;
    const POWER: u32 = 0x8000_0007;
    cpuid!(EXTENDED).eax >= POWER && cpuid!(POWER).edx & (1 << 8) != 0
}

/// One moment by both clocks.
#[derive(Clone, Copy, Debug)]
struct Mark {
    tsc: Tsc,
    raw: Nanos,
}

impl Mark {
    /// Of ten readings the one that took least: between the other clocks' readings the thread may have been
    /// interrupted.
    fn now() -> Mark {
        let read = || {
            let before = Tsc::now_in_order();
            let raw = nanos(rustix::time::clock_gettime(ClockId::MonotonicRaw));
            let took = Tsc::now_in_order().since(before);
            (took, Mark { tsc: before + Ticks(took.0 / 2), raw })
        };
        let first = read();
        (0..9).map(|_| read()).fold(first, |best, next| if next.0 < best.0 { next } else { best }).1
    }

    fn after(span: Duration) -> Mark {
        std::thread::sleep(span);
        Mark::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Instant;

    fn hz(hz: u64) -> TscHz {
        TscHz::new(hz).unwrap()
    }

    #[test]
    fn this_machines_counter_keeps_time() {
        let clock = TscClock::calibrate(None, Duration::from_millis(100)).unwrap();
        let (begin, began) = (Tsc::now(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let (end, took) = (Tsc::now(), began.elapsed());
        let measured = clock.between(begin, end).get() as f64;
        assert!((measured / took.as_nanos() as f64 - 1.0).abs() < 0.01, "{measured} {took:?}");
        let told = TscClock::calibrate(Some(clock.measured), Duration::from_millis(100)).unwrap();
        assert_eq!(told.hz, clock.measured);
    }

    #[test]
    fn spinning_ends_not_before_its_time() {
        let until = Tsc::now() + Ticks(100_000);
        assert!(until.spin_until() >= until);
        assert!(Tsc::now_in_order() >= until);
        let past = Tsc(0).spin_until();
        assert!(past > until);
    }

    #[test]
    fn a_counter_that_changes_its_rate_or_contradicts_kvm_is_refused() {
        let mark = |tsc, raw| Mark { tsc: Tsc(tsc), raw: Nanos(raw) };
        let steady = [mark(5, 0), mark(100_000_005, 50_000_000), mark(200_000_005, 100_000_000)];
        assert_eq!(judge(steady, None), Ok((hz(2_000_000_000), hz(2_000_000_000))));
        assert_eq!(judge(steady, TscHz::from_khz(2_001_000)), Ok((hz(2_001_000_000), hz(2_000_000_000))));
        assert!(matches!(judge(steady, TscHz::from_khz(3_000_000)), Err(ClockError::Contradiction { .. })));
        let slower = [mark(0, 0), mark(100_000_000, 50_000_000), mark(190_000_000, 100_000_000)];
        assert!(matches!(judge(slower, None), Err(ClockError::Varies { .. })));
        let stopped = [mark(7, 0), mark(7, 0), mark(7, 0)];
        assert!(judge(stopped, TscHz::from_khz(1)).is_err());
    }

    #[test]
    fn conversions_round_and_saturate() {
        assert_eq!(TscHz::from_khz(0), None);
        assert_eq!(hz(3_000_000_000).nanos(Ticks(5)), Nanos(2));
        assert_eq!(hz(3_000_000_000).ticks(Nanos(2)), Ticks(6));
        assert_eq!(hz(1).nanos(Ticks(u64::MAX)), Nanos(u64::MAX));
        assert_eq!(Tsc(3) - Tsc(5), Ticks(0));
        assert_eq!(Tsc(u64::MAX) + Ticks(1), Tsc(u64::MAX));
    }

    proptest! {
        #[test]
        fn time_survives_the_way_there_and_back(ns in 0u64..1 << 50, rate in 1_000_000_000u64..6_000_000_000) {
            let rate = hz(rate);
            prop_assert!(rate.nanos(rate.ticks(Nanos(ns))).get().abs_diff(ns) <= 1);
        }
    }
}
