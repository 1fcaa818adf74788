//! Lengths on a logarithmic scale.

use serde::Serialize;
use std::sync::OnceLock;

/// Buckets a decade: neighbours are 12 % apart, as R20 of the preferred numbers (ISO 3).
const A_DECADE: i32 = 20;

/// The lower ends of the buckets \[ns\]: 0, then 1 and each next tenth part of a power of ten, as whole numbers; the last
/// takes the rest.
fn edges() -> &'static [u64] {
    static EDGES: OnceLock<Vec<u64>> = OnceLock::new();
    EDGES.get_or_init(|| {
        let power = |k: i32| 10f64.powf(f64::from(k) / f64::from(A_DECADE)).round();
        // All are positive and below 10^19, which 64 bits hold.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let mut edges: Vec<u64> = (0..=19 * A_DECADE).map(|k| power(k) as u64).collect();
        edges.insert(0, 0);
        edges.dedup();
        edges
    })
}

/// How many lengths fall into each of twenty buckets a decade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogHistogram {
    counts: Vec<u64>,
}

/// A bucket that holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Lower end \[ns\], included.
    pub from_ns: u64,
    /// Upper end \[ns\], not included.
    pub to_ns: u64,
    /// How many.
    pub count: u64,
}

impl LogHistogram {
    /// Counts a length \[ns\].
    pub fn add(&mut self, ns: u64) {
        self.add_to(bucket_of(ns));
    }

    /// Counts in a bucket by its number.
    pub(super) fn add_to(&mut self, bucket: usize) {
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The buckets that hold anything, in order.
    pub fn buckets(&self) -> Vec<Bucket> {
        let held = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        held.map(|(bucket, &count)| Bucket { from_ns: from(bucket), to_ns: to(bucket), count }).collect()
    }

    /// The count in a bucket by its number.
    pub(super) fn count(&self, bucket: usize) -> u64 {
        self.counts.get(bucket).copied().unwrap_or(0)
    }

    /// One more than the number of the last bucket that holds anything.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}

/// The number of the bucket that a length falls into.
pub(super) fn bucket_of(ns: u64) -> usize {
    edges().partition_point(|&edge| edge <= ns) - 1
}

/// The lower end of a bucket \[ns\].
pub(super) fn from(bucket: usize) -> u64 {
    edges().get(bucket).copied().unwrap_or(u64::MAX)
}

/// The upper end of a bucket \[ns\].
pub(super) fn to(bucket: usize) -> u64 {
    from(bucket + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn edges_rise_and_decades_are_whole() {
        assert!(edges().is_sorted_by(|a, b| a < b));
        for decade in 0..19 {
            let ns = 10u64.pow(decade);
            assert_eq!(from(bucket_of(ns)), ns);
        }
        assert_eq!((from(bucket_of(0)), to(bucket_of(0))), (0, 1));
        assert_eq!(to(bucket_of(u64::MAX)), u64::MAX);
    }

    proptest! {
        #[test]
        fn every_length_is_within_its_bucket(lengths in prop::collection::vec(any::<u64>().prop_map(|n| n >> (n % 64)), 1..100)) {
            let mut histogram = LogHistogram::default();
            for &ns in &lengths {
                histogram.add(ns);
                let bucket = bucket_of(ns);
                prop_assert!(from(bucket) <= ns && (ns < to(bucket) || ns == u64::MAX));
            }
            for bucket in histogram.buckets() {
                let within = |ns: &&u64| bucket.from_ns <= **ns && (**ns < bucket.to_ns || bucket.to_ns == u64::MAX);
                prop_assert_eq!(bucket.count, lengths.iter().filter(within).count() as u64);
            }
            prop_assert_eq!(histogram.total(), lengths.len() as u64);
        }
    }
}
