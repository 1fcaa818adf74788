//! Which VMs are alike, by their first idle times: how a VM that nobody has seen before gets its setting.
//!
//! Of each recording the first [`FIRST`] idle times are counted in bins that double in length. Two VMs are as
//! far apart as the distributions of these: the sum, over the ends of the bins, of the difference of the
//! shares of idle times that are up to that end. A new VM gets, of the settings to choose from, the one that
//! costs least over the VMs nearest to it that the settings were chosen on (up to [`NEIGHBOURS`]), each
//! counted alike. Nothing else of the new VM is looked at, so that its costs are not in hindsight.

/// Idle times that are counted, of all idlers of a recording together, of each equally many.
pub const FIRST: u64 = 1_000;

/// VMs that decide for a new one: as many as the square root of all that are known, and at most this many.
pub const NEIGHBOURS: usize = 15;

/// Number of bins: up to 1 us, 2 us, 4 us and so on, up to 16.4 ms, and longer.
pub const BINS: usize = 16;

/// The first idle times of a recording: how many are in each bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstLengths(pub [u64; BINS]);

impl FirstLengths {
    /// Adds so many idle times of a length.
    pub fn add(&mut self, idle_ns: u64, number: u64) {
        let octaves = idle_ns.saturating_sub(1) / 1_000;
        let bin = (u64::BITS - octaves.leading_zeros()) as usize;
        let bin = &mut self.0[bin.min(BINS - 1)];
        *bin = bin.saturating_add(number);
    }

    /// Shares up to the end of each bin.
    fn shares(&self) -> [f64; BINS] {
        let all: u128 = self.0.iter().copied().map(u128::from).sum();
        let mut sum = 0u128;
        self.0.map(|number| {
            sum += u128::from(number);
            sum as f64 / all.max(1) as f64
        })
    }
}

/// VMs that settings were chosen on.
pub(crate) struct Known<'a> {
    vms: Vec<([f64; BINS], &'a [u64])>,
}

impl<'a> Known<'a> {
    /// With the costs of each; in an order that does not depend on the recordings'.
    pub(crate) fn new(vms: impl Iterator<Item = (&'a FirstLengths, &'a [u64])>) -> Known<'a> {
        Known { vms: vms.map(|(first, costs)| (first.shares(), costs)).collect() }
    }

    /// The setting for a new VM; 0 without any to choose from.
    pub(crate) fn setting(&self, first: &FirstLengths, chosen: &[usize]) -> usize {
        let shares = first.shares();
        let apart =
            |other: &[f64; BINS]| -> f64 { other.iter().zip(&shares).map(|(a, b)| (a - b).abs()).sum() };
        let mut near: Vec<(f64, usize)> =
            self.vms.iter().enumerate().map(|(vm, (shares, _))| (apart(shares), vm)).collect();
        let nearest = NEIGHBOURS.min(near.len().isqrt());
        if nearest == 0 {
            return chosen.first().copied().unwrap_or(0);
        }
        let order = |a: &(f64, usize), b: &(f64, usize)| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1));
        near.select_nth_unstable_by(nearest - 1, order);
        near.truncate(nearest);
        near.sort_unstable_by(order);
        let cost = |setting: usize| -> f64 {
            let of = |&(_, vm): &(f64, usize)| {
                let costs = self.vms[vm].1;
                let best = chosen.iter().map(|&setting| costs[setting]).min().unwrap_or(0);
                costs[setting] as f64 / best.max(1) as f64
            };
            near.iter().map(of).sum()
        };
        let costs = chosen.iter().map(|&setting| (cost(setting), setting));
        costs.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map_or(0, |(_, setting)| setting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(lengths: &[u64]) -> FirstLengths {
        let mut first = FirstLengths::default();
        lengths.iter().for_each(|&length| first.add(length, 1));
        first
    }

    #[test]
    fn bins_double() {
        let found = first(&[0, 1, 1_000, 1_001, 2_000, 2_001, 4_000, 4_001, 16_384_000, u64::MAX]);
        assert_eq!(found.0[..4], [3, 2, 2, 1]);
        assert_eq!((found.0[14], found.0[15]), (1, 1));
    }

    #[test]
    fn a_new_vm_gets_the_setting_of_those_that_idle_like_it() {
        let (short, long) = (first(&[5_000; 9]), first(&[900_000; 9]));
        let costs = [vec![9u64, 1, 5], vec![1, 9, 5]];
        let vms =
            (0..40).map(|vm| if vm % 2 == 0 { (&short, &costs[0][..]) } else { (&long, &costs[1][..]) });
        let known = Known::new(vms);
        let near = |lengths: &[u64], chosen: &[usize]| known.setting(&first(lengths), chosen);
        assert_eq!(near(&[7_000, 4_000, 6_000], &[0, 1]), 1);
        assert_eq!(near(&[500_000, 2_000_000], &[0, 1]), 0);
        assert_eq!(near(&[500_000], &[2]), 2);
        assert_eq!(Known::new(std::iter::empty()).setting(&short, &[3, 4]), 3);
    }
}
