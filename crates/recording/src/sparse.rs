//! A histogram that takes little memory while it holds few different values.

use std::collections::HashMap;

/// Values below this are kept exactly, greater ones by as many leading bits as this has: what three significant digits take.
const EXACT_BITS: u32 = 11;

/// Counts by value, right within 0.1 %: the buckets of an HdrHistogram of three digits.
///
/// Only buckets that have a count take memory, so that 100,000 idlers of a few episodes take megabytes, where as many
/// arrays take gigabytes.
#[derive(Debug, Default)]
pub(crate) struct Quantiles {
    /// By the least value of the bucket.
    counts: HashMap<u64, u64>,
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
        *self.counts.entry(bucket(value).0).or_default() += 1;
    }

    /// The values at these quantiles, each from 0 to 1 and not 0: the greatest of their bucket. `None` if
    /// there is no value.
    pub(crate) fn at<const N: usize>(self, quantiles: [f64; N]) -> Option<[u64; N]> {
        let mut buckets: Vec<(u64, u64)> = self.counts.into_iter().collect();
        buckets.sort_unstable();
        let last = buckets.last()?.0;
        let total: u64 = buckets.iter().map(|(_, count)| count).sum();
        Some(quantiles.map(|quantile| {
            // A share of the number of episodes is no greater than the number.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let wanted = ((quantile * total as f64).ceil() as u64).max(1);
            let mut seen = 0;
            let found = buckets.iter().find(|(_, count)| {
                seen += count;
                seen >= wanted
            });
            bucket(found.map_or(last, |(least, _)| *least)).1
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::Histogram;
    use proptest::prelude::*;

    const AT: [f64; 4] = [0.01, 0.5, 0.99, 1.0];

    fn value() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..5_000, any::<u32>().prop_map(u64::from), any::<u64>(), Just(u64::MAX)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn quantiles_are_those_of_hdrhistogram(values in prop::collection::vec(value(), 1..6_000)) {
            let (mut ours, mut theirs) = (Quantiles::default(), Histogram::<u64>::new(3).unwrap());
            for value in values {
                ours.add(value);
                if theirs.record(value).is_err() {
                    theirs.saturating_record(value);
                }
            }
            prop_assert_eq!(ours.at(AT).unwrap(), AT.map(|quantile| theirs.value_at_quantile(quantile)));
        }
    }

    #[test]
    fn few_values_take_little() {
        let mut one = Quantiles::default();
        (0..100_000u64).for_each(|n| one.add(70_000 + n % 3));
        assert!(one.counts.capacity() < 16, "{one:?}");
        assert_eq!(Quantiles::default().at(AT), None);
    }
}
