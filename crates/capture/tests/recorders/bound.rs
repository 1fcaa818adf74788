//! The bound from counters against the replay: what it says no setting can gain, no replayed setting gains.

use dwell_capture::kvm_stats::{Bound, Counters};
use dwell_policy::host::{BUCKETS, bucket};
use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos, Outcome, Policy, host, reference};
use dwell_replay::{Counts, Memory, Rule, replay};
use proptest::prelude::*;

/// The rules that are counted and replayed, each as the replay knows it and as a policy to count with.
fn rules(window: u64, max: u32, shrink: u32) -> Vec<(Rule, Box<dyn Policy>)> {
    let mut setting = Setting::defaults(Layer::Host, Version::new(6, 18));
    setting.set("halt_poll_ns", max.into()).expect("in range");
    setting.set("halt_poll_ns_shrink", shrink.into()).expect("in range");
    let kvm = host::HaltPoll::new(host::Revision::V6_11, host::Params::from(&setting));
    vec![
        (Rule::NEVER, Box::new(reference::Never)),
        (Rule::ALWAYS, Box::new(reference::Always)),
        (Rule::fixed(Nanos(window)), Box::new(reference::Fixed(Nanos(window)))),
        (Rule::Layer(setting), Box::new(kvm)),
    ]
}

/// What KVM counts while a policy lives through these episodes.
fn counted(policy: &mut dyn Policy, idle: &[u64]) -> Counters {
    let [mut success, mut fail, mut wait] = [[0u64; BUCKETS]; 3];
    let (mut attempted, mut success_ns, mut fail_ns, mut wait_ns) = (0, 0, 0, 0);
    for &d in idle {
        let window = policy.window().get();
        policy.observe(Outcome::of(Nanos(d)));
        attempted += u64::from(window > 0);
        match (window > 0, d > window) {
            (true, false) => {
                success[bucket(d)] += 1;
                success_ns += d;
            }
            (true, true) => {
                fail[bucket(window)] += 1;
                fail_ns += window;
            }
            (false, _) => {}
        }
        if d > window {
            wait[bucket(d - window)] += 1;
            wait_ns += d - window;
        }
    }
    Counters {
        halt_exits: Some(idle.len() as u64),
        halt_attempted_poll: Some(attempted),
        halt_successful_poll: Some(success.iter().sum()),
        halt_poll_invalid: Some(0),
        halt_poll_success_ns: Some(success_ns),
        halt_poll_fail_ns: Some(fail_ns),
        halt_wait_ns: Some(wait_ns),
        halt_poll_success_hist: Some(success.to_vec()),
        halt_poll_fail_hist: Some(fail.to_vec()),
        halt_wait_hist: Some(wait.to_vec()),
    }
}

/// What the replay says of each rule, and of the optimum.
fn replayed(rules: &[Rule], idle: &[u64], halt_cost: Nanos) -> (Vec<Counts>, u128) {
    let replayed = replay(&Memory::of_one(idle), rules, halt_cost, &|_| ()).expect("known rules, in memory");
    (replayed.counts, replayed.optimum.cost_ns(halt_cost))
}

proptest! {
    #[test]
    fn no_replayed_setting_gains_more(
        idle in prop::collection::vec(prop_oneof![1u64..100, 1u64..60_000, 1u64..3_000_000, 1u64..1 << 33], 1..150),
        k in 0u64..80_000,
        window in 1u64..400_000,
        max in 0u32..400_000,
        shrink in 0u32..4,
    ) {
        let _alone = crate::alone();
        let halt_cost = Nanos(k);
        let names: Vec<Rule> = rules(window, max, shrink).into_iter().map(|(rule, _)| rule).collect();
        let (all, optimum) = replayed(&names, &idle, halt_cost);
        for ((_, mut policy), present) in rules(window, max, shrink).into_iter().zip(&all) {
            let bound = Bound::of(&counted(&mut *policy, &idle), halt_cost).expect("everything is counted");
            prop_assert_eq!(bound.cost_ns, present.cost_ns(halt_cost));
            prop_assert_eq!((u128::from(bound.polled_ns), bound.halts), (present.polled_ns, present.halts));
            prop_assert!(bound.least_cost_ns <= optimum);
            for other in &all {
                prop_assert!(bound.cost_ns.saturating_sub(other.cost_ns(halt_cost)) <= bound.gain_ns);
            }
        }
    }
}
