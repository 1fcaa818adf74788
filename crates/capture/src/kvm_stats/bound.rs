//! What polling costs now, and what any setting could gain at most, from counters alone.
//!
//! # The arithmetic
//! With a halt cost *K* for one halt \[ns of CPU\], an episode of idle time *d* under a window *w* costs min(*d*, *w*)
//! polled, and *K* more if *d* > *w*. Over the episodes of an interval:
//!
//! * **cost now** = time polled + *K* · sleeps. Both are counted: `halt_poll_success_ns` + `halt_poll_fail_ns`, and the
//!   number of sleeps is the sum of `halt_wait_hist`. Without that histogram the sleeps are at most `halt_exits` -
//!   `halt_successful_poll`, since every sleep follows an HLT exit of its own that did not end in a successful poll.
//! * **any policy** pays at least min(*d*, *K*) in each episode: if its window is *d* or more it polls *d*;
//!   else it pays *w* + *K* ≥ *K*. This holds for every policy; the offline optimum costs exactly that.
//! * so the **gain** of any setting is at most cost now - Σ min(*d*, *K*), and at most cost now - *L* for any *L* below
//!   that sum. The rest of this page finds an *L* from what is counted.
//!
//! *Successful polls.* The wake came at or after the time *s* that was polled, so min(*d*, *K*) ≥ min(*s*, *K*). Of the
//! *s* we know how many lie in each bucket \[*lo*, *hi*\] and their sum *S*. On a bucket min(*s*, *K*) lies above its
//! chord, since it is concave; the sum of the chords, under Σ *s* = *S*, is least when what *S* has above the lower
//! ends lies in the buckets of the flattest chords: slope 0 above *K*, then the one bucket that *K* cuts, then slope 1.
//! Filling them up in this order gives `least`, the exact minimum of the chords, and so a lower bound.
//!
//! *Sleeps.* An episode with a failed poll of *f* that then slept *t* had *d* ≥ *f* + *t*; one that did not
//! poll has *f* = 0. Three bounds hold and the largest is taken: `least` of the sleeps alone, `least` of the
//! failed polls alone, and both together by their lower ends: which poll belongs to which sleep is not
//! counted, but min(*f* + *t*, *K*) is a concave function of the sum, so the total is least when the longest
//! polls precede the longest sleeps (the sums are then spread most), and that pairing is what is added up.
//!
//! Without histograms there is one bucket from 0 to the sum.
//!
//! # Limits
//! * Open loop: episodes are taken as they came. A guest that waits for its peer would have had others.
//! * Halts that found their event before they slept, without polling, are not counted; they cost no policy anything.
//! * The halt cost *K* is an input; with *K* = 0 the gain is what never polling saves in CPU.
//! * Edges and torn reads: see the [module above](super).

use super::Counters;
use dwell_policy::Nanos;
use serde::Serialize;

/// What polling cost in an interval, and what could be gained at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bound {
    /// Halts that polled.
    pub polls: u64,
    /// Of those, the ones that did not sleep.
    pub polls_succeeded: u64,
    /// CPU time polled \[ns\].
    pub polled_ns: u64,
    /// Of that, in failed polls \[ns\].
    pub wasted_ns: u64,
    /// Halts that slept; at most so many where `halts_exact` is false.
    pub halts: u64,
    /// Whether the number of halts is exact.
    pub halts_exact: bool,
    /// The cost: time polled plus the cost of the halts \[ns\].
    pub cost_ns: u128,
    /// What any policy would have paid at least \[ns\].
    pub least_cost_ns: u128,
    /// What any setting could have gained at most \[ns\].
    pub gain_ns: u128,
}

/// A counter without which nothing can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this kernel does not count {counter}; it came with Linux {since}. Record instead: dwell record host"
)]
pub struct NotCounted {
    pub counter: &'static str,
    /// The version that brought it.
    pub since: &'static str,
}

