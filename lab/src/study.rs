//! Policies compared over many recordings: what they cost over the optimum.
//!
//! Every policy gets the same episodes, open loop, and its cost is [`Counts::cost_ns`]. Two are chosen for
//! each recording in hindsight: the best fixed window and the best setting of KVM's rule. Over several
//! recordings, costs are summed up as the geometric mean of cost over optimum, in which every recording has
//! the same weight, and as the worst.
//!
//! # What was fitted
//! The parameters of [`Leader`](dwell_policy::leader::Leader) were chosen on the recordings in [`FITTED`]:
//! every second of the bundled recordings in the order of their names, from the first. Means are given for
//! these and for the others apart.

use dwell_policy::catalogue::{Entry, LEADER, Terms, learners};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::bound::{FixedWindows, OptimumBound};
use dwell_replay::{Bank, Counts, Overlapping, ReplayError, Rule, Source, grid};

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

/// A policy of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    Never,
    /// A fixed window of 200 us, the longest of KVM and haltpoll by default.
    Always,
    /// KVM halt polling with its defaults.
    Kvm,
    /// The haltpoll governor with its defaults.
    Haltpoll,
    /// Polls for as long as a halt costs.
    SkiRental,
    /// The fixed window that was best for the recording.
    BestFixed,
    /// The setting of KVM's rule that was best for the recording, of [`grid::settings`].
    BestKvm,
    /// A policy that learns, of the catalogue or of your own.
    Learner(&'static Entry),
}

/// A window that hardly any episode outlasts.
const ALWAYS: Nanos = Nanos::from_micros(200);

impl Subject {
    pub const LEADER: Subject = Subject::Learner(LEADER);

    /// The policies of the study, in the order in which they are shown; all learners of the catalogue are among them.
    pub fn all() -> Vec<Subject> {
        let fixed = [
            Subject::Never,
            Subject::Always,
            Subject::Kvm,
            Subject::Haltpoll,
            Subject::SkiRental,
            Subject::BestFixed,
            Subject::BestKvm,
        ];
        let learners = learners().map(Subject::Learner);
        fixed.into_iter().chain(learners).collect()
    }

    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Subject::Never => "never",
            Subject::Always => "always 200us",
            Subject::Kvm => "kvm",
            Subject::Haltpoll => "haltpoll",
            Subject::SkiRental => "ski rental",
            Subject::BestFixed => "best fixed",
            Subject::BestKvm => "best kvm",
            Subject::Learner(entry) => entry.name,
        }
    }

    /// Whether it is chosen for each recording with all of it known.
    pub const fn in_hindsight(self) -> bool {
        matches!(self, Subject::BestFixed | Subject::BestKvm)
    }

    /// What is replayed, in a kernel of this version; `None` for what is chosen in hindsight.
    fn rule(self, version: Version, halt_cost: Nanos) -> Option<Rule> {
        Some(match self {
            Subject::Never => Rule::NEVER,
            Subject::Always => Rule::fixed(ALWAYS),
            Subject::Kvm => Rule::Layer(Setting::defaults(Layer::Host, version)),
            Subject::Haltpoll => Rule::Layer(Setting::defaults(Layer::Guest, version)),
            Subject::SkiRental => Rule::ski_rental(halt_cost),
            Subject::BestFixed | Subject::BestKvm => return None,
            Subject::Learner(entry) => Rule::Policy(entry, Terms::at(halt_cost)),
        })
    }
}

/// One recording at one halt cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Priced {
    /// CPU time of one halt and wakeup.
    pub halt_cost: Nanos,
    /// Cost of the optimum \[ns\].
    pub optimum_ns: u128,
    /// Cost of each policy \[ns\], in the order given.
    pub cost_ns: Vec<(Subject, u128)>,
}

impl Priced {
    /// The cost of a policy over that of the optimum; `None` where that is zero.
    pub fn ratio(&self, subject: Subject) -> Option<f64> {
        let (_, cost_ns) = self.cost_ns.iter().find(|(other, _)| *other == subject)?;
        (self.optimum_ns > 0).then(|| *cost_ns as f64 / self.optimum_ns as f64)
    }
}

