//! Policies side by side over many recordings: what they cost over the optimum.
//!
//! Every policy lives through the same episodes, open loop, and pays what [`Counts::cost_ns`] says; two rows are what the
//! best fixed window and the best setting of KVM's rule would have cost, chosen for each recording in hindsight. Over
//! recordings costs are summed up as the geometric mean of cost by optimum, which weighs each recording the same, and
//! as the worst of them.
//!
//! # What was fitted
//! The parameters of [`Leader`](dwell_policy::leader::Leader) were chosen on the recordings named in [`FITTED`]: of those
//! that come with dwell every other one, in the order of their names, from the first. Means are given for these and for the
//! others apart.

use crate::bank::Bank;
use crate::bound::{FixedWindows, OptimumBound};
use crate::counts::Counts;
use crate::grid;
use crate::outer;
use crate::pass::ReplayError;
use crate::rule::Rule;
use crate::source::Source;
use dwell_policy::catalogue::Terms;
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use rayon::join;

/// The recordings on which the leader's parameters were chosen.
pub const FITTED: [&str; 7] = [
    "event-memcached_poisson10k",
    "event-pgbench_sel1",
    "guest-fio_qd1",
    "guest-memcached_poisson10k",
    "guest-nginx_wrk1",
    "guest-pipe_exp100us",
    "guest-redis_poisson5k",
];

/// A row of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Halts at once.
    Never,
    /// A fixed window of 200 us, the longest that KVM and haltpoll take by default.
    Always,
    /// KVM halt polling by default.
    Kvm,
    /// The haltpoll governor by default.
    Haltpoll,
    /// Polls for what a halt is worth.
    SkiRental,
    /// The fixed window that was best for the recording.
    BestFixed,
    /// The setting of KVM's rule that was best for the recording, of [`grid::settings`].
    BestKvm,
    /// Polls as long as that has saved something.
    Savings,
    /// Follows the window that would have cost least.
    Leader,
    /// KVM halt polling, set anew every second by a controller outside of the kernel.
    Outer,
    /// The same, every tenth of a second.
    OuterOften,
}

/// A window that nearly never ends.
const ALWAYS: Nanos = Nanos::from_micros(200);

impl Entry {
    /// Every row, in the order in which they are shown.
    pub const ALL: [Entry; 11] = [
        Entry::Never,
        Entry::Always,
        Entry::Kvm,
        Entry::Haltpoll,
        Entry::SkiRental,
        Entry::BestFixed,
        Entry::BestKvm,
        Entry::Savings,
        Entry::Leader,
        Entry::Outer,
        Entry::OuterOften,
    ];

    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Entry::Never => "never",
            Entry::Always => "always 200us",
            Entry::Kvm => "kvm",
            Entry::Haltpoll => "haltpoll",
            Entry::SkiRental => "ski rental",
            Entry::BestFixed => "best fixed",
            Entry::BestKvm => "best kvm",
            Entry::Savings => "savings",
            Entry::Leader => "leader",
            Entry::Outer => "outer 1s",
            Entry::OuterOften => "outer 100ms",
        }
    }

    /// Whether it is chosen for each recording with all of it known.
    pub const fn in_hindsight(self) -> bool {
        matches!(self, Entry::BestFixed | Entry::BestKvm)
    }

    /// What is replayed for the row, in a kernel of this version; `None` for what is chosen in hindsight.
    fn rule(self, version: Version, halt_cost: Nanos) -> Option<Rule> {
        Some(match self {
            Entry::Never => Rule::Never,
            Entry::Always => Rule::Fixed(ALWAYS),
            Entry::Kvm => Rule::Layer(Setting::defaults(Layer::Host, version)),
            Entry::Haltpoll => Rule::Layer(Setting::defaults(Layer::Guest, version)),
            Entry::SkiRental => Rule::SkiRental(halt_cost),
            Entry::BestFixed | Entry::BestKvm => return None,
            Entry::Savings => Rule::savings(Terms::at(halt_cost)),
            Entry::Leader => Rule::leader(Terms::at(halt_cost)),
            Entry::Outer => controlled(version, halt_cost, SECOND),
            Entry::OuterOften => controlled(version, halt_cost, Nanos(SECOND.get() / 10)),
        })
    }
}

const SECOND: Nanos = Nanos(1_000_000_000);

fn controlled(version: Version, halt_cost: Nanos, period: Nanos) -> Rule {
    let host = Setting::defaults(Layer::Host, version);
    Rule::Controlled { host, terms: outer::Terms { halt_cost, period } }
}

/// One recording at one price.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// What one halt and wake is worth.
    pub halt_cost: Nanos,
    /// What the optimum costs \[ns\].
    pub optimum_ns: u128,
    /// What each of [`Entry::ALL`] costs \[ns\].
    pub cost_ns: [u128; Entry::ALL.len()],
}

impl Priced {
    /// What a row costs by the optimum; `None` where that costs nothing.
    pub fn ratio(&self, entry: Entry) -> Option<f64> {
        let place = Entry::ALL.iter().position(|other| *other == entry)?;
        (self.optimum_ns > 0).then(|| self.cost_ns[place] as f64 / self.optimum_ns as f64)
    }
}

