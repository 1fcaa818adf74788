//! Nobody makes the learning policies exceed their stated bound: over any consecutive episodes the cost is at
//! most twice the optimum's plus [`LIMIT`] halts, and plus the longest loss where others take the CPU. Random
//! streams, streams by a searcher that climbs, and adversaries that see the policy's state and preempt its polls try;
//! the worst that each found is printed beside the bound.

use dwell_policy::account::{Account, LIMIT, MOST_LOST};
use dwell_policy::leader::Leader;
use dwell_policy::reference::Optimum;
use dwell_policy::savings::Savings;
use dwell_policy::trial::Trial;
use dwell_policy::{Nanos, Outcome, Policy};
use proptest::prelude::*;

use dwell_testing::say;

/// The price of a halt of the searches; a prime, so that nothing comes out even.
const K: u64 = 20_011;

/// The losses that an adversary chooses from: none, the least that counts, one that takes about twenty halts to
/// repay, and with the last of them more than is charged.
const LOST: [u64; 4] = [0, LIMIT * K + 1, 20 * K, 2 * MOST_LOST.get()];

/// An episode: how long the idler was busy before, its length without what was lost to others in its poll,
/// and that, if it polls at all \[ns\].
type Episode = (u64, u64, u64);

/// A policy whose account can be seen.
trait Seen: Policy + Clone {
    fn seen(&self) -> &Account;
}

impl Seen for Leader {
    fn seen(&self) -> &Account {
        self.account()
    }
}

impl Seen for Savings {
    fn seen(&self) -> &Account {
        self.account()
    }
}

impl<P: Policy + Clone> Seen for Trial<P> {
    fn seen(&self) -> &Account {
        self.account()
    }
}

/// What a stream has cost over twice the optimum, in its worst stretch, and both in all \[ns\].
#[derive(Clone, Copy, Default)]
struct Regret {
    since: i128,
    worst: i128,
    cost: i128,
    optimum: i128,
}

impl Regret {
    fn add(&mut self, cost: u64, optimum: u64) {
        let (cost, optimum) = (i128::from(cost), i128::from(optimum));
        self.cost += cost;
        self.optimum += optimum;
        // The stretch that ends here and is worst: with what was before, or without.
        self.since = self.since.max(0) + cost - 2 * optimum;
        self.worst = self.worst.max(self.since);
    }

    fn halts(&self) -> f64 {
        self.worst as f64 / K as f64
    }
}

fn step(policy: &mut impl Seen, k: u64, (busy, idle, lost): Episode, regret: &mut Regret) {
    let window = policy.window_after(Nanos(busy)).get();
    let lost = if window > 0 { lost } else { 0 };
    // The optimum may not poll where the policy gives way.
    let gives_way = policy.seen().gives_way();
    policy.observe(Outcome::of(Nanos(idle.saturating_add(lost))).losing(Nanos(lost)));
    let cost = if idle <= window { idle } else { window.saturating_add(k) };
    let optimum = if gives_way { k } else { Optimum { halt_cost: Nanos(k) }.cost(Nanos(idle)).get() };
    regret.add(cost.saturating_add(lost.min(MOST_LOST.get())), optimum);
}

fn play(mut policy: impl Seen, k: u64, stream: &[Episode]) -> Regret {
    let mut regret = Regret::default();
    stream.iter().for_each(|episode| step(&mut policy, k, *episode, &mut regret));
    regret
}

/// Lengths that hurt: right after the window, right after the price, nothing, for ever.
fn lengths(window: u64, k: u64) -> [u64; 8] {
    [0, 1, window, window + 1, k, k + 1, 2 * k + 1, 100 * k]
}

/// Chooses each episode, with the policy's state in view, so that the next `depth` lose most against twice the
/// optimum.
fn adversary(mut policy: impl Seen, lost: &[u64], depth: u32, episodes: u32) -> Regret {
    let mut regret = Regret::default();
    for _ in 0..episodes {
        let (_, episode) = worst(&policy, lost, depth);
        step(&mut policy, K, episode, &mut regret);
    }
    regret
}

fn worst(policy: &impl Seen, losses: &[u64], depth: u32) -> (i128, Episode) {
    let mut found = (i128::MIN, (0, 0, 0));
    for busy in [0, K / 2, 5 * K] {
        let window = policy.clone().window_after(Nanos(busy)).get();
        for idle in lengths(window, K) {
            for lost in losses {
                let (mut next, mut one) = (policy.clone(), Regret::default());
                step(&mut next, K, (busy, idle, *lost), &mut one);
                let later = if depth > 1 { worst(&next, losses, depth - 1).0 } else { 0 };
                found = found.max((one.since + later, (busy, idle, *lost)));
            }
        }
    }
    found
}

/// First lets the policy be sure of one thing, then sees it.
fn adversary_after(mut policy: impl Seen, lost: &[u64], certainty: Episode, depth: u32) -> Regret {
    (0..1_000).for_each(|_| step(&mut policy, K, certainty, &mut Regret::default()));
    adversary(policy, lost, depth, 200)
}

