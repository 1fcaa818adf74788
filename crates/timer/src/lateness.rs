//! How late timers are, and what an advance costs: fixed, off or adaptive.
//!
//! From how late each timer was under the recorded advance follows how late it is without one; a replay gives
//! it another advance, by the model of its tuning. The recorded advance itself is replayed from the vCPU's
//! beginning, as if the recording began with it: the first timers of a recording of a running VM are off by
//! what it had learnt.

use dwell_policy::timer::{Advance, Delay, GuestTsc, Revision};
use dwell_recording::Clock;
use dwell_recording::timer::{Fire, TimerRecording};
use dwell_stats::whole::whole;
use dwell_stats::{Bucket, LogHistogram, Resolution};
use serde::Serialize;
use std::collections::BTreeMap;

/// An advance and what it comes to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Late {
    /// `adaptive`, `off` or nanoseconds.
    pub advance: String,
    /// Timers whose lateness was recorded.
    pub timers: u64,
    /// Mean time from the deadline to the entry into the guest, those that are early counted as 0 \[ns\].
    pub mean_ns: f64,
    /// Of 100 timers, 99 are at most so late \[ns\].
    pub p99_ns: f64,
    /// Mean time that KVM spins for the deadline in the vCPU's thread; for a posted timer another CPU does \[ns\].
    pub mean_spin_ns: f64,
    /// That time for the whole recording \[ns\].
    pub spin_ns: f64,
}

impl Late {
    /// What the guest loses of a timer: the time that it is late, and the time that KVM spins in its place \[ns\].
    pub fn lost_ns(&self) -> f64 {
        self.mean_ns + self.mean_spin_ns
    }
}

/// Less is not worth a change, of [`Late::lost_ns`]: 100 ns, about what KVM's own tuning ignores, and a tenth.
const LEAST_GAIN_NS: f64 = 100.0;
const LEAST_GAIN_SHARE: f64 = 0.1;

/// The advance to change to, by its place; `None` to leave the first, which is that in force.
pub fn better(advances: &[Late]) -> Option<usize> {
    let in_force = advances.first()?.lost_ns();
    let all = advances.iter().enumerate();
    let (best, late) = all.min_by(|(_, one), (_, other)| one.lost_ns().total_cmp(&other.lost_ns()))?;
    let gain = in_force - late.lost_ns();
    (gain >= LEAST_GAIN_NS && gain >= LEAST_GAIN_SHARE * in_force).then_some(best)
}

/// How long what follows a timer's time took, in buckets that are not empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Delays {
    /// From when an hrtimer was set to fire until it fired; empty where the recording's clock is not that of hrtimers.
    pub fired: Vec<Bucket>,
    /// From when a timer fired until the guest was entered.
    pub entered: Vec<Bucket>,
}

/// The delays of a recording.
pub fn delays(recording: &TimerRecording) -> Delays {
    let same_clock = recording.metadata.clock == Clock::Monotonic;
    let (mut fired, mut entered) =
        (LogHistogram::new(Resolution::Octave), LogHistogram::new(Resolution::Octave));
    for timer in &recording.rows.timers {
        if let Some((at, set_to)) = timer.fired_ns.zip(timer.expires_ns).filter(|_| same_clock) {
            fired.add(at.saturating_sub(set_to));
        }
        if let Some((at, fired_ns)) = timer.entered_ns.zip(timer.fired_ns) {
            entered.add(at.saturating_sub(fired_ns));
        }
    }
    Delays { fired: fired.buckets().collect(), entered: entered.buckets().collect() }
}

pub fn words(advance: Advance) -> String {
    match (advance.is_adaptive(), advance.ns()) {
        (true, _) => "adaptive".to_owned(),
        (false, 0) => "off".to_owned(),
        (false, ns) => format!("{ns} ns"),
    }
}

/// A deadline that is far from both ends of 64 bits.
const DEADLINE: u64 = 1 << 62;

/// Replays each advance over the timers whose lateness was recorded; `None` if there are none. `khz`: of the
/// guest's TSC.
pub fn replay(
    recording: &TimerRecording,
    revision: Revision,
    khz: u32,
    recorded: Advance,
    advances: &[Advance],
) -> Option<Vec<Late>> {
    let tsc = GuestTsc::new(khz);
    let ns = |cycles: f64| cycles * 1e6 / f64::from(khz.max(1));
    // Without an advance, per vCPU [cycles], and whether the vCPU's thread does the waiting.
    let mut without: BTreeMap<u32, (Advance, Vec<(i64, bool)>)> = BTreeMap::new();
    for timer in &recording.rows.timers {
        let Some(late) = timer.late_tsc else { continue };
        let (advance, all) = without.entry(timer.vcpu).or_insert_with(|| (recorded, vec![]));
        all.push((late.saturating_add(early_by(&tsc, *advance)), timer.fire != Some(Fire::Posted)));
        wait(advance, revision, &tsc, late);
    }
    let timers: u64 = without.values().map(|(_, all)| all.len() as u64).sum();
    if timers == 0 || khz == 0 {
        return None;
    }
    let of = |candidate: &Advance| {
        let (mut late_ns, mut spin_ns) = (vec![], 0.0);
        for (_, all) in without.values() {
            let mut advance = *candidate;
            for (late, waits) in all {
                let late = late.saturating_sub(early_by(&tsc, advance));
                spin_ns += match wait(&mut advance, revision, &tsc, late).filter(|_| *waits) {
                    Some(Delay::Cycles(cycles)) => ns(cycles as f64),
                    Some(Delay::Nanos(ns)) => f64::from(ns),
                    None => 0.0,
                };
                late_ns.push(ns(late.max(0) as f64));
            }
        }
        let mut histogram = LogHistogram::new(Resolution::Thousandth);
        // Not negative, and at most 2^63 cycles.
        late_ns.iter().for_each(|ns| histogram.add(whole(*ns)));
        Late {
            advance: words(*candidate),
            timers,
            mean_ns: late_ns.iter().sum::<f64>() / timers as f64,
            p99_ns: histogram.quantile(0.99).map_or(0.0, |bucket| bucket.to_ns.saturating_sub(1) as f64),
            mean_spin_ns: spin_ns / timers as f64,
            spin_ns,
        }
    };
    Some(advances.iter().map(of).collect())
}

