//! Random numbers that are the same in every run: for the bootstrap, and for generated workloads.

use crate::whole::whole;

/// SplitMix64 by Steele, Lea and Flood: 64 bits of state, another sequence for each seed.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// 64 random bits.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, all equally likely to `n` parts in 2^64; 0 for `n` = 0.
    pub const fn below(&mut self, n: u64) -> u64 {
        // Below `n`, as the first factor is below 2^64.
        #[allow(clippy::cast_possible_truncation)]
        let scaled = ((self.bits() as u128 * n as u128) >> 64) as u64;
        scaled
    }

    /// Exponentially distributed with this mean, rounded down: the time between independent arrivals. At most
    /// 37 times the mean.
    pub fn exponential(&mut self, mean: f64) -> u64 {
        // Above 0, at most 1.
        let share = ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        whole(-share.ln() * mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of seed 1234567 in the authors' own list.
    #[test]
    fn bits_are_those_of_the_reference() {
        let mut random = SplitMix64::new(1_234_567);
        let first = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, std::array::from_fn(|_| random.bits()));
    }

    #[test]
    fn numbers_below_a_limit_reach_all_of_it_and_no_more() {
        let mut random = SplitMix64::new(1);
        let mut seen = [0; 5];
        (0..1_000).for_each(|_| seen[usize::try_from(random.below(5)).unwrap()] += 1);
        assert!(seen.iter().all(|&times| times > 150), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn exponential_numbers_have_their_mean() {
        let mut random = SplitMix64::new(1);
        let sum: u64 = (0..100_000).map(|_| random.exponential(1e5)).sum();
        assert!((sum as f64 / 1e10 - 1.0).abs() < 0.02, "{sum}");
    }
}
