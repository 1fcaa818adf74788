//! Lengths of time in logarithmic buckets.

use crate::whole::whole;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Buckets that are allocated together. Recordings with many idlers of few episodes each must stay small.
const PAGE: usize = 32;

/// Bit lengths of a 64-bit number, 0 to 64.
pub const OCTAVES: usize = 65;

/// How wide the buckets of a [`LogHistogram`] are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resolution {
    /// One bucket per octave: 0, 1, 2-3, 4-7 and so on, as KVM's logarithmic histograms.
    Octave,
    /// Eight buckets per octave, and one for each length below 16: a bucket is at most 1/8 wide.
    Eighth,
    /// 1024 buckets per octave, and one for each length below 2048: a bucket is less than 0.1 % wide.
    Thousandth,
    /// Twenty buckets per decade, as R20 of the preferred numbers (ISO 3): neighbours are 12 % apart, all
    /// equally wide on a logarithmic scale, and powers of ten are bounds. For figures.
    #[default]
    Decade,
}

impl Resolution {
    /// Binary logarithm of the buckets per octave; `None` where buckets are not parts of octaves.
    const fn bits(self) -> Option<u32> {
        match self {
            Resolution::Octave => Some(0),
            Resolution::Eighth => Some(3),
            Resolution::Thousandth => Some(10),
            Resolution::Decade => None,
        }
    }

    /// Index of the bucket of a length \[ns\].
    fn index(self, ns: u64) -> usize {
        let Some(bits) = self.bits() else {
            return decade_bounds().partition_point(|&bound| bound <= ns) - 1;
        };
        let octave = (u64::BITS - ns.leading_zeros()).saturating_sub(bits + 1);
        // At most 2^(bits + 1), so below 2^17.
        #[allow(clippy::cast_possible_truncation)]
        let within = (ns >> octave) as usize;
        ((octave as usize) << bits) + within
    }

    /// Lower end of a bucket \[ns\]; `None` for an index that no length has.
    fn from(self, index: usize) -> Option<u64> {
        let Some(bits) = self.bits() else { return decade_bounds().get(index).copied() };
        let step = 1 << bits;
        if index < 2 * step {
            return Some(index as u64);
        }
        let (octave, within) = (index / step - 1, index % step);
        if octave + bits as usize >= 64 { None } else { Some(((step + within) as u64) << octave) }
    }
}

/// Lower ends of the buckets of [`Resolution::Decade`] \[ns\]: 0, then 1 and each next twentieth of a decade,
/// rounded; the last bucket has no upper end.
fn decade_bounds() -> &'static [u64] {
    const PER_DECADE: i32 = 20;
    static BOUNDS: OnceLock<Vec<u64>> = OnceLock::new();
    BOUNDS.get_or_init(|| {
        let power = |k: i32| 10f64.powf(f64::from(k) / f64::from(PER_DECADE)).round();
        // All are positive and at most 10^19, which 64 bits hold.
        let mut bounds: Vec<u64> = (0..=19 * PER_DECADE).map(|k| whole(power(k))).collect();
        bounds.insert(0, 0);
        bounds.dedup();
        bounds
    })
}

/// How many lengths are in each of a number of logarithmic buckets. Memory is used for ranges of buckets that are not
/// empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogHistogram {
    resolution: Resolution,
    total: u64,
    pages: BTreeMap<usize, Box<[u64; PAGE]>>,
}

/// A bucket that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Lower end \[ns\], included.
    pub from_ns: u64,
    /// Upper end \[ns\], not included; of the last bucket `u64::MAX`, included.
    pub to_ns: u64,
    pub count: u64,
}

impl LogHistogram {
    /// An empty histogram.
    pub const fn new(resolution: Resolution) -> LogHistogram {
        LogHistogram { resolution, total: 0, pages: BTreeMap::new() }
    }

    /// Counts a length \[ns\].
    pub fn add(&mut self, ns: u64) {
        let index = self.resolution.index(ns);
        let page = self.pages.entry(index / PAGE).or_insert_with(|| Box::new([0; PAGE]));
        page[index % PAGE] += 1;
        self.total += 1;
    }

