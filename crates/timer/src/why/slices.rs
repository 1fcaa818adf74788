//! Slices of the time that is watched, which show how much a saving differs from one to the next.

use super::{Bill, Removal};
use dwell_stats::whole::whole;
use dwell_stats::{MIN_ROUNDS, student_mean};
use std::time::Duration;

/// So many slices, each long enough for what comes once a second to be in most of them.
pub(super) const SLICES: u32 = 10;
const SHORTEST_NS: u64 = 1_000_000;

/// When slices end.
pub(super) struct Slicing {
    end_ns: u64,
    each_ns: u64,
}

impl Slicing {
    /// Without an end of the time there are none.
    pub(super) fn new(start_ns: u64, duration: Option<Duration>) -> Slicing {
        let of = |whole: Duration| u64::try_from((whole / SLICES).as_nanos()).unwrap_or(u64::MAX);
        let each_ns = duration.map_or(u64::MAX, of).max(SHORTEST_NS);
        Slicing { end_ns: start_ns.saturating_add(each_ns), each_ns }
    }

    /// Whether a slice ends by this time; to be asked until none does.
    pub(super) fn ends(&mut self, at_ns: u64) -> bool {
        let ends = at_ns >= self.end_ns;
        self.end_ns = self.end_ns.saturating_add(if ends { self.each_ns } else { 0 });
        ends
    }
}

/// A bill, and that of each slice of the time by the events alone.
#[derive(Clone, Copy)]
pub(super) struct Sliced<'a> {
    pub(super) whole: &'a Bill,
    pub(super) slices: &'a [Bill],
    /// Whether what varies is the share of what is used, beside what is used, whose half width is in `beside`.
    pub(super) of_cpu: bool,
    pub(super) beside: Option<f64>,
}

impl Sliced<'_> {
    /// A removal that saves this of a bill, without its words.
    pub(super) fn saves(self, of: impl Fn(&Bill) -> u64) -> Removal {
        let saves_ns = of(self.whole);
        let weight = |slice: &Bill| if self.of_cpu { slice.cpu_ns as f64 } else { 1.0 };
        let used = self.slices.iter().filter(|slice| weight(slice) > 0.0);
        let (values, weights): (Vec<f64>, Vec<f64>) =
            used.map(|slice| (of(slice) as f64 / weight(slice), weight(slice))).unzip();
        let beside = if self.of_cpu { self.beside } else { Some(0.0) };
        let half = half_width(&values, &weights).zip(beside).map(|(own, beside)| own.hypot(beside));
        // At least 0 and at most twice as much.
        let limits = |half: f64| [1.0 - half, 1.0 + half].map(|part| whole(saves_ns as f64 * part));
        Removal {
            what: String::new(),
            how: String::new(),
            saves_ns,
            saves_interval_ns: half.map(limits),
            saves_on_host_ns: None,
            costs: String::new(),
        }
    }
}

/// Half the width of the 95 % interval of a mean, as a share of it. `None`: of too few, or of nothing.
pub(super) fn half_width(values: &[f64], weights: &[f64]) -> Option<f64> {
    let interval = student_mean(values, weights, 0.95).filter(|_| values.len() >= MIN_ROUNDS)?;
    Some((interval.high - interval.value) / interval.value).filter(|half| half.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bill(cpu_ns: u64) -> Bill {
        Bill { cpu_ns, lines: vec![] }
    }

    #[test]
    fn slices_end_one_after_the_other_and_never_without_an_end_of_the_time() {
        let mut slicing = Slicing::new(100, Some(Duration::from_millis(20)));
        assert!(!slicing.ends(2_000_099) && slicing.ends(6_000_100));
        let further = std::iter::from_fn(|| slicing.ends(6_000_100).then_some(())).count();
        assert_eq!(further, 2, "of 2 ms each");
        assert!(!Slicing::new(0, None).ends(u64::MAX - 1));
    }

    #[test]
    fn an_interval_is_as_wide_as_slices_differ_and_as_what_is_used_is_not_known() {
        let all = [90, 110, 90, 110, 90, 110, 90, 110, 90, 110].map(bill);
        let whole = bill(1_000_000);
        let of = |slices, of_cpu, beside| {
            let sliced = Sliced { whole: &whole, slices, of_cpu, beside };
            sliced.saves(|bill| bill.cpu_ns).saves_interval_ns
        };
        // Standard error 10.54 / √10, Student's t of 9 degrees 2.262: 7.541 %.
        assert_eq!(of(&all, false, None), Some([924_594, 1_075_405]));
        // Everything is saved in each: what is not known is how much that is.
        assert_eq!(of(&all, true, Some(0.3)), Some([700_000, 1_300_000]));
        assert_eq!(of(&all, true, None), None);
        assert_eq!(of(&all[..5], false, None), None, "too few");
        assert_eq!(of(&[0; 10].map(bill), false, None), None);
    }
}