/// How much of the leader's gain over KVM's default another keeps: 1 where it costs as much as the leader, 0 where it costs
/// as much as the default. `None` where the leader gains nothing. Gains are ratios, so that means over recordings are the
/// geometric ones.
pub fn kept(kvm: f64, leader: f64, other: f64) -> Option<f64> {
    let gain = (kvm / leader).ln();
    (gain > 1e-3).then(|| (kvm / other).ln() / gain)
}

/// Replays all rows over a recording once, at several prices of a halt; `version` is that of the kernel whose rules and
/// defaults are taken. `progress` is told how many episodes were seen since it was last told.
///
/// # Errors
/// [`ReplayError`].
pub fn study(
    source: &dyn Source,
    version: Version,
    prices: &[Nanos],
    progress: &dyn Fn(u64),
) -> Result<Vec<Priced>, ReplayError> {
    let of_price = |price: &Nanos| Entry::ALL.map(|entry| entry.rule(version, *price));
    let mut rules: Vec<Rule> = prices.iter().flat_map(of_price).flatten().collect();
    let online = rules.len();
    rules.extend(grid::settings(Layer::Host, version).into_iter().map(Rule::Layer));
    let mut bank = Bank::new(&rules, 0)?;
    let mut windows = FixedWindows::default();
    let mut bounds: Vec<OptimumBound> = prices.iter().map(|price| OptimumBound::new(*price)).collect();
    source.visit(0..u64::MAX, &mut |batch| {
        let bounds = || {
            windows.feed(batch);
            bounds.iter_mut().for_each(|bound| bound.feed(batch));
        };
        join(|| bank.feed(batch), bounds);
        progress(batch.episodes() as u64);
    })?;
    let counts = bank.take();
    let (online, grid) = counts.split_at(online);
    // In the order of the rules: price by price, the entries that have one.
    let mut online = online.iter();
    let priced = |(price, bound): (&Nanos, &OptimumBound)| {
        let cost = |counts: &Counts| counts.cost_ns(*price);
        let cost_ns = Entry::ALL.map(|entry| match entry {
            Entry::BestFixed => cost(&windows.best(*price).1),
            Entry::BestKvm => grid.iter().map(cost).min().unwrap_or(0),
            _ => online.next().map_or(0, cost),
        });
        Priced { halt_cost: *price, optimum_ns: cost(&bound.counts()), cost_ns }
    };
    Ok(prices.iter().zip(&bounds).map(priced).collect())
}

/// Costs by the optimum over several recordings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Their geometric mean.
    pub geometric_mean: f64,
    /// The largest.
    pub worst: f64,
}

impl Summary {
    /// Of these; `None` of none.
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let (mut logs, mut number, mut worst) = (0.0, 0u32, f64::NEG_INFINITY);
        for ratio in ratios {
            logs += ratio.ln();
            number += 1;
            worst = worst.max(ratio);
        }
        (number > 0).then(|| Summary { geometric_mean: (logs / f64::from(number)).exp(), worst })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, replay};

    #[test]
    fn rows_are_what_a_replay_of_each_says() {
        let idle: Vec<u64> = (0..3_000).map(|n| [3_000, 12_000, 90_000, 400_000][n * 7 % 11 % 4]).collect();
        let (source, version) = (Memory::of_one(&idle), Version::new(6, 18));
        let prices = [5_000, 50_000].map(Nanos);
        let studied = study(&source, version, &prices, &|_| ()).unwrap();
        for (price, priced) in prices.into_iter().zip(&studied) {
            assert_eq!(priced.halt_cost, price);
            for (entry, cost_ns) in Entry::ALL.into_iter().zip(priced.cost_ns) {
                if let Some(rule) = entry.rule(version, price) {
                    let replayed = replay(&source, &[rule], price, &|_| ()).unwrap();
                    assert_eq!(cost_ns, replayed.counts[0].cost_ns(price), "{entry:?}");
                    assert_eq!(priced.optimum_ns, replayed.optimum.cost_ns(price));
                }
                assert!(cost_ns >= priced.optimum_ns, "{entry:?}");
            }
            let cost = |entry| priced.ratio(entry).unwrap();
            assert!(cost(Entry::BestFixed) <= cost(Entry::Never).min(cost(Entry::SkiRental)) * 1.001);
            assert!(cost(Entry::BestKvm) <= cost(Entry::Never));
        }
    }

    #[test]
    fn kept_is_a_share_of_the_gain() {
        assert_eq!(kept(4.0, 1.0, 2.0), Some(0.5));
        assert_eq!(kept(4.0, 1.0, 1.0), Some(1.0));
        assert!(kept(4.0, 1.0, 8.0).unwrap() < 0.0);
        assert_eq!(kept(1.0, 1.0, 1.0), None);
    }

    #[test]
    fn summary_is_the_geometric_mean_and_the_worst() {
        let summary = Summary::of([1.0, 4.0]).unwrap();
        assert!((summary.geometric_mean - 2.0).abs() < 1e-12 && summary.worst == 4.0);
        assert_eq!(Summary::of([]), None);
    }
}
