//! Polls of a guest's CPUs that ran out, and how far apart they show the looks at the clock to be.
//!
//! A poll under a window *w* takes [`poll_end_ns`]`(w, s)`, a multiple of the step *s* between two looks, and a little for
//! the way into the state and out of it. What a thread measures of the step is longer by a tenth while the core's other
//! thread is busy, and where a window is near a multiple of the step, that is a poll with one step more or less.

use dwell_policy::guest::poll_end_ns;
use std::collections::BTreeMap;

/// The lengths \[ns\] of polls that ran out, by window.
#[derive(Debug, Default)]
pub(crate) struct FullPolls(BTreeMap<u32, Vec<u64>>);

/// So many are enough for a median, of so many windows at most.
pub(crate) const ENOUGH: usize = 32;
pub(crate) const MOST: usize = 4096;
const MOST_WINDOWS: usize = 64;

impl FullPolls {
    /// A poll under this window ran out after `length_ns`.
    pub(crate) fn add(&mut self, window_ns: u32, length_ns: u64) {
        if window_ns == 0 || self.0.len() == MOST_WINDOWS && !self.0.contains_key(&window_ns) {
            return;
        }
        let lengths = self.0.entry(window_ns).or_default();
        if lengths.len() < MOST {
            lengths.push(length_ns);
        }
    }

    /// The step \[ns\] under which the medians of all windows differ least from [`poll_end_ns`], of the steps from a sixth
    /// below `about_ns` to a 32nd above: what a thread has measured is too long more often than too short. Of several the
    /// nearest; `None` where no step fits.
    pub(crate) fn step_ns(&self, about_ns: u64) -> Option<u64> {
        let medians: Vec<(u64, u64)> = self
            .0
            .iter()
            .filter(|(_, lengths)| lengths.len() >= ENOUGH)
            .map(|(window_ns, lengths)| (u64::from(*window_ns), middle(lengths.clone())))
            .collect();
        let steps = (about_ns - about_ns / 6).max(1)..=about_ns.saturating_add(about_ns / 32);
        let found = steps
            .step_by(usize::try_from(about_ns / 5000).unwrap_or(usize::MAX).max(1))
            .filter_map(|step_ns| Some((misfit_ns(&medians, step_ns)?, step_ns)));
        // Differences below a hundredth of a step are noise.
        let found = found.map(|(misfit_ns, step_ns)| (misfit_ns / (about_ns / 100).max(1), step_ns));
        let (misfit, step_ns) =
            found.min_by_key(|(misfit, step_ns)| (*misfit, step_ns.abs_diff(about_ns)))?;
        // Where they differ by more than a tenth of a step, something else has ended the polls.
        (misfit <= 10).then_some(step_ns)
    }
}

/// By how much the medians, each with its window, differ from polls in steps, on average \[ns\]. All are longer by the same
/// time, a quarter of a step at most, for the way into the state and out of it.
fn misfit_ns(medians: &[(u64, u64)], step_ns: u64) -> Option<u64> {
    let beyond = |(window_ns, length_ns): &(u64, u64)| {
        i64::try_from(*length_ns).ok()?.checked_sub_unsigned(poll_end_ns(*window_ns, step_ns))
    };
    let beyond_ns: Vec<i64> = medians.iter().map(beyond).collect::<Option<_>>()?;
    let way_ns = (!beyond_ns.is_empty()).then(|| middle(beyond_ns.clone()))?;
    let way_ns = way_ns.clamp(0, i64::try_from(step_ns / 4).unwrap_or(i64::MAX));
    let sum = beyond_ns.iter().fold(0u64, |sum, ns| sum.saturating_add(ns.abs_diff(way_ns)));
    Some(sum / u64::try_from(beyond_ns.len()).unwrap_or(u64::MAX))
}

/// The median of a list that is not empty, the lower one of two.
pub(crate) fn middle<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[(values.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(lengths: &[(u32, u64)]) -> FullPolls {
        let mut polls = FullPolls::default();
        for (window_ns, length_ns) in lengths {
            (0..ENOUGH).for_each(|_| polls.add(*window_ns, *length_ns));
        }
        polls
    }

    /// As recorded on an EPYC, whose counters of cpuidle show multiples of 4.93 us: 50 us take one step more than at 5 us.
    #[test]
    fn recorded_polls_show_the_step_that_a_thread_has_measured_as_too_long() {
        let several = of(&[(50_000, 54_681), (100_000, 104_285), (200_000, 202_812)]);
        for about_ns in [4_800, 4_902, 5_177] {
            let step_ns = several.step_ns(about_ns).unwrap();
            assert!((4_880..=4_960).contains(&step_ns), "{about_ns}: {step_ns}");
        }
        let one = of(&[(50_000, 54_691)]);
        assert!(one.step_ns(4_902).is_some_and(|step_ns| step_ns < 5_000));
        let small = of(&[(3_750, 5_699), (7_500, 10_926)]);
        assert!(small.step_ns(4_902).is_some_and(|step_ns| (4_750..=5_100).contains(&step_ns)));
    }

    #[test]
    fn too_few_polls_and_polls_of_other_lengths_show_no_step() {
        assert_eq!(FullPolls::default().step_ns(5_000), None);
        let mut few = FullPolls::default();
        (1..ENOUGH).for_each(|_| few.add(50_000, 54_681));
        assert_eq!(few.step_ns(5_000), None);
        assert_eq!(of(&[(50_000, 70_000)]).step_ns(5_000), None);
        assert_eq!(of(&[(50_000, 30_000)]).step_ns(5_000), None);
        assert_eq!(of(&[(0, 5_000)]).step_ns(5_000), None);
        assert_eq!(of(&[(50_000, u64::MAX)]).step_ns(5_000), None);
    }

    proptest! {
        /// Under the step that is found no poll is longer or shorter than it was by a step.
        #[test]
        fn the_step_found_gives_the_lengths(
            windows in prop::collection::btree_set(1_000u32..400_000, 1..6),
            step_ns in 3_000u64..8_000,
            off in -3i64..16,
            way_ns in 0u64..700,
        ) {
            let length_ns = |window_ns: u32| poll_end_ns(window_ns.into(), step_ns) + way_ns;
            let polls = of(&windows.iter().map(|window_ns| (*window_ns, length_ns(*window_ns))).collect::<Vec<_>>());
            let about_ns = step_ns.saturating_add_signed(off * i64::try_from(step_ns).unwrap() / 100);
            let found_ns = polls.step_ns(about_ns).expect("they are in steps");
            for window_ns in windows {
                let again_ns = poll_end_ns(window_ns.into(), found_ns);
                prop_assert!(again_ns.abs_diff(length_ns(window_ns)) < step_ns, "{window_ns}: {found_ns}");
            }
        }

        #[test]
        fn any_lengths_are_taken(lengths in prop::collection::vec((0u32.., 0u64..), 0..80), about_ns: u64) {
            let about_ns = about_ns % 1_000_001;
            let step_ns = of(&lengths).step_ns(about_ns);
            prop_assert!(step_ns.is_none_or(|step_ns| step_ns > 0 && step_ns.abs_diff(about_ns) <= about_ns / 6));
        }
    }
}
