//! Advice on loads whose best setting is known.

use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_replay::tune::{Advice, Goal, MIN_EPISODES, Role, Task, TuneError, Verdict, tune};
use dwell_replay::{Memory, Rule, grid};

const HALT_COST: Nanos = Nanos(20_000);

fn advise(idle_ns: &[u64], goal: Goal) -> Result<Advice, TuneError> {
    let version = Version::new(6, 18);
    let present = Setting::defaults(Layer::Host, version);
    advise_from(idle_ns, goal, present)
}

fn advise_from(idle_ns: &[u64], goal: Goal, present: Setting) -> Result<Advice, TuneError> {
    let candidates = grid::settings(Layer::Host, present.version());
    let source = Memory::of_one(idle_ns);
    let task = Task {
        source: &source,
        present,
        candidates: &candidates,
        goal,
        halt_cost: HALT_COST,
        progress: &|_| {},
    };
    tune(&task)
}

/// Lengths around `mean`, without order.
fn around(mean: u64, episodes: usize) -> Vec<u64> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    (0..episodes).map(|_| mean / 2 + next() % mean).collect()
}

fn recommended(advice: &Advice) -> Setting {
    match advice.row(Role::Recommended).rule {
        Some(Rule::Layer(setting)) => setting,
        other => panic!("{other:?}"),
    }
}

#[test]
fn episodes_far_above_the_price_of_a_halt_are_not_worth_a_poll() {
    let advice = advise(&around(100_000, 4_000), Goal::LeastCost).unwrap();
    assert_eq!(advice.verdict, Verdict::Change);
    assert_eq!(recommended(&advice).get("halt_poll_ns"), Some(0));
    assert!(
        advice.gain.low > 0.0
            && advice.gain.low <= advice.gain.value
            && advice.gain.value <= advice.gain.high
    );
}

#[test]
fn episodes_far_below_the_price_of_a_halt_are_polled_through_already() {
    let advice = advise(&around(5_000, 4_000), Goal::LeastCost).unwrap();
    assert!(!advice.verdict.is_change(), "{:?}", advice.verdict);
}

#[test]
fn gain_of_the_first_half_that_does_not_come_again_is_not_advised() {
    // Polling pays in the first half and never in the second.
    let mut idle = around(5_000, 4_000);
    idle.extend(around(60_000, 4_000));
    let mut never = Setting::defaults(Layer::Host, Version::new(6, 18));
    never.set("halt_poll_ns", 0).unwrap();
    let advice = advise_from(&idle, Goal::LeastCost, never).unwrap();
    assert!(advice.row(Role::Recommended).fitted.polls > 0, "the first half is for polling");
    assert_eq!(advice.verdict, Verdict::WithinNoise);
}

#[test]
fn cpu_limit_is_kept_on_the_half_that_was_not_fitted() {
    let limit = 0.10;
    let advice = advise(&around(100_000, 8_000), Goal::MaxCpu(limit)).unwrap();
    let row = advice.row(Role::Recommended);
    assert_eq!(advice.verdict, Verdict::Change);
    assert!(row.counts.polled_ns as f64 <= limit * advice.judged_span_ns as f64);
}

#[test]
fn limit_that_no_setting_meets_is_called_unattainable() {
    // Every halt is longer than the longest window of the grid.
    let idle = vec![20_000_000; 1_000];
    let advice = advise(&idle, Goal::MaxHaltsPerSecond(1.0)).unwrap();
    assert_eq!(advice.verdict, Verdict::Unattainable);
}

#[test]
fn bounds_stand_around_every_row() {
    let advice = advise(&around(40_000, 8_000), Goal::LeastCost).unwrap();
    let cost = |role: Role| advice.row(role).counts.cost_ns(HALT_COST);
    for row in &advice.rows {
        assert!(row.counts.cost_ns(HALT_COST) >= cost(Role::Optimum), "{:?}", row.role);
        assert_eq!(row.counts.episodes, 4_000, "{:?}", row.role);
    }
    assert!(cost(Role::BestInHindsight) <= cost(Role::Recommended));
    assert!(cost(Role::BestFixedWindow) <= cost(Role::Never).min(cost(Role::Always)));
}

#[test]
fn better_rules_stand_beside_the_best_setting() {
    // Two short episodes, one long, and so on: every setting of KVM's rule either polls in vain or misses one.
    let idle: Vec<u64> =
        around(100_000, 8_000).iter().enumerate().map(|(n, d)| if n % 3 < 2 { d / 16 } else { *d }).collect();
    let advice = advise(&idle, Goal::LeastCost).unwrap();
    let cost = |role: Role| advice.row(role).counts.cost_ns(HALT_COST) as f64;
    assert!(cost(Role::Leader) < 1.03 * cost(Role::Optimum));
    assert!(cost(Role::Leader) < 0.9 * cost(Role::BestInHindsight));
    assert!(cost(Role::Savings) < 2.0 * cost(Role::Optimum));
}

#[test]
fn too_short_a_recording_is_refused() {
    let few = usize::try_from(MIN_EPISODES).unwrap() - 1;
    assert!(matches!(advise(&around(10_000, few), Goal::LeastCost), Err(TuneError::TooFew(_))));
    assert!(advise(&around(10_000, few + 1), Goal::LeastCost).is_ok());
}