/// Climbs from stream to stream: what loses more is kept.
fn climb(policy: &impl Seen, losses: &[u64], seed: u64) -> Regret {
    let mut state = seed;
    let mut below = move |n: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut length = move || match below(6) {
        0 => 1,
        1 => K,
        2 => K + 1,
        3 => 100 * K,
        _ => below(4 * K),
    };
    let lost = |length: u64| losses[usize::try_from(length).unwrap_or(0) % losses.len()];
    let mut stream: Vec<Episode> = (0..128).map(|_| (length(), length(), lost(length()))).collect();
    let mut best = play(policy.clone(), K, &stream);
    for _ in 0..3_000 {
        let at = usize::try_from(length()).unwrap_or(0) % stream.len();
        let before = stream[at];
        stream[at] = (length(), length(), lost(length()));
        let now = play(policy.clone(), K, &stream);
        if now.worst >= best.worst { best = now } else { stream[at] = before }
    }
    best
}

/// Alone, and with a scheduler that preempts polls for at most so long.
fn search(name: &str, policy: &impl Seen) {
    for most in 1..=LOST.len() {
        search_within(name, policy, &LOST[..most]);
    }
}

fn search_within(name: &str, policy: &impl Seen, lost: &[u64]) {
    let certainties = [(0, 1, 0), (0, 3 * K / 4, 0), (0, K + K / 3, 0), (0, 100 * K, 0)];
    let adversaries = (1..=2).flat_map(|depth| {
        let after = certainties.map(|certainty| adversary_after(policy.clone(), lost, certainty, depth));
        after.into_iter().chain([adversary(policy.clone(), lost, depth, 400)])
    });
    let seen = adversaries.max_by_key(|regret| regret.worst).unwrap_or_default();
    let climbed =
        (1..=4).map(|seed| climb(policy, lost, seed)).max_by_key(|regret| regret.worst).unwrap_or_default();
    let long = adversary(policy.clone(), lost, 1, 20_000);
    let ratio = long.cost as f64 / long.optimum as f64;
    let longest = lost.iter().copied().max().unwrap_or(0).min(MOST_LOST.get());
    let bound = LIMIT * K + longest;
    say!(
        "{name}, losses up to {longest} ns: worst stretch over twice the optimum: {:.3} halts by an adversary who sees the \
         state, {:.3} by hill climbing; stated {:.3}. 20,000 episodes of the adversary: {ratio:.4} times the optimum",
        seen.halts(),
        climbed.halts(),
        bound as f64 / K as f64,
    );
    // The search is worth something only if it comes close.
    assert!(seen.worst > i128::from(K + longest), "the adversary found nothing");
    for regret in [seen, climbed, long] {
        assert!(regret.worst <= i128::from(bound), "{}", regret.halts());
    }
}

#[test]
fn searchers_do_not_break_savings() {
    search("savings", &Savings::new(Nanos(K)));
}

#[test]
fn searchers_do_not_break_leader() {
    search("leader", &Leader::new(Nanos(K)));
}

/// Where it is sure that halting is right, a burst is near.
#[test]
fn searchers_do_not_break_trials() {
    search("trial of leader", &Trial::leader(Nanos(K)));
    search("trial of savings", &Trial::new(Savings::new(Nanos(K)), Nanos(K)));
}

/// Streams that are all of a kind for a while, so that there is something to learn, of lengths around a price.
fn streams() -> impl Strategy<Value = (u64, Vec<Episode>)> {
    (1u64..1 << 32).prop_flat_map(|k| {
        let length = prop_oneof![Just(0), Just(1), Just(k), Just(k + 1), 0..4 * k, any::<u64>()];
        // The long ones are long enough for bursts of trials.
        let lost = prop_oneof![8 => Just(0), 1 => k..1 << 35, 1 => any::<u64>()];
        let spell = (length.clone(), length, lost, prop_oneof![9 => 1usize..80, 1 => 500usize..700]);
        let spells = prop::collection::vec(spell, 1..30);
        let stream = spells.prop_map(|spells| {
            let repeat =
                |&(busy, idle, lost, times): &(u64, u64, u64, usize)| vec![(busy, idle, lost); times];
            spells.iter().flat_map(repeat).collect()
        });
        (Just(k), stream)
    })
}

proptest! {
    #[test]
    fn no_stream_exceeds_the_bound((k, stream) in streams()) {
        let price = Nanos(k);
        let lost = stream.iter().map(|(_, _, lost)| (*lost).min(MOST_LOST.get())).max().unwrap_or(0);
        for regret in [
            play(Savings::new(price), k, &stream),
            play(Leader::new(price), k, &stream),
            play(Trial::leader(price), k, &stream),
            play(Trial::new(Savings::new(price), price), k, &stream),
        ] {
            prop_assert!(regret.worst <= i128::from(LIMIT) * i128::from(k) + i128::from(lost), "{} halts", regret.worst as f64 / k as f64);
        }
    }
}