impl Bound {
    /// From the counts of an interval, at this halt cost.
    ///
    /// # Errors
    /// [`NotCounted`] on kernels before 5.8, which do not count the time polled.
    pub fn of(counted: &Counters, halt_cost: Nanos) -> Result<Bound, NotCounted> {
        let need = |value: Option<u64>, counter, since| value.ok_or(NotCounted { counter, since });
        let polls = need(counted.halt_attempted_poll, "halt_attempted_poll", "4.2")?;
        let polls_succeeded = need(counted.halt_successful_poll, "halt_successful_poll", "4.2")?;
        let success_ns = need(counted.halt_poll_success_ns, "halt_poll_success_ns", "5.8")?;
        let wasted_ns = need(counted.halt_poll_fail_ns, "halt_poll_fail_ns", "5.8")?;
        let (halts, halts_exact) = match &counted.halt_wait_hist {
            Some(buckets) => (buckets.iter().copied().fold(0, u64::saturating_add), true),
            None => {
                let exits = need(counted.halt_exits, "halt_exits", "4.2")?;
                (exits.saturating_sub(polls_succeeded), false)
            }
        };
        let k = u128::from(halt_cost.get());
        let polled_ns = success_ns.saturating_add(wasted_ns);
        let cost_ns = u128::from(polled_ns) + k * u128::from(halts);
        let of_polls = least(
            &Lengths::of(counted.halt_poll_success_hist.as_deref(), polls_succeeded, Some(success_ns)),
            k,
        );
        let of_sleeps = sleeps(counted, polls.saturating_sub(polls_succeeded), k);
        let least_cost_ns = of_polls.saturating_add(of_sleeps).min(cost_ns);
        Ok(Bound {
            polls,
            polls_succeeded,
            polled_ns,
            wasted_ns,
            halts,
            halts_exact,
            cost_ns,
            least_cost_ns,
            gain_ns: cost_ns - least_cost_ns,
        })
    }

    /// Of several VMs together. A bound of each, added up, is closer than one of their added counters.
    pub fn sum(all: impl IntoIterator<Item = Bound>) -> Bound {
        let none = Bound { halts_exact: true, ..Bound::default() };
        all.into_iter().fold(none, |a, b| Bound {
            polls: a.polls.saturating_add(b.polls),
            polls_succeeded: a.polls_succeeded.saturating_add(b.polls_succeeded),
            polled_ns: a.polled_ns.saturating_add(b.polled_ns),
            wasted_ns: a.wasted_ns.saturating_add(b.wasted_ns),
            halts: a.halts.saturating_add(b.halts),
            halts_exact: a.halts_exact && b.halts_exact,
            cost_ns: a.cost_ns.saturating_add(b.cost_ns),
            least_cost_ns: a.least_cost_ns.saturating_add(b.least_cost_ns),
            gain_ns: a.gain_ns.saturating_add(b.gain_ns),
        })
    }
}

/// What the episodes that slept cost any policy at least \[ns\]; see the page above.
fn sleeps(counted: &Counters, failed: u64, k: u128) -> u128 {
    let polls = Lengths::of(counted.halt_poll_fail_hist.as_deref(), failed, counted.halt_poll_fail_ns);
    let Some(waits) = counted.halt_wait_hist.as_deref() else {
        return least(&polls, k);
    };
    let waits = Lengths::of(Some(waits), 0, counted.halt_wait_ns);
    least(&waits, k).max(least(&polls, k)).max(paired(&waits, &polls, k))
}

/// Lengths of which only buckets are known and, maybe, the sum.
struct Lengths {
    /// From short to long.
    buckets: Vec<Bucket>,
    sum: Option<u128>,
}

/// So many lengths from `lo` to `hi`, both included \[ns\].
#[derive(Clone, Copy)]
struct Bucket {
    lo: u128,
    hi: u128,
    count: u128,
}