/// Replays policies over a recording once, at several halt costs; `version` is that of the kernel whose rules
/// and defaults are taken. `progress` gets the number of episodes replayed since its last call.
///
/// # Errors
/// [`ReplayError`].
pub fn study(
    source: &dyn Source,
    version: Version,
    subjects: &[Subject],
    prices: &[Nanos],
    progress: &dyn Fn(u64),
) -> Result<Vec<Priced>, ReplayError> {
    let of_price = |price: &Nanos| {
        let price = *price;
        subjects.iter().filter_map(move |subject| subject.rule(version, price))
    };
    let mut rules: Vec<Rule> = prices.iter().flat_map(of_price).collect();
    let online = rules.len();
    rules.extend(grid::settings(Layer::Host, version).into_iter().map(Rule::Layer));
    let mut bank = Bank::new(&rules, 0)?;
    let mut windows = FixedWindows::default();
    let mut bounds: Vec<OptimumBound> = prices.iter().map(|price| OptimumBound::new(*price)).collect();
    let mut idle_ns = 0;
    let span = source.visit(0..u64::MAX, &mut |batch| {
        idle_ns += batch.runs().flat_map(|run| &run.idle_ns).map(|&ns| u128::from(ns)).sum::<u128>();
        bank.feed(batch);
        windows.feed(batch);
        bounds.iter_mut().for_each(|bound| bound.feed(batch));
        progress(batch.episodes() as u64);
    })?;
    Overlapping::check(source, idle_ns, source.time_recorded().unwrap_or(span))?;
    let counts = bank.take();
    let (online, grid) = counts.split_at(online);
    // In the order of the rules: for each halt cost, the policies that have one.
    let mut online = online.iter();
    let priced = |(price, bound): (&Nanos, &OptimumBound)| {
        let cost = |counts: &Counts| counts.cost_ns(*price);
        let cost_of = |subject: &Subject| match subject {
            Subject::BestFixed => cost(&windows.least(|counts| Some(counts.cost_ns(*price))).1),
            Subject::BestKvm => grid.iter().map(cost).min().unwrap_or(0),
            _ => online.next().map_or(0, cost),
        };
        let cost_ns = subjects.iter().copied().zip(subjects.iter().map(cost_of)).collect();
        Priced { halt_cost: *price, optimum_ns: cost(&bound.counts()), cost_ns }
    };
    Ok(prices.iter().zip(&bounds).map(priced).collect())
}

/// Costs over the optimum, over several recordings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub geometric_mean: f64,
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
    use dwell_replay::{Memory, replay};

    #[test]
    fn costs_are_those_of_a_replay_of_each_policy() {
        let idle: Vec<u64> = (0..3_000).map(|n| [3_000, 12_000, 90_000, 400_000][n * 7 % 11 % 4]).collect();
        let (source, version) = (Memory::of_one(&idle), Version::new(6, 18));
        let prices = [5_000, 50_000].map(Nanos);
        let studied = study(&source, version, &Subject::all(), &prices, &|_| ()).unwrap();
        for (price, priced) in prices.into_iter().zip(&studied) {
            assert_eq!(priced.halt_cost, price);
            for &(subject, cost_ns) in &priced.cost_ns {
                if let Some(rule) = subject.rule(version, price) {
                    let replayed = replay(&source, &[rule], price, &|_| ()).unwrap();
                    assert_eq!(cost_ns, replayed.counts[0].cost_ns(price), "{subject:?}");
                    assert_eq!(priced.optimum_ns, replayed.optimum.cost_ns(price));
                }
                assert!(cost_ns >= priced.optimum_ns, "{subject:?}");
            }
            let cost = |subject| priced.ratio(subject).unwrap();
            assert!(cost(Subject::BestFixed) <= cost(Subject::Never).min(cost(Subject::SkiRental)) * 1.001);
            assert!(cost(Subject::BestKvm) <= cost(Subject::Never));
        }
    }

    #[test]
    fn summary_is_the_geometric_mean_and_the_worst() {
        let summary = Summary::of([1.0, 4.0]).unwrap();
        assert!((summary.geometric_mean - 2.0).abs() < 1e-12 && summary.worst == 4.0);
        assert_eq!(Summary::of([]), None);
    }
}
