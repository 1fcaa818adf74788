//! A histogram that takes little memory while it holds few different values.

use hdrhistogram::Histogram;

/// Significant digits of quantiles. Three make them right within 0.1 %.
const DIGITS: u8 = 3;
/// Values below this are kept exactly, greater ones by as many leading bits as this has: what three digits take.
const EXACT_BITS: u32 = 11;
/// Buckets that are kept in a list; more are kept in an array of 0.07 to 0.4 MB.
const MOST_IN_LIST: usize = 1 << 10;

/// Counts by value, right within 0.1 %: the buckets of an HdrHistogram of three digits.
///
/// A list takes 16 bytes for each bucket that has a count, so that 100,000 idlers of a few episodes take
/// megabytes, where as many arrays take gigabytes.
#[derive(Debug)]
pub(crate) enum Quantiles {
    /// Few buckets: their least values and counts in order, and values that are not sorted in yet.
    List { buckets: Vec<(u64, u64)>, new: Vec<u64> },
    /// Many.
    Array(Box<Histogram<u64>>),
}

impl Default for Quantiles {
    fn default() -> Quantiles {
        Quantiles::List { buckets: vec![], new: vec![] }
    }
}

/// The least value of the bucket that a value is in, and the greatest.
fn bucket(value: u64) -> (u64, u64) {
    let shift = (u64::BITS - value.leading_zeros()).saturating_sub(EXACT_BITS);
    let least = value >> shift << shift;
    // Of the last bucket HdrHistogram gives the greatest value but one.
    (least, least.saturating_add(1 << shift) - 1)
}

impl Quantiles {
    pub(crate) fn add(&mut self, value: u64) {
        match self {
            Quantiles::Array(histogram) => record(histogram, value, 1),
            Quantiles::List { buckets, new } => {
                new.push(bucket(value).0);
                if new.len() >= buckets.len().max(16) {
                    self.sort_in();
                }
            }
        }
    }

    /// Puts new values into their buckets, and turns a list that has become long into an array.
    fn sort_in(&mut self) {
        let Quantiles::List { buckets, new } = self else { return };
        let mut new: Vec<u64> = std::mem::take(new);
        new.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(buckets.len() + new.len().min(16));
        let mut old = buckets.drain(..).peekable();
        let mut count = |least: u64, count: u64| match merged.last_mut() {
            Some((last, counted)) if *last == least => *counted += count,
            _ => merged.push((least, count)),
        };
        for least in new {
            while let Some((before, counted)) = old.next_if(|(before, _)| *before <= least) {
                count(before, counted);
            }
            count(least, 1);
        }
        old.by_ref().for_each(|(least, counted)| count(least, counted));
        drop(old);
        *buckets = merged;
        if buckets.len() <= MOST_IN_LIST {
            return;
        }
        // Of the digits that there can be, three are; there is no other error.
        if let Ok(mut histogram) = Histogram::new(DIGITS) {
            buckets.iter().for_each(|(least, counted)| record(&mut histogram, *least, *counted));
            *self = Quantiles::Array(Box::new(histogram));
        }
    }

    /// The values at these quantiles, each from 0 to 1 and not 0: the greatest of their bucket. `None` if
    /// there is no value.
    pub(crate) fn at<const N: usize>(mut self, quantiles: [f64; N]) -> Option<[u64; N]> {
        self.sort_in();
        match self {
            Quantiles::Array(histogram) => {
                Some(quantiles.map(|quantile| histogram.value_at_quantile(quantile)))
            }
            Quantiles::List { buckets, .. } => {
                let last = buckets.last()?.0;
                let total: u64 = buckets.iter().map(|(_, count)| count).sum();
                // A share of a count is no greater than the count.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let at = |quantile: f64| {
                    // At most the number of episodes.
                    #[allow(clippy::cast_possible_truncation)]
                    let wanted = ((quantile * total as f64).ceil() as u64).max(1);
                    let mut seen = 0;
                    let found = buckets.iter().find(|(_, count)| {
                        seen += count;
                        seen >= wanted
                    });
                    bucket(found.map_or(last, |(least, _)| *least)).1
                };
                Some(quantiles.map(at))
            }
        }
    }
}

fn record(histogram: &mut Histogram<u64>, value: u64, count: u64) {
    if histogram.record_n(value, count).is_err() {
        histogram.saturating_record_n(value, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: [f64; 4] = [0.01, 0.5, 0.99, 1.0];

    fn value() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..5_000, any::<u32>().prop_map(u64::from), any::<u64>(), Just(u64::MAX)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// A list has the quantiles of the histogram that it represents, and so has the array that it becomes.
        #[test]
        fn quantiles_are_those_of_hdrhistogram(values in prop::collection::vec(value(), 1..6_000)) {
            let (mut ours, mut theirs) = (Quantiles::default(), Histogram::<u64>::new(DIGITS).unwrap());
            for value in values {
                ours.add(value);
                record(&mut theirs, value, 1);
            }
            prop_assert_eq!(ours.at(AT).unwrap(), AT.map(|quantile| theirs.value_at_quantile(quantile)));
        }
    }

    #[test]
    fn few_values_take_little() {
        let mut one = Quantiles::default();
        (0..100_000u64).for_each(|n| one.add(70_000 + n % 3));
        let Quantiles::List { buckets, new } = &one else { panic!("a list is enough") };
        assert!(buckets.len() <= 2 && new.capacity() < 64, "{one:?}");
        assert_eq!(Quantiles::default().at(AT), None);
    }
}