impl Lengths {
    /// From a histogram of KVM, or without one from number and sum alone.
    fn of(histogram: Option<&[u64]>, number: u64, sum: Option<u64>) -> Lengths {
        let sum = sum.map(u128::from);
        // No length is longer than all together.
        let longest = sum.unwrap_or(u128::MAX);
        let bucket = |(index, &count): (usize, &u64)| Bucket {
            count: count.into(),
            ..range(index, histogram, longest)
        };
        let buckets = match histogram {
            Some(counts) => counts.iter().enumerate().filter(|(_, count)| **count > 0).map(bucket).collect(),
            None => vec![Bucket { lo: 0, hi: longest, count: number.into() }],
        };
        Lengths { buckets, sum }
    }
}

/// The range of a bucket: 0 holds 0, *k* holds 2^(*k*-1) to 2^*k* - 1, the last of the histogram all the rest.
fn range(index: usize, histogram: Option<&[u64]>, longest: u128) -> Bucket {
    let shift = u32::try_from(index).unwrap_or(u32::MAX);
    let power = |shift: u32| 1u128.checked_shl(shift).unwrap_or(u128::MAX);
    let lo = if index == 0 { 0 } else { power(shift - 1) };
    let last = histogram.is_some_and(|counts| index + 1 == counts.len());
    let hi = if last { longest } else { (power(shift) - 1).min(longest) };
    Bucket { lo, hi: hi.max(lo), count: 0 }
}

/// A lower bound of Σ min(length, k); see the page above.
fn least(lengths: &Lengths, k: u128) -> u128 {
    let add_up = |each: fn(&Bucket, u128) -> u128| {
        let times = lengths.buckets.iter().map(|b| b.count.saturating_mul(each(b, k)));
        times.fold(0, u128::saturating_add)
    };
    let at_lower_ends = add_up(|b, k| b.lo.min(k));
    let lower_ends = add_up(|b, _| b.lo);
    // Torn reads may leave the sum short of the lower ends; then the lower ends are all that is known.
    let Some(mut rest) = lengths.sum.and_then(|sum| sum.checked_sub(lower_ends)) else {
        return at_lower_ends;
    };
    let mut more = 0;
    // Above k, across k, below k: chords from flat to steep.
    let steepness = |b: &&Bucket| (b.lo < k, b.hi <= k);
    let mut by_chord: Vec<&Bucket> = lengths.buckets.iter().collect();
    by_chord.sort_by_key(steepness);
    for bucket in by_chord {
        let width = bucket.hi - bucket.lo;
        let rise = bucket.hi.min(k) - bucket.lo.min(k);
        let taken = rest.min(bucket.count.saturating_mul(width));
        rest -= taken;
        if width > 0 {
            // Rounded down: still a lower bound.
            let product = taken.checked_mul(rise);
            more += product.map_or_else(|| (taken / width).saturating_mul(rise), |product| product / width);
        }
    }
    at_lower_ends.saturating_add(more)
}