    /// Adds all counts of another histogram of the same resolution.
    ///
    /// # Panics
    /// Where the resolutions differ, which is a mistake of the caller.
    pub fn merge(&mut self, other: &LogHistogram) {
        assert_eq!(self.resolution, other.resolution, "histograms of one resolution");
        for (number, counts) in &other.pages {
            let page = self.pages.entry(*number).or_insert_with(|| Box::new([0; PAGE]));
            page.iter_mut().zip(counts.iter()).for_each(|(sum, count)| *sum += count);
        }
        self.total += other.total;
    }

    /// How many lengths were counted.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Whether nothing was counted.
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The buckets that are not empty, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let pages = self.pages.iter();
        pages.flat_map(move |(number, counts)| {
            let held = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            held.map(move |(place, &count)| self.bucket(number * PAGE + place, count))
        })
    }

    /// The bucket of a length \[ns\], empty or not.
    pub fn bucket_of(&self, ns: u64) -> Bucket {
        let index = self.resolution.index(ns);
        let count = self.pages.get(&(index / PAGE)).map_or(0, |page| page[index % PAGE]);
        self.bucket(index, count)
    }

    fn bucket(&self, index: usize, count: u64) -> Bucket {
        let end = |index| self.resolution.from(index).unwrap_or(u64::MAX);
        Bucket { from_ns: end(index), to_ns: end(index + 1), count }
    }

    /// The bucket of the nearest rank of quantile `q`, 0 to 1; `None` where nothing was counted.
    pub fn quantile(&self, q: f64) -> Option<Bucket> {
        let rank = nearest_rank(q, self.total);
        let mut so_far = 0;
        self.buckets().find(|bucket| {
            so_far += bucket.count;
            so_far >= rank
        })
    }

    /// Counts by bit length of the lengths: 0, 1, 2-3, 4-7 and so on up to 64 bits. KVM's own histograms have the first
    /// 32, the last of which counts all the rest. A bucket of [`Resolution::Decade`] that spans two counts
    /// for the lower.
    pub fn octaves(&self) -> [u64; OCTAVES] {
        let mut octaves = [0; OCTAVES];
        for bucket in self.buckets() {
            octaves[Resolution::Octave.index(bucket.from_ns)] += bucket.count;
        }
        octaves
    }
}

impl Bucket {
    /// The greatest length in it \[ns\].
    pub const fn greatest_ns(&self) -> u64 {
        if self.to_ns == u64::MAX { u64::MAX } else { self.to_ns - 1 }
    }

    /// The middle of it \[ns\], rounded down.
    pub const fn middle_ns(&self) -> u64 {
        self.from_ns.midpoint(self.greatest_ns())
    }
}

