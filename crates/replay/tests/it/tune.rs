//! Advice on loads whose best setting is known.

use dwell_policy::param::Setting;
use dwell_policy::version::Version;
use dwell_policy::{Layer, Nanos};
use dwell_recording::{Episode, Metadata, Packing, Reader, Writer};
use dwell_replay::advice::{Advice, Conclusion, Goal, Role, Worth};
use dwell_replay::tune::{MIN_EPISODES, Task, TuneError, tune};
use dwell_replay::{Memory, RecordingSource, Source, WakeupLatency, grid};

const HALT_COST: Nanos = Nanos(20_000);

fn advise(idle_ns: &[u64], goal: Goal) -> Result<Advice, TuneError> {
    let version = Version::new(6, 18);
    let present = Setting::defaults(Layer::Host, version);
    advise_from(idle_ns, goal, present)
}

fn advise_from(idle_ns: &[u64], goal: Goal, present: Setting) -> Result<Advice, TuneError> {
    advise_on(&Memory::of_one(idle_ns), goal, present)
}

fn advise_on(source: &dyn Source, goal: Goal, present: Setting) -> Result<Advice, TuneError> {
    let candidates = grid::settings(Layer::Host, present.version());
    let task = Task {
        source,
        present,
        candidates: &candidates,
        goal,
        halt_cost: HALT_COST,
        wakeup_latency: &WakeupLatency::constant(HALT_COST),
        worth_a_change: Worth::default(),
        decided: None,
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
    advice.recommended().unwrap_or_else(|| panic!("{:?}", advice.verdict))
}

#[test]
fn episodes_far_above_the_price_of_a_halt_are_not_worth_a_poll() {
    let advice = advise(&around(100_000, 4_000), Goal::LeastCost).unwrap();
    assert_eq!(advice.verdict, Conclusion::Change);
    assert_eq!(recommended(&advice).get("halt_poll_ns"), Some(0));
    let gain = advice.gain.unwrap();
    assert!(
        gain.share.low > 0.0 && gain.share.low <= gain.share.value && gain.share.value <= gain.share.high
    );
    // Less polling and more halts: it holds up to the halt cost at which both cost the same.
    let limits = advice.break_even.unwrap();
    assert!(limits.from_ns.is_none() && limits.to_ns.unwrap() > HALT_COST.get() as f64, "{limits:?}");
}

#[test]
fn episodes_far_below_the_price_of_a_halt_are_polled_through_already() {
    let advice = advise(&around(5_000, 4_000), Goal::LeastCost).unwrap();
    assert!(!advice.verdict.is_change(), "{:?}", advice.verdict);
}

#[test]
fn gain_of_the_first_half_that_does_not_come_again_is_not_advised() {
    // Polling pays in the first half. In the second each short episode makes the window grow for a long one.
    let mut idle = around(5_000, 4_000);
    idle.extend((0..4_000).map(|n| if n % 2 == 0 { 5_000 } else { 60_000 }));
    let mut never = Setting::defaults(Layer::Host, Version::new(6, 18));
    never.set("halt_poll_ns", 0).unwrap();
    let advice = advise_from(&idle, Goal::LeastCost, never).unwrap();
    let rejected = advice.row(Role::Rejected).unwrap();
    assert!(rejected.fitted.polls > 0, "the first half is for polling");
    // The loss is beyond noise, and is not called noise.
    assert_eq!(advice.verdict, Conclusion::Loss);
    assert!(advice.gain.unwrap().share.high < 0.0);
    assert!(advice.row(Role::Recommended).is_none() && advice.recommended().is_none());
    assert!(
        advice.words().contains("a loss on the second") && !advice.words().contains("noise"),
        "{}",
        advice.words()
    );
}

#[test]
fn a_setting_that_polls_more_is_not_advised_on_shared_cores() {
    let mut never = Setting::defaults(Layer::Host, Version::new(6, 18));
    never.set("halt_poll_ns", 0).unwrap();
    let mut advice = advise_from(&around(5_000, 4_000), Goal::LeastCost, never).unwrap();
    assert_eq!(advice.verdict, Conclusion::Change);
    assert!(advice.gives_way());
    assert_eq!((advice.verdict, advice.recommended()), (Conclusion::SharedCores, None));
    assert!(advice.row(Role::Recommended).is_none() && advice.row(Role::Rejected).is_some());
    assert!(advice.words().contains("others want the cores"), "{}", advice.words());
    // One that polls less is.
    let mut advice = advise(&around(100_000, 4_000), Goal::LeastCost).unwrap();
    assert!(!advice.gives_way());
    assert_eq!(recommended(&advice).get("halt_poll_ns"), Some(0));
}

#[test]
fn cpu_limit_is_kept_on_the_half_that_was_not_fitted() {
    let limit = 0.10;
    let advice = advise(&around(100_000, 8_000), Goal::MaxCpu(limit)).unwrap();
    assert_eq!(advice.verdict, Conclusion::Change);
    assert!(advice.row(Role::Recommended).unwrap().row.figures.polling_share() <= limit);
}

#[test]
fn limit_that_no_setting_meets_is_called_unattainable() {
    // Every halt is longer than the longest window of the grid.
    let idle = vec![20_000_000; 1_000];
    let advice = advise(&idle, Goal::MaxHaltsPerSecond(1.0)).unwrap();
    assert_eq!(advice.verdict, Conclusion::Unattainable);
}

#[test]
fn bounds_stand_around_every_row() {
    let advice = advise(&around(40_000, 8_000), Goal::LeastCost).unwrap();
    let cost = |role: Role| advice.figures(role).cost_ns;
    for row in &advice.rows {
        assert!(row.row.figures.cost_ns >= cost(Role::Optimum), "{:?}", row.role);
        assert_eq!((row.row.figures.episodes, row.fitted.episodes), (4_000, 4_000), "{:?}", row.role);
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
    let cost = |role: Role| advice.figures(role).cost_ns as f64;
    assert!(cost(Role::LEADER) < 1.03 * cost(Role::Optimum));
    assert!(cost(Role::LEADER) < 0.9 * cost(Role::BestInHindsight));
    assert!(cost(Role::SAVINGS) < 2.0 * cost(Role::Optimum));
}

#[test]
fn too_short_a_recording_is_refused() {
    let few = usize::try_from(MIN_EPISODES).unwrap() - 1;
    assert!(matches!(advise(&around(10_000, few), Goal::LeastCost), Err(TuneError::TooFew(_))));
    assert!(advise(&around(10_000, few + 1), Goal::LeastCost).is_ok());
}

/// 100,000 idlers took 8 GB, and the program ended when there was no more.
#[test]
fn more_idlers_than_fit_into_memory_are_refused() {
    let idlers = Memory::new((0..2_000).map(|n| (if n == 1_500 { 50_000 } else { 0 }, 10_000)));
    let present = Setting::defaults(Layer::Host, Version::new(6, 18));
    let refused = advise_on(&idlers, Goal::LeastCost, present).unwrap_err();
    assert!(matches!(refused, TuneError::TooManyIdlers { idlers: 50_001, .. }), "{refused}");
    assert!(refused.to_string().contains("on 50001 idlers: that takes more than 2 GiB"), "{refused}");
}

#[test]
fn a_certain_gain_of_a_sliver_of_a_cpu_is_not_worth_a_change() {
    // Two long episodes a second, each polled for 200 us first: nine tenths of the cost and 0.04 % of a CPU
    // can be gained.
    let mut idle = vec![50_000; 10];
    idle.extend([500_000_000; 400]);
    let mut present = Setting::defaults(Layer::Host, Version::new(6, 18));
    for (name, value) in
        [("halt_poll_ns", 200_000), ("halt_poll_ns_grow_start", 200_000), ("halt_poll_ns_shrink", 1)]
    {
        present.set(name, value).unwrap();
    }
    let candidates = grid::settings(Layer::Host, present.version());
    let source = Memory::of_one(&idle);
    let advice = |worth_a_change| {
        let task = Task {
            source: &source,
            present,
            candidates: &candidates,
            goal: Goal::LeastCost,
            halt_cost: HALT_COST,
            wakeup_latency: &WakeupLatency::constant(HALT_COST),
            worth_a_change,
            decided: None,
            progress: &|_| {},
        };
        tune(&task).unwrap()
    };
    let too_small = advice(Worth::default());
    let gain = too_small.gain.unwrap();
    assert!(gain.share.low > 0.8 && (3e5..5e5).contains(&gain.per_s), "{gain:?}");
    assert_eq!(too_small.verdict, Conclusion::TooSmall);
    assert!(too_small.words().contains("0.04 % of a CPU"), "{}", too_small.words());
    assert_eq!(advice(Worth { cpu_share: 0.0, ..Worth::default() }).verdict, Conclusion::Change);
}

#[test]
fn no_row_is_called_recommended_unless_it_is() {
    for (idle, goal) in [
        (around(5_000, 4_000), Goal::LeastCost),
        (vec![20_000_000; 1_000], Goal::MaxHaltsPerSecond(1.0)),
        (around(100_000, 4_000), Goal::LeastCost),
    ] {
        let advice = advise(&idle, goal).unwrap();
        let shown = advice.row(Role::Recommended).is_some();
        assert_eq!(shown, advice.verdict.is_change(), "{:?}", advice.verdict);
        assert_eq!(shown, advice.recommended().is_some());
        let json = serde_json::to_string(&advice).unwrap();
        assert_eq!(json.contains("\"recommended\""), shown);
    }
}

#[test]
fn halves_and_rates_are_of_the_time_recorded() {
    // 1000 long episodes in the first half of 100 s, which end in idleness, and 4000 short ones in the second.
    let mut idle = around(40_000_000, 1_000);
    let first: u64 = idle.iter().sum();
    idle.push(50_000_000_000 - first);
    idle.extend(around(10_000_000, 4_000));
    let present = Setting::defaults(Layer::Host, Version::new(6, 18));
    let advice =
        advise_on(&Memory::of_one(&idle).recorded(0, 100_000_000_000), Goal::LeastCost, present).unwrap();
    assert_eq!((advice.fitted_span_ns, advice.judged_span_ns), (50_000_000_000, 50_000_000_000));
    let never = advice.row(Role::Never).unwrap();
    let halts_per_s = |halts: f64| halts / 50.0;
    assert!((never.fitted.halts_per_s - halts_per_s(1_001.0)).abs() < 1e-9, "{}", never.fitted.halts_per_s);
    let second = idle.len() as f64 - 1_001.0;
    assert!((never.row.figures.halts_per_s - halts_per_s(second)).abs() < 1e-9);
}

#[test]
fn burst_in_one_half_of_the_time_recorded_is_refused() {
    let present = Setting::defaults(Layer::Host, Version::new(6, 18));
    // 2000 episodes in 0.2 s of 4 s.
    let burst = Memory::of_one(&around(100_000, 2_000)).recorded(0, 4_000_000_000);
    match advise_on(&burst, Goal::LeastCost, present) {
        Err(TuneError::UnevenHalves { first: 2_000, second: 0 }) => {}
        other => panic!("{:?}", other.map(|advice| advice.verdict)),
    }
}

/// Two idlers whose rows are one after the other, or in the order of time.
#[test]
fn halves_that_are_of_other_idlers_are_refused() {
    let advise = |grouped: bool| {
        let mut writer = Writer::new(vec![], Metadata::new(Layer::Host), Packing::default()).unwrap();
        for number in 0..2_000u64 {
            let (idler, at) =
                if grouped { (number / 1_000, number % 1_000) } else { (number % 2, number / 2) };
            let name = ["a", "b"][usize::try_from(idler).unwrap()];
            writer.push(&Episode::new(name, at * 1_000_000 + idler, 900_000)).unwrap();
        }
        let reader = Reader::from_bytes("memory", writer.close().unwrap().1).unwrap();
        let present = Setting::defaults(Layer::Host, Version::new(6, 18));
        advise_on(&RecordingSource::new(reader, false), Goal::LeastCost, present).map(|advice| advice.verdict)
    };
    assert!(advise(false).is_ok());
    match advise(true) {
        Err(TuneError::OutOfTime { number: 1_936, episodes: 2_000 }) => {}
        other => panic!("{other:?}"),
    }
}

/// Advice on the episodes of a file \[ns\], in this order.
fn advise_on_rows(rows: &[(String, u64, u64)]) -> Result<Advice, TuneError> {
    let mut writer = Writer::new(vec![], Metadata::new(Layer::Host), Packing::default()).unwrap();
    for (idler, start_ns, idle_ns) in rows {
        writer.push(&Episode::new(idler.as_str(), *start_ns, *idle_ns)).unwrap();
    }
    let reader = Reader::from_bytes("memory", writer.close().unwrap().1).unwrap();
    let present = Setting::defaults(Layer::Host, Version::new(6, 18));
    advise_on(&RecordingSource::new(reader, false), Goal::LeastCost, present)
}

/// One idler has nearly all episodes of 400 ms, and 50 others idle for most of that time, wherever their rows are.
#[test]
fn rows_out_of_the_order_of_time_do_not_change_how_long_the_halves_are() {
    let busy: Vec<_> = (0..4_000).map(|at| ("busy".to_owned(), at * 100_000, 60_000)).collect();
    let still: Vec<_> = (0..50).map(|idler| (format!("still{idler}"), 5, 300_000_000)).collect();
    let [first, last] = [[still.clone(), busy.clone()].concat(), [busy, still].concat()];
    let mut by_start = first.clone();
    by_start.sort_by_key(|row| row.1);
    let mut by_end = first.clone();
    by_end.sort_by_key(|row| row.1 + row.2);
    for rows in [first, last, by_start, by_end] {
        let advice = advise_on_rows(&rows).unwrap();
        for half_ns in [advice.fitted_span_ns, advice.judged_span_ns] {
            assert!((195_000_000..=205_000_000).contains(&half_ns), "{half_ns}: {:?}", rows[0]);
        }
    }
}

/// Each of 1,000 idlers begins a little later than the one before it.
#[test]
fn halves_of_many_idlers_one_after_the_other_are_refused() {
    let rows: Vec<_> = (0..1_000)
        .flat_map(|idler| {
            (0..20u64).map(move |at| (format!("vcpu{idler}"), idler * 1_000 + at * 80_000, 60_000))
        })
        .collect();
    let found = advise_on_rows(&rows);
    assert!(matches!(found, Err(TuneError::OutOfTime { episodes: 20_000, .. })), "{:?}", found.is_ok());
    let mut sorted = rows;
    sorted.sort_by_key(|row| row.1);
    let advice = advise_on_rows(&sorted).unwrap();
    assert!((2_519_000 - 60_000..2_650_000).contains(&(advice.fitted_span_ns + advice.judged_span_ns)));
}