/// A lower bound of Σ min(wait + poll, k) over all ways to pair them; see the page above.
fn paired(waits: &Lengths, polls: &Lengths, k: u128) -> u128 {
    let mut polls: Vec<Bucket> = polls.buckets.clone();
    let mut sum = 0u128;
    for wait in waits.buckets.iter().rev() {
        let mut left = wait.count;
        while left > 0 {
            let (poll, number) = match polls.last_mut() {
                Some(bucket) => {
                    let number = left.min(bucket.count);
                    bucket.count -= number;
                    (bucket.lo, number)
                }
                None => (0, left),
            };
            polls.pop_if(|bucket| bucket.count == 0);
            left -= number;
            sum = sum.saturating_add(number.saturating_mul(wait.lo.saturating_add(poll).min(k)));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_policy::host::{BUCKETS, HaltPoll, Params, Revision, bucket};
    use dwell_policy::reference::{Always, Fixed, Never, Optimum, SkiRental};
    use dwell_policy::{Outcome, Policy};
    use proptest::prelude::*;

    /// What KVM counts while a policy plays these episodes, as Linux 5.17 and later do it.
    fn counted(policy: &mut dyn Policy, idle: &[u64]) -> Counters {
        let mut numbers = [0u64; 6];
        let mut histograms = [[0u64; BUCKETS]; 3];
        for &d in idle {
            let window = policy.window().get();
            policy.observe(Outcome::of(Nanos(d)));
            let polled = d.min(window);
            let slept = d > window;
            numbers[0] += 1;
            if window > 0 {
                numbers[1] += 1;
                numbers[2] += u64::from(!slept);
                numbers[if slept { 4 } else { 3 }] += polled;
                histograms[usize::from(slept)][bucket(polled)] += 1;
            }
            if slept {
                numbers[5] += d - polled;
                histograms[2][bucket(d - polled)] += 1;
            }
        }
        let [success, fail, wait] = histograms.map(|h| Some(h.to_vec()));
        Counters {
            halt_exits: Some(numbers[0]),
            halt_attempted_poll: Some(numbers[1]),
            halt_successful_poll: Some(numbers[2]),
            halt_poll_invalid: Some(0),
            halt_poll_success_ns: Some(numbers[3]),
            halt_poll_fail_ns: Some(numbers[4]),
            halt_wait_ns: Some(numbers[5]),
            halt_poll_success_hist: success,
            halt_poll_fail_hist: fail,
            halt_wait_hist: wait,
        }
    }

    fn without_histograms(counters: Counters) -> Counters {
        Counters { halt_poll_success_hist: None, halt_poll_fail_hist: None, halt_wait_hist: None, ..counters }
    }

    fn cost(policy: &mut dyn Policy, idle: &[u64], k: u64) -> u128 {
        let pay = |&d: &u64| {
            let window = policy.window().get();
            policy.observe(Outcome::of(Nanos(d)));
            u128::from(d.min(window)) + if d > window { u128::from(k) } else { 0 }
        };
        idle.iter().map(pay).sum()
    }

    fn optimum(idle: &[u64], k: u64) -> u128 {
        let optimum = Optimum { halt_cost: Nanos(k) };
        idle.iter().map(|&d| u128::from(optimum.cost(Nanos(d)).get())).sum()
    }

    fn policies(window: u64, max: u32) -> Vec<Box<dyn Policy>> {
        let params = Params { halt_poll_ns: max, ..Params::default_for(Revision::V6_11) };
        vec![
            Box::new(Never),
            Box::new(Always),
            Box::new(Fixed(Nanos(window))),
            Box::new(SkiRental { halt_cost: Nanos(window) }),
            Box::new(HaltPoll::new(Revision::V6_11, params)),
            Box::new(HaltPoll::new(Revision::V5_4, Params { halt_poll_ns_shrink: 0, ..params })),
        ]
    }

    fn episodes() -> impl Strategy<Value = Vec<u64>> {
        let length = prop_oneof![1u64..100, 1u64..50_000, 15_000u64..25_000, 1u64..2_000_000, 1u64..1 << 34];
        prop::collection::vec(length, 0..120)
    }

    #[test]
    fn long_sleeps_without_polls_leave_nothing_to_gain() {
        let counters = counted(&mut Never, &[1_000_000; 100]);
        let bound = Bound::of(&counters, Nanos(20_000)).unwrap();
        assert_eq!((bound.halts, bound.cost_ns, bound.gain_ns), (100, 2_000_000, 0));
    }

    #[test]
    fn polls_in_vain_can_be_gained_back_and_no_more() {
        let counters = counted(&mut Fixed(Nanos(200_000)), &[1_000_000; 100]);
        let bound = Bound::of(&counters, Nanos(20_000)).unwrap();
        assert_eq!((bound.wasted_ns, bound.gain_ns), (20_000_000, 20_000_000));
    }

    #[test]
    fn sum_tells_more_than_the_lower_ends_of_buckets() {
        // 100 polls of 15 us lie in the bucket that begins at 8192 ns.
        let counters = counted(&mut Always, &[15_000; 100]);
        let bound = Bound::of(&counters, Nanos(20_000)).unwrap();
        assert_eq!((bound.least_cost_ns, bound.gain_ns), (1_500_000, 0));
    }

    #[test]
    fn poll_and_sleep_of_one_episode_add_up() {
        // A failed poll of 12 us, then a sleep of 12 us: no policy costs less than 20 us, though neither part
        // alone implies it.
        let counters = counted(&mut Fixed(Nanos(12_000)), &[24_000; 10]);
        let bound = Bound::of(&counters, Nanos(20_000)).unwrap();
        assert!(bound.least_cost_ns >= 10 * 2 * 8_192, "{bound:?}");
    }

    #[test]
    fn kernels_without_times_are_refused_with_a_remedy() {
        let counters = Counters { halt_poll_success_ns: None, ..counted(&mut Always, &[5]) };
        let error = Bound::of(&counters, Nanos(1)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "this kernel does not count halt_poll_success_ns; it came with Linux 5.8. Record instead: dwell record host"
        );
    }

    proptest! {
        /// The claim of this module: whatever policy was in force while counting, no policy beats the bound.
        #[test]
        fn no_policy_beats_the_bound(idle in episodes(), k in 0u64..100_000, window in 0u64..400_000, max in 0u32..400_000) {
            let least = optimum(&idle, k);
            for mut present in policies(window, max) {
                let counters = counted(&mut *present, &idle);
                let mut again = policies(window, max);
                for counters in [counters.clone(), without_histograms(counters)] {
                    let bound = Bound::of(&counters, Nanos(k)).unwrap();
                    prop_assert!(bound.least_cost_ns <= least, "{bound:?} against {least}");
                    for other in &mut again {
                        let gain = bound.cost_ns.saturating_sub(cost(&mut **other, &idle, k));
                        prop_assert!(gain <= bound.gain_ns, "{gain} > {bound:?}");
                    }
                }
            }
        }

        /// With histograms the cost is exact.
        #[test]
        fn cost_now_is_what_the_policy_paid(idle in episodes(), k in 0u64..100_000, window in 0u64..400_000) {
            for (mut present, mut again) in policies(window, 200_000).into_iter().zip(policies(window, 200_000)) {
                let counters = counted(&mut *present, &idle);
                let bound = Bound::of(&counters, Nanos(k)).unwrap();
                prop_assert_eq!(bound.cost_ns, cost(&mut *again, &idle, k));
                let at_most = Bound::of(&without_histograms(counters), Nanos(k)).unwrap();
                prop_assert!(at_most.cost_ns >= bound.cost_ns && at_most.gain_ns >= bound.gain_ns);
            }
        }

        /// Counters are machine-provided: nothing they hold makes the arithmetic panic.
        #[test]
        fn any_counters_are_taken(numbers in any::<[u64; 7]>(), hists in any::<[[u64; 32]; 3]>(), k in any::<u64>()) {
            let hist = |h: [u64; 32]| Some(h.repeat(5));
            let [a, b, c] = hists;
            let counters = Counters {
                halt_exits: Some(numbers[0]), halt_attempted_poll: Some(numbers[1]), halt_successful_poll: Some(numbers[2]),
                halt_poll_invalid: Some(numbers[3]), halt_poll_success_ns: Some(numbers[4]),
                halt_poll_fail_ns: Some(numbers[5]), halt_wait_ns: Some(numbers[6]),
                halt_poll_success_hist: hist(a), halt_poll_fail_hist: hist(b), halt_wait_hist: hist(c),
            };
            let bound = Bound::of(&counters, Nanos(k)).unwrap();
            prop_assert!(bound.least_cost_ns <= bound.cost_ns);
        }
    }
}