fn early_by(tsc: &GuestTsc, advance: Advance) -> i64 {
    let cycles = tsc.cycles(dwell_policy::Nanos(u64::from(advance.ns())));
    i64::try_from(cycles).unwrap_or(i64::MAX)
}

/// KVM's wait and tuning for a timer that is `late` cycles late; the wait, if there is one.
fn wait(advance: &mut Advance, revision: Revision, tsc: &GuestTsc, late: i64) -> Option<Delay> {
    let guest_tsc = DEADLINE.wrapping_add_signed(late);
    advance.wait_lapic_expire(revision, tsc, DEADLINE, guest_tsc, || guest_tsc)?.delay
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_recording::timer::TimerRow;

    fn recording(late: &[i64]) -> TimerRecording {
        let timer = |late: &i64| TimerRow { late_tsc: Some(*late), ..TimerRow::new(0, 1) };
        let mut recording = TimerRecording::default();
        recording.rows.timers = late.iter().map(timer).collect();
        recording
    }

    const FIXED: Advance = Advance::fixed(2_000);

    #[test]
    fn the_recorded_advance_replayed_is_what_was_recorded() {
        let late = [300, -500, 1_200];
        let found = replay(&recording(&late), Revision::V5_10, 1_000_000, FIXED, &[FIXED]).unwrap();
        assert_eq!(found[0].mean_ns, 500.0);
        assert_eq!(found[0].spin_ns, 500.0);
        assert_eq!(found[0].p99_ns, 1_200.0);
    }

    #[test]
    fn the_wait_for_a_posted_timer_takes_no_time_of_the_guest() {
        let mut recording = recording(&[300, -500, 1_200]);
        recording.rows.timers[1].fire = Some(Fire::Posted);
        let found = replay(&recording, Revision::V5_10, 1_000_000, FIXED, &[FIXED]).unwrap();
        assert_eq!((found[0].timers, found[0].mean_ns, found[0].spin_ns), (3, 500.0, 0.0));
    }

    #[test]
    fn without_an_advance_nothing_spins_and_timers_are_late_by_all_of_it() {
        let found =
            replay(&recording(&[-500, 100]), Revision::V5_10, 1_000_000, FIXED, &[Advance::OFF]).unwrap();
        assert_eq!((found[0].mean_ns, found[0].spin_ns), ((1_500.0 + 2_100.0) / 2.0, 0.0));
    }

    #[test]
    fn an_advance_is_better_by_a_tenth_or_not_at_all() {
        let late = |mean_ns, mean_spin_ns| Late {
            advance: String::new(),
            timers: 1,
            mean_ns,
            p99_ns: 0.0,
            mean_spin_ns,
            spin_ns: 0.0,
        };
        assert_eq!(better(&[late(3_000.0, 0.0), late(200.0, 100.0), late(100.0, 900.0)]), Some(1));
        assert_eq!(better(&[late(3_000.0, 0.0), late(2_800.0, 0.0)]), None);
        assert_eq!(better(&[late(150.0, 0.0), late(60.0, 0.0)]), None);
        assert_eq!(better(&[]), None);
    }

    #[test]
    fn an_adaptive_advance_approaches_the_latency() {
        // Each timer takes 3 µs to reach the guest: recorded with a fixed advance of 2 µs it is 1 µs late.
        let found = replay(
            &recording(&[1_000; 2_000]),
            Revision::V6_12,
            1_000_000,
            FIXED,
            &[Advance::ADAPTIVE, FIXED],
        );
        let found = found.unwrap();
        assert!(found[0].mean_ns < 200.0, "{found:?}");
        assert_eq!(found[1].mean_ns, 1_000.0);
    }

    #[test]
    fn delays_are_counted_on_one_clock_only() {
        let mut recording = recording(&[1]);
        let timer = &mut recording.rows.timers[0];
        (timer.fired_ns, timer.expires_ns, timer.entered_ns) = (Some(5_000), Some(4_000), Some(5_100));
        let found = delays(&recording);
        assert!(found.fired.is_empty());
        assert_eq!((found.entered[0].from_ns, found.entered[0].count), (64, 1));
        recording.metadata.clock = Clock::Monotonic;
        assert_eq!((delays(&recording).fired[0].from_ns, delays(&recording).fired[0].to_ns), (512, 1_024));
    }

    #[test]
    fn without_recorded_lateness_nothing_is_known() {
        let mut empty = recording(&[1]);
        empty.rows.timers[0].late_tsc = None;
        assert_eq!(replay(&empty, Revision::V6_12, 1_000_000, FIXED, &[FIXED]), None);
    }
}