/// The nearest rank of quantile `q`, 0 to 1, among `count`: 1 to `count`, 0 where there is none.
pub fn nearest_rank(q: f64, count: u64) -> u64 {
    // Products such as 0.07 × 100 are slightly above the whole number that is meant.
    let exact = q.clamp(0.0, 1.0) * count as f64;
    let near = exact.round();
    let rank = if (exact - near).abs() < 1e-9 * count as f64 { near } else { exact.ceil() };
    whole(rank).clamp(count.min(1), count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [Resolution; 4] =
        [Resolution::Octave, Resolution::Eighth, Resolution::Thousandth, Resolution::Decade];
    const OF_OCTAVES: [Resolution; 3] = [Resolution::Octave, Resolution::Eighth, Resolution::Thousandth];

    fn histogram(resolution: Resolution, lengths: &[u64]) -> LogHistogram {
        let mut histogram = LogHistogram::new(resolution);
        lengths.iter().for_each(|ns| histogram.add(*ns));
        histogram
    }

    #[test]
    fn octaves_are_bit_lengths() {
        let lengths = [0, 1, 2, 3, 4, 7, 8, 1 << 30, (1 << 31) - 1, u64::MAX];
        for resolution in OF_OCTAVES {
            let octaves = histogram(resolution, &lengths).octaves();
            assert_eq!(octaves[..5], [1, 1, 2, 2, 1], "{resolution:?}");
            assert_eq!((octaves[31], octaves[64], octaves.iter().sum::<u64>()), (2, 1, 10), "{resolution:?}");
        }
    }

    #[test]
    fn an_eighth_is_at_most_an_eighth_wide_and_a_thousandth_below_a_thousandth() {
        for (resolution, limit) in [(Resolution::Eighth, 1.0 / 8.0), (Resolution::Thousandth, 1e-3)] {
            for ns in (0..63).flat_map(|k| [1u64 << k, (1 << k) + 1, (1 << k) - 1, 3 << (k.min(60))]) {
                let Bucket { from_ns, to_ns, .. } = histogram(resolution, &[ns]).bucket_of(ns);
                let width = (to_ns - 1 - from_ns) as f64;
                assert!(width <= limit * from_ns as f64, "{resolution:?}: {ns} is in {from_ns} to {to_ns}");
            }
        }
    }

    #[test]
    fn bounds_of_decades_rise_and_powers_of_ten_are_among_them() {
        assert!(decade_bounds().is_sorted_by(|a, b| a < b));
        let empty = LogHistogram::new(Resolution::Decade);
        for decade in 0..19 {
            let ns = 10u64.pow(decade);
            assert_eq!(empty.bucket_of(ns).from_ns, ns);
        }
        assert_eq!((empty.bucket_of(0).from_ns, empty.bucket_of(0).to_ns), (0, 1));
        assert_eq!(empty.bucket_of(u64::MAX).to_ns, u64::MAX);
    }

    #[test]
    fn nothing_has_no_quantile() {
        let empty = LogHistogram::new(Resolution::Eighth);
        assert!(empty.is_empty());
        assert_eq!((empty.quantile(0.5), empty.buckets().count()), (None, 0));
    }

    #[test]
    fn ranks_are_nearest_ranks() {
        for (q, rank) in [(0.0, 1), (0.005, 1), (0.07, 7), (0.5, 50), (0.501, 51), (0.99, 99), (1.0, 100)] {
            assert_eq!(nearest_rank(q, 100), rank, "{q}");
        }
        assert_eq!(nearest_rank(0.5, 0), 0);
    }

    proptest! {
        #[test]
        fn every_length_is_in_its_bucket_and_every_quantile_in_that_of_its_rank(
            lengths in prop::collection::vec((any::<u64>(), 0u32..64).prop_map(|(n, shift)| n >> shift), 1..200),
            q in 0.0f64..=1.0,
            at in 0usize..200,
        ) {
            let mut sorted = lengths.clone();
            sorted.sort_unstable();
            for resolution in ALL {
                let all = histogram(resolution, &lengths);
                let within = |bucket: &Bucket, ns: u64| bucket.from_ns <= ns && ns <= bucket.greatest_ns();
                for &ns in &lengths {
                    let bucket = all.bucket_of(ns);
                    prop_assert!(within(&bucket, ns), "{:?}: {} is not in {:?}", resolution, ns, bucket);
                    prop_assert!(within(&bucket, bucket.middle_ns()));
                    let count = lengths.iter().filter(|ns| within(&bucket, **ns)).count() as u64;
                    prop_assert_eq!(bucket.count, count);
                }
                prop_assert!(all.buckets().map(|bucket| bucket.from_ns).is_sorted_by(|a, b| a < b));
                prop_assert_eq!(all.buckets().map(|bucket| bucket.count).sum::<u64>(), all.total());
                let rank = usize::try_from(nearest_rank(q, all.total())).unwrap();
                prop_assert!(within(&all.quantile(q).unwrap(), sorted[rank - 1]));
                // In two parts, the sum is the same.
                let (first, rest) = lengths.split_at(at.min(lengths.len()));
                let mut merged = histogram(resolution, first);
                merged.merge(&histogram(resolution, rest));
                prop_assert_eq!(merged, all);
            }
        }
    }
}
